"""The kinds that one entry of ``resources`` makes of the GPUs of a node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nodeagent.facts import cdi
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind, gpu_access
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.hardware_selection import selected_gpus
from nodeagent.kinds.mig import MigDevices, MigPlaces, resource_part
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.kinds.resource_settings import GpuMemResource, GpuResource, MigResource
from nodeagent.kinds.volcano_vgpus import CORES, MEMORY, NUMBER, VgpuParts, VgpuPlaces
from nodeagent.kinds.whole_gpu import WholeGpus


def gpu_kinds(
    entry: GpuMemResource | GpuResource | MigResource,
    snapshot: Snapshot,
    taken: frozenset[str],
    prefix: str,
    *,
    own_cdi: bool,
    mps: MpsShares,
) -> Iterator[DeviceKind]:
    """Yield the kinds of the GPUs that the entry selects, without those that earlier entries have ``taken``.

    ``prefix`` is the part of the names before the slash. ``own_cdi``: the agent may write CDI specs. ``mps``: how
    shares are granted through MPS daemons.
    """
    selected = frozenset(gpu.uuid for gpu in selected_gpus(entry.select, snapshot.gpus))
    if isinstance(
        entry, MigResource
    ):  # an entry of slices that has the same GPUs leaves those in MIG mode out
        kinds = _mig_places if entry.mode == "dra" else _mig_kinds
        yield from kinds(entry, selected, snapshot, prefix, own_cdi=own_cdi)
        return
    uuids = selected - taken
    ours = own_cdi and not uuids <= snapshot.paths.vendor_gpus
    cdi_kind = cdi.GPU_KIND if ours else gpu_access.NVIDIA_CDI_KIND
    if isinstance(entry, GpuResource):
        yield WholeGpus(
            f"{prefix}/{entry.name}",
            uuids,
            strategy=entry.device_list_strategy,
            pass_device_nodes=entry.pass_device_nodes,
            cdi_kind=cdi_kind,
            control_nodes=snapshot.paths.gpu_nodes,
        )
        return
    memory = GpuMemory(
        f"{prefix}/{entry.name}",
        uuids,
        slice_mib=entry.slice_mib,
        reserved_mib=entry.reserved_mib,
        strategy=entry.device_list_strategy,
        pass_device_nodes=entry.pass_device_nodes,
        cdi_kind=cdi_kind,
        control_nodes=snapshot.paths.gpu_nodes,
        enforcement=entry.enforcement,
        preferred=entry.preferred,
        mps=mps if entry.enforcement == "mps" else None,
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


def _mig_kinds(
    entry: MigResource, uuids: frozenset[str], snapshot: Snapshot, prefix: str, *, own_cdi: bool
) -> Iterator[MigDevices]:
    """Yield one kind for each profile, by name. Its CDI kind is the agent's unless a vendor's spec has all of them."""
    by_profile: dict[str, set[str]] = {}
    for gpu in snapshot.gpus:
        if gpu.mig and gpu.uuid in uuids:
            for device in gpu.mig_devices:
                by_profile.setdefault(device.profile, set()).add(device.uuid)
    for profile, devices in sorted(by_profile.items()):
        ours = own_cdi and not devices <= snapshot.paths.vendor_gpus
        yield MigDevices(
            f"{prefix}/{entry.name.replace('{profile}', resource_part(profile))}",
            uuids,
            profile=profile,
            strategy=entry.device_list_strategy,
            pass_device_nodes=entry.pass_device_nodes,
            cdi_kind=cdi.GPU_KIND if ours else gpu_access.NVIDIA_CDI_KIND,
            control_nodes=snapshot.paths.gpu_nodes,
        )


def _mig_places(
    entry: MigResource, uuids: frozenset[str], snapshot: Snapshot, prefix: str, *, own_cdi: bool
) -> Iterator[MigPlaces]:
    """Yield one kind for each profile that a selected GPU can make, by size. Its CDI kind is that of the GPU."""
    by_profile: dict[str, tuple[int, set[str]]] = {}
    for gpu in snapshot.gpus:
        for profile in gpu.mig_profiles if gpu.uuid in uuids else ():
            by_profile.setdefault(profile.name, (profile.memory_mib, set()))[1].add(gpu.uuid)
    for name, (_, gpus) in sorted(by_profile.items(), key=lambda it: (it[1][0], it[0])):
        ours = own_cdi and not gpus <= snapshot.paths.vendor_gpus
        yield MigPlaces(
            f"{prefix}/{entry.name.replace('{profile}', resource_part(name))}",
            frozenset(gpus),
            profile=name,
            cdi_kind=cdi.GPU_KIND if ours else gpu_access.NVIDIA_CDI_KIND,
        )
