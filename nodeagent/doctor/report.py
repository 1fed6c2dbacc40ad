"""The report for a person, and as JSON for a program. Pure."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from nodeagent.doctor.finding import Finding, Level, Topic, count
from nodeagent.text_table import plain

VERSION = 1
"""Of the JSON's form: fields and keys are added under one number, and never change their meaning."""
LEAST = 60
"""Columns below which nothing is wrapped any more."""


def as_table(topics: Sequence[Topic], findings: Sequence[Finding], width: int | None = None) -> str:
    """Groups of aligned lines and a summary. ``width``: columns of the terminal, ``None`` where there is none."""
    keys = max((len(finding.key) for finding in findings), default=0)
    parts = []
    for topic in topics:
        group = [finding for finding in findings if finding.group == topic.group]
        lines = [
            line
            for finding, after in zip(group, [*group[1:], None], strict=False)
            for line in _lines(
                finding, keys, width, told=after is not None and _advice(after) == _advice(finding)
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


def as_markdown(topics: Sequence[Topic]) -> str:
    """Every key with its remedy, for the documentation."""
    parts = []
    for topic in topics:
        rows = [
            f"| `{key}` | {entry.why} | {entry.remedy} |" for key, entry in topic.entries.items() if entry.why
        ]
        facts = [f"`{key}`" for key, entry in topic.entries.items() if not entry.why]
        parts += [f"### {topic.title.capitalize()} (`{topic.group}`)", ""]
        parts += [f"Facts, nothing to do: {', '.join(facts)}.", ""] if facts else []
        parts += ["| finding | why it matters | what to do |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def summary(findings: Sequence[Finding]) -> str:
    counted = Counter(finding.level for finding in findings)
    fix, warn, note = (counted[level] for level in (Level.FIX, Level.WARN, Level.NOTE))
    told = f"{count(warn, 'warning')}, {count(note, 'note')}, {counted[Level.OK]} good."
    if fix:
        return f"{fix} to fix, {told} Nothing was changed."
    return f"Nothing must be fixed: {told} Nothing was changed."


def _advice(finding: Finding) -> tuple[str, str, str]:
    return finding.key, finding.why, finding.remedy


def _lines(finding: Finding, keys: int, width: int | None, *, told: bool) -> Iterator[str]:
    """``told``: the finding that follows says the same of why and what to do."""
    head = f"  {finding.level:<4}  {finding.key:<{keys}}  "
    yield from _wrapped(plain(finding.what), head, width)
    for word, sentence in (("why", finding.why), ("do", finding.remedy)):
        if sentence and not told:
            yield from _wrapped(plain(sentence), f"{'':{len(head)}}{word + ':':<5}", width)


def _wrapped(sentence: str, head: str, width: int | None) -> list[str]:
    if width is None or width < LEAST:
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
