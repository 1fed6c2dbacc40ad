"""The agent beside a floor of the same run, such as the bare plugin: ratios, which hold on any machine.

A figure of the bare plugin gives a floor its name, and a figure of the agent names the floor that it is held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure


@dataclass(frozen=True)
class Goal:
    """The most that a figure of the agent may be of the floor ``floor``, by statistic: ``p50``, ``p99`` or ``max``.

    ``plus`` is a distance instead of a ratio, for a floor near zero, in the figure's unit.
    """

    name: str
    floor: str
    most: dict[str, float]
    plus: bool = False


GOALS = {
    "agent start": Goal("start, all 9 registered", "bare start", {"p50": 1.6}),
    "agent restart": Goal(
        "kubelet killed and started, all 9 registered", "bare restart", {"p50": 1.3, "p99": 1.4}
    ),
    "agent xid": Goal("XID, after the event: message at the kubelet", "bare message", {"p50": 2, "p99": 2}),
    "agent carrier": Goal("carrier lost, after the event: message", "bare message", {"p50": 3, "p99": 3}),
    "agent rss": Goal("resident memory", "bare rss", {"max": 1.2}),
    "agent cpu": Goal("CPU at rest, without simulated files", "bare cpu", {"max": 0.06}, plus=True),
    "agent wake-ups": Goal("wake-ups", "bare wake-ups", {"max": 1.4}),
    "every feature rss": Goal("memory with every feature, to none", "no feature rss", {"max": 1.2}),
    "every feature cpu": Goal("CPU at rest with every feature, to none", "no feature cpu", {"max": 1.5}),
    "agent churn": Goal("CPU with pods that start and end, to at rest", "agent with veths", {"max": 1.3}),
}
"""By the key of the agent's figure."""


@dataclass(frozen=True)
class Ratio:
    goal: Goal
    statistic: str
    value: float

    def met(self) -> bool:
        return self.value <= self.goal.most[self.statistic]


def ratios(figures: Iterable[Figure]) -> list[Ratio]:
    """The ratios whose two figures were both measured."""
    by_key = {figure.key: figure for figure in figures if figure.key}
    found = []
    for key, goal in GOALS.items():
        if key in by_key and goal.floor in by_key:
            for statistic in goal.most:
                agent, floor = by_key[key].at(statistic), by_key[goal.floor].at(statistic)
                found.append(Ratio(goal, statistic, agent - floor if goal.plus else agent / floor))
    return found


def ratio_table(found: Sequence[Ratio]) -> str:
    """One line per ratio, and a last line with the number that falls short."""
    if not found:
        return "No ratio: `--only bare` measures the floor in the same run."
    lines = ["Ratios in this run: the agent to the bare plugin, and to itself with none of the work"]
    for one in found:
        sign, most = ("+" if one.goal.plus else "x"), one.goal.most[one.statistic]
        verdict = "met" if one.met() else "SHORT"
        lines.append(
            f"  {one.goal.name:<60}{one.statistic:>5}  {sign}{one.value:<8.2f} goal {sign}{most:<6g} {verdict}"
        )
    short = sum(not one.met() for one in found)
    return "\n".join([*lines, f"{short} of {len(found)} fall short."])
