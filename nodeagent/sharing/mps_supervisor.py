"""Run one MPS control daemon for each GPU that the agent asks for (``nodeagent mps``).

Rules:

* The daemons are children of this process and not of the agent: programs lose the GPU when their daemon ends, and an
  update of the agent must not end them.
* A daemon that an earlier process has left is adopted.
* A daemon is ready when it answers a command. A hang is found within 15 s: ``PROBES_MISSED`` probes
  in turn are not answered. A program that cannot be run says nothing about the daemon.
* A daemon that hangs is ended only if it has no server, so that no program loses the GPU: each pod can make it hang by
  a connection on which it sends nothing. Else it stays, is not ready, and is ready again when it answers.
* A daemon that ended is started again after a growing pause, without the servers and pipes that it left.
* At the end of this process each daemon is asked to quit, and the compute modes that it set are taken back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.base.backoff import Backoff
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.file_writing import make_folder
from nodeagent.host.fd import wait_readable
from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent.host.mps_control import MpsControl, MpsError, ProgramMissingError
from nodeagent.sharing.mps_files import WANTED, DaemonState, DaemonStates, MpsFiles, WantedDaemons

log = logging.getLogger(__name__)

PROBE_S = 5.0
PROBES_MISSED = 3
"""In turn, one in ``ANSWER_S`` after the first."""
ANSWER_S = 3.0
"""For one command; the real program needs some milliseconds."""
_CALL_S = 15.0
_TEXT_MAX = 1024
READY_S = 0.2
"""Between the probes of a daemon that was just started."""
_START_S = 20.0
"""A daemon that does not answer by then is ended."""
QUIT_S = 5.0
MPS_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.5, 60.0
_STEADY_S = 60.0
"""After a life of this length the pauses start again with the first."""
_LOCK_S = 0.5

SetComputeMode = Callable[[str, bool], None]
"""Set the compute mode of a GPU to EXCLUSIVE_PROCESS, or back to DEFAULT. Blocks; raises ``DriverError``."""


def share_memory(folder: Path = Path("/dev/shm")) -> None:  # noqa: S108 - a part of the host's, shared with the clients
    """Let clients of any user write to the shared memory, as to /dev/shm. Only if it is a folder of its own."""
    with suppress(OSError):
        folder.chmod(0o1777)


class SupervisorPace(Struct, frozen=True):
    """Seconds between two probes, for a start, and before the first new start of a daemon that has ended."""

    probe_s: float = PROBE_S
    start_s: float = _START_S
    again_s: float = MPS_AGAIN_FIRST_S


class MpsSupervisor:
    """The daemons of this node. Belongs to one event loop."""

    def __init__(
        self,
        folder: Path,
        set_compute_mode: SetComputeMode,
        control: Callable[[str, Path], MpsControl] = MpsControl,
        pace: SupervisorPace | None = None,
    ) -> None:
        self._files = MpsFiles(folder)
        self._set_compute_mode, self._control, self._pace = (
            set_compute_mode,
            control,
            pace or SupervisorPace(),
        )
        self._daemons: dict[str, GpuDaemon] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._writes = BoundedCalls("states of MPS daemons", _CALL_S)

    async def run(self) -> None:
        """Run the daemons until cancelled, then end them. Raises ``OSError`` if the folder cannot be used."""
        make_folder(self._files.folder)
        lock = await self._lock()
        writer = asyncio.create_task(self._write_states())
        try:
            with FolderWatch() as watch:
                watch.add(self._files.folder, CONTENT)
                for state in self._read_states().daemons:
                    self._add(state)
                await self._follow(self._read_wanted())
                while True:
                    changes = await watch.changes()
                    if any(change.name in ("", WANTED) for change in changes):
                        await self._follow(self._read_wanted())
        finally:
            await self._end(tuple(self._daemons))
            writer.cancel()
            with suppress(OSError):
                self._files.write_states(self._states())
            os.close(lock)

    async def _lock(self) -> int:
        looks = 0
        while (lock := self._files.take_lock()) is None:
            looks += 1
            if looks == 2:  # the agent takes the lock for a moment to find out whether this process runs
                log.warning("Another process runs the MPS daemons of this node; waiting for its end.")
            await asyncio.sleep(_LOCK_S)
        return lock

    def _read_wanted(self) -> WantedDaemons:
        """Return the list of the agent, and the present daemons while it cannot be read."""
        try:
            wanted = self._files.read_wanted()
            if wanted.gpus:
                self._files.guard()
        except (OSError, ValueError) as error:
            if self._daemons or not isinstance(
                error, FileNotFoundError
            ):  # the agent may not have started yet
                log.warning("The list of the GPUs that need a daemon cannot be read. reason=%r", str(error))
            modes = (daemon.exclusive or daemon.state.exclusive for daemon in self._daemons.values())
            return WantedDaemons(tuple(self._daemons), any(modes))
        return wanted

    def _read_states(self) -> DaemonStates:
        try:
            return self._files.read_states()
        except OSError as error:
            log.warning("The states of an earlier process cannot be read. reason=%r", str(error))
            return DaemonStates()

    async def _follow(self, wanted: WantedDaemons) -> None:
        """Keep a daemon for each of these GPUs, and end the others."""
        await self._end([uuid for uuid in self._daemons if uuid not in wanted.gpus])
        for uuid in wanted.gpus:
            daemon = self._daemons.get(uuid) or self._add(DaemonState(uuid))
            daemon.exclusive = wanted.exclusive_process
            if uuid not in self._tasks:
                self._tasks[uuid] = asyncio.create_task(daemon.keep(), name=uuid)
            else:
                await daemon.apply_mode()

    def _add(self, state: DaemonState) -> GpuDaemon:
        control = self._control(state.uuid, self._files.folder / state.uuid)
        self._daemons[state.uuid] = daemon = GpuDaemon(
            state, control, self._set_compute_mode, self._pace, self._changed.set
        )
        return daemon

    async def _end(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            if (task := self._tasks.get(uuid)) is not None:
                task.cancel()
        for uuid in uuids:
            if (task := self._tasks.pop(uuid, None)) is not None:
                with suppress(asyncio.CancelledError):
                    await task
        for uuid in uuids:
            if (daemon := self._daemons.get(uuid)) is not None:
                await daemon.end()
                del self._daemons[uuid]
        self._changed.set()

    def _states(self) -> DaemonStates:
        return DaemonStates(tuple(self._daemons[uuid].state for uuid in sorted(self._daemons)))

    async def _write_states(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._writes.run(self._files.write_states, self._states())
            except (OSError, Unanswered) as error:
                log.warning("The states of the MPS daemons cannot be written. reason=%r", str(error))
                await asyncio.sleep(_LOCK_S)
                self._changed.set()


class GpuDaemon:
    """The daemon of one GPU. ``state`` is what the agent reads; ``changed`` is called when it differs."""

    def __init__(
        self,
        state: DaemonState,
        control: MpsControl,
        set_compute_mode: SetComputeMode,
        pace: SupervisorPace,
        changed: Callable[[], None],
    ) -> None:
        self.state, self.exclusive = state, False
        self._control, self._set_compute_mode, self._pace, self._changed = (
            control,
            set_compute_mode,
            pace,
            changed,
        )
        self._child: int | None = None
        self._unasked = False
        self._calls = BoundedCalls(f"MPS daemon of {state.uuid}", _CALL_S, alone=False)

    async def keep(self) -> None:
        """Keep the daemon running until cancelled."""
        backoff = Backoff(self._pace.again_s, _AGAIN_MAX_S)
        loop = asyncio.get_running_loop()
        before = self.state.pid
        while True:
            began = loop.time()
            try:
                pid = await self._start(before)
                how = await self._until_end(pid)
                self._report_end(how)
                await self._calls.run(self._control.clear)
            except (MpsError, OSError, Unanswered) as error:
                self._report(obstacle=f"the MPS daemon does not start: {error}", pid=None)
                log.warning("An MPS daemon does not start. gpu=%s reason=%r", self.state.uuid, str(error))
            before = None
            if loop.time() - began > _STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def end(self) -> None:
        """End the daemon, and take the compute mode back."""
        with suppress(MpsError, OSError, Unanswered):
            if await self._calls.run(self._control.running) is not None:
                await self._calls.run(self._control.ask, "quit", QUIT_S)
                log.info("An MPS daemon was ended. gpu=%s", self.state.uuid)
        with suppress(OSError, Unanswered):
            await self._calls.run(self._control.clear)
        self._reap()
        self.exclusive = False
        await self.apply_mode()

    async def apply_mode(self) -> None:
        """Set the compute mode as configured. Without leave it is never touched."""
        if self.state.exclusive == self.exclusive:
            return
        try:
            await self._calls.run(self._set_compute_mode, self.state.uuid, self.exclusive)
        except (DriverError, Unanswered) as error:
            log.warning("The compute mode is not set. gpu=%s reason=%r", self.state.uuid, str(error))
        else:
            self._report(exclusive=self.exclusive)

    async def _start(self, before: int | None) -> int:
        """Return the pid of the daemon. ``before``: that of an earlier process."""
        await self.apply_mode()
        pid = await self._calls.run(self._control.running)
        if pid is not None and await self._adopts(pid):
            return pid
        if before is not None:
            self._report_end("the process that ran it has ended")
        await self._calls.run(self._control.clear)
        self._child = await self._calls.run(self._control.start)
        await self._ready(self._child)
        return self._child

    async def _adopts(self, pid: int) -> bool:
        """Whether a daemon of an earlier process stays: it answers, or has a server."""
        silent = ""
        for _ in range(PROBES_MISSED):
            try:
                await self._calls.run(self._control.probe, ANSWER_S)
            except ProgramMissingError:
                raise
            except MpsError as error:
                silent = str(error)
                await asyncio.sleep(READY_S)
            else:
                silent = ""
                break
        uuid = self.state.uuid
        if silent and not await self._calls.run(self._control.has_server):
            log.warning(
                "An MPS daemon of an earlier process is ended. gpu=%s pid=%d reason=%r", uuid, pid, silent
            )
            return False
        self._report(obstacle=_stays(silent), pid=pid)
        log.info("An MPS daemon of an earlier process was adopted. gpu=%s pid=%d", uuid, pid)
        return True

    async def _ready(self, pid: int) -> None:
        """Wait until the daemon answers. Raises ``MpsError`` if it ends before, or does not."""
        with suppress(ProcessLookupError):
            descriptor = await self._open(pid)
            try:
                await self._answered(descriptor)
            except (MpsError, Unanswered):
                _end_process(descriptor)
                self._reap()
                raise
            finally:
                os.close(descriptor)
        self._report(obstacle="", pid=pid)
        log.info("An MPS daemon is ready. gpu=%s pid=%d", self.state.uuid, pid)

    async def _open(self, pid: int) -> int:
        """Return a descriptor of the daemon's process. Raises ``ProcessLookupError`` if another process has its pid."""
        descriptor = os.pidfd_open(pid)
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            if pid != self._child and not await self._calls.run(self._control.is_daemon, pid):
                raise ProcessLookupError(pid)
            opened.pop_all()
        return descriptor

    async def _answered(self, descriptor: int) -> None:
        deadline = asyncio.get_running_loop().time() + self._pace.start_s
        while True:
            try:
                await self._calls.run(self._control.probe, ANSWER_S)
            except MpsError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            else:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await wait_readable(descriptor)
                    raise MpsError(f"its process has ended; its log is in {self._control.logs}")

    async def _until_end(self, pid: int) -> str:
        """Return how the daemon has ended. One that does not answer any more is ended, if it has no server."""
        try:
            descriptor = await self._open(pid)
        except ProcessLookupError:
            return _described(self._reap())
        missed, why, pause_s = 0, "", self._pace.probe_s
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await wait_readable(descriptor)
                        return why or _described(self._reap())
                asked = asyncio.get_running_loop().time()
                missing = await self._missing()
                missed = missed + 1 if missing else 0
                if missed >= PROBES_MISSED and not await self._calls.run(self._control.has_server):
                    why = f"it did not answer: {missing}"
                    _end_process(descriptor)
                elif missed >= PROBES_MISSED or not (missing or self._unasked):
                    self._report(obstacle=_stays(missing))
                took_s = asyncio.get_running_loop().time() - asked
                pause_s = max(READY_S, ANSWER_S - took_s) if missing else self._pace.probe_s
        finally:
            os.close(descriptor)

    async def _missing(self) -> str:
        """Return why an answer is missing, empty if there is one."""
        try:
            await self._calls.run(self._probe)
        except ProgramMissingError as error:
            if not self._unasked:
                log.warning("An MPS daemon cannot be asked. gpu=%s reason=%r", self.state.uuid, str(error))
            self._unasked = True
        except (MpsError, Unanswered) as error:
            return str(error)
        else:
            self._unasked = False
        return ""

    def _probe(self) -> None:
        self._control.probe(ANSWER_S)
        with suppress(OSError):
            self._control.cut_log()

    def _report_end(self, how: str) -> None:
        log.warning(
            "An MPS daemon has ended; its programs have lost the GPU. gpu=%s how=%r", self.state.uuid, how
        )
        obstacle = f"the MPS daemon has ended ({how}) and is started again"
        self._report(obstacle=obstacle, pid=None, last_end=how)

    def _report(self, **changes: object) -> None:
        cut = {
            name: value[:_TEXT_MAX] if isinstance(value, str) else value for name, value in changes.items()
        }
        state = replace(self.state, **cut)
        if state != self.state:
            self.state = state
            self._changed()

    def _reap(self) -> int | None:
        """Take the status of the child, if it has ended. A daemon that was adopted is no child."""
        with suppress(ChildProcessError):
            ended, status = os.waitpid(self._child, os.WNOHANG) if self._child is not None else (0, 0)
            if ended:
                self._child = None
                return status
        return None


def _stays(silent: str) -> str:
    """Return the obstacle of a daemon that stays, empty if it answers."""
    why = "the MPS daemon does not answer, and is kept because its programs use the GPU"
    return f"{why}: {silent}" if silent else ""


def _end_process(descriptor: int) -> None:
    """End the process of a descriptor. Its pid may be that of another one by now."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _described(status: int | None) -> str:
    """Return how a process has ended: its exit code or its signal."""
    if status is None:
        return "its process is gone"
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"
