"""The allocations of VFs on this node, by device plugins and by claims, as the agent keeps them on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.attach.claimed_vfs import ClaimedVf, ClaimedVfs


class VfAllocations:
    """``directory`` is the state directory. Each call blocks and may raise ``OSError``."""

    def __init__(self, directory: Path) -> None:
        self._stamps, self._claims = AttachStamps(directory), ClaimedVfs(directory)

    def changed_ns(self) -> int:
        """The time of the last allocation, 0 before the first."""
        return max(self._stamps.changed_ns(), self._claims.changed_ns())

    def read(self, devices: Iterable[str]) -> tuple[dict[str, tuple[str, ...]], tuple[ClaimedVf, ...]]:
        """The stamps of these VFs, those of claims last; and the VFs of all claims."""
        claims = self._claims.read()
        stamps = self._stamps.read(devices)
        for one in claims:
            if one.device in stamps:
                stamps[one.device] = (*stamps[one.device], one.stamp)
        return stamps, claims
