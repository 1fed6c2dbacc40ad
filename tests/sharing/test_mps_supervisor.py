"""``nodeagent mps`` against a stand-in of NVIDIA's program: starts, crashes, hangs, restarts, and no orphan."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nodeagent.base.file_writing import replace_file
from nodeagent.host.mps_control import MpsControl, MpsError
from nodeagent.sharing.mps_files import MpsFiles, WantedDaemons
from nodeagent.sharing.mps_supervisor import PROBES_MISSED, MpsSupervisor
from tests.sharing.mps_node import GPUS, PACE, MpsNode, Verb, a_silent_client_ends_no_program, ended, mps_node
from tests.support.examples import examples
from tests.support.waiting import until

ONE, TWO = GPUS


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MpsNode]:
    with mps_node(tmp_path) as node:
        yield node


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


async def test_each_gpu_that_the_agent_names_gets_a_daemon_of_its_own(node: MpsNode) -> None:
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    first = await node.ready(ONE)
    assert node.files.is_locked()
    node.want(ONE, TWO)
    second = await node.ready(TWO)
    assert node.state(ONE).pid == first != second
    environ = environment_of(second)
    assert environ["CUDA_VISIBLE_DEVICES"] == TWO
    assert environ["CUDA_MPS_PIPE_DIRECTORY"] == f"{node.folder}/{TWO}/pipe"
    assert environ["CUDA_MPS_LOG_DIRECTORY"] == f"{node.folder}/{TWO}/log"
    assert (node.folder / TWO / "pipe").stat().st_mode & 0o777 == 0o755, "clients have other users"
    node.want(TWO)
    await node.until(lambda: node.state(ONE).obstacle == "unknown")
    assert node.processes() == [second]
    await ended(task)
    assert node.processes() == []
    assert not node.files.is_locked()
    assert node.modes == [], "without leave the compute mode is never touched"


async def test_a_daemon_that_crashes_is_started_again_without_the_server_that_it_left(node: MpsNode) -> None:
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    first = await node.ready()
    node.control(ONE).ask("start_server -uid 0", 10)
    (server,) = set(node.processes()) - {first}
    os.kill(first, signal.SIGKILL)
    second = await node.ready(other_than=first)
    assert node.state().last_end == "signal 9"
    assert server not in node.processes()
    assert node.processes() == [second]
    await ended(task)


async def test_a_daemon_that_does_not_answer_any_more_is_ended(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.sharing.mps_supervisor.ANSWER_S", 0.3)
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    first = await node.ready()
    hang = node.misbehave("hang")
    await node.until(lambda: node.state().pid is None)
    assert "it did not answer" in node.state().last_end
    assert first not in node.processes()
    hang.unlink()
    assert await node.ready() != first
    await ended(task)


@pytest.mark.parametrize("missed", [PROBES_MISSED - 1, PROBES_MISSED])
@pytest.mark.parametrize("has_server", [False, True])
async def test_the_third_probe_without_an_answer_decides(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, missed: int, has_server: bool
) -> None:
    """The probe after it is answered, once the test has seen what the daemon's state was."""
    monkeypatch.setattr("nodeagent.sharing.mps_supervisor.ANSWER_S", 0.05)
    coming: list[str] = []
    judged = threading.Event()

    class Probed(MpsControl):
        def probe(self, timeout_s: float) -> None:
            match coming.pop() if coming else "":
                case "silent":
                    raise MpsError("silent")
                case "answer":
                    judged.wait(20)
            super().probe(5)

    def probed(uuid: str, folder: Path) -> MpsControl:
        return Probed(uuid, folder, program=str(node.bin / "nvidia-cuda-mps-control"))

    node.want(ONE)
    task = asyncio.create_task(MpsSupervisor(node.folder, lambda *_: None, probed, PACE).run())
    first = await node.ready()
    if has_server:
        node.control(ONE).ask("start_server -uid 0", 10)
    coming += ["answer", *["silent"] * missed]
    decided = missed == PROBES_MISSED
    if decided and has_server:
        await node.until(lambda: "does not answer" in node.state().obstacle)
    elif decided:
        await node.until(lambda: node.state().pid is None)
    else:
        await until(lambda: not coming)
    judged.set()
    await until(lambda: node.state().pid is not None and not node.state().obstacle)
    assert (node.state().pid != first) == (decided and not has_server)
    await ended(task)


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_client_that_says_nothing_ends_no_program(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    monkeypatch.setattr("nodeagent.sharing.mps_supervisor.ANSWER_S", 0.3)
    await a_silent_client_ends_no_program(node, adopted=adopted)


async def test_a_daemon_that_does_not_start_is_an_obstacle_with_the_reason(node: MpsNode) -> None:
    refuse = node.misbehave("refuse")
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    await node.until(lambda: "does not start" in node.state().obstacle)
    refuse.unlink()
    await node.ready()
    assert node.state().obstacle == ""
    await ended(task)
    (node.bin / "nvidia-cuda-mps-control").unlink()
    task = asyncio.create_task(node.supervisor().run())
    await node.until(lambda: "nvidia-cuda-mps-control is not there" in node.state().obstacle)
    await ended(task)


async def test_the_compute_mode_is_set_with_leave_and_taken_back(node: MpsNode) -> None:
    node.want(ONE, exclusive=True)
    task = asyncio.create_task(node.supervisor().run())
    await node.ready()
    assert node.modes == [(ONE, True)]
    assert node.state().exclusive
    node.want(ONE)
    await node.until(lambda: not node.state().exclusive)
    node.want(ONE, exclusive=True)
    await node.until(lambda: node.state().exclusive)
    await ended(task)
    assert node.modes == [(ONE, True), (ONE, False), (ONE, True), (ONE, False)]


async def test_only_one_process_runs_the_daemons(node: MpsNode) -> None:
    node.want(ONE)
    first = asyncio.create_task(node.supervisor().run())
    pid = await node.ready()
    second = asyncio.create_task(node.supervisor().run())
    await asyncio.sleep(0)
    assert node.processes() == [pid]
    await ended(first)
    assert await node.ready(other_than=pid)
    await ended(second)
    assert node.processes() == []


@pytest.mark.parametrize("own_namespace", [True, False])
def test_a_program_of_a_pod_is_not_taken_for_a_daemon(
    node: MpsNode, tmp_path: Path, *, own_namespace: bool
) -> None:
    """It may take the name, the arguments and the environment of a daemon. It has another PID namespace."""
    control = node.control(ONE)
    proc = tmp_path / "proc"
    for pid, namespace in (("self", "pid:[1]"), ("7", "pid:[1]" if own_namespace else "pid:[2]")):
        (proc / pid / "ns").mkdir(parents=True)
        (proc / pid / "ns/pid").symlink_to(namespace)
    (proc / "7/comm").write_bytes(b"nvidia-cuda-mps\n")
    (proc / "7/cmdline").write_bytes(b"/bin/nvidia-cuda-mps-control\0-f\0")
    (proc / "7/environ").write_bytes(f"A=b\0CUDA_MPS_PIPE_DIRECTORY={control.pipes}\0".encode())
    control = MpsControl(ONE, node.folder / ONE, program="none", proc=proc)
    assert control.running() == (7 if own_namespace else None)
    (proc / "7/cmdline").write_bytes(b"/bin/nvidia-cuda-mps-control\0")
    assert control.running() is None, "it only sends a command"


@pytest.mark.parametrize("content", [b"", b'{"gpus": [7]}', None])
async def test_a_list_of_gpus_that_cannot_be_read_ends_no_daemon(
    node: MpsNode, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    pid = await node.ready()
    looked = asyncio.Event()
    read = MpsFiles.read_wanted

    def read_wanted(files: MpsFiles) -> WantedDaemons:
        looked.set()
        return read(files)

    monkeypatch.setattr(MpsFiles, "read_wanted", read_wanted)
    if content is None:
        (node.folder / "wanted.json").unlink()
    else:
        replace_file(node.folder / "wanted.json", content)
    await asyncio.wait_for(looked.wait(), 20)
    node.want(ONE, TWO)
    await node.ready(TWO)
    assert node.state(ONE).pid == pid
    assert not task.done()
    await ended(task)


@pytest.mark.parametrize("uuid", ["../../victim", "GPU-../victim", "GPU-aa/..", "/victim", "GPU-aa\n", ""])
def test_a_name_that_is_no_uuid_is_refused_in_both_files(node: MpsNode, uuid: str) -> None:
    replace_file(node.folder / "wanted.json", json.dumps({"gpus": [uuid]}).encode())
    with pytest.raises(ValueError, match="regex"):
        node.files.read_wanted()
    replace_file(node.folder / "daemons.json", json.dumps({"daemons": [{"uuid": uuid}]}).encode())
    assert node.files.read_states().daemons == ()


def test_a_link_in_the_place_of_the_folder_of_a_gpu_deletes_nothing(node: MpsNode, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "pipe").mkdir(parents=True)
    (node.folder / GPUS[0]).symlink_to(victim)
    with pytest.raises(OSError, match="GPU-aaaa"):
        node.control(GPUS[0]).clear()
    assert (victim / "pipe").is_dir()


def test_a_process_with_a_name_of_any_bytes_stops_nothing(node: MpsNode, tmp_path: Path) -> None:
    """A program in any pod sets its name (prctl), and the daemons' pod has the processes of the host."""
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "comm").write_bytes(b"\xff\xfe\n")
    control = MpsControl(ONE, node.folder / ONE, program="none", proc=proc)
    assert control.running() is None
    control.clear()


async def test_a_process_that_got_the_pid_of_an_ended_daemon_is_not_ended(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal goes to the process that was opened, and never to a number."""
    node.want(ONE)
    task = asyncio.create_task(node.supervisor().run())
    first = await node.ready()
    signals: list[int] = []
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: (signals.append(pid), kill(pid, number)))
    monkeypatch.setattr("nodeagent.sharing.mps_supervisor.ANSWER_S", 0.3)
    hang = node.misbehave("hang")
    await node.until(lambda: node.state().pid is None)
    hang.unlink()
    await node.ready(other_than=first)
    await ended(task)
    assert first not in signals


async def test_the_verb_ends_its_daemons_and_adopts_those_of_one_that_was_killed(node: MpsNode) -> None:
    node.want(ONE)
    verb = Verb(node)
    try:
        pid = await node.ready()
        verb.end(signal.SIGKILL)
        assert node.processes() == [pid], "a daemon outlives the process that started it"
        assert not node.files.is_locked()
        verb = Verb(node)
        await node.until(node.files.is_locked)
        # Its first state after the start is that of the daemon that it has adopted.
        node.want(ONE, TWO)
        await node.ready(TWO)
        assert node.state(ONE).pid == pid
        assert verb.end(signal.SIGTERM) == 0
        assert node.processes() == []
    finally:
        verb.process.kill()
        verb.process.wait()


class Lives(RuleBasedStateMachine):
    """Daemons crash, supervisors end or die, and the agent changes its mind, in any order. After each step: one daemon
    for each wanted GPU, none for others, and nothing is left at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory(prefix="mps-")
        self.node = MpsNode(Path(self.folder.name))
        self.wanted: tuple[str, ...] = ()
        self.task: asyncio.Task[None] | None = None

    @rule(wanted=st.sampled_from([(), (ONE,), (TWO,), GPUS]))
    def want(self, wanted: tuple[str, ...]) -> None:
        self.wanted = wanted
        self.node.want(*wanted)
        self.settle()

    @precondition(lambda self: self.task is None)
    @rule()
    def start(self) -> None:
        self.task = self.loop.create_task(self.node.supervisor().run())
        self.settle()

    @precondition(lambda self: self.task is not None)
    @rule()
    def end(self) -> None:
        assert self.task is not None
        self.loop.run_until_complete(ended(self.task))
        self.task = None
        assert self.node.processes() == []

    @precondition(lambda self: self.task is not None and self.wanted)
    @rule(which=st.integers(0, 1), server=st.booleans())
    def crash(self, which: int, server: bool) -> None:
        uuid = self.wanted[which % len(self.wanted)]
        pid = self.node.state(uuid).pid
        assert pid is not None
        if server:
            self.node.control(uuid).ask("start_server -uid 1000", 20)
        os.kill(pid, signal.SIGKILL)
        self.loop.run_until_complete(asyncio.wait_for(self.node.ready(uuid, other_than=pid), 60))
        self.settle()

    def settle(self) -> None:
        if self.task is None:
            return

        def settled() -> bool:
            states = {state.uuid: state for state in self.node.files.read_states().daemons}
            return states.keys() == set(self.wanted) and all(
                s.pid and not s.obstacle for s in states.values()
            )

        self.loop.run_until_complete(asyncio.wait_for(self.node.until(settled), 60))
        pids = sorted(state.pid or 0 for state in self.node.files.read_states().daemons)
        assert self.node.processes() == pids, "a daemon for each GPU, and nothing else"

    def teardown(self) -> None:
        if self.task is not None:
            self.loop.run_until_complete(ended(self.task))
        left = self.node.processes()
        self.node.kill_all()
        self.loop.close()
        self.folder.cleanup()
        assert left == []


def test_any_order_of_lives_leaves_one_daemon_for_each_gpu_and_no_orphan() -> None:
    case = Lives.TestCase()
    case.settings = settings(max_examples=examples(5), stateful_step_count=8, deadline=None)
    case.runTest()
