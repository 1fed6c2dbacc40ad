"""The files of the simulated machine, published by owner: one object of the machine and all its sysfs entries.

An owner publishes all its entries in the order in which the kernel makes them; only differences are written to disk.
Entries are removed in that order too, and before new ones are added.

* A reader never sees half a value: a file is renamed into place from a scratch folder. A reader that keeps a file
  open keeps reading the old value; this is the only difference from sysfs.
* A folder exists while it has entries.
"""

# Thousands of files at once: a Path for each would double the time.
# ruff: noqa: PTH103, PTH104, PTH108, PTH211

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


class Symlink(str):
    """A symbolic link's target, an absolute path of the machine; on disk it is relative, as in sysfs."""

    __slots__ = ()


class _Folder:
    """An empty folder that must exist."""


FOLDER = _Folder()

Entry = str | Symlink | _Folder
Entries = Mapping[str, Entry]

SCRATCH = "/.nodeagent/tmp"
"""Not in ``/.nodeagent`` itself: that folder is watched."""


def relative(link: str, target: str) -> str:
    """The text of a link as in kernfs: up to the nearest common folder."""
    base = link.split("/")[:-1]
    path = target.split("/")
    shared = 0
    for a, b in zip(base, path[:-1], strict=False):
        if a != b:
            break
        shared += 1
    return "../" * (len(base) - shared) + "/".join(path[shared:])


class MachineFiles:
    """Writes the entries of all owners below ``root``."""

    def __init__(self, root: Path, *, again: bool = False) -> None:
        """``again``: the folder has the files of the same machine, and readers."""
        self.root = root
        self._again = again
        self._prefix = str(root)
        self._owned: dict[str, dict[str, Entry]] = {}
        self._held: dict[str, int] = {"": 1}  # names in each folder
        self._live = again
        self._hold(SCRATCH)
        self._held[SCRATCH] += 1

    def live(self) -> None:
        """Call this before the first reader: from now on files are replaced by rename."""
        self._live = True

    def publish(self, owner: str, entries: Entries) -> None:
        before = self._owned.get(owner, {})
        for path in [path for path, entry in before.items() if _kind(entries.get(path)) is not _kind(entry)]:
            self._remove(path, before[path])
        for path, entry in entries.items():
            old = before.get(path)
            if _kind(old) is not _kind(entry):
                self._create(path, entry)
            elif old != entry:
                self._put(path, entry)
        self._owned[owner] = dict(entries)

    def retract(self, owner: str) -> None:
        for path, entry in self._owned.pop(owner, {}).items():
            self._remove(path, entry)

    def accept(self, owner: str, path: str, text: str) -> Callable[[], None]:
        """Take a value that another program wrote as published, without writing the file: the program may write
        again at once, and its new value must not be overwritten. Returns a function that restores the old value,
        unless another value was published since."""
        entries = self._owned.get(owner, {})
        old = entries.get(path)
        if not isinstance(old, str):
            return lambda: None
        taken = text + "\n" if old.endswith("\n") else text
        entries[path] = taken

        def undo() -> None:
            now = self._owned.get(owner, {})
            if now.get(path) == taken:
                now[path] = old
                self._put(path, old)

        return undo

    def writes(self, paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The files (path: owner) whose content differs from the published one, with that content.

        An empty file was opened for writing and is not written yet.
        """
        for path, owner in paths.items():
            stated = self._owned.get(owner, {}).get(path)
            try:
                with open(self._prefix + path, "rb") as file:
                    text = file.read().decode("utf-8", "replace")
            except OSError:
                continue
            if stated is not None and text and text.strip() != str(stated).strip():
                yield path, text.strip()

    def _create(self, path: str, entry: Entry) -> None:
        if isinstance(entry, _Folder):
            self._hold(path)
            self._held[path] += 1
            return
        folder = path.rpartition("/")[0]
        self._hold(folder)
        self._held[folder] += 1
        self._put(path, entry)

    def _put(self, path: str, entry: Entry) -> None:
        place = self._prefix + path
        at = f"{self._prefix}{SCRATCH}/new" if self._live else place
        if isinstance(entry, Symlink):
            os.symlink(relative(path, entry), at)
        elif isinstance(entry, str):
            fd = os.open(at, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, entry.encode())
            finally:
                os.close(fd)
        if self._live:
            os.rename(at, place)

    def _remove(self, path: str, entry: Entry) -> None:
        if isinstance(entry, _Folder):
            self._release(path)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._prefix + path)
        self._release(path.rpartition("/")[0])

    def _hold(self, folder: str) -> None:
        if folder in self._held:
            return
        parent = folder.rpartition("/")[0]
        self._hold(parent)
        self._held[parent] += 1
        self._held[folder] = 0
        os.makedirs(self._prefix + folder, exist_ok=self._again)

    def _release(self, folder: str) -> None:
        self._held[folder] -= 1
        if self._held[folder] == 0:
            del self._held[folder]
            # Including foreign files, which sysfs would not have allowed.
            shutil.rmtree(self._prefix + folder, ignore_errors=True)
            self._release(folder.rpartition("/")[0])


def _kind(entry: Entry | None) -> type | None:
    return None if entry is None else type(entry)
