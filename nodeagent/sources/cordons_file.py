"""The file of the cordons, which the verb writes and the agent follows."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from nodeagent.base.file_writing import make_folder
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.health.cordons import Cordon
from nodeagent.host.inotify import CONTENT, FolderWatch, InotifyError

log = logging.getLogger(__name__)

_LOOK_S, CORDONS_UNWATCHED_S = 30.0, 1.0
"""Between two looks at the file without a change of its folder, and while its folder cannot be watched."""
_VERSION = 1


class CordonsFile(msgspec.Struct, frozen=True):
    version: int = _VERSION
    cordons: tuple[Cordon, ...] = ()


CORDONS_FORM = StoredForm(
    name="cordons.json",
    type=CordonsFile,
    content="cordons",
    loss="cordoned devices are offered to new pods",
    version=_VERSION,
)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other verb changes the cordons of this folder, so that none writes over what another has added.
    Raises ``OSError``."""
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


async def follow_cordons(file: StoredFile[CordonsFile], take: Callable[[tuple[Cordon, ...]], object]) -> None:
    """Give ``take`` the cordons whenever a verb has replaced the file, until cancelled."""
    assert file.path is not None
    with FolderWatch() as watching:
        while True:
            wait_s = CORDONS_UNWATCHED_S
            with suppress(InotifyError):  # the folder is not there yet
                watching.add(file.path.parent, CONTENT)
                wait_s = _LOOK_S
            if (content := await file.changed()) is not None:
                log.info("Other devices are cordoned. devices=%s", [it.name for it in content.cordons])
                take(content.cordons)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await watching.changes()
