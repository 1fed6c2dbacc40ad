"""Any sequence of allocations and releases of slices: the rules hold, and best fit keeps the largest block.

Over a whole sequence neither best fit nor first fit always wins: a later release may favor either. From one and the
same state best fit is never worse, and this is compared at each step.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.kinds.resource_settings import GpuMemResource
from nodeagent.offering.gpu_kinds import GpuContext, gpu_kinds
from tests.support.kind_machines import SICK, answer_of, gpu_of

KIND = GpuMemory("x/gpu-mem")


def counts(ids: tuple[str, ...]) -> Counter[str]:
    return Counter(id_.partition("::")[0] for id_ in ids)


class SlicesInUse(RuleBasedStateMachine):
    """A kubelet that asks for a preference, allocates what it gets, and lists its pods as podresources does."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot()
        self.pods: dict[int, tuple[str, ...]] = {}
        self.number = 0

    @initialize(sizes=st.lists(st.sampled_from((4, 6, 6, 8)), min_size=1, max_size=5))
    def build(self, sizes: list[int]) -> None:
        gpus = tuple(gpu_of(n, memory_mib=1024 * size) for n, size in enumerate(sizes))
        self.snapshot = Snapshot(gpus=gpus)

    def free_of(self) -> dict[str, int]:
        taken = counts(tuple(id_ for ids in self.pods.values() for id_ in ids))
        return {
            gpu.uuid: KIND.count(gpu) - taken[gpu.uuid] if gpu.health.allocatable else 0
            for gpu in self.snapshot.gpus
        }

    def held(self) -> tuple[Holding, ...]:
        return tuple(
            Holding("ns", f"p{n}", "c", "x/gpu-mem", tuple(sorted(ids))) for n, ids in self.pods.items()
        )

    @rule(size=st.integers(1, 9) | st.sampled_from((12, 16, 18)), lagging=st.booleans())
    def allocate(self, size: int, lagging: bool) -> None:
        """``lagging``: podresources still lists nothing; the kubelet's list of available devices decides."""
        before = self.free_of()
        held = {id_ for ids in self.pods.values() for id_ in ids}
        devices = KIND.devices(self.snapshot)
        available = [
            id_ for entry in devices if entry.health.allocatable for id_ in entry.ids if id_ not in held
        ]
        known = replace(self.snapshot, holdings=() if lagging else self.held())
        whole = {gpu.uuid: KIND.count(gpu) for gpu in self.snapshot.gpus}
        chosen = answer_of(lambda: tuple(KIND.prefer(known, available, [], size)))
        if isinstance(chosen, Refused):
            idle = Counter(free for uuid, free in before.items() if free == whole[uuid])
            assert max(before.values()) < size, chosen
            assert all(size % each or size // each > number for each, number in idle.items()), chosen
            return
        KIND.allocate(known, chosen)
        assert set(chosen) <= set(available)
        self.pods[self.number] = chosen
        self.number += 1
        if max(before.values()) >= size:
            first = next(uuid for uuid, free in before.items() if free >= size)
            after_first_fit = before | {first: before[first] - size}
            assert max(self.free_of().values()) >= max(after_first_fit.values())

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    @rule(data=st.data())
    def change_health(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.snapshot.gpus) - 1))
        gpus = list(self.snapshot.gpus)
        health = gpu_of(0).health if gpus[index].health is SICK else SICK
        gpus[index] = replace(gpus[index], health=health)
        self.snapshot = replace(self.snapshot, gpus=tuple(gpus))

    @invariant()
    def no_slice_is_in_two_pods(self) -> None:
        held = [id_ for ids in self.pods.values() for id_ in ids]
        assert len(held) == len(set(held))

    @invariant()
    def a_pod_is_on_one_gpu_or_on_whole_gpus_of_one_size(self) -> None:
        whole = {gpu.uuid: KIND.count(gpu) for gpu in self.snapshot.gpus}
        for ids in self.pods.values():
            parts = counts(ids)
            assert len(parts) == 1 or (
                len(set(parts.values())) == 1 and all(whole[uuid] == part for uuid, part in parts.items())
            )

    @invariant()
    def no_gpu_gives_more_than_it_has_and_podresources_accounts_for_each_slice(self) -> None:
        assert all(free >= 0 for free in self.free_of().values())
        assert KIND.free(replace(self.snapshot, holdings=self.held())) == self.free_of()


TestSlicesInUse = SlicesInUse.TestCase


class SlicesOfEachGpu(RuleBasedStateMachine):
    """One resource for each GPU and a scheduler that only counts: no pod that it places is ever refused."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot()
        self.pods: dict[int, tuple[Holding, ...]] = {}
        self.number = 0

    @initialize(sizes=st.lists(st.sampled_from((4, 6, 8)), min_size=1, max_size=5))
    def build(self, sizes: list[int]) -> None:
        gpus = tuple(gpu_of(n, memory_mib=1024 * size + 512) for n, size in enumerate(sizes))
        self.snapshot = Snapshot(gpus=gpus)

    def kinds(self) -> list[DeviceKind]:
        entry = GpuMemResource(name="gpu-mem{gpu}")
        return list(gpu_kinds(entry, GpuContext(self.snapshot, frozenset(), "x", True, MpsShares("/mps"))))

    def held(self) -> tuple[Holding, ...]:
        return tuple(holding for pod in self.pods.values() for holding in pod)

    @rule(data=st.data(), lagging=st.booleans())
    def allocate(self, data: st.DataObject, lagging: bool) -> None:
        """A pod of one container that asks for one or two of the resources, in any order."""
        known = replace(self.snapshot, holdings=() if lagging else self.held())
        held = {id_ for holding in self.held() for id_ in holding.device_ids}
        kinds = data.draw(
            st.lists(st.sampled_from(self.kinds()), min_size=1, max_size=2, unique_by=lambda it: it.resource)
        )
        holdings, variables = [], Counter[str]()
        for kind in kinds:
            (devices,) = kind.devices(known)
            available = [id_ for id_ in devices.ids if devices.health.allocatable and id_ not in held]
            if not available:
                return
            ids = tuple(kind.prefer(known, available, [], data.draw(st.integers(1, len(available)))))
            variables.update(name for name, _ in kind.allocate(known, ids).env)
            assert set(ids) <= set(available)
            holdings.append(Holding("ns", f"p{self.number}", "c", kind.resource, ids))
        assert max(variables.values()) == 1, "the kubelet keeps one of two equal names, a random one"
        self.pods[self.number] = tuple(holdings)
        self.number += 1

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    @rule(data=st.data())
    def lose_or_find(self, data: st.DataObject) -> None:
        """A lost GPU keeps its index, so no other GPU gets its name."""
        index = data.draw(st.integers(0, len(self.snapshot.gpus) - 1))
        gpus = list(self.snapshot.gpus)
        lost = not gpus[index].lost
        gpus[index] = replace(gpus[index], lost=lost, health=SICK if lost else gpu_of(0).health)
        self.snapshot = replace(self.snapshot, gpus=tuple(gpus))

    @invariant()
    def each_resource_is_one_gpu_and_accounts_for_each_of_its_slices(self) -> None:
        known = replace(self.snapshot, holdings=self.held())
        for gpu, kind in zip(self.snapshot.gpus, self.kinds(), strict=True):
            assert kind.resource == f"x/gpu-mem{gpu.index}"
            (devices,) = kind.devices(known)
            taken = [id_ for it in self.held() if it.resource == kind.resource for id_ in it.device_ids]
            assert set(taken) <= set(devices.ids)
            assert len(taken) == len(set(taken))
            left = len(devices.ids) - len(taken) if gpu.health.allocatable else 0
            assert kind.free(known) == {gpu.uuid: left}


TestSlicesOfEachGpu = SlicesOfEachGpu.TestCase
