"""The kinds that one entry of ``resources`` makes of the GPUs of a node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from nodeagent.facts import cdi
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind, gpu_access
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.hardware_selection import selected_gpus
from nodeagent.kinds.mig import MigDevices, MigPlaces, resource_part
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.kinds.resource_settings import (
    GpuMemResource,
    GpuResource,
    MigResource,
    ResourceSettings,
)
from nodeagent.kinds.volcano_vgpus import CORES, MEMORY, NUMBER, VgpuParts, VgpuPlaces
from nodeagent.kinds.whole_gpu import WholeGpus


class GpuContext(msgspec.Struct, frozen=True):
    """Facts and settings that the kinds of GPUs are made of, beside their entry.

    GPUs that earlier entries have ``taken`` are left out. ``prefix`` is the part of the names before the slash.
    ``own_cdi``: the agent may write CDI specs. ``mps``: how shares are granted through MPS daemons.
    """

    snapshot: Snapshot
    taken: frozenset[str]
    prefix: str
    own_cdi: bool
    mps: MpsShares

    def cdi_kind(self, uuids: Collection[str]) -> str:
        """Return the CDI kind of these GPUs or MIG devices: the agent's unless a vendor's spec has all of them."""
        ours = self.own_cdi and not self.snapshot.paths.vendor_gpus.issuperset(uuids)
        return cdi.GPU_KIND if ours else gpu_access.NVIDIA_CDI_KIND


def gpu_kinds(entry: ResourceSettings, context: GpuContext) -> Iterator[DeviceKind]:
    """Yield the kinds of the GPUs that the entry selects."""
    return _MAKERS[type(entry)](entry, context)


def _whole_gpus(entry: GpuResource, context: GpuContext) -> Iterator[WholeGpus]:
    uuids = _selected(entry, context) - context.taken
    yield WholeGpus(
        f"{context.prefix}/{entry.name}",
        uuids,
        strategy=entry.device_list_strategy,
        pass_device_nodes=entry.pass_device_nodes,
        cdi_kind=context.cdi_kind(uuids),
        control_nodes=context.snapshot.paths.gpu_nodes,
    )


def _memory(entry: GpuMemResource, context: GpuContext) -> Iterator[DeviceKind]:
    uuids, snapshot = _selected(entry, context) - context.taken, context.snapshot
    memory = GpuMemory(
        f"{context.prefix}/{entry.name}",
        uuids,
        slice_mib=entry.slice_mib,
        reserved_mib=entry.reserved_mib,
        strategy=entry.device_list_strategy,
        pass_device_nodes=entry.pass_device_nodes,
        cdi_kind=context.cdi_kind(uuids),
        control_nodes=snapshot.paths.gpu_nodes,
        enforcement=entry.enforcement,
        preferred=entry.preferred,
        mps=context.mps if entry.enforcement == "mps" else None,
    )
    if entry.volcano:
        yield VgpuPlaces(replace(memory, resource=NUMBER))
        yield VgpuParts(replace(memory, resource=MEMORY), "memory")
        yield VgpuParts(replace(memory, resource=CORES), "cores")
        return
    if "{gpu}" not in entry.name:
        yield memory
        return
    for gpu in snapshot.gpus:
        if gpu.uuid in uuids and not gpu.mig:
            resource = memory.resource.replace("{gpu}", str(gpu.index))
            yield replace(memory, resource=resource, gpus=frozenset((gpu.uuid,)), number=gpu.index)


def _mig(entry: MigResource, context: GpuContext) -> Iterator[DeviceKind]:
    """Yield kinds of GPUs that other entries may have too: an entry of slices leaves those in MIG mode out."""
    return _mig_places(entry, context) if entry.by_claim else _mig_devices(entry, context)


def _mig_devices(entry: MigResource, context: GpuContext) -> Iterator[MigDevices]:
    """Yield one kind for each profile, by name."""
    uuids, snapshot = _selected(entry, context), context.snapshot
    by_profile: dict[str, set[str]] = {}
    for gpu in snapshot.gpus:
        if gpu.mig and gpu.uuid in uuids:
            for device in gpu.mig_devices:
                by_profile.setdefault(device.profile, set()).add(device.uuid)
    for profile, devices in sorted(by_profile.items()):
        yield MigDevices(
            f"{context.prefix}/{entry.name.replace('{profile}', resource_part(profile))}",
            uuids,
            profile=profile,
            strategy=entry.device_list_strategy,
            pass_device_nodes=entry.pass_device_nodes,
            cdi_kind=context.cdi_kind(devices),
            control_nodes=snapshot.paths.gpu_nodes,
        )


def _mig_places(entry: MigResource, context: GpuContext) -> Iterator[MigPlaces]:
    """Yield one kind for each profile that a selected GPU can make, by size. Its CDI kind is that of the GPUs."""
    uuids, snapshot = _selected(entry, context), context.snapshot
    by_profile: dict[str, tuple[int, set[str]]] = {}
    for gpu in snapshot.gpus:
        for profile in gpu.mig_profiles if gpu.uuid in uuids else ():
            by_profile.setdefault(profile.name, (profile.memory_mib, set()))[1].add(gpu.uuid)
    for name, (_, gpus) in sorted(by_profile.items(), key=lambda it: (it[1][0], it[0])):
        yield MigPlaces(
            f"{context.prefix}/{entry.name.replace('{profile}', resource_part(name))}",
            frozenset(gpus),
            profile=name,
            cdi_kind=context.cdi_kind(gpus),
        )


def _selected(entry: GpuMemResource | GpuResource | MigResource, context: GpuContext) -> frozenset[str]:
    return frozenset(gpu.uuid for gpu in selected_gpus(entry.select, context.snapshot.gpus))


_MAKERS: Mapping[type[ResourceSettings], Callable[[Any, GpuContext], Iterator[DeviceKind]]] = {
    GpuMemResource: _memory,
    GpuResource: _whole_gpus,
    MigResource: _mig,
}
"""The kinds of each entry of GPUs."""
