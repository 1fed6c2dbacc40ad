"""The program ``nvidia-cuda-mps-control`` for one GPU: start its daemon, send it commands, find its processes.

The daemon makes sockets and a file with its pid in CUDA_MPS_PIPE_DIRECTORY. The protocol of the sockets is not
documented; the documented way to send a command is the program itself, which reads it from its input (NVIDIA, MPS
documentation, "nvidia-cuda-mps-control"). Each call blocks.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nodeagent.host.file_writing import PUBLIC_FOLDER, make_folder
from nodeagent.plain_text import one_line
from nodeagent.regular_file import read_regular

PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
PID_FILE = "nvidia-cuda-mps-control.pid"
PROBE = "get_default_active_thread_percentage"
"""A command that changes nothing and that every daemon answers with a number."""
KILLED_S = 2.0
"""A process that holds a GPU may take a moment to end."""
_ANSWER_MAX = 200
_PID_FILE_MAX = 64
_COMM_MAX = 15  # the kernel cuts the name of a process (TASK_COMM_LEN)


class MpsError(Exception):
    """The daemon does not answer, or the program cannot be run. The message is one sentence."""


class MpsControl:
    """``folder`` gets the pipes and the logs of the daemon. Its path is the same for the daemon and on the host."""

    def __init__(
        self, uuid: str, folder: Path, *, program: str = PROGRAM, proc: Path = Path("/proc")
    ) -> None:
        self.uuid, self.pipes, self.logs = uuid, folder / "pipe", folder / "log"
        self._program, self._proc = program, proc

    def start(self) -> int:
        """Start the daemon in a session of its own and return its pid. Raises ``MpsError``, ``OSError``."""
        for folder in (self.pipes, self.logs):
            make_folder(folder, PUBLIC_FOLDER)
        # The signals that this process blocks must end the daemon; `subprocess` would pass the block on.
        return os.posix_spawn(
            path := self._found(),
            [path, "-f"],
            self._environ(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=(),
        )

    def ask(self, command: str, timeout_s: float) -> str:
        """Send a command and return the answer. Raises ``MpsError``."""
        try:
            done = subprocess.run(
                [self._found()],
                input=f"{command}\n",
                env=self._environ(),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"the daemon does not answer {command} within {timeout_s:g} s") from None
        except OSError as error:
            raise MpsError(f"{self._program} cannot be run: {error.strerror}") from error
        if done.returncode:
            answer = one_line(done.stderr or done.stdout, _ANSWER_MAX, ascii_only=True)
            raise MpsError(f"{command}: exit code {done.returncode}: {answer}")
        return done.stdout.strip()

    def probe(self, timeout_s: float) -> None:
        """Return if the daemon answers. Raises ``MpsError``."""
        answer = self.ask(PROBE, timeout_s)
        try:
            float(answer)
        except ValueError:
            raise MpsError(f"{PROBE}: {one_line(answer, _ANSWER_MAX, ascii_only=True)!r}") from None

    def running(self) -> int | None:
        """Return the pid of a daemon that an earlier process has started for this GPU and that is alive."""
        try:  # every client may write to this folder
            pid = int(read_regular(self.pipes / PID_FILE, _PID_FILE_MAX))
        except (OSError, ValueError):
            return None
        return pid if pid in self._processes(PROGRAM) else None

    def clear(self) -> None:
        """End what is left of the daemon: its servers, which would keep the GPU, and its pipes. Raises ``OSError``."""
        for pid in (*self._processes(PROGRAM), *self._processes(SERVER)):
            with suppress(ProcessLookupError):
                _kill(pid)
        try:  # the agent, which has fewer rights, may replace this folder by a link to another one
            folder = os.open(self.pipes.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            shutil.rmtree(self.pipes.name, ignore_errors=True, dir_fd=folder)
        finally:
            os.close(folder)

    def _found(self) -> str:
        path = shutil.which(self._program)
        if path is None:
            raise MpsError(
                f"{self._program} is not there: NVIDIA's runtime adds it with "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            )
        return path

    def _environ(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return passed | {
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }

    def _processes(self, name: str) -> list[int]:
        """Return the processes of this name whose pipes are those of this GPU. Both are in the kernel's files."""
        return list(self._of_name(Path(name).name[:_COMM_MAX], name))

    def _of_name(self, comm: str, name: str) -> Iterator[int]:
        mark = f"CUDA_MPS_PIPE_DIRECTORY={self.pipes}".encode()
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                if (entry / "comm").read_bytes().rstrip(b"\n") != comm.encode():  # a program's, of any bytes
                    continue
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                named = any(Path(os.fsdecode(argument)).name == name for argument in arguments[:3])
                if named and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _kill(pid: int) -> None:
    """End a process, and wait until it has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], KILLED_S)
    finally:
        os.close(descriptor)
