"""Places of MIG devices: each one of a GPU in MIG mode is a device. The MIG device is made for its claim. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from nodeagent.dra.device_attributes import pci_place
from nodeagent.dra.devices import (
    Attributes,
    Capacity,
    DraDevice,
    GrantedShare,
    LinkEnds,
    Occupied,
    dns_label,
)
from nodeagent.dra.mig_counters import consumed, lacking
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Gpu, Health, Link, MigProfile, MigSlot, Snapshot
from nodeagent.kinds import Refused, ascii_name, gpu_access
from nodeagent.kinds.mig import MigPlaces


class MigPlace(DraDevice, frozen=True):
    """A MIG device that can be made in one place of a GPU, for one claim. ``kind`` is that of its profile.

    Places overlap. The scheduler takes those that fit together by the counters of the GPU (``mig_counters.py``).
    """

    name: str
    gpu: Gpu
    kind: MigPlaces
    profile: MigProfile
    slot: MigSlot

    @property
    def pool(self) -> Literal["mig"]:
        return "mig"

    @property
    def capacity(self) -> Capacity:
        total = self.profile.memory_mib
        return Capacity("memory", total, total, total, "Mi")

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
    def divided_gpu(self) -> Gpu:
        return self.gpu

    def attributes(self, link: Link | None, ends: LinkEnds, leaf_group: str | None) -> Attributes:  # noqa: ARG002
        return {
            "kind": self.pool,
            "profile": self.profile.name,
            "parentUuid": self.gpu.uuid,
            "product": self.gpu.name,
            "index": self.gpu.index,
            "firstSlice": self.slot.start,
            **pci_place(self.gpu.pci_address, self.gpu.pci_path, self.gpu.numa_node),
        }

    def consumption(self) -> dict[str, Any]:
        memory = {"memory": {"value": self.capacity.quantity(self.capacity.total)}}
        return {"capacity": memory, "consumesCounters": consumed(self.gpu, self.slot, self.profile)}

    def check_place(
        self, own: Mapping[MigSlot, str], others: Iterable[tuple[str, MigSlot]], *, admin: bool
    ) -> None:
        """Schedulers may give places that overlap, or more engines than a GPU has, in one claim or in two. The driver
        refuses the second one, unless the GPU was reset in between."""
        if admin:
            raise Refused(
                f"{self.name}: a MIG device is made for the claim that uses it, so adminAccess has nothing to show",
                invalid=True,
            )
        elsewhere = tuple(others)
        for claim, slot in elsewhere:
            if slot.overlaps(self.slot):
                raise Occupied(f"{self.name}: the claim {ascii_name(claim)} has a MIG device in its place")
        if twice := next((device for slot, device in own.items() if slot.overlaps(self.slot)), None):
            raise Refused(f"{self.name}: the claim has {twice} in its place too", invalid=True)
        if short := lacking(self.gpu, self.slot, self.profile, own):
            why = f"the other MIG devices of the claim leave too few of {', '.join(short)}"
            raise Refused(f"{self.name}: {why}", invalid=True)
        if short := lacking(self.gpu, self.slot, self.profile, [*own, *(slot for _, slot in elsewhere)]):
            raise Occupied(f"{self.name}: MIG devices of other claims leave too few of {', '.join(short)}")

    def grant(self, shares: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:
        """The device nodes of a MIG device are known once it is made."""
        return self.kind.allocate(snapshot, [share.device.parent for share in shares])

    def variables(
        self,
        end: str,  # noqa: ARG002
        allocation: Allocation,  # noqa: ARG002
        request: Sequence[GrantedShare],  # noqa: ARG002
        told: tuple[tuple[str, str], ...],  # noqa: ARG002
    ) -> Iterable[tuple[str, str]]:
        return ()


def mig_place_devices(kind: MigPlaces, snapshot: Snapshot) -> Iterator[MigPlace]:
    """Yield the places of one profile on the GPUs of an entry. The scheduler takes the first one that is free: those
    that leave most of the GPU to larger profiles come first."""
    for gpu in gpu_access.selected(snapshot, kind.gpus):
        everywhere = [slot for profile in gpu.mig_profiles for slot in profile.slots]
        for profile in gpu.mig_profiles:
            if profile.name == kind.profile:
                costs = {slot: sum(slot.overlaps(other) for other in everywhere) for slot in profile.slots}
                for slot in sorted(costs, key=lambda it: (costs[it], -it.start)):
                    yield MigPlace(_mig_name(gpu.uuid, profile.name, slot.start), gpu, kind, profile, slot)


def _mig_name(uuid: str, profile: str, start: int) -> str:
    """
    >>> _mig_name("GPU-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa", "1g.10gb+me", 6)
    'mig-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa-1g10gb-plus-me-6'
    """
    word = profile.replace(".", "").replace("-", "-minus-").replace("+", "-plus-")
    return dns_label(f"mig-{uuid.removeprefix('GPU-')}-{word}-{start}")
