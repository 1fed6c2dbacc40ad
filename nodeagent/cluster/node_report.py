"""NodeLinks: what this node says of its links to the cluster, one small object, written when its meaning changes.

The law of this file:

* The object says what is, not how it goes: no counter, no TTL, no heartbeat. An equal report is not written.
* Another neighbor is stated once it is confirmed; the first one at once. Where nobody is heard the last one
  known stays, stale: to be silent is not to be elsewhere.
* After a start the last report of this node stands for ``PATIENCE_S``, the longest that a switch is quiet:
  a restart of every agent writes nothing.
* Changes are gathered for ``GATHER_S``, and ``GAP_S`` lie between two writes. What could not be written is
  written later, as it then is.
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
from nodeagent.fabric.nodelinks import Identifier, LinkNeighbor, Metadata, NodeLink, NodeLinks
from nodeagent.inventory import Inventory
from nodeagent.kube.claims import NodeClaim
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODELINKS
from nodeagent.model import Function, Link, Neighbor, Snapshot, State
from nodeagent.rfc3339 import rfc3339

log = logging.getLogger(__name__)

GATHER_S = 2.0
GAP_S = 10.0
PATIENCE_S = 120.0
"""Four times the interval at which switches speak, and the TTL of what they say (802.1AB, 9.2.5.6 and 9.2.5.7)."""
ADDRESSES_MAX = 8
CHECK_S = 3600.0
"""Now and then the object itself is looked at: somebody may have deleted it."""
RETRY_FIRST_S, RETRY_MAX_S = 2.0, 120.0

COMPUTE = "compute"
_GRAVITY = (State.DOWN, State.DEGRADED, State.MISCABLED, State.UNKNOWN, State.HEALTHY)

Names = Mapping[str, tuple[str, int]]
"""The name and the number of the rail of each PF that has one, by PCI address."""

REPORT = NODELINKS.typed(NodeLinks)


def report(
    snapshot: Snapshot,
    node: str,
    rails: Names,
    before: NodeLinks | None,
    *,
    now: float,
    patient: bool = False,
    namespace: str | None = None,
) -> NodeLinks:
    """The report of this moment. ``before`` is the last one; ``patient``: who is not heard yet may still be."""
    last = {link.name: link for link in before.links} if before else {}
    stamp = rfc3339(now)
    links = {link.pci_address: link for link in snapshot.links}
    said = {}
    for function in snapshot.functions:
        if function.parent is not None or function.link_type == "infiniband":
            continue
        name, rail = rails.get(function.pci_address, (None, None))
        name = name or function.netdev or function.pci_address
        said[name] = _link(
            name,
            rail,
            function,
            links.get(function.pci_address),
            snapshot.neighbors,
            last.get(name),
            stamp,
            patient=patient,
        )
    addresses = {link.pci_address for link in said.values()}
    for name, link in last.items():
        # Not among the functions of this life of the agent: it has been pulled, or is not there yet.
        if name not in said and link.pci_address not in addresses:
            said[name] = link if patient else _gone(link, stamp)
    return NodeLinks(
        metadata=Metadata(name=node, namespace=namespace),
        node_name=node,
        links=tuple(said[name] for name in sorted(said, key=lambda name: _place(said[name]))),
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
    heard = [one for one in neighbors if one.link == netdev]
    state = function.health.state.value
    steady = last is not None and last.state == state and last.last_transition_time is not None
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
        neighbor=_neighbor(heard, last.neighbor if last else None, patient=patient),
        last_transition_time=last.last_transition_time if last and steady else stamp,
    )


def _neighbor(heard: list[Neighbor], known: LinkNeighbor | None, *, patient: bool) -> LinkNeighbor | None:
    live = [_told(one) for one in heard if not one.stale]
    if known is None:
        return live[0] if live else None
    for told in live:
        if (told.chassis_id, told.port_id) == (known.chassis_id, known.port_id):
            return told
    confirmed = [_told(one) for one in heard if one.confirmed and not one.stale]
    if confirmed:
        return confirmed[0]
    return known if patient and not heard else msgspec.structs.replace(known, stale=True)


def _told(one: Neighbor) -> LinkNeighbor:
    port = Identifier(subtype=one.port_id.subtype, value=one.port_id.value)
    return LinkNeighbor(
        chassis_id=Identifier(subtype=one.chassis_id.subtype, value=one.chassis_id.value),
        port_id=port,
        system_name=one.system_name,
        # Most switches repeat the port's name as its description, and these bytes are kept for every link.
        port_description=one.port_description if one.port_description != port.value else None,
        # In which order they are told is no fact, and a switch with hundreds must not make the report too large.
        management_addresses=tuple(sorted(set(one.management_addresses))[:ADDRESSES_MAX]),
        stale=one.stale,
    )


def _gone(link: NodeLink, stamp: str) -> NodeLink:
    neighbor = msgspec.structs.replace(link.neighbor, stale=True) if link.neighbor else None
    reasons = ("device_missing",)
    if (link.state, link.reasons, link.neighbor) == (State.DOWN.value, reasons, neighbor):
        return link
    return msgspec.structs.replace(
        link, state=State.DOWN.value, reasons=reasons, neighbor=neighbor, last_transition_time=stamp
    )


def _place(link: NodeLink) -> tuple[bool, int, str]:
    return (link.rail is None, link.rail or 0, link.name)


def body(told: NodeLinks, owner: NodeClaim | None) -> dict[str, Any]:
    """The object to be applied: the report, a summary for `kubectl get`, and the Node that it goes with.

    A JSONPath, which is all that a printer column can be, counts nothing; hence the summary.
    """
    up = sum(link.state not in (State.DOWN.value, State.UNKNOWN.value) for link in told.links)
    switches = {
        (link.neighbor.system_name or link.neighbor.chassis_id.value)
        for link in told.links
        if link.neighbor is not None and not link.neighbor.stale
    }
    states = {link.state for link in told.links}
    worst = next((state.value for state in _GRAVITY if state.value in states), State.UNKNOWN.value)
    made: dict[str, Any] = msgspec.to_builtins(told)
    made["summary"] = {"links": f"{up}/{len(told.links)}", "switches": len(switches), "health": worst}
    if owner is not None:
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid}
        ]
    return made


class Report:
    """Keeps this node's NodeLinks true. ``rails`` is asked for each report; ``jitter_s`` spreads the first
    reports of a cluster whose nodes start together."""

    def __init__(
        self,
        client: Client,
        inventory: Inventory,
        node: str,
        namespace: str,
        rails: Callable[[Snapshot], Names],
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
        self._said: NodeLinks | None = None
        self._trouble: str | None = None
        self.writes = 0

    async def run(self) -> None:
        """Until cancelled. An API server that cannot be reached is said once and tried again."""
        loop = asyncio.get_running_loop()
        await self._until_read()
        if self._said is None:
            await asyncio.sleep(jittered(self._jitter_s, 0.0, 1.0))
        patient_until = loop.time() + self._patience_s
        check_at = _later(loop.time())
        while True:
            snapshot, now = self._inventory.snapshot, loop.time()
            if now >= check_at:
                await self._until_read()
                check_at = _later(now)
            if self._inventory.heard("pci"):
                await self._say(snapshot, patient=now < patient_until)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(patient_until if now < patient_until else check_at):
                    await self._inventory.changed(snapshot.revision)
                    await asyncio.sleep(self._gather_s)

    async def _say(self, snapshot: Snapshot, *, patient: bool) -> None:
        """Write the report if it is another than the last; what fails is tried with what is true by then."""
        backoff = _backoff()
        while True:
            told = report(
                snapshot,
                self._node,
                self._rails(snapshot),
                self._said,
                now=time.time(),
                patient=patient,
                namespace=self._namespace,
            )
            if self._said is not None and told.links == self._said.links:
                return
            try:
                await self._client.apply(REPORT, body(told, self._owner), force=True)
            except ApiError as error:
                await self._wait_out(error, backoff)
                snapshot = self._inventory.snapshot
                continue
            self._told("written")
            self.writes += 1
            self._said = told
            await asyncio.sleep(self._gap_s)
            return

    async def _until_read(self) -> None:
        backoff = _backoff()
        while True:
            try:
                self._said = await self._client.get(REPORT, self._node, namespace=self._namespace)
            except ApiError as error:
                if not error.missing:
                    await self._wait_out(error, backoff)
                    continue
                self._said = None
            self._told("read")
            return

    async def _wait_out(self, error: ApiError, backoff: Backoff) -> None:
        if self._trouble != str(error):
            self._trouble = str(error)
            log.warning(
                "The report of this node's links does not reach the API server. reason=%r", self._trouble
            )
        await asyncio.sleep(max(error.retry_after_s or 0.0, backoff.next_s()))

    def _told(self, what: str) -> None:
        if self._trouble is not None:
            log.info("The report of this node's links is %s again.", what)
            self._trouble = None


def _later(now: float) -> float:
    return now + jittered(CHECK_S)


def _backoff() -> Backoff:
    return Backoff(RETRY_FIRST_S, RETRY_MAX_S, jitter=JITTER)
