"""Read files of a machine whose root may be any folder.

Absent is ``None``, broken is ``SysfsError``: a missing file is an answer, and a file that cannot be read (drivers
return EIO, EINVAL and EACCES from attributes) is a fault. Symbolic links resolve inside the root, absolute ones
included, so a captured machine never shows files of the host. ``UNREADABLE_PATHS`` lists the files that could not be
read when a machine was captured: they fail here in the same way.
"""

# A sweep of the links reads twenty files, and a lost carrier waits for it: a Path for each would double the time.
# ruff: noqa: PTH110

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EINVAL, ENODEV, EOPNOTSUPP
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from nodeagent.base.bounded_calls import enter
from nodeagent.base.regular_file import open_regular, read_regular

T = TypeVar("T")

NET = "/sys/class/net"

_LINKS_MAX = 40  # the kernel's own limit (MAXSYMLINKS, include/linux/namei.h)
_ABSENT = (FileNotFoundError, NotADirectoryError)
_ATTRIBUTE_MAX = 4096  # an attribute is a page

GPUS = "/.nodeagent/gpus.json"
"""The GPUs of a captured or simulated machine (``recorded_gpus.py``)."""
UNREADABLE_PATHS = "/.nodeagent/unreadable"
"""Lines of an errno's name, a space and a real path."""


class SysfsError(Exception):
    """A file that exists and cannot be read; the message has its path on the machine."""


def no_machine(root: Path) -> str:
    """Why a folder without ``/sys`` is refused, with the remedy."""
    return f"{root} has no /sys: --root takes the root of a machine, a capture or a simulation"


class Tree:
    """Files below ``root``. All paths, arguments and results, are paths of the machine: ``/sys/class/net``."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root).resolve()
        self._prefix = "" if str(self.root) == "/" else str(self.root)
        self.hanging: set[str] = set()
        """Paths whose readers hang: further reads fail at once."""
        self._unreadable: dict[str, int] = {}
        for line in (self.text(UNREADABLE_PATHS) or "").splitlines() if self._prefix else ():
            name, _, path = line.partition(" ")
            self._unreadable[path] = getattr(errno, name, errno.EIO)

    @property
    def recorded(self) -> bool:
        """Whether this is a captured or simulated machine with GPUs; the file may appear later."""
        return self.exists(GPUS)

    def path(self, path: str) -> Path:
        """The path on the host of a path of the machine, with every symbolic link resolved.

        This includes the last component; a dangling link gives its target.
        """
        return Path(self._full(path))

    def text(self, path: str) -> str | None:
        """The content without the trailing newline; undecodable bytes are kept as surrogates."""
        raw = self.data(path)
        return None if raw is None else raw.decode("utf-8", "surrogateescape").rstrip("\n")

    def data(self, path: str) -> bytes | None:
        return self._read(path, read_regular)

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
        return tuple(sorted(self._read(path, os.listdir) or ()))

    def subfolders(self, path: str) -> tuple[str, ...]:
        """The sorted names of the folders in a folder, without links; an absent folder has none."""

        def folders(place: str) -> list[str]:
            with os.scandir(place) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

        return tuple(sorted(self._read(path, folders) or ()))

    def _read(self, path: str, read: Callable[[str], T]) -> T | None:
        """The result of ``read`` for the path on the host; ``None`` if there is no such file."""
        try:
            return read(self._readable(path))
        except _ABSENT:
            return None
        except OSError as error:
            raise _broken(path, error) from error

    def exists(self, path: str) -> bool:
        enter(path)
        return os.path.exists(self._full(path))

    def link(self, path: str) -> str | None:
        """The last component of a symbolic link's target: the name of a driver or a subsystem."""
        enter(path)
        folder, _, name = path.rpartition("/")
        try:
            return os.readlink(f"{self._full(folder)}/{name}").rpartition("/")[2]
        except _ABSENT:
            return None
        except OSError as error:
            raise _broken(path, error) from error

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved, or ``None`` where its target is missing."""
        enter(path)
        if self._prefix:
            real = self._resolve(path)
            return real if os.path.lexists(self._prefix + real) else None
        # The kernel resolves it in one call; `realpath` asks for each folder on the way.
        opened = _opened_path(path)
        if opened is not None and os.path.lexists(opened):
            return opened
        real = os.path.realpath(path)
        return real if os.path.lexists(real) else None

    def _full(self, path: str) -> str:
        return self._prefix + self._resolve(path) if self._prefix else path

    def _readable(self, path: str) -> str:
        enter(path)
        if path in self.hanging:
            raise OSError(errno.ETIMEDOUT, "it does not answer")
        place = self._full(path)
        if self._unreadable and (code := self._unreadable.get(place[len(self._prefix) :])):
            raise OSError(code, os.strerror(code))
        return place

    def _readlink(self, here: str) -> str:
        return os.readlink(self._prefix + here)

    def _resolve(self, path: str) -> str:
        """``realpath`` that stays in the root.

        The kernel resolves a path in one call. Its result is used if it is inside the root; absolute links,
        links out of the root and missing files need the walk. ``O_PATH`` does not open a device.
        """
        real = _opened_path(self._prefix + path)
        if real is None or not real.startswith(f"{self._prefix}/"):
            return self._walk(path)
        return real[len(self._prefix) :]

    def _walk(self, path: str) -> str:
        """Resolve a path link by link."""
        todo = _parts(path)
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
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
            todo += _parts(target)
        return "/" + "/".join(done)


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first. ``PurePath`` would intern each: Python's table of names would grow."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _opened_path(path: str) -> str | None:
    """The path of what the kernel finds at ``path``. ``None`` where it finds nothing, or without /proc."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _broken(path: str, error: OSError) -> SysfsError:
    return SysfsError(f"{path} cannot be read: {error.strerror or error}")


class OpenAttributes:
    """Attributes that are read repeatedly, with their files kept open. For one thread at a time.

    On a kernel's own sysfs a file that stays open costs a tenth of one that is opened for each reading. In a
    capture or a simulation files are replaced, so they are opened each time.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._open: dict[str, int] = {}

    @cached_property
    def _live(self) -> bool:
        return is_live(self.tree)  # at the first reading, whose thread may block

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def text(self, path: str) -> str | None:
        """As ``Tree.text``."""
        if not self._live or path in self.tree.hanging:
            return self.tree.text(path)
        enter(path)
        fd = self._open.get(path)
        if fd is None:
            try:
                fd = self._open[path] = open_regular(self.tree.path(path))
            except _ABSENT:
                return None
            except OSError as error:
                raise _broken(path, error) from error
        try:
            return os.pread(fd, _ATTRIBUTE_MAX, 0).decode("utf-8", "surrogateescape").rstrip("\n")
        except OSError as error:
            os.close(self._open.pop(path))
            if error.errno == ENODEV:  # the device was removed; another may have its name by now
                return self.tree.text(path)
            raise _broken(path, error) from error

    def forget(self, prefix: str) -> None:
        """Close the files below a path."""
        for path in [path for path in self._open if path.startswith(prefix)]:
            os.close(self._open.pop(path))


class SysfsScan:
    """One scan that does not raise: an unreadable file counts as absent, and ``unreadable`` lists it.

    ``unread`` lists the files whose values others wait for: what each decides, as ``deciding`` named it, and its path.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.unread: set[tuple[str, str, str]] = set()
        self._unreadable: set[str] = set()
        self._decides: tuple[str, str] | None = None

    @contextmanager
    def deciding(self, device: str, value: str) -> Iterator[None]:
        """The files that are read here decide this ``value`` of this ``device``."""
        before, self._decides = self._decides, (device, value)
        try:
            yield
        finally:
            self._decides = before

    def missed(self, path: str) -> None:
        """A file could not be read."""
        if self._decides is not None:
            self.unread.add((*self._decides, path))

    def note(self, what: str) -> None:
        self._unreadable.add(what)

    def unreadable(self) -> tuple[str, ...]:
        """Sentences in alphabetical order."""
        return tuple(sorted(self._unreadable))

    def read(self, get: Callable[[str], T | None], path: str) -> T | None:
        try:
            return get(path)
        except SysfsError as error:
            self.note(str(error))
            self.missed(path)
            return None

    def names(self, path: str) -> tuple[str, ...]:
        return self.read(self.tree.names, path) or ()

    def netdev(self, get: Callable[[str], T | None], name: str, attribute: str) -> T | None:
        """An attribute of a netdev; ``None`` where the kernel refuses it because it does not apply.

        EINVAL for carrier and speed while admin down and for any attribute of a netdev that is being
        unregistered, EOPNOTSUPP where the driver lacks it (net/core/net-sysfs.c).
        """
        try:
            return get(f"{NET}/{name}/{attribute}")
        except SysfsError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in (EINVAL, ENODEV, EOPNOTSUPP)):
                self.note(str(error))
                self.missed(f"{NET}/{name}/{attribute}")
            return None


def naturally_sorted(names: Sequence[str]) -> Sequence[str]:
    """The names in their natural order. Usually there is one name at most."""
    return sorted(names, key=natural_order) if len(names) > 1 else names


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key: ``eth2`` before ``eth10``, ``ib0`` before its child ``ib0.8001``."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def is_live(tree: Tree) -> bool:
    """Whether the tree's ``/sys`` is a kernel's own and not a capture or simulation."""
    try:
        device = tree.path("/sys").stat().st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    # proc_pid_mountinfo(5): the type follows a lone hyphen.
    return any(mount[2] == number and mount[mount.index("-") + 1] == "sysfs" for mount in mounts)
