"""The program ``nvidia-cuda-mps-control`` for one GPU: start its daemon, send it commands, find its processes.

The protocol of the sockets is not documented; the documented way to send a command is the program itself, which reads
it from its input (NVIDIA, MPS documentation, "nvidia-cuda-mps-control"). The real program 535.261.03 taught the rest:

* The daemon leaves no file with its pid. It holds a record lock on ``control_lock`` as long as it lives.
* A program that sends a command has the same name and environment; only the daemon has ``-f`` or ``-d``.
* With ``-f`` it writes its log to its output, and no ``control.log``.
* It serves one session at a time. While a person has one open, another is refused at once.
* While a program has connected and sends nothing, it answers nobody. Its servers go on.

Clients may write to the folder of the pipes, and the agent, which has fewer rights, to those above it. So a process is
known by what the kernel says of it, and files are opened as ``host.foreign_folder`` says. Each call blocks.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from nodeagent.base.file_writing import PUBLIC_FOLDER
from nodeagent.base.plain_text import one_line
from nodeagent.host.foreign_folder import ForeignFolder

PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
LOG = "control.log"
LOG_MAX = 1 << 20
"""Bytes; the daemon adds some 500 for each probe."""
PROBE = "get_default_active_thread_percentage"
"""A command that changes nothing and that every daemon answers with a number."""
KILLED_S = 2.0
"""A process that holds a GPU may take a moment to end."""
_ANSWER_MAX = 200
_LOCK = "control_lock"
_FLOCK = "hhlli4x"
"""``struct flock``: type, whence, start, length, pid."""
_REFUSED = "Cannot send command to MPS control daemon process"
_COMM_MAX = 15  # the kernel cuts the name of a process (TASK_COMM_LEN)


class MpsError(Exception):
    """The daemon does not answer, or the program cannot be run. The message is one sentence."""


class ProgramMissingError(MpsError):
    """The program cannot be run, which says nothing about the daemon."""


class SessionRefusedError(MpsError):
    """The daemon lives and serves another session."""


class MpsControl:
    """``folder`` gets the pipes and the logs of the daemon. Its path is the same for the daemon and on the host."""

    def __init__(
        self, uuid: str, folder: Path, *, program: str = PROGRAM, proc: Path = Path("/proc")
    ) -> None:
        self.uuid, self.pipes, self.logs = uuid, folder / "pipe", folder / "log"
        self._folder, self._program, self._proc = folder, program, proc

    def start(self) -> int:
        """Start the daemon in a session of its own and return its pid. Raises ``MpsError``, ``OSError``."""
        path = self._found()
        with (
            ForeignFolder.at(self._folder.parent) as above,
            above.below(self._folder.name, PUBLIC_FOLDER) as own,
        ):
            own.guard(PUBLIC_FOLDER)
            own.below(self.pipes.name, PUBLIC_FOLDER).close()
            with own.below(self.logs.name, PUBLIC_FOLDER) as logs:
                with suppress(FileNotFoundError):
                    logs.rename(LOG, f"{LOG}.1")
                log = logs.create(LOG, 0o644)
        try:
            # The signals that this process blocks must end the daemon; `subprocess` would pass the block on.
            return os.posix_spawn(
                path,
                [path, "-f"],
                self._environ(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=(),
            )
        finally:
            os.close(log)

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
            raise ProgramMissingError(f"{self._program} cannot be run: {error.strerror}") from error
        if done.returncode:
            answer = one_line((done.stderr or done.stdout).strip(), _ANSWER_MAX, ascii_only=True)
            kind = SessionRefusedError if answer == _REFUSED else MpsError
            raise kind(f"{command}: exit code {done.returncode}: {answer}")
        return done.stdout.strip()

    def probe(self, timeout_s: float) -> None:
        """Return if the daemon answers, also if it refuses a second session. Raises ``MpsError``."""
        try:
            answer = self.ask(PROBE, timeout_s)
        except SessionRefusedError:
            return
        try:
            float(answer or 100)  # a session may also be refused after the command was sent
        except ValueError:
            raise MpsError(f"{PROBE}: {one_line(answer, _ANSWER_MAX, ascii_only=True)!r}") from None

    def cut_log(self) -> None:
        """Empty the log of the daemon if it is long. Raises ``OSError``."""
        with suppress(FileNotFoundError), self._opened(self.logs.name) as logs:
            descriptor = logs.open(LOG, os.O_WRONLY)
            try:
                if os.fstat(descriptor).st_size > LOG_MAX:
                    os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def running(self) -> int | None:
        """Return the pid of a daemon that an earlier process has started for this GPU and that is alive."""
        pids = [pid for pid in self._pids() if self._is(pid, PROGRAM, daemon=True)]
        if len(pids) > 1:  # one that finds another one ends by itself
            holder = self._lock_holder()
            pids = [pid for pid in pids if pid == holder]
        return pids[0] if pids else None

    def has_server(self) -> bool:
        """Whether a server of this GPU runs, which programs may use."""
        return any(self._is(pid, SERVER) for pid in self._pids())

    def is_daemon(self, pid: int) -> bool:
        """Whether this process is a daemon of this GPU. Ask after ``pidfd_open``: a pid may be given again."""
        return self._is(pid, PROGRAM, daemon=True)

    def clear(self) -> None:
        """End what is left of the daemon: its servers, which would keep the GPU, and its pipes. Raises ``OSError``.

        The folder of the pipes stays, because running containers have it mounted.
        """
        for name in (PROGRAM, SERVER):
            for pid in self._pids():
                if self._is(pid, name):
                    with suppress(ProcessLookupError):
                        self._kill(pid, name)
        with suppress(FileNotFoundError), self._opened(self.pipes.name) as pipes:
            pipes.empty()

    def _opened(self, name: str) -> ForeignFolder:
        with ForeignFolder.at(self._folder.parent) as above, above.below(self._folder.name) as own:
            return own.below(name)

    def _found(self) -> str:
        path = shutil.which(self._program)
        if path is None:
            raise ProgramMissingError(
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

    def _lock_holder(self) -> int | None:
        """Return the process that holds the lock of the daemon."""
        with suppress(OSError), self._opened(self.pipes.name) as pipes:
            descriptor = pipes.open(_LOCK)
            try:
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            finally:
                os.close(descriptor)
            return int(pid) if kind != fcntl.F_UNLCK else None
        return None

    def _pids(self) -> list[int]:
        return [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()]

    def _is(self, pid: int, name: str, *, daemon: bool = False) -> bool:
        """Whether a process has this name and the pipes of this GPU. Both are in the kernel's files.

        A program in a pod may take both, so only processes of the own PID namespace count.
        """
        entry = self._proc / str(pid)
        with suppress(OSError):
            comm = (entry / "comm").read_bytes().rstrip(b"\n")  # a program's, of any bytes
            if comm != Path(name).name[:_COMM_MAX].encode():
                return False
            namespace = "ns/pid"
            if (entry / namespace).readlink() != (self._proc / "self" / namespace).readlink():
                return False
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if not any(Path(os.fsdecode(argument)).name == name for argument in arguments[:3]):
                return False
            if daemon and not {b"-f", b"-d"}.intersection(arguments):
                return False
            mark = f"CUDA_MPS_PIPE_DIRECTORY={self.pipes}".encode()
            return mark in (entry / "environ").read_bytes().split(b"\0")
        return False

    def _kill(self, pid: int, name: str) -> None:
        """End a process of this GPU, and wait until it has ended."""
        descriptor = os.pidfd_open(pid)
        try:
            if self._is(pid, name):  # now that the pid cannot be that of another one
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], KILLED_S)
        finally:
            os.close(descriptor)
