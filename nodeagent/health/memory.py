"""What is remembered of the GPUs over a restart of the agent, as plain values that a file can hold. Pure.

The law of this file:

* What stands is kept: announced faults, measured faults, the recovery action that was asked for, the NVLinks
  that were up. What was only on its way to stand, or to go, begins anew.
* Times are seconds since boot, so whoever keeps this must forget it with the boot.
* Something that this file did not write, or wrote in another version, raises ``RecallError`` and is no memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from nodeagent.health.gpu import Latch
from nodeagent.health.vitals import Chart

VERSION = 1


class RecallError(ValueError):
    """This is no memory of GPUs."""


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    gpus: tuple[Latch, ...]


def remember(latches: tuple[Latch, ...]) -> dict[str, Any]:
    """Equal as long as nothing that is kept has changed, ``read_at`` aside."""
    kept: dict[str, Any] = msgspec.to_builtins(_Memory(VERSION, tuple(_lasting(latch) for latch in latches)))
    return kept


def same(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    """Whether two memories differ in more than when they were made."""

    def timeless(memory: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: part for name, part in gpu.items() if name != "read_at"} for gpu in memory["gpus"]]

    return one is not None and timeless(one) == timeless(other)


def recall(kept: object, now: float) -> tuple[Latch, ...]:
    """The latches as they were, at most as young as ``now``."""
    try:
        memory = msgspec.convert(kept, _Memory)
    except msgspec.ValidationError as error:
        raise RecallError(str(error)) from error
    if memory.version != VERSION:
        raise RecallError(f"it is of version {memory.version}, and this agent writes {VERSION}")
    uuids = [latch.uuid for latch in memory.gpus]
    if "" in uuids or len(set(uuids)) < len(uuids):
        raise RecallError("a GPU has no UUID, or two have the same")
    for latch in memory.gpus:
        for at in _times(latch):
            if not math.isfinite(at) or not 0 <= at <= now:
                raise RecallError(f"a time of {latch.uuid} is not between the boot and now: {at}")
    return tuple(_lasting(latch) for latch in memory.gpus)


def _times(latch: Latch) -> Iterable[float]:
    yield latch.read_at
    yield from (fault.at for fault in latch.faults)
    if latch.unreadable_since is not None:
        yield latch.unreadable_since


def _lasting(latch: Latch) -> Latch:
    holds = tuple(replace(hold, at=None, held_s=0.0, bad=True) for hold in latch.chart.holds if hold.detail)
    return replace(latch, chart=Chart(holds, latch.chart.links))
