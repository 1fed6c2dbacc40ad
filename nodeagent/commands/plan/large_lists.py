"""Read the items of a large JSON text part by part: that of 100,000 reports has a gigabyte.

``kubectl get -o json`` prints one list; other programs print one object in each line. A part of a list ends between two
items, at a place that looks like the beginning of the list: the same spaces and the same first key. The decoder decides
whether it is one: a part that ends inside an item is no JSON. A list without such places is one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

PART = 1 << 20
"""Bytes that are read at a time."""
TRIES = 16
"""Places that are tried before more text is read."""

_HEAD = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:"(?:apiVersion|kind)"\s*:\s*"[^"\\]*"\s*,\s*|'
    rb'"metadata"\s*:\s*\{[^{}]*\}\s*,\s*)*"items"\s*:\s*\[(?P<opening>\s*\{\s*"[^"\\]*")'
)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_LINES = msgspec.json.Decoder(msgspec.Raw)


class ListPart(NamedTuple):
    """``content`` has the ``items``, which are on lines after ``lines`` others. ``in_list``: with the list's brackets.

    The last part may have no items: then it is a text of its own, the list without the items before it, with what comes
    after the list.
    """

    lines: int
    content: bytes
    items: list[msgspec.Raw] | None
    in_list: bool

    @property
    def text(self) -> bytes:
        """The content with an empty line for each line before it, so that a fault has its line in the file."""
        return b"\n" * self.lines + self.content


class ListTooLargeError(Exception):
    """The text has more bytes than allowed."""


def parts(first: bytes, stream: BinaryIO, size_max: int, step: int = PART) -> Iterator[ListPart] | None:
    """The parts of the text that begins with ``first``; ``None`` if it is neither a list of objects nor lines of them.

    ``step`` bytes are read at a time. Raises ``ListTooLargeError`` beyond ``size_max`` bytes.
    """
    if (head := _HEAD.match(first)) is not None:
        return _list_parts(first, head, stream, size_max, step)
    if first[:1] == b"{":
        try:
            _LINES.decode_lines(first[: first.index(b"\n")])
        except (ValueError, RecursionError):
            return None
        return _line_parts(first, stream, size_max, step)
    return None


def _list_parts(
    first: bytes, head: re.Match[bytes], stream: BinaryIO, size_max: int, step: int
) -> Iterator[ListPart]:
    opening = head["opening"]
    places = (b"}," + opening, b"}, " + opening)
    before, rest = first[: head.start("opening")], first[head.start("opening") :]
    lines, size, wanted = before.count(b"\n"), len(first), step
    while True:
        more = stream.read(max(step, wanted - len(rest)))
        size += len(more)
        if size > size_max:
            raise ListTooLargeError
        rest += more
        if more and (cut := _cut(rest, places)) is not None:
            end, items = cut
            yield ListPart(lines, b"[" + rest[:end] + b"]", items, in_list=True)
            lines += rest.count(b"\n", 0, end)
            rest, wanted = rest[end + 1 :], step
        elif more:
            wanted = 2 * len(rest)
        else:
            yield ListPart(lines - before.count(b"\n"), before + rest, None, in_list=False)
            return


def _cut(rest: bytes, places: tuple[bytes, ...]) -> tuple[int, list[msgspec.Raw]] | None:
    """The last comma between two items, as far as it is found, and the items before it."""
    end = len(rest)
    for _ in range(TRIES):
        end = max(rest.rfind(place, 0, end) for place in places)
        if end < 0:
            return None
        try:
            return end + 1, _ITEMS.decode(b"[" + rest[: end + 1] + b"]")
        except (msgspec.DecodeError, RecursionError):
            continue
    return None


def _line_parts(first: bytes, stream: BinaryIO, size_max: int, step: int) -> Iterator[ListPart]:
    rest, lines, size = first, 0, len(first)
    while True:
        more = stream.read(step)
        size += len(more)
        if size > size_max:
            raise ListTooLargeError
        end = rest.rfind(b"\n") + 1 if more else len(rest)
        content, rest = rest[:end], rest[end:] + more
        try:
            items = _LINES.decode_lines(content)
        except (msgspec.DecodeError, RecursionError):
            yield ListPart(lines, content + rest + stream.read(), None, in_list=False)
            return
        yield ListPart(lines, content, items, in_list=False)
        lines += content.count(b"\n")
        if not more:
            return
