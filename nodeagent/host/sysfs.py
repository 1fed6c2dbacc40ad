"""Reading files of a machine that may lie under any root folder.

Absent is ``None``, broken is ``SysfsError``: a file that is not there is an answer, one that cannot be
read (EIO, EINVAL, EACCES: drivers return all of them from attributes) is a fault. Symbolic links resolve
inside the root, absolute ones included, so that a captured machine never shows the host that looks at it.
What could not be read where a machine was captured fails here in the same way: ``UNREADABLE`` lists it.
"""

# A look at the links reads forty files and a lost carrier waits for it: a Path for each would double the time.
# ruff: noqa: PTH110

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

_LINKS_MAX = 40  # the kernel's own limit (MAXSYMLINKS, include/linux/namei.h)
_ABSENT = (FileNotFoundError, NotADirectoryError)
_CHUNK = 65536

UNREADABLE = "/.nodeagent/unreadable"
"""Lines of an errno's name, a space and a real path."""


class SysfsError(Exception):
    """A file that is there and cannot be read; the message names it as the machine would."""


class Tree:
    """Files below ``root``. Every path given and returned is the machine's own: ``/sys/class/net``."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root).resolve()
        self._prefix = "" if str(self.root) == "/" else str(self.root)
        self._unreadable: dict[str, int] = {}
        for line in (self.text(UNREADABLE) or "").splitlines() if self._prefix else ():
            name, _, path = line.partition(" ")
            self._unreadable[path] = getattr(errno, name, errno.EIO)

    def path(self, path: str) -> Path:
        """Where a path of the machine lies on the host, every symbolic link on the way resolved.

        For the last component too; a link that leads nowhere gives the place that it points at.
        """
        return Path(self._full(path))

    def text(self, path: str) -> str | None:
        """The content without the trailing newline; undecodable bytes are kept as surrogates."""
        raw = self.data(path)
        return None if raw is None else raw.decode("utf-8", "surrogateescape").rstrip("\n")

    def data(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(self._readable(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                raw = os.read(descriptor, _CHUNK)
                while raw and (more := os.read(descriptor, _CHUNK)):
                    raw += more
            finally:
                os.close(descriptor)
            return raw
        except _ABSENT:
            return None
        except OSError as error:
            raise _broken(path, error) from error

    def integer(self, path: str) -> int | None:
        """A decimal or ``0x`` number. Raises ``SysfsError`` for anything else."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return int(text.strip(), 0)
        except ValueError as error:
            raise SysfsError(f"{path} holds {text[:40]!r}, not a number") from error

    def names(self, path: str) -> tuple[str, ...]:
        """The sorted names in a folder; an absent folder has none."""
        try:
            return tuple(sorted(os.listdir(self._readable(path))))
        except _ABSENT:
            return ()
        except OSError as error:
            raise _broken(path, error) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def link(self, path: str) -> str | None:
        """The last component of where a symbolic link points: a driver's or a subsystem's name."""
        folder, _, name = path.rpartition("/")
        try:
            return os.readlink(f"{self._full(folder)}/{name}").rpartition("/")[2]
        except _ABSENT:
            return None
        except OSError as error:
            raise _broken(path, error) from error

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved, or ``None`` where it leads nowhere."""
        if self._prefix:
            real = self._resolve(path)
            return real if os.path.lexists(self._prefix + real) else None
        real = os.path.realpath(path)
        return real if os.path.lexists(real) else None

    def _full(self, path: str) -> str:
        return self._prefix + self._resolve(path) if self._prefix else path

    def _readable(self, path: str) -> str:
        place = self._full(path)
        if self._unreadable and (code := self._unreadable.get(place[len(self._prefix) :])):
            raise OSError(code, os.strerror(code))
        return place

    def _readlink(self, here: str) -> str:
        return os.readlink(self._prefix + here)

    def _resolve(self, path: str) -> str:
        """``realpath`` that stays in the root.

        The kernel resolves a path in one call and is believed where it ends inside the root, which is so
        for all but absolute links, links out of the root and what is not there. ``O_PATH`` opens no device.
        """
        try:
            descriptor = os.open(self._prefix + path, os.O_PATH | os.O_CLOEXEC)
            try:
                real = os.readlink(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)
        except OSError:
            return self._walk(path)
        inside = real.startswith(f"{self._prefix}/")
        return real[len(self._prefix) :] if inside else self._walk(path)

    def _walk(self, path: str) -> str:
        """The same, link by link."""
        todo = [part for part in reversed(PurePosixPath(path).parts) if part != "/"]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if done:
                    done.pop()
                continue
            here = "/" + "/".join([*done, part])
            try:
                target = self._readlink(here)
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > _LINKS_MAX:
                raise SysfsError(f"{path} has too many levels of symbolic links")
            if target.startswith("/"):
                done.clear()
            todo.extend(part for part in reversed(PurePosixPath(target).parts) if part != "/")
        return "/" + "/".join(done)


def _broken(path: str, error: OSError) -> SysfsError:
    return SysfsError(f"{path} cannot be read: {error.strerror or error}")
