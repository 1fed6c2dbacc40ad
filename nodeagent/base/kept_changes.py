"""The file of a ``ChangeLog``.

It has the newest ``KEPT_MAX`` changes, fewer if their texts are long. It is written in a thread, at most every
``GAP_S`` and at the end. A file that cannot be read or written costs the changes before a restart, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.change_log import Change, ChangeLog
from nodeagent.base.stored_file import StoredFile, StoredForm

KEPT_MAX, FILE_BYTES = 10_000, 3 << 20
GAP_S, WRITE_S = 30.0, 5.0
_VERSION = 1


class ChangesFile(msgspec.Struct, frozen=True):
    version: int
    changes: tuple[Change, ...]


FORM = StoredForm(
    name="history.json",
    type=ChangesFile,
    content="history",
    loss="changes before a restart are forgotten",
    version=_VERSION,
    encode=msgspec.json.encode,
)


async def keep_changes(log: ChangeLog, path: Path) -> None:
    """Take over the changes in the file, and keep it, until cancelled."""
    file = StoredFile(path.parent, msgspec.structs.replace(FORM, name=path.name))
    if (stored := await in_thread(file.read)) is not None:
        log.put_before(stored.changes)
    written = 0
    try:
        while True:
            await asyncio.sleep(GAP_S)
            if written != log.total:
                written = log.total
                await file.save(await in_thread(partial(kept, tuple(log.changes))), WRITE_S)
    finally:
        await file.save(kept(tuple(log.changes)), WRITE_S)


def kept(changes: Sequence[Change]) -> ChangesFile:
    """The changes that the file has: the newest ones that fit."""
    newest: deque[Change] = deque()
    size = 0
    for change in reversed(changes):
        size += len(msgspec.json.encode(change)) + 1
        if size > FILE_BYTES or len(newest) >= KEPT_MAX:
            break
        newest.appendleft(change)
    return ChangesFile(_VERSION, tuple(newest))
