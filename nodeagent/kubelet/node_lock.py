"""The lock file that keeps two agents of one node from serving at once.

Binding over a live socket succeeds and steals it, so the lock is held before a socket is bound. The holder writes into
the file which process and pod it is. A process whose holder cannot be seen (another PID namespace) reads it there;
``/proc/locks`` names a holder that wrote nothing.

Other device plugins may write to the folder. A link in the place of the lock would make the note destroy another file:
it is refused.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.file_writing import unwritable_because
from nodeagent.base.plain_text import one_line
from nodeagent.base.regular_file import refuse_irregular

LOCK = "nodeagent.lock"
OPEN_AGAIN_S = 1.0
LOCK_AGAIN_S = 0.1
HOLDER_S = 2.0
_LOOK_AGAIN_S = 1.0
"""Between looks at the holder, which seldom changes."""

_NOTE_MAX = 4096
_SHOWN_MAX = 120  # characters of a command line


class LockHolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds the lock. ``pid`` counts in ``pid_namespace``, an inode; ``pod`` is ``namespace/name``."""

    pid: int
    command: str = ""
    pod: str = ""
    pid_namespace: int = 0

    def __str__(self) -> str:
        command = f" ({one_line(self.command, _SHOWN_MAX, ascii_only=True)})" if self.command else ""
        process = f"process {self.pid}{command}"
        if not self.pod:
            return process
        return f"pod {one_line(self.pod, _SHOWN_MAX, ascii_only=True)}, {process}"


class NodeLock:
    """The lock on an open file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._locked = False

    def take(self) -> bool:
        """Whether this process holds the lock now. If the file was removed, it creates a new one.

        Raises ``OSError`` if it does not hold the lock and cannot create the file.
        """
        if not _is_at(self._path, self._descriptor):
            try:
                descriptor = _opened(self._path)
            except OSError:
                if self._locked:  # another agent cannot create the file either
                    return True
                raise
            self.close()
            self._descriptor, self._locked = descriptor, False
        if not self._locked and _try_lock(self._descriptor):
            self._locked = True
            _write_note(self._descriptor)
        return self._locked

    def holder(self) -> LockHolder | None:
        return holder_of(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@asynccontextmanager
async def node_lock(
    folder: Path, on_wait: Callable[[str], object], on_blocked: Callable[[str], object]
) -> AsyncIterator[NodeLock]:
    """Hold the lock. Wait while another agent holds it, as in a rolling update.

    ``on_wait`` takes a sentence while another agent holds it, ``on_blocked`` the reason why the folder takes no
    file (read-only, full). Raises ``OSError`` if the folder does not exist.
    """
    path = folder / LOCK
    lock = NodeLock(path, await _open(path, on_blocked))
    calls = BoundedCalls("holder of the lock", HOLDER_S)  # /proc of a process may hang
    try:
        looked_at = float("-inf")
        while not lock.take():
            if time.monotonic() - looked_at >= _LOOK_AGAIN_S:
                looked_at = time.monotonic()
                holder = None
                with suppress(Unanswered):
                    holder = await calls.run(lock.holder)
                named = "" if holder is None else f" It is {holder}."
                on_wait(
                    f"Another agent of this node still serves; waiting for it to end.{named} "
                    f"Remove one of the two. lock={path}"
                )
            await asyncio.sleep(LOCK_AGAIN_S)
        yield lock
    finally:
        lock.close()


def holder_of(descriptor: int) -> LockHolder | None:
    """Return the process that holds the lock on an open file, as far as it can be known."""
    noted, seen = _note(descriptor), _locking_pid(descriptor)
    if noted is not None and (seen in (None, noted.pid) or noted.pid_namespace != _pid_namespace()):
        return noted
    return None if seen is None else LockHolder(seen, _command_line(seen))


def _write_note(descriptor: int) -> None:
    names = [os.environ.get(name, "") for name in ("POD_NAMESPACE", "POD_NAME")]
    pod = "/".join(names) if all(names) else names[1]
    note = LockHolder(os.getpid(), _command_line(os.getpid()), pod, _pid_namespace())
    with suppress(OSError):  # a full disk: the lock counts, the note only helps
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(note) + b"\n", 0)


def _note(descriptor: int) -> LockHolder | None:
    with suppress(OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return msgspec.json.decode(os.pread(descriptor, _NOTE_MAX, 0), type=LockHolder)
    return None


def _locking_pid(descriptor: int) -> int | None:
    """Return the process in /proc/locks; ``None`` if it is in a PID namespace that this process cannot see."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()  # 1: FLOCK  ADVISORY  WRITE 4711 00:1b:815 0 EOF
            if len(words) >= 6 and words[1] == "FLOCK" and words[5] == file and int(words[4]) > 0:
                return int(words[4])
    return None


def _command_line(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:_NOTE_MAX].split(b"\0")
        return " ".join(word.decode("utf-8", "replace") for word in words).strip()[:_SHOWN_MAX]
    return ""


def _pid_namespace() -> int:
    with suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


async def _open(path: Path, on_blocked: Callable[[str], object]) -> int:
    while True:
        try:
            return _opened(path)
        except OSError as error:
            if not path.parent.is_dir():
                raise
            cause = unwritable_because(path.parent) or error.strerror
        on_blocked(
            f"{path} cannot be opened: {cause}; mount the kubelet's folder read-write, or free its disk"
        )
        await asyncio.sleep(OPEN_AGAIN_S)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    refuse_irregular(descriptor, path)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "it has a second name; remove it", str(path))
    os.fchmod(descriptor, 0o600)
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at the path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
