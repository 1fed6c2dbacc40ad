"""The kinds of device that claims allocate: a row for each kind of device plugins that has ``mode: dra``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from nodeagent.dra.devices import DraDevice
from nodeagent.dra.gpu_device import gpu_devices
from nodeagent.dra.hca_device import hca_devices
from nodeagent.dra.mig_place import mig_place_devices
from nodeagent.dra.pf_device import pf_devices
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.hca_shares import HcaShares
from nodeagent.kinds.mig import MigPlaces
from nodeagent.kinds.vf import VfPool


class ClaimEntry(msgspec.Struct, frozen=True):
    """A kind of an entry with ``mode: dra``. ``rails``: the number of each PF by PCI address, if the name of the entry
    has it. ``vf_devices``: each VF is a device."""

    kind: DeviceKind
    rails: Mapping[str, int] = {}
    vf_devices: bool = False


_Maker = Callable[[Any, ClaimEntry, Snapshot], Iterable[DraDevice]]

_MAKERS: Mapping[type[DeviceKind], _Maker] = {
    HcaShares: lambda kind, entry, snapshot: hca_devices(kind, entry.rails, snapshot),
    GpuMemory: lambda kind, _, snapshot: gpu_devices(kind, snapshot),
    MigPlaces: lambda kind, _, snapshot: mig_place_devices(kind, snapshot),
    VfPool: lambda kind, entry, snapshot: pf_devices(
        kind, entry.rails, snapshot, vf_devices=entry.vf_devices
    ),
}
"""The devices of each kind; ``mode: dra`` makes no other kind."""


def devices_of(entries: Iterable[ClaimEntry], snapshot: Snapshot) -> tuple[DraDevice, ...]:
    """Return the devices of these entries: GPUs in their order, then network functions by rail."""
    made = [device for entry in entries for device in _MAKERS[type(entry.kind)](entry.kind, entry, snapshot)]
    return tuple(sorted(made, key=lambda device: device.order))


def lacking_enforcement(devices: Iterable[DraDevice], snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the resources whose enforcement this node lacks, each with the reason."""
    for kind in dict.fromkeys(device.kind for device in devices):
        if (lacking := kind.lacking(snapshot)) is not None:
            yield kind.resource, lacking
