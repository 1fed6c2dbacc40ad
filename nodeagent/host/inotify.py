"""Watch folders by inotify on the event loop.

A change is a hint to read, never a fact: several events for one name come as one ``FolderChange``. When the kernel
dropped events (``IN_Q_OVERFLOW``), read everything watched again.

A folder that is deleted, moved away or unmounted is reported once as ``gone`` and is no longer watched: its path may
mean another folder from then on. ``add`` it again when it is back. Watch the folder of a file, not the file: a
replaced file is a new inode.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from errno import ENOSPC

from msgspec import Struct

from nodeagent.host.fd import Closing, wait_readable

# include/uapi/linux/inotify.h
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
_IN_ONLYDIR = 0x0100_0000

NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO
"""A name appeared in the folder or disappeared from it."""
CONTENT = NAMES | IN_CLOSE_WRITE
"""The same, or a file was closed after writing."""

_GONE = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_EVENT = struct.Struct("iIII")  # wd, mask, cookie, length of the name with its padding
_BUFFER = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class InotifyError(Exception):
    """A folder that cannot be watched; the message has its path and the remedy."""


class FolderChange(Struct, frozen=True):
    """A change of ``name`` in ``folder``; ``mask`` has all its ``IN_`` bits.

    ``name`` is empty for the folder itself. Both are empty with ``IN_Q_OVERFLOW``: the kernel dropped events.
    """

    folder: str
    name: str
    mask: int

    @property
    def gone(self) -> bool:
        """The folder does not exist any more, and is no longer watched."""
        return bool(self.mask & _GONE)


class FolderWatch(Closing):
    """A set of watched folders. One task at a time may wait for its changes."""

    def __init__(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise InotifyError(
                f"inotify cannot be used: {os.strerror(ctypes.get_errno())}; "
                "raise fs.inotify.max_user_instances if it is exhausted"
            )
        self._folders: dict[int, str] = {}

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
        """Stop watching ``folder`` and drop its queued events. It is no error if it is not watched."""
        path = os.fspath(folder)
        for wd in [wd for wd, known in self._folders.items() if known == path]:
            self._forget(wd)

    async def changes(self) -> tuple[FolderChange, ...]:
        """Wait for changes and return all of them, in order of their first event."""
        while True:
            await wait_readable(self._fd)
            if changes := self._drain():
                return changes

    def _drain(self) -> tuple[FolderChange, ...]:
        masks: dict[tuple[str, str], int] = {}
        for wd, mask, name in _events(self._fd):
            if mask & IN_Q_OVERFLOW:
                key = ("", "")
            elif wd in self._folders:
                key = (self._folders[wd], name)
            else:
                continue  # queued events of a folder that was removed
            masks[key] = masks.get(key, 0) | mask
            # The deletion of a folder does not concern its names: each had its own event.
            if mask & _GONE:
                self._forget(wd)
        return tuple(FolderChange(folder, name, mask) for (folder, name), mask in masks.items())

    def _forget(self, wd: int) -> None:
        del self._folders[wd]
        # EINVAL if the kernel has already dropped the watch with the folder.
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
