"""The slice sizes that the kubelet was given, kept over restarts: a slice that a pod holds keeps its size.

The kubelet counts slices and does not know their size. If the size changed while pods hold slices, a container with
20 slices of 1024 MiB would count as 20 of 2048, and its GPU would be allocated twice or lie idle. A reload compares
a new size with the slices that pods hold; this module does the same over a restart:

* A size is on the disk before the kubelet gets the first slice. The file outlives a boot, as the kubelet's
  checkpoint does.
* If another size is configured, the agent waits for the holdings (``kubelet/holdings.py``). If no pod
  holds slices, the new size applies; otherwise the old size stays while this agent runs. Until then the resource is
  not offered.
* If ``kubelet.podResources`` is off, the old size stays.
* Without a readable file, the configured size applies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.facts.allocation import hardware_of
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind

log = logging.getLogger(__name__)

_Sizes = dict[str, Annotated[int, msgspec.Meta(ge=1)]]
SIZES_FORM = StoredForm(
    name="slices.json", type=_Sizes, content="slice sizes", loss="a changed sliceMiB is not noticed"
)


class KeptSize(msgspec.Struct, frozen=True):
    """An old size that stays although ``configured`` is configured, and why."""

    configured: int
    reason: str


class SliceSizes:
    """MiB of one slice by resource. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        """Read the file of an earlier agent. Blocks."""
        self.file = StoredFile(folder, SIZES_FORM)
        self.in_force: dict[str, int] = self.file.read() or {}
        self._kept: dict[str, KeptSize] = {}
        self._waiting: set[str] = set()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The sizes that stay although others are configured, for ``/readyz``."""
        return tuple(f"{resource}: {kept.reason}" for resource, kept in sorted(self._kept.items()))

    def settle(self, kind: DeviceKind, snapshot: Snapshot, *, pod_resources: bool) -> DeviceKind | str:
        """Return the kind with the size in force, or why it is not offered yet.

        ``pod_resources``: whether the agent reads what pods hold.
        """
        resource, configured = kind.resource, kind.device_mib
        if configured is None:
            return kind
        size = self.in_force.get(resource, configured)
        if size == configured:
            self._kept.pop(resource, None)
            self._waiting.discard(resource)
            return kind
        if self._keeps(resource, configured):
            return kind.resized(size)
        if pod_resources and snapshot.holdings is None:
            return self._wait(resource, size, configured, snapshot)
        self._waiting.discard(resource)
        count = _held(resource, snapshot)
        if not count and pod_resources:
            self._kept.pop(resource, None)
            log.info(
                "No pod holds slices; the changed size applies. resource=%s mib=%d", resource, configured
            )
            self.in_force[resource] = configured
            return kind
        cause = (
            f"pods hold {count} slices; drain the node and restart its agent"
            if pod_resources
            else "kubelet.podResources is off, so it is unknown whether pods hold slices; turn it on"
        )
        reason = f"slices stay {size} MiB although {configured} MiB are configured: {cause}"
        self._kept[resource] = KeptSize(configured, reason)
        log.warning("A changed sliceMiB does not apply: %s. resource=%s", reason, resource)
        return kind.resized(size)

    def refusal(self, kind: DeviceKind, snapshot: Snapshot) -> str | None:
        """Return why a running agent must not take the size of this kind, if it must not."""
        resource, configured = kind.resource, kind.device_mib
        if configured is None:
            return None
        size, count = self.in_force.get(resource, configured), _held(resource, snapshot)
        if size == configured or not count or self._keeps(resource, configured):
            return None
        return (
            f"sliceMiB of {resource.partition('/')[2]} cannot change from {size} to {configured} while "
            f"pods hold {count} slices; drain the node first"
        )

    async def save(self, kinds: Iterable[DeviceKind]) -> None:
        """Save the sizes of these kinds. Return when they are on the disk, or cannot be written."""
        self.in_force |= {kind.resource: kind.device_mib for kind in kinds if kind.device_mib is not None}
        if self.in_force:
            await self.file.save(self.in_force)

    def _keeps(self, resource: str, configured: int) -> bool:
        kept = self._kept.get(resource)
        return kept is not None and kept.configured == configured

    def _wait(self, resource: str, size: int, configured: int, snapshot: Snapshot) -> str:
        if resource not in self._waiting:
            self._waiting.add(resource)
            log.info(
                "A changed sliceMiB waits until it is known what pods hold. resource=%s from=%d to=%d",
                resource,
                size,
                configured,
            )
        cause = next((f": {entry.reason}" for entry in snapshot.stale_sources if entry.source == "pods"), "")
        return (
            f"its slices are to change from {size} to {configured} MiB, "
            f"and what pods hold is not known yet{cause}"
        )


def _held(resource: str, snapshot: Snapshot) -> int:
    """Return how many devices of the resource pods hold, as far as podresources has answered."""
    return sum(
        hardware_of(id_) is not None
        for holding in snapshot.holdings or ()
        if holding.resource == resource
        for id_ in holding.device_ids
    )
