"""This node's NodeLinks object: the state and the neighbor of each link, written when they change.

Rules:

* The report contains state only: no counter, no TTL, no heartbeat. An equal report is not written.
* The first neighbor of a link is reported at once, a different one once it is confirmed. Without any neighbor the
  last known one stays and is marked stale: missing frames do not mean another switch.
* After a start, the last report of this node stands for ``PATIENCE_S``, the longest pause between two frames of a
  switch. A restart of all agents therefore writes nothing.
* Changes are gathered for ``GATHER_S``, and two writes are at least ``GAP_S`` apart. A failed write is repeated with
  the state of that time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from nodeagent.backoff import JITTER, Backoff, jittered
from nodeagent.fabric.nodelinks import LinkNeighbor, Metadata, NodeLink, NodeLinks, ReportedId
from nodeagent.inventory import Inventory
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS
from nodeagent.model import Function, Link, Neighbor, Snapshot, State
from nodeagent.rfc3339 import rfc3339

log = logging.getLogger(__name__)

GATHER_S = 2.0
GAP_S = 10.0
PATIENCE_S = 120.0
"""Four times the interval of a switch's frames, and their TTL (802.1AB, 9.2.5.6 and 9.2.5.7)."""
ADDRESSES_MAX = 8
CHECK_S = 3600.0
"""How often the stored object is read again: a person may have deleted it."""
RETRY_FIRST_S, RETRY_MAX_S = 2.0, 120.0

COMPUTE = "compute"
RAIL_NAME = "nic{}"
"""The name of a link in the report, by its rail. Resources have the same names by default, and a NIC that is
replaced in the same slot keeps it."""
_WORST_FIRST = (State.DOWN, State.DEGRADED, State.MISCABLED, State.UNKNOWN, State.HEALTHY)

Rails = Mapping[str, int]
"""The rail of each PF that has one, by PCI address."""

REPORT = NODELINKS.typed(NodeLinks)


def report(
    snapshot: Snapshot,
    node: str,
    rails: Rails,
    before: NodeLinks | None,
    *,
    now: float,
    patient: bool = False,
    namespace: str | None = None,
) -> NodeLinks:
    """The report of this moment.

    ``before`` is the last report, ``now`` Unix time. ``patient``: the agent has just started, so a neighbor without
    a frame may still send one.
    """
    last = {link.name: link for link in before.links} if before else {}
    stamp = rfc3339(now)
    links = {link.pci_address: link for link in snapshot.links}
    reported = {}
    for function in snapshot.functions:
        if function.parent is not None or function.link_type == "infiniband":
            continue
        rail = rails.get(function.pci_address)
        name = RAIL_NAME.format(rail) if rail is not None else function.netdev or function.pci_address
        reported[name] = _link(
            name,
            rail,
            function,
            links.get(function.pci_address),
            snapshot.neighbors,
            last.get(name),
            stamp,
            patient=patient,
        )
    addresses = {link.pci_address for link in reported.values()}
    for name, link in last.items():
        # A function that this agent has not found yet, or that was removed.
        if name not in reported and link.pci_address not in addresses:
            reported[name] = link if patient else _missing(link, stamp)
    return NodeLinks(
        metadata=Metadata(name=node, namespace=namespace),
        node_name=node,
        links=tuple(sorted(reported.values(), key=_place)),
    )


def _link(
    name: str,
    rail: int | None,
    function: Function,
    link: Link | None,
    neighbors: Iterable[Neighbor],
    last: NodeLink | None,
    stamp: str,
    *,
    patient: bool,
) -> NodeLink:
    netdev = link.netdev if link else function.netdev
    own_neighbors = [neighbor for neighbor in neighbors if neighbor.link == netdev]
    state = function.health.state.value
    same_state = last is not None and last.state == state and last.last_transition_time is not None
    return NodeLink(
        name=name,
        netdev=netdev or (last.netdev if last else None),
        pci_address=function.pci_address,
        mac=(link.mac if link else None) or (last.mac if last else None),
        fabric=COMPUTE if rail is not None and not (link and link.default_route) else None,
        rail=rail,
        speed_mbps=link.speed_mbps if link else None,
        state=state,
        reasons=tuple(sorted({reason.key for reason in function.health.reasons})),
        neighbor=_neighbor(own_neighbors, last.neighbor if last else None, patient=patient),
        last_transition_time=last.last_transition_time if last and same_state else stamp,
    )


def _neighbor(neighbors: list[Neighbor], last: LinkNeighbor | None, *, patient: bool) -> LinkNeighbor | None:
    """The neighbor to report: the last one while it is live, else a confirmed one, else the last one as stale."""
    live = [_link_neighbor(neighbor) for neighbor in neighbors if not neighbor.stale]
    if last is None:
        return live[0] if live else None
    for neighbor in live:
        if (neighbor.chassis_id, neighbor.port_id) == (last.chassis_id, last.port_id):
            return neighbor
    confirmed = [neighbor for neighbor in neighbors if neighbor.confirmed and not neighbor.stale]
    if confirmed:
        return _link_neighbor(confirmed[0])
    return last if patient and not neighbors else msgspec.structs.replace(last, stale=True)


def _link_neighbor(neighbor: Neighbor) -> LinkNeighbor:
    port = ReportedId(subtype=neighbor.port_id.subtype, value=neighbor.port_id.value)
    return LinkNeighbor(
        chassis_id=ReportedId(subtype=neighbor.chassis_id.subtype, value=neighbor.chassis_id.value),
        port_id=port,
        system_name=neighbor.system_name,
        # Most switches repeat the port's name as its description; the API server stores these bytes for every link.
        port_description=neighbor.port_description if neighbor.port_description != port.value else None,
        # Their order means nothing. A switch with hundreds of addresses must not make the report too large.
        management_addresses=tuple(sorted(set(neighbor.management_addresses))[:ADDRESSES_MAX]),
        stale=neighbor.stale,
    )


def _missing(link: NodeLink, stamp: str) -> NodeLink:
    """A link of the last report whose device is gone."""
    neighbor = msgspec.structs.replace(link.neighbor, stale=True) if link.neighbor else None
    reasons = ("device_missing",)
    if (link.state, link.reasons, link.neighbor) == (State.DOWN.value, reasons, neighbor):
        return link
    return msgspec.structs.replace(
        link, state=State.DOWN.value, reasons=reasons, neighbor=neighbor, last_transition_time=stamp
    )


def _place(link: NodeLink) -> tuple[bool, int, str]:
    """Links with a rail first, by its number."""
    return (link.rail is None, link.rail or 0, link.name)


def body(links: NodeLinks, owner: NodeClaim | None) -> dict[str, Any]:
    """The object to apply: the report, a summary for `kubectl get`, and the Node as owner.

    The summary exists because a printer column is a JSONPath and cannot count.
    """
    up = sum(link.state not in (State.DOWN.value, State.UNKNOWN.value) for link in links.links)
    switches = {
        (link.neighbor.system_name or link.neighbor.chassis_id.value)
        for link in links.links
        if link.neighbor is not None and not link.neighbor.stale
    }
    states = {link.state for link in links.links}
    worst = next((state.value for state in _WORST_FIRST if state.value in states), State.UNKNOWN.value)
    applied: dict[str, Any] = msgspec.to_builtins(links)
    applied["summary"] = {"links": f"{up}/{len(links.links)}", "switches": len(switches), "health": worst}
    if owner is not None:
        applied["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid}
        ]
    return applied


class NodeReporter:
    """Keep this node's NodeLinks up to date.

    ``rails`` returns the rails for each report. ``jitter_s`` spreads the first reports of nodes that start together.
    """

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        namespace: str,
        rails: Callable[[], Rails],
        *,
        owner: NodeClaim | None = None,
        jitter_s: float = 10.0,
        gather_s: float = GATHER_S,
        gap_s: float = GAP_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client, self._inventory = client, inventory
        self._node, self._namespace, self._rails = node, namespace, rails
        self._owner = owner
        self._jitter_s, self._gather_s, self._gap_s, self._patience_s = jitter_s, gather_s, gap_s, patience_s
        self._stored: NodeLinks | None = None
        self._failure: str | None = None
        self.writes = 0

    async def run(self) -> None:
        """Write reports until cancelled. An unreachable API server is logged once, and the call is repeated."""
        loop = asyncio.get_running_loop()
        await self._read()
        if self._stored is None:
            await asyncio.sleep(jittered(self._jitter_s, 0.0, 1.0))
        patient_until = loop.time() + self._patience_s
        check_at = loop.time() + jittered(CHECK_S)
        while True:
            snapshot, now = self._inventory.snapshot, loop.time()
            if now >= check_at:
                await self._read()
                check_at = now + jittered(CHECK_S)
            if self._inventory.has_published("pci"):
                await self._write(snapshot, patient=now < patient_until)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(patient_until if now < patient_until else check_at):
                    await self._inventory.changed(snapshot.revision)
                    await asyncio.sleep(self._gather_s)

    async def _write(self, snapshot: Snapshot, *, patient: bool) -> None:
        """Write the report if it differs from the stored one. A retry reports the state of that time."""
        backoff = _backoff()
        while True:
            links = report(
                snapshot,
                self._node,
                self._rails(),
                self._stored,
                now=time.time(),
                patient=patient,
                namespace=self._namespace,
            )
            if self._stored is not None and links.links == self._stored.links:
                return
            try:
                await self._client.apply(REPORT, body(links, self._owner), force=True)
            except ApiError as error:
                await self._wait(error, backoff)
                snapshot = self._inventory.snapshot
                continue
            self._recovered("written")
            self.writes += 1
            self._stored = links
            await asyncio.sleep(self._gap_s)
            return

    async def _read(self) -> None:
        """Read the stored report; retry until the API server answers."""
        backoff = _backoff()
        while True:
            try:
                self._stored = await self._client.get(REPORT, self._node, namespace=self._namespace)
            except ApiError as error:
                if not error.missing:
                    await self._wait(error, backoff)
                    continue
                self._stored = None
            self._recovered("read")
            return

    async def _wait(self, error: ApiError, backoff: Backoff) -> None:
        """Wait after a failed call."""
        if self._failure != str(error):
            self._failure = str(error)
            log.warning("The NodeLinks report does not reach the API server. reason=%r", self._failure)
        await asyncio.sleep(max(error.retry_after_s or 0.0, backoff.next_s()))

    def _recovered(self, done: str) -> None:
        if self._failure is not None:
            log.info("The NodeLinks report is %s again.", done)
            self._failure = None


def _backoff() -> Backoff:
    return Backoff(RETRY_FIRST_S, RETRY_MAX_S, jitter=JITTER)
