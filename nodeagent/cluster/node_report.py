"""This node's NodeLinks object: the state and the neighbor of each link, written when they change.

Rules:

* The report contains state only: no counter, no TTL, no heartbeat. An equal report is not written.
* The neighbor of a link is the first one in the snapshot. It is reported at once, but a different one than before, or
  another name, only once it is confirmed. Without any neighbor the last known one stays and is marked stale: missing
  frames do not mean another switch.
* After a start, the last report of this node stands for ``_PATIENCE_S``, the longest pause between two frames of a
  switch. A restart of all agents therefore writes nothing.
* Changes are gathered for ``GATHER_S``, and two writes are at least ``GAP_S`` apart. A failed write is repeated with
  the state of that time.
* A part that the server refuses is left out (``refused_fields``), and the rest is written. Each check of the stored
  object tries the whole report again.
* Of GPUs those in trouble alone are named, with no value that changes by itself. One that a person keeps from pods is
  in none. While no GPU is known, the last ones stand.
* The pods that hold VFs are reported only on request (`cluster.reportHolders`). While podresources has not answered,
  the last ones stand. So does the enforcement of GPU memory while no GPU is known.
* A missing NIC keeps its place as ``missing`` while it has a rail. Without a rail it leaves the report.

The time of a pod is that at which the agent saw it first, and it stays as long as the pod holds VFs. So a report
changes only when a pod comes or goes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import msgspec

from nodeagent.base.backoff import jittered
from nodeagent.base.plain_text import one_line
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cluster.deliveries import Deliveries, Delivery, incomplete
from nodeagent.cluster.event_writer import EventTarget, Notice, NoticeBoard
from nodeagent.cluster.refused_fields import OLDER_STATES, leave_out, refused_fields
from nodeagent.cluster.reported_gpus import DETAIL_MAX, gpus_in_trouble, gpus_unknown
from nodeagent.cluster.reported_traffic import reported_traffic
from nodeagent.cluster.retry import ApiRetry
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL, read_maintenance, under_maintenance
from nodeagent.fabric.node_values import reported_values
from nodeagent.fabric.nodelinks import (
    CONTENDERS_MAX,
    NOT_UP,
    ComparedValues,
    Contender,
    GpuMemoryLevel,
    HeldVf,
    LinkNeighbor,
    Metadata,
    NodeLink,
    NodeLinks,
    RailLeg,
    ReportedDomain,
    ReportedId,
    VfHolder,
    convert_nodelinks,
)
from nodeagent.facts.card_identity import card_identity, ethernet_mac, node_guid
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import (
    INFINIBAND,
    LINK_STATES,
    Function,
    Identifier,
    Link,
    Neighbor,
    NodeNumber,
    RailCheck,
    Snapshot,
    State,
)
from nodeagent.kinds.rail_numbers import Rail, nic_names
from nodeagent.kube.access import Access, NodeClaim
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS

log = logging.getLogger(__name__)

GATHER_S = 2.0
GAP_S = 10.0
_PATIENCE_S = 120.0
"""Four times the interval of a switch's frames, and their TTL (802.1AB, 9.2.5.6 and 9.2.5.7)."""
_CHECK_S = 3600.0
"""How often the stored object is read again: a person may have deleted it."""
_TRIES = 6
"""How often a refused report is sent with fewer parts: the server does not name all errors at once."""
FINE_TRIES = 3
"""After so many, a link with a refused part is left out as a whole."""

_COMPUTE = "compute"

RailByAddress = Mapping[str, int]
"""The rail of each PF that has one, by PCI address."""

REPORT = NODELINKS.typed(NodeLinks)
_DECIDED = attrgetter(  # by this node
    "links", "nvlink_domains", "gpus", "gpu_memory", "holders", "compared", "traffic"
)


def report(
    snapshot: Snapshot,
    node: str,
    rails: RailByAddress,
    before: NodeLinks | None,
    *,
    now: float,
    patient: bool = False,
    namespace: str | None = None,
    levels: tuple[GpuMemoryLevel, ...] = (),
    with_holders: bool = False,
) -> NodeLinks:
    """The report of this moment.

    ``before`` is the last report, ``now`` Unix time. ``patient``: the agent has just started, so a neighbor without
    a frame may still send one. ``levels`` is the enforcement of GPU memory.
    """
    last, stamp = {link.name: link for link in before.links} if before else {}, rfc3339(now)
    links = {link.pci_address: link for link in snapshot.links}
    checks = {check.pci_address: check for check in snapshot.rail_checks}
    reported, names, named = dict[str, NodeLink](), dict[str, str](), nic_names(rails)
    for function in snapshot.functions:
        if function.parent is not None:
            continue
        rail = rails.get(function.pci_address)
        if function.missing and rail is None:
            continue
        name = named.get(function.pci_address) or function.netdev or function.pci_address
        names[function.pci_address] = name
        reported[name] = _link(
            name,
            rail,
            function,
            links.get(function.pci_address),
            snapshot,
            last.get(name),
            stamp,
            checks.get(function.pci_address),
            patient=patient,
        )
    addresses = {function.pci_address for function in snapshot.functions}
    for name, link in last.items():
        # A function that this agent has not found yet. Later the facts have each NIC with a rail, missing ones too.
        if patient and name not in reported and link.pci_address not in addresses:
            reported[name] = link
    return NodeLinks(
        metadata=Metadata(name=node, namespace=namespace),
        node_name=node,
        links=tuple(sorted(reported.values(), key=_place)),
        gpu_memory=_gpu_memory(snapshot, before, levels, stamp),
        nvlink_domains=_domains(snapshot, before),
        gpus=gpus_in_trouble(snapshot, before, stamp, patient=patient, with_pods=with_holders),
        holders=vf_holders(snapshot, names, before, stamp) if with_holders else (),
        compared=_compared(snapshot, before, now, patient=patient),
        traffic=reported_traffic(snapshot, names, before, now, patient=patient),
    )


def _compared(
    snapshot: Snapshot, before: NodeLinks | None, now: float, *, patient: bool
) -> ComparedValues | None:
    """The compared values with the dates of changes. After a start the last ones stand until they are read."""
    last = None if before is None else before.compared
    if snapshot.compared:
        return reported_values(dict(snapshot.compared), last, now)
    return last if patient else None


def _gpu_memory(
    snapshot: Snapshot, before: NodeLinks | None, levels: Iterable[GpuMemoryLevel], stamp: str
) -> tuple[GpuMemoryLevel, ...]:
    if before is not None and gpus_unknown(snapshot):
        return before.gpu_memory
    return tuple(_dated(level, before, stamp) for level in levels)


def _dated(level: GpuMemoryLevel, before: NodeLinks | None, stamp: str) -> GpuMemoryLevel:
    """The level with the time since when its limit is in force, or is not."""
    if level.in_force is None:
        return level
    last = next(
        (entry for entry in (before.gpu_memory if before else ()) if entry.resource == level.resource), None
    )
    same = last is not None and last.in_force == level.in_force
    return msgspec.structs.replace(level, since=last.since if last is not None and same else stamp)


def _domains(snapshot: Snapshot, before: NodeLinks | None) -> tuple[ReportedDomain, ...]:
    """The NVLink domains of the GPUs. While one is not known, or there is no GPU, the last report stands: a driver
    that is loaded again, or a fabric that starts, divides no domain. A GPU that is lost counts for nothing."""
    gpus = [gpu for gpu in snapshot.gpus if not gpu.lost]
    if not gpus or any(gpu.nvlink_domain is None for gpu in gpus):
        return () if before is None else before.nvlink_domains
    indexes: dict[str, list[int]] = {}
    for gpu in gpus:
        indexes.setdefault(gpu.nvlink_domain or "", []).append(gpu.index)
    if indexes.keys() == {""}:
        return ()
    return tuple(
        ReportedDomain(
            cluster_uuid=domain.rpartition(".")[0] or None,
            clique_id=int(domain.rpartition(".")[2]) if domain else None,
            gpus=tuple(found),
        )
        for domain, found in sorted(indexes.items(), key=lambda entry: entry[1])
    )


def _link(
    name: str,
    rail: int | None,
    function: Function,
    link: Link | None,
    snapshot: Snapshot,
    last: NodeLink | None,
    stamp: str,
    check: RailCheck | None,
    *,
    patient: bool,
) -> NodeLink:
    netdev = link.netdev if link else function.netdev
    own_neighbors = [neighbor for neighbor in snapshot.neighbors if neighbor.link == netdev]
    state, is_infiniband = function.link_state, function.link_type == INFINIBAND
    reasons = sorted({reason.key: reason.detail for reason in function.health.reasons}.items())
    number = next((one for one in snapshot.node_numbers if one.pci_address == function.pci_address), None)
    same_state = (
        last is not None
        and last.state in (state, OLDER_STATES.get(state))
        and last.last_transition_time is not None
    )
    return NodeLink(
        name=name,
        netdev=netdev or (last.netdev if last else None),
        pci_address=function.pci_address,
        mac=(link.mac if link else None) or (last.mac if last else None),
        node_guid=(card_identity(function, link) or (last.node_guid if last else None))
        if is_infiniband
        else None,
        link_type=INFINIBAND if is_infiniband else None,
        rdma_device=function.rdma.device if is_infiniband and function.rdma else None,
        fabric=_COMPUTE if rail is not None and not (link and link.default_route) else None,
        rail=rail,
        speed_mbps=link.speed_mbps if link else None,
        state=state,
        reasons=tuple(key for key, _ in reasons),
        reason_details=tuple(one_line(detail, DETAIL_MAX) for _, detail in reasons),
        neighbor=reported_neighbor(own_neighbors, last.neighbor if last else None, patient=patient),
        last_transition_time=last.last_transition_time if last and same_state else stamp,
        **_checked(check, last if patient else None),
        **_numbered(number, last if patient else None),
    )


def _numbered(number: NodeNumber | None, last: NodeLink | None) -> dict[str, Any]:
    """The number of the node on the rail. After a start the last report stands until the addresses are read."""
    if number is not None:
        return {"vf_prefix": number.prefix, "number": number.number or None}
    return {} if last is None else {"vf_prefix": last.vf_prefix, "number": last.number}


def _checked(check: RailCheck | None, last: NodeLink | None) -> dict[str, Any]:
    """The part of a link that the probes know. After a start the last report stands until they say something."""
    if check is not None:
        legs = tuple(RailLeg(**msgspec.structs.asdict(leg)) for leg in check.legs)
        return {"addresses": check.addresses, "rail_checked": check.checked, "legs": legs}
    if last is not None:
        return {"addresses": last.addresses, "rail_checked": last.rail_checked, "legs": last.legs}
    return {}


def _place(link: NodeLink) -> tuple[bool, int, str]:
    """Links with a rail first, by its number."""
    return (link.rail is None, link.rail or 0, link.name)


def body(links: NodeLinks, owner: NodeClaim | None) -> dict[str, Any]:
    """The object to apply: the report, a summary for `kubectl get`, and the Node as owner.

    The summary exists because a printer column is a JSONPath and cannot count.
    """
    used = [link for link in links.links if link.state != State.UNUSED.value]
    up = sum(link.state not in NOT_UP for link in used)
    switches = {
        (link.neighbor.system_name or link.neighbor.chassis_id.value)
        for link in links.links
        if link.neighbor is not None and not link.neighbor.stale
    }
    states = {link.state for link in links.links}
    worst = next((state for state in LINK_STATES if state in states), State.UNKNOWN.value)
    applied: dict[str, Any] = msgspec.to_builtins(links)
    applied["summary"] = {"links": f"{up}/{len(used)}", "switches": len(switches), "health": worst}
    if owner is not None:
        applied["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid}
        ]
    return applied


class NodeReporter:
    """Keep this node's NodeLinks up to date.

    ``rails`` and ``levels`` return the rails and the enforcement of GPU memory for each report. ``with_holders``
    reports the pods that hold VFs. ``planned`` takes begin and end of planned work (seconds from now) and a sentence by
    PCI address, each time that the server has sent the report with its annotations. ``jitter_s`` spreads the first
    reports of nodes that start together.
    """

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        namespace: str,
        rails: Callable[[], RailByAddress],
        *,
        owner: NodeClaim | None = None,
        delivery: Delivery | None = None,
        board: NoticeBoard | None = None,
        levels: Callable[[Snapshot], tuple[GpuMemoryLevel, ...]] = lambda _snapshot: (),
        with_holders: bool = False,
        planned: Callable[[Mapping[str, tuple[float, float, str]]], object] = lambda _work: None,
        jitter_s: float = 10.0,
        gather_s: float = GATHER_S,
        gap_s: float = GAP_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._client, self._inventory = client, inventory
        self._node, self._namespace, self._rails = node, namespace, rails
        self._owner, self._levels, self._with_holders = owner, levels, with_holders
        self._planned = planned
        self._jitter_s, self._gather_s, self._gap_s, self._patience_s = jitter_s, gather_s, gap_s, patience_s
        self._retry = ApiRetry(
            "The NodeLinks report does not reach the API server", delivery or Deliveries().of("nodelinks")
        )
        self._board = board or NoticeBoard()
        self._stored: NodeLinks | None = None
        self._fault = ""
        """The error of the annotation of planned work; empty: none."""
        self._left_out: tuple[str, ...] = ()
        self._reduced: NodeLinks | None = None
        """The report that was written in place of ``_stored``, without the parts that the server refused."""
        self.writes = 0

    async def run(self) -> None:
        """Write reports until cancelled. An unreachable API server is logged once, and the call is repeated."""
        loop = asyncio.get_running_loop()
        await self._read()
        if self._stored is None:
            await asyncio.sleep(jittered(self._jitter_s, 0.0, 1.0))
        patient_until = loop.time() + self._patience_s
        check_at = loop.time() + jittered(_CHECK_S)
        again = False
        while True:
            snapshot, now = self._inventory.snapshot, loop.time()
            if now >= check_at:
                await self._read()
                check_at = now + jittered(_CHECK_S)
                again = bool(self._left_out)
            if self._inventory.has_published("pci"):
                await self._write(snapshot, patient=now < patient_until, again=again)
                again = False
            with suppress(TimeoutError):
                async with asyncio.timeout_at(patient_until if now < patient_until else check_at):
                    await self._inventory.changed(snapshot.revision)
                    await asyncio.sleep(self._gather_s)

    async def _write(self, snapshot: Snapshot, *, patient: bool, again: bool) -> None:
        """Write the report if it differs from the stored one, or ``again``. A retry reports the state of that time."""
        while True:
            links = report(
                snapshot,
                self._node,
                self._rails(),
                self._stored,
                now=time.time(),
                patient=patient,
                namespace=self._namespace,
                levels=self._levels(snapshot),
                with_holders=self._with_holders,
            )
            if self._stored is not None and _DECIDED(links) == _DECIDED(self._stored) and not again:
                return
            try:
                left_out = await self._send(links)
            except ApiError as error:
                await self._wait(error)
                snapshot = self._inventory.snapshot
                continue
            if left_out and left_out != self._left_out:
                log.warning("The NodeLinks report is incomplete: %s.", incomplete(left_out))
            self._succeeded(left_out)
            self.writes += 1
            self._stored = links
            await asyncio.sleep(self._gap_s)
            return

    async def _send(self, links: NodeLinks) -> tuple[str, ...]:
        """Write the report, without the parts that the server refuses. Return their names. Raises ``ApiError``."""
        written = body(links, self._owner)
        left_out: list[str] = []
        for attempt in range(_TRIES):
            try:
                self._take_planned(await self._client.apply(REPORT, written, force=True))
            except ApiError as error:
                written = msgspec.json.decode(msgspec.json.encode(written))  # lists instead of tuples
                removed = leave_out(written, refused_fields(error), whole_links=attempt >= FINE_TRIES)
                if not removed or attempt == _TRIES - 1:
                    raise
                left_out += removed
            else:
                break
        self._reduced = convert_nodelinks(written) if left_out else None
        return tuple(dict.fromkeys(left_out))

    async def _read(self) -> None:
        """Read the stored report; retry until the API server answers."""
        while True:
            try:
                stored = await self._client.get(REPORT, self._node, namespace=self._namespace)
            except ApiError as error:
                if not error.missing:
                    await self._wait(error)
                    continue
                self._stored = self._reduced = None
            else:
                self._take_planned(stored)
                if self._reduced is None or _DECIDED(stored) != _DECIDED(self._reduced):
                    self._stored, self._reduced = stored, None
            if self._retry.reason is not None:
                self._succeeded(self._left_out)
            return

    def _take_planned(self, stored: NodeLinks) -> None:
        """Pass on the planned work that `nodeagent maintain` has written to the report beside the Node."""
        entries, fault = read_maintenance((stored.metadata.annotations or {}).get(MAINTENANCE_LABEL))
        if fault != self._fault:
            log.warning(
                "The annotation %s of the report is wrong. fault=%r", MAINTENANCE_LABEL, fault or "none now"
            )
        self._fault, found, now = fault, {"": entries}, time.time()
        self._planned(
            {
                link.pci_address: (work.begin - now, work.end - now, work.sentence)
                for link in stored.links
                if link.pci_address and (work := under_maintenance(found, "", link.name, now))
            }
        )

    def _succeeded(self, left_out: tuple[str, ...]) -> None:
        self._left_out = left_out
        self._retry.succeeded(left_out)
        self._board.post(
            "nodelinks", *([self._notice("ReportIncomplete", incomplete(left_out))] if left_out else [])
        )

    async def _wait(self, error: ApiError) -> None:
        """Wait after a failed call."""
        if error.refused or error.status == 403:
            text = f"the API server refuses it, so this node is not placed by its links: {error}"
            self._board.post("nodelinks", self._notice("ReportRefused", text))
        await asyncio.sleep(self._retry.failed(error, time.monotonic()))

    def _notice(self, reason: str, text: str) -> Notice:
        target = EventTarget("Node", "", self._node)
        return Notice(target, "NodeLinks", reason, f"NodeLinks report: {text}", recovers=False)


_ADDRESSES_MAX = 8
_PORT = attrgetter("chassis_id", "port_id", "system_name")


def reported_neighbor(
    neighbors: list[Neighbor], last: LinkNeighbor | None, *, patient: bool
) -> LinkNeighbor | None:
    """The neighbor to report: the first one, unless it is another one than before and not confirmed."""
    if not neighbors:
        return last if last is None or patient else msgspec.structs.replace(last, stale=True)
    first = neighbors[0]
    others = [neighbor for neighbor in neighbors[1:] if neighbor.contender and not neighbor.stale]
    current = _link_neighbor(first, others)
    if last is None:
        return current
    if _PORT(current) == _PORT(last):
        return last if patient and first.stale else current
    return current if first.confirmed else msgspec.structs.replace(last, stale=True)


def _link_neighbor(neighbor: Neighbor, contenders: Iterable[Neighbor]) -> LinkNeighbor:
    port = _reported_id(neighbor.port_id)
    # Contenders that differ only in their source MAC are one entry, also if they are like the neighbor.
    others = tuple(dict.fromkeys(map(_contender, contenders)))
    return LinkNeighbor(
        chassis_id=_reported_id(neighbor.chassis_id),
        port_id=port,
        system_name=neighbor.system_name,
        # Most switches repeat the port's name as its description; the API server stores these bytes for every link.
        port_description=neighbor.port_description if neighbor.port_description != port.value else None,
        management_addresses=_addresses(neighbor),
        stale=neighbor.stale,
        contested=bool(others),
        contenders=others[:CONTENDERS_MAX],
    )


def _contender(neighbor: Neighbor) -> Contender:
    return Contender(
        chassis_id=_reported_id(neighbor.chassis_id),
        port_id=_reported_id(neighbor.port_id),
        system_name=neighbor.system_name,
        management_addresses=_addresses(neighbor),
    )


def _reported_id(identifier: Identifier) -> ReportedId:
    return ReportedId(subtype=identifier.subtype, value=identifier.value)


def _addresses(neighbor: Neighbor) -> tuple[str, ...]:
    """Their order means nothing. A switch with hundreds of addresses must not make the report too large."""
    return tuple(sorted(set(neighbor.management_addresses))[:_ADDRESSES_MAX])


HOLDERS_MAX = 128
"""Pods of a report, above the 110 that a kubelet runs by default; the definition has the same bound."""
HELD_VFS_MAX = 128
"""VFs of one pod."""


def vf_holders(
    snapshot: Snapshot, names: Mapping[str, str], before: NodeLinks | None, stamp: str
) -> tuple[VfHolder, ...]:
    """The pods with VFs or NICs, in the order of their names.

    ``names``: the names of the links by the address of the PF. A pod of the same name with other VFs is another pod."""
    last = () if before is None else before.holders
    if snapshot.holdings is None:
        return last
    since = {
        (holder.namespace, holder.pod, vf.pci_address): holder.since for holder in last for vf in holder.vfs
    }
    links = {
        function.pci_address: names[pf]
        for function in snapshot.functions
        if (pf := function.parent or function.pci_address) in names
    }
    held: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for holding in snapshot.holdings:
        vfs = {(links[id_], id_) for id_ in holding.device_ids if id_ in links}
        if vfs and holding.pod:  # a claim may have no pod yet
            held.setdefault((holding.namespace, holding.pod), set()).update(vfs)
    return tuple(
        VfHolder(
            namespace=namespace,
            pod=pod,
            vfs=tuple(HeldVf(link=link, pci_address=id_) for link, id_ in sorted(vfs)[:HELD_VFS_MAX]),
            since=min(
                (since[key] for _, id_ in vfs if (key := (namespace, pod, id_)) in since), default=stamp
            ),
        )
        for (namespace, pod), vfs in sorted(held.items())[:HOLDERS_MAX]
    )


REPORT_S = 3.0
RAIL_MAX = 255
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


async def read_rails(access: Access, node: str) -> tuple[Rail, ...]:
    """Return the rails of this node's report: the second memory, for a node whose file of rails is gone.

    None if the report cannot be read within ``REPORT_S``, because it is read before anything is offered. The API server
    lets only the agent of this node write the report, and its content is nevertheless checked as that of a stranger.
    """
    client = ApiClient(access, timeout_s=REPORT_S)
    try:
        async with asyncio.timeout(REPORT_S):
            report = await client.get(REPORT, node, namespace=access.namespace)
    except (ApiError, TimeoutError) as error:
        if isinstance(error, ApiError) and error.missing:
            return ()
        log.warning(
            "The file of the rails is gone, and the report of this node cannot be read; NICs without a held VF are "
            "numbered in PCI order. reason=%r",
            str(error) or f"no answer within {REPORT_S:g} s",
        )
        return ()
    finally:
        await client.close()
    if report.node_name != node:
        log.warning("A report with the name of this node is that of another one. node=%r", report.node_name)
        return ()
    rails = rails_of(report)
    if rails:
        log.warning(
            "The file of the rails is gone; the numbers are those of the report of this node. rails=%s",
            ",".join(f"{rail.number}={rail.pci_address}" for rail in rails),
        )
    return rails


def rails_of(report: NodeLinks) -> tuple[Rail, ...]:
    """Return the rails that the report has without a contradiction. A number may occur once for each selection. A rail
    without a valid number and PCI address, or at an address that another link has too, is left out.

    A MAC address is that of the netdev: where a bond has changed it, no card has it, and the PCI address decides. So it
    does for an InfiniBand link in the report of an agent that gave no GUID.
    """
    found = [(link, node_guid(link.node_guid) or ethernet_mac(link.mac)) for link in _valid(report)]
    addresses = Counter(link.pci_address for link, _ in found)
    cards = Counter(card for _, card in found)
    rails = (
        Rail(link.rail, link.pci_address, card if cards[card] == 1 else None)
        for link, card in found
        if link.rail is not None and addresses[link.pci_address] == 1
    )
    return tuple(sorted(rails, key=lambda rail: rail.number))


def _valid(report: NodeLinks) -> Iterator[NodeLink]:
    for link in report.links:
        if link.rail is not None and 0 <= link.rail <= RAIL_MAX and _PCI.fullmatch(link.pci_address or ""):
            yield link
