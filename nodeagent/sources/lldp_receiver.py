"""An ear on every link: what comes in becomes neighbors and findings.

The law of this file:

* Which links there are is a level: ``follow`` is told all of them and does what differs. A lost socket only
  rings for a new look.
* A link is a PCI function where it is one, and else a netdev's name. It keeps its neighbors through a rename,
  through carrier loss (they are stale), and while its netdev is in another network namespace: a PCI link as
  long as its function is there, any other for ``AWAY_S``.
* A fact is stated as soon as it is known, and then not for ``GAP_S``: whoever floods a link with changes
  wakes the rest of the agent 50 times a second and no more.
* Silence is judged here, for time lives at the source.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.host.netlink.netdevs import Netdev
from nodeagent.host.packet import PacketError, Receiver
from nodeagent.lldp.link_remarks import SILENT_AFTER_S, Near, findings
from nodeagent.lldp.table import Entry, Outcome, Own, Table
from nodeagent.model import Ets, Finding, Function, Neighbor
from nodeagent.sources.link_selection import Selected
from nodeagent.sources.lldp_sender import Announcement, Announcer, Speaker

log = logging.getLogger(__name__)

GAP_S = 0.02
AWAY_S = 3600.0
FLOOD_CLEARS_S = 60.0

_HEARD = frozenset((Outcome.NEW, Outcome.CHANGED, Outcome.REFRESHED, Outcome.SHUTDOWN))
_FLOOD = frozenset((Outcome.FLOODED, Outcome.REFUSED))
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Dcb:
    """What our own side of a link is set to do about priorities; ``None`` where it cannot be read."""

    pfc: tuple[int, ...] | None = None
    ets: Ets | None = None


@dataclass(slots=True)
class Line:
    """A link that is listened on, or was until its netdev went away. Times are the event loop's.

    ``up_at`` is when carrier came (or listening began), ``None`` without carrier.
    """

    selected: Selected
    receiver: Receiver | None = None
    enslaved: bool = False
    up_at: float | None = None
    heard_at: float = _NEVER
    own_at: float = _NEVER
    flooded_at: float = _NEVER
    away_at: float | None = None
    dropped: int = 0
    trouble: str | None = None
    dcb: Dcb = field(default_factory=Dcb)

    @property
    def name(self) -> str:
        return self.selected.name

    @property
    def listens_to(self) -> tuple[int, bool] | None:
        """The ifindex, and whether as a port of something."""
        if self.receiver is None or not self.receiver.bound:
            return None
        return (self.receiver.ifindex, self.enslaved)

    def quiet_since(self) -> float:
        return max(self.up_at or _NEVER, self.heard_at)


Opened = socket.socket | PacketError
Stated = Callable[[tuple[Neighbor, ...], tuple[Finding, ...]], object]


class Ear:
    """Listens on links and states neighbors and findings when they changed. Belongs to one event loop.

    ``rung`` is set when the netdevs should be looked at again, ``looked`` once they have been. ``names`` are
    what this node calls itself.
    """

    def __init__(
        self,
        state: Stated,
        *,
        names: Iterable[str] = (),
        announcement: Announcement | None = None,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self.rung = asyncio.Event()
        self.looked = asyncio.Event()
        self.table = Table()
        self.lines: dict[str, Line] = {}
        self.neighbors: tuple[Neighbor, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        self._state = state
        self._names = frozenset(names)
        self._silent_after_s = silent_after_s
        self._announcer = Announcer(announcement) if announcement else None
        self._loop = asyncio.get_running_loop()
        self._told_at = _NEVER
        self._telling: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def close(self) -> None:
        """Stop listening; say goodbye where we have spoken. What was stated stands."""
        if self._announcer is not None:
            self._announcer.close()
        for line in self.lines.values():
            _close(line)
        for handle in (self._telling, self._timer):
            if handle is not None:
                handle.cancel()

    def heard_at(self) -> dict[str, float]:
        """When a neighbor spoke last, by link: CLOCK_BOOTTIME."""
        offset = time.clock_gettime(time.CLOCK_BOOTTIME) - self._loop.time()
        found: dict[str, float] = {}
        for entry in self.table.entries():
            link = entry.neighbor.link
            found[link] = max(found.get(link, 0.0), entry.last_heard + offset)
        return found

    # --- which links there are ------------------------------------------------------------------------

    def follow(
        self,
        links: Iterable[Selected],
        netdevs: Iterable[Netdev],
        functions: Iterable[Function],
        opened: dict[int, Opened],
        dcb: Mapping[str, Dcb] | None = None,
    ) -> None:
        """These are the links, of all netdevs and PCI functions there are, with a socket for each that
        ``needs`` one, or the trouble with it. What is taken from ``opened`` is the ear's.
        """
        now = self._loop.time()
        netdevs = tuple(netdevs)
        macs = (mac for netdev in netdevs for mac in (netdev.mac, netdev.permanent_mac) if mac and any(mac))
        own = Own(frozenset(macs), self._names)
        if own != self.table.own:
            self.table.recognize(own)
        lines: dict[str, Line] = {}
        moves: list[tuple[str, str]] = []
        left = dict(self.lines)
        for selected in links:
            old = _line_of(left, selected)
            line = left.pop(old) if old is not None else Line(selected)
            if old is not None and old != selected.name:
                moves.append((old, selected.name))
            lines[selected.name] = line
            line.selected = selected
        self._rename(moves, left)
        away = self._part(left, lines, netdevs, functions, now)
        self.lines = lines | away
        for line in lines.values():
            self._open(line, opened)
            self._carrier(line, now)
            line.dcb = (dcb or {}).get(line.name, Dcb())
        if self._announcer is not None:
            self._announcer.follow(self._speakers())
        self.looked.set()
        self._tell_soon()

    def _rename(self, moves: list[tuple[str, str]], left: dict[str, Line]) -> None:
        """Names may have been swapped, or belong to what is about to be forgotten: go by names nobody has."""
        for old, _ in moves:
            self.table.rename(old, f"\0{old}")
        for old, new in moves:
            if left.pop(new, None) is not None:
                self.table.forget(new)
            self.table.rename(f"\0{old}", new)

    def _part(
        self,
        left: dict[str, Line],
        lines: dict[str, Line],
        netdevs: tuple[Netdev, ...],
        functions: Iterable[Function],
        now: float,
    ) -> dict[str, Line]:
        """Those no longer among the links: unselected, or away. Only the latter keep their neighbors."""
        here = {netdev.ifindex: netdev.name for netdev in netdevs}
        addresses = {function.pci_address for function in functions}
        away = {}
        for name, line in left.items():
            ours = line.receiver is not None and line.receiver.bound
            unselected = (ours and line.selected.netdev.ifindex in here) or name in here.values()
            _close(line)
            if line.away_at is None:
                line.away_at, line.up_at = now, None
                self.table.silence(name)
                log.info("The netdev of a link has gone; its neighbors are kept. link=%s", name)
            address = line.selected.pci_address
            kept = address in addresses if address is not None else now - line.away_at < AWAY_S
            if unselected or not kept or name in lines:
                self.table.forget(name)
            else:
                away[name] = line
        return away

    def needs(self, links: Iterable[Selected]) -> tuple[Netdev, ...]:
        """The netdevs of the links that no socket of the right sort listens on."""
        heard = {line.listens_to for line in self.lines.values()}
        return tuple(
            link.netdev for link in links if (link.netdev.ifindex, link.netdev.enslaved) not in heard
        )

    def _open(self, line: Line, opened: dict[int, Opened]) -> None:
        ifindex, enslaved = line.selected.netdev.ifindex, line.selected.netdev.enslaved
        if line.listens_to == (ifindex, enslaved):
            return
        _close(line)
        new = opened.pop(ifindex, None)
        if new is None:
            self.rung.set()  # its old socket was lost just now
            return
        if isinstance(new, PacketError):
            if line.trouble != str(new):
                log.warning("A link is not listened on. link=%s reason=%r", line.name, str(new))
            line.trouble = str(new)
            return
        line.receiver = Receiver(ifindex, new, lambda frame: self._hear(line, frame), self.rung.set)
        line.enslaved, line.trouble = enslaved, None
        if line.away_at is not None:
            log.info("The netdev of a link is back. link=%s", line.name)
            line.away_at = line.up_at = None

    def _carrier(self, line: Line, now: float) -> None:
        if line.selected.netdev.carrier:
            if line.up_at is None:
                line.up_at = now
                if self._announcer is not None:
                    self._announcer.greet(line.name)
        elif line.up_at is not None:
            line.up_at = None
            self.table.silence(line.name)

    def _speakers(self) -> dict[str, Speaker]:
        speakers = {}
        for line in self.lines.values():
            netdev = line.selected.netdev
            # Under a bond all slaves wear one MAC; a switch that learned it here would send traffic here.
            mac = netdev.permanent_mac or netdev.mac
            if line.receiver is not None and mac is not None:
                description = line.selected.pci_address or ""
                speakers[line.name] = Speaker(netdev.ifindex, mac, description, line.receiver.send)
        return speakers

    # --- what is heard --------------------------------------------------------------------------------

    def _hear(self, line: Line, frame: bytes) -> None:
        now = self._loop.time()
        outcome = self.table.hear(line.name, frame, now)
        if outcome in _HEARD:
            line.heard_at = now
            if outcome is Outcome.NEW and self._announcer is not None:
                self._announcer.greet(line.name)
            if self.table.neighbors() is not self.neighbors:
                self._tell_soon()
        elif outcome is Outcome.OWN:
            if now - line.own_at > self._silent_after_s:
                self._tell_soon()
            line.own_at = now
        elif outcome in _FLOOD:
            if now - line.flooded_at > FLOOD_CLEARS_S:
                self._tell_soon()
            line.flooded_at = now
        if (self.table.next_expiry() or self._timer_at) < self._timer_at:
            self._arm()

    def _arm(self) -> None:
        """Wake when the next thing may happen that no frame announces."""
        now = self._loop.time()
        times = [self.table.next_expiry() or float("inf")]
        for line in self.lines.values():
            if line.up_at is not None:
                times.append(line.quiet_since() + self._silent_after_s)
            times += (line.flooded_at + FLOOD_CLEARS_S, line.own_at + self._silent_after_s)
        self._timer_at = min((at for at in times if at > now), default=float("inf"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timer_at != float("inf"):
            # A hair later, for the clock of the loop is coarser than a float.
            self._timer = self._loop.call_at(self._timer_at + 0.001, self._tell)

    # --- what is said ---------------------------------------------------------------------------------

    def _tell_soon(self) -> None:
        if self._telling is None:
            wait = self._told_at + GAP_S - self._loop.time()
            self._telling = (
                self._loop.call_soon(self._tell) if wait <= 0 else self._loop.call_later(wait, self._tell)
            )

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        now = self._loop.time()
        self.table.expire(now)
        neighbors = self.table.neighbors()
        live = {one.link for one in neighbors if not one.stale}
        sides = [self._near(line, now, line.name in live) for line in self.lines.values()]
        found = findings(sides, neighbors)
        if neighbors != self.neighbors or found != self.findings:
            self._told_at = now
            self.neighbors, self.findings = neighbors, found
            self._state(neighbors, found)
        else:
            self.neighbors = neighbors
        self._arm()

    def _near(self, line: Line, now: float, live: bool) -> Near:
        function = line.selected.function
        quiet = line.up_at is not None and not live and now >= line.quiet_since() + self._silent_after_s
        return Near(
            link=line.name,
            pci_address=line.selected.pci_address,
            driver=line.selected.driver,
            device=function.device if function else None,
            mtu=line.selected.netdev.mtu,
            quiet=quiet,
            malformed=self.table.last_error(line.name) if quiet else None,
            hears_itself=line.up_at is not None and now - line.own_at < self._silent_after_s,
            flooded=now - line.flooded_at < FLOOD_CLEARS_S,
            pfc=line.dcb.pfc,
            ets=line.dcb.ets,
        )

    # --- what is asked --------------------------------------------------------------------------------

    def entries(self, link: str) -> tuple[Entry, ...]:
        """The neighbors of a link with their times, in the facts' order."""
        mine = {id(entry.neighbor): entry for entry in self.table.entries() if entry.neighbor.link == link}
        return tuple(mine[id(one)] for one in self.table.neighbors() if id(one) in mine)

    def counts(self, link: str) -> Counter[str]:
        """What became of the frames of a link: the words of ``Outcome``, and ``dropped`` by the kernel."""
        counted = Counter({str(outcome): n for outcome, n in self.table.counts(link).items()})
        line = self.lines.get(link)
        if line is not None:
            counted["dropped"] = line.dropped + (line.receiver.count_drops() if line.receiver else 0)
        return counted


def _line_of(lines: Mapping[str, Line], selected: Selected) -> str | None:
    """Which of these is the same link: by the socket that is bound to it, the PCI address, or the name."""
    for name, line in lines.items():
        receiver = line.receiver
        if receiver is not None and receiver.ifindex == selected.netdev.ifindex and receiver.bound:
            return name
    address = selected.pci_address
    for name, line in lines.items():
        if line.receiver is not None and line.receiver.bound:
            continue  # another netdev of the same function, or one that has its name still
        theirs = line.selected.pci_address
        if theirs == address and (address is not None or name == selected.name):
            return name
    return None


def _close(line: Line) -> None:
    if line.receiver is not None:
        line.dropped += line.receiver.count_drops()
        line.receiver.close()
        line.receiver = None
