"""The parts of the agent for shares of GPU memory, as one value for those that show or report them."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.sharing.cgroup_limits import CgroupLimits
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.mps_watch import MpsWatch


class GpuSharing(NamedTuple):
    """The parts that keep containers within their shares, and compare use with grants."""

    accounting: GpuAccounting
    limits: CgroupLimits
    mps: MpsWatch
