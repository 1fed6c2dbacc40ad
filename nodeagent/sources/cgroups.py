"""The container of a process of the host, by its cgroup.

The runtimes (containerd, CRI-O, Docker) all end the path with the container's ID, 64 hexadecimal digits, with every
cgroup version and driver. The pid itself is not kept: the kernel reuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeagent.host.gpu_driver import GpuProcess
from nodeagent.host.sysfs import SysfsError, Tree

HOST = "host"
"""Stands for processes outside of containers."""
UNKNOWN = "unknown"
"""Stands for processes whose cgroup cannot be read: ended, or in a process namespace that the agent does not see."""

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def container_of(cgroup: str) -> str | None:
    """Read the container from the text of ``/proc/PID/cgroup``; ``None`` outside of containers. Of two IDs the inner
    one counts: the node may itself be a container."""
    ids = _ID.findall(cgroup)
    return str(ids[-1]) if ids else None


def memory_by_container(tree: Tree, processes: Iterable[GpuProcess]) -> dict[str, float]:
    """Sum the GPU memory in bytes. A process whose memory the driver does not report adds nothing."""
    used: dict[str, float] = {}
    for process in processes:
        try:
            text = tree.text(f"/proc/{process.pid}/cgroup")
        except SysfsError:
            text = None
        container = UNKNOWN if text is None else container_of(text) or HOST
        used[container] = used.get(container, 0.0) + (process.memory_bytes or 0)
    return used
