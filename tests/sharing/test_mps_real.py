"""``nodeagent mps`` with NVIDIA's own ``nvidia-cuda-mps-control``, which needs no GPU, beside the stand-in."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu
from nodeagent.host.mps_control import MpsControl
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.sharing.mps_supervisor import ANSWER_S, PROBE_S, PROBES_MISSED, MpsSupervisor, SupervisorPace
from nodeagent.sharing.mps_watch import MpsWatch
from tests.sharing.mps_node import (
    GPUS,
    MpsNode,
    Verb,
    a_silent_client_ends_no_program,
    ended,
    mps_node,
    silent_client,
)
from tests.support.needs import which
from tests.support.waiting import until

ONE, TWO = GPUS
PROGRAM = "nvidia-cuda-mps-control"

CONVERSATION = (
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 50",
    "get_default_active_thread_percentage",
    "get_server_list",
    "get_client_list 5",
    "start_server",
    "nonsense",
    "",
    "get_server_list\nget_default_active_thread_percentage",
)


@pytest.fixture
def real() -> Iterator[MpsNode]:
    program = which(PROGRAM)
    assert program is not None
    # The path of a socket has 107 characters.
    with tempfile.TemporaryDirectory(prefix="mps-") as folder, mps_node(Path(folder), Path(program)) as node:
        yield node


class Talk:
    """A conversation with the daemon of one folder."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.pipes = program, folder / "pipe"
        self.environ = {
            "PATH": os.environ["PATH"],
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(folder),
        }

    def daemon(self) -> subprocess.Popen[bytes]:
        arguments = [self.program, "-f"]
        return subprocess.Popen(
            arguments, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def run(self, *options: str, text: str = "", limit_s: float = 20) -> tuple[int, str, str]:
        arguments, pipe = [self.program, *options], subprocess.PIPE
        done = subprocess.run(  # noqa: PLW1510 - the exit code is a fact
            arguments, input=text, env=self.environ, stdout=pipe, stderr=pipe, text=True, timeout=limit_s
        )
        return done.returncode, done.stdout, done.stderr

    def listing(self) -> list[tuple[str, str]]:
        return sorted((entry.name, stat.filemode(entry.lstat().st_mode)) for entry in self.pipes.iterdir())

    def lock_holder(self) -> int:
        with open(self.pipes / "control_lock") as file:
            asked = struct.pack("hhlli4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            return int(struct.unpack("hhlli4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[4])


@contextmanager
def session(talk: Talk) -> Iterator[int]:
    """An open session, as of a person: the descriptor of its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([talk.program], env=talk.environ, stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        yield ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


async def said(terminal: int, command: str, answer: bytes) -> None:
    """Send a command on an open session, and await its answer."""
    os.write(terminal, f"{command}\n".encode())
    heard = b""
    while answer not in heard:
        heard += await asyncio.wait_for(asyncio.to_thread(os.read, terminal, 1000), 20)


async def conversation(talk: Talk) -> list[object]:
    talk.pipes.mkdir(parents=True)
    facts: list[object] = [talk.run(text="get_server_list\n")]
    daemon = talk.daemon()
    try:
        await until(lambda: talk.run(text="get_server_list\n")[0] == 0, "the daemon does not answer")
        facts += [talk.listing(), talk.lock_holder() == daemon.pid]
        facts += [(text, talk.run(text=f"{text}\n")) for text in CONVERSATION]
        facts += [talk.run("-f"), talk.run("-d")]
        with session(talk) as terminal:
            await said(terminal, "get_default_active_thread_percentage", b"50.0")
            # Its end is seen before or after the command is sent: refused, or an empty answer.
            facts.append(talk.run(text="get_default_active_thread_percentage\n")[1])
        await until(lambda: talk.run(text="get_server_list\n")[0] == 0, "the session is not over")
        with silent_client(talk.pipes), pytest.raises(subprocess.TimeoutExpired):
            talk.run(text="get_server_list\n", limit_s=1)
        await until(lambda: talk.run(text="get_server_list\n")[0] == 0, "the silent client is not gone")
        facts += [talk.run(text="quit\n"), daemon.wait(20), talk.listing()]
        facts.append(talk.run(text="get_server_list\n"))
    finally:
        daemon.kill()
        daemon.wait()
    return facts


@pytest.mark.needs(PROGRAM)
async def test_the_stand_in_answers_as_the_real_program(tmp_path: Path) -> None:
    program = which(PROGRAM)
    assert program is not None
    with mps_node(tmp_path / "node") as node:
        stand_in = await conversation(Talk(node.bin / PROGRAM, tmp_path / "b"))
    assert stand_in == await conversation(Talk(Path(program), tmp_path / "a"))


def test_a_hang_is_found_within_15_s() -> None:
    assert PROBE_S + PROBES_MISSED * ANSWER_S <= 15


@pytest.mark.needs(PROGRAM)
async def test_daemons_and_connections_survive_new_agents_and_supervisors(real: MpsNode) -> None:
    real.want(ONE)
    talk = Talk(real.bin / PROGRAM, real.folder / ONE)
    with running(real) as verb:
        pid = await real.ready()
        with session(talk) as terminal:
            await said(terminal, "get_default_active_thread_percentage", b"100.0")
            for gpus in ((ONE,), (ONE, TWO)):  # the update of an agent: its half ends, another one starts
                await agent_names(real, *gpus)
            assert real.state(ONE).pid == pid
            verb.end(signal.SIGKILL)
            await said(terminal, "set_default_active_thread_percentage 40", b"40.0")
            with running(real) as next_verb:
                await real.until(real.files.is_locked)
                await agent_names(real, ONE)  # its first state is that of the daemon that it has adopted
                await real.until(lambda: real.state(TWO).obstacle == "unknown")
                assert (real.state(ONE).pid, real.state(ONE).last_end) == (pid, "")
                assert real.processes() == [pid]
                await said(terminal, "set_default_active_thread_percentage 30", b"30.0")
                assert next_verb.end(signal.SIGTERM) == 0
        assert real.processes() == []


@contextmanager
def running(node: MpsNode) -> Iterator[Verb]:
    verb = Verb(node)
    try:
        yield verb
    finally:
        verb.process.kill()
        verb.process.wait()


async def agent_names(node: MpsNode, *uuids: str) -> None:
    inventory = Inventory()
    gpus = tuple(
        Gpu(uuid, n, n, "H100", f"0000:{n + 0x1B:02x}:00.0", 4096, 0) for n, uuid in enumerate(uuids)
    )
    inventory.publish("gpus", gpus=gpus)
    kind = GpuMemory("x/gpu-mem", enforcement="mps", mps=MpsShares(str(node.folder), clients=2))
    watch = MpsWatch(node.folder, inventory, lambda: (kind,), exclusive_process=False)
    task = asyncio.create_task(watch.run())
    await until(lambda: dict(inventory.snapshot.mps_obstacles) == dict.fromkeys(uuids, ""), "not ready")
    await ended(task)


@pytest.mark.needs(PROGRAM)
async def test_a_session_of_a_person_ends_no_daemon(real: MpsNode) -> None:
    """The daemon serves one session at a time, and refuses each probe beside it."""
    probes: list[None] = []

    class Counted(MpsControl):
        def probe(self, timeout_s: float) -> None:
            super().probe(timeout_s)
            probes.append(None)

    real.want(ONE)
    pace, program = SupervisorPace(probe_s=0.05), str(real.bin / PROGRAM)
    control = partial(Counted, program=program)
    task = asyncio.create_task(MpsSupervisor(real.folder, lambda *_: None, control, pace).run())
    pid = await real.ready()
    with session(Talk(real.bin / PROGRAM, real.folder / ONE)) as terminal:
        await said(terminal, "get_default_active_thread_percentage", b"100.0")
        before = len(probes)
        await until(lambda: len(probes) > before + 2 * PROBES_MISSED, "a probe was not answered")
        assert real.processes() == [pid]
        await said(terminal, "get_default_active_thread_percentage", b"100.0")
    await ended(task)


@pytest.mark.needs(PROGRAM)
@pytest.mark.parametrize("adopted", [False, True])
async def test_a_client_that_says_nothing_to_a_real_daemon_ends_no_program(
    real: MpsNode, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    """The real daemon starts the server that it finds on its path, here the stand-in, which needs no GPU."""
    monkeypatch.setenv("PATH", f"{real.bin}:{os.environ['PATH']}")
    monkeypatch.setattr("nodeagent.sharing.mps_supervisor.ANSWER_S", 0.3)
    await a_silent_client_ends_no_program(real, adopted=adopted)


@pytest.mark.needs(PROGRAM)
@pytest.mark.slow
async def test_a_real_daemon_that_hangs_is_replaced(real: MpsNode) -> None:
    real.want(ONE)
    task = asyncio.create_task(real.supervisor(SupervisorPace(again_s=0.01)).run())
    first = await real.ready()
    os.kill(first, signal.SIGSTOP)
    second = await real.ready(other_than=first)
    assert second != first
    assert "does not answer" in real.state().last_end
    assert (real.folder / ONE / "log/control.log.1").read_text().count("Starting control daemon") == 1
    await ended(task)
    assert real.processes() == []


@pytest.mark.needs(PROGRAM)
def test_a_program_that_sends_a_command_is_no_daemon(real: MpsNode) -> None:
    control = real.control(ONE)
    pid = control.start()
    environ = Talk(real.bin / PROGRAM, real.folder / ONE).environ
    with subprocess.Popen([real.bin / PROGRAM], env=environ, stdin=subprocess.PIPE) as client:
        comm = Path(f"/proc/{client.pid}/comm")  # set after `exec` has closed what Popen waits for
        asyncio.run(until(lambda: comm.read_text() == "nvidia-cuda-mps\n", "it has another name"))
        assert control.running() == pid
        client.kill()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert control.running() is None
