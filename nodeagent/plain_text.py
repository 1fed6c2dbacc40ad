"""Foreign text for a person who reads a log or a terminal: on one line and in tables, without control characters. Pure.

Other target languages have functions of their own beside their renderer: Prometheus labels in ``metrics.text_format``,
DOT and Mermaid in ``commands.plan.topology_picture``, quoted settings in ``config.faults``. ``lldp.escaping`` keeps
different texts different, for values that are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def one_line(text: str, limit: int | None = None, *, ascii_only: bool = False) -> str:
    """``text`` with each unprintable character escaped (``\\n``, ``\\x1b``), cut to ``limit`` characters.

    With ``ascii_only`` letters outside ASCII are escaped too, so that no name can imitate another one.
    """
    if limit is not None:
        text = text[: limit + 1]
    if not text.isprintable() or (ascii_only and not text.isascii()):
        text = "".join(
            char if char.isprintable() and (char.isascii() or not ascii_only) else ascii(char)[1:-1]
            for char in text
        )
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


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
