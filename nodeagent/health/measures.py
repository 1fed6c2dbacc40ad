"""What each rule measures, and where the default of its threshold comes from. Pure.

A measure answers with a value and its words, or ``None`` where it cannot tell: what is not known neither enters
nor clears a fault. The docstrings are the rule table's and are printed by ``nodeagent health rules``; their
second paragraph names the source of the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.health.history import History
from nodeagent.measurements.sample import Source

SYSFS = "sysfs"
LLDP = "lldp"
"""Witnesses besides the sources of samples."""


class Measured(NamedTuple):
    """``said``: the value for a person. ``limit``: the device's own, where it has one. ``witnesses``: who says
    so; two of them are more than one. ``enough``: false when there is too little of it for a fault."""

    value: float
    said: str
    witnesses: frozenset[str]
    limit: str | None = None
    enough: bool = True


@dataclass(slots=True)
class Seen:
    """One PF as its measures see it. What is ``None`` is not known.

    ``window_s`` is that of the rule that asks. ``witnesses`` of a carrier that is down are kept apart, as the
    engine gathers them.
    """

    history: History
    infiniband: bool = False
    present: bool = True
    bound: bool = True
    admin_up: bool | None = None
    carrier: bool | None = None
    carrier_witnesses: frozenset[str] = frozenset()
    speed_mbps: float | None = None
    expected_mbps: float | None = None
    penalty: float = 0.0
    losses: int = 0
    cabling: str | None = None
    cabled_right: bool | None = None
    window_s: float = 0.0


Measure = Callable[[Seen], Measured | None]


def by(*witnesses: str) -> frozenset[str]:
    return frozenset(witnesses)


def yes(bad: bool | None, words: str, good: str, witnesses: frozenset[str]) -> Measured | None:
    return None if bad is None else Measured(float(bad), words if bad else good, witnesses)


def added(name: str, source: Source, seen: Seen) -> Measured | None:
    told = seen.history.over(name, seen.window_s)
    return None if told is None else Measured(told[0], f"{told[0]:.0f} in {told[1]:.0f} s", by(source.value))


def per_second(name: str, source: Source, seen: Seen) -> Measured | None:
    rate = seen.history.rate(name, seen.window_s)
    return None if rate is None else Measured(rate, f"{rate:.3g}/s", by(source.value))


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
