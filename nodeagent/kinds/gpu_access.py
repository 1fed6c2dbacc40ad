"""How a container gets GPUs, for every kind whose devices are GPUs or parts of GPUs.

The runtime identifies a GPU by its UUID, never by slice. Either a CDI device names it (the runtime reads the spec) or
``NVIDIA_VISIBLE_DEVICES`` does (this needs NVIDIA's own runtime). With the variable, a container that asks for two
GPU resources gets only one: the kubelet merges answers in random order and keeps the first of equal names. CDI
devices add up, so they are the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import ClassVar, Literal

from nodeagent.facts import cdi
from nodeagent.facts.affinity import affinity
from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.model import DeviceNode, Function, Gpu, Health, HostPaths, MigDevice, Snapshot
from nodeagent.kinds import DeviceKind, distance

_Strategy = Literal["cdi", "envvar"]

NVIDIA_CDI_KIND = "nvidia.com/gpu"
"""The kind of the specs that NVIDIA's container toolkit writes."""

CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Device nodes of the driver that all GPUs share. Some hosts lack some of them, and a missing node keeps a
container from starting: pass only nodes that exist."""


def selected(snapshot: Snapshot, uuids: frozenset[str] | None) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in snapshot.gpus if uuids is None or gpu.uuid in uuids)


class GpuKind(DeviceKind, frozen=True):
    """A resource of GPUs or of parts of them. ``gpus`` are the UUIDs to offer, ``None`` for all."""

    source: ClassVar[str] = "gpus"

    resource: str
    gpus: frozenset[str] | None = None
    strategy: _Strategy = "cdi"
    pass_device_nodes: bool = False
    cdi_kind: str = NVIDIA_CDI_KIND
    control_nodes: tuple[str, ...] = CONTROL_NODES

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return {gpu.uuid: f"GPU {gpu.index} ({gpu.uuid})" for gpu in selected(snapshot, self.gpus)}

    def selects(self, snapshot: Snapshot) -> bool:
        return bool(selected(snapshot, self.gpus))

    def cdi_specs(self, snapshot: Snapshot) -> Mapping[str, cdi.CdiDevices]:
        """Return the agent's spec of all GPUs, if ``cdi_kind`` is the agent's kind."""
        return {cdi.GPU_KIND: cdi_devices(snapshot)} if self.cdi_kind == cdi.GPU_KIND else {}

    def obstacle(self, snapshot: Snapshot) -> str | None:
        """Our own spec without the driver's library gives a container GPUs that no program can use."""
        ours = self.cdi_kind == cdi.GPU_KIND and self.strategy == "cdi"
        if not ours or not self.selects(snapshot) or has_driver(snapshot.paths):
            return None
        return NO_DRIVER

    def needed_files(self, snapshot: Snapshot) -> frozenset[str]:
        by_cdi = self.strategy == "cdi" and self.selects(snapshot)
        return frozenset(self.cdi_specs(snapshot)) if by_cdi else frozenset()

    def access(self, gpus: Sequence[Gpu], env: tuple[tuple[str, str], ...] = ()) -> Allocation:
        """Return the allocation of these GPUs. Without ``pass_device_nodes`` only the runtime adds device nodes.

        Otherwise the kubelet passes the nodes too. They then survive a reset of the container's device cgroup, such as
        a reload of systemd. A GPU without a known minor number is left to the runtime.
        """
        nodes: list[str] = []
        if self.pass_device_nodes and self.control_nodes:
            nodes = [f"/dev/nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
            nodes.extend(self.control_nodes)
        return self.access_named([gpu.uuid for gpu in gpus], nodes, env)

    def access_named(
        self, uuids: Sequence[str], nodes: Sequence[str], env: tuple[tuple[str, str], ...] = ()
    ) -> Allocation:
        """Return the allocation of GPUs or MIG devices, and of the device nodes that the kubelet passes."""
        if self.strategy == "envvar":
            env = (("NVIDIA_VISIBLE_DEVICES", ",".join(uuids)), *env)
        return Allocation(
            env=env,
            device_nodes=tuple(DeviceNode(node, node) for node in nodes),
            cdi_devices=tuple(f"{self.cdi_kind}={uuid}" for uuid in uuids) if self.strategy == "cdi" else (),
        )


def entry(gpu: Gpu, ids: tuple[str, ...], health: Health) -> Devices:
    """Return the devices of one GPU, on its NUMA node."""
    return Devices(gpu.uuid, ids, () if gpu.numa_node is None else (gpu.numa_node,), health)


NVIDIA_CAPS = "/proc/driver/nvidia-caps"
"""The folder with the numbers of the device nodes of MIG devices."""


def cdi_devices(snapshot: Snapshot) -> cdi.CdiDevices:
    """Return all GPUs and MIG devices for our own spec, and the driver files that every container with a GPU gets."""
    devices = {
        gpu.uuid: cdi.ContainerEdits(
            device_nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}", f"/dev/nvidia{gpu.minor}", "rw"),)
        )
        for gpu in snapshot.gpus
        if gpu.minor is not None
    }
    for gpu in snapshot.gpus:
        for device in gpu.mig_devices:
            if gpu.minor is not None and device.nodes:
                nodes = tuple(DeviceNode(node, node, "rw") for node in mig_nodes(device, gpu))
                devices[device.uuid] = cdi.ContainerEdits(device_nodes=nodes)
    return cdi.CdiDevices(devices, _driver_edits(snapshot.paths))


NO_DRIVER = (
    f"no {cdi.DRIVER_LIBRARY} was found, which each container needs: name the folder of the driver's libraries in "
    "gpu.driverRoot and mount it (docs/install.md), or let NVIDIA's container toolkit write a CDI spec (nvidia-ctk cdi "
    "generate)"
)


def has_driver(paths: HostPaths) -> bool:
    return any(mount.container_path.endswith(f"/{cdi.DRIVER_LIBRARY}") for mount in paths.driver_files)


def mig_nodes(device: MigDevice, gpu: Gpu) -> tuple[str, ...]:
    """Return the device nodes of a MIG device: that of its GPU, and those of its GPU and compute instance."""
    whole = () if gpu.minor is None else (f"/dev/nvidia{gpu.minor}",)
    return (*whole, *device.nodes)


def _driver_edits(paths: HostPaths) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(
        env=cdi.GPU_ENV,
        device_nodes=tuple(DeviceNode(node, node, "rw") for node in paths.gpu_nodes),
        mounts=paths.driver_files,
    )


def cluster(
    gpus: Sequence[Gpu], count: int, near: Sequence[Function] = (), pinned: Sequence[Gpu] = ()
) -> list[Gpu]:
    """Return ``count`` of the GPUs, ``pinned`` among them, whose worst hop between any two is the best.

    Distances nest (switch, host bridge, NUMA node): the GPUs nearest to one member are near to each other too. So
    this function tries every GPU as a start instead of every group. Ties go to the group nearest to ``near``, then
    to the lowest indexes.
    """
    pins = {gpu.uuid for gpu in pinned}
    rest = [gpu for gpu in gpus if gpu.uuid not in pins]
    starts = [tuple(pinned)] if pinned else [(gpu,) for gpu in rest]
    far = {gpu.uuid: distance(gpu, near) for gpu in gpus}

    def grown(start: tuple[Gpu, ...]) -> list[Gpu]:
        others = [gpu for gpu in rest if gpu not in start]
        others.sort(key=lambda gpu: (max(_hop(gpu, first) for first in start), far[gpu.uuid], gpu.index))
        return sorted([*start, *others[: count - len(start)]], key=lambda gpu: gpu.index)

    def cost(group: list[Gpu]) -> tuple[object, ...]:
        hops = [_hop(a, b) for a, b in combinations(group, 2)]
        remote, path = (sum(part) for part in zip(*(far[gpu.uuid] for gpu in group), strict=True))
        return max(hops, default=0), remote, path, sum(hops), [gpu.index for gpu in group]

    return min((grown(start) for start in starts), key=cost)


def _hop(a: Gpu, b: Gpu) -> int:
    return affinity(a.pci_path, a.numa_node, b.pci_path, b.numa_node)
