"""The table of LLDP neighbors: decode received frames and apply the TTLs. Pure.

* A neighbor is an MSAP (chassis ID and port ID) on one link. It is live until its TTL has passed since its last
  frame; a frame with TTL 0 removes it at once.
* A neighbor past its TTL stays as *stale* while its link has no live neighbor: missing frames do not prove that
  the cable was moved. The next frame of any neighbor removes those past their TTL.
* A link holds at most ``CAPACITY`` neighbors. A full link replaces a stale neighbor first, then refuses and
  counts new ones, as lldpd does and 802.1AB's "too many neighbors" allows: replacing a live neighbor would let
  any sender displace the real switch.
* A frame that equals a stored one byte for byte costs a lookup. Any other costs a decode, and a link may cause
  only ``DECODES_PER_SECOND`` of these: 32 neighbors in fast transmission need 32.
* A frame with a MAC or system name of this node is the node's own, received through a VF, a representor or a
  loop.

Ages and counters stay outside the facts: ``neighbors()`` changes only with ``revision``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from nodeagent.lldp.escaping import printable
from nodeagent.lldp.ethernet import parse_frame
from nodeagent.lldp.lldpdu import ALGORITHM_WORDS, ChassisId, Lldpdu, LldpError, PortId, capability_words
from nodeagent.lldp.lldpdu_codec import decode
from nodeagent.model import Ets, Identifier, Neighbor

CAPACITY = 32
DECODES_PER_SECOND = 100
CONFIRMING = 2
"""LLDPDUs of one MSAP until it is confirmed: a single frame may come from a cable plugged in by mistake."""
_BURST = 100.0

Msap = tuple[ChassisId, PortId]


class FrameOutcome(StrEnum):
    """The result of a received frame; counted per link."""

    NEW = "new"
    CHANGED = "changed"
    REFRESHED = "refreshed"
    SHUTDOWN = "shutdown"
    """TTL 0, from a known or unknown neighbor"""
    OWN = "own"
    REFUSED = "refused"
    """the link has no room"""
    FLOODED = "flooded"
    """too many different frames in a short time: not decoded"""
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """The MACs of all netdevs of this host and its system names, to recognize its own frames."""

    macs: frozenset[bytes] = frozenset()
    system_names: frozenset[str] = frozenset()

    def sent(self, source: bytes | None, pdu: Lldpdu) -> bool:
        if source in self.macs:
            return True
        if pdu.chassis_id.word == "mac" and pdu.chassis_id.raw in self.macs:
            return True
        if pdu.port_id.word == "mac" and pdu.port_id.raw in self.macs:
            return True
        return pdu.system_name is not None and pdu.system_name.rstrip("\0") in self.system_names


@dataclass(slots=True)
class NeighborEntry:
    """A neighbor with its frame, times and counter, which are no part of the fact. Times are the caller's ``now``."""

    neighbor: Neighbor
    pdu: Lldpdu
    frame: bytes
    first_received: float
    last_received: float
    expires: float
    frames: int = 0


@dataclass(slots=True)
class _LinkTable:
    """The neighbors and counters of one link."""

    entries: dict[Msap, NeighborEntry] = field(default_factory=dict)
    frames: dict[bytes, NeighborEntry] = field(default_factory=dict)
    """by the last frame of each entry"""
    counts: Counter[FrameOutcome] = field(default_factory=Counter)
    error: str | None = None
    budget: float = _BURST
    budget_at: float = 0.0

    def take_decode(self, now: float) -> bool:
        """Take one decode from the budget; false if none is left."""
        refill = max(0.0, now - self.budget_at) * DECODES_PER_SECOND
        self.budget = min(_BURST, self.budget + refill)
        self.budget_at = now
        if self.budget < 1.0:
            return False
        self.budget -= 1.0
        return True

    def drop(self, msap: Msap) -> None:
        self.frames.pop(self.entries.pop(msap).frame, None)


class NeighborTable:
    """The neighbors of all links. ``now`` is in seconds of any monotonic clock."""

    def __init__(self, own: OwnIdentity | None = None) -> None:
        self.own = own or OwnIdentity()
        self.revision = 0
        self._links: dict[str, _LinkTable] = {}
        self._due = float("inf")
        self._facts: tuple[int, tuple[Neighbor, ...]] = (0, ())

    def receive(self, link: str, frame: bytes, now: float) -> FrameOutcome:
        """Process an Ethernet frame that was received on a link."""
        table = self._links.get(link)
        if table is None:
            table = self._links[link] = _LinkTable(budget_at=now)
        outcome = self._receive(link, table, frame, now)
        table.counts[outcome] += 1
        return outcome

    def set_own(self, own: OwnIdentity) -> None:
        """Set the node's own identity and remove the neighbors that match it."""
        self.own = own
        for table in self._links.values():
            for msap, entry in list(table.entries.items()):
                if own.sent(entry.frame[6:12], entry.pdu):
                    table.drop(msap)
                    self.revision += 1

    def expire(self, now: float) -> None:
        """Apply the TTLs that have passed; a call before ``next_expiry()`` costs nothing."""
        if now < self._due:
            return
        for table in self._links.values():
            self._sweep(table, now)
        expiries = (entry.expires for entry in self.entries())
        self._due = min((expires for expires in expiries if expires > now), default=float("inf"))

    def next_expiry(self) -> float | None:
        """The time of the next ``expire`` call. A frame may refresh the neighbor before that time."""
        return None if self._due == float("inf") else self._due

    def mark_stale(self, link: str) -> None:
        """Mark the neighbors of a link stale until their next frame: the link is down or its netdev is gone."""
        table = self._links.get(link)
        if table is not None:
            for entry in table.entries.values():
                self._stale(entry)

    def remove_link(self, link: str) -> None:
        """Remove a link with its neighbors and counters."""
        table = self._links.pop(link, None)
        if table is not None and table.entries:
            self.revision += 1

    def rename_link(self, old: str, new: str) -> None:
        """Keep the neighbors of a link whose netdev has a new name."""
        table = self._links.pop(old, None)
        if table is None:
            return
        for entry in table.entries.values():
            entry.neighbor = replace(entry.neighbor, link=new)
        self._links[new] = table
        self.revision += 1

    def neighbors(self) -> tuple[Neighbor, ...]:
        """All neighbors by link, live ones first; the same object until ``revision`` changes."""
        if self._facts[0] != self.revision:
            facts = sorted((entry.neighbor for entry in self.entries()), key=_order)
            self._facts = (self.revision, tuple(facts))
        return self._facts[1]

    def entries(self) -> Iterable[NeighborEntry]:
        return [entry for table in self._links.values() for entry in table.entries.values()]

    def counts(self, link: str) -> Counter[FrameOutcome]:
        table = self._links.get(link)
        return Counter() if table is None else table.counts.copy()

    def last_error(self, link: str) -> str | None:
        """Why the link's latest frame was malformed; ``None`` if it was valid."""
        table = self._links.get(link)
        return None if table is None else table.error

    def _receive(self, link: str, table: _LinkTable, frame: bytes, now: float) -> FrameOutcome:
        entry = table.frames.get(frame)
        if entry is not None:
            table.error = None
            self._refresh(table, entry, now)
            return FrameOutcome.REFRESHED
        if not table.take_decode(now):
            return FrameOutcome.FLOODED
        try:
            parsed = parse_frame(frame)
            pdu = decode(frame, parsed.offset)
        except LldpError as error:
            table.error = str(error)
            return FrameOutcome.MALFORMED
        table.error = None
        if self.own.sent(parsed.source, pdu):
            return FrameOutcome.OWN
        msap = (pdu.chassis_id, pdu.port_id)
        entry = table.entries.get(msap)
        if pdu.ttl == 0:
            if entry is not None:
                table.drop(msap)
                self.revision += 1
            return FrameOutcome.SHUTDOWN
        neighbor = neighbor_of(link, pdu)
        if entry is None:
            return self._admit(table, msap, NeighborEntry(neighbor, pdu, frame, now, now, now), now)
        before = entry.neighbor
        changed = replace(before, stale=False, confirmed=False) != neighbor
        table.frames.pop(entry.frame, None)
        table.frames[frame] = entry
        if changed:
            entry.neighbor = replace(neighbor, stale=before.stale, confirmed=before.confirmed)
            self.revision += 1
        entry.pdu, entry.frame = pdu, frame
        self._refresh(table, entry, now)
        return FrameOutcome.CHANGED if changed else FrameOutcome.REFRESHED

    def _admit(self, table: _LinkTable, msap: Msap, entry: NeighborEntry, now: float) -> FrameOutcome:
        if len(table.entries) >= CAPACITY:
            stale = [(e.last_received, key) for key, e in table.entries.items() if e.neighbor.stale]
            if not stale:
                return FrameOutcome.REFUSED
            table.drop(min(stale, key=lambda candidate: candidate[0])[1])
        table.entries[msap] = table.frames[entry.frame] = entry
        self.revision += 1
        self._refresh(table, entry, now)
        return FrameOutcome.NEW

    def _refresh(self, table: _LinkTable, entry: NeighborEntry, now: float) -> None:
        entry.last_received = now
        entry.expires = now + entry.pdu.ttl
        self._due = min(self._due, entry.expires)
        entry.frames += 1
        confirmed = entry.frames >= CONFIRMING
        if entry.neighbor.stale or entry.neighbor.confirmed != confirmed:
            entry.neighbor = replace(entry.neighbor, stale=False, confirmed=confirmed)
            self.revision += 1
        if len(table.entries) > 1:
            self._sweep(table, now)

    def _sweep(self, table: _LinkTable, now: float) -> None:
        """Remove the neighbors past their TTL if another one is live; else mark them stale."""
        past = [msap for msap, entry in table.entries.items() if entry.expires <= now]
        if not past:
            return
        live = any(e.expires > now and not e.neighbor.stale for e in table.entries.values())
        for msap in past:
            if live:
                table.drop(msap)
                self.revision += 1
            else:
                self._stale(table.entries[msap])

    def _stale(self, entry: NeighborEntry) -> None:
        if not entry.neighbor.stale:
            entry.neighbor = replace(entry.neighbor, stale=True)
            self.revision += 1


def find_duplicates(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """Live neighbors with one MSAP on several links: one port cannot hold two cables."""
    groups: dict[object, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            groups.setdefault((neighbor.chassis_id, neighbor.port_id), []).append(neighbor)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def find_crowded(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """Live neighbors of links with several chassis. Two ports of one chassis do not count: a switch that renames
    its ports while it boots shows both until the TTL of the older one has passed.
    """
    groups: dict[str, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            groups.setdefault(neighbor.link, []).append(neighbor)
    return tuple(
        tuple(group) for group in groups.values() if len({neighbor.chassis_id for neighbor in group}) > 1
    )


def _order(neighbor: Neighbor) -> tuple[str, bool, str, str, str, str]:
    chassis, port = neighbor.chassis_id, neighbor.port_id
    return (neighbor.link, neighbor.stale, chassis.subtype, chassis.value, port.subtype, port.value)


def neighbor_of(link: str, pdu: Lldpdu) -> Neighbor:
    """Convert an LLDPDU to a neighbor.

    An empty text becomes ``None``, and so does VLAN ID 0, which means "no port VLAN" (802.1Q D.2.1).
    """
    enabled = pdu.capabilities.enabled if pdu.capabilities else 0
    return Neighbor(
        link=link,
        chassis_id=Identifier(pdu.chassis_id.word, printable(pdu.chassis_id.text)),
        port_id=Identifier(pdu.port_id.word, printable(pdu.port_id.text)),
        system_name=_text(pdu.system_name),
        system_description=_text(pdu.system_description),
        port_description=_text(pdu.port_description),
        management_addresses=tuple(printable(address.text) for address in pdu.management_addresses),
        capabilities=capability_words(enabled),
        pvid=pdu.pvid or None,
        maximum_frame_size=pdu.maximum_frame_size,
        pfc=pdu.pfc.priorities if pdu.pfc else None,
        ets=Ets(
            pdu.ets.classes,
            pdu.ets.bandwidth,
            tuple(ALGORITHM_WORDS.get(number, f"algorithm-{number}") for number in pdu.ets.algorithms),
        )
        if pdu.ets
        else None,
    )


def _text(text: str | None) -> str | None:
    return printable(text) or None if text is not None else None
