"""A Markdown table."""

from __future__ import annotations

from collections.abc import Iterable


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return the table. The caller escapes ``|`` in cells."""
    separator = "|" + "---|" * len(heads) + "\n"
    return f"{line(heads)}{separator}{''.join(map(line, rows))}"


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
