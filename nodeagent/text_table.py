"""Rows of text for a person's terminal: columns that line up, and nothing that steers the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; every row has as many cells as there are heads."""
    table = [tuple(heads), *(tuple(plain(cell) for cell in row) for row in rows)]
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
    return "\n".join([title, *(f"  {plain(line)}" for line in lines), ""]) if lines else ""


def plain(text: str) -> str:
    """What a device or a switch says of itself must not steer a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
