"""The MIG devices of prepared claims: made after the record of the claim, removed before it.

A slot in which this agent has begun to make an instance is its own until the instance is removed, also after a crash:
the record of the claim names it. What is in a slot before that is another program's and is never touched. So is an
instance without a record. Between the look at the slot and the begin lies the write of the record; an instance of just
this profile and place that another program makes in that moment, before a crash of the agent, counts as the agent's.

Belongs to one event loop. ``lock`` is held while instances are made, and for each attempt to remove one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from nodeagent.base.bounded_calls import Unanswered
from nodeagent.dra.mig_instances import MigInstances
from nodeagent.dra.prepared_claim import MadeMig, PreparedClaim
from nodeagent.facts.model import MigSlot
from nodeagent.host.gpu_driver import MigRefused
from nodeagent.kinds import Refused

MIG_S = 15.0
"""For one instance. NVIDIA's driver for DRA has seen one second, and ten to find a GPU under load (``nvlib.go``)."""
IN_USE_S, IN_USE_AGAIN_S = 20.0, 1.0
"""How long the end of a claim waits for the last process on its MIG device. The kubelet asks again later."""
SEEN_S = 60.0
"""How long an instance that was removed may still be in the facts."""


class Calls(Protocol):
    """``base.bounded_calls.BoundedCalls``."""

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any: ...


class NothingMade(Exception):  # noqa: N818 - an answer of the driver
    """No MIG device of a claim has been made; the message says why."""


class ClaimMig:
    """``calls`` makes one call at a time: the next one waits for, or fails with, one that hangs."""

    def __init__(
        self, instances: MigInstances, calls: Calls, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.lock = asyncio.Lock()
        self._instances, self._calls, self._now = instances, calls, now
        self._begun: set[tuple[str, MigSlot]] = set()
        """The slots in which an instance may be, by the UID of the claim."""
        self._ending: set[str] = set()
        self._ended: dict[MigSlot, float] = {}

    def take(self, records: Iterable[PreparedClaim]) -> None:
        """Take the records of an earlier agent: it may have made what they name."""
        self._begun |= {(record.uid, slot) for record in records for slot in record.mig_slots}

    def slots(self, records: Iterable[PreparedClaim]) -> frozenset[MigSlot]:
        """Return the slots that are the agent's own, now or a moment ago."""
        recent = (slot for slot, at in self._ended.items() if self._now() - at < SEEN_S)
        return frozenset(slot for record in records for slot in record.mig_slots).union(recent)

    async def make(
        self, record: PreparedClaim, write_record: Callable[[], Awaitable[object]]
    ) -> dict[MigSlot, MadeMig]:
        """Make the MIG devices of a claim, or find those that are there. Raises ``NothingMade``, ``Refused``,
        ``Unanswered``, and the errors of ``write_record``."""
        if record.uid in self._ending:
            raise Refused("the claim is being ended")
        made: dict[MigSlot, MadeMig] = {}
        try:
            new = [slot for slot in record.mig_slots if (record.uid, slot) not in self._begun]
            for slot in new:
                await self._calls.run(self._instances.check_free, slot)
            if new:
                await write_record()
            for slot in record.mig_slots:
                key = record.uid, slot
                work = partial(self._instances.make, slot, fresh=key not in self._begun)
                self._begun.add(key)
                try:
                    made[slot] = await self._calls.run(work)
                except MigRefused as refusal:
                    if not refusal.remains:
                        self._begun.discard(key)
                    raise
        except MigRefused as refusal:
            why = f"the MIG device cannot be made: {refusal}"
            if record.is_made or not await self._taken_back(record):
                raise Refused(why) from None
            raise NothingMade(why) from None
        return made

    async def _taken_back(self, record: PreparedClaim) -> bool:
        """Remove what was made of a claim that no container has. Return whether nothing is left: a record that stays
        may name the slot of another program, and a later agent would take that for its own."""
        try:
            for slot in record.mig_slots:
                if (record.uid, slot) in self._begun:
                    await self._calls.run(self._instances.remove, slot)
                    self._left(record.uid, slot)
        except (MigRefused, Unanswered):
            return False
        return True

    async def remove(self, record: PreparedClaim) -> None:
        """Remove the MIG devices of a claim. Raises ``Refused`` and ``Unanswered``; then the claim keeps them."""
        until = asyncio.get_running_loop().time() + IN_USE_S
        self._ending.add(record.uid)
        try:
            for slot in record.mig_slots:
                while not await self._removed(record.uid, slot, until):  # noqa: ASYNC110
                    await asyncio.sleep(IN_USE_AGAIN_S)
        finally:
            self._ending.discard(record.uid)

    async def _removed(self, uid: str, slot: MigSlot, until: float) -> bool:
        async with self.lock:  # a Prepare that makes it now comes first
            if (uid, slot) not in self._begun:
                return True
            try:
                await self._calls.run(self._instances.remove, slot)
            except MigRefused as refusal:
                if refusal.in_use and asyncio.get_running_loop().time() < until:
                    return False
                users = ": a process still uses it; end it (nvidia-smi names it)" if refusal.in_use else ""
                raise Refused(f"the MIG device cannot be removed{users}; {refusal}") from None
            self._left(uid, slot)
            return True

    def _left(self, uid: str, slot: MigSlot) -> None:
        self._begun.discard((uid, slot))
        self._ended = {it: at for it, at in self._ended.items() if self._now() - at < SEEN_S}
        self._ended[slot] = self._now()
