"""Bounds of what the API server may send: bytes, values, depth and objects. Each error names the call and the limit.

A server in error, or a program in its place, must not end this process for lack of memory. The bytes are counted while
they arrive. The values are counted before they are decoded: a megabyte of empty lists takes fifty megabytes as objects.
Answers with a content encoding are refused, because none is requested and a megabyte of gzip may be a gigabyte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from nodeagent.kube.api_request import ApiRequest
from nodeagent.kube.failure import ApiError

T = TypeVar("T")

LIST_MAX = 16 << 20
"""Bytes of a page of a list."""
REFUSAL_MAX = 1 << 20
"""Bytes that are read of a refusal; it names each refused field."""
OBJECT_VALUES_MAX, LIST_VALUES_MAX = 200_000, 2_000_000
"""Values of an object, and of a page."""
OBJECTS_MAX = 500_000
"""Objects of a list with all its pages. A cluster has at most 100,000 nodes."""
PAGES_MAX = 20_000

_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text without an end matches too: else each quote in it starts a search of the rest."""


def too_large(request: ApiRequest, what: str) -> ApiError:
    """The error for an answer beyond a bound; ``what`` is the part and the limit."""
    return ApiError(request.verb, request.path, 200, "TooLarge", f"the answer is refused: {what}")


def check_encoding(request: ApiRequest, headers: Mapping[str, str]) -> None:
    """Raises ``ApiError`` for an encoded answer."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        message = f"the answer has the content encoding {encoding[:40]!r}, which was not requested"
        raise ApiError(request.verb, request.path, 200, "Broken", message)


def decode(request: ApiRequest, body: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode the answer of a call, or an event of a watch. Raises ``ApiError``."""
    most = LIST_VALUES_MAX if request.verb == "list" else OBJECT_VALUES_MAX
    # A value takes two bytes or more. The texts are looked for only if the count with them exceeds the limit: that
    # takes longer.
    if len(body) > 2 * most and _values(body, 0, len(body)) > most and _more_values_than(most, body):
        raise too_large(request, f"more than {most} values")
    try:
        return decoder.decode(body)
    except RecursionError:
        raise too_large(request, "nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "an event" if request.verb == "watch" else "the answer"
        message = f"{what} cannot be decoded: {error}"
        raise ApiError(request.verb, request.path, 200, "Broken", message) from error


def _more_values_than(most: int, body: bytes | bytearray) -> bool:
    """Outside texts. One text at a time: a copy of the body without its texts takes a hundred megabytes to make."""
    found = start = 0
    for text in _TEXTS.finditer(body):
        found += _values(body, start, text.start())
        if found > most:
            return True
        start = text.end()
    return found + _values(body, start, len(body)) > most


def _values(body: bytes | bytearray, start: int, end: int) -> int:
    """A value follows a comma or opens a list or map. Commas in texts count too."""
    return body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
