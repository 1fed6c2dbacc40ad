"""The pods of processes: cgroup trees of each runtime, driver and version, and the kubelet's log folder."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.host.gpu_driver import GpuProcess
from nodeagent.host.sysfs import Tree
from nodeagent.sources.cgroups import CgroupPlace, place_of
from nodeagent.sources.gpu_users import GpuUsers
from tests.support.findings import one_item

POD, CONTAINER = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d", "ab" * 32
STATIC = "4b" * 16
LOGS = "/var/log/pods"


def slice_of(uid: str, qos: str) -> str:
    """The path of a pod with the driver systemd."""
    middle = f"kubepods-{qos}.slice/kubepods-{qos}-pod" if qos else "kubepods-pod"
    return f"/kubepods.slice/{middle}{uid.replace('-', '_')}.slice"


def folder_of(uid: str, qos: str) -> str:
    return f"/kubepods/{qos + '/' if qos else ''}pod{uid}"


LEAVES = {
    ("systemd", "containerd"): "cri-containerd-{}.scope",
    ("systemd", "crio"): "crio-{}.scope",
    ("systemd", "docker"): "docker-{}.scope",
    ("cgroupfs", "containerd"): "{}",
    ("cgroupfs", "crio"): "crio-{}",
    ("cgroupfs", "docker"): "{}",
}
V1 = ("12:pids:", "11:memory:", "5:cpu,cpuacct:", "1:name=systemd:", "0::")


@one_item(
    "leaf, version, qos, uid",
    lambda: itertools.product(LEAVES, [1, 2], ["", "burstable", "besteffort"], [POD, STATIC]),
)
def test_container_and_pod_are_found_with_each_runtime_driver_and_version(
    leaf: tuple[str, str], version: int, qos: str, uid: str
) -> None:
    driver, _ = leaf
    parent = slice_of(uid, qos) if driver == "systemd" else folder_of(uid, qos)
    path = f"{parent}/{LEAVES[leaf].format(CONTAINER)}"
    text = f"0::{path}\n" if version == 2 else "".join(f"{head}{path}\n" for head in V1)
    assert place_of(text) == CgroupPlace(CONTAINER, uid)
    # In a node that is a container, and for a reader in a cgroup namespace of its own.
    assert place_of(f"0::/docker/{'cd' * 32}{path}\n") == CgroupPlace(CONTAINER, uid)
    assert place_of(f"0::/../../..{path.removeprefix('/kubepods.slice')}\n") == CgroupPlace(CONTAINER, uid)
    assert place_of(f"0::{path}/nested/user.slice\n") == CgroupPlace(CONTAINER, uid)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "0::/system.slice/nvidia-persistenced.service\n",
        f"0::/kubepods/pod{POD}x/1\n",
        "0::/kubepods.slice/kubepods-podnothing.slice\n",
        f"0::/system.slice/tripod{POD}.service\n",
    ],
)
def test_a_process_of_the_host_has_neither(text: str) -> None:
    assert place_of(text) == CgroupPlace(None, None)


@given(st.text() | st.from_regex(r"[0-9]+:[a-z]*:(/[a-z0-9._-]*)+\n", fullmatch=True))
def test_any_text_is_read(text: str) -> None:
    place = place_of(text)
    assert place.container is None or len(place.container) == 64


class Host:
    """Processes and the kubelet's folder of logs, below a root."""

    def __init__(self, root) -> None:
        self.root = root
        self.process(2, "0::/\n", "kthreadd")
        (root / LOGS.lstrip("/")).mkdir(parents=True)

    def process(self, pid: int, cgroup: str, comm: str = "python3") -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_text(f"{comm}\n")

    def pod(self, namespace: str, name: str, uid: str) -> None:
        (self.root / LOGS.lstrip("/") / f"{namespace}_{name}_{uid}").mkdir()

    def users(self) -> GpuUsers:
        return GpuUsers(Tree(self.root), LOGS)


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path)


def scope(uid: str, container: str = CONTAINER) -> str:
    return f"0::{slice_of(uid, 'burstable')}/cri-containerd-{container}.scope\n"


def test_the_processes_of_a_pod_add_up_and_the_others_are_named(host: Host) -> None:
    host.pod("team", "llm-0", POD)
    host.process(11, scope(POD))
    host.process(12, scope(POD, "cd" * 32))  # another container
    host.process(13, scope(STATIC))  # a pod without an entry in the folder
    host.process(20, "0::/user.slice\n", "nvidia-cuda-mps-server-with-a-long-name")
    host.process(21, "0::/\n", "\x1b[31mX")
    users = host.users()
    assert users.begin() is None
    processes = [
        GpuProcess(11, 5, 0.5), GpuProcess(12, 7, 0.75), GpuProcess(13, None), GpuProcess(20, 9, 0.1),
        GpuProcess(21, 1), GpuProcess(99, 1000),
    ]  # fmt: skip
    assert users.usage(processes) == GpuUsage(
        (
            PodUse("", STATIC, 0, 1, uid=STATIC, members=(NamedProcess(13, "python3", 0),)),
            PodUse(
                *("team", "llm-0", 12, 2, 1.0, POD),
                (NamedProcess(11, "python3", 5), NamedProcess(12, "python3", 7)),
            ),
        ),
        (NamedProcess(20, "nvidia-cuda-mps…", 9), NamedProcess(21, "\\x1b[31mX", 1)),
    )


def stat(state: str = "D", *, used: int = 7, start: int = 990, name: str = "python3") -> str:
    """A line of /proc/PID/task/PID/stat (proc(5)). ``used`` is the CPU time in the kernel."""
    between = "1 10 10 0 -1 4194560 120 0 3 0 20"
    return f"10 ({name}) {state} {between} {used} 0 0 20 0 9 0 {start} 8192 100\n"


def stuck(host: Host, users: GpuUsers, *lines: str | None) -> list[int]:
    found = []
    for line in lines:
        path = host.root / "proc/11/task/11/stat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if line is not None:
            path.write_text(line)
        users.begin()
        # A process may use several GPUs: the second one sees the same.
        counts = {users.stuck([GpuProcess(11, 1), GpuProcess(12, 1)]) for _ in range(2)}
        found += [*counts] if len(counts) == 1 else [-1]
    return found


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        ([stat(), stat(), stat()], [0, 1, 1]),
        ([stat(name="a) D 1 (b")] * 2, [0, 1]),
        ([stat("S"), stat("S")], [0, 0]),
        ([stat(), stat("R"), stat(), stat()], [0, 0, 0, 1]),
        ([stat(used=7), stat(used=8), stat(used=8)], [0, 0, 1]),  # it does input and output
        ([stat(start=990), stat(start=991)], [0, 0]),  # the pid was given again
        ([stat(), None, stat()], [0, 0, 0]),  # not readable
        (["10 (x) D 1 2\n", "10 (x) D 1 2\n", "", ""], [0, 0, 0, 0]),
    ],
)
def test_a_process_is_stuck_if_it_sleeps_in_the_kernel_without_progress(host: Host, lines, counts) -> None:
    assert stuck(host, host.users(), *lines) == counts


def test_a_container_that_makes_cgroups_below_its_own_charges_no_other_pod(host: Host) -> None:
    """containerd 2.1 gives a container a writable cgroup: it may name folders as it likes."""
    victim, outer = POD.replace("0a1b", "ffff"), POD.replace("0a1b", "eeee")
    host.pod("team", "llm-0", POD)
    host.pod("team", "victim", victim)
    host.process(
        11, f"0::{slice_of(POD, 'burstable')}/cri-containerd-{CONTAINER}.scope/pod{victim}/{'cd' * 32}\n"
    )
    # The node may itself be a container of a pod that this kubelet does not have.
    host.process(12, f"0::{folder_of(outer, '')}/{CONTAINER}{folder_of(victim, '')}/{'cd' * 32}\n")
    users = host.users()
    users.begin()
    usage = users.usage([GpuProcess(11, 5), GpuProcess(12, 7)])
    assert [(use.pod, use.memory_bytes) for use in usage.pods] == [("llm-0", 5), ("victim", 7)]


def test_a_pod_that_starts_later_gets_its_name_and_a_reused_pid_its_new_pod(host: Host) -> None:
    host.process(11, scope(POD))
    users = host.users()
    for name, namespace in ((POD, ""), ("llm-0", "team"), ("llm-0", "team")):
        assert users.begin() is None
        (use,) = users.usage([GpuProcess(11, 5)]).pods
        assert (use.pod, use.namespace) == (name, namespace)
        if not namespace:
            host.pod("team", "llm-0", POD)
    host.process(11, "0::/user.slice\n")
    users.begin()
    assert users.usage([GpuProcess(11, 5)]) == GpuUsage((), (NamedProcess(11, "python3", 5),))


def test_without_the_hosts_processes_or_the_folder_the_obstacle_is_named(host: Host) -> None:
    (host.root / "proc/self").symlink_to(str(os.getpid()))
    assert host.users().begin() is None, "the agent is in the namespace of this /proc"
    (host.root / "proc/self").unlink()
    (host.root / "proc/self").symlink_to(str(os.getpid() + 1))
    assert "hostPID" in (host.users().begin() or ""), "the /proc is another namespace's"
    (host.root / "proc/self").unlink()
    (host.root / "var/log/pods").rename(host.root / "var/log/elsewhere")
    assert "/var/log/pods" in (host.users().begin() or "")
    host.process(2, "0::/\n", "python3")
    assert "hostPID" in (host.users().begin() or ""), "the /proc is that of a container"
