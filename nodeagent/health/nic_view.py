"""One PF as the measures of its rules read it, and what measures have in common. Pure.

A measure returns a value with its words, or ``None`` where the value is unknown: that neither starts nor ends a fault.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from nodeagent.base.duration import duration
from nodeagent.health.history import History
from nodeagent.health.rule import Measure, Measured
from nodeagent.measurements.sample import Source

SYSFS = "sysfs"
LLDP = "lldp"
"""Witnesses besides the sources of samples."""


class NicContext(NamedTuple):
    """The influence of the rest of the node on the health of one PF."""

    expected_mbps: float | None = None
    cabled_right: bool | None = None
    cabling: str | None = None
    verbs_missing: bool | None = None


class NicView(msgspec.Struct):
    """One PF at one moment, as the measures of its rules read it. ``None`` is unknown.

    ``window_s`` is the window of the rule that reads. ``carrier_witnesses`` are the sources that report a lost
    carrier. ``losses``: ``None`` if no counter of losses is read. ``verbs_missing``: programs of the host have no
    device for its RDMA port, as they have for others.
    """

    history: History
    infiniband: bool = False
    present: bool = True
    answers: bool = True
    bound: bool = True
    admin_up: bool | None = None
    carrier: bool | None = None
    carrier_witnesses: frozenset[str] = frozenset()
    speed_mbps: float | None = None
    expected_mbps: float | None = None
    penalty: float = 0.0
    losses: int | None = 0
    since_loss_s: float = math.inf
    cabling: str | None = None
    cabled_right: bool | None = None
    verbs_missing: bool | None = None
    window_s: float = 0.0


def by(*witnesses: str) -> frozenset[str]:
    return frozenset(witnesses)


def yes_or_no(bad: bool | None, words: str, good: str, witnesses: frozenset[str]) -> Measured | None:
    """Measure a condition; ``words`` and ``good`` describe it."""
    return None if bad is None else Measured(float(bad), words if bad else good, witnesses)


def count_in_window(name: str, source: Source) -> Measure:
    """Measure the events that this counter counted in the window of the rule."""

    def measure(view: NicView) -> Measured | None:
        counted = view.history.over(name, view.window_s)
        if counted is None:
            return None
        events, seconds = counted
        return Measured(events, f"{events:.0f} in {duration(seconds)}", by(source.value))

    return measure


def per_second(name: str, source: Source) -> Measure:
    """Measure the rate of this counter over the window of the rule."""

    def measure(view: NicView) -> Measured | None:
        rate = view.history.rate(name, view.window_s)
        return None if rate is None else Measured(rate, f"{rate:.3g}/s", by(source.value))

    return measure


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
