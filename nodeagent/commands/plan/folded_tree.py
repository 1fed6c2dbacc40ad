"""Fold the drawing of the tree: one line for nodes with consecutive numbers, and for the switches of a group."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LEAF = re.compile(r"(?P<indent>(?:│  |   )*)(?P<branch>[├└]─ )(?P<stem>\S*?)(?P<number>\d+)$")
_HEAD = re.compile(r"(?P<head>.*): (?P<first>[^ ,]+), (?P<middle>.+), (?P<last>[^ ,]+)$")
ROW = 3
"""The least number of nodes that are folded."""


def fold(drawn: list[str]) -> list[str]:
    """Fold the lines of the drawing. Nodes with a remark keep their lines."""
    folded: list[str] = []
    row: list[re.Match[str]] = []
    for line in [*drawn, ""]:
        node = _LEAF.fullmatch(line)
        if row and not (node and _follows(row[-1], node)):
            folded += _row_lines(row)
            row = []
        if node:
            row.append(node)
        elif line:
            folded.append(_shortened(line))
    return folded


def _follows(node: re.Match[str], following: re.Match[str]) -> bool:
    same = (node["indent"], node["stem"]) == (following["indent"], following["stem"])
    return same and int(following["number"]) == int(node["number"]) + 1


def _row_lines(row: list[re.Match[str]]) -> Iterator[str]:
    if len(row) < ROW:
        yield from (node[0] for node in row)
        return
    first, last = row[0], row[-1]
    yield (
        f"{first['indent']}{last['branch']}{first['stem']}{first['number']} … {last['stem']}{last['number']}"
        f"  ({len(row)} nodes)"
    )


def _shortened(line: str) -> str:
    """A HyperNode's line without the switches between the first and the last."""
    head = _HEAD.fullmatch(line)
    if head is None:
        return line
    count = 3 + head["middle"].count(",")
    return f"{head['head']}: {head['first']} … {head['last']} ({count} switches)"
