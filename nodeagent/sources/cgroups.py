"""Which container a process of the host is in, by its cgroup.

The runtimes (containerd, CRI-O, Docker) all end the path with the container's ID, 64 hexadecimal digits,
whatever the cgroup version and driver. The pid itself is no name of anything: it is forgotten at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeagent.host.gpu_driver import GpuProcess
from nodeagent.host.sysfs import SysfsError, Tree

HOST = "host"
"""Where those processes are put that are in no container."""
UNKNOWN = "unknown"
"""Where those are put whose cgroup cannot be read: ended, or in a process namespace that we do not see."""

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def container_of(cgroup: str) -> str | None:
    """From the text of ``/proc/PID/cgroup``; ``None`` outside of containers. The inner one of two: a pod's, on
    a node that is a container itself."""
    found = _ID.findall(cgroup)
    return str(found[-1]) if found else None


def memory_by_container(tree: Tree, processes: Iterable[GpuProcess]) -> dict[str, float]:
    """Bytes of GPU memory; a process whose memory the driver does not tell adds nothing."""
    used: dict[str, float] = {}
    for process in processes:
        try:
            text = tree.text(f"/proc/{process.pid}/cgroup")
        except SysfsError:
            text = None
        where = UNKNOWN if text is None else container_of(text) or HOST
        used[where] = used.get(where, 0.0) + (process.memory_bytes or 0)
    return used
