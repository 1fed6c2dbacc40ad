"""Device-info files: the details of a VF, for the CNI plugins that move it into a pod."""

from __future__ import annotations

import glob
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nodeagent.base.file_writing import PUBLIC_FOLDER, Leftovers, replace_file, try_writing
from nodeagent.facts.allocation import DeviceInfo

DEVICE_INFO = "/var/run/k8s.cni.cncf.io/devinfo/dp"
"""The folder that the Network Plumbing Working Group's device-info specification gives to device plugins."""

_FRESH_S = 60.0
"""A file this young may be of a pod that podresources does not list yet, written by an agent that still serves."""


class DeviceInfoFiles:
    """The folder of device-info files, under any root. The files of this process are never stale."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: set[str] = set()
        self._leftovers = Leftovers(folder)

    def write(self, files: Iterable[DeviceInfo]) -> None:
        """Write the files of one allocation. Blocks; raises ``OSError`` with the name of the file."""
        for info in files:
            self._written.add(info.name)
            replace_file(self.folder / info.name, info.text.encode(), mode=0o444, folder_mode=PUBLIC_FOLDER)

    def try_writing(self) -> None:
        """Write a file into the folder and remove it. Blocks; raises ``OSError`` with the name of the folder."""
        self._leftovers.sweep()
        try_writing(self.folder, 3, PUBLIC_FOLDER)

    def remove_stale(self, prefix: str, held: Iterable[str]) -> tuple[str, ...]:
        """Remove the files of an earlier agent and return their names.

        Such a file begins with ``prefix``, is older than ``_FRESH_S``, and is not of a held device.
        """
        self._leftovers = Leftovers(self.folder, f"{glob.escape(prefix)}*-device.json")
        self._leftovers.sweep()
        keep = set(held)
        removed = []
        for path in sorted(self.folder.glob(f"{glob.escape(prefix)}*-device.json")):
            # An Allocate in another thread may add to ``_written`` during this loop.
            if path.name in keep or path.name in self._written:
                continue
            with suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > _FRESH_S:
                    path.unlink()
                    removed.append(path.name)
        return tuple(removed)
