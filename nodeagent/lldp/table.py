"""Who is at the other end of each link, from the frames that came in.

The law of this file:

* A neighbor is an MSAP (chassis ID and port ID) on one link. It lives until its TTL has passed since its
  last frame; a frame with TTL 0 removes it at once.
* One whose TTL has passed stays, *stale*, as long as its link hears nobody else: absence of evidence is
  no evidence. Whoever speaks next shows who is there now, and what is past its TTL goes.
* A link has room for ``CAPACITY`` neighbors. A newcomer to a full link is refused and counted, as lldpd
  does and as 802.1AB's "too many neighbors" allows: to evict would let anybody who can send frames push
  the real switch out. Stale ones make room first.
* A frame that repeats one we know byte for byte costs a look-up. Others cost a decode, and a link may
  cause only ``DECODES_PER_SECOND`` of those: 32 neighbors in their fast start need 32.
* Whatever says our own MAC or system name is us, heard through a VF, a representor or a loop.

Ages and counters are kept beside the facts, never in them: ``neighbors()`` changes only with ``revision``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nodeagent.lldp.ethernet import parse_frame
from nodeagent.lldp.neighbor_facts import neighbor_of
from nodeagent.lldp.tlv import decode
from nodeagent.lldp.values import ChassisId, Lldpdu, LldpError, PortId
from nodeagent.model import Neighbor

CAPACITY = 32
DECODES_PER_SECOND = 100
CONFIRMING = 2
"""LLDPDUs of one MSAP until it is confirmed: a single frame may be a patch lead held in the wrong hole."""
_BURST = 100.0

Msap = tuple[ChassisId, PortId]


class Outcome(StrEnum):
    """What a frame was good for; each is counted per link."""

    NEW = "new"
    CHANGED = "changed"
    REFRESHED = "refreshed"
    SHUTDOWN = "shutdown"
    """TTL 0, from a neighbor known or not"""
    OWN = "own"
    REFUSED = "refused"
    """the link has no room"""
    FLOODED = "flooded"
    """too many different frames in a short time: not looked at"""
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Own:
    """How we would recognize ourselves: the MACs of all our netdevs and what this host calls itself."""

    macs: frozenset[bytes] = frozenset()
    system_names: frozenset[str] = frozenset()

    def spoke(self, source: bytes | None, pdu: Lldpdu) -> bool:
        if source in self.macs:
            return True
        if pdu.chassis_id.word == "mac" and pdu.chassis_id.raw in self.macs:
            return True
        if pdu.port_id.word == "mac" and pdu.port_id.raw in self.macs:
            return True
        return pdu.system_name is not None and pdu.system_name.rstrip("\0") in self.system_names


@dataclass(slots=True)
class Entry:
    """A neighbor with what must not be in the fact. Times are those of the caller's ``now``."""

    neighbor: Neighbor
    pdu: Lldpdu
    frame: bytes
    first_heard: float
    last_heard: float
    expires: float
    frames: int = 0


@dataclass(slots=True)
class _Side:
    """Our side of one link."""

    entries: dict[Msap, Entry] = field(default_factory=dict)
    frames: dict[bytes, Entry] = field(default_factory=dict)
    """the last frame of each entry"""
    counts: Counter[Outcome] = field(default_factory=Counter)
    error: str | None = None
    budget: float = _BURST
    budget_at: float = 0.0

    def afford(self, now: float) -> bool:
        earned = max(0.0, now - self.budget_at) * DECODES_PER_SECOND
        self.budget = min(_BURST, self.budget + earned)
        self.budget_at = now
        if self.budget < 1.0:
            return False
        self.budget -= 1.0
        return True

    def drop(self, msap: Msap) -> None:
        self.frames.pop(self.entries.pop(msap).frame, None)


class Table:
    """The neighbors of all links. Nothing here reads a clock: ``now`` is seconds of any steady one."""

    def __init__(self, own: Own | None = None) -> None:
        self.own = own or Own()
        self.revision = 0
        self._sides: dict[str, _Side] = {}
        self._due = float("inf")
        self._facts: tuple[int, tuple[Neighbor, ...]] = (0, ())

    def hear(self, link: str, frame: bytes, now: float) -> Outcome:
        """Take an Ethernet frame that came in on a link."""
        side = self._sides.get(link)
        if side is None:
            side = self._sides[link] = _Side(budget_at=now)
        outcome = self._hear(link, side, frame, now)
        side.counts[outcome] += 1
        return outcome

    def recognize(self, own: Own) -> None:
        """We know ourselves better now: neighbors that turn out to be us go."""
        self.own = own
        for side in self._sides.values():
            for msap, entry in list(side.entries.items()):
                if own.spoke(entry.frame[6:12], entry.pdu):
                    side.drop(msap)
                    self.revision += 1

    def expire(self, now: float) -> None:
        """Let pass what has passed; a call costs nothing before ``next_expiry()``."""
        if now < self._due:
            return
        for side in self._sides.values():
            self._sweep(side, now)
        self._due = min(
            (e.expires for s in self._sides.values() for e in s.entries.values() if e.expires > now),
            default=float("inf"),
        )

    def next_expiry(self) -> float | None:
        """When ``expire`` should be called next; it may turn out that the neighbor has spoken since."""
        return None if self._due == float("inf") else self._due

    def silence(self, link: str) -> None:
        """The link went down or its netdev away: its neighbors are stale until they speak again."""
        side = self._sides.get(link)
        if side is not None:
            for entry in side.entries.values():
                self._stale(entry)

    def forget(self, link: str) -> None:
        """The link is no longer ours to watch: its neighbors and counters go."""
        side = self._sides.pop(link, None)
        if side is not None and side.entries:
            self.revision += 1

    def rename(self, old: str, new: str) -> None:
        """The netdev has a new name; who is at its other end stays."""
        side = self._sides.pop(old, None)
        if side is None:
            return
        for entry in side.entries.values():
            entry.neighbor = replace(entry.neighbor, link=new)
        self._sides[new] = side
        self.revision += 1

    def neighbors(self) -> tuple[Neighbor, ...]:
        """All of them by link, the live ones first; the same object until ``revision`` changes."""
        if self._facts[0] != self.revision:
            facts = sorted((e.neighbor for e in self.entries()), key=_order)
            self._facts = (self.revision, tuple(facts))
        return self._facts[1]

    def entries(self) -> Iterable[Entry]:
        return [entry for side in self._sides.values() for entry in side.entries.values()]

    def counts(self, link: str) -> Counter[Outcome]:
        side = self._sides.get(link)
        return Counter() if side is None else side.counts.copy()

    def last_error(self, link: str) -> str | None:
        """Why the link's latest frame was malformed; ``None`` where it was understood."""
        side = self._sides.get(link)
        return None if side is None else side.error

    def _hear(self, link: str, side: _Side, frame: bytes, now: float) -> Outcome:
        entry = side.frames.get(frame)
        if entry is not None:
            side.error = None
            self._refresh(side, entry, now)
            return Outcome.REFRESHED
        if not side.afford(now):
            return Outcome.FLOODED
        try:
            parsed = parse_frame(frame)
            pdu = decode(frame, parsed.offset)
        except LldpError as error:
            side.error = str(error)
            return Outcome.MALFORMED
        side.error = None
        if self.own.spoke(parsed.source, pdu):
            return Outcome.OWN
        msap = (pdu.chassis_id, pdu.port_id)
        entry = side.entries.get(msap)
        if pdu.ttl == 0:
            if entry is not None:
                side.drop(msap)
                self.revision += 1
            return Outcome.SHUTDOWN
        neighbor = neighbor_of(link, pdu)
        if entry is None:
            return self._admit(side, msap, Entry(neighbor, pdu, frame, now, now, now), now)
        before = entry.neighbor
        changed = replace(before, stale=False, confirmed=False) != neighbor
        side.frames.pop(entry.frame, None)
        side.frames[frame] = entry
        if changed:
            entry.neighbor = replace(neighbor, stale=before.stale, confirmed=before.confirmed)
            self.revision += 1
        entry.pdu, entry.frame = pdu, frame
        self._refresh(side, entry, now)
        return Outcome.CHANGED if changed else Outcome.REFRESHED

    def _admit(self, side: _Side, msap: Msap, entry: Entry, now: float) -> Outcome:
        if len(side.entries) >= CAPACITY:
            stale = [(e.last_heard, key) for key, e in side.entries.items() if e.neighbor.stale]
            if not stale:
                return Outcome.REFUSED
            side.drop(min(stale, key=lambda one: one[0])[1])
        side.entries[msap] = side.frames[entry.frame] = entry
        self.revision += 1
        self._refresh(side, entry, now)
        return Outcome.NEW

    def _refresh(self, side: _Side, entry: Entry, now: float) -> None:
        entry.last_heard = now
        entry.expires = now + entry.pdu.ttl
        self._due = min(self._due, entry.expires)
        entry.frames += 1
        confirmed = entry.frames >= CONFIRMING
        if entry.neighbor.stale or entry.neighbor.confirmed != confirmed:
            entry.neighbor = replace(entry.neighbor, stale=False, confirmed=confirmed)
            self.revision += 1
        if len(side.entries) > 1:
            self._sweep(side, now)

    def _sweep(self, side: _Side, now: float) -> None:
        """What is past its TTL goes while somebody else is live, and else is stale."""
        past = [msap for msap, entry in side.entries.items() if entry.expires <= now]
        if not past:
            return
        live = any(e.expires > now and not e.neighbor.stale for e in side.entries.values())
        for msap in past:
            if live:
                side.drop(msap)
                self.revision += 1
            else:
                self._stale(side.entries[msap])

    def _stale(self, entry: Entry) -> None:
        if not entry.neighbor.stale:
            entry.neighbor = replace(entry.neighbor, stale=True)
            self.revision += 1


def duplicates(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """Live neighbors that are one MSAP on several links: one port cannot hold two cables."""
    groups: dict[object, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            groups.setdefault((neighbor.chassis_id, neighbor.port_id), []).append(neighbor)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def crowded(neighbors: Iterable[Neighbor]) -> tuple[tuple[Neighbor, ...], ...]:
    """Live neighbors of links where several chassis speak. Two ports of one chassis are no crowd: a switch
    that renames its ports while it boots shows both until the older one's TTL has passed.
    """
    groups: dict[str, list[Neighbor]] = {}
    for neighbor in neighbors:
        if not neighbor.stale:
            groups.setdefault(neighbor.link, []).append(neighbor)
    return tuple(tuple(group) for group in groups.values() if len({one.chassis_id for one in group}) > 1)


def _order(neighbor: Neighbor) -> tuple[str, bool, str, str, str, str]:
    chassis, port = neighbor.chassis_id, neighbor.port_id
    return (neighbor.link, neighbor.stale, chassis.subtype, chassis.value, port.subtype, port.value)
