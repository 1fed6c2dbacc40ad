"""Files the agent leaves for others: device-info for CNI plugins, and its CDI spec for container runtimes.

Each is written whole or not at all: to a temporary name beside it, synced by rename. An ``OSError`` (a full
disk, a read-only mount) goes to the caller with the file's name in it; nothing half-written stays.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nodeagent.model import Allocation

DEVICE_INFO = "/var/run/k8s.cni.cncf.io/devinfo/dp"
"""Where the Network Plumbing Working Group's device-info specification puts a device plugin's files."""


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Put ``text`` at ``path`` in one step, replacing a file of any mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, mode)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def refusal(folder: Path) -> str | None:
    """Why no file could be made in a folder, told without making one; ``None`` where one could.

    Raises ``OSError`` where the folder is not there.
    """
    place = os.statvfs(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it is mounted read-only" if place.f_flag & os.ST_RDONLY else "no permission to write"
    if place.f_blocks and not place.f_bavail:
        return "the file system is full"
    if place.f_files and not place.f_favail:
        return "the file system has no inode left"
    return None


FRESH_S = 60.0
"""An agent that still serves may have written it for a pod that podresources does not tell of yet."""


class DeviceInfoFiles:
    """The folder of device-info files, under any root. What this process wrote is never stale."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[str] = set()

    def write(self, allocation: Allocation) -> None:
        for info in allocation.device_info:
            self._written.add(info.name)
            write(self._folder / info.name, info.text, mode=0o444)

    def remove_stale(self, prefix: str, held: Iterable[str]) -> tuple[str, ...]:
        """Remove what an earlier life left: names that begin with ``prefix``, older than ``FRESH_S``, and
        not of a held device."""
        keep = set(held)
        removed = []
        for path in sorted(self._folder.glob(f"{glob.escape(prefix)}*-device.json")):
            # Looked up one by one: an Allocate may write while this goes on.
            if path.name in keep or path.name in self._written:
                continue
            with suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > FRESH_S:
                    path.unlink()
                    removed.append(path.name)
        return tuple(removed)
