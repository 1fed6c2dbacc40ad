"""Compare what the processes of pods use of each GPU with what the kubelet has granted. Pure.

The kubelet's podresources API names the pods that hold devices, and the driver the memory of processes. Neither of them
has the other half. A pod may use a GPU without a grant, for example a privileged one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds.volcano_vgpus import CORES, MEMORY, NUMBER, granted_shares


class PodAccount(msgspec.Struct, frozen=True):
    """One pod on one GPU, in bytes. ``used_bytes`` is ``None`` if it is not measured; ``utilization`` is
    the pod's part of the time of the SMs, 0 to 1, and ``members`` are its processes. ``uid`` is empty for a pod without
    processes: podresources has none.

    Two pods of one name, of which one is about to end, are one account with the UID of none."""

    namespace: str
    pod: str
    granted_bytes: int
    used_bytes: int | None
    utilization: float | None = None
    processes: int = 0
    uid: str = ""
    members: tuple[NamedProcess, ...] = ()


class GpuAccount(msgspec.Struct, frozen=True):
    """One GPU: its pods by name, and the processes that are in no pod."""

    uuid: str
    pods: tuple[PodAccount, ...]
    outside: tuple[NamedProcess, ...] = ()


def accounts(
    snapshot: Snapshot, slice_bytes: Mapping[str, int], usage: Mapping[str, GpuUsage]
) -> tuple[GpuAccount, ...]:
    """Return the account of each GPU, by index.

    ``slice_bytes`` is the size of a slice by resource. Every other device whose ID is a GPU's UUID stands for all of
    its memory, and a MIG device for its own. A GPU without an entry in ``usage`` was not measured.
    """
    sizes = {gpu.uuid: gpu.memory_mib << 20 for gpu in snapshot.gpus}
    parts = {
        device.uuid: (gpu.uuid, device.memory_mib << 20)
        for gpu in snapshot.gpus
        for device in gpu.mig_devices
    }
    granted: dict[str, dict[tuple[str, str], int]] = {uuid: {} for uuid in sizes}
    for share in granted_shares(snapshot):
        if share.uuid in granted:
            size = share.slices * slice_bytes.get(MEMORY, 0)
            pods, pod = granted[share.uuid], (share.namespace, share.pod)
            pods[pod] = min(pods.get(pod, 0) + size, sizes[share.uuid])
    for holding in snapshot.holdings or ():
        if holding.resource in (NUMBER, MEMORY, CORES):
            continue  # they are numbers; Volcano's choice has the memory
        for uuid, size in _grants(holding, sizes, parts, slice_bytes.get(holding.resource)).items():
            pods = granted[uuid]
            pod = (holding.namespace, holding.pod)
            pods[pod] = min(pods.get(pod, 0) + size, sizes[uuid])
    return tuple(_account(uuid, granted[uuid], usage.get(uuid)) for uuid in sizes)


def _grants(
    holding: Holding,
    sizes: Mapping[str, int],
    parts: Mapping[str, tuple[str, int]],
    slice_bytes: int | None,
) -> dict[str, int]:
    """The bytes of each GPU that a container holds. ``parts``: the GPU and the bytes of each MIG device."""
    grants: dict[str, int] = {}
    for id_ in holding.device_ids:
        uuid = id_.partition("::")[0]
        if uuid in sizes:
            grants[uuid] = grants.get(uuid, 0) + (sizes[uuid] if slice_bytes is None else slice_bytes)
        elif uuid in parts:
            uuid, size = parts[uuid]
            grants[uuid] = grants.get(uuid, 0) + size
    return grants


def _account(uuid: str, granted: Mapping[tuple[str, str], int], usage: GpuUsage | None) -> GpuAccount:
    uses: dict[tuple[str, str], PodUse] = {}
    if usage is not None:
        for one in usage.pods:
            key = one.namespace, one.pod
            uses[key] = _sum(uses[key], one) if key in uses else one
    pods = []
    for namespace, pod in sorted(granted.keys() | uses.keys()):
        share = granted.get((namespace, pod), 0)
        use = uses.get((namespace, pod))
        if use is not None:
            numbers = (use.memory_bytes, use.utilization, use.processes, use.uid, use.members)
            pods.append(PodAccount(namespace, pod, share, *numbers))
        else:
            pods.append(PodAccount(namespace, pod, share, None if usage is None else 0))
    return GpuAccount(uuid, tuple(pods), usage.outside if usage is not None else ())


def _sum(one: PodUse, other: PodUse) -> PodUse:
    """Add up two pods of one name: the earlier one ends while its successor starts."""
    shares = [use.utilization for use in (one, other) if use.utilization is not None]
    return PodUse(
        one.namespace,
        one.pod,
        one.memory_bytes + other.memory_bytes,
        one.processes + other.processes,
        min(1.0, sum(shares)) if shares else None,
        members=(*one.members, *other.members),
    )
