"""Whole GPUs. The device ID is the GPU's UUID."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.model import Function, Gpu, Snapshot
from nodeagent.kinds import (
    Refused,
    gpu_access,
    obstacle,
    preference,
    requested,
    unknown,
)


class WholeGpus(gpu_access.GpuKind, frozen=True):
    """A device is a GPU that is not in MIG mode."""

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(gpu_access.entry(gpu, (gpu.uuid,), gpu.health) for gpu in self._members(snapshot))

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
        later_sizes: Sequence[int] | None = (),  # noqa: ARG002
    ) -> list[str]:
        """Choose GPUs as close to each other, then to ``near``, as the free ones allow."""
        free, must = preference(self.resource, available, must_include, size)
        pinned = self._usable(snapshot, must)
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        choice = [
            gpu
            for gpu in self._members(snapshot)
            if gpu.uuid in free and gpu.health.allocatable and gpu.uuid not in elsewhere
        ]
        if len(choice) < size:
            raise Refused(
                f"{self.resource}: {size} GPUs were requested and {len(choice)} are available", invalid=False
            )
        fresh = [
            gpu.uuid for gpu in gpu_access.cluster(choice, size, near, pinned=pinned) if gpu.uuid not in must
        ]
        return [*must_include, *fresh]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        return gpu_access.grant(
            self._usable(snapshot, requested(self.resource, ids)),
            strategy=self.strategy,
            cdi_kind=self.cdi_kind,
            control_nodes=self.passed_nodes,
        )

    def _members(self, snapshot: Snapshot) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in gpu_access.selected(snapshot, self.gpus) if not gpu.mig)

    def _usable(self, snapshot: Snapshot, ids: frozenset[str]) -> list[Gpu]:
        """Return the GPUs of these IDs by index. Raises ``Refused`` if one of them cannot be allocated."""
        gpus = [gpu for gpu in self._members(snapshot) if gpu.uuid in ids]
        if len(gpus) < len(ids):
            raise unknown(self.resource, ids - {gpu.uuid for gpu in gpus})
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        for gpu in gpus:
            if refusal := obstacle(self.resource, gpu.uuid, gpu.health, elsewhere):
                raise refusal
        return gpus
