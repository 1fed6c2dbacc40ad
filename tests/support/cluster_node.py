"""A node with some links, GPUs and pods, as facts, for the tests of what the agent writes to the API server."""

from __future__ import annotations

from msgspec.structs import replace

from nodeagent.cluster.held_pods import HeldPods
from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Function, Gpu, Health, Holding, Reason, Snapshot, State

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)
DEGRADED = Health(State.DEGRADED, (Reason("speed_reduced", "200 Gb/s of 400 Gb/s"),))
WARNED = Health(State.HEALTHY, (Reason("optics_temperature", "71 °C of 70 °C", warning=True),))
MISCABLED = Health(State.MISCABLED, (Reason("miscabled", "is on leaf02, planned leaf01"),))
UNKNOWN = Health(State.UNKNOWN, (Reason("stale", "no word for 40 s"),))
GPU_LOST = Health(
    State.UNHEALTHY, (Reason("xid", "XID 79: the GPU has fallen off the bus"),), allocatable=False
)

GPU_UNKNOWN = Health(State.UNKNOWN, (Reason("driver_silent", "hangs"), *GPU_LOST.reasons), allocatable=False)


def pf(n, health=None):
    return Function(
        f"0000:1{n}:00.0", "15b3", "1021", "mlx5_core", f"ens{n}np0", "ethernet",
        None, None, None, 0, (), num_vfs=1, total_vfs=8, health=health or Health(),
    )  # fmt: skip


def vf(n, health=None):
    return replace(
        pf(n, health), pci_address=f"0000:1{n}:00.1", netdev=None, parent=f"0000:1{n}:00.0", vf_index=0
    )


def gpu(n, health=None):
    return Gpu(f"GPU-{n}", n, n, "H100", f"0000:2{n}:00.0", 81559, 0, health=health or Health())


def holding(pod, resource, *ids):
    return Holding("default", pod, "main", resource, tuple(ids))


def running_pod(name, uid=None, node="gpu-0", namespace="default"):
    """A pod that the kubelet of the node runs."""
    meta = {"name": name, "namespace": namespace} | ({} if uid is None else {"uid": uid})
    status = {"phase": "Running", "startTime": "2026-11-28T12:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status}


def held_pods(client, inventory, node="gpu-0"):
    """The UIDs of pods, with a kubelet that lists what the facts say."""

    async def listed():
        return inventory.snapshot.holdings or ()

    return HeldPods(client, node, listed)


def offered(snapshot):
    """Two resources: the VF of each PF, and two slices of each GPU."""
    vfs = [Devices(f.parent, (f.pci_address,), (0,), f.health) for f in snapshot.functions if f.parent]
    slices = [Devices(g.uuid, (f"{g.uuid}::0", f"{g.uuid}::1"), (0,), g.health) for g in snapshot.gpus]
    return [("x/nic", vfs), ("x/mem", slices)]


HELD = (
    holding("a", "x/mem", "GPU-0::0", "GPU-0::1"),
    holding("b", "x/nic", "0000:11:00.1"),
    holding("c", "y/z", "1"),
)


def snapshot(links=(), gpus=(), holdings=HELD, stale=()):
    functions = [one for n, health in enumerate(links) for one in (pf(n, health), vf(n, health))]
    return Snapshot(
        functions=tuple(sorted(functions, key=lambda f: f.pci_address)),
        gpus=tuple(gpu(n, health) for n, health in enumerate(gpus)),
        holdings=holdings,
        stale_sources=stale,
    )


def publish(inventory, made):
    inventory.publish("pci", functions=made.functions)
    inventory.publish("gpus", gpus=made.gpus)
    inventory.publish("pods", holdings=made.holdings)
