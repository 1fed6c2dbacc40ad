"""The cgroups and log folders of a node, as each runtime and each cgroup driver of the kubelet makes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

FILES = ("cgroup.procs", "cgroup.controllers", "cpu.max", "memory.max")


class Layout(NamedTuple):
    """``systemd``: the kubelet's cgroup driver; else cgroupfs. ``below``: crun runs the container in a cgroup below
    its own."""

    systemd: bool
    crio: bool
    below: bool = False

    @property
    def title(self) -> str:
        runtime = "crio-crun" if self.below else "crio" if self.crio else "containerd"
        return f"{'systemd' if self.systemd else 'cgroupfs'}-{runtime}"


LAYOUTS = (
    Layout(systemd=True, crio=False),
    Layout(systemd=True, crio=True),
    Layout(systemd=True, crio=True, below=True),
    Layout(systemd=False, crio=False),
    Layout(systemd=False, crio=True),
)


class Node:
    """A root folder with the cgroups of pods. ``dmem``: the kernel has the controller, and each cgroup its files."""

    def __init__(self, root: Path, layout: Layout, *, dmem: bool = True) -> None:
        self.root, self.layout, self.dmem = root, layout, dmem
        self.cgroups, self.logs = root / "sys/fs/cgroup", root / "var/log/pods"
        self.links = root / "var/log/containers"
        for folder in (self.logs, self.links, self.cgroups):
            folder.mkdir(parents=True)
        for name in FILES:
            (self.cgroups / name).touch()
        self.make("system.slice/kubelet.service")
        self.make("kubepods.slice" if layout.systemd else "kubepods")
        self.count = 0

    def make(self, path: str) -> Path:
        folder = self.cgroups
        for part in Path(path).parts:
            folder /= part
            if not folder.is_dir():
                folder.mkdir()
                for name in (*FILES, *(("dmem.max", "dmem.min", "dmem.current") if self.dmem else ())):
                    (folder / name).touch()
        return folder

    def remove(self, path: Path) -> None:
        """At once, as the kernel does: file by file the driver would write into a folder that is half gone."""
        shutil.rmtree(path.rename(self.root / "removed"))

    def pod(self, namespace: str, name: str, qos: str = "burstable") -> Pod:
        self.count += 1
        uid = f"0a1b2c3d-4e5f-4a6b-8c7d-{self.count:012x}"
        middle = f"{qos}/" if qos else ""
        path = f"kubepods/{middle}pod{uid}"
        if self.layout.systemd:
            dashed = f"{qos}-" if qos else ""
            parent = f"kubepods-{qos}.slice/" if qos else ""
            path = f"kubepods.slice/{parent}kubepods-{dashed}pod{uid.replace('-', '_')}.slice"
        (self.logs / f"{namespace}_{name}_{uid}").mkdir()
        pod = Pod(self, namespace, name, uid, path)
        pod.start("POD", link=False)  # the sandbox, for which the kubelet makes no link
        return pod

    def reservations(self) -> str:
        """The soft limits that are left above the cgroups of containers."""
        tops = (path / "dmem.min" for path in (self.cgroups / "kubepods.slice", self.cgroups / "kubepods"))
        return "".join(path.read_text() for path in tops if path.exists())

    def lose_limits(self) -> None:
        """The driver is loaded again: its regions of the controller are new."""
        for path in self.cgroups.rglob("dmem.m*"):
            path.write_text("")


class Pod:
    def __init__(self, node: Node, namespace: str, name: str, uid: str, path: str) -> None:
        self.node, self.namespace, self.name, self.uid, self.path = node, namespace, name, uid, path
        self.running: dict[str, Path] = {}
        """The cgroup of each container's processes."""
        self.ended = False
        node.make(path)

    def start(self, container: str, *, link: bool = True) -> Path:
        node, layout = self.node, self.node.layout
        node.count += 1
        id_ = f"{node.count:064x}"
        name = f"{'crio-' if layout.crio else 'cri-containerd-' if layout.systemd else ''}{id_}"
        if layout.systemd:
            name += ".scope"
        if layout.crio and layout.systemd and container != "POD":
            node.make(f"{self.path}/crio-conmon-{id_}.scope")
        below = "/container" if layout.below and container != "POD" else ""
        self.running[container] = node.make(f"{self.path}/{name}{below}")
        if link:
            self.link(container)
        return self.running[container]

    def link(self, container: str) -> None:
        """Make the kubelet's link, which comes after the start."""
        path = self.running[container]
        scope = path.parent if path.name == "container" else path
        id_ = scope.name.removesuffix(".scope").rpartition("-")[2]
        folder = f"{self.namespace}_{self.name}_{self.uid}"
        target = f"/var/log/pods/{folder}/{container}/0.log"
        (self.node.links / f"{self.name}_{self.namespace}_{container}-{id_}.log").symlink_to(target)

    def stop(self, container: str) -> None:
        """The runtime removes the cgroup; the logs stay for a while."""
        path = self.running.pop(container)
        self.node.remove(path.parent if path.name == "container" else path)

    def end(self) -> None:
        if not self.ended:
            self.node.remove(self.node.cgroups / self.path)
        self.running.clear()
        self.ended = True
