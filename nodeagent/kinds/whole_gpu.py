"""Whole GPUs. The device id is the GPU's UUID."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.kinds import Refused, asked, gpu_access, held_by, preference, unhealthy, unknown
from nodeagent.model import Allocation, Devices, Function, Gpu, Snapshot


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """``gpus`` are the UUIDs to offer, ``None`` for all. ``control_nodes``: see ``access``."""

    resource: str
    gpus: frozenset[str] | None = None
    strategy: gpu_access.Strategy = "cdi"
    pass_device_nodes: bool = False
    cdi_kind: str = gpu_access.CDI_KIND
    control_nodes: tuple[str, ...] = gpu_access.CONTROL_NODES

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(
            Devices(
                parent=gpu.uuid,
                ids=(gpu.uuid,),
                numa_nodes=() if gpu.numa_node is None else (gpu.numa_node,),
                health=gpu.health,
            )
            for gpu in gpu_access.selected(snapshot, self.gpus)
        )

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
    ) -> list[str]:
        """GPUs as close to each other, then to ``near``, as the free ones allow."""
        free, must = preference(self.resource, available, must_include, size)
        pinned = self._usable(snapshot, must)
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        choice = [
            gpu
            for gpu in gpu_access.selected(snapshot, self.gpus)
            if gpu.uuid in free and gpu.health.allocatable and gpu.uuid not in elsewhere
        ]
        if len(choice) < size:
            raise Refused(
                f"{self.resource}: {size} GPUs were asked for and {len(choice)} can be given", invalid=False
            )
        fresh = [
            gpu.uuid for gpu in gpu_access.cluster(choice, size, near, pinned=pinned) if gpu.uuid not in must
        ]
        return [*must_include, *fresh]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        return gpu_access.grant(
            self._usable(snapshot, asked(self.resource, ids)),
            strategy=self.strategy,
            cdi_kind=self.cdi_kind,
            control_nodes=self.control_nodes if self.pass_device_nodes else (),
        )

    def _usable(self, snapshot: Snapshot, ids: frozenset[str]) -> list[Gpu]:
        """The GPUs of these ids, in the order of their indexes, or why one of them cannot be had."""
        gpus = [gpu for gpu in gpu_access.selected(snapshot, self.gpus) if gpu.uuid in ids]
        if len(gpus) < len(ids):
            raise unknown(self.resource, ids - {gpu.uuid for gpu in gpus})
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        for gpu in gpus:
            if not gpu.health.allocatable:
                raise unhealthy(self.resource, gpu.uuid, gpu.health)
            if gpu.uuid in elsewhere:
                raise held_by(self.resource, gpu.uuid, elsewhere[gpu.uuid])
        return gpus
