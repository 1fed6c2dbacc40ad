"""Which process serves a unix socket, and whether it answers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.kubelet.registration_state import KubeletId

REPLACED_S = 0.2
"""Between two looks for another process at the socket."""


def kubelet_id(path: Path) -> KubeletId | None:
    """Return the identity of the process that bound a socket, or of a folder; ``None`` if it is absent."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def same_file(a: KubeletId | None, b: KubeletId | None) -> bool:
    """Whether both are one inode, whatever its mode and label."""
    return a is not None and b is not None and a[:2] == b[:2]


async def connects(path: Path) -> bool:
    """Whether a process accepts connections at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            async with asyncio.timeout(1.0):
                await asyncio.get_running_loop().sock_connect(probe, str(path))
        except (OSError, TimeoutError):
            return False
    return True


async def replaced(path: Path, kubelet: KubeletId, looks: BoundedCalls) -> None:
    """Return when another process has bound the socket. Wait while the file system hangs."""
    while True:
        await asyncio.sleep(REPLACED_S)
        with suppress(Unanswered):  # the log and /readyz name the call
            if await looks.run(kubelet_id, path) not in (kubelet, None):
                return
