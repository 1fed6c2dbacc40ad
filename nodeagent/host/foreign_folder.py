"""A folder in which a process with fewer rights may replace each entry at any moment.

Rules:

* The folder is opened once, and each name is relative to it: what is checked is what is used.
* No link is followed. Only a regular file of the own user is opened, with one name and a bounded size; opening a named
  pipe or a device neither waits nor acts.
* A file is replaced by a new one, never written in place.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.base.regular_file import read_opened, refuse_irregular

OWNER = 65534
"""Nobody: root without capabilities is neither the owner of such a folder nor above its sticky bit."""
_ENTRIES_MAX = 100_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ForeignFolder:
    """Each call blocks and may raise ``OSError``. Close it, or use it in a ``with``."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    @classmethod
    def at(cls, path: Path) -> Self:
        """Open a folder. Those above it are trusted."""
        return cls(os.open(path, _FOLDER), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def below(self, name: str, mode: int | None = None) -> ForeignFolder:
        """Open a folder in this one. With ``mode`` it is created if it is missing."""
        path = self._path / name
        try:
            if mode is not None:
                with suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=self._descriptor)
            folder = ForeignFolder(os.open(name, _FOLDER, dir_fd=self._descriptor), path)
        except OSError as error:
            error.filename = str(path)
            raise
        if mode is not None:
            with suppress(PermissionError):  # of another user, who has set it
                os.fchmod(folder._descriptor, mode)
        return folder

    def guard(self, mode: int) -> None:
        """Give this folder to nobody, so that root without capabilities replaces no entry of another one. With the
        sticky bit in ``mode`` it replaces its own. Nothing happens without the right."""
        with suppress(PermissionError):
            os.fchown(self._descriptor, OWNER, 0)
            os.fchmod(self._descriptor, mode)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return the descriptor of a file."""
        path = self._path / name
        try:
            descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            error.filename = str(path)
            raise
        refuse_irregular(descriptor, path)
        status = os.fstat(descriptor)
        if status.st_nlink > 1 or status.st_uid != os.geteuid():
            os.close(descriptor)
            reason = "it has a second name" if status.st_nlink > 1 else f"user {status.st_uid} owns it"
            raise OSError(errno.EPERM, f"{reason}; remove it", str(path))
        return descriptor

    def read(self, name: str, size_max: int) -> bytes:
        """Return the content of a file."""
        descriptor = self.open(name)
        try:
            return read_opened(descriptor, self._path / name, size_max)
        finally:
            os.close(descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """Put a file there in one step: readers see the old one or the new one."""
        temporary = f".{name}.{os.urandom(4).hex()}.tmp"
        try:
            with open(self.create(temporary, 0o600), "wb") as file:
                file.write(content)
            os.rename(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._descriptor)
            error.filename = str(self._path / name)
            raise

    def create(self, name: str, mode: int) -> int:
        """Return the descriptor of a new file, for appending."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _FILE
        descriptor = os.open(name, flags, mode, dir_fd=self._descriptor)
        os.fchmod(descriptor, mode)
        return descriptor

    def rename(self, name: str, other: str) -> None:
        """Give an entry another name, in place of what has it."""
        os.rename(name, other, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def empty(self) -> None:
        """Delete every entry, at any depth without recursion: what lies deeper is first moved up to this folder."""
        left = _ENTRIES_MAX
        while left > 0 and (names := os.listdir(self._descriptor)):
            for name in names:
                left -= 1
                try:
                    os.unlink(name, dir_fd=self._descriptor)
                except FileNotFoundError:
                    continue
                except IsADirectoryError:
                    with self.below(name) as folder:
                        left -= folder._move_up(self._descriptor)
                    os.rmdir(name, dir_fd=self._descriptor)

    def _move_up(self, above: int) -> int:
        names = os.listdir(self._descriptor)
        for name in names:
            os.rename(name, os.urandom(16).hex(), src_dir_fd=self._descriptor, dst_dir_fd=above)
        return len(names)
