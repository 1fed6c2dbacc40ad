"""A finding of the doctor, identified by a key that never changes its meaning. Pure.

A topic is a group of findings. It declares its keys, with the reason why each matters and the remedy; only ``what``
depends on the machine. docs/doctor.md is generated from the topics, so that each key is documented there. Keys are
for programs: keys are added, but never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """``fix``: something configured cannot work. ``warn``: it works, but causes trouble. ``note``: information."""

    FIX = "fix"
    WARN = "warn"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """``why`` and ``remedy`` are empty for a finding that is good."""

    group: str
    key: str
    level: Level
    what: str
    why: str = ""
    remedy: str = ""


class Advice(NamedTuple):
    """Why a finding matters and what to do. The documentation shows both, so they name no machine."""

    why: str
    remedy: str


FACT = Advice("", "")
"""A key that states a fact and never needs a remedy."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A group of findings. ``group`` is for programs, ``title`` for people."""

    group: str
    title: str
    entries: Mapping[str, Advice]

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
        """``remedy`` replaces the declared one where this machine allows a more exact one."""
        entry = self.entries[key]
        return Finding(self.group, key, level, what, entry.why, remedy or entry.remedy)


def shortened(names: Sequence[str], at_most: int = 4) -> str:
    """A list for a sentence, shortened to ``at_most`` names.

    >>> shortened(["a", "b", "c"], at_most=2)
    'a, b and 1 more'
    """
    if len(names) <= at_most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most} more"


def count(number: int, singular: str, plural: str = "") -> str:
    """
    >>> count(1, "GPU"), count(2, "GPU"), count(2, "entry", "entries")
    ('1 GPU', '2 GPUs', '2 entries')
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
