"""The table of LLDP neighbors: decode received frames and apply the TTLs. Pure.

* A neighbor is a ``Sender`` on one link: a chassis ID and port ID, the source MAC, and the system name. Frames with the
  IDs of a switch from elsewhere, or under another name, are those of another neighbor. A switch that is renamed, or
  sends from another MAC after a fail-over, is the neighbor when the TTL of its last frame of before has passed.
* A neighbor is live until its TTL has passed since its last frame. A TTL counts for at most ``ttl_max_s``.
* A neighbor is confirmed by its second frame. *The* neighbor of a link is the confirmed one that has sent for the
  longest time, and of equal ones the one that was there first. A switch sends without end, so no later sender takes
  its place, however many frames it forges. It is the first of its link in ``neighbors()``; NodeLinks and `nodeagent
  neighbors` both show this one.
* Of two live neighbors one whose frames are untagged comes before one of a VLAN, although that one was there first: a
  switch port sends untagged, and its subinterfaces may send with the tags and names of their own (orb-agent#245). A
  subinterface is no contender beside the port of its switch.
* Time counts up to ``SENIOR_S``, and only that between frames; after the last frame no more than the longest pause
  before: a long TTL proves nothing. The table keeps the time of up to ``PAST_MAX`` removed neighbors for ``PAST_S``.
  So a switch that was away while others sent on its link is the neighbor again with its first frame, or after
  ``SENIOR_S`` if it had been there for less.
* A frame with TTL 0 ends a neighbor if it comes from the neighbor's own MAC. *The* neighbor becomes stale, and leaves
  its place to others when its TTL has passed. If it sends again before, the shutdown may have been forged, and no
  other one counts until the neighbor is stale again.
* A *contender* sends while *the* neighbor sends too: frames of both come in by turns.
* While no confirmed neighbor is live, the last one stays as *stale*: missing frames do not prove that the cable was
  moved. A confirmed live neighbor removes those past their TTL.
* A link holds at most ``CAPACITY`` neighbors. A new one on a full link takes the place of another: stale ones first,
  then those of a single frame, the oldest first, then the one confirmed last; never that of the link's neighbor.
* A neighbor of a single frame is no fact beside a confirmed live one, nor if it took the place of another: a flood
  changes no fact.
* A frame that equals a stored one byte for byte costs a lookup. Any other costs a decode, and a link may cause
  only ``DECODES_PER_SECOND`` of these: 32 neighbors in fast transmission need 32.
* A frame with a MAC of this node is the node's own, received through a VF, a representor or a loop. The system name
  of this node makes it the node's own only if its chassis ID is no MAC: a switch may have the name of a node.

Ages and counters stay outside the facts: ``neighbors()`` changes only with ``revision``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from nodeagent.facts.model import Ets, Identifier, Neighbor, ets_algorithm
from nodeagent.lldp.escaping import mac, printable
from nodeagent.lldp.ethernet import parse_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, LldpError, PortId, capability_words
from nodeagent.lldp.lldpdu_codec import decode

CAPACITY = 32
DECODES_PER_SECOND = 100
CONFIRMING = 2
"""LLDPDUs of one MSAP until it is confirmed: a single frame may come from a cable plugged in by mistake."""
TTL_MAX_S = 600.0
"""Twenty intervals of 30 s. Switches send TTLs up to 3601 s, and a forged one may be 65535 s."""
SENIOR_S = 600.0
"""Twenty intervals of 30 s. A sender of ten minutes is no mistake, and a longer time proves no more."""
PAST_MAX = 8
"""Removed neighbors of a link whose time is kept: those that were confirmed longest."""
PAST_S = 86400.0
"""A sender that was away for a day has left the link: its cable was moved."""
_BURST = 100.0


class Sender(NamedTuple):
    """The identity of a neighbor. ``name`` is as in ``Neighbor``."""

    chassis: ChassisId
    port: PortId
    source: bytes
    name: str | None


class PastTime(NamedTuple):
    """The time of a neighbor as in ``NeighborEntry``, and its last frame."""

    live_s: float
    pause_s: float
    place: int
    last_received: float = 0.0


class FrameOutcome(StrEnum):
    """The result of a received frame; counted per link."""

    NEW = "new"
    CHANGED = "changed"
    REFRESHED = "refreshed"
    SHUTDOWN = "shutdown"
    """TTL 0, from a known or unknown neighbor"""
    OWN = "own"
    CROWDED = "crowded"
    """new on a full link: another neighbor was removed"""
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
        if pdu.chassis_id.word == "mac":
            return False
        return pdu.system_name is not None and pdu.system_name.rstrip("\0") in self.system_names


@dataclass(slots=True)
class NeighborEntry:
    """A neighbor with its frame, times and counter, which are no part of the fact. Times are the caller's ``now``.

    ``ttl_s`` is the TTL in use. The neighbor was live for ``live_s`` in all up to its last frame, at most ``SENIOR_S``,
    and ``pause_s`` is the longest time between two frames. ``place`` counts the neighbors of the link in the order in
    which they came. ``hidden``: it took the place of another, and is no fact before its second frame.
    ``shut``: stale by a shutdown frame, and its TTL has not passed. ``outlived``: it has sent again after one.
    ``tagged``: all its frames were of a VLAN.
    """

    neighbor: Neighbor
    pdu: Lldpdu
    frame: bytes
    first_received: float
    last_received: float
    expires: float
    ttl_s: float
    live_s: float = 0.0
    pause_s: float = 0.0
    frames: int = 0
    place: int = 0
    hidden: bool = False
    shut: bool = False
    outlived: bool = False
    tagged: bool = False

    def seniority(self, now: float) -> tuple[int, bool, float, int]:
        """The neighbor with the highest is *the* neighbor of the link."""
        if not self.neighbor.confirmed:
            return (0, not self.tagged, 0.0, -self.place)
        if self.neighbor.stale and not self.shut:
            return (1, not self.tagged, self.live_s, -self.place)
        live_s = self.live_s + min(now - self.last_received, self.pause_s)
        return (2, not self.tagged, min(SENIOR_S, live_s), -self.place)

    @property
    def worth(self) -> tuple[int, float, int]:
        """The neighbor with the lowest leaves a full link first."""
        if self.neighbor.stale:
            return (0, self.last_received, 0)
        if not self.neighbor.confirmed:
            return (1, self.first_received, 0)
        return (2, self.live_s, -self.place)

    @property
    def time(self) -> PastTime:
        return PastTime(self.live_s, self.pause_s, self.place, self.last_received)


@dataclass(slots=True)
class _LinkTable:
    """The neighbors and counters of one link."""

    entries: dict[Sender, NeighborEntry] = field(default_factory=dict)
    frames: dict[bytes, NeighborEntry] = field(default_factory=dict)
    """by the last frame of each entry"""
    senior: NeighborEntry | None = None
    """*the* neighbor of the link; ``None`` if it has none"""
    past: dict[Sender, PastTime] = field(default_factory=dict)
    """of removed neighbors"""
    places: int = 0
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

    def drop(self, sender: Sender) -> None:
        entry = self.entries.pop(sender)
        self.frames.pop(entry.frame, None)
        if entry.neighbor.confirmed:
            self.past[sender] = entry.time
            if len(self.past) > PAST_MAX:
                del self.past[min(self.past, key=lambda sender: by_time(self.past[sender]))]

    def make_room(self) -> NeighborEntry:
        """Remove the neighbor of the least worth, but never the link's neighbor. Return it."""
        others = (item for item in self.entries.items() if item[1] is not self.senior)
        sender, entry = min(others, key=lambda item: item[1].worth)
        self.drop(sender)
        return entry

    def take_past(self, sender: Sender, now: float) -> PastTime | None:
        """The time that a new neighbor brings along. The record of an earlier version is for any source and name."""
        past = self.past.pop(sender, None) or self.past.pop(sender._replace(source=b"", name=None), None)
        return past if past is not None and now - past.last_received <= PAST_S else None

    def settle(self, now: float) -> None:
        """Find the neighbor of the link among all."""
        self.appoint(max(self.entries.values(), key=lambda entry: entry.seniority(now), default=None))

    def appoint(self, senior: NeighborEntry | None) -> None:
        self.senior = senior
        if senior is not None and senior.neighbor.contender:
            senior.neighbor = replace(senior.neighbor, contender=False)

    def facts(self) -> Iterable[Neighbor]:
        """The link's neighbor, then the others that are facts, live ones first."""
        senior = self.senior
        if senior is None:
            return ()
        sure = senior.neighbor.confirmed and not senior.neighbor.stale
        others = [
            entry
            for entry in self.entries.values()
            if entry is not senior and (entry.neighbor.confirmed or not (sure or entry.hidden))
        ]
        others.sort(key=lambda entry: (entry.neighbor.stale, entry.place))
        return (senior.neighbor, *(entry.neighbor for entry in others))


class NeighborTable:
    """The neighbors of all links. ``now`` is in seconds of any monotonic clock."""

    def __init__(self, own: OwnIdentity | None = None, ttl_max_s: float = TTL_MAX_S) -> None:
        self.own = own or OwnIdentity()
        self._ttl_max_s = ttl_max_s
        self.revision = 0
        self._links: dict[str, _LinkTable] = {}
        self._due = float("inf")
        self._facts: tuple[int, tuple[Neighbor, ...]] = (0, ())

    def receive(self, link: str, frame: bytes, now: float, *, tagged: bool = False) -> FrameOutcome:
        """Process an Ethernet frame that was received on a link. ``tagged``: it is of a VLAN, and the kernel has
        stripped the tag."""
        table = self._links.get(link)
        if table is None:
            table = self._links[link] = _LinkTable(budget_at=now)
        outcome = self._receive(link, table, frame, now, tagged=tagged)
        table.counts[outcome] += 1
        return outcome

    def remember(self, link: str, past: Mapping[Sender, PastTime]) -> None:
        """Give removed neighbors of a link their time, at most ``PAST_MAX``."""
        table = self._links.setdefault(link, _LinkTable())
        table.past.update(past)
        table.places = max((time.place for time in past.values()), default=0)

    def times(self) -> dict[str, dict[Sender, PastTime]]:
        """The times of all confirmed neighbors and removed ones, by link: that of the link's neighbor first."""
        times: dict[str, dict[Sender, PastTime]] = {}
        for link, table in self._links.items():
            found = {
                sender: entry.time for sender, entry in table.entries.items() if entry.neighbor.confirmed
            }
            senior = next((sender for sender in found if table.entries[sender] is table.senior), None)
            every = table.past | found
            order = sorted(every, key=lambda sender: (sender == senior, by_time(every[sender])), reverse=True)
            times[link] = {sender: every[sender] for sender in order}
        return times

    def set_own(self, own: OwnIdentity) -> None:
        """Set the node's own identity and remove the neighbors that match it."""
        self.own = own
        for table in self._links.values():
            for sender, entry in list(table.entries.items()):
                if own.sent(sender.source, entry.pdu):
                    table.drop(sender)
                    table.settle(entry.last_received)
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
            table.settle(0.0)  # live neighbors alone depend on the time

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
        """The neighbors by link: the link's neighbor first, then the others, live ones first.

        The same object until the neighbors differ.
        """
        revision, facts = self._facts
        if revision != self.revision:
            now = tuple(neighbor for _, table in sorted(self._links.items()) for neighbor in table.facts())
            self._facts = (self.revision, facts if now == facts else now)
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

    def _receive(
        self, link: str, table: _LinkTable, frame: bytes, now: float, *, tagged: bool
    ) -> FrameOutcome:
        entry = table.frames.get(frame)
        if entry is not None:
            table.error = None
            entry.tagged = entry.tagged and (tagged or any(parse_frame(frame).vlans))
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
        tagged = tagged or any(parsed.vlans)
        source = parsed.source or b""
        if pdu.ttl == 0:
            self._shut_down(table, pdu, source, now)
            return FrameOutcome.SHUTDOWN
        neighbor = neighbor_of(link, pdu, source)
        sender = Sender(pdu.chassis_id, pdu.port_id, source, neighbor.system_name)
        entry = table.entries.get(sender)
        ttl_s = min(float(pdu.ttl), self._ttl_max_s)
        if entry is None:
            new = NeighborEntry(neighbor, pdu, frame, now, now, expires=now, ttl_s=ttl_s, tagged=tagged)
            return self._admit(table, sender, new, now)
        before = entry.neighbor
        neighbor = replace(
            neighbor, stale=before.stale, confirmed=before.confirmed, contender=before.contender
        )
        changed = before != neighbor
        table.frames.pop(entry.frame, None)
        table.frames[frame] = entry
        if changed:
            entry.neighbor = neighbor
            self.revision += 1
        entry.pdu, entry.frame, entry.ttl_s = pdu, frame, ttl_s
        entry.tagged = entry.tagged and tagged
        self._refresh(table, entry, now)
        return FrameOutcome.CHANGED if changed else FrameOutcome.REFRESHED

    def _shut_down(self, table: _LinkTable, pdu: Lldpdu, source: bytes, now: float) -> None:
        """End the neighbors that a frame with TTL 0 is about. It has no name."""
        for sender, entry in table.entries.items():
            if sender[:3] != (pdu.chassis_id, pdu.port_id, source) or entry.outlived:
                continue
            if entry is not table.senior:
                entry.expires = now
            elif not entry.neighbor.stale:  # its time has ended otherwise
                self._stale(entry)
                entry.shut = True
        self._sweep(table, now)

    def _admit(self, table: _LinkTable, sender: Sender, entry: NeighborEntry, now: float) -> FrameOutcome:
        outcome = FrameOutcome.NEW
        if len(table.entries) >= CAPACITY:
            removed = table.make_room()
            self.revision += removed.neighbor.confirmed or not removed.hidden
            entry.hidden, outcome = True, FrameOutcome.CROWDED
        past = table.take_past(sender, now)
        if past is not None:
            entry.live_s, entry.pause_s, entry.place, _ = past
            entry.frames = CONFIRMING
        else:
            entry.place = table.places = table.places + 1
        table.entries[sender] = table.frames[entry.frame] = entry
        self.revision += not entry.hidden
        self._refresh(table, entry, now)
        return outcome

    def _refresh(self, table: _LinkTable, entry: NeighborEntry, now: float) -> None:
        entry.frames += 1
        neighbor, before = entry.neighbor, entry.last_received
        if not neighbor.stale and now < entry.expires:
            entry.live_s = min(SENIOR_S, entry.live_s + now - before)
            entry.pause_s = max(entry.pause_s, now - before)
        alone = len(table.entries) == 1
        expires = now + entry.ttl_s
        # Beside others no frame shortens the time of the one before: it may be forged.
        if alone or expires > entry.expires or (neighbor.stale and not entry.shut):
            entry.expires = expires
        if entry.shut:
            entry.shut, entry.outlived = False, True
        if neighbor.stale or (not neighbor.confirmed and entry.frames >= CONFIRMING):
            entry.neighbor = replace(neighbor, stale=False, confirmed=entry.frames >= CONFIRMING)
            self.revision += 1
        entry.last_received = now
        self._due = min(self._due, entry.expires)
        senior = table.senior
        if entry is not senior and (senior is None or entry.seniority(now) > senior.seniority(now)):
            table.appoint(entry)
            self.revision += 1
        if not alone:
            self._sweep(table, now)
            if entry is table.senior is senior:
                self._note_contenders(table, entry, before)

    def _note_contenders(self, table: _LinkTable, senior: NeighborEntry, since: float) -> None:
        """The link's neighbor has sent again, for the first time ``since``: those between its two frames contend."""
        for entry in table.entries.values():
            neighbor = entry.neighbor
            if entry is senior or neighbor.stale or neighbor.contender or not neighbor.confirmed:
                continue
            subinterface = entry.tagged and neighbor.chassis_id == senior.neighbor.chassis_id
            if entry.last_received >= since and not (subinterface and not senior.tagged):
                entry.neighbor = replace(neighbor, contender=True)
                self.revision += 1

    def _sweep(self, table: _LinkTable, now: float) -> None:
        """Apply the TTLs that have passed. The link's neighbor stays as stale; others leave if one is live."""
        past = [sender for sender, entry in table.entries.items() if entry.expires <= now]
        if not past:
            return
        for sender in past:
            self._stale(table.entries[sender])
        table.settle(now)
        if any(not entry.neighbor.stale for entry in table.entries.values()):
            for sender in past:
                if table.entries[sender] is not table.senior:
                    table.drop(sender)
                    self.revision += 1

    def _stale(self, entry: NeighborEntry) -> None:
        entry.shut = entry.outlived = False
        if not entry.neighbor.stale:
            entry.neighbor = replace(entry.neighbor, stale=True)
            self.revision += 1


def by_time(time: PastTime) -> tuple[float, int]:
    """The key that puts those who have sent for longer, or were there before, last."""
    return (time.live_s, -time.place)


def neighbor_of(link: str, pdu: Lldpdu, source: bytes) -> Neighbor:
    """Convert an LLDPDU to a neighbor.

    An empty text becomes ``None``, and so does VLAN ID 0, which means "no port VLAN" (802.1Q D.2.1).
    """
    enabled = pdu.capabilities.enabled if pdu.capabilities else 0
    return Neighbor(
        link=link,
        chassis_id=Identifier(pdu.chassis_id.word, printable(pdu.chassis_id.text)),
        port_id=Identifier(pdu.port_id.word, printable(pdu.port_id.text)),
        source=mac(source) if source else None,
        system_name=_text(pdu.system_name),
        system_description=_text(pdu.system_description),
        port_description=_text(pdu.port_description),
        management_addresses=tuple(printable(address.text) for address in pdu.management_addresses),
        capabilities=capability_words(enabled),
        pvid=pdu.pvid or None,
        maximum_frame_size=pdu.maximum_frame_size,
        pfc=pdu.pfc.priorities if pdu.pfc else None,
        ets=Ets(
            tuple(pdu.ets.classes),
            tuple(pdu.ets.bandwidth),
            tuple(map(ets_algorithm, pdu.ets.algorithms)),
        )
        if pdu.ets
        else None,
    )


def _text(text: str | None) -> str | None:
    return printable(text) or None if text is not None else None
