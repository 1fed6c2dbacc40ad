"""``enforcement: nvml-limits`` against a stand-in of the driver's library and the cgroups of each runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from nodeagent.facts.model import Holding
from nodeagent.host.sysfs import Tree
from nodeagent.sharing.container_cgroups import ContainerCgroups
from nodeagent.sharing.shares import shares_of
from tests.host.test_nvml import HERE, Machine, build, environment, gpu
from tests.kinds.test_gpu_memory import ALLOWED, SLICES, ids
from tests.sharing.cgroup_trees import LAYOUTS, Layout, Node, Pod
from tests.support.examples import examples
from tests.support.waiting import Lines

pytestmark = pytest.mark.needs("pynvml", "cc")

GIB = 1 << 30
UNLIMITED = 2**64 - 1
BUS = "00000000:1B:00.0"
GPU = "GPU-0"


class Child:
    """``limits_child.py`` in one of its modes."""

    def __init__(self, mode: str, machine: Machine, library: Path, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HERE / "nvml" / "limits_child.py", mode, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(machine, library),
        )
        assert self.process.stdout is not None
        self._lines = Lines(self.process.stdout.fileno())

    def send(self, *shares: tuple[object, ...]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(shares) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._lines.next())
        return answer

    def ask(self, *shares: tuple[object, ...]) -> dict[str, Any]:
        self.send(*shares)
        return self.receive()

    def until(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        line = self._lines.until(lambda line: line and reached(json.loads(line)))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def share(pod: Pod, container: str, size: int, uuid: str = GPU) -> tuple[str, str, str, str, int]:
    return (pod.namespace, pod.name, container, uuid, size)


def limit_of(cgroup: Path, name: str = "dmem.max") -> int | None:
    """The limit in the file of a cgroup, of GPU 0; ``None``: it was never set."""
    lines = [line.split() for line in (cgroup / name).read_text().splitlines()]
    return next((int(value) for bus, value in lines if bus == BUS), None)


def words(answer: dict[str, Any]) -> list[str]:
    return [state[4] for state in answer["states"]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build(tmp_path_factory.mktemp("limits")))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "control")


@pytest.fixture
def start(machine: Machine, library: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(mode: str, node: Node, library: Path = library) -> Child:
        children.append(Child(mode, machine, library, node.root))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.mark.parametrize("qos", ["", "burstable", "besteffort"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
def test_the_cgroup_of_a_container_gets_its_share_as_hard_limit(
    tmp_path: Path, start: Callable[..., Child], layout: Layout, qos: str
) -> None:
    node = Node(tmp_path / "root", layout)
    pod, other = node.pod("team-a", "train", qos), node.pod("team-a", "train-2", qos)
    main, side = pod.start("main"), pod.start("side")
    second = other.start("main")
    child = start("pass", node)
    answer = child.ask(share(pod, "main", 40 * GIB), share(other, "main", 8 * GIB))
    assert words(answer) == ["set", "set"]
    assert (limit_of(main), limit_of(second)) == (40 * GIB, 8 * GIB)
    assert limit_of(side) is None, "a container without a share has no limit of its own"
    assert limit_of(main, "dmem.min") == 0
    assert not [path for path in node.cgroups.rglob("*conmon*/dmem.max") if path.read_text()]
    again = child.ask(share(pod, "main", 40 * GIB), share(other, "main", 8 * GIB))
    assert (words(again), again["writes"]) == (["set", "set"], 0), "an equal limit is not written"


def test_before_the_kubelet_has_named_a_container_its_pod_is_limited_as_a_whole(
    tmp_path: Path, start: Callable[..., Child]
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main", link=False)
    child = start("pass", node)
    assert words(child.ask(share(pod, "main", GIB))) == ["waiting"]
    assert limit_of(main) == GIB
    pod.link("main")
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]
    twin = node.pod("ns", "two")
    first, second = twin.start("a", link=False), twin.start("b", link=False)
    both = (share(twin, "a", GIB), share(twin, "b", 2 * GIB))
    assert words(child.ask(*both)) == ["waiting", "waiting"], "nothing names the container of a cgroup"
    assert (limit_of(first), limit_of(second)) == (None, None)
    twin.link("a")
    twin.link("b")
    assert words(child.ask(*both)) == ["set", "set"]
    assert (limit_of(first), limit_of(second)) == (GIB, 2 * GIB)


def test_whole_gpus_of_one_container_have_a_limit_each(tmp_path: Path, start: Callable[..., Child]) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main")
    start("pass", node).ask(share(pod, "main", 79 * GIB), share(pod, "main", 79 * GIB, "GPU-1"))
    assert (main / "dmem.max").read_text() == f"{BUS} {79 * GIB}\n00000000:1C:00.0 {79 * GIB}\n"


def test_without_the_controller_the_driver_keeps_the_limits_itself(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    machine.set("misc", gpu(0))
    node = Node(tmp_path / "root", LAYOUTS[0], dmem=False)
    pod = node.pod("ns", "train")
    main = pod.start("main")
    child = start("pass", node)
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]
    assert child.ask(share(pod, "main", GIB))["writes"] == 0
    assert f"{GPU} {main} 0 {GIB}\n" in machine.path.with_suffix(".calls").read_text()


def test_a_reservation_that_another_program_has_made_is_taken_back_before_the_container_goes(
    tmp_path: Path, start: Callable[..., Child]
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train", "burstable")
    main = pod.start("main")
    # As the toolkit's hook leaves it: a soft limit on the container, added to all cgroups above.
    folder = main
    while folder != node.cgroups:
        (folder / "dmem.min").write_text(f"{BUS} {GIB}\n")
        folder = folder.parent
    (main / "dmem.max").write_text(f"{BUS} {GIB}\n")
    assert words(start("pass", node).ask(share(pod, "main", GIB))) == ["set"]
    assert limit_of(main, "dmem.min") == 0
    pod.end()
    assert node.reservations() == f"{BUS} 0\n"


def test_a_cgroup_that_cannot_have_a_limit_leaves_it_to_its_parent(
    tmp_path: Path, start: Callable[..., Child]
) -> None:
    node = Node(tmp_path / "root", Layout(systemd=True, crio=True, below=True))
    pod = node.pod("ns", "train")
    main = pod.start("main")
    for name in ("dmem.max", "dmem.min", "dmem.current"):
        (main / name).unlink()
    answer = start("pass", node).ask(share(pod, "main", GIB))
    assert words(answer) == ["set"]
    assert limit_of(main.parent) == GIB


def test_a_limit_that_the_driver_refuses_is_a_failure_with_the_reason(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    pod.start("main")
    child = start("pass", node)
    machine.set(gpu(0), gpu(1), "fail nvmlDeviceSetMemoryLimits_v1 4")
    answer = child.ask(share(pod, "main", GIB))
    assert words(answer) == ["failed"]
    assert "nvmlDeviceSetMemoryLimits_v1: Insufficient Permissions" in answer["states"][0][6]
    machine.set(gpu(0, mig=1), gpu(1))
    assert "Not Supported" in child.ask(share(pod, "main", GIB))["states"][0][6]
    machine.set(gpu(0, lost=1), gpu(1))
    assert "GPU is lost" in child.ask(share(pod, "main", GIB))["states"][0][6]
    machine.set(gpu(0), gpu(1), "fail nvmlInitWithFlags 9")
    assert "nvmlInit" in child.ask(share(pod, "main", GIB))["error"]
    machine.set(gpu(0), gpu(1))
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]


@pytest.mark.parametrize("misc", [False, True], ids=["dmem", "misc"])
def test_a_limit_that_cannot_be_read_back_is_not_in_force(
    tmp_path: Path, start: Callable[..., Child], machine: Machine, misc: bool
) -> None:
    machine.set(gpu(0), "forgetful", *(["misc"] if misc else []))
    node = Node(tmp_path / "root", LAYOUTS[0], dmem=not misc)
    pod = node.pod("ns", "train")
    pod.start("main")
    answer = start("pass", node).ask(share(pod, "main", GIB))
    assert words(answer) == ["failed"]
    assert "the driver shows no limit after it was set" in answer["states"][0][6]


def test_the_limit_of_an_ancestor_is_not_that_of_the_container(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main")
    (node.cgroups / "kubepods.slice/dmem.max").write_text(f"{BUS} {60 * GIB}\n")
    child = start("pass", node)
    machine.set(gpu(0), gpu(1), "forgetful")
    assert "the driver shows 61440 MiB" in child.ask(share(pod, "main", GIB))["states"][0][6]
    machine.set(gpu(0), gpu(1))
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]
    assert limit_of(main) == GIB


def test_a_share_below_what_is_charged_is_refused_until_the_container_has_freed_memory(
    tmp_path: Path, start: Callable[..., Child]
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main")
    (main / "dmem.current").write_text(f"{BUS} {2 * GIB}\n")
    child = start("pass", node)
    answer = child.ask(share(pod, "main", GIB))
    assert words(answer) == ["failed"]
    below = "a limit below the memory that the cgroup is charged is refused"
    assert f"the driver shows no limit after it was set: {below}" in answer["states"][0][6]
    (main / "dmem.current").write_text(f"{BUS} {GIB}\n")
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]
    (main / "dmem.current").write_text(f"{BUS} {GIB}\n")
    answer = child.ask(share(pod, "main", GIB >> 1))
    assert f"the driver shows 1024 MiB after it was set: {below}" in answer["states"][0][6]


def test_without_the_controller_memory_counts_from_the_first_limit_on(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    """memacct.c: no limit, no charge; a later limit below the charge is refused."""
    node = Node(tmp_path / "root", LAYOUTS[0], dmem=False)
    pod = node.pod("ns", "train")
    pod.start("main")
    child = start("pass", node)
    machine.set(gpu(0), "misc", f"charged 0 {2 * GIB}")
    assert words(child.ask(share(pod, "main", GIB))) == ["set"], "nothing is charged before the first limit"
    answer = child.ask(share(pod, "main", GIB >> 1))
    assert words(answer) == ["failed"]
    assert (
        "Invalid Argument: a limit below the memory that the cgroup is charged is refused"
        in answer["states"][0][6]
    )
    machine.set(gpu(0), "misc", "fail nvmlDeviceSetMemoryLimits_v1 999")
    assert "Unknown Error: a limit below the memory" in child.ask(share(pod, "main", 4 * GIB))["states"][0][6]


def test_the_highest_limit_is_none(tmp_path: Path, start: Callable[..., Child], machine: Machine) -> None:
    """nvml.h: no limit is set when the soft limit is 0 and the hard limit is the highest number."""
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main")
    (main / "dmem.max").write_text(f"{BUS} max\n")
    child = start("pass", node)
    machine.set(gpu(0), "forgetful")
    assert "the driver shows no limit after it was set" in child.ask(share(pod, "main", GIB))["states"][0][6]
    machine.set(gpu(0))
    assert words(child.ask(share(pod, "main", GIB))) == ["set"]


def test_a_limit_above_the_memory_of_the_gpu_is_refused(tmp_path: Path, start: Callable[..., Child]) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    pod.start("main")
    assert words(start("pass", node).ask(share(pod, "main", 1000 * GIB))) == ["failed"]


def test_a_library_without_the_functions_is_named(
    tmp_path: Path, start: Callable[..., Child], machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    pod.start("main")
    child = start("pass", node, Path(build(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER")))
    assert "the driver's library does not have it" in child.ask(share(pod, "main", GIB))["states"][0][6]


def test_the_limit_follows_a_container_through_its_life(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    child = start("follow", node)
    assert not child.receive()["kept"]
    child.send(share(pod, "main", GIB))
    assert child.until(lambda answer: words(answer) == ["waiting"])["kept"], "the cgroup of the pod has one"
    first = pod.start("main")
    assert child.until(lambda answer: words(answer) == ["set"])["kept"]
    assert limit_of(first) == GIB
    # The container ends and is started again, in another cgroup.
    pod.stop("main")
    child.until(lambda answer: words(answer) == ["waiting"])
    second = pod.start("main")
    child.until(lambda answer: second.name in str(answer) and words(answer) == ["set"])
    assert limit_of(second) == GIB
    # The driver does not answer, is loaded again, and has lost the limits.
    machine.set(gpu(0), gpu(1), "fail nvmlInitWithFlags 9")
    assert not child.until(lambda answer: words(answer) == ["failed"])["kept"]
    node.lose_limits()
    machine.set(gpu(0), gpu(1))
    child.until(lambda answer: words(answer) == ["set"])
    assert limit_of(second) == GIB
    pod.end()
    child.send()
    child.until(lambda answer: answer["states"] == [])
    assert not node.reservations().replace(f"{BUS} 0\n", "")


def in_words(answer: dict[str, Any]) -> list[str]:
    return [state[7] for state in answer["states"]]


def toolkit(machine: Machine, node: Node, cgroup: Path, hard: int, *, misc: bool) -> None:
    """Set both limits as NVIDIA's hook does, past the agent."""
    if misc:
        with Path(f"{machine.path}.limits").open("a") as file:
            file.write(f"0 {cgroup} {hard} {hard}\n")
    else:
        (cgroup / "dmem.max").write_text(f"{BUS} {hard}\n")
        (cgroup / "dmem.min").write_text(f"{BUS} {hard}\n")


@pytest.mark.parametrize("misc", [False, True], ids=["dmem", "misc"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
def test_the_limit_of_the_container_toolkit_is_read_back_and_never_set(
    tmp_path: Path, start: Callable[..., Child], machine: Machine, layout: Layout, misc: bool
) -> None:
    machine.set(gpu(0), gpu(1), *(["misc"] if misc else []))
    node = Node(tmp_path / "root", layout, dmem=not misc)
    pod = node.pod("ns", "train")
    asked = (*share(pod, "main", GIB), "env")
    child = start("pass", node)
    assert in_words(child.ask(asked)) == ["waiting"]
    main = pod.start("main", link=False)
    assert in_words(child.ask(asked)) == ["waiting"], "another container of the pod may be without a limit"
    pod.link("main")
    for hard, word, shown in (
        (None, "not in force", "the driver shows no limit"),
        (2 * GIB, "not in force", "the driver shows 2048 MiB"),
        (GIB, "in force", None),
        (GIB // 2, "in force", None),
    ):
        if hard is not None:
            toolkit(machine, node, main, hard, misc=misc)
        answer = child.ask(asked)
        assert (in_words(answer), answer["writes"]) == ([word], 0)
        assert (shown or "") in (answer["states"][0][6] or "")
    assert not Path(f"{machine.path}.calls").exists(), "nothing was set"


@pytest.mark.parametrize(
    ("hidden", "reason"),
    [
        ("var/log/pods", "components/gpu-memory-limits"),
        ("var/log/containers", "components/gpu-memory-limits"),
        ("sys/fs/cgroup", "does not see"),
    ],
)
def test_a_limit_that_cannot_be_read_is_unknown(
    tmp_path: Path, start: Callable[..., Child], machine: Machine, hidden: str, reason: str
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    pod.start("main")
    asked = (*share(pod, "main", GIB), "env")
    machine.set(gpu(0), gpu(1), "fail nvmlDeviceGetMemoryLimits_v1 999")
    answer = start("pass", node).ask(asked)
    assert in_words(answer) == ["unknown"]
    machine.set(gpu(0), gpu(1))
    shutil.rmtree(node.root / hidden)
    answer = start("pass", node).ask(asked)
    assert in_words(answer) == ["unknown"]
    assert reason in answer["states"][0][6]


def test_a_verified_limit_has_the_time_of_its_state_and_stays_while_nothing_answers(
    tmp_path: Path, start: Callable[..., Child], machine: Machine
) -> None:
    node = Node(tmp_path / "root", LAYOUTS[0])
    pod = node.pod("ns", "train")
    main = pod.start("main")
    child = start("follow", node)
    child.receive()
    child.send((*share(pod, "main", GIB), "env"))
    lacking = child.until(lambda answer: bool(answer["facts"]))
    assert lacking["facts"][0][0] == "not in force"
    assert not lacking["kept"], "auto does not call a limit its own that it has not set"
    machine.set(gpu(0), gpu(1), "fail nvmlInitWithFlags 9")
    silent = child.until(lambda answer: in_words(answer) == ["unknown"])
    assert silent["facts"] == lacking["facts"], "an unknown state neither begins nor ends one"
    machine.set(gpu(0), gpu(1))
    toolkit(machine, node, main, GIB, misc=False)
    held = child.until(lambda answer: in_words(answer) == ["in force"])
    assert held["facts"][0][0] == "in force"
    assert held["facts"][0][1] >= lacking["facts"][0][1]


def test_auto_sets_limits_before_one_was_read_back() -> None:
    kind = structs.replace(SLICES, enforcement="auto")
    holding = Holding("ns", "pod", "main", kind.resource, ids(0, 0, 1))
    snapshot = structs.replace(ALLOWED, holdings=(holding,))
    assert kind.level(snapshot) == "env"
    (found,) = shares_of([kind], snapshot, "nvml-limits") or ()
    assert (found.container, found.size_bytes) == ("main", 2 * GIB)


def test_shares_of_several_levels_have_their_own() -> None:
    env = structs.replace(SLICES, resource="x/env", enforcement="env")
    holdings = tuple(Holding("ns", "pod", "main", kind.resource, ids(0, 0, 1)) for kind in (SLICES, env))
    snapshot = structs.replace(ALLOWED, holdings=holdings)
    own = structs.replace(SLICES, enforcement="nvml-limits")
    found = shares_of([own, env], snapshot, "env", "nvml-limits") or ()
    assert [(share.level, share.size_bytes) for share in found] == [
        ("env", 2 * GIB),
        ("nvml-limits", 2 * GIB),
    ]


class Lives(RuleBasedStateMachine):
    """Pods and containers start, restart and end in any order; each pass leaves each running container limited."""

    library: Path

    @initialize(layout=st.sampled_from(LAYOUTS))
    def begin(self, layout: Layout) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="limits-"))
        self.machine = Machine(self.folder / "control")
        self.node = Node(self.folder / "root", layout)
        self.child = Child("pass", self.machine, self.library, self.node.root)
        self.pods: list[Pod] = []
        self.sizes: dict[tuple[str, str], int] = {}

    @rule(containers=st.integers(1, 2), qos=st.sampled_from(["", "burstable", "besteffort"]))
    def create(self, containers: int, qos: str) -> None:
        if len(self.pods) < 4:
            pod = self.node.pod("ns", f"pod-{len(self.sizes)}-{self.node.count}", qos)
            self.pods.append(pod)
            for n in range(containers):
                self.sizes[pod.name, f"c{n}"] = (n + 1 + self.node.count) * GIB

    @precondition(lambda self: self.pods)
    @rule(which=st.integers(0, 3), container=st.sampled_from(["c0", "c1"]), link=st.booleans())
    def start_or_restart(self, which: int, container: str, link: bool) -> None:
        pod = self.pods[which % len(self.pods)]
        if (pod.name, container) in self.sizes and not pod.ended:
            if container in pod.running:
                pod.stop(container)
            pod.start(container, link=link)

    @precondition(lambda self: self.pods)
    @rule(which=st.integers(0, 3))
    def delete(self, which: int) -> None:
        """The cgroups go before podresources leaves out the pod."""
        self.pods[which % len(self.pods)].end()

    @precondition(lambda self: self.pods)
    @rule(which=st.integers(0, 3))
    def forget(self, which: int) -> None:
        pod = self.pods.pop(which % len(self.pods))
        pod.end()
        self.sizes = {key: size for key, size in self.sizes.items() if key[0] != pod.name}

    @rule()
    def reload_driver(self) -> None:
        self.node.lose_limits()

    @rule()
    def pass_over_all(self) -> None:
        shares = [
            share(pod, c, self.sizes[pod.name, c])
            for pod in self.pods
            for p, c in self.sizes
            if p == pod.name
        ]
        answer = self.child.ask(*shares)
        states = {(state[1], state[2]): state for state in answer["states"]}
        for pod in self.pods:
            held = [c for p, c in self.sizes if p == pod.name]
            for container in held:
                cgroup, state = pod.running.get(container), states[pod.name, container]
                named = cgroup is not None and any(
                    (cgroup.parent.name if cgroup.name == "container" else cgroup.name).removesuffix(
                        ".scope"
                    )[-64:]
                    in link.name
                    for link in self.node.links.iterdir()
                )
                if cgroup is not None and (named or len(held) == 1):
                    assert state[4] == ("set" if named else "waiting")
                    assert limit_of(cgroup) == self.sizes[pod.name, container]
                assert state[4] != "failed"

    @invariant()
    def nothing_is_reserved(self) -> None:
        if hasattr(self, "node"):
            assert not self.node.reservations().replace(f"{BUS} 0\n", "")

    def teardown(self) -> None:
        if hasattr(self, "child"):
            self.child.end()
            shutil.rmtree(self.folder)


def test_a_service_of_the_machine_is_no_pod_and_a_node_in_a_container_has_pods(tmp_path: Path) -> None:
    node = Node(tmp_path, LAYOUTS[0], dmem=False)
    pod = node.pod("team", "a")
    uid = "0a1b2c3d-4e5f-4a6b-8c7d-0000000000ff"
    name = f"kubepods-pod{uid.replace('-', '_')}.slice"
    node.make(f"system.slice/{name}")
    assert ContainerCgroups(Tree(tmp_path), "/var/log/pods").pods.keys() == {pod.uid}
    node.make(f"kubelet.slice/system.slice/{name}")
    assert ContainerCgroups(Tree(tmp_path), "/var/log/pods").pods.keys() == {pod.uid, uid}


def test_any_order_of_lives_leaves_each_container_limited(library: Path) -> None:
    Lives.library = library
    case = Lives.TestCase()
    case.settings = settings(max_examples=examples(8), stateful_step_count=25, deadline=None)
    case.runTest()
