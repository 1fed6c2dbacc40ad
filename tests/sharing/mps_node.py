"""A node with NVIDIA's MPS program or its stand-in, and the supervisor of its daemons, here or as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent.host.mps_control import MpsControl, MpsError, ProgramMissingError
from nodeagent.sharing.mps_files import DaemonState, MpsFiles, WantedDaemons
from nodeagent.sharing.mps_supervisor import PROBES_MISSED, MpsSupervisor, SupervisorPace
from tests.support.waiting import LIMIT_S, until

BIN = Path(__file__).parent / "bin"
PACE = SupervisorPace(probe_s=0.1, start_s=20.0, again_s=0.01)
GPUS = ("GPU-aaaa", "GPU-bbbb")


class MpsNode:
    def __init__(self, root: Path, program: Path | None = None) -> None:
        """``program``: NVIDIA's own, in place of the stand-in."""
        self.folder, self.bin = root / "mps", root / "bin"
        self.bin.mkdir(parents=True)
        for script in BIN.iterdir():
            _, _, rest = script.read_text().partition("\n")
            made = self.bin / script.name
            # The name of the process is that of the script only without an `env` in between.
            made.write_text(f"#!{sys.executable} -SE\n{rest}")
            made.chmod(0o755)
        if program is not None:
            (self.bin / program.name).unlink()
            (self.bin / program.name).symlink_to(program)
        self.folder.mkdir()
        self.files = MpsFiles(self.folder)
        self.modes: list[tuple[str, bool]] = []
        """The compute modes that were set."""

    def control(self, uuid: str, folder: Path | None = None) -> MpsControl:
        program = str(self.bin / "nvidia-cuda-mps-control")
        return MpsControl(uuid, folder or self.folder / uuid, program=program)

    def want(self, *gpus: str, exclusive: bool = False) -> None:
        self.files.write_wanted(WantedDaemons(gpus, exclusive))

    def supervisor(self, pace: SupervisorPace = PACE) -> MpsSupervisor:
        return MpsSupervisor(self.folder, lambda *mode: self.modes.append(mode), self.control, pace)

    def state(self, uuid: str = GPUS[0]) -> DaemonState:
        states = {state.uuid: state for state in self.files.read_states().daemons}
        return states.get(uuid, DaemonState(uuid, "unknown"))

    async def until(self, reached: Callable[[], object]) -> None:
        """Return when it is true after a change of the states."""
        with FolderWatch() as watch:
            watch.add(self.folder, CONTENT)
            async with asyncio.timeout(LIMIT_S):
                while not reached():
                    await watch.changes()

    async def ready(self, uuid: str = GPUS[0], *, other_than: int | None = None) -> int:
        await self.until(lambda: self.state(uuid).pid not in (None, other_than))
        pid = self.state(uuid).pid
        assert pid is not None
        return pid

    def misbehave(self, how: str, uuid: str = GPUS[0]) -> Path:
        path = self.folder / uuid / how
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return path

    def processes(self) -> list[int]:
        """All daemons and servers of this node, of each supervisor, without programs that send a command."""
        mark = f"CUDA_MPS_PIPE_DIRECTORY={self.folder}/".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    arguments = (entry / "cmdline").read_bytes()
                    if b"\0-f\0" in arguments or b"mps-server" in arguments:
                        found.append(int(entry.name))
        return sorted(found)

    def kill_all(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextmanager
def silent_client(pipes: Path) -> Iterator[None]:
    """Connect to the daemon as each pod may, and send nothing."""
    folder = os.open(pipes, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"/proc/self/fd/{folder}/control")
            yield
    finally:
        os.close(folder)


class Verb:
    """`nodeagent mps` as a process."""

    def __init__(self, node: MpsNode) -> None:
        path = f"{node.bin}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", "mps", "--directory", node.folder],
            env=os.environ | {"PATH": path},
            stderr=subprocess.DEVNULL,
        )

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def mps_node(root: Path, program: Path | None = None) -> Iterator[MpsNode]:
    node = MpsNode(root, program)
    try:
        yield node
    finally:
        node.kill_all()


async def a_silent_client_ends_no_program(node: MpsNode, *, adopted: bool) -> None:
    """While a client says nothing, its GPU is not ready, and the daemon, the server and its programs stay.
    ``adopted``: `nodeagent mps` starts in this time."""
    missed: list[MpsError] = []

    class Counted(MpsControl):
        def probe(self, timeout_s: float) -> None:
            try:
                super().probe(timeout_s)
            except MpsError as error:
                missed.append(error)
                raise

    def counted(uuid: str, folder: Path) -> MpsControl:
        return Counted(uuid, folder, program=str(node.bin / "nvidia-cuda-mps-control"))

    supervisor = MpsSupervisor(node.folder, lambda *_: None, counted, PACE)
    control = node.control(GPUS[0])
    if adopted:
        control.start()
        await until(
            lambda: control.running() and (control.pipes / "control").exists(), "the daemon does not start"
        )
    node.want(GPUS[0])
    task = None if adopted else asyncio.create_task(supervisor.run())
    if task is not None:
        await node.ready()
    control.ask("start_server -uid 0", 10)
    both, daemon = node.processes(), control.running()
    assert len(both) == 2
    with silent_client(control.pipes):
        task = task or asyncio.create_task(supervisor.run())
        await node.until(lambda: "does not answer" in node.state().obstacle)
        before = len(missed)
        await until(lambda: len(missed) > before + PROBES_MISSED, "no further probe was missed")
        assert (node.processes(), node.state().pid) == (both, daemon)
        program, aside = node.bin / "nvidia-cuda-mps-control", node.bin / "aside"
        program.rename(aside)  # a program that is not there says nothing about the daemon
        await until(lambda: [type(one) for one in missed[-3:]] == [ProgramMissingError] * 3, "it is there")
        assert "does not answer" in node.state().obstacle
        aside.rename(program)
    await node.until(lambda: not node.state().obstacle)
    assert (node.processes(), node.state().pid, node.state().last_end) == (both, daemon, "")
    await ended(task)
    assert node.processes() == []


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
