"""Foreign text for a person who reads a log or a terminal: on one line, without control characters. Pure.

Other target languages have functions of their own beside their renderer: Prometheus labels in ``metrics.text_format``,
DOT in ``nodeagent.commands.plan.topology_picture``, quoted settings in ``config.faults``. ``lldp.escaping`` keeps
different texts different, for values that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

FEW = 8
"""Names that a sentence has before it counts the others."""


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


def few(texts: Sequence[str]) -> list[str]:
    """The first ``FEW``, and how many more there are."""
    if len(texts) <= FEW:
        return [*texts]
    return [*texts[:FEW], f"and {len(texts) - FEW} more"]
