"""inotify on the event loop: which names changed in which folders.

A change is a hint to look, never a fact: several events for one name come as one ``Change``, and when
the kernel dropped some (``overflow``) everything watched has to be looked at again.

A folder that is deleted, moved away or unmounted is reported once as ``gone`` and is watched no more: its
path means nothing, or something else, from then on. ``add`` it again when it is back. Watch the folder
that holds a file rather than the file: whoever replaces a file makes a new inode.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOSPC

from nodeagent.host.fd import wait_readable

# include/uapi/linux/inotify.h
IN_MODIFY = 0x002
IN_ATTRIB = 0x004
IN_CLOSE_WRITE = 0x008
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ISDIR = 0x4000_0000
_IN_ONLYDIR = 0x0100_0000

NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO
"""A name appeared in the folder or went from it."""
CONTENT = NAMES | IN_CLOSE_WRITE
"""The same, and a file was written to its end."""

_GONE = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_EVENT = struct.Struct("iIII")  # wd, mask, cookie, length of the name with its padding
_BUFFER = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class InotifyError(Exception):
    """A folder that cannot be watched; the message names it and says what would help."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to ``name`` in ``folder``; ``mask`` is all its ``IN_`` bits together.

    ``name`` is empty for the folder itself. Both are empty on overflow.
    """

    folder: str
    name: str
    mask: int

    @property
    def overflow(self) -> bool:
        """Events were lost: look at everything again."""
        return bool(self.mask & IN_Q_OVERFLOW)

    @property
    def gone(self) -> bool:
        """The folder is not there any more, and is not watched any more."""
        return bool(self.mask & _GONE)


class Watch:
    """A set of watched folders. One task at a time may wait for its changes."""

    def __init__(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise InotifyError(
                f"inotify cannot be used: {os.strerror(ctypes.get_errno())}; "
                "raise fs.inotify.max_user_instances if it is exhausted"
            )
        self._folders: dict[int, str] = {}

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        self._folders.clear()
        if fd >= 0:
            os.close(fd)

    def add(self, folder: str | os.PathLike[str], mask: int = NAMES) -> None:
        """Watch ``folder`` from now on. Adding it again changes its mask."""
        path = os.fspath(folder)
        wd = _libc.inotify_add_watch(
            self._fd,
            os.fsencode(path),
            ctypes.c_uint32(mask | IN_DELETE_SELF | IN_MOVE_SELF | _IN_ONLYDIR),
        )
        if wd < 0:
            code = ctypes.get_errno()
            remedy = (
                "raise fs.inotify.max_user_watches" if code == ENOSPC else "it must be a folder that exists"
            )
            raise InotifyError(f"{path} cannot be watched: {os.strerror(code)}; {remedy}")
        self._folders[wd] = path

    def remove(self, folder: str | os.PathLike[str]) -> None:
        """Watch ``folder`` no more; what it has queued is dropped. Not watching it is no error."""
        path = os.fspath(folder)
        for wd in [wd for wd, known in self._folders.items() if known == path]:
            self._forget(wd)

    async def changes(self) -> tuple[Change, ...]:
        """Wait, then everything that has happened so far, in order of first appearance."""
        while True:
            await wait_readable(self._fd)
            if changes := self._drain():
                return changes

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> tuple[Change, ...]:
        return await self.changes()

    def _drain(self) -> tuple[Change, ...]:
        masks: dict[tuple[str, str], int] = {}
        for wd, mask, name in _events(self._fd):
            if mask & IN_Q_OVERFLOW:
                key = ("", "")
            elif wd in self._folders:
                key = (self._folders[wd], name)
            else:
                continue  # the rest of what a folder had queued when it was removed
            masks[key] = masks.get(key, 0) | mask
            # A folder's deletion says nothing about the names it held: each has had its own event.
            if mask & _GONE:
                self._forget(wd)
        return tuple(Change(folder, name, mask) for (folder, name), mask in masks.items())

    def _forget(self, wd: int) -> None:
        del self._folders[wd]
        # EINVAL where the kernel has dropped the watch by itself, with the folder.
        _libc.inotify_rm_watch(self._fd, wd)


def _events(fd: int) -> Iterator[tuple[int, int, str]]:
    """All queued events: watch descriptor, mask, name."""
    while True:
        try:
            data = os.read(fd, _BUFFER)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            wd, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            yield wd, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
