"""The agent's socket for the verbs on its own node: ``agent.sock`` in the state directory.

Its place shows which machine the agent serves: a verb with the same root finds it whatever address, certificate or
token the web server has, and finds none below a capture or below the disk of another machine. Only its owner, root, may
open it. The socket is bound and reached through the descriptor of its folder, because a path of more than 107
bytes fits into no address.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.file_writing import make_folder
from nodeagent.base.supervise import either
from nodeagent.web.server import FolderHandler, PageHandler, WebServer

log = logging.getLogger(__name__)

SOCKET_NAME = "agent.sock"
BIND_S = 3.0
BODY_MAX = 1 << 26
"""Bytes; a node with 80,000 slices answers with 3 MiB."""
AGAIN_S = 10.0
"""Between two tries to bind, and between two looks at the socket. The folder may be full or read-only, another agent
may still serve, and someone may clean the folder."""

_Place = tuple[int, int, int]
"""Device, inode and time of change: a new file may have the inode of the old one."""


async def serve(
    folder: Path,
    pages: dict[str, PageHandler],
    folders: Mapping[str, FolderHandler] = MappingProxyType({}),
) -> None:
    """Serve the pages until cancelled. A folder that takes no socket is logged once and tried again. A socket that was
    removed, or replaced, is bound again."""
    logged = ""
    binding = BoundedCalls("agent.sock", BIND_S)
    while True:
        # Here and not in the thread that binds it, which may outlive this task.
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                place = await binding.run(_bind, folder, listening)
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != logged:
                    log.warning(
                        "Verbs such as health and scan cannot ask this agent; mount a writable folder there or set "
                        "health.stateDirectory. socket=%s reason=%r",
                        folder / SOCKET_NAME,
                        reason,
                    )
                logged = reason
                await asyncio.sleep(AGAIN_S)
            else:
                logged = ""
                await either(
                    WebServer(pages, folders=folders).accept_from(listening), _moved(binding, folder, place)
                )


async def _moved(calls: BoundedCalls, folder: Path, place: _Place | None) -> None:
    """Return when another file, or none, is in the place of the socket."""
    while True:
        await asyncio.sleep(AGAIN_S)
        with suppress(Unanswered):
            if await calls.run(_place, folder) != place:
                return


def _place(folder: Path) -> _Place | None:
    with suppress(OSError):
        status = (folder / SOCKET_NAME).lstat()
        return status.st_dev, status.st_ino, status.st_ctime_ns
    return None


def connect(folder: Path, timeout_s: float) -> socket.socket:
    """Connect to the agent. Raises ``FileNotFoundError`` or ``ConnectionRefusedError`` if none serves there, and
    any other ``OSError``."""
    with ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(timeout_s)
        _at(folder, connection.connect)
        opened.pop_all()
    return connection


def fetch(folder: Path, page: str, timeout_s: float) -> bytes:
    """Return a page of the agent. Raises ``OSError``, as ``connect`` does."""
    import http.client  # noqa: PLC0415 - 14 ms of the agent's start and 0.5 MiB; only verbs ask

    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    try:
        connection.sock = connect(folder, timeout_s)
        connection.request("GET", page)
        answer = connection.getresponse()
        body = answer.read(BODY_MAX)
    except http.client.HTTPException as error:
        raise OSError(errno.EPROTO, f"the answer is no HTTP: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(errno.EPROTO, f"the agent answers {answer.status} {answer.reason}; restart it")
    return body


def _bind(folder: Path, listening: socket.socket) -> _Place | None:
    make_folder(folder)
    try:
        connect(folder, 1.0).close()
    except (FileNotFoundError, ConnectionRefusedError):
        pass
    else:
        raise OSError(errno.EADDRINUSE, "another agent with the same state directory answers there")
    with suppress(FileNotFoundError):
        (folder / SOCKET_NAME).unlink()
    os.fchmod(listening.fileno(), 0o600)  # bind gives the file this mode, less the umask
    _at(folder, listening.bind)
    _at(folder, lambda path: Path(path).chmod(0o600))
    listening.listen(16)
    return _place(folder)


def _at(folder: Path, use: Callable[[str], object]) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
    finally:
        os.close(descriptor)
