"""The levels that keep programs within their share of GPU memory, and what a node needs for each.

``env``: NVIDIA's container toolkit makes a hard limit of ``NVIDIA_GPU_MEMORY_REQUEST`` and ``_LIMIT`` from 1.20.1 on,
with driver 615 and cgroup v2. Older toolkits ignore them. A toolkit that reads them on a host
without that support refuses to start the container, so they are set only where driver and cgroups have it. The version
of the toolkit itself is not visible.

``nvml-limits``: the agent sets the same limit itself (``nodeagent.limits``). It sets the variables too, because a
toolkit that reads them sets the limit before the first program of the container runs. ``auto`` tries it where nothing
is in the way, and names it only when the driver has kept a limit: a version and a mount do not show that it does.

``mps``: ``kinds.mps_clients``. A daemon that does not run is no missing part: its pod may start after the agent. Until
then the devices are Unhealthy.

``auto`` never selects ``mps`` or ``evict``: an upgrade of the agent must neither end pods nor make programs depend on
one daemon.
"""

from __future__ import annotations

import re
from typing import Literal

from nodeagent.facts.model import Snapshot

EnforcementLevel = Literal["none", "env", "nvml-limits", "mps", "evict"]
Enforcement = Literal["auto", "none", "env", "nvml-limits", "mps", "evict"]

LIMITS_DRIVER = 615
"""The first driver with memory limits (NVIDIA, MPS documentation, section "Memory Partitioning")."""


def missing_for_env(snapshot: Snapshot) -> str | None:
    """Return what the node lacks for hard limits by the container toolkit; ``None`` if it has all."""
    major = re.match(r"\d{1,5}", snapshot.gpu_driver or "")
    if major is None:
        return "the version of the GPU driver is not known"
    if int(major[0]) < LIMITS_DRIVER:
        return f"driver {snapshot.gpu_driver} is older than {LIMITS_DRIVER}"
    return "the host has no cgroup v2" if snapshot.limit_support.cgroup2 is False else None


def lacking_for(enforcement: Enforcement, snapshot: Snapshot) -> str | None:
    """Return why a node cannot enforce as configured; ``None`` if it can."""
    support = snapshot.limit_support
    match enforcement:
        case "env":
            return missing_for_env(snapshot)
        case "nvml-limits":
            return missing_for_env(snapshot) or support.cgroup_obstacle or None
        case "evict":
            return support.hidden_processes or None
    return None


def level_of(enforcement: Enforcement, snapshot: Snapshot) -> EnforcementLevel:
    """Return the level in force on this node."""
    if enforcement != "auto":
        return enforcement
    if missing_for_env(snapshot) is not None:
        return "none"
    # Where it is not known whether the agent may set limits (a captured machine), it does not.
    limits = snapshot.limit_support.cgroup_obstacle == "" and snapshot.limits_kept
    return "nvml-limits" if limits else "env"


def sets_variables(enforcement: Enforcement, snapshot: Snapshot) -> bool:
    """Whether a container gets the variables of the toolkit."""
    return enforcement not in ("none", "mps") and missing_for_env(snapshot) is None
