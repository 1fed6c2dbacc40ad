"""MIG devices of claims over random crashes, resets and instances made by hand, on a driver with the rules of an H100.

A claim has its MIG device from the answer of Prepare until the kubelet asks for its end, or loses it. The scheduler of
this test overbooks as it likes. Whatever happens: no two claims have one place, what another program made stays, and
nothing is left when all claims have ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodeagent.dra.claim_mig import IN_USE_S, ClaimMig
from nodeagent.dra.claims import GONE_S, ClaimReference, PreparedClaims
from nodeagent.dra.mig_counters import foreign
from nodeagent.dra.mig_instances import MigInstances
from nodeagent.dra.mig_place import MigPlace
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.model import MigSlot, Snapshot
from nodeagent.kinds import Refused
from tests.support.dra_node import (
    ClaimStore,
    Clock,
    StepCalls,
    claim_of,
    claims_of,
    devices_of,
    offer_of,
    reference,
)
from tests.support.examples import examples
from tests.support.kind_machines import gpu_of
from tests.support.mig_driver import Crash, MigDriver, caps
from tests.support.virtual_time import VirtualLoop

CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resourcePrefix: nvidia-dgx-h100
resources:
- {kind: mig, mode: dra}
"""
GPU = gpu_of(0)
EMPTY = Snapshot(gpus=(MigDriver(GPU.uuid).facts(GPU),), holdings=())
PLACES = {place.name: place for place in devices_of(EMPTY, CONFIG) if isinstance(place, MigPlace)}
EXPECTED = (Refused, OSError)

picks = st.integers(0, 999)
places = st.lists(st.sampled_from(list(PLACES)), min_size=1, max_size=2, unique=True)
steps = st.sampled_from([20, 20, 20, 0, 1, 2, 3, 4, 6, 8, 10, 12])
deaths = st.sampled_from([None, None, None, "create gi", "create ci", "destroy ci", "destroy gi", "open"])
faults = st.sampled_from(
    [None, None, None, "create gi", "create ci", "destroy ci", "destroy gi", "list", "open"]
)


def allocated(name: str, chosen: list[str]) -> dict[str, Any]:
    results = [
        {"request": f"r{i}", "driver": "nodeagent.io", "pool": "n1/mig", "device": place}
        for i, place in enumerate(chosen)
    ]
    return claim_of(name, *results)


class MigMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.folder = tempfile.TemporaryDirectory()
        self.tree = caps(Path(self.folder.name) / "host", 1)
        self.driver = MigDriver(GPU.uuid)
        self.store, self.clock, self.offer = ClaimStore(), Clock(), offer_of(EMPTY, CONFIG)
        self.claims = self.started()
        self.working: list[tuple[asyncio.Task[Any], ClaimReference, bool]] = []
        self.granted: dict[str, tuple[ClaimReference, PreparedClaim]] = {}
        self.by_hand: set[MigSlot] = set()
        self.was_reset = False

    def started(self) -> PreparedClaims:
        mig = ClaimMig(MigInstances(self.tree, self.driver.opened), StepCalls(), self.clock)
        folder = Path(self.folder.name) / "agent"
        return claims_of(folder, self.offer, self.store, clock=self.clock, mig=mig)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.collect()

    def collect(self) -> None:
        died = False
        for task, ref, prepares in [it for it in self.working if it[0].done()]:
            self.working = [it for it in self.working if it[0] is not task]
            error = task.exception()
            died |= isinstance(error, Crash)
            assert error is None or isinstance(error, (*EXPECTED, Crash)), error
            if prepares and error is None:
                self.granted[ref.uid] = (ref, task.result())
            elif not prepares and error is not None:
                self.unprepare_again(ref)
        if died:
            self.crash()

    # --- the cluster and the kubelet --------------------------------------------------------------------

    @initialize(chosen=places)
    def first_claim(self, chosen: list[str]) -> None:
        self.start_pod(chosen, 20, None, None, after=False)

    @rule(chosen=places, count=steps, death=deaths, fault=faults, after=st.booleans())
    def start_pod(
        self, chosen: list[str], count: int, death: str | None, fault: str | None, *, after: bool
    ) -> None:
        claim = self.store.put(allocated(f"c{self.store.reads}-{len(self.store.claims)}", chosen))
        self.prepare(reference(claim), count, death, fault, after=after)

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks, count=steps, death=deaths, fault=faults, after=st.booleans())
    def start_pod_again(
        self, pick: int, count: int, death: str | None, fault: str | None, *, after: bool
    ) -> None:
        claims = list(self.store.claims.values())
        self.prepare(reference(claims[pick % len(claims)]), count, death, fault, after=after)

    def prepare(
        self, ref: ClaimReference, count: int, death: str | None, fault: str | None, *, after: bool
    ) -> None:
        self.have(death, fault, after=after)
        if not any(it[1].uid == ref.uid for it in self.working):
            self.working.append((self.loop.create_task(self.claims.prepare(ref)), ref, True))
        self.run(count)
        self.have(None, None)

    def have(self, death: str | None, fault: str | None, *, after: bool = False) -> None:
        self.driver.dies_at, self.driver.dies_after = death, after
        self.driver.failing = {} if fault is None else {fault: self.driver.NVML_ERROR_UNKNOWN}

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks, chosen=places)
    def allocate_elsewhere(self, pick: int, chosen: list[str]) -> None:
        """The scheduler gives other places to a claim that no pod uses any more."""
        claim = list(self.store.claims.values())[pick % len(self.store.claims)]
        if not self._busy(claim["metadata"]["uid"]):
            claim["status"]["allocation"] = allocated("x", chosen)["status"]["allocation"]

    @precondition(lambda self: self.granted or self.working)
    @rule(pick=picks, count=steps, death=deaths, fault=faults, after=st.booleans(), cancels=st.booleans())
    def unprepare(
        self, pick: int, count: int, death: str | None, fault: str | None, *, after: bool, cancels: bool
    ) -> None:
        self.have(death, fault, after=after)
        refs = [*(it[0] for it in self.granted.values()), *(it[1] for it in self.working)]
        ref = refs[pick % len(refs)]
        self.granted.pop(ref.uid, None)
        for task, other, prepares in list(self.working):
            if prepares and other.uid == ref.uid:
                self.working = [it for it in self.working if it[0] is not task]
                if cancels:
                    task.cancel()
                task.add_done_callback(lambda it: it.cancelled() or it.exception())
        self.unprepare_again(ref)
        self.run(count)
        self.have(None, None)

    def unprepare_again(self, ref: ClaimReference) -> None:
        if not any(it[1].uid == ref.uid and not it[2] for it in self.working):
            self.working.append((self.loop.create_task(self.claims.unprepare(ref)), ref, False))

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks)
    def delete_by_force(self, pick: int) -> None:
        del self.store.claims[list(self.store.claims)[pick % len(self.store.claims)]]

    # --- the machine ------------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self.have(None, None)
        self.loop.run_until_complete(end(asyncio.all_tasks(self.loop)))
        unfinished = [ref for _, ref, prepares in self.working if not prepares]
        self.working = []
        self.claims = self.started()
        for ref in unfinished:
            self.unprepare_again(ref)

    @rule(place=st.sampled_from(list(PLACES)))
    def make_by_hand(self, place: str) -> None:
        """Another program makes an instance, but not just the one that a claim of this node is to have."""
        promised = {slot for record in self.claims.records.values() for slot in record.mig_slots}
        slot = PLACES[place].slot
        if slot not in promised and self.driver.by_hand(slot):
            self.by_hand.add(slot)

    @precondition(lambda self: self.by_hand)
    @rule(pick=picks)
    def remove_by_hand(self, pick: int) -> None:
        slot = sorted(self.by_hand, key=repr)[pick % len(self.by_hand)]
        self.by_hand.remove(slot)
        self.driver.instances = {at: it for at, it in self.driver.instances.items() if it.slot != slot}

    @rule(pick=picks, used=st.booleans())
    def use(self, pick: int, *, used: bool) -> None:
        """A process begins to use a device of a container; or all processes end."""
        slots = [slot for _, record in self.granted.values() for slot in record.mig_slots]
        self.driver.in_use = {slots[pick % len(slots)]} if used and slots else set()

    @rule()
    def reset_gpu(self) -> None:
        self.driver.reset()
        # Afterwards another program may take the place of a claim.
        self.by_hand, self.driver.in_use, self.was_reset = set(), set(), True

    @rule()
    def time_passes(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(IN_USE_S + 10))
        self.collect()
        present = {claim["metadata"]["uid"] for claim in self.store.claims.values()}
        self.granted = {uid: it for uid, it in self.granted.items() if uid in present}
        for _ in range(2):
            self.loop.run_until_complete(self.claims.compare())
            self.clock.seconds += GONE_S
        # What another program has made since may keep a claim from its places and engines.
        self.was_reset = self.was_reset and bool(self.by_hand)

    def _busy(self, uid: str) -> bool:
        return uid in self.granted or any(it[1].uid == uid for it in self.working)

    # --- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def each_claim_has_places_of_its_own(self) -> None:
        slots = [slot for _, record in self.granted.values() for slot in record.mig_slots]
        for index, slot in enumerate(slots):
            assert not any(slot.overlaps(other) for other in slots[index + 1 :])
        if not self.was_reset:
            there = {it.slot: it for it in self.driver.instances.values()}
            assert all(there[slot].computes for slot in slots), "made before the answer"

    @invariant()
    def what_others_made_stays_and_no_claim_has_it(self) -> None:
        assert self.by_hand <= self.driver.slots
        assert self.by_hand.isdisjoint(
            slot for _, record in self.granted.values() for slot in record.mig_slots
        )

    @invariant()
    def what_others_made_is_not_offered(self) -> None:
        seen = foreign(self.driver.facts(GPU), self.offer.mig_slots)
        assert set(seen) <= self.by_hand, "an instance of a claim is not foreign"

    def teardown(self) -> None:
        try:
            self.nothing_is_left()
        finally:
            self.loop.close()
            self.folder.cleanup()

    def nothing_is_left(self) -> None:
        self.driver.in_use = set()
        self.store.claims.clear()
        self.crash()
        self.time_passes()
        assert not self.claims.records
        assert self.driver.slots == self.by_hand
        self.clock.seconds += GONE_S
        self.loop.run_until_complete(self.claims.compare())
        assert set(foreign(self.driver.facts(GPU), self.offer.mig_slots)) == self.by_hand
        assert not list((Path(self.folder.name) / "agent").rglob("*.json"))


async def end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


TestMigMachine = MigMachine.TestCase
TestMigMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
