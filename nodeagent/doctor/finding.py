"""A finding of the doctor, identified by a key that never changes its meaning, and the report of all of them. Pure.

A topic is a group of findings. It declares its keys, with the reason why each matters and the remedy; only ``what``
depends on the machine. docs/reference/doctor.md is generated from the topics, so that each key is documented there.
Keys are for programs: they are added, but never renamed.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from nodeagent.base.plain_text import one_line

VERSION = 1
"""Version of the JSON format. Fields and keys may be added under one number, but never change their meaning."""
WIDTH_MIN = 60
"""Minimum number of columns; a narrower terminal gets unwrapped lines."""


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


# --- the report -----------------------------------------------------------------------------------------


def as_table(
    topics: Sequence[Topic],
    findings: Sequence[Finding],
    width: int | None = None,
    paint: Callable[[str], str] = str,
) -> str:
    """Groups of aligned lines and a summary. ``width``: columns of the terminal; ``None``: no terminal. ``paint``
    gives the word of a level its color."""
    keys = max((len(finding.key) for finding in findings), default=0)
    parts = []
    for topic in topics:
        group = [finding for finding in findings if finding.group == topic.group]
        lines = [
            line
            for finding, after in zip(group, [*group[1:], None], strict=False)
            for line in _lines(
                finding, keys, width, paint, repeated=after is not None and _advice(after) == _advice(finding)
            )
        ]
        if lines:
            parts.append("\n".join([topic.title, *lines, ""]))
    return "\n".join([*parts, *_wrapped(summary(findings), "", width)])


def as_object(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings and their counts, for programs."""
    counted = Counter(finding.level for finding in findings)
    return {
        "version": VERSION,
        "summary": {level.value: counted[level] for level in Level},
        "findings": [asdict(finding) for finding in findings],
    }


def summary(findings: Sequence[Finding]) -> str:
    counted = Counter(finding.level for finding in findings)
    fix, warn, note = (counted[level] for level in (Level.FIX, Level.WARN, Level.NOTE))
    rest = f"{count(warn, 'warning')}, {count(note, 'note')}, {counted[Level.OK]} good."
    if fix:
        return f"{fix} to fix, {rest} Nothing was changed."
    return f"Nothing must be fixed: {rest} Nothing was changed."


def _advice(finding: Finding) -> tuple[str, str, str]:
    return finding.key, finding.why, finding.remedy


def _lines(
    finding: Finding, keys: int, width: int | None, paint: Callable[[str], str], *, repeated: bool
) -> Iterator[str]:
    """``repeated``: the next finding has the same reason and remedy, and prints them."""
    head = f"  {finding.level:<4}  {finding.key:<{keys}}  "
    first, *others = _wrapped(one_line(finding.what), head, width)
    yield first.replace(finding.level, paint(finding.level), 1)
    yield from others
    for word, sentence in (("why", finding.why), ("do", finding.remedy)):
        if sentence and not repeated:
            yield from _wrapped(one_line(sentence), f"{'':{len(head)}}{word + ':':<5}", width)


def _wrapped(sentence: str, head: str, width: int | None) -> list[str]:
    if width is None or width < WIDTH_MIN:
        return [(head + sentence).rstrip()]
    hang = " " * len(head)
    return textwrap.wrap(
        sentence,
        max(width, len(head) + 24),
        initial_indent=head,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
