"""The RDMA mode of the kernel: in the exclusive one an RDMA device is in one network namespace alone."""

from __future__ import annotations

from contextlib import suppress

from nodeagent.host.sysfs import SysfsError, Tree

_RDMA_MODE = "/sys/module/ib_core/parameters/netns_mode"
"""Y: the shared mode; N: the exclusive one, also after `rdma system set netns` (drivers/infiniband/core/device.c)."""


def rdma_exclusive(tree: Tree) -> bool:
    """Whether the kernel is in the exclusive RDMA mode. Without the module, or before Linux 5.2, it is not."""
    with suppress(SysfsError, OSError):
        return (tree.text(_RDMA_MODE) or "").strip() == "N"
    return False
