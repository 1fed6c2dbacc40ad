"""Prepared claims, and what they hold of each device. Values alone: ``claim_files`` keeps them on the disk.

A record holds everything that answers a repeated Prepare and that Unprepare needs: the claim may be gone by then.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodeagent.dra.devices import GPU
from nodeagent.facts.allocation import DeviceInfo
from nodeagent.facts.cdi import ContainerEdits
from nodeagent.facts.model import Holding


class VfInterface(msgspec.Struct, frozen=True, omit_defaults=True):
    """A VF as the host saw it when the claim was prepared: a CNI plugin may move and rename its netdev afterwards."""

    pci_address: str
    netdev: str | None = None
    mac: str | None = None
    rdma: str | None = None


class PreparedDevice(msgspec.Struct, frozen=True):
    """One share of one device. ``amount`` is in the unit of its capacity, MiB or VFs; 0 is access as an administrator,
    which takes nothing of the device.

    ``requests`` are requests of the claim without sub-requests. ``vfs`` are the chosen VFs, ``interfaces`` what the
    host knows of them; ``uuid`` is the GPU's.
    ``resource`` is the name by which a device plugin would offer it, ``slices`` the number of its slices of GPU memory.
    """

    request: str
    pool: str
    kind: str
    device: str
    amount: int
    resource: str
    cdi_devices: tuple[str, ...]
    share_id: str | None = None
    vfs: tuple[str, ...] = ()
    uuid: str = ""
    slices: int = 0
    interfaces: tuple[VfInterface, ...] = ()


class PreparedClaim(msgspec.Struct, frozen=True):
    """``allocation`` identifies the devices that the scheduler gave: with other ones the claim is prepared again.

    ``sequence`` grows with each record of this node. ``edits`` are the CDI devices by name, ``metadata`` the texts of
    the metadata files by request.
    """

    uid: str
    namespace: str
    name: str
    sequence: int
    allocation: str
    devices: tuple[PreparedDevice, ...]
    edits: dict[str, ContainerEdits]
    device_info: tuple[DeviceInfo, ...] = ()
    pods: tuple[str, ...] = ()
    metadata: dict[str, str] = {}


class ClaimFigures(msgspec.Struct, frozen=True):
    """The claims that are prepared now, and those refused so far because others held their devices."""

    prepared: int
    conflicts: int


class Shares:
    """The sum that claims hold of each device, and their VFs."""

    def __init__(self, claims: Iterable[PreparedClaim]) -> None:
        self.amounts: dict[str, int] = {}
        self.vfs: dict[str, PreparedClaim] = {}
        for claim in claims:
            for device in claim.devices:
                self.add(claim, device)

    def add(self, claim: PreparedClaim, device: PreparedDevice) -> None:
        self.amounts[device.device] = self.amounts.get(device.device, 0) + device.amount
        self.vfs.update(dict.fromkeys(device.vfs, claim))


def holdings(claims: Iterable[PreparedClaim]) -> tuple[Holding, ...]:
    """Return what the claims hold as facts, by pod. A claim that several pods share counts for the first, and access as
    an administrator holds nothing."""
    return tuple(
        Holding(
            claim.namespace,
            claim.pods[0] if claim.pods else "",
            "",
            device.resource,
            tuple(f"{device.uuid}::{claim.uid}.{n}" for n in range(device.slices))
            if device.kind == GPU
            else device.vfs,
            claim.name,
        )
        for claim in sorted(claims, key=lambda it: (it.namespace, it.name, it.uid))
        for device in claim.devices
        if device.amount
    )


def without_conflicts(
    claims: Iterable[PreparedClaim],
) -> tuple[dict[str, PreparedClaim], tuple[PreparedClaim, ...]]:
    """Return the records by UID without those that contradict a later one, and the others.

    A write that failed may leave a record that this process did not count. Then a VF was given to a later claim, and
    the later record is the true one.
    """
    kept: dict[str, PreparedClaim] = {}
    dropped: list[PreparedClaim] = []
    taken: set[str] = set()
    for claim in sorted(claims, key=lambda it: it.sequence, reverse=True):
        vfs = {vf for device in claim.devices for vf in device.vfs}
        if taken & vfs or claim.uid in kept:
            dropped.append(claim)
        else:
            kept[claim.uid] = claim
            taken |= vfs
    return kept, tuple(dropped)
