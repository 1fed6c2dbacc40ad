"""Everything that the agent writes to the API server, composed: NodeLinks, Events, marks on the Node, evictions,
ResourceSlices.

It runs only where the configuration and the machine give access to an API server; otherwise none of the modules is
loaded. Each task is supervised alone: one that lacks a right logs it and does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.base.supervise import Fatal, keep
from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.rail_numbers import Rails
from nodeagent.kinds.resource_settings import ResourceSettings, VfResource
from nodeagent.kinds.volcano_vgpus import VgpuPlaces

if TYPE_CHECKING:
    from nodeagent.base.unwritable_memory import UnwritableMemory
    from nodeagent.cluster.affected_devices import Offered
    from nodeagent.cluster.limit_notices import LimitSource
    from nodeagent.cluster.mps_notices import MpsSource
    from nodeagent.cluster.over_use_notices import OverUseSource
    from nodeagent.dra.offered import DraOffer
    from nodeagent.health.health_settings import HealthSettings
    from nodeagent.kube.access import Access, NodeClaim
    from nodeagent.kube.client import ApiClient

log = logging.getLogger(__name__)

TOKEN_S = 2.0
"""For reading the token, which is a file in memory."""


class NodeAccess(msgspec.Struct, frozen=True):
    """How the API server is reached (a ``kube.access.Access``), and the name of this Node."""

    access: Any
    node: str


def node_access(settings: ClusterSettings, node_name: str | None) -> NodeAccess | None:
    """``None`` without an API server or a Node name. Raises ``Fatal`` if the configured access does not exist."""
    if settings.access == "none":
        return None
    from nodeagent.kube.access import AccessError, in_cluster, kubeconfig, node_of  # noqa: PLC0415

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
        claim = node_of(within("the token of the API server", TOKEN_S, access.authorization))
    except (AccessError, Unanswered) as error:
        raise Fatal(f"the API server cannot be reached: {error}") from error
    node = node_name or (claim.name if claim else None)
    if node is None:
        log.warning(
            "Nothing is written to the API server: the name of this Node is not known. Set NODE_NAME or --node-name."
        )
        return None
    return NodeAccess(access, node)


async def reported_rails(node_access: NodeAccess, resources: Iterable[ResourceSettings]) -> Rails:
    """Return the rails of this node's report; none if no resource has rails, or without an answer in some seconds."""
    if not any(isinstance(entry, VfResource) for entry in resources):
        return ()
    from nodeagent.cluster import reported_rails  # noqa: PLC0415

    return await reported_rails.read(node_access.access, node_access.node)


class AgentOffer(Protocol):
    """The resources that the agent offers now, and the rail of each PF."""

    @property
    def offered(self) -> Sequence[DeviceKind]: ...
    @property
    def rails(self) -> Mapping[str, int]: ...
    @property
    def dra(self) -> DraOffer: ...


async def run(
    settings: ClusterSettings,
    node_access: NodeAccess,
    inventory: Inventory,
    offer: AgentOffer,
    settled: asyncio.Event,
    deliveries: Deliveries | None = None,
    accounting: OverUseSource | None = None,
    limits: LimitSource | None = None,
    mps: MpsSource | None = None,
    health: HealthSettings | None = None,
    *,
    unwritable: Callable[[], Sequence[UnwritableMemory]] | None = None,
    volcano: bool = False,
) -> None:
    """Run the enabled tasks until cancelled. They start once the agent has ``settled``: the kubelet comes first.
    ``volcano``: Volcano's deviceshare places pods by GPU."""
    await settled.wait()
    from nodeagent.kube.access import node_of  # noqa: PLC0415
    from nodeagent.kube.client import ApiClient  # noqa: PLC0415

    def offered(snapshot: Snapshot) -> Offered:
        return [(kind.resource, kind.devices(snapshot)) for kind in offer.offered]

    from nodeagent.cluster.notice_board import NoticeBoard  # noqa: PLC0415

    access, node = node_access.access, node_access.node
    deliveries, board = deliveries or Deliveries(), NoticeBoard()
    client = ApiClient(access)
    owner = node_of(await BoundedCalls("token", TOKEN_S).run(access.authorization))
    tasks: dict[str, Callable[[], Awaitable[object]]] = {
        "slices": partial(_publish_slices, client, inventory, offer.dra, node, owner, deliveries, health)
    }
    if settings.report:
        from nodeagent.cluster.largest_block import levels_in_force  # noqa: PLC0415
        from nodeagent.cluster.node_report import NodeReporter  # noqa: PLC0415

        reporter = NodeReporter(
            client,
            inventory,
            node,
            access.namespace,
            lambda: offer.rails,
            owner=owner,
            delivery=deliveries.of("nodelinks"),
            board=board,
            levels=lambda snapshot: levels_in_force(offer.offered, snapshot),
            with_holders=settings.report_holders,
        )
        tasks["nodelinks"] = reporter.run
    if settings.events:
        from nodeagent.cluster.device_events import DeviceEvents  # noqa: PLC0415

        tasks["events"] = DeviceEvents(
            client, inventory, node, offered, board=board, delivery=deliveries.of("events")
        ).run
        if unwritable is not None:
            from nodeagent.cluster import state_notices  # noqa: PLC0415

            tasks["state"] = partial(state_notices.follow, unwritable, node, board)
        if accounting is not None:
            from nodeagent.cluster import over_use_notices  # noqa: PLC0415

            tasks["over-use"] = partial(over_use_notices.follow, accounting, inventory, node, board)
        if limits is not None:
            from nodeagent.cluster import limit_notices  # noqa: PLC0415

            tasks["limits"] = partial(limit_notices.follow, limits, inventory, node, board)
        if mps is not None:
            from nodeagent.cluster import mps_notices  # noqa: PLC0415

            tasks["mps"] = partial(mps_notices.follow, mps, inventory, node, board)
    if settings.marks_nodes:
        from nodeagent.cluster.device_marks import DeviceMarker  # noqa: PLC0415
        from nodeagent.cluster.largest_block import free_block, level_in_force  # noqa: PLC0415

        tasks["nodestate"] = DeviceMarker(
            client,
            inventory,
            node,
            settings,
            deliveries,
            rails=lambda: offer.rails,
            block=lambda snapshot: free_block(offer.offered, snapshot),
            level=lambda snapshot: level_in_force(offer.offered, snapshot),
        ).run
    if volcano:
        from nodeagent.cluster.volcano_deviceshare import VolcanoDeviceshare  # noqa: PLC0415

        def vgpu_settings() -> GpuMemory | None:
            return next((kind.memory for kind in offer.offered if isinstance(kind, VgpuPlaces)), None)

        tasks["volcano"] = VolcanoDeviceshare(
            client, inventory, node, vgpu_settings, delivery=deliveries.of("volcano")
        ).run
    accounted = accounting if accounting is not None and accounting.enabled else None
    if settings.evict.enabled or accounted is not None:
        from nodeagent.cluster import eviction_tasks  # noqa: PLC0415

        tasks |= eviction_tasks.tasks(
            client, inventory, offer, accounted, settings.evict, node=node, board=board, deliveries=deliveries
        )
    log.info("Writing to the API server. node=%s parts=%s", node, ",".join(tasks) or "none")
    try:
        async with asyncio.TaskGroup() as group:
            for name, task in tasks.items():
                group.create_task(keep(name, task), name=name)
            await asyncio.Event().wait()
    finally:
        await client.close()


async def _publish_slices(
    client: ApiClient,
    inventory: Inventory,
    offer: DraOffer,
    node: str,
    owner: NodeClaim | None,
    deliveries: Deliveries,
    health: HealthSettings | None,
) -> None:
    """Publish ResourceSlices from the moment when a kind has mode dra, or when claims of an earlier agent keep the
    driver: then no device is published, and the slices of that agent are deleted."""
    while not offer.current.pools and not offer.served:
        await offer.changed(offer.revision)
    from nodeagent.cluster.leaf_group_label import LeafGroupLabel  # noqa: PLC0415
    from nodeagent.cluster.slice_publisher import SlicePublisher  # noqa: PLC0415
    from nodeagent.dra.published_pools import PublishedPools  # noqa: PLC0415
    from nodeagent.health.health_settings import HealthSettings  # noqa: PLC0415

    health = health or HealthSettings()
    pools = PublishedPools(inventory, offer, node, no_execute=health.no_execute, share=health.guard.share)
    label = LeafGroupLabel(client, node, pools.set_leaf_group)
    publisher = SlicePublisher(client, node, pools, owner=owner, delivery=deliveries.of("slices"))
    async with asyncio.TaskGroup() as group:
        group.create_task(keep("leaf group", label.run), name="leaf group")
        group.create_task(keep("slices", publisher.run), name="slices")
