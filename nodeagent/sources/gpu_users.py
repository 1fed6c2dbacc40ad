"""The pods of the processes on a GPU.

A pid leads to a container and to a pod's UID (``/proc/PID/cgroup``). The kubelet's folder of logs has an entry
``NAMESPACE_NAME_UID`` for each pod, so its listing names the pods without a right in the cluster. A name is read once
for each UID, because neither of the two changes.

NVML reports processes of the host. Without the host's PID namespace there is nothing to look up, so ``obstacle`` names
what is missing. Pids are not kept: the kernel reuses them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nodeagent.base.plain_text import one_line
from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.host.gpu_driver import GpuProcess
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.sources.cgroups import CgroupPlace, place_of, pods_of

HOST = "host"
"""Stands for processes outside of containers."""
_UNKNOWN = "unknown"
"""Stands for processes whose cgroup cannot be read: ended, or in a process namespace that the agent does not see."""
_NAME_MAX = 16  # the kernel's TASK_COMM_LEN
KTHREADD = "kthreadd"
"""The process 2 of a host. No other PID namespace has it."""


class GpuUsers:
    """Belongs to one thread. ``pod_logs`` is the kubelet's folder of logs, below the root."""

    def __init__(self, tree: Tree, pod_logs: str) -> None:
        self._tree, self._pod_logs = tree, pod_logs
        self._names: dict[str, tuple[str, str]] = {}
        """Namespace and name, by UID."""
        self._places: dict[int, CgroupPlace | None] = {}
        """The places of this pass, by pid: a process may use several GPUs."""
        self._listed = False
        """Whether the folder of logs was listed in this pass."""
        self._asleep: dict[int, str | None] = {}
        self._asleep_before: dict[int, str | None] = {}
        """The CPU time and page faults of processes in state D, in this pass and in the one before, by pid."""

    def begin(self) -> str | None:
        """Begin a pass over all GPUs. Return what is missing for it, if anything is."""
        self._places.clear()
        self._asleep_before, self._asleep = self._asleep, {}
        self._listed = False
        return hidden_processes(self._tree, self._pod_logs)

    def by_container(self, processes: Iterable[GpuProcess]) -> dict[str, float]:
        """Sum the GPU memory in bytes. A process whose memory the driver does not report adds nothing."""
        used: dict[str, float] = {}
        for process in processes:
            place = self._place(process.pid)
            container = _UNKNOWN if place is None else place.container or HOST
            used[container] = used.get(container, 0.0) + (process.memory_bytes or 0)
        return used

    def stuck(self, processes: Iterable[GpuProcess]) -> int:
        """Count the processes that were in state D in the last pass and have used no CPU and met no page since."""
        for pid in {process.pid for process in processes} - self._asleep.keys():
            self._asleep[pid] = self._sleep(pid)
        marks = ((self._asleep[process.pid], self._asleep_before.get(process.pid)) for process in processes)
        return sum(mark is not None and mark == before for mark, before in marks)

    def _sleep(self, pid: int) -> str | None:
        """Return what the main thread has used since its start, if it sleeps without being interruptible.
        proc(5): the fields after the name in parentheses begin with the state; page faults are 10 and 12, CPU time 14
        and 15, the start 22."""
        text = SysfsScan(self._tree).read(self._tree.text, f"/proc/{pid}/task/{pid}/stat") or ""
        fields = text.rpartition(")")[2].split()
        if len(fields) < 20 or fields[0] != "D":
            return None
        return " ".join(fields[number - 3] for number in (10, 12, 14, 15, 22))

    def usage(self, processes: Iterable[GpuProcess]) -> GpuUsage:
        """Return who uses the GPU. A process that has ended meanwhile is left out."""
        pods: dict[str, list[GpuProcess]] = {}
        outside: list[NamedProcess] = []
        for process in processes:
            place = self._place(process.pid)
            if place is None:
                continue
            if place.pod is not None:
                pods.setdefault(place.pod, []).append(process)
            else:
                outside.append(self._named(process))
        return GpuUsage(
            tuple(sorted((self._pod_use(uid, members) for uid, members in pods.items()), key=_by_name)),
            tuple(sorted(outside, key=lambda process: process.pid)),
        )

    def _pod_use(self, uid: str, processes: list[GpuProcess]) -> PodUse:
        namespace, name = self._name(uid)
        shares = [process.utilization for process in processes if process.utilization is not None]
        return PodUse(
            namespace,
            name,
            sum(process.memory_bytes or 0 for process in processes),
            len(processes),
            min(1.0, sum(shares)) if shares else None,
            uid,
            tuple(self._named(process) for process in sorted(processes, key=lambda process: process.pid)),
        )

    def _place(self, pid: int) -> CgroupPlace | None:
        if pid not in self._places:
            text = SysfsScan(self._tree).read(self._tree.text, f"/proc/{pid}/cgroup")
            self._places[pid] = None if text is None else self._known_place(text)
        return self._places[pid]

    def _known_place(self, cgroup: str) -> CgroupPlace:
        """Of several pods in a path, return the outermost that this node's kubelet has."""
        place, pods = place_of(cgroup), pods_of(cgroup)
        own = next((uid for uid in pods if self._name(uid)[0]), place.pod) if len(pods) > 1 else place.pod
        return place._replace(pod=own)

    def _named(self, process: GpuProcess) -> NamedProcess:
        comm = SysfsScan(self._tree).read(self._tree.text, f"/proc/{process.pid}/comm")
        name = one_line(comm or "", _NAME_MAX, ascii_only=True)
        return NamedProcess(process.pid, name, process.memory_bytes or 0)

    def _name(self, uid: str) -> tuple[str, str]:
        """Namespace and name of a pod; without them, its UID as name."""
        if uid not in self._names and not self._listed:
            self._listed = True
            entries = SysfsScan(self._tree).names(self._pod_logs)
            self._names = {
                parts[2]: (parts[0], parts[1]) for entry in entries if len(parts := entry.split("_")) == 3
            }
        return self._names.get(uid, ("", uid))


def hidden_processes(tree: Tree, pod_logs: str) -> str | None:
    """Return why processes cannot be attributed to pods; ``None`` if they can."""
    try:
        seen = tree.link("/proc/self")
        if tree.text("/proc/2/comm") != KTHREADD or seen not in (None, str(os.getpid())):
            return "the host's processes are not visible: the agent's pod needs hostPID and the host's /proc"
        tree.names(pod_logs)
    except SysfsError as error:
        return str(error)
    return None if tree.exists(pod_logs) else f"{pod_logs} is not there: it has the names of the pods"


def _by_name(use: PodUse) -> tuple[str, str]:
    return use.namespace, use.pod
