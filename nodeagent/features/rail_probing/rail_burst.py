"""A burst over all rails to one node: ``nodeagent rails check``, before a job starts.

* A knock each ``KNOCK_S`` until the other agent, which first reads our NodeLinks, answers on one rail. From then on all
  packets count, for some seconds: ``PER_S`` on a rail that has answered, and knocks on one that has not.
* So nobody gets more than two packets a second who does not answer with the session, which is random.
* Each tenth packet has the size of the MTU. The ports of the sender change with each packet, and the paths with them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from statistics import median

from nodeagent.features.rail_probing.probe_caps import IpInterface, own_address
from nodeagent.features.rail_probing.probe_packet import ANSWER, CHECK, SIZE, ProbePacket
from nodeagent.features.rail_probing.rail_probes import HEADERS, OpenSocket, RailLink
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import RailSocket, open_rail_socket
from nodeagent.features.rail_probing.rail_views import BurstRail

PER_S, KNOCK_S, _SECONDS_MAX = 20.0, 0.5, 8.0
PATIENCE_S = 10.0
"""Without an answer on any rail for so long, the check ends."""
PROBE_LATE_S = 3.0
_TICK_S = 0.05
_PORTS_FROM, _PORTS = 17, 8
"""The source ports of a check are after those of the probes."""


class _Sender:
    """One rail of a burst, and its counts from the first answer on any rail."""

    def __init__(self, link: RailLink) -> None:
        self.link, self.address, self.why = link, "", link.fault
        self.source: IpInterface | None = None
        self.sockets: list[RailSocket] = []
        self.pending: dict[int, tuple[int, bool]] = {}
        self.due = 0.0
        self.number = 0
        self.alive = self.refused = False
        self.ticket = 0
        """Of the last answer."""
        self.sent, self.answered = [0, 0], [0, 0]  # small, large
        self.rtts: list[float] = []

    def result(self) -> BurstRail:
        if self.refused and not self.alive:
            return BurstRail(self.link.name, self.address, why="refused")
        lost = [sent - answered for sent, answered in zip(self.sent, self.answered, strict=True)]
        return BurstRail(
            *(self.link.name, self.address, self.sent[0], lost[0], self.sent[1], lost[1]),
            rtt_us=round(median(self.rtts), 1) if self.rtts else None,
            why=self.why,
        )


class RailBurst:
    """``addresses`` are those of the other node by the name of its link, which is the name of ours."""

    def __init__(
        self,
        settings: RailsSettings,
        node: str,
        links: Iterable[RailLink],
        addresses: Mapping[str, Sequence[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        open_socket: OpenSocket = open_rail_socket,
    ) -> None:
        self._settings, self._node, self._clock = settings, node, clock
        self._session, self._sequence, self._knocks = secrets.randbits(64), 0, 0
        self._started, self._began = clock(), 0.0
        """When a rail answered first; 0 until then."""
        self.rails = [_Sender(link) for link in links]
        networks = [ip_network(text, strict=False) for text in settings.networks]
        for rail in self.rails:
            if rail.why:
                continue
            to = [one.partition("/")[0] for one in addresses.get(rail.link.name, ())]
            usable = [(one, own) for one in to if (own := own_address(one, rail.link.addresses, networks))]
            if usable:
                (rail.address, rail.source), *_ = usable
                self._open(rail, rail.source, open_socket)
            else:
                rail.why = "refused-address" if to else "not-there"

    def _open(self, rail: _Sender, own: IpInterface, open_socket: OpenSocket) -> None:
        link, settings = rail.link, self._settings
        first = settings.port + _PORTS_FROM
        try:
            for port in range(first, first + _PORTS):
                opened = open_socket(link.netdev, link.ifindex, own, port, settings.dscp)
                refused = partial(self._refused, rail)
                rail.sockets.append(RailSocket(opened, own, partial(self._take, rail), refused))
        except OSError:
            rail.why = "no-socket"

    async def run(self, seconds: float) -> tuple[BurstRail, ...]:
        """Check for so long, at most ``_SECONDS_MAX``."""
        try:
            while self.tick(min(seconds, _SECONDS_MAX)):  # noqa: ASYNC110 - it sends
                await asyncio.sleep(_TICK_S)
            for opened in (one for rail in self.rails for one in rail.sockets):
                opened.read()  # after a pause of this process, the answers wait here
        finally:
            self.close()
        return tuple(rail.result() for rail in self.rails)

    def close(self) -> None:
        for rail in self.rails:
            for opened in rail.sockets:
                opened.close()

    @property
    def answered(self) -> bool:
        """Whether the other agent has answered on any rail."""
        return self._began > 0

    def tick(self, seconds: float) -> bool:
        """Send what is due. Return false when the check is over."""
        now, able = self._clock(), [rail for rail in self.rails if not rail.why]
        if not self._began and (now - self._started >= PATIENCE_S or all(rail.refused for rail in able)):
            return False
        if self._began and now >= self._began + seconds:
            return now < self._began + seconds + PROBE_LATE_S and any(
                rail.pending for rail in able if rail.alive
            )
        for rail in able:
            if rail.due <= now:
                rail.due = now + (1 / PER_S if rail.alive else KNOCK_S) - _TICK_S / 2
                self._send(rail)
        return True

    def _send(self, rail: _Sender) -> None:
        rail.number += 1
        self._sequence += 1
        large = self._began > 0 and rail.number % 10 == 0
        length = rail.link.mtu - HEADERS[4 if rail.source is None else rail.source.version]
        packet = ProbePacket(CHECK, self._session, self._sequence, node=self._node, ticket=rail.ticket)
        raw = packet.encode(length if large else SIZE)
        rail.pending[self._sequence] = time.time_ns(), large
        by = rail.sockets[rail.number % len(rail.sockets)]
        if not by.send(raw, rail.address, self._settings.port):
            del rail.pending[self._sequence]
        elif self._began:
            rail.sent[large] += 1

    def _take(
        self,
        rail: _Sender,
        _at: RailSocket,
        packet: ProbePacket,
        _length: int,
        address: str,
        _port: int,
        ns: int,
    ) -> None:
        if (packet.kind, packet.session, address) != (ANSWER, self._session, rail.address):
            return
        if (sent := rail.pending.pop(packet.sequence, None)) is None:
            return
        rail.alive, rail.ticket = True, packet.ticket
        if not self._began:
            self._began, self._knocks = self._clock(), self._sequence
            for one in self.rails:
                one.due = 0.0
        elif packet.sequence > self._knocks:
            rail.answered[sent[1]] += 1
        if not sent[1]:
            rail.rtts.append(max(0, ns - sent[0] - packet.held_ns) / 1000)

    def _refused(self, rail: _Sender, address: str, packet: ProbePacket) -> None:
        ours = packet.session == self._session and packet.sequence in rail.pending
        rail.refused = rail.refused or (ours and address == rail.address)
