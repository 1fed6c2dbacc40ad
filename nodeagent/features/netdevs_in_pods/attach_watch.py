"""The news that `nodeagent attach` has for the agent in its files: pods with their netdevs, times, failures.

The two share no socket: the agent reads the state file every five seconds, and the lock says whether the other runs.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from nodeagent.attach.attach_files import ATTACH_BOUNDS_S, AttachFiles, AttachState
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.inventory import Inventory
from nodeagent.host.clock import boottime
from nodeagent.measurements.sample import Sample, Source

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_READ_S = 5.0
SOURCE = "attach"


class AttachWatch:
    """``folder`` is the state directory. Belongs to one event loop."""

    def __init__(self, folder: Path, inventory: Inventory) -> None:
        self._files, self._inventory = AttachFiles(folder), inventory
        self._calls = BoundedCalls("state of nodeagent attach", _READ_S)
        self._samples: tuple[Sample, ...] = ()

    def samples(self) -> tuple[Sample, ...]:
        return self._samples

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Read the files once. What cannot be read leaves the last facts, marked as old."""
        try:
            runs, state = await self._calls.run(self._read)
        except (OSError, ValueError) as error:
            if self._inventory.mark_stale(SOURCE, str(error)):
                log.warning("The state of nodeagent attach cannot be read. reason=%r", str(error))
            return
        self._inventory.publish(SOURCE, pod_netdevs=state.netdevs)
        self._samples = (attach_sample(state, boottime(), runs=runs),)

    def _read(self) -> tuple[bool, AttachState]:
        return self._files.is_locked(), self._files.read_state()


def attach_sample(state: AttachState, at: float, *, runs: bool) -> Sample:
    """The numbers of a state. ``runs``: whether the process that has written it is still there."""
    counts = state.counts
    bounds = (*(f"{bound:g}" for bound in ATTACH_BOUNDS_S), "+Inf")
    values: dict[str, float] = {
        "attach_connected": float(runs and bool(state.runtime)),
        "attach_waiting": len({waiting.pod for waiting in state.waiting}),
        **{f"attach_seconds/{bound}": count for bound, count in zip(bounds, counts.seconds, strict=True)},
        "attach_seconds/sum": counts.total_s,
        **{f"attach_failures/{step}": count for step, count in counts.failures.items()},
    }
    return Sample(at, "", Source.ATTACH, values)
