"""The tasks that evict pods: those with a failed device, and those that exceed their share of GPU memory.

They share one limit of evictions. The second one runs wherever accounting is on, because ``enforcement`` may change
while the agent runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster.cluster_settings import EvictSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.evictions import PER_S, Causes, Evictions, failed_device_causes, over_use_causes
from nodeagent.cluster.notice_board import NoticeBoard
from nodeagent.cluster.over_use_notices import OverUseSource
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kube.client import ApiClient


class OfferedKinds(Protocol):
    """The resources that the agent offers now."""

    @property
    def offered(self) -> Sequence[DeviceKind]: ...


def tasks(
    client: ApiClient,
    inventory: Inventory,
    offer: OfferedKinds,
    accounting: OverUseSource | None,
    settings: EvictSettings,
    *,
    node: str,
    board: NoticeBoard,
    deliveries: Deliveries,
) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the tasks by name."""
    made: dict[str, Callable[[], Awaitable[object]]] = {}
    rate = RateLimit(1, PER_S)
    if settings.enabled:
        after_s = settings.after_seconds

        def failed(snapshot: Snapshot) -> Causes:
            devices = [(kind.resource, kind.devices(snapshot)) for kind in offer.offered]
            return failed_device_causes(snapshot, devices, after_s)

        made["evictions"] = Evictions(
            client, inventory, failed, after_s,
            node=node, board=board, delivery=deliveries.of("evictions"), rate=rate,
        ).run  # fmt: skip
    if accounting is not None:
        watched, seen = accounting, 0

        def exceeding(snapshot: Snapshot) -> Causes:
            nonlocal seen
            seen = watched.revision
            evicting = {
                entry.parent
                for kind in offer.offered
                if kind.level(snapshot) == "evict"
                for entry in kind.devices(snapshot)
            }
            return over_use_causes(watched.over_uses, evicting, watched.evict_s)

        made["over-use evictions"] = Evictions(
            client, inventory, exceeding, watched.evict_s,
            node=node, board=board, delivery=deliveries.of("evictions"), rate=rate,
            part="over-use evictions", changed=lambda: watched.changed(seen),
        ).run  # fmt: skip
    return made
