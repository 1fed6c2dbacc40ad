"""The use of GPUs by processes, as it was measured. It changes at each reading, so it is in no snapshot."""

from __future__ import annotations

import msgspec


class NamedProcess(msgspec.Struct, frozen=True):
    """A process on a GPU. ``name`` is the kernel's short name of it, escaped."""

    pid: int
    name: str
    memory_bytes: int


class PodUse(msgspec.Struct, frozen=True):
    """The use of one GPU by the processes of one pod.

    ``pod`` is the pod's UID, and ``namespace`` is empty, if the kubelet's log folder does not name it. ``utilization``
    is its part of the time of the SMs, 0 to 1. ``members`` are its processes by pid.
    """

    namespace: str
    pod: str
    memory_bytes: int
    processes: int
    utilization: float | None = None
    uid: str = ""
    members: tuple[NamedProcess, ...] = ()


class GpuUsage(msgspec.Struct, frozen=True):
    """The users of one GPU: pods by namespace and name, other processes by pid."""

    pods: tuple[PodUse, ...] = ()
    outside: tuple[NamedProcess, ...] = ()
