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
