"""A share of a GPU through MPS: when it can be granted, and what the container gets. Pure.

One daemon serves one GPU, and a container connects to one daemon. Several whole GPUs are granted without MPS, because
they are not shared. The limits are in the environment of the client: MPS enforces them
for a program that connects to the daemon, and a program may change its own environment (docs/gpu-memory.md).
"""

from __future__ import annotations

import msgspec

from nodeagent.facts.model import Gpu, Health, Mount, Reason, Snapshot, State

MPS_FOLDER = "mps"
"""Of the daemons, below ``health.stateDirectory``."""
SHARED_MEMORY = "/dev/shm/nodeagent-mps"  # noqa: S108 - part of the host's tmpfs, that of the daemons
"""The folder of the host that the daemons and their clients have as /dev/shm."""

NO_DAEMON = "it has no MPS daemon yet: `nodeagent mps` starts it (components/gpu-mps)"


class MpsShares(msgspec.Struct, frozen=True):
    """``folder`` is that of the daemons on the host. ``clients``: containers per GPU. ``by_share``: a container may use
    the same part of the SMs as of the memory."""

    folder: str
    clients: int = 48
    by_share: bool = False


def mps_health(gpu: Gpu, snapshot: Snapshot) -> Health:
    """Return the health of the slices of a GPU: without its daemon no program can use them."""
    if not gpu.health.allocatable:
        return gpu.health
    obstacle = dict(snapshot.mps_obstacles).get(gpu.uuid, NO_DAEMON)
    if not obstacle:
        return gpu.health
    return Health(State.UNHEALTHY, (Reason("mps_daemon", obstacle), *gpu.health.reasons), allocatable=False)


def full(resource: str, gpu: Gpu, shares: MpsShares, snapshot: Snapshot) -> str | None:
    """Return why no further container can share a GPU, if none can."""
    containers = {
        (holding.namespace, holding.pod, holding.container)
        for holding in snapshot.holdings or ()
        if holding.resource == resource
        and any(id_.partition("::")[0] == gpu.uuid for id_ in holding.device_ids)
    }
    if len(containers) < shares.clients:
        return None
    return f"{gpu.uuid} has {len(containers)} containers, and gpu.mps.clients is {shares.clients}"


def without_new_clients(of_gpu: Health, why: str) -> Health:
    """The health of the slices that no container holds, on a GPU that has all its clients: no fault, so the state
    stays."""
    reason = Reason("mps_clients", why, warning=True)
    return msgspec.structs.replace(of_gpu, reasons=(reason, *of_gpu.reasons), allocatable=False)


def environment(gpu: Gpu, mib: int, part: float, shares: MpsShares) -> tuple[tuple[str, str], ...]:
    """Return the variables of a container with ``part`` of a GPU. Device 0 is the only one that it sees."""
    variables = [
        ("CUDA_MPS_PIPE_DIRECTORY", _pipes(gpu, shares)),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={mib}M"),
    ]
    if shares.by_share:
        variables.append(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", f"{max(1, min(100, round(100 * part)))}"))
    return tuple(variables)


def mounts(gpu: Gpu, shares: MpsShares) -> tuple[Mount, ...]:
    """Return the sockets of the daemon, and the memory that it shares with its clients."""
    pipes = _pipes(gpu, shares)
    return (Mount(pipes, pipes), Mount(SHARED_MEMORY, "/dev/shm"))  # noqa: S108 - the container's


def _pipes(gpu: Gpu, shares: MpsShares) -> str:
    return f"{shares.folder}/{gpu.uuid}/pipe"
