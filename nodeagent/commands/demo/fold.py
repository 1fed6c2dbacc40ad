"""What ``nodeagent topology`` draws, folded: nodes in a row with nothing to say of them are one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LEAF = re.compile(r"(?P<indent>(?:│  |   )*)(?P<branch>[├└]─ )(?P<stem>\S*?)(?P<number>\d+)$")
_HEAD = re.compile(r"(?P<head>.*): (?P<first>[^ ,]+), (?P<middle>.+), (?P<last>[^ ,]+)$")
ROW = 3
"""So many are a row."""


def fold(drawn: str) -> list[str]:
    """The lines; each stands for itself or for nodes numbered one after the other."""
    folded: list[str] = []
    row: list[re.Match[str]] = []
    for line in [*drawn.splitlines(), ""]:
        found = _LEAF.fullmatch(line)
        if row and not (found and _follows(row[-1], found)):
            folded += _told(row)
            row = []
        if found:
            row.append(found)
        elif line:
            folded.append(_shortened(line))
    return folded


def _follows(one: re.Match[str], other: re.Match[str]) -> bool:
    same = (one["indent"], one["stem"]) == (other["indent"], other["stem"])
    return same and int(other["number"]) == int(one["number"]) + 1


def _told(row: list[re.Match[str]]) -> Iterator[str]:
    if len(row) < ROW:
        yield from (one[0] for one in row)
        return
    first, last = row[0], row[-1]
    yield (
        f"{first['indent']}{last['branch']}{first['stem']}{first['number']} … {last['stem']}{last['number']}"
        f"  ({len(row)} nodes)"
    )


def _shortened(line: str) -> str:
    """A HyperNode's line without the switches between the first and the last."""
    found = _HEAD.fullmatch(line)
    if found is None:
        return line
    count = 3 + found["middle"].count(",")
    return f"{found['head']}: {found['first']} … {found['last']} ({count} switches)"
