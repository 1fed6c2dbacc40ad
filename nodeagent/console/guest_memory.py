"""A verb that runs as a guest in the container of a daemon must not take the daemon's memory.

When a container reaches its limit, the kernel ends every process in it (cgroup v2, ``memory.oom.group``, which the
kubelet sets), so the guest has a limit of its own below that of the container. ``kubectl nodeagent`` sets
NODEAGENT_GUEST for the verbs of the fabric, which run in the pod of the controller or of an agent.
"""

from __future__ import annotations

import resource
from pathlib import Path

_CGROUP = Path("sys/fs/cgroup")
_MINIMUM = 64 << 20
"""Bytes that a verb has in any case: it starts with half of them."""


def stay_within(root: Path = Path("/")) -> int | None:
    """Limit this process to half of the memory that the container has left, in bytes: what it reads from stdin is kept
    in memory beside it. Return the limit; ``None``: the container has none that can be read."""
    try:
        most, used = (int((root / _CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # cgroup v1, or "max": no limit
        return None
    limit = max((most - used) // 2, _MINIMUM)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def leave_limit() -> None:
    """Lift the limit of this process, which ends: what it says takes a little memory too."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


OUT_OF_MEMORY = (
    "this container has no memory for so many objects: raise its limit (controller.resources of the chart), or run "
    "nodeagent on a machine of your own with your kubeconfig"
)
