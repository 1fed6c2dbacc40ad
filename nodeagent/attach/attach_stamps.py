"""The stamps of allocations: which CDI devices say that a VF is in the pod of *this* allocation.

The kubelet gives a VF to the next pod once the containers of the last one have ended, while the sandbox of that pod
still exists. So the name of a VF's CDI device has a stamp, made at random in each Allocate and on the disk before its
answer: ``nodeagent.io/attached=0000:18:00.2-5f1c09ab``. A definition for an earlier pod starts no container of a later
one.

The containers of one pod have a stamp each. A reader takes them *before* it asks the kubelet who holds the VF: a stamp
that it has read is then of this holder, or of a pod that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.base.file_writing import replace_file
from nodeagent.base.regular_file import read_regular
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.cdi import ATTACHED_KIND

STAMPS_MAX = 32
"""The newest stamps of a VF that are kept: far more than a pod has containers with one VF."""
_PREFIX = f"{ATTACHED_KIND}="


class AttachStamps:
    """One file for each VF in a folder of the state directory. The agent alone writes; ``read`` and ``write`` block."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / ATTACH_FOLDER / "stamps"

    @staticmethod
    def stamped(allocation: Allocation) -> Allocation:
        """The allocation with a new stamp in the names of its VFs' CDI devices."""
        if not any(name.startswith(_PREFIX) for name in allocation.cdi_devices):
            return allocation
        return replace(
            allocation,
            cdi_devices=tuple(
                f"{name}-{os.urandom(4).hex()}" if name.startswith(_PREFIX) else name
                for name in allocation.cdi_devices
            ),
        )

    def write(self, allocation: Allocation) -> None:
        """Keep the stamps of a stamped allocation. Raises ``OSError`` with the name of the file."""
        for name in allocation.cdi_devices:
            if name.startswith(_PREFIX):
                device, _, stamp = name.removeprefix(_PREFIX).rpartition("-")
                kept = (*self._read(device), stamp)[-STAMPS_MAX:]
                replace_file(self._folder / device, "".join(f"{one}\n" for one in kept).encode())

    def changed_ns(self) -> int:
        """The time of the last allocation, 0 before the first. Blocks; raises ``OSError``."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def read(self, devices: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The stamps of these VFs, the oldest first. Raises ``OSError``."""
        return {device: self._read(device) for device in devices}

    def _read(self, device: str) -> tuple[str, ...]:
        try:
            return tuple(read_regular(self._folder / device).decode("ascii", "replace").split())
        except FileNotFoundError:
            return ()
