"""The parts of the host, and the rights of the agent, that limits of GPU memory need."""

from __future__ import annotations

import re

from nodeagent.base.file_writing import unwritable_because
from nodeagent.facts.model import LimitSupport
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.sources.gpu_users import hidden_processes
from nodeagent.sources.machine_access import is_recorded

CGROUPS = "/sys/fs/cgroup"
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def limit_support(tree: Tree, pod_logs: str) -> LimitSupport:
    """Return what is missing for each level. Of a captured machine the rights of its agent are not known."""
    recorded = is_recorded(tree)
    cgroup2 = tree.exists(f"{CGROUPS}/cgroup.controllers") or (None if recorded else False)
    return LimitSupport(
        cgroup2,
        hidden_processes(tree, pod_logs) or "",
        None if recorded else cgroup_obstacle(tree, pod_logs) or "",
    )


def cgroup_obstacle(tree: Tree, pod_logs: str) -> str | None:
    """Return why the agent cannot limit the cgroups of containers; ``None`` if it can."""
    try:
        tree.names(pod_logs)
        # The driver accepts limits from a process with this capability only ("requires root/admin permissions").
        status = Tree().text("/proc/self/status") or ""
        why = unwritable_because(tree.path(CGROUPS))
    except SysfsError as error:
        return str(error)
    except OSError as error:
        return f"{CGROUPS}: {error.strerror}"
    if why is not None:
        return f"{CGROUPS}: {why}; overlays/gpu-memory-limits mounts the host's cgroups"
    if (
        not int((re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M) or ["", "0"])[1], 16) >> _CAP_SYS_ADMIN
        & 1
    ):
        return "the agent lacks CAP_SYS_ADMIN; overlays/gpu-memory-limits adds it"
    return None if tree.exists(pod_logs) else f"{pod_logs} is not there: it has the names of the pods"
