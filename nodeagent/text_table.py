"""Text tables for a terminal: aligned columns without control characters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodeagent.one_line import one_line


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; every row has one cell for each head."""
    table = [tuple(heads), *(tuple(one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a title, or the title and ``none``."""
    head, *lines = columns(heads, rows)
    return (
        "\n".join([title, *(f"  {line}" for line in (head, *lines)), ""]) if lines else f"{title}\n  none\n"
    )


def remarks(title: str, lines: Sequence[str]) -> str:
    """Sentences with a title; an empty text if there are none."""
    return "\n".join([title, *(f"  {one_line(line)}" for line in lines), ""]) if lines else ""
