"""What is remembered of a GPU over a restart of the agent. Pure.

The law of this file:

* What stands is kept: announced faults, measured faults, the recovery action that was asked for, the NVLinks
  that were up. What was only on its way to stand, or to go, begins anew.
* Times are seconds since boot, so whoever keeps this must forget it with the boot.
* What cannot have been so (a time that is yet to come) is no memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nodeagent.health.gpu_rules import Chart
from nodeagent.health.xids import Latch


def lasting(latch: Latch) -> Latch:
    """What is kept of it. Two that ``same`` finds alike need not be written twice."""
    holds = tuple(replace(hold, at=None, held_s=0.0, bad=True) for hold in latch.chart.holds if hold.detail)
    return replace(latch, chart=Chart(holds, latch.chart.links))


def same(one: Latch | None, other: Latch) -> bool:
    """Whether they differ in no more than when the GPU was read."""
    return one is not None and replace(lasting(one), read_at=0.0) == replace(lasting(other), read_at=0.0)


def sound(latch: Latch, now: float) -> bool:
    """Whether a latch that was read back can be believed."""
    return bool(latch.uuid) and all(math.isfinite(at) and 0 <= at <= now for at in _times(latch))


def _times(latch: Latch) -> Iterable[float]:
    yield latch.read_at
    yield from (fault.at for fault in latch.faults)
    if latch.unreadable_since is not None:
        yield latch.unreadable_since
