"""The file of a ``ChangeLog``.

It has the newest ``KEPT_MAX`` changes, fewer if their texts are long. It is written in a thread, at most every
``CHANGES_GAP_S`` and at the end. A file that cannot be read or written costs the changes before a restart, and nothing
else.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.change_log import Change, ChangeLog
from nodeagent.base.file_writing import nearest_folder, unwritable_because
from nodeagent.base.stored_file import StoredFile, StoredForm

KEPT_MAX, FILE_BYTES = 10_000, 3 << 20
CHANGES_GAP_S, WRITE_S = 30.0, 5.0
_VERSION = 1
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


class ChangesFile(msgspec.Struct, frozen=True):
    version: int
    changes: tuple[Change, ...]


CHANGES_FORM = StoredForm(
    name="history.json",
    type=ChangesFile,
    content="history",
    loss="changes before a restart are forgotten",
    version=_VERSION,
    encode=msgspec.json.encode,
)


class ChangesKeeper:
    """The file of one ``ChangeLog``. Belongs to one event loop.

    An absolute ``name`` is a path of this process; another one lies in ``folder``. ``instead`` is what to write in
    place of an absolute name. ``in_pod``: a folder that is no mount ends with this container.
    """

    def __init__(
        self, name: str, folder: Path = Path("/"), *, instead: str | None = None, in_pod: bool = False
    ) -> None:
        path, moved = folder / name, name.startswith("/") and instead is not None
        self._in_pod = in_pod and moved
        self._remedy = (
            f"write `history: {{file: {instead}}}`, a name in health.stateDirectory"
            if moved
            else CHANGES_FORM.remedy
            if instead is not None
            else "mount a volume of the pod at its folder"
        )
        self._file = StoredFile(
            path.parent, msgspec.structs.replace(CHANGES_FORM, name=path.name, remedy=self._remedy)
        )
        self._misplaced: str | None = None

    def remark(self) -> str | None:
        """Return why a restart loses the changes, with the remedy, as far as is known."""
        if (reason := self._misplaced or self._file.unwritable) is None:
            return None
        return f"history.file: {self._file.path}: {reason}, so {CHANGES_FORM.loss}; {self._remedy}"

    async def keep(self, log: ChangeLog) -> None:
        """Take over the changes in the file, and keep it, until cancelled."""
        file = self._file
        assert file.path is not None
        self._misplaced = await in_thread(partial(lost_because, file.path, in_pod=self._in_pod))
        if (stored := await in_thread(file.read)) is not None:
            log.put_before(stored.changes)
        written = 0
        try:
            while True:
                await asyncio.sleep(CHANGES_GAP_S)
                if written != log.total:
                    written = log.total
                    await file.save(await in_thread(partial(kept, tuple(log.changes))), WRITE_S)
        finally:
            await file.save(kept(tuple(log.changes)), WRITE_S)


def lost_because(path: Path, *, in_pod: bool) -> str | None:
    """Return why a file at this path is not written, or does not outlive its container; ``None`` if it does. Blocks."""
    try:
        folder = nearest_folder(path.parent).resolve()
        if not folder.is_dir():
            return f"{folder} is not a directory"
        if (reason := unwritable_because(folder)) is not None:
            return reason
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape") if in_pod else ""
    except OSError as error:
        return error.strerror or str(error)
    return "its folder is on no volume of the pod" if in_pod and mount_point(folder, mounts) == "/" else None


def mount_point(folder: Path, mountinfo: str) -> str:
    """Return where the file system of a folder is mounted, by the text of ``/proc/self/mountinfo``
    (Documentation/filesystems/proc.rst, section 3.5)."""
    points = [
        _OCTAL.sub(lambda it: chr(int(it[1], 8)), line.split(" ")[4]) for line in mountinfo.splitlines()
    ]
    return max((point for point in points if folder.is_relative_to(point)), key=len, default="/")


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
