"""Render findings as a table for people and as JSON for programs. Pure."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from nodeagent.base.plain_text import one_line
from nodeagent.doctor.finding import Finding, Level, Topic, count

VERSION = 1
"""Version of the JSON format. Fields and keys may be added under one number, but never change their meaning."""
WIDTH_MIN = 60
"""Minimum number of columns; a narrower terminal gets unwrapped lines."""


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


def as_json(findings: Sequence[Finding]) -> str:
    """One object on one line."""
    counted = Counter(finding.level for finding in findings)
    return json.dumps(
        {
            "version": VERSION,
            "summary": {level.value: counted[level] for level in Level},
            "findings": [asdict(finding) for finding in findings],
        },
        ensure_ascii=True,
    )


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
