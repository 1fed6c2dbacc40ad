"""The links with their neighbors for `nodeagent neighbors`: as a receiver or the facts of lldpd have them now.

Only this view has ages; they are no part of the facts. The order is that of the facts, so the first neighbor of a link
is the one in NodeLinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.facts.model import Neighbor, Remark, Snapshot
from nodeagent.lldp.link_remarks import FLOODED, NO_NEIGHBOR, OWN_FRAMES
from nodeagent.sources.link_selection import SelectedLink
from nodeagent.sources.lldp_receiver import LldpReceiver, ReceivingLink
from nodeagent.sources.source_settings import LldpSettings

_WITHOUT = ("unheard", "silent")


class AgedNeighbor(msgspec.Struct, frozen=True):
    """A neighbor with times in seconds; ``None`` for neighbors of lldpd.

    ``age_s`` is the age of its last frame, ``known_s`` that of its first. ``ttl_s`` is the TTL in use,
    ``announced_ttl_s`` the one in the frame.
    """

    neighbor: Neighbor
    age_s: float | None = None
    known_s: float | None = None
    ttl_s: float | None = None
    announced_ttl_s: int | None = None


class LinkRow(msgspec.Struct, frozen=True):
    """One link. ``state`` is ``live``, ``stale``, ``unheard`` (carrier, but no frame yet), ``silent`` (no frame for
    longer than a switch waits: a remark has the reason), ``down`` (no carrier), ``away`` (the netdev is gone),
    ``deaf`` (no socket: ``error`` has the reason; InfiniBand: a remark has it) or ``unasked`` (an InfiniBand link
    that may not ask).

    ``moved_from`` was the neighbor until ``moved_s`` ago, if it has changed since the start. ``flooded``: more frames
    come in than any switch sends. ``nic``: the name by its rail.
    """

    link: str
    pci_address: str | None
    driver: str | None
    state: str
    neighbors: tuple[AgedNeighbor, ...] = ()
    error: str | None = None
    moved_from: str | None = None
    moved_s: float | None = None
    flooded: bool = False
    nic: str | None = None


class NeighborListing(msgspec.Struct, frozen=True):
    """All links with their neighbors. ``waited_s`` is the time limit of a reading that has ended. ``fault``: why the
    agent receives no LLDP.
    """

    rows: tuple[LinkRow, ...]
    remarks: tuple[Remark, ...]
    waited_s: float | None = None
    fault: str | None = None

    @property
    def waiting(self) -> int:
        """The number of links with carrier and no frame yet."""
        return sum(row.state in _WITHOUT for row in self.rows)

    def named(self, names: Mapping[str, str]) -> NeighborListing:
        """The same with the name of each NIC that has a rail. ``names``: by PCI address."""
        rows = (msgspec.structs.replace(row, nic=names.get(row.pci_address or "")) for row in self.rows)
        return msgspec.structs.replace(self, rows=tuple(rows))

    def without_times(self) -> object:
        """The content without ages: equal until a neighbor, a link or a remark changes."""
        rows = [
            (row.link, row.state, row.error, row.moved_from, tuple(aged.neighbor for aged in row.neighbors))
            for row in self.rows
        ]
        return rows, self.remarks, self.fault


def lldp_fault(snapshot: Snapshot, settings: LldpSettings, *, runs: bool) -> str | None:
    """Why no LLDP comes in: the source does not run, or it has failed."""
    if runs:
        return next((entry.reason for entry in snapshot.stale_sources if entry.source == "lldp"), None)
    if settings.source == "none":
        return "lldp.source is none"
    return "a recorded machine has no netdevs, and links.select names none of this host"


def of_receiver(receiver: LldpReceiver, fault: str | None = None) -> NeighborListing:
    """The links of a receiver of this event loop."""
    now = asyncio.get_running_loop().time()
    keys = {(remark.link, remark.key) for remark in receiver.remarks}
    rows = []
    for name, link in sorted(receiver.links.items()):
        neighbors = tuple(
            AgedNeighbor(
                entry.neighbor,
                round(now - entry.last_received, 1),
                round(now - entry.first_received, 1),
                entry.ttl_s,
                entry.pdu.ttl,
            )
            for entry in receiver.entries(name)
        )
        rows.append(
            LinkRow(
                name,
                link.selected.pci_address,
                link.selected.driver,
                _state(
                    link.selected, neighbors, link, (name, NO_NEIGHBOR) in keys or (name, OWN_FRAMES) in keys
                ),
                neighbors,
                link.error,
                link.moved_from,
                None if link.moved_at is None else round(now - link.moved_at, 1),
                (name, FLOODED) in keys,
            )
        )
    return NeighborListing(tuple(rows), receiver.remarks, fault=fault)


def of_lldpd(
    links: Iterable[SelectedLink],
    neighbors: Iterable[Neighbor],
    remarks: Iterable[Remark],
    fault: str | None = None,
) -> NeighborListing:
    """The links for which lldpd receives."""
    by_link: dict[str, list[AgedNeighbor]] = {}
    for neighbor in neighbors:
        by_link.setdefault(neighbor.link, []).append(AgedNeighbor(neighbor))
    rows = []
    for link in links:
        found = tuple(by_link.get(link.name, ()))
        rows.append(
            LinkRow(link.name, link.pci_address, link.driver, _state(link, found, None, False), found)
        )
    return NeighborListing(tuple(rows), tuple(remarks), fault=fault)


def with_infiniband_facts(listing: NeighborListing, snapshot: Snapshot, *, asks: bool) -> NeighborListing:
    """Add the InfiniBand links, with the peers that their ports have found. ``asks``: they may ask."""
    functions = {function.pci_address: function for function in snapshot.functions}
    rows = list(listing.rows)
    for link in snapshot.links:
        function = functions.get(link.pci_address)
        if function is None or function.link_type != "infiniband":
            continue
        found = tuple(
            AgedNeighbor(neighbor) for neighbor in snapshot.neighbors if neighbor.link == link.netdev
        )
        if not link.carrier:
            state = "down"
        elif not asks:
            state = "unasked"
        else:
            state = ("stale" if found[0].neighbor.stale else "live") if found else "silent"
        rows.append(LinkRow(link.netdev, link.pci_address, function.driver, state, found))
    added = {row.link for row in rows[len(listing.rows) :]}
    remarks = [*listing.remarks, *(remark for remark in snapshot.remarks if remark.link in added)]
    return msgspec.structs.replace(
        listing,
        rows=tuple(sorted(rows, key=lambda row: row.link)),
        remarks=tuple(sorted(remarks, key=lambda remark: (remark.link, remark.key, remark.detail))),
    )


def _state(
    selected: SelectedLink,
    neighbors: tuple[AgedNeighbor, ...],
    link: ReceivingLink | None,
    without_neighbor: bool,
) -> str:
    if link is not None and link.away_at is not None:
        return "away"
    if link is not None and link.socket is None:
        return "deaf"
    if any(not aged.neighbor.stale for aged in neighbors):
        return "live"
    if not selected.netdev.carrier:
        return "down"
    if neighbors:
        return "stale"
    return "silent" if without_neighbor else "unheard"
