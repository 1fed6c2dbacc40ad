"""A tree that records everything that a scan reads, so that the capture holds exactly that."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from nodeagent.host.sysfs import SysfsError, Tree


class RecordingTree(Tree):
    """Records each file, folder and link that is read.

    Paths are resolved. Paths below ``/proc`` are not, because links there point to the process that reads them.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.unreadable: dict[str, int] = {}
        super().__init__(root)  # it reads files too

    def data(self, path: str) -> bytes | None:
        place = self._place(path)
        try:
            content = super().data(path)
        except SysfsError as error:
            self._broken(place, error)
            raise
        if content is not None:
            self.files[place] = content
        return content

    def names(self, path: str) -> tuple[str, ...]:
        place = self._place(path)
        try:
            names = super().names(path)
        except SysfsError as error:
            self._broken(place, error)
            raise
        if Path(self._prefix + place).is_dir():
            self.folders.add(place)
        for name in names if place.startswith("/sys/") else ():
            below = Path(self._prefix + place, name)
            if below.is_symlink():
                self._readlink(f"{place}/{name}")
            elif below.is_dir():
                self.folders.add(f"{place}/{name}")
        return names

    def exists(self, path: str) -> bool:
        self._touch(path)
        return super().exists(path)

    def link(self, path: str) -> str | None:
        name = super().link(path)
        if name is not None:
            folder, _, last = path.rpartition("/")
            self._readlink(f"{self._place(folder)}/{last}")
        return name

    def real(self, path: str) -> str | None:
        self._touch(path)
        return super().real(path)

    def _touch(self, path: str) -> None:
        place = self._place(path)
        try:
            mode = os.lstat(self._prefix + place).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            self.folders.add(place)
        else:
            self.files.setdefault(place, b"")

    def _place(self, path: str) -> str:
        return path if path.startswith("/proc/") else self._resolve(path)

    def _resolve(self, path: str) -> str:
        return self._walk(path)  # this records every link of the path

    def _readlink(self, here: str) -> str:
        target = super()._readlink(here)
        if not here.startswith("/proc/"):
            self.links[here] = (
                os.path.relpath(target, os.path.dirname(here)) if target.startswith("/") else target
            )
        return target

    def _broken(self, place: str, error: SysfsError) -> None:
        cause = error.__cause__
        self.unreadable[place] = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
        self._touch(place)
