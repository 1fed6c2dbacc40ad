"""Probe the partners of each rail, answer theirs, and keep what the probes say.

* One tick for all rails each ``TICK_S`` sends what is due, so that a node with many rails wakes no more often.
* Every ``SLOT_S`` the legs are evaluated, and ``publish`` gets the checks; equal ones are no news for a reader.
* Each tenth second one probe of a leg has the size of the MTU. It replaces a small one.
* Whatever a list says, ``probe_caps`` decides what is sent. A rail that cannot be checked says why.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from typing import NamedTuple

from msgspec import structs

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.fabric.nodelinks import CHECKABLE, LEGS_MAX
from nodeagent.fabric.rail_partners import ProbedPartner, RailList, RailPartners, one_spelling
from nodeagent.facts.model import LossyLeg, RailCheck
from nodeagent.features.rail_probing.check_guests import CheckGuests, ReadAddresses
from nodeagent.features.rail_probing.leg_windows import SLOT_S, LegWindows
from nodeagent.features.rail_probing.loss_direction import LossDirection, count_of
from nodeagent.features.rail_probing.probe_caps import (
    CHECKED_TO_ONE_PER_S,
    AnswerCaps,
    IpInterface,
    SendCaps,
    own_address,
)
from nodeagent.features.rail_probing.probe_packet import ANSWER, CHECK, REQUEST, SIZE, ProbePacket
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import RailSocket, open_rail_socket

TICK_S = 0.5
MISSING_S, FORGOTTEN_S = 2.0, 10.0
LARGE_S = 10.0
LARGE_SHORT_S = 60.0
RTT_BOUNDS_US = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
OpenSocket = Callable[[str, int, IpInterface, int, int], socket.socket]
HEADERS = {4: 28, 6: 48}


class RailLink(NamedTuple):
    """A rail of this node as the kernel has it. ``fault`` is why it cannot be checked, or empty."""

    name: str
    pci_address: str
    netdev: str
    ifindex: int
    mtu: int
    addresses: tuple[IpInterface, ...]
    fault: str = ""


class ProbedLeg:
    """A partner of a rail, with the windows of small and of large packets."""

    def __init__(self, partner: ProbedPartner, source: IpInterface, now: float) -> None:
        self.partner, self.source = partner, source
        self.small, self.large = LegWindows(now), LegWindows(now, LARGE_SHORT_S)
        self.direction = LossDirection()
        self.answered_at: float | None = None
        self.ticket = 0
        """Of the last answer."""
        self.rtt_us: float | None = None
        self.sent = 0
        self.due = now + random.random() / partner.per_second  # noqa: S311 - spreads the load
        self.large_due = now + random.random() * LARGE_S  # noqa: S311

    def windows(self, *, large: bool) -> LegWindows:
        return self.large if large else self.small


class Pending(NamedTuple):
    """A probe that is under way."""

    sequence: int
    rail: ProbedRail
    leg: ProbedLeg
    large: bool
    at: float
    sent_ns: int
    number: int
    """Of the probes to this partner."""


class ProbedRail:
    """One rail: its sockets, its legs, and its counts since the agent started, by scope."""

    def __init__(self, link: RailLink) -> None:
        self.link = link
        self.legs: dict[tuple[str, str, str], ProbedLeg] = {}
        self.answers: frozenset[str] = frozenset()
        self.received: dict[str, tuple[int, int]] = {}
        """The session of each sender with a ticket, and how many of its probes have arrived."""
        self.answer_caps = AnswerCaps()
        self.check_caps = AnswerCaps(CHECKED_TO_ONE_PER_S, CHECKED_TO_ONE_PER_S)
        self.sockets: dict[tuple[IpInterface, int], RailSocket] = {}
        self.fault = "no-list"
        self.sent: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.rtt_counts = [0] * (len(RTT_BOUNDS_US) + 1)
        self.rtt_sum_us = 0.0

    def close(self) -> None:
        for opened in self.sockets.values():
            opened.close()
        self.sockets = {}

    def count(self, address: str, session: int) -> int:
        """Count a probe that has arrived."""
        known, received = self.received.get(address, (session, 0))
        self.received[address] = session, received + 1 if known == session else 1
        return count_of(self.received[address][1])

    def note_rtt(self, leg: ProbedLeg, rtt_us: float) -> None:
        leg.rtt_us = rtt_us
        at = next((i for i, bound in enumerate(RTT_BOUNDS_US) if rtt_us <= bound), len(RTT_BOUNDS_US))
        self.rtt_counts[at] += 1
        self.rtt_sum_us += rtt_us


async def _nobody(_node: str) -> tuple[str, ...]:
    return ()


class RailProbes:
    """``links`` reads the rails of this node. ``publish`` is called every ``SLOT_S``. ``clock`` is that of the loop.
    ``read_addresses`` returns the addresses of another node's rails, whose check this node may answer."""

    def __init__(
        self,
        settings: RailsSettings,
        links: Callable[[], Awaitable[Sequence[RailLink]]],
        publish: Callable[[RailProbes], object] = lambda _probes: None,
        *,
        clock: Callable[[], float] | None = None,
        open_socket: OpenSocket = open_rail_socket,
        read_addresses: ReadAddresses = _nobody,
    ) -> None:
        self._settings, self._links, self._publish, self._open_socket = settings, links, publish, open_socket
        self._clock = clock or asyncio.get_running_loop().time
        self._networks = tuple(ip_network(text, strict=False) for text in settings.networks)
        self._session, self._sequence = secrets.randbits(64), secrets.randbits(32)
        self._caps, self._guests = SendCaps(), CheckGuests(read_addresses, self._clock)
        self._lists: Mapping[str, RailList] | None = None
        self._pending: dict[int, Pending] = {}
        self._fresh: deque[Pending] = deque()
        """Probes that may still be in time, in the order of their sending."""
        self._late: deque[Pending] = deque()
        self.rails: dict[str, ProbedRail] = {}
        """By the name of the link."""

    def take_partners(self, partners: RailPartners | None) -> None:
        """The list of this node; ``None``: there is none. In force at the next arrangement."""
        rails = () if partners is None else partners.spec.rails
        self._lists = None if partners is None else {rail.rail: _one_spelling(rail) for rail in rails}

    async def run(self) -> None:
        """Probe and answer until cancelled."""
        try:
            while True:
                await self.arrange()
                for _ in range(round(SLOT_S / TICK_S)):
                    before = self._clock()
                    await asyncio.sleep(TICK_S)
                    self.tick(paused=self._clock() - before > 3 * TICK_S)
                self.evaluate()
        finally:
            self.close()

    def close(self) -> None:
        self._guests.close()
        for rail in self.rails.values():
            rail.close()

    async def arrange(self) -> None:
        """Follow the rails and the list."""
        self._arrange(await self._links(), self._clock())

    def tick(self, *, paused: bool = False) -> None:
        """Send what is due. After a pause of this process, the answers that wait in the sockets come first."""
        if paused:
            for rail in self.rails.values():
                for opened in tuple(rail.sockets.values()):
                    opened.read()
        now = self._clock()
        self._expire(now)
        due = [(rail, leg) for rail in self.rails.values() for leg in rail.legs.values() if leg.due <= now]
        random.shuffle(due)  # or the last rails get nothing where the caps cut
        for rail, leg in due:
            leg.due = max(leg.due + 1 / leg.partner.per_second, now)
            self._probe(rail, leg, now)

    def evaluate(self) -> None:
        """Evaluate the legs, and publish."""
        now = self._clock()
        for rail in self.rails.values():
            for leg in rail.legs.values():
                leg.small.evaluate(now)
                leg.large.evaluate(now)
                if not leg.small.level and not leg.small.long(now).lost:
                    leg.direction.forget()
        self._publish(self)

    # --- arrangement ----------------------------------------------------------------------------------

    def _arrange(self, links: Iterable[RailLink], now: float) -> None:
        known, self.rails = self.rails, {}
        for link in links:
            rail = known.pop(link.name, None)
            if rail is None:
                rail = ProbedRail(link)
            elif rail.link != link:
                rail.close()
                rail.link = link
            self.rails[link.name] = rail
            self._arrange_rail(rail, now)
        for rail in known.values():
            rail.close()
        self._caps.keep({leg.partner.address for rail in self.rails.values() for leg in rail.legs.values()})

    def _arrange_rail(self, rail: ProbedRail, now: float) -> None:
        link, wanted = rail.link, (self._lists or {}).get(rail.link.name, RailList(rail=rail.link.name))
        legs: dict[tuple[str, str, str], ProbedLeg] = {}
        for partner in wanted.probe if not link.fault else ():
            source = own_address(partner.address, link.addresses, self._networks)
            if source is not None:
                key = partner.node, partner.nic, partner.address
                leg = rail.legs.get(key)
                if leg is None or (leg.partner, leg.source) != (partner, source):
                    leg = ProbedLeg(partner, source, now)
                legs[key] = leg
        rail.legs = legs
        answered = [one.address for one in wanted.answer] + [one.address for one in wanted.probe]
        allowed = {
            address: own
            for address in (answered if not link.fault else ())
            if (own := own_address(address, link.addresses, self._networks)) is not None
        }
        rail.answers = frozenset(allowed)
        rail.received = {address: one for address, one in rail.received.items() if address in allowed}
        rail.answer_caps.keep(rail.answers)
        rail.check_caps.keep(self._guests.addresses)
        ports = {(own, 0) for own in allowed.values()}
        ports |= {(leg.source, 1 + i) for leg in legs.values() for i in range(leg.partner.ports)}
        opened = self._open(rail, ports)
        if link.fault or self._lists is None:
            rail.fault = link.fault or "no-list"
        elif not wanted.probe:
            rail.fault = "no-partner"
        elif not legs:
            rail.fault = "refused-address"
        else:
            rail.fault = "" if opened else "no-socket"

    def _open(self, rail: ProbedRail, ports: set[tuple[IpInterface, int]]) -> bool:
        for key in set(rail.sockets) - ports:
            rail.sockets.pop(key).close()
        link, settings = rail.link, self._settings
        for own, offset in sorted(ports - set(rail.sockets), key=lambda key: key[1]):
            try:
                opened = self._open_socket(
                    link.netdev, link.ifindex, own, settings.port + offset, settings.dscp
                )
            except OSError:
                return False
            rail.sockets[own, offset] = RailSocket(
                opened, own, partial(self._take, rail), partial(self._refused, rail)
            )
        return True

    # --- packets --------------------------------------------------------------------------------------

    def _probe(self, rail: ProbedRail, leg: ProbedLeg, now: float) -> None:
        source = rail.sockets.get((leg.source, 1 + leg.sent % leg.partner.ports))
        if source is None or not self._caps.take(leg.partner.address, now):
            return
        large = leg.large_due <= now and leg.answered_at is not None
        length = rail.link.mtu - HEADERS[leg.source.version] if large else SIZE
        self._sequence += 1
        pending = Pending(self._sequence, rail, leg, large, now, time.time_ns(), leg.sent)
        packet = ProbePacket(REQUEST, self._session, pending.sequence, ticket=leg.ticket)
        if not source.send(packet.encode(max(length, SIZE)), leg.partner.address, self._settings.port):
            return
        leg.sent += 1
        if large:
            leg.large_due = now + LARGE_S
        rail.sent[leg.partner.scope] = rail.sent.get(leg.partner.scope, 0) + 1
        self._pending[pending.sequence] = pending
        self._fresh.append(pending)

    def _expire(self, now: float) -> None:
        while self._fresh and now - self._fresh[0].at >= MISSING_S:
            pending = self._fresh.popleft()
            if pending.sequence in self._pending:
                pending.leg.windows(large=pending.large).missing(pending.at, now)
                self._late.append(pending)
        while self._late and now - self._late[0].at >= FORGOTTEN_S:
            lost = self._pending.pop(self._late.popleft().sequence, None)
            if lost is not None and not lost.leg.small.absent(now):
                scope = lost.leg.partner.scope
                lost.rail.lost[scope] = lost.rail.lost.get(scope, 0) + 1

    def _take(
        self,
        rail: ProbedRail,
        at: RailSocket,
        packet: ProbePacket,
        length: int,
        address: str,
        port: int,
        ns: int,
    ) -> None:
        now = self._clock()
        if packet.kind != ANSWER:
            if packet.kind == CHECK:
                answers, count, ticket = self._answers_check(rail, packet, address, now)
            else:
                answers, count, ticket = self._answers_probe(rail, packet, address, now)
            if answers:
                answer = packet._replace(
                    kind=ANSWER,
                    node="",
                    received=count,
                    held_ns=max(0, time.time_ns() - ns),
                    ticket=ticket,
                )
                at.send(answer.encode(length), address, port)
            return
        pending = self._pending.get(packet.sequence)
        if packet.session != self._session or pending is None or pending.leg.partner.address != address:
            return
        if pending.rail.link.name != rail.link.name:
            return
        del self._pending[packet.sequence]
        leg = pending.leg
        leg.answered_at, leg.ticket = now, packet.ticket
        leg.direction.answered(pending.number, packet.received)
        self._caps.answered(address)
        windows = leg.windows(large=pending.large)
        if self._fresh and pending.at >= self._fresh[0].at:
            windows.answered(pending.at)
        else:
            windows.late(pending.at)
        if not pending.large:
            rail.note_rtt(leg, max(0, ns - pending.sent_ns - packet.held_ns) / 1000)

    def _answers_check(
        self, rail: ProbedRail, packet: ProbePacket, address: str, now: float
    ) -> tuple[bool, int, int]:
        """As ``_answers_probe``; the packets of a check are not counted."""
        if own_address(address, rail.link.addresses, self._networks) is None:
            return False, 0, 0
        ticket = rail.check_caps.ticket(address, packet.session)
        shown = packet.ticket == ticket
        if not self._guests.admits(packet.node, packet.session, address, shown=shown):
            return False, 0, 0
        return rail.check_caps.take(address, now, shown=shown), 0, ticket

    def _answers_probe(
        self, rail: ProbedRail, packet: ProbePacket, address: str, now: float
    ) -> tuple[bool, int, int]:
        """Return whether a probe is answered, its number if it shows its ticket, and the ticket."""
        if address not in rail.answers:
            return False, 0, 0
        ticket = rail.answer_caps.ticket(address, packet.session)
        shown = packet.ticket == ticket
        count = rail.count(address, packet.session) if shown else 0
        return rail.answer_caps.take(address, now, shown=shown), count, ticket

    def _refused(self, rail: ProbedRail, address: str, packet: ProbePacket) -> None:
        """A port-unreachable message about a packet. It counts only for a probe that is under way: anybody can send
        such messages, and only who has seen the probe knows the session and the sequence."""
        now, pending = self._clock(), self._pending.get(packet.sequence)
        if packet.session != self._session or pending is None:
            return
        if pending.rail is not rail or pending.leg.partner.address != address:
            return
        for leg in rail.legs.values():
            if leg.partner.address == address:
                leg.small.refused(now)
                leg.large.refused(now)


def checks(probes: RailProbes, now: float, unix: float) -> tuple[RailCheck, ...]:
    """The facts for the snapshot: levels and no counts, so that a healthy hall has nothing to write."""
    return tuple(
        sorted(
            (
                RailCheck(
                    rail.link.pci_address,
                    tuple(str(one) for one in rail.link.addresses)[:4],
                    rail.fault or CHECKABLE,
                    tuple(sorted(_lossy(rail, unix - now), key=lambda leg: (-leg.level, leg.node)))[
                        :LEGS_MAX
                    ],
                )
                for rail in probes.rails.values()
            ),
            key=lambda check: check.pci_address,
        )
    )


def _lossy(rail: ProbedRail, unix_at_zero: float) -> Iterator[LossyLeg]:
    for leg in rail.legs.values():
        large = not leg.small.level and leg.large.level > 0
        windows = leg.windows(large=large)
        if windows.level:
            since = rfc3339(windows.since + unix_at_zero)
            node, nic, scope = leg.partner.node, leg.partner.nic, leg.partner.scope
            yield LossyLeg(node, nic, scope, windows.level, large, since)


def _one_spelling(rail: RailList) -> RailList:
    """The list with each address as the kernel writes it: the caps count packets by address."""
    return structs.replace(
        rail,
        probe=tuple(structs.replace(one, address=one_spelling(one.address)) for one in rail.probe),
        answer=tuple(structs.replace(one, address=one_spelling(one.address)) for one in rail.answer),
    )
