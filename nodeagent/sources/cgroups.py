"""The container and the pod of a process, from the text of ``/proc/PID/cgroup``.

The runtimes (containerd, CRI-O, Docker) end the path with the container's ID, 64 hexadecimal digits. The kubelet's
part of the path contains the pod's UID, written in one of two ways:

* driver ``systemd``: ``/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/`` and then
  ``cri-containerd-ID.scope`` (``crio-ID.scope`` with CRI-O), with ``_`` for each ``-`` of the UID
* driver ``cgroupfs``: ``/kubepods/burstable/podUID/ID`` (``crio-ID`` with CRI-O)

In version 1 of cgroups each controller has a line with such a path. A reader in a cgroup namespace of its own gets
paths that begin with ``/../``; the end is the same. The UID of a static pod has no dashes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?=[./]|$)", re.M
)


class CgroupPlace(NamedTuple):
    """The ID of a container and the UID of a pod; ``None`` outside of them."""

    container: str | None
    pod: str | None


def pods_of(cgroup: str) -> tuple[str, ...]:
    """Return the UIDs of the pods in a path, the outermost first. Only one of them is a pod of this node's kubelet: a
    container may be a node, and may make cgroups of any name below its own."""
    return tuple(dict.fromkeys(uid.replace("_", "-") for uid in _POD.findall(cgroup)))


def place_of(cgroup: str) -> CgroupPlace:
    """Read the container and the pod. Of two, the inner one counts: the node may itself be a container.

    >>> place_of("0::/kubepods/pod0a1b2c3d-0000-4000-8000-00000000000f/" + 64 * "e").pod
    '0a1b2c3d-0000-4000-8000-00000000000f'
    """
    containers, pods = _ID.findall(cgroup), _POD.findall(cgroup)
    return CgroupPlace(containers[-1] if containers else None, pods[-1].replace("_", "-") if pods else None)
