"""Whole GPUs. The device ID is the GPU's UUID."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.model import Gpu, Snapshot
from nodeagent.kinds import (
    Question,
    Refused,
    gpu_access,
    held_elsewhere,
    obstacle,
    requested,
    unknown,
    unless_held,
)


class WholeGpus(gpu_access.GpuKind, frozen=True):
    """A device is a GPU that is not in MIG mode."""

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(
            gpu_access.entry(
                gpu,
                (gpu.uuid,),
                unless_held(gpu.health, held_elsewhere(snapshot, gpu.uuid, self.resource)),
            )
            for gpu in self._members(snapshot)
        )

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose GPUs as close to each other, then to ``near``, as the free ones allow."""
        pinned = self._usable(snapshot, asked.must)
        choice = [
            gpu
            for gpu in self._members(snapshot)
            if gpu.uuid in asked.free
            and gpu.health.allocatable
            and held_elsewhere(snapshot, gpu.uuid, self.resource) is None
        ]
        if len(choice) < asked.size:
            raise Refused(
                f"{self.resource}: {asked.size} GPUs were requested and {len(choice)} are available"
            )
        group = gpu_access.cluster(choice, asked.size, asked.near, pinned=pinned)
        return [gpu.uuid for gpu in group if gpu.uuid not in asked.must]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        return self.access(self._usable(snapshot, requested(self.resource, ids)))

    def _members(self, snapshot: Snapshot) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in gpu_access.selected(snapshot, self.gpus) if not gpu.mig)

    def _usable(self, snapshot: Snapshot, ids: frozenset[str]) -> list[Gpu]:
        """Return the GPUs of these IDs by index. Raises ``Refused`` if one of them cannot be allocated."""
        gpus = [gpu for gpu in self._members(snapshot) if gpu.uuid in ids]
        if len(gpus) < len(ids):
            raise unknown(self.resource, ids - {gpu.uuid for gpu in gpus})
        for gpu in gpus:
            elsewhere = held_elsewhere(snapshot, gpu.uuid, self.resource)
            if refusal := obstacle(self.resource, gpu.uuid, gpu.health, elsewhere):
                raise refusal
        return gpus
