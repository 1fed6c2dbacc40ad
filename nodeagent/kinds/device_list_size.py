"""The size of a device list on the wire and in the status of a pod, and the smallest slice that fits both.

The kubelet's gRPC client accepts messages up to 4 MiB. A longer list removes the whole resource: the call fails with
ResourceExhausted, at each retry again. The limit here is 3 MiB with every device Unhealthy, the longer word: a list
must also fit on the day that the GPU fails.

From Kubernetes 1.36 on, the kubelet writes each device of a pod into the status of the pod
(``allocatedResourcesStatus``). etcd refuses a larger request, and the status of that pod is never written again. Only
a pod that holds very many slices reaches this limit, so small slices are a remark and not a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from nodeagent.config.file_errors import Conflict
from nodeagent.config.formats import index_range
from nodeagent.kinds.resource_settings import GpuMemResource, ResourceSettings

KUBELET_LIMIT = 4 << 20
LIMIT = 3 << 20
STATUS_LIMIT = 3 << 19
"""Bytes of one request that etcd accepts: 1.5 MiB (``--max-request-bytes``)."""
STATUS_REST = 128 << 10
"""Bytes left for the rest of the pod."""
STATUS_ENTRY = 85
"""Bytes of one device in the status of a pod, as seen with a kubelet 1.36.2: ID, health and JSON around them."""
POD_DEVICES_MAX = (STATUS_LIMIT - STATUS_REST) // STATUS_ENTRY
ASSUMED_MIB: tuple[int, ...] = (81559,) * 8
"""The GPUs of a DGX H100 with the memory that NVML reports, assumed where no machine is known."""
_PREFIX_LENGTH = len("GPU-00000000-0000-0000-0000-000000000000::")
_NUMA_ASSUMED = (1,)  # protobuf omits 0; any other node below 128 has the longest encoding


def device_size(id_length: int, numa_nodes: Sequence[int] = (), *, healthy: bool = False) -> int:
    """Bytes of one device in a ``v1beta1.ListAndWatchResponse``, with its tag and length.

    ``Device{ID = 1, health = 2, topology = 3}`` with ``TopologyInfo{nodes = 1}`` of ``NUMANode{ID = 1}``;
    proto3 omits a zero and an empty string. All field numbers are below 16: a tag is one byte.
    """
    nodes = sum(_field(1 + _varint(node) if node else 0) for node in numa_nodes)
    body = _field(id_length) if id_length else 0
    body += _field(len("Healthy" if healthy else "Unhealthy"))
    body += _field(nodes) if numa_nodes else 0
    return _field(body)


def slices(memory_mib: int, reserved_mib: int, slice_mib: int) -> int:
    """Number of slices that a GPU offers."""
    return max(0, memory_mib - reserved_mib) // slice_mib


def slices_size(counts: Iterable[int]) -> int:
    """Bytes of a list with ``counts`` slices per GPU: ``GPU-<uuid>::0`` to ``::<count - 1>``."""
    total = 0
    for count, gpus in Counter(counts).items():  # most GPUs of a node are alike
        first, digits = 0, 1
        while first < count:  # all IDs of one length
            end = min(count, 10**digits)
            total += gpus * (end - first) * device_size(_PREFIX_LENGTH + digits, _NUMA_ASSUMED)
            first, digits = end, digits + 1
    return total


def smallest_slice(reserved_mib: int, memories_mib: Sequence[int]) -> int:
    """The smallest ``sliceMiB`` whose list fits."""
    return _smallest(reserved_mib, memories_mib, lambda counts: slices_size(counts) <= LIMIT)


def _smallest(reserved_mib: int, memories_mib: Sequence[int], fits: Callable[[Sequence[int]], bool]) -> int:
    """Binary search: a larger slice never makes a longer list."""
    low, high = 1, max(memories_mib, default=1)
    while low < high:
        middle = (low + high) // 2
        if fits([slices(memory, reserved_mib, middle) for memory in memories_mib]):
            high = middle
        else:
            low = middle + 1
    return low


def status_remark(slice_mib: int, reserved_mib: int, memories_mib: Sequence[int]) -> str | None:
    """Return a sentence if one pod may hold so many slices that its status is too large; ``None`` if it cannot."""
    count = sum(slices(memory, reserved_mib, slice_mib) for memory in memories_mib)
    if count <= POD_DEVICES_MAX:
        return None
    least = _smallest(reserved_mib, memories_mib, lambda counts: sum(counts) <= POD_DEVICES_MAX)
    return (
        f"slices of {slice_mib} MiB make {count} devices; the kubelet (1.36) writes {STATUS_ENTRY} bytes for each "
        f"device into the pod's status, and etcd refuses the status of a pod with more than {POD_DEVICES_MAX}; "
        f"sliceMiB: {least} is the smallest with which one pod may hold all of them"
    )


def status_remarks(
    resources: Sequence[ResourceSettings], gpu_memories_mib: Sequence[int] = ASSUMED_MIB
) -> Iterator[str]:
    """Yield a sentence for each entry of kind gpu-mem whose slices may be too many for the status of one pod."""
    for entry in resources:
        if isinstance(entry, GpuMemResource) and entry.mode == "devicePlugin":
            selected = _selected(entry, gpu_memories_mib)
            if (remark := status_remark(entry.slice_mib, entry.reserved_mib, selected)) is not None:
                yield f"{entry.name}: {remark}"


def list_refusal(
    slice_mib: int,
    reserved_mib: int,
    memories_mib: Sequence[int],
    machine: str = "this machine",
    *,
    assumed: bool = False,
) -> str | None:
    """The reason why a resource cannot be offered on its GPUs, or ``None``. ``machine`` names the machine.

    ``assumed`` GPUs without room for a slice are no reason: the real GPUs may be larger.
    """
    counts = [slices(memory, reserved_mib, slice_mib) for memory in memories_mib]
    if memories_mib and not any(counts) and not assumed:
        return (
            f"no GPU holds a slice of {slice_mib} MiB beside {reserved_mib} MiB reserved: "
            f"the largest has {max(memories_mib)} MiB ({machine})"
        )
    if (size := slices_size(counts)) <= LIMIT:
        return None
    return (
        f"{slice_mib} MiB makes {sum(counts)} devices on {len(counts)} GPUs ({machine}), a list of "
        f"{size} bytes; the kubelet refuses more than {KUBELET_LIMIT}, the limit here is {LIMIT}; sliceMiB: "
        f"{smallest_slice(reserved_mib, memories_mib)} is the smallest that fits"
    )


def size_conflicts(
    resources: Sequence[ResourceSettings], gpu_memories_mib: Sequence[int] | None = None
) -> Iterator[Conflict]:
    """Entries of kind gpu-mem whose device list the kubelet would refuse.

    The memories are those of the node's GPUs in the driver's order, or ``None`` where no machine is known. Without
    GPUs only ``indexes`` and the number of ``uuids`` can be applied. The agent has the facts of the GPUs and
    calls ``list_refusal`` for each kind.
    """
    assumed = gpu_memories_mib is None
    machine = f"assumed: {len(ASSUMED_MIB)} GPUs of {ASSUMED_MIB[0]} MiB" if assumed else "this machine"
    memories = ASSUMED_MIB if gpu_memories_mib is None else gpu_memories_mib
    for i, resource in enumerate(resources):
        if isinstance(resource, GpuMemResource) and resource.mode == "devicePlugin":
            selected = _selected(resource, memories)
            lists = [[memory] for memory in selected] if "{gpu}" in resource.name else [selected]
            complaints = (
                list_refusal(resource.slice_mib, resource.reserved_mib, gpus, machine, assumed=assumed)
                for gpus in lists
            )
            if (complaint := next(filter(None, complaints), None)) is not None:
                yield Conflict((("resources", i, "sliceMiB"),), complaint)


def _selected(resource: GpuMemResource, memories: Sequence[int]) -> list[int]:
    select = resource.select
    wanted = [index_range(text) for text in select.indexes]
    kept = [m for i, m in enumerate(memories) if not wanted or any(i in indexes for indexes in wanted)]
    if select.uuids:
        kept = sorted(kept, reverse=True)[: len(select.uuids)]
    return kept


def _field(length: int) -> int:
    """A length-delimited field with a tag of one byte."""
    return 1 + _varint(length) + length


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
