"""Telling the switches who this node is: an LLDP transmitter, off unless asked for.

Receiving says nothing of us. Who transmits beside a NIC's firmware that does so too shows two chassis on one
port, and a switch that negotiates DCBX may then stop: that is why this is a choice.

One chassis ID for all links (a MAC that is kept for the life of the process), the netdev's name as port ID,
TTL 120 at 30 s. A new neighbor, or a link that comes up, is greeted by four frames a second apart, and no link
ever sends more than one a second (802.1AB 9.2.5). Whoever leaves says so: TTL 0.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.tlv import encode
from nodeagent.lldp.values import Capabilities, ChassisId, Lldpdu, ManagementAddress, PortId

TTL_S = 120
INTERVAL_S = 30.0
FAST_FRAMES = 4
FAST_INTERVAL_S = 1.0

_MAC, _IFNAME, _LOCAL = 4, 5, 7
_STATION = 1 << 7
_TEXT_MAX = 255
_IPV4, _IPV6 = 1, 2


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is said of the node on every link."""

    system_name: str
    system_description: str
    management_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speaker:
    """A link that can be spoken on. ``mac`` is the source; ``description`` is for the switch's operator."""

    ifindex: int
    mac: bytes
    description: str
    send: Callable[[bytes], bool]


@dataclass(slots=True)
class _Turn:
    speaker: Speaker
    at: float
    fast: int = FAST_FRAMES
    sent_at: float = float("-inf")


class Announcer:
    def __init__(self, announcement: Announcement) -> None:
        self._announcement = announcement
        self._chassis: ChassisId | None = None
        self._turns: dict[str, _Turn] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.sent = 0

    def follow(self, speakers: Mapping[str, Speaker]) -> None:
        """These links, by name, are spoken on from now on; one that is not among them is taken leave of."""
        if self._chassis is None and speakers:
            self._chassis = ChassisId(_MAC, min(speaker.mac for speaker in speakers.values()))
        for name in [name for name in self._turns if name not in speakers]:
            self._leave(name)
        for name, speaker in speakers.items():
            turn = self._turns.get(name)
            if turn is not None and turn.speaker.ifindex != speaker.ifindex:
                self._leave(name)  # the name is another netdev's now
                turn = None
            if turn is None:
                self._turns[name] = _Turn(speaker, self._loop.time())
            else:
                turn.speaker = speaker
        self._arm()

    def greet(self, name: str) -> None:
        """Somebody new is there, or the link came up: speak soon and a few times."""
        turn = self._turns.get(name)
        if turn is not None:
            turn.fast = FAST_FRAMES
            turn.at = max(self._loop.time(), turn.sent_at + FAST_INTERVAL_S)
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name in list(self._turns):
            self._leave(name)

    def frame(self, name: str, speaker: Speaker, ttl: int = TTL_S) -> bytes:
        chassis = self._chassis or ChassisId(_LOCAL, _octets(self._announcement.system_name))
        port = PortId(_IFNAME, _octets(name))
        if ttl == 0:
            pdu = Lldpdu(chassis, port, 0)
        else:
            pdu = Lldpdu(
                chassis,
                port,
                ttl,
                port_description=_fitting(speaker.description),
                system_name=_fitting(self._announcement.system_name),
                system_description=_fitting(self._announcement.system_description),
                capabilities=Capabilities(_STATION, _STATION),
                management_addresses=tuple(map(_managed, self._announcement.management_addresses)),
            )
        return build_frame(NEAREST_BRIDGE, speaker.mac, encode(pdu))

    def _leave(self, name: str) -> None:
        turn = self._turns.pop(name)
        if turn.sent_at > 0:
            turn.speaker.send(self.frame(name, turn.speaker, ttl=0))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._turns:
            at = min(turn.at for turn in self._turns.values())
            self._timer = self._loop.call_at(at, self._speak)

    def _speak(self) -> None:
        now = self._loop.time()
        for name, turn in self._turns.items():
            if turn.at <= now:
                if turn.speaker.send(self.frame(name, turn.speaker)):
                    turn.sent_at = now
                    self.sent += 1
                turn.fast = max(0, turn.fast - 1)
                turn.at = now + (FAST_INTERVAL_S if turn.fast else INTERVAL_S)
        self._arm()


def management_addresses() -> tuple[str, ...]:
    """The addresses by which this host would be reached: those it would use to go out. Nothing is sent."""
    found = []
    # TEST-NET-1 and the documentation prefix: routed as anything else is, and nobody's.
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect((elsewhere, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue  # no such family here, or no route
    return tuple(found)


def _managed(text: str) -> ManagementAddress:
    address = ipaddress.ip_address(text)
    return ManagementAddress(_IPV4 if address.version == 4 else _IPV6, address.packed)


def _fitting(text: str) -> str:
    """As much as a TLV holds, and no half character at its end."""
    return _octets(text).decode("utf-8", "ignore")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:_TEXT_MAX]
