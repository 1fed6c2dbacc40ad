"""The resources of a machine at one moment, and what is wrong with them: the values that verbs and pages show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from nodeagent.dra.device_attributes import LinkMemory, published
from nodeagent.dra.devices import DraDevice
from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kubelet.withheld import UnwritableFile, Withheld


class Lack(msgspec.Struct, frozen=True):
    """The configuration asks for something that this machine lacks.

    ``fatal``: the agent does not start, and does not accept the changed configuration. ``ready``: the agent is ready
    nevertheless. ``source``: before this source has published, the message is a guess. ``key`` says which remark it
    is, and is empty for all others: ``idle`` if an entry selects nothing, ``slices`` if its slices are very small,
    ``undivided`` if the driver does not show the places of MIG devices, and for hardware that is offered and lacks
    something ``vf_port``, ``vf_mac``, ``rdma_cm`` and ``link_mode``.
    """

    message: str
    fatal: bool
    ready: bool = True
    source: str = "pci"
    key: Literal["", "idle", "slices", "undivided", "vf_port", "vf_mac", "rdma_cm", "link_mode"] = ""


class OfferView(msgspec.Struct, frozen=True):
    """The resources that the kubelet is offered now, and those that it is not.

    ``withheld``: the resources that are not offered. ``unwritable``: the files that containers need and that cannot be
    written. ``troubles``: the devices that the configuration asks for and that this machine lacks. ``remarks``: the
    resources that are offered in another way than configured; the agent is ready nevertheless. ``rails``: the rail of
    each PF, by PCI address. ``examined``: whether the first offer has been made and its troubles are known.
    """

    offered: tuple[DeviceKind, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    unwritable: tuple[UnwritableFile, ...] = ()
    troubles: tuple[Lack, ...] = ()
    remarks: tuple[str, ...] = ()
    rails: Mapping[str, int] = {}
    examined: bool = True


class ClaimDevice(msgspec.Struct, frozen=True):
    """A GPU or PF that claims allocate. ``parent`` is a UUID or PCI address, ``capacity`` a quantity such as
    ``80896Mi``, ``attributes`` are those of its ResourceSlice."""

    name: str
    pool: str
    parent: str
    capacity: str
    attributes: Mapping[str, str | int | bool]


class MachineView(msgspec.Struct, frozen=True):
    """The facts of one moment, and the resources that the configuration makes of them.

    ``configuration``: the digest of an agent's configuration; empty if no agent answers. ``free``: the devices that a
    pod can still get, by resource and parent; without a resource if it is not known what pods hold.
    """

    snapshot: Snapshot
    resources: tuple[tuple[str, tuple[Devices, ...]], ...]
    troubles: tuple[Lack, ...]
    configuration: str = ""
    free: Mapping[str, Mapping[str, int]] = {}
    levels: Mapping[str, str] = {}
    """The enforcement in force, by resource of GPU memory."""
    by_claim: tuple[ClaimDevice, ...] = ()
    """The devices of the resources with mode dra."""
    nics: Mapping[str, str] = {}
    """The name of each NIC with a rail, by PCI address: ``nic0``."""


def machine_view(
    kinds: Iterable[DeviceKind],
    snapshot: Snapshot,
    troubles: tuple[Lack, ...],
    configuration: str = "",
    by_claim: Iterable[DraDevice] = (),
    rails: Mapping[str, int] = MappingProxyType({}),
) -> MachineView:
    """Return the view of these resources and of the devices that claims allocate."""
    kinds = tuple(kinds)
    free = ((kind.resource, kind.free(snapshot)) for kind in kinds)
    return MachineView(
        snapshot,
        tuple((kind.resource, kind.devices(snapshot)) for kind in kinds),
        troubles,
        configuration,
        {resource: by_parent for resource, by_parent in free if by_parent is not None},
        {kind.resource: level for kind in kinds if (level := kind.level(snapshot)) is not None},
        tuple(_claim_devices(by_claim, snapshot)),
        nic_names(rails),
    )


def offered_devices(
    kinds: Iterable[DeviceKind], by_claim: Iterable[DraDevice], snapshot: Snapshot
) -> frozenset[str]:
    """Return the PCI addresses of the PFs and the UUIDs of the GPUs that a resource or a claim has devices of."""
    parents = {devices.parent for kind in kinds for devices in kind.devices(snapshot)}
    return frozenset(parents | {device.parent for device in by_claim})


def _claim_devices(devices: Iterable[DraDevice], snapshot: Snapshot) -> Iterator[ClaimDevice]:
    places = LinkMemory().places(snapshot)
    for device in devices:
        attributes = published(device, snapshot, places)["attributes"]
        values = {name: next(iter(value.values())) for name, value in attributes.items()}
        capacity = device.capacity.quantity(device.capacity.total)
        yield ClaimDevice(device.name, device.pool, device.parent, capacity, values)
