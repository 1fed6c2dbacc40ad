"""Find the cgroup of each container that holds a share. Version 2 of cgroups.

The podresources API names namespace, pod and container; a cgroup path has the UID of the pod and the ID of the
container. Two folders of the kubelet join them: the entries ``NAMESPACE_POD_UID`` of the logs of pods, and the links
``POD_NAMESPACE_CONTAINER-ID.log`` in the logs of containers, which it creates after the start of a container. Until
then, if only one container of a pod holds shares, each cgroup of the pod that no link names stands for it: the other
containers cannot open the GPU.

The paths are those of both cgroup drivers (``sources.cgroups``), below any root of the kubelet. CRI-O with crun runs a
container in a cgroup ``container`` below that with the ID, and keeps conmon in one of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.host.sysfs import SysfsScan, Tree
from nodeagent.sharing.shares import Share
from nodeagent.sources.cgroups import place_of

_ROOT = "/sys/fs/cgroup"
CONTAINER_LOGS = "/var/log/containers"
"""The kubelet's folder, which has no setting (``legacyContainerLogsDir``)."""
_DEPTH_MAX = 6
FOLDERS_MAX = 4096
_ELSEWHERE = frozenset({"system.slice", "user.slice", "machine.slice", "init.scope"})
_LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{8,64})\.log")

Container = tuple[str, str, str]
"""Namespace, pod and container."""


class FoundCgroups(NamedTuple):
    """The cgroups of one container. ``named``: the kubelet has named them; else they may be those of another one."""

    cgroups: tuple[str, ...] = ()
    named: bool = False


class ContainerCgroups:
    """One look at the cgroups of this node. Blocks."""

    def __init__(self, tree: Tree, pod_logs: str) -> None:
        self.tree, self.pod_logs = tree, pod_logs
        self.pods: Mapping[str, str] = dict(_pod_folders(tree))
        """The folder of each pod, by UID."""
        self.pods_of = self._pods_by_name()
        self.ids = self._container_ids()

    def of(self, shares: Iterable[Share]) -> dict[Container, FoundCgroups]:
        """Return the cgroups of each container, none for one that is not running."""
        containers = {(share.namespace, share.pod, share.container) for share in shares}
        in_pod = Counter(container[:2] for container in containers)
        return {
            container: self._cgroups(container, alone=in_pod[container[:2]] == 1) for container in containers
        }

    def folders_of(self, shares: Iterable[Share]) -> set[str]:
        """Return the folders in which the cgroups of these containers appear."""
        pods = {(share.namespace, share.pod) for share in shares}
        return {self.pods[uid] for pod in pods for uid in self.pods_of.get(pod, ()) if uid in self.pods}

    def _cgroups(self, container: Container, *, alone: bool) -> FoundCgroups:
        own, foreign = set(self.ids.get(container, ())), set()
        for other, ids in self.ids.items():
            if other[:2] == container[:2] and other != container:
                foreign.update(ids)
        children = [
            (f"{self.pods[uid]}/{name}", id_)
            for uid in self.pods_of.get(container[:2], ())
            for name, id_ in self._children(uid)
        ]
        if named := tuple(self._leaf(path) for path, id_ in children if _among(id_, own)):
            return FoundCgroups(named, named=True)
        unnamed = (self._leaf(path) for path, id_ in children if alone and not _among(id_, foreign))
        return FoundCgroups(tuple(unnamed))

    def _children(self, uid: str) -> Iterator[tuple[str, str]]:
        """Yield the name and the container's ID of each cgroup of a pod."""
        folder = self.pods.get(uid)
        for name in () if folder is None else _subfolders(self.tree, folder):
            id_ = place_of(f"0::{name}").container
            if id_ is not None and "conmon" not in name:
                yield name, id_

    def _leaf(self, folder: str) -> str:
        return f"{folder}/container" if self.tree.exists(f"{folder}/container/cgroup.procs") else folder

    def _pods_by_name(self) -> dict[tuple[str, str], list[str]]:
        """The UIDs of each pod. The logs of an earlier pod of the same name may still be there."""
        pods: dict[tuple[str, str], list[str]] = {}
        for entry in SysfsScan(self.tree).names(self.pod_logs):
            parts = entry.split("_")
            if len(parts) == 3:
                pods.setdefault((parts[0], parts[1]), []).append(parts[2])
        return pods

    def _container_ids(self) -> dict[Container, list[str]]:
        """The IDs of each container, of those that have ended too. The kubelet cuts names of 255 characters."""
        ids: dict[Container, list[str]] = {}
        for entry in SysfsScan(self.tree).names(CONTAINER_LOGS):
            if match := _LOG.fullmatch(entry):
                ids.setdefault((match[2], match[1], match[3]), []).append(match[4])
        return ids


def _among(id_: str, ids: Iterable[str]) -> bool:
    """Whether an ID is one of these, which may be cut."""
    return any(id_.startswith(known) for known in ids)


def _pod_folders(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the UID and the folder of each pod's cgroup."""
    folders, looked = [(_ROOT, 0)], 0
    while folders and looked < FOLDERS_MAX:
        folder, depth = folders.pop()
        looked += 1
        for name in _subfolders(tree, folder):
            path = f"{folder}/{name}"
            place = place_of(f"0::{path.removeprefix(_ROOT)}")
            if place.container is not None or (depth == 0 and name in _ELSEWHERE):
                continue
            if place.pod is not None:
                yield place.pod, path
            elif depth < _DEPTH_MAX:
                folders.append((path, depth + 1))


def _subfolders(tree: Tree, folder: str) -> tuple[str, ...]:
    """The cgroups in a cgroup."""
    return SysfsScan(tree).read(tree.subfolders, folder) or ()
