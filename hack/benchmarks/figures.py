"""Measured figures and their table. Nothing is asserted: a goal is printed beside its figure.

Percentiles are by nearest rank, so each printed value is a measured one. With fewer than a hundred samples p99 is the
largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LESS_IS_BETTER = {"p50": 50.0, "p99": 99.0, "max": 100.0}


@dataclass(frozen=True)
class Figure:
    """``goal`` maps ``p50``, ``p99`` or ``max`` to its upper limit. ``key`` is its name in ``ratios``."""

    group: str
    name: str
    unit: str
    samples: Sequence[float]
    goal: dict[str, float] = field(default_factory=dict)
    note: str = ""
    key: str = ""

    def at(self, statistic: str) -> float:
        ordered = sorted(self.samples)
        rank = math.ceil(LESS_IS_BETTER[statistic] / 100 * len(ordered))
        return ordered[max(0, rank - 1)]

    def met(self) -> bool | None:
        """``None`` without a goal."""
        return all(self.at(name) <= most for name, most in self.goal.items()) if self.goal else None

    def as_json(self) -> dict[str, object]:
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "n": len(self.samples),
            **{name: round(self.at(name), 4) for name in LESS_IS_BETTER},
            "goal": self.goal,
            "met": self.met(),
            "note": self.note,
            "samples": [round(sample, 4) for sample in self.samples],
        }


def table(figures: Iterable[Figure]) -> str:
    """One line per figure, by group; numbered notes follow."""
    notes: list[str] = []
    lines: list[str] = []
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            lines += ["", group]
        mark = ""
        if figure.note:
            if figure.note not in notes:
                notes.append(figure.note)
            mark = f" ({notes.index(figure.note) + 1})"
        values = "".join(f"{_number(figure.at(name)):>10}" for name in LESS_IS_BETTER)
        goal = ", ".join(f"{name} ≤ {most:g}" for name, most in figure.goal.items())
        verdict = {None: "", True: "  met", False: "  SHORT"}[figure.met()]
        lines.append(
            f"  {figure.name + mark:<66}{len(figure.samples):>5}{values}  {figure.unit:<4}  {goal}{verdict}".rstrip()
        )
    head = f"  {'':<66}{'n':>5}{'p50':>10}{'p99':>10}{'max':>10}  {'unit':<4}  goal"
    return "\n".join([head, *lines, "", *(f"({i}) {note}" for i, note in enumerate(notes, 1))])


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
