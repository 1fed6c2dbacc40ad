"""GPU memory that Volcano's plugin deviceshare places: ``volcano.sh/vgpu-number``, ``vgpu-memory`` and ``vgpu-cores``.

The scheduler chooses the GPUs of each container and writes them into annotations of the pod. The kubelet counts three
numbers and does not know this choice. So only ``vgpu-number`` decides: its devices are places on a GPU, and a container
gets those on the GPUs that the scheduler chose (``Snapshot.vgpu_waiting``), or is refused. The devices of the other two
are numbers for the scheduler and for quotas: a container gets nothing for them.

The kubelet does not name the pod that asks. Volcano's node lock leaves one pod at a time between its bind and its
allocation. Two pods that wait with different choices are both refused, because a guess would swap them. So are a pod
that Volcano placed and one that asks without its choice: a guess would give one the GPU and the share of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.cdi import CdiDevices
from nodeagent.facts.model import Gpu, Snapshot, VgpuShare, VgpuWaiting
from nodeagent.kinds import (
    DeviceKind,
    Question,
    Refused,
    gpu_access,
    held_elsewhere,
    obstacle,
    requested,
    unknown,
    unless_held,
)
from nodeagent.kinds.enforcement import EnforcementLevel, level_of
from nodeagent.kinds.gpu_memory import GpuMemory

NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
"""The names of deviceshare, which are fixed (volcano, pkg/scheduler/api/devices/config)."""
PLACES_MAX = 64
"""Containers of one GPU; a GPU has no more places than slices."""
CORES_OF_A_GPU = 100
"""Percent of a GPU's time."""


def places(memory: GpuMemory, gpu: Gpu) -> int:
    """Return how many containers a GPU takes."""
    return min(memory.count(gpu), PLACES_MAX)


class VgpuPlaces(DeviceKind, frozen=True):
    """``volcano.sh/vgpu-number``. ``memory`` has the settings of the entry. A device ID is ``<uuid>::vgpu<n>``."""

    source: ClassVar[str] = "gpus"
    memory: GpuMemory

    @property
    def resource(self) -> str:
        return NUMBER

    @property
    def device_mib(self) -> int:
        """The size of a slice, which stays while pods hold places: the choices of the scheduler are in slices."""
        return self.memory.slice_mib

    def resized(self, device_mib: int) -> VgpuPlaces:
        return msgspec.structs.replace(self, memory=self.memory.resized(device_mib))

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return _devices(self.memory, snapshot, "vgpu", lambda gpu: places(self.memory, gpu))

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return self.memory.hardware(snapshot)

    def selects(self, snapshot: Snapshot) -> bool:
        return self.memory.selects(snapshot)

    def refusal(self, snapshot: Snapshot) -> str | None:
        return self.memory.refusal(snapshot)

    def obstacle(self, snapshot: Snapshot) -> str | None:
        return self.memory.obstacle(snapshot)

    def cdi_specs(self, snapshot: Snapshot) -> Mapping[str, CdiDevices]:
        return self.memory.cdi_specs(snapshot)

    def needed_files(self, snapshot: Snapshot) -> frozenset[str]:
        return self.memory.needed_files(snapshot)

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose a place on each GPU that the scheduler chose for the container that waits."""
        waiting = next_waiting(snapshot, asked.size)
        chosen: list[str] = []
        taken = {_gpu_of(id_) for id_ in asked.must}
        by_gpu = {entry.parent: entry.ids for entry in self.devices(snapshot)}
        for grant in waiting.gpus:
            if grant.uuid not in taken:
                place = next((id_ for id_ in by_gpu.get(grant.uuid, ()) if id_ in asked.free), None)
                if place is None:
                    raise Refused(
                        f"{self.resource}: Volcano chose {grant.uuid} for {waiting.name}, which has no free place"
                    )
                chosen.append(place)
        return chosen

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        names = requested(self.resource, ids)
        known = {id_ for entry in self.devices(snapshot) for id_ in entry.ids}
        if not names <= known:
            raise unknown(self.resource, names - known)
        waiting = next_waiting(snapshot, len(names))
        chosen = Counter(_gpu_of(id_) for id_ in names)
        if chosen != Counter(grant.uuid for grant in waiting.gpus):
            raise Refused(
                f"{self.resource}: the kubelet chose {', '.join(sorted(chosen))}, and Volcano chose "
                f"{', '.join(sorted(grant.uuid for grant in waiting.gpus))} for {waiting.name}"
            )
        gpus = [gpu for gpu in gpu_access.selected(snapshot, self.memory.gpus) if gpu.uuid in chosen]
        self._check(snapshot, waiting, gpus)
        return self.memory.grant(snapshot, gpus, waiting.gpus[0].slices * self.memory.slice_mib)

    def _check(self, snapshot: Snapshot, waiting: VgpuWaiting, gpus: Sequence[Gpu]) -> None:
        """Raise ``Refused`` if a GPU is Unhealthy, or lacks the memory: annotations may be forged or old."""
        own = (waiting.namespace, waiting.pod)
        for gpu in gpus:
            elsewhere = held_elsewhere(snapshot, gpu.uuid, self.resource, (MEMORY, CORES))
            if refusal := obstacle(self.resource, gpu.uuid, gpu.health, elsewhere):
                raise refusal
            used = sum(
                share.slices
                for share in snapshot.vgpu_shares
                if share.uuid == gpu.uuid and ((share.namespace, share.pod) == own or _holds(snapshot, share))
            )
            if used > self.memory.count(gpu):
                raise Refused(
                    f"{self.resource}: with {waiting.name} the pods of {gpu.uuid} would have {used} of its "
                    f"{self.memory.count(gpu)} slices"
                )


class VgpuParts(DeviceKind, frozen=True):
    """``volcano.sh/vgpu-memory`` in slices, or ``volcano.sh/vgpu-cores`` in percent: numbers only."""

    source: ClassVar[str] = "gpus"
    memory: GpuMemory
    part: Literal["memory", "cores"]

    @property
    def resource(self) -> str:
        return MEMORY if self.part == "memory" else CORES

    @property
    def device_mib(self) -> int | None:
        return self.memory.slice_mib if self.part == "memory" else None

    def resized(self, device_mib: int) -> VgpuParts:
        return msgspec.structs.replace(self, memory=self.memory.resized(device_mib))

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        if self.part == "memory":
            return _devices(self.memory, snapshot, "mem", self.memory.count)
        return _devices(
            self.memory, snapshot, "core", lambda gpu: CORES_OF_A_GPU if self.memory.count(gpu) else 0
        )

    def free(self, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return the slices by GPU that no pod has by the scheduler's choice, or the numbers of the kubelet."""
        if self.part == "cores":
            return super().free(snapshot)
        if snapshot.holdings is None:
            return None
        used: Counter[str] = Counter()
        for share in snapshot.vgpu_shares:
            used[share.uuid] += share.slices if _holds(snapshot, share) else 0
        return {
            entry.parent: max(0, len(entry.ids) - used[entry.parent]) if entry.health.allocatable else 0
            for entry in self.devices(snapshot)
        }

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:  # noqa: ARG002
        """``VgpuPlaces`` has the GPUs."""
        return {}

    def selects(self, snapshot: Snapshot) -> bool:
        return self.memory.selects(snapshot)

    def refusal(self, snapshot: Snapshot) -> str | None:
        return self.memory.refusal(snapshot)

    def obstacle(self, snapshot: Snapshot) -> str | None:
        return self.memory.obstacle(snapshot)

    def level(self, snapshot: Snapshot) -> EnforcementLevel | None:
        if self.part != "memory":
            return None
        # The holdings of this resource do not name a GPU, so the agent sets no limit of a cgroup.
        level = level_of(self.memory.enforcement, snapshot)
        return "env" if level == "nvml-limits" else level

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Prefer numbers of the GPUs that containers wait for: they become Unhealthy with their GPU."""
        if len(asked.free) < asked.size:
            raise Refused(f"{self.resource}: {asked.size} were requested and {len(asked.free)} are available")
        wanted = {grant.uuid for waiting in snapshot.vgpu_waiting or () for grant in waiting.gpus}
        rest = [
            id_
            for entry in self.devices(snapshot)
            for id_ in entry.ids
            if id_ in asked.free and id_ not in asked.must
        ]
        rest.sort(key=lambda id_: _gpu_of(id_) not in wanted)
        return rest[: asked.rest]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        names = requested(self.resource, ids)
        known = {id_ for entry in self.devices(snapshot) for id_ in entry.ids}
        if not names <= known:
            raise unknown(self.resource, names - known)
        return Allocation()


def next_waiting(snapshot: Snapshot, count: int) -> VgpuWaiting:
    """Return the container whose turn it is: the first of its pod that has no devices yet, with ``count`` GPUs.

    Raises ``Refused``, with ``later`` if the scheduler's choice may still be on its way.
    """
    turns: dict[tuple[str, str], VgpuWaiting] = {}
    for waiting in snapshot.vgpu_waiting or ():
        if waiting.key not in snapshot.vgpu_granted:
            turns.setdefault((waiting.namespace, waiting.pod), waiting)
    fitting = [waiting for waiting in turns.values() if waiting.count == count]
    if not fitting:
        unknown_yet = snapshot.holdings is None and not snapshot.vgpu_waiting
        advice = (
            "the kubelet has not listed yet what pods hold"
            if unknown_yet
            else "is schedulerName volcano, and deviceshare.VGPUEnable true?"
        )
        raise Refused(
            f"{NUMBER}: no pod that Volcano placed here waits for {count} GPUs; {advice}",
            later=True,
        )
    names = ", ".join(sorted({waiting.name for waiting in fitting}))
    foreign = ", ".join(sorted({waiting.name for waiting in fitting if not waiting.placed}))
    if foreign:
        # The kubelet may have refused the pod just now, and its end is not known here yet.
        raise Refused(
            f"{NUMBER}: {foreign}: no GPU was chosen by Volcano; is schedulerName volcano? These pods wait, and the "
            f"kubelet does not name the one that asks: {names}",
            later=True,
        )
    faulty = next((waiting for waiting in fitting if waiting.fault), None)
    if faulty is not None:
        raise Refused(f"{NUMBER}: the annotations of {faulty.name} are refused: {faulty.fault}")
    if len({waiting.gpus for waiting in fitting}) > 1:
        advice = "" if snapshot.vgpu_locked else "; is deviceshare.NodeLockEnable true?"
        raise Refused(
            f"{NUMBER}: several pods wait with different GPUs, and the kubelet does not name the one that asks: "
            f"{names}{advice}"
        )
    return fitting[0]


def _devices(
    memory: GpuMemory, snapshot: Snapshot, word: str, count: Callable[[Gpu], int]
) -> tuple[Devices, ...]:
    return tuple(
        gpu_access.entry(
            gpu,
            tuple(f"{gpu.uuid}::{word}{n}" for n in range(count(gpu))),
            unless_held(gpu.health, held_elsewhere(snapshot, gpu.uuid, NUMBER, (MEMORY, CORES))),
        )
        for gpu in gpu_access.selected(snapshot, memory.gpus)
        if memory.count(gpu)
    )


def placed_memory(kinds: Iterable[DeviceKind]) -> GpuMemory | None:
    """Return the GPU memory whose places Volcano's deviceshare chooses; ``None`` if no entry has ``volcano``."""
    return next((kind.memory for kind in kinds if isinstance(kind, VgpuPlaces)), None)


def granted_shares(snapshot: Snapshot) -> Iterator[VgpuShare]:
    """Yield the shares of the pods that hold places on the GPU."""
    yield from (share for share in snapshot.vgpu_shares if _holds(snapshot, share))


def _holds(snapshot: Snapshot, share: VgpuShare) -> bool:
    return any(
        (holding.namespace, holding.pod, holding.resource) == (share.namespace, share.pod, NUMBER)
        and any(_gpu_of(id_) == share.uuid for id_ in holding.device_ids)
        for holding in snapshot.holdings or ()
    )


def _gpu_of(id_: str) -> str:
    return id_.partition("::")[0]
