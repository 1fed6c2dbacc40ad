"""Whole GPUs. The device ID is the GPU's UUID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.cdi import CdiDevices
from nodeagent.facts.model import Function, Gpu, Snapshot
from nodeagent.kinds import (
    Refused,
    free_devices,
    gpu_access,
    obstacle,
    preference,
    requested,
    unknown,
)


class WholeGpus(msgspec.Struct, frozen=True):
    """``gpus`` are the UUIDs to offer, ``None`` for all. ``control_nodes``: see ``gpu_access``."""

    source: ClassVar[str] = "gpus"
    device_mib: ClassVar[int | None] = None

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
            for gpu in self._members(snapshot)
        )

    def resized(self, device_mib: int) -> WholeGpus:  # noqa: ARG002
        return self

    def free(self, snapshot: Snapshot) -> dict[str, int] | None:
        return free_devices(self.resource, self.devices(snapshot), snapshot)

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return gpu_access.hardware(gpu_access.selected(snapshot, self.gpus))

    def selects(self, snapshot: Snapshot) -> bool:
        return bool(gpu_access.selected(snapshot, self.gpus))

    def level(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        return None

    def refusal(self, snapshot: Snapshot) -> str | None:  # noqa: ARG002
        return None

    def cdi_specs(self, snapshot: Snapshot) -> Mapping[str, CdiDevices]:
        return gpu_access.cdi_specs(self.cdi_kind, snapshot)

    def needed_files(self, snapshot: Snapshot) -> frozenset[str]:
        by_cdi = self.strategy == "cdi" and self.selects(snapshot)
        return frozenset(self.cdi_specs(snapshot)) if by_cdi else frozenset()

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
            control_nodes=self.control_nodes if self.pass_device_nodes else (),
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
