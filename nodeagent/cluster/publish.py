"""What this node tells the API server, put together: the report of its links, Events, marks on the Node, evictions.

There only where the configuration and the machine give a way to an API server; without one nothing of this is
loaded. Each part is supervised by itself, and one that may not do its work says so and leaves the others alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.inventory import Inventory
from nodeagent.kubelet.plugin import Kind
from nodeagent.model import Snapshot
from nodeagent.supervise import Fatal, keep

if TYPE_CHECKING:
    from nodeagent.cluster.affected_devices import Offered
    from nodeagent.kube.access import Access

log = logging.getLogger(__name__)

RAIL = "nic{}"
"""The name of a link in the report: that of its rail, as resources are called by default; another NIC in the same place
keeps it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the API server is reached, and as which Node."""

    access: Access
    node: str


def way(settings: ClusterSettings, node_name: str | None) -> Way | None:
    """``None`` where there is no API server to be told. Raises ``Fatal`` for what was asked for and is not there."""
    if settings.access == "none":
        return None
    from nodeagent.kube.access import AccessError, in_cluster, kubeconfig  # noqa: PLC0415
    from nodeagent.kube.claims import node_of  # noqa: PLC0415

    try:
        if settings.access == "kubeconfig":
            access: Access | None = kubeconfig(Path(settings.kubeconfig) if settings.kubeconfig else None)
        else:
            access = in_cluster()
        if access is None:
            if settings.access == "in-cluster":
                raise Fatal(
                    "cluster.access is in-cluster, and this is no pod with a service account; set it to auto or none"
                )
            return None
        claim = node_of(access.authorization())
    except AccessError as error:
        raise Fatal(f"the API server cannot be reached: {error}") from error
    node = node_name or (claim.name if claim else None)
    if node is None:
        log.warning(
            "The API server is told nothing, for this Node's name is not known: give NODE_NAME, or --node-name."
        )
        return None
    return Way(access, node)


class Shown(Protocol):
    """What the agent offers now, and which PF has which rail."""

    @property
    def offered(self) -> Sequence[Kind]: ...
    @property
    def rails(self) -> Mapping[str, int]: ...


async def run(
    settings: ClusterSettings, found: Way, inventory: Inventory, shown: Shown, settled: asyncio.Event
) -> None:
    """Until cancelled; begins once the agent has ``settled``: the kubelet comes first."""
    await settled.wait()
    from nodeagent.kube.claims import node_of  # noqa: PLC0415
    from nodeagent.kube.client import Client  # noqa: PLC0415

    def offered(snapshot: Snapshot) -> Offered:
        return [(kind.resource, kind.devices(snapshot)) for kind in shown.offered]

    client = Client(found.access)
    parts: dict[str, Callable[[], Awaitable[object]]] = {}
    if settings.report:
        from nodeagent.cluster.node_report import Report  # noqa: PLC0415

        def named(_snapshot: Snapshot) -> Mapping[str, tuple[str, int]]:
            return {address: (RAIL.format(rail), rail) for address, rail in shown.rails.items()}

        owner = node_of(found.access.authorization())
        report = Report(client, inventory, found.node, found.access.namespace, named, owner=owner)
        parts["nodelinks"] = report.run
    if settings.events:
        from nodeagent.cluster.device_events import DeviceEvents  # noqa: PLC0415

        parts["events"] = DeviceEvents(client, inventory, found.node, offered).run
    if settings.conditions or settings.label or settings.taint.enabled:
        from nodeagent.cluster.device_marks import DeviceMarker, EnabledMarks  # noqa: PLC0415

        rails_down = settings.taint.rails_down if settings.taint.enabled else None
        marks = EnabledMarks(settings.conditions, settings.label, rails_down)
        parts["nodestate"] = DeviceMarker(client, inventory, found.node, marks).run
    if settings.evict.enabled:
        from nodeagent.cluster.evictions import Evictions  # noqa: PLC0415

        parts["evictions"] = Evictions(client, inventory, offered, settings.evict.after_seconds).run
    log.info("The API server is told of this node. node=%s parts=%s", found.node, ",".join(parts) or "none")
    try:
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(keep(name, part), name=name)
            await asyncio.Event().wait()
    finally:
        await client.close()
