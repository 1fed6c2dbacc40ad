"""The parts of the agent that write to the API server, as a table.

``PARTS`` has a row for each part, with the setting that enables it and the function that makes its task. The parts run
only where the configuration and the machine give access to an API server, and beside them those of features. Their
modules are imported when they start: a node without an API server is spared 80 ms and 2.8 MiB, most of it for urllib3.
Each task is supervised alone: one that lacks a right logs it and does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from nodeagent.base.backoff import RateLimit
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.base.supervise import Fatal, keep
from nodeagent.base.unwritable_memory import UnwritableMemory
from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.dra.published_pools import PublishedPools
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.health.service import HealthService
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Rails
from nodeagent.kinds.resource_settings import ResourceSettings, network_entries
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.sharing.gpu_sharing import GpuSharing

if TYPE_CHECKING:  # loaded with an API server
    from nodeagent.cluster.affected_devices import Offered
    from nodeagent.cluster.event_writer import NoticeBoard
    from nodeagent.cluster.evictions import Causes, EvictionTaint
    from nodeagent.cluster.held_pods import HeldPods
    from nodeagent.fabric.nodelinks import GpuMemoryLevel
    from nodeagent.kube.access import Access, NodeClaim
    from nodeagent.kube.client import ApiClient

log = logging.getLogger(__name__)

_TOKEN_S = 2.0
"""For reading the token, which is a file in memory."""
NUMA_S = 2.0
"""For reading the kernel's table of NUMA nodes, in some 20 files."""


class NodeAccess(msgspec.Struct, frozen=True):
    """How the API server is reached (a ``kube.access.Access``), and the name of this Node."""

    access: Any
    node: str


def node_access(settings: ClusterSettings, node_name: str | None) -> NodeAccess | None:
    """``None`` without an API server or a Node name. Raises ``Fatal`` if the configured access does not exist."""
    if settings.access == "none":
        return None
    from nodeagent.kube.access import AccessError, in_cluster, kubeconfig, node_of

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
        claim = node_of(within("the token of the API server", _TOKEN_S, access.authorization))
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
    if not network_entries(resources):
        return ()
    from nodeagent.cluster.node_report import read_rails

    return await read_rails(node_access.access, node_access.node)


class AgentOffer(Protocol):
    """The resources that the agent offers now, the rail of each PF, and the NICs that the settings offer as a whole."""

    @property
    def offered(self) -> Sequence[DeviceKind]: ...
    @property
    def rails(self) -> Mapping[str, int]: ...
    @property
    def whole(self) -> Collection[str]: ...
    @property
    def dra(self) -> DraOffer: ...


class AgentClaims(Protocol):
    """The claims of this node."""

    def written(self) -> Mapping[str, PreparedClaim]:
        """The prepared claims whose files are on the disk, by UID."""

    def rival(self) -> str | None:
        """A sentence about another DRA driver of our name, if there is one."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the agent whose state is written. ``settings`` are those of the start. `offer.dra` wakes its readers
    when other settings of health are in force. ``read_holdings`` returns what pods hold now, ``None`` if the kubelet
    does not answer."""

    settings: ClusterSettings
    inventory: Inventory
    health: HealthService
    offer: AgentOffer
    plugins: DevicePlugins
    claims: AgentClaims
    sharing: GpuSharing
    deliveries: Deliveries
    tree: Tree
    unwritable: Callable[[], Sequence[UnwritableMemory]]
    read_holdings: Callable[[], Awaitable[Iterable[Holding] | None]]


class Writing(NamedTuple):
    """The agent's state, and the means to write it, which the tasks share.

    ``namespace`` is that of the report, and ``owner`` the Node as the token names it. ``evictions`` limits those of all
    causes together. ``evict_taint`` comes before those for a failed device.
    """

    agent: AgentState
    client: ApiClient
    node: str
    namespace: str
    owner: NodeClaim | None
    board: NoticeBoard
    evictions: RateLimit
    evict_taint: EvictionTaint

    @property
    def node_facts(self) -> tuple[ApiClient, Inventory, str]:
        """The first arguments of each writer: the API server, the facts and the name of the Node."""
        return self.client, self.agent.inventory, self.node

    def held_pods(self) -> HeldPods:
        """The finder of the UIDs of pods, one for each task."""
        from nodeagent.cluster.held_pods import HeldPods

        return HeldPods(self.client, self.node, self.agent.read_holdings)

    def devices(self, snapshot: Snapshot) -> Offered:
        """The devices that each resource of a device plugin has now."""
        return [(kind.resource, kind.devices(snapshot)) for kind in self.agent.offer.offered]


Task = Callable[[], Awaitable[object]]


class ClusterPart(NamedTuple):
    """A row of ``PARTS``. ``make`` imports the modules of the part and returns its task."""

    name: str
    enabled: Callable[[AgentState], bool]
    make: Callable[[Writing], Task]


async def run_agent_tasks(
    agent: AgentState,
    node_access: NodeAccess,
    settled: asyncio.Event,
    further: Mapping[str, Callable[[Writing], Task]],
) -> None:
    """Run the enabled parts, and ``further`` ones by name, until cancelled. They start once the agent has ``settled``:
    the kubelet comes first."""
    await settled.wait()
    from nodeagent.cluster.event_writer import NoticeBoard
    from nodeagent.cluster.evictions import EVICTIONS_PER_S, EvictionTaint
    from nodeagent.kube.access import node_of
    from nodeagent.kube.client import ApiClient

    access, node = node_access.access, node_access.node
    client = ApiClient(access)
    owner = node_of(await BoundedCalls("token", _TOKEN_S).run(access.authorization))
    rate, taint = RateLimit(1, EVICTIONS_PER_S), EvictionTaint()
    writing = Writing(agent, client, node, access.namespace, owner, NoticeBoard(), rate, taint)
    makers = {part.name: part.make for part in PARTS if part.enabled(agent)} | dict(further)
    tasks = {name: make(writing) for name, make in makers.items()}
    log.info("Writing to the API server. node=%s parts=%s", node, ",".join(tasks))
    try:
        async with asyncio.TaskGroup() as group:
            for name, task in tasks.items():
                group.create_task(keep(name, task), name=name)
            await asyncio.Event().wait()
    finally:
        await client.close()


def _slices(to: Writing) -> Task:
    return partial(_publish_slices, to)


async def _publish_slices(to: Writing) -> None:
    """Publish ResourceSlices from the moment when a kind has mode dra, or when claims of an earlier agent keep the
    driver: then no device is published, and the slices of that agent are deleted."""
    offer = to.agent.offer.dra
    while not offer.current.pools and not offer.served:
        await offer.changed(offer.revision)
    from nodeagent.cluster.slice_publisher import LeafGroupLabel, SlicePublisher

    pools = PublishedPools(
        to.agent.inventory,
        offer,
        to.node,
        health=lambda: to.agent.health.settings,
        near_nodes=await _near_nodes(to.agent) if to.agent.settings.numa_node_list else {},
    )
    label = LeafGroupLabel(to.client, to.node, pools.set_leaf_group)
    delivery = to.agent.deliveries.of("slices")
    publisher = SlicePublisher(to.client, to.node, pools, owner=to.owner, delivery=delivery)
    async with asyncio.TaskGroup() as group:
        group.create_task(keep("leaf group", label.run), name="leaf group")
        group.create_task(keep("slices", publisher.run), name="slices")


async def _near_nodes(agent: AgentState) -> Mapping[int, tuple[int, ...]]:
    """The NUMA nodes near each one; none if the kernel does not answer in time."""
    from nodeagent.host.numa_nodes import near_nodes

    try:
        return await BoundedCalls("NUMA nodes", NUMA_S).run(near_nodes, agent.tree)
    except Unanswered as error:
        log.warning("Devices get one NUMA node, not a list (cluster.numaNodeList). reason=%r", str(error))
        return {}


def _claim_statuses(to: Writing) -> Task:
    return partial(_write_claim_statuses, to)


async def _write_claim_statuses(to: Writing) -> None:
    """Write the status of claims from the moment when the driver serves."""
    offer = to.agent.offer.dra
    while not offer.served:
        await offer.changed(offer.revision)
    from nodeagent.cluster.claim_statuses import ClaimStatusWriter

    delivery = to.agent.deliveries.of("claims")
    await ClaimStatusWriter(
        to.client, to.agent.inventory, offer, to.agent.claims.written, delivery=delivery
    ).run()


def _report(to: Writing) -> Task:
    from nodeagent.cluster.largest_block import levels_in_force
    from nodeagent.cluster.node_report import NodeReporter

    offer = to.agent.offer

    def levels(snapshot: Snapshot) -> tuple[GpuMemoryLevel, ...]:
        return levels_in_force(offer.offered, snapshot, (it.kind for it in offer.dra.current.known()))

    return NodeReporter(
        *to.node_facts,
        to.namespace,
        lambda: offer.rails,
        owner=to.owner,
        delivery=to.agent.deliveries.of("nodelinks"),
        board=to.board,
        levels=levels,
        with_holders=to.agent.settings.report_holders,
        planned=to.agent.health.take_planned_work,
    ).run


def _events(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import AgentEvents

    delivery = to.agent.deliveries.of("events")
    pods = to.held_pods()
    return AgentEvents(*to.node_facts, to.devices, pods=pods, board=to.board, delivery=delivery).run


def _state_notices(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import follow_state

    return partial(follow_state, to.agent.unwritable, to.node, to.board)


def _name_notices(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import follow_names

    return partial(follow_names, to.agent.plugins.statuses, to.agent.claims.rival, to.node, to.board)


def _over_use_notices(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import follow, over_use_notices

    accounting, inventory = to.agent.sharing.accounting, to.agent.inventory
    return partial(follow, "accounting", accounting, over_use_notices, inventory, to.node, to.board)


def _limit_notices(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import follow, limit_notices

    return partial(
        follow, "limits", to.agent.sharing.limits, limit_notices, to.agent.inventory, to.node, to.board
    )


def _mps_notices(to: Writing) -> Task:
    from nodeagent.cluster.agent_events import follow, mps_notices

    return partial(follow, "mps", to.agent.sharing.mps, mps_notices, to.agent.inventory, to.node, to.board)


def _marks(to: Writing) -> Task:
    from nodeagent.cluster.device_marks import DeviceMarker
    from nodeagent.cluster.largest_block import free_block, level_in_force

    offer = to.agent.offer
    return DeviceMarker(
        *to.node_facts,
        to.agent.settings,
        to.agent.deliveries,
        rails=lambda: offer.rails,
        block=lambda snapshot: free_block(offer.offered, snapshot),
        level=lambda snapshot: level_in_force(
            offer.offered, snapshot, (it.kind for it in offer.dra.current.known())
        ),
        evict_taint=to.evict_taint,
    ).run


def _evictions(to: Writing) -> Task:
    from nodeagent.cluster.evictions import Evictions, failed_device_causes

    evict, failed_s = to.agent.settings.evict, to.agent.health.failed_s
    return Evictions(
        to.client,
        to.agent.inventory,
        lambda snapshot: failed_device_causes(snapshot, to.devices(snapshot), failed_s, time.monotonic()),
        evict.after_seconds,
        node=to.node,
        pods=to.held_pods(),
        board=to.board,
        delivery=to.agent.deliveries.of("evictions"),
        rate=to.evictions,
        taint=to.evict_taint if evict.taint else None,
    ).run


def _over_use_evictions(to: Writing) -> Task:
    from nodeagent.cluster.evictions import Evictions, over_use_causes

    accounting, offer, seen = to.agent.sharing.accounting, to.agent.offer, 0

    def exceeding(snapshot: Snapshot) -> Causes:
        nonlocal seen
        seen = accounting.revision
        offered = dict.fromkeys((*offer.offered, *(device.kind for device in offer.dra.current.known())))
        kinds = [kind for kind in offered if kind.level(snapshot) == "evict"]
        evicting = {entry.parent for kind in kinds for entry in kind.devices(snapshot)}
        return over_use_causes(accounting.over_uses, evicting)

    return Evictions(
        to.client,
        to.agent.inventory,
        exceeding,
        accounting.evict_s,
        node=to.node,
        board=to.board,
        delivery=to.agent.deliveries.of("evictions"),
        rate=to.evictions,
        part="over-use evictions",
        changed=lambda: accounting.changed(seen),
    ).run


def _writes_events(agent: AgentState) -> bool:
    return agent.settings.events


PARTS = (
    ClusterPart("slices", lambda _: True, _slices),
    ClusterPart("claims", lambda agent: agent.settings.claim_status, _claim_statuses),
    ClusterPart("nodelinks", lambda agent: agent.settings.report, _report),
    ClusterPart("events", _writes_events, _events),
    ClusterPart("state", _writes_events, _state_notices),
    ClusterPart("names", _writes_events, _name_notices),
    ClusterPart("over-use", _writes_events, _over_use_notices),
    ClusterPart("limits", _writes_events, _limit_notices),
    ClusterPart("mps", _writes_events, _mps_notices),
    ClusterPart("nodestate", lambda agent: any(agent.settings.marks.values()), _marks),
    ClusterPart("evictions", lambda agent: agent.settings.evict.enabled, _evictions),
    # Wherever accounting is on, because ``enforcement`` may change while the agent runs.
    ClusterPart("over-use evictions", lambda agent: agent.sharing.accounting.enabled, _over_use_evictions),
)
"""The names are those of the tasks, in the log and in ``nodeagent_task_restarts_total``."""
