"""What the doctor says: findings, each by a key that never changes its meaning. Pure.

A topic is one group of findings and declares its keys where they are judged, with why each matters and what to
do about it; ``what`` alone is of this machine. docs/doctor.md is made from the topics, and so every key has its
remedy there. Keys are for programs: they are added, and never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """``fix``: something that is configured cannot work. ``warn``: it works, and will hurt. ``note``: to be known."""

    FIX = "fix"
    WARN = "warn"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """``why`` and ``remedy`` are empty where nothing is wrong."""

    group: str
    key: str
    level: Level
    what: str
    why: str = ""
    remedy: str = ""


class Entry(NamedTuple):
    """``remedy`` may hold no fields: it is what the documentation says, whatever the machine."""

    why: str
    remedy: str


FACT = Entry("", "")
"""A key that only ever tells how things are."""


@dataclass(frozen=True, slots=True)
class Topic:
    """``group`` is a word for programs, ``title`` for people."""

    group: str
    title: str
    entries: Mapping[str, Entry]

    def ok(self, key: str, what: str) -> Finding:
        self.entries[key]
        return Finding(self.group, key, Level.OK, what)

    def note(self, key: str, what: str, remedy: str = "") -> Finding:
        return self._found(key, Level.NOTE, what, remedy)

    def warn(self, key: str, what: str, remedy: str = "") -> Finding:
        return self._found(key, Level.WARN, what, remedy)

    def fix(self, key: str, what: str, remedy: str = "") -> Finding:
        return self._found(key, Level.FIX, what, remedy)

    def _found(self, key: str, level: Level, what: str, remedy: str) -> Finding:
        """``remedy`` in place of the entry's where this machine tells it more exactly."""
        entry = self.entries[key]
        return Finding(self.group, key, level, what, entry.why, remedy or entry.remedy)


def some(names: Sequence[str], at_most: int = 4) -> str:
    """A list for a sentence.

    >>> some(["a", "b", "c"], at_most=2)
    'a, b and 1 more'
    """
    if len(names) <= at_most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most} more"


def count(number: int, one: str, many: str = "") -> str:
    """
    >>> count(1, "GPU"), count(2, "GPU"), count(2, "entry", "entries")
    ('1 GPU', '2 GPUs', '2 entries')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"
