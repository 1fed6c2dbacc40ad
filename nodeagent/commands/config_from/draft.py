"""A configuration of ours while it is made from another program's, and its text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.base.plain_text import one_line
from nodeagent.config.file_errors import ConfigError
from nodeagent.config.reference import yaml_line

_ENTRY = re.compile(r"(resources|vfs)\[([0-9]+)\]")
_WIDTH = 118


class KeyRemark(NamedTuple):
    """The fate of a key. ``lost``: something that was in use has no counterpart."""

    place: str
    text: str
    lost: bool

    def __str__(self) -> str:
        return f"{self.place}: {'lost' if self.lost else 'note'}: {self.text}"


class DraftEntry:
    """An entry of ``resources`` or ``vfs``. ``why_off``: why it is written as a comment only. ``narrowed``: it selects
    fewer devices than the other program's."""

    def __init__(
        self, origin: str, settings: dict[str, Any], why_off: str | None = None, *, narrowed: bool = False
    ) -> None:
        self.origin, self.settings, self.why_off, self.narrowed = origin, settings, why_off, narrowed


class Draft:
    """A configuration, and remarks on what it was made of."""

    def __init__(self, about: str) -> None:
        self.about = [about]
        self.prefix: str | None = None
        self.resources: list[DraftEntry] = []
        self.vfs: list[DraftEntry] = []
        self.sections: dict[str, Any] = {}
        self.remarks: list[KeyRemark] = []

    def lose(self, place: str, why: str) -> None:
        self.remarks.append(KeyRemark(place, why, lost=True))

    def note(self, place: str, text: str) -> None:
        remark = KeyRemark(place, text, lost=False)
        if remark not in self.remarks:
            self.remarks.append(remark)

    @property
    def lost(self) -> bool:
        return any(remark.lost for remark in self.remarks)

    def text(self) -> str:
        """Return the configuration as YAML with comments."""
        lines = [*_comment(self.about), "", "apiVersion: nodeagent.io/v1alpha1", "kind: NodeAgentConfig"]
        if self.prefix is not None:
            lines.append(f"resourcePrefix: {yaml_line(self.prefix)}")
        for key, entries in (("resources", self.resources), ("vfs", self.vfs)):
            if key == "vfs" and not entries:
                continue
            lines += ["", f"{key}:" if any(entry.why_off is None for entry in entries) else f"{key}: []"]
            for entry in entries:
                lines += _entry(entry)
        if self.sections:
            lines += ["", *_block(self.sections)]
        return "\n".join(lines) + "\n"

    def switch_off(self, error: ConfigError) -> bool:
        """Turn the entries that our own check refuses into comments. Return whether there was any."""
        active = {
            "resources": [entry for entry in self.resources if entry.why_off is None],
            "vfs": [entry for entry in self.vfs if entry.why_off is None],
        }
        found = False
        for fault in error.errors:
            match = _ENTRY.match(fault.path)
            if match is None or int(match[2]) >= len(active[match[1]]):
                continue
            entry = active[match[1]][int(match[2])]
            if entry.why_off is None:
                entry.why_off = f"{fault.path[match.end() :].lstrip('.')}: {fault.message}".removeprefix(": ")
                self.lose(entry.origin, f"the entry is a comment only: {entry.why_off}")
                found = True
        return found


def _entry(entry: DraftEntry) -> Iterator[str]:
    yield from _comment([f"From {entry.origin}."])
    lines = list(_block(entry.settings))
    lines = [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]
    if entry.why_off is None:
        yield from lines
        return
    yield from _comment([f"Left out: {entry.why_off}."])
    yield from (f"# {line}" for line in lines)


def _block(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _block(value))
        else:
            yield f"{key}: {yaml_line(tuple(value) if isinstance(value, list) else value)}"


def _comment(texts: Iterable[str]) -> Iterator[str]:
    """Comments in lines of their own; no text of a file can end one."""
    for text in texts:
        words = one_line(text, 2000, ascii_only=True).split(" ")
        line = "#"
        for word in words:
            if len(line) + 1 + len(word) > _WIDTH and line != "#":
                yield line
                line = "#"
            line += f" {word}"
        yield line
