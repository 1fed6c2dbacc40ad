"""How a container is given GPUs, for every kind whose devices are GPUs or parts of them.

Two ways to name a GPU to the runtime, always by its UUID and never by slice: a CDI device (the runtime reads
the spec, no environment is involved) or ``NVIDIA_VISIBLE_DEVICES`` (needs NVIDIA's own runtime). With the
latter, a container that asks for two GPU resources has one of them ignored: the kubelet merges answers in
random order and keeps the first of equal names. CDI devices add up, which is why they are the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from nodeagent.affinity import affinity
from nodeagent.kinds import distance
from nodeagent.model import Allocation, DeviceNode, Function, Gpu, Holding, Snapshot

Strategy = Literal["cdi", "envvar"]

CDI_KIND = "nvidia.com/gpu"
"""The kind of the specs that NVIDIA's container toolkit writes."""

CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Device nodes of the driver that all GPUs share. Not every host has all of them, and a node that is not
there keeps a container from starting: pass those that are."""


def selected(snapshot: Snapshot, uuids: frozenset[str] | None) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in snapshot.gpus if uuids is None or gpu.uuid in uuids)


def held_elsewhere(snapshot: Snapshot, resource: str) -> dict[str, Holding]:
    """GPUs, by UUID, that containers hold through any other resource, this agent's or another plugin's.

    It happens after a GPU has moved from one resource to another while a pod still had it, and where the
    vendor's device plugin offers the same GPUs. Ids are ``<uuid>`` or ``<uuid>::<n>`` in all of them.
    """
    uuids = {gpu.uuid for gpu in snapshot.gpus}
    return {
        uuid: holding
        for holding in snapshot.holdings or ()
        if holding.resource != resource
        for uuid in (device.partition("::")[0] for device in holding.device_ids)
        if uuid in uuids
    }


def grant(
    gpus: Sequence[Gpu],
    *,
    strategy: Strategy,
    cdi_kind: str,
    control_nodes: Sequence[str],
    env: tuple[tuple[str, str], ...] = (),
) -> Allocation:
    """``control_nodes`` empty means that the runtime alone brings the device nodes.

    Otherwise the kubelet knows them too and they survive what resets a container's device cgroup, such as
    a reload of systemd. A GPU whose minor number the driver does not tell is left to the runtime.
    """
    uuids = [gpu.uuid for gpu in gpus]
    nodes: list[str] = []
    if control_nodes:
        nodes = [f"/dev/nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
        nodes.extend(control_nodes)
    if strategy == "envvar":
        env = (("NVIDIA_VISIBLE_DEVICES", ",".join(uuids)), *env)
    return Allocation(
        env=env,
        device_nodes=tuple(DeviceNode(node, node) for node in nodes),
        cdi_devices=tuple(f"{cdi_kind}={uuid}" for uuid in uuids) if strategy == "cdi" else (),
    )


def cluster(
    gpus: Sequence[Gpu], count: int, near: Sequence[Function] = (), pinned: Sequence[Gpu] = ()
) -> list[Gpu]:
    """``count`` of the GPUs, the pinned ones among them, with the best worst hop between any two.

    Nearness nests (switch, host bridge, NUMA node), so the nearest to one member are the nearest to each
    other, and trying every GPU as that member finds the best group without trying every group. Ties go to
    the group nearest to ``near``, then to the lowest indexes.
    """
    pins = {gpu.uuid for gpu in pinned}
    rest = [gpu for gpu in gpus if gpu.uuid not in pins]
    starts = [tuple(pinned)] if pinned else [(gpu,) for gpu in rest]
    far = {gpu.uuid: distance(gpu, near) for gpu in gpus}

    def grown(start: tuple[Gpu, ...]) -> list[Gpu]:
        others = [gpu for gpu in rest if gpu not in start]
        others.sort(key=lambda gpu: (max(_hop(gpu, one) for one in start), far[gpu.uuid], gpu.index))
        return sorted([*start, *others[: count - len(start)]], key=lambda gpu: gpu.index)

    def cost(group: list[Gpu]) -> tuple[object, ...]:
        hops = [_hop(a, b) for a, b in combinations(group, 2)]
        strangers, path = (sum(part) for part in zip(*(far[gpu.uuid] for gpu in group), strict=True))
        return max(hops, default=0), strangers, path, sum(hops), [gpu.index for gpu in group]

    return min((grown(start) for start in starts), key=cost)


def _hop(a: Gpu, b: Gpu) -> int:
    return affinity(a.pci_path, a.numa_node, b.pci_path, b.numa_node)
