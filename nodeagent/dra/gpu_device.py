"""GPUs whose memory is shared by claims: a device has the capacity ``memory``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from nodeagent.dra.device_attributes import pci_place
from nodeagent.dra.devices import Attributes, Capacity, DraDevice, GrantedShare, LinkEnds, alike, gpu_name
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Gpu, Health, Link, Snapshot
from nodeagent.kinds import gpu_access
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mps_clients import MpsShares


class GpuDevice(DraDevice, frozen=True):
    """A GPU whose memory is shared by claims. ``kind`` has the settings of its entry."""

    name: str
    gpu: Gpu
    kind: GpuMemory

    @property
    def pool(self) -> Literal["gpu"]:
        return "gpu"

    @property
    def capacity(self) -> Capacity:
        """MiB in whole slices; a claim that names no amount gets the whole GPU."""
        total = self.kind.count(self.gpu) * self.kind.slice_mib
        return Capacity("memory", total, self.kind.slice_mib, total, "Mi")

    @property
    def health(self) -> Health:
        return self.gpu.health

    @property
    def gone(self) -> bool:
        return self.gpu.lost

    @property
    def parent(self) -> str:
        return self.gpu.uuid

    @property
    def hardware(self) -> frozenset[str]:
        return frozenset((self.gpu.uuid,))

    @property
    def mps(self) -> MpsShares | None:
        return self.kind.mps

    def limit_mib(self, amount: int, snapshot: Snapshot) -> int | None:
        return amount if self.kind.limits(snapshot) else None

    def slices(self, amount: int) -> int:
        return -(-amount // self.kind.slice_mib)

    def attributes(self, link: Link | None, ends: LinkEnds, leaf_group: str | None) -> Attributes:  # noqa: ARG002
        return {
            "kind": self.pool,
            "uuid": self.gpu.uuid,
            "product": self.gpu.name,
            "index": self.gpu.index,
            "nvlinkIsland": self.gpu.nvlink_island,
            **pci_place(self.gpu.pci_address, self.gpu.pci_path, self.gpu.numa_node),
        }

    def grant(self, shares: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:
        gpus = [device.gpu for device in alike(self, (share.device for share in shares))]
        return self.kind.grant(snapshot, gpus, shares[0].amount)

    def show(self, devices: Sequence[DraDevice], snapshot: Snapshot) -> Allocation:  # noqa: ARG002
        return self.kind.show([device.gpu for device in alike(self, devices) if not device.gone])

    def variables(
        self,
        end: str,
        allocation: Allocation,
        request: Sequence[GrantedShare],  # noqa: ARG002
        told: tuple[tuple[str, str], ...],  # noqa: ARG002
    ) -> Iterable[tuple[str, str]]:
        return [(f"{name}_{end}", value) for name, value in allocation.env if name.startswith("NODEAGENT_")]


def gpu_devices(kind: GpuMemory, snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """Return the GPUs of an entry that hold a slice, in the order of the driver, with the health of their shares."""
    members = (gpu for gpu in gpu_access.selected(snapshot, kind.gpus) if kind.count(gpu))
    return tuple(
        GpuDevice(gpu_name(gpu.uuid), msgspec.structs.replace(gpu, health=kind.health(gpu, snapshot)), kind)
        for gpu in members
    )
