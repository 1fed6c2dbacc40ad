"""Rows of text for a person's terminal: columns that line up, and nothing that steers the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodeagent.one_line import one_line


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; every row has as many cells as there are heads."""
    table = [tuple(heads), *(tuple(one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A titled table, or that there is nothing to show in it."""
    head, *lines = columns(heads, rows)
    return (
        "\n".join([title, *(f"  {line}" for line in (head, *lines)), ""]) if lines else f"{title}\n  none\n"
    )


def remarks(title: str, lines: Sequence[str]) -> str:
    """Titled sentences, or nothing where there are none."""
    return "\n".join([title, *(f"  {one_line(line)}" for line in lines), ""]) if lines else ""
