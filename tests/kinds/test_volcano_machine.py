"""Any sequence of placements, allocations and releases by Volcano: no GPU holds more than it has, no container is on
another GPU than the scheduler chose, and podresources accounts for each place."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.facts.model import Holding, Snapshot, VgpuGrant, VgpuShare, VgpuWaiting
from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER, VgpuParts, VgpuPlaces
from tests.support.kind_machines import answer_of, gpu_of
from tests.support.volcano_scheduler import Card, Scheduler, Unschedulable

SLICES = GpuMemory(MEMORY)
PLACES, PARTS = VgpuPlaces(SLICES), VgpuParts(SLICES, "memory")


class PlacedByVolcano(RuleBasedStateMachine):
    """A scheduler that counts by its annotations, and a kubelet that asks for one pod after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot(holdings=())
        self.number = 0

    @initialize(sizes=st.lists(st.sampled_from((4, 6, 8)), min_size=1, max_size=4))
    def build(self, sizes: list[int]) -> None:
        gpus = tuple(gpu_of(n, memory_mib=1024 * size) for n, size in enumerate(sizes))
        self.snapshot = replace(self.snapshot, gpus=gpus)

    def cards(self) -> list[Card]:
        return [
            Card(
                gpu.uuid,
                SLICES.count(gpu),
                SLICES.count(gpu),
                "NVIDIA",
                [(it.slices, 0) for it in self.snapshot.vgpu_shares if it.uuid == gpu.uuid],
            )
            for gpu in self.snapshot.gpus
        ]

    @precondition(lambda self: not self.snapshot.vgpu_waiting)
    @rule(count=st.integers(1, 2), memory=st.integers(0, 8), forged=st.booleans())
    def bind(self, count: int, memory: int, forged: bool) -> None:
        """``forged``: the author of the pod wrote a choice without the scheduler."""
        limits = {NUMBER: count} | ({MEMORY: memory} if memory else {})
        try:
            chosen = Scheduler.fit(self.cards(), limits)
        except Unschedulable:
            if not forged:
                return
            sizes = [(gpu.uuid, memory or SLICES.count(gpu), 0) for gpu in self.snapshot.gpus]
            chosen = [it for it in sizes if it[1] <= 8][:count]
            if len(chosen) < count:
                return
        name = f"p{self.number}"
        self.number += 1
        grants = tuple(VgpuGrant(*it) for it in chosen)
        waiting = VgpuWaiting("ns", name, "c", name, count, grants)
        shares = tuple(VgpuShare("ns", name, grant.uuid, grant.slices) for grant in grants)
        self.snapshot = replace(
            self.snapshot, vgpu_waiting=(waiting,), vgpu_shares=(*self.snapshot.vgpu_shares, *shares)
        )

    @precondition(lambda self: self.snapshot.vgpu_waiting)
    @rule()
    def allocate(self) -> None:
        (waiting,) = self.snapshot.vgpu_waiting
        snapshot = self.snapshot
        held = {id_ for it in snapshot.holdings or () for id_ in it.device_ids}
        free = [id_ for it in PLACES.devices(snapshot) for id_ in it.ids if id_ not in held]
        wrong = [id_ for id_ in free if id_.partition("::")[0] not in {it.uuid for it in waiting.gpus}]
        if len(wrong) >= waiting.count:  # the kubelet may fill a choice at random
            with pytest.raises(Refused):
                PLACES.allocate(snapshot, wrong[: waiting.count])
        chosen = answer_of(lambda: PLACES.prefer(snapshot, free, [], waiting.count))
        if not isinstance(chosen, Refused):
            assert {id_.partition("::")[0] for id_ in chosen} == {it.uuid for it in waiting.gpus}
            chosen = answer_of(lambda ids=chosen: (PLACES.allocate(snapshot, ids), ids)[1])
        self.snapshot = replace(snapshot, vgpu_waiting=())
        if isinstance(chosen, Refused):
            self.end(waiting.pod)
            return
        holding = Holding("ns", waiting.pod, "c", NUMBER, tuple(chosen))
        self.snapshot = replace(self.snapshot, holdings=(*(snapshot.holdings or ()), holding))

    @precondition(lambda self: self.snapshot.holdings)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([it.pod for it in self.snapshot.holdings or ()])))

    def end(self, pod: str) -> None:
        self.snapshot = replace(
            self.snapshot,
            holdings=tuple(it for it in self.snapshot.holdings or () if it.pod != pod),
            vgpu_shares=tuple(it for it in self.snapshot.vgpu_shares if it.pod != pod),
        )

    @invariant()
    def no_gpu_holds_more_than_it_has(self) -> None:
        holders = {it.pod for it in self.snapshot.holdings or ()}
        for gpu in self.snapshot.gpus:
            used = sum(
                it.slices for it in self.snapshot.vgpu_shares if it.uuid == gpu.uuid and it.pod in holders
            )
            assert used <= SLICES.count(gpu)
            free = PARTS.free(self.snapshot)
            assert free is not None
            assert free[gpu.uuid] == SLICES.count(gpu) - used

    @invariant()
    def each_place_is_in_one_container(self) -> None:
        held = [id_ for it in self.snapshot.holdings or () for id_ in it.device_ids]
        assert len(held) == len(set(held))


TestPlacedByVolcano = PlacedByVolcano.TestCase
