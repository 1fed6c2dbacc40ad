"""Receive LLDP frames on every link and publish neighbors and remarks.

* ``update_links()`` takes the full list of links and opens or closes sockets as needed. A lost socket only sets
  ``rescan``.
* A link is identified by its PCI function, or by its netdev's name if it has none. It keeps its neighbors when
  the netdev is renamed, when it loses carrier (they become stale) and while the netdev is in another network
  namespace: a PCI link as long as its function exists, any other for ``AWAY_S``.
* A change is published at once, and the next one after ``PUBLISH_GAP_S`` at the earliest: a flood of changes wakes
  the other parts of the agent at most 50 times a second.
* This source decides when a link has received no frame for too long. Consumers of the facts read no clock.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from nodeagent.facts.model import Function, Neighbor, Remark
from nodeagent.host.clock import boottime
from nodeagent.host.netlink.dcb import UNKNOWN_DCB, DcbSettings
from nodeagent.host.netlink.netdevs import Netdev
from nodeagent.host.packet import LldpSocket, PacketError
from nodeagent.lldp.link_remarks import NO_NEIGHBOR_AFTER_S, LinkSide, find_remarks
from nodeagent.lldp.neighbor_table import (
    TTL_MAX_S,
    FrameOutcome,
    NeighborEntry,
    NeighborTable,
    OwnIdentity,
)
from nodeagent.sources.link_selection import SelectedLink
from nodeagent.sources.lldp_sender import LldpSender, NodeAnnouncement, SendingLink

log = logging.getLogger(__name__)

PUBLISH_GAP_S = 0.02
AWAY_S = 3600.0
FLOOD_CLEARS_S = 60.0

_VALID = frozenset(
    (
        FrameOutcome.NEW,
        FrameOutcome.CHANGED,
        FrameOutcome.REFRESHED,
        FrameOutcome.SHUTDOWN,
        FrameOutcome.CROWDED,
    )
)
_FLOOD = frozenset((FrameOutcome.FLOODED, FrameOutcome.CROWDED))


OpenResult = socket.socket | PacketError
Publish = Callable[[tuple[Neighbor, ...], tuple[Remark, ...]], object]

NEVER = float("-inf")


@dataclass(slots=True)
class ReceivingLink:
    """A link with a socket, or one whose netdev is away. Times are those of the event loop.

    ``up_at`` is the time of carrier up or of the socket's start, ``None`` without carrier. ``moved_from`` was the
    neighbor until ``moved_at``.
    """

    selected: SelectedLink
    socket: LldpSocket | None = None
    enslaved: bool = False
    up_at: float | None = None
    received_at: float = NEVER
    own_at: float = NEVER
    flooded_at: float = NEVER
    away_at: float | None = None
    neighbor: Neighbor | None = None
    moved_from: str | None = None
    moved_at: float | None = None
    dropped: int = 0
    error: str | None = None
    dcb: DcbSettings = UNKNOWN_DCB

    @property
    def name(self) -> str:
        return self.selected.name

    @property
    def bound_to(self) -> tuple[int, bool] | None:
        """The ifindex of the socket, and whether the socket is made for an enslaved netdev."""
        if self.socket is None or not self.socket.bound:
            return None
        return (self.socket.ifindex, self.enslaved)

    def quiet_since(self) -> float:
        return max(self.up_at or NEVER, self.received_at)

    def close(self) -> None:
        if self.socket is not None:
            self.dropped += self.socket.count_drops()
            self.socket.close()
            self.socket = None


def known_name(links: Mapping[str, ReceivingLink], selected: SelectedLink) -> str | None:
    """The name of the same link: the one whose socket is bound to the netdev, or with the PCI address or name."""
    for name, link in links.items():
        if link.socket is not None and link.socket.ifindex == selected.netdev.ifindex and link.socket.bound:
            return name
    address = selected.pci_address
    for name, link in links.items():
        if link.socket is not None and link.socket.bound:
            continue  # bound to another netdev: of the same function, or with the old name of this one
        known = link.selected.pci_address
        if known == address and (address is not None or name == selected.name):
            return name
    return None


class LldpReceiver:
    """Publishes neighbors and remarks when they change. Belongs to one event loop.

    ``rescan`` is set when the netdevs should be read again, ``updated`` after each ``update_links``.
    ``names`` are the system names of this node.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        names: Iterable[str] = (),
        announcement: NodeAnnouncement | None = None,
        no_neighbor_after_s: float = NO_NEIGHBOR_AFTER_S,
        ttl_max_s: float = TTL_MAX_S,
    ) -> None:
        self.rescan = asyncio.Event()
        self.updated = asyncio.Event()
        self.table = NeighborTable(ttl_max_s=ttl_max_s)
        self.links: dict[str, ReceivingLink] = {}
        self.neighbors: tuple[Neighbor, ...] = ()
        self.remarks: tuple[Remark, ...] = ()
        self._publish_change = publish
        self._names = frozenset(names)
        self._no_neighbor_after_s = no_neighbor_after_s
        self._sender = LldpSender(announcement) if announcement else None
        self._loop = asyncio.get_running_loop()
        self._published_at = NEVER
        self._scheduled: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def close(self) -> None:
        """Close the sockets, and send shutdown frames if the sender is on. Published facts stay."""
        if self._sender is not None:
            self._sender.close()
        for link in self.links.values():
            link.close()
        for handle in (self._scheduled, self._timer):
            if handle is not None:
                handle.cancel()

    def last_received(self) -> dict[str, float]:
        """The time of the last frame of a neighbor by link, CLOCK_BOOTTIME."""
        offset = boottime() - self._loop.time()
        times: dict[str, float] = {}
        for entry in self.table.entries():
            link = entry.neighbor.link
            times[link] = max(times.get(link, 0.0), entry.last_received + offset)
        return times

    # --- links ----------------------------------------------------------------------------------------

    def update_links(
        self,
        selected: Iterable[SelectedLink],
        netdevs: Iterable[Netdev],
        functions: Iterable[Function],
        opened: dict[int, OpenResult],
        dcb: Mapping[str, DcbSettings] | None = None,
    ) -> None:
        """Receive on exactly these links, which are selected from all netdevs and PCI functions.

        ``opened`` has, by ifindex, a socket or an error for each netdev of ``netdevs_to_open``. The receiver
        removes the sockets that it keeps.
        """
        now = self._loop.time()
        netdevs = tuple(netdevs)
        macs = (mac for netdev in netdevs for mac in (netdev.mac, netdev.permanent_mac) if mac and any(mac))
        own = OwnIdentity(frozenset(macs), self._names)
        if own != self.table.own:
            self.table.set_own(own)
        links: dict[str, ReceivingLink] = {}
        renames: list[tuple[str, str]] = []
        left = dict(self.links)
        for choice in selected:
            old = known_name(left, choice)
            link = left.pop(old) if old is not None else ReceivingLink(choice)
            if old is not None and old != choice.name:
                renames.append((old, choice.name))
            links[choice.name] = link
            link.selected = choice
        self._rename(renames, left)
        away = self._separate(left, links, netdevs, functions, now)
        self.links = links | away
        for link in links.values():
            self._attach(link, opened)
            self._update_carrier(link, now)
            link.dcb = (dcb or {}).get(link.name, UNKNOWN_DCB)
        if self._sender is not None:
            self._sender.update_links(self._sending_links())
        self.updated.set()
        self._schedule_publish()

    def _rename(self, renames: list[tuple[str, str]], left: dict[str, ReceivingLink]) -> None:
        """Rename through temporary names: two links may swap names, or a new name may be that of an old link."""
        for old, _ in renames:
            self.table.rename_link(old, f"\0{old}")
        for old, new in renames:
            if left.pop(new, None) is not None:
                self.table.remove_link(new)
            self.table.rename_link(f"\0{old}", new)

    def _separate(
        self,
        left: dict[str, ReceivingLink],
        links: dict[str, ReceivingLink],
        netdevs: tuple[Netdev, ...],
        functions: Iterable[Function],
        now: float,
    ) -> dict[str, ReceivingLink]:
        """Close the links that are no longer listed. Return those that are away: only they keep their neighbors."""
        present = {netdev.ifindex: netdev.name for netdev in netdevs}
        addresses = {function.pci_address for function in functions}
        away = {}
        for name, link in left.items():
            bound = link.socket is not None and link.socket.bound
            unselected = (bound and link.selected.netdev.ifindex in present) or name in present.values()
            link.close()
            if link.away_at is None:
                link.away_at, link.up_at = now, None
                self.table.mark_stale(name)
                log.info("Netdev of a link disappeared; its neighbors are kept. link=%s", name)
            address = link.selected.pci_address
            kept = address in addresses if address is not None else now - link.away_at < AWAY_S
            if unselected or not kept or name in links:
                self.table.remove_link(name)
            else:
                away[name] = link
        return away

    def netdevs_to_open(self, selected: Iterable[SelectedLink]) -> tuple[Netdev, ...]:
        """The netdevs of the links that have no socket of the right kind."""
        bound = {link.bound_to for link in self.links.values()}
        return tuple(
            link.netdev for link in selected if (link.netdev.ifindex, link.netdev.enslaved) not in bound
        )

    def _attach(self, link: ReceivingLink, opened: dict[int, OpenResult]) -> None:
        ifindex, enslaved = link.selected.netdev.ifindex, link.selected.netdev.enslaved
        if link.bound_to == (ifindex, enslaved):
            return
        link.close()
        result = opened.pop(ifindex, None)
        if result is None:
            self.rescan.set()  # the old socket was lost after `netdevs_to_open`
            return
        if isinstance(result, PacketError):
            if link.error != str(result):
                log.warning("Cannot receive LLDP on a link. link=%s reason=%r", link.name, str(result))
            link.error = str(result)
            return
        link.socket = LldpSocket(ifindex, result, partial(self._receive, link), self.rescan.set)
        link.enslaved, link.error = enslaved, None
        if link.away_at is not None:
            log.info("Netdev of a link is back. link=%s", link.name)
            link.away_at = link.up_at = None

    def _update_carrier(self, link: ReceivingLink, now: float) -> None:
        if link.selected.netdev.carrier:
            if link.up_at is None:
                link.up_at = now
                if self._sender is not None:
                    self._sender.send_fast(link.name)
        elif link.up_at is not None:
            link.up_at = None
            self.table.mark_stale(link.name)

    def _sending_links(self) -> dict[str, SendingLink]:
        links = {}
        for link in self.links.values():
            netdev = link.selected.netdev
            # All slaves of a bond have one MAC. A switch that learns it on this port sends traffic here.
            mac = netdev.permanent_mac or netdev.mac
            if link.socket is not None and mac is not None:
                description = link.selected.pci_address or ""
                links[link.name] = SendingLink(netdev.ifindex, mac, description, link.socket.send)
        return links

    # --- frames ---------------------------------------------------------------------------------------

    def receive_tagged(self, netdev: str, frame: bytes) -> None:
        """Process a frame with two VLAN tags. The socket of an enslaved netdev receives them itself."""
        link = self.links.get(netdev)
        if link is not None and link.socket is not None and not link.enslaved:
            self._receive(link, frame, tagged=True)

    def _receive(self, link: ReceivingLink, frame: bytes, tagged: bool) -> None:
        now = self._loop.time()
        outcome = self.table.receive(link.name, frame, now, tagged=tagged)
        if outcome in _VALID:
            link.received_at = now
            if outcome is FrameOutcome.NEW and self._sender is not None:
                self._sender.send_fast(link.name)
            if self.table.neighbors() is not self.neighbors:
                self._schedule_publish()
        elif outcome is FrameOutcome.OWN:
            if now - link.own_at > self._no_neighbor_after_s:
                self._schedule_publish()
            link.own_at = now
        elif outcome in _FLOOD:
            if now - link.flooded_at > FLOOD_CLEARS_S:
                self._schedule_publish()
            link.flooded_at = now
        if (self.table.next_expiry() or self._timer_at) < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the next change that happens without a frame."""
        now = self._loop.time()
        times = [self.table.next_expiry() or float("inf")]
        for link in self.links.values():
            if link.up_at is not None:
                times.append(link.quiet_since() + self._no_neighbor_after_s)
            times += (link.flooded_at + FLOOD_CLEARS_S, link.own_at + self._no_neighbor_after_s)
        self._timer_at = min((at for at in times if at > now), default=float("inf"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timer_at != float("inf"):
            # 1 ms later, because the loop's clock is coarser than a float.
            self._timer = self._loop.call_at(self._timer_at + 0.001, self._publish)

    # --- facts ----------------------------------------------------------------------------------------

    def _schedule_publish(self) -> None:
        if self._scheduled is None:
            wait = self._published_at + PUBLISH_GAP_S - self._loop.time()
            self._scheduled = (
                self._loop.call_soon(self._publish)
                if wait <= 0
                else self._loop.call_later(wait, self._publish)
            )

    def _publish(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        now = self._loop.time()
        self.table.expire(now)
        neighbors = self.table.neighbors()
        live = {neighbor.link for neighbor in neighbors if not neighbor.stale}
        sides = [self._side(link, now, link.name in live) for link in self.links.values()]
        remarks = find_remarks(sides, neighbors)
        if neighbors != self.neighbors or remarks != self.remarks:
            self._note_moves(neighbors, now)
            self._published_at = now
            self.neighbors, self.remarks = neighbors, remarks
            self._publish_change(neighbors, remarks)
        else:
            self.neighbors = neighbors
        self._set_timer()

    def _note_moves(self, neighbors: tuple[Neighbor, ...], now: float) -> None:
        firsts = {neighbor.link: neighbor for neighbor in reversed(neighbors)}
        for name, link in self.links.items():
            before, after = link.neighbor, firsts.get(name)
            if after is None:
                continue
            link.neighbor = after
            if before is not None and (before.chassis_id, before.port_id) != (
                after.chassis_id,
                after.port_id,
            ):
                link.moved_from, link.moved_at = before.place, now

    def _side(self, link: ReceivingLink, now: float, live: bool) -> LinkSide:
        function = link.selected.function
        without_neighbor = (
            link.up_at is not None and not live and now >= link.quiet_since() + self._no_neighbor_after_s
        )
        return LinkSide(
            link=link.name,
            pci_address=link.selected.pci_address,
            driver=link.selected.driver,
            device=function.device if function else None,
            mtu=link.selected.netdev.mtu,
            without_neighbor=without_neighbor,
            malformed=self.table.last_error(link.name) if without_neighbor else None,
            own_frames=link.up_at is not None and now - link.own_at < self._no_neighbor_after_s,
            flooded=now - link.flooded_at < FLOOD_CLEARS_S,
            pfc=link.dcb.pfc,
            ets=link.dcb.ets,
        )

    # --- queries --------------------------------------------------------------------------------------

    def entries(self, link: str) -> tuple[NeighborEntry, ...]:
        """The neighbors of a link with their times, in the order of the facts."""
        # By value: the facts stay the same objects while a neighbor changes and changes back.
        by_fact = {entry.neighbor: entry for entry in self.table.entries() if entry.neighbor.link == link}
        return tuple(by_fact[neighbor] for neighbor in self.table.neighbors() if neighbor in by_fact)

    def counts(self, link: str) -> Counter[str]:
        """Frames of a link by ``FrameOutcome``, and ``dropped`` by the kernel."""
        counts = Counter({str(outcome): n for outcome, n in self.table.counts(link).items()})
        receiving = self.links.get(link)
        if receiving is not None:
            counts["dropped"] = receiving.dropped + (
                receiving.socket.count_drops() if receiving.socket else 0
            )
        return counts
