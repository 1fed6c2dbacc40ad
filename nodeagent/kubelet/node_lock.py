"""The lock file that keeps two agents of one node from serving at once.

Binding over a live socket succeeds and steals it, so the lock is held before a socket is bound.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.host.file_writing import unwritable_because
from nodeagent.regular_file import refuse_irregular

LOCK = "nodeagent.lock"
OPEN_AGAIN_S = 1.0
LOCK_AGAIN_S = 0.1


@asynccontextmanager
async def node_lock(
    folder: Path, on_wait: Callable[[str], object], on_blocked: Callable[[str], object]
) -> AsyncIterator[None]:
    """Hold the lock. Wait while another agent holds it, as in a rolling update.

    ``on_wait`` takes a sentence while another agent holds it, ``on_blocked`` the reason why the folder takes no
    file (read-only, full). Raises ``OSError`` if the folder does not exist.
    """
    path = folder / LOCK
    descriptor = await _open(path, on_blocked)
    try:
        while not _try_lock(descriptor):
            on_wait(f"Another agent of this node still serves; waiting for it to end. lock={path}")
            await asyncio.sleep(LOCK_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


async def _open(path: Path, on_blocked: Callable[[str], object]) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            refuse_irregular(descriptor, path)
            os.fchmod(descriptor, 0o600)
            return descriptor
        except OSError as error:
            if not path.parent.is_dir():
                raise
            cause = unwritable_because(path.parent) or error.strerror
        on_blocked(
            f"{path} cannot be opened: {cause}; mount the kubelet's folder read-write, or free its disk"
        )
        await asyncio.sleep(OPEN_AGAIN_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
