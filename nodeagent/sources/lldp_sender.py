"""Send LLDP frames that announce this node to the switches. Off by default.

If the NIC's firmware sends LLDP too, the switch sees two chassis on one port and may stop DCBX negotiation. So
sending is a setting.

All links use one chassis ID (a MAC that stays the same for the life of the process) and the netdev's name as
port ID; TTL 120 s, one frame every 30 s. After a new neighbor or carrier up a link sends four frames one second
apart, and never more than one a second (802.1AB 9.2.5). Links no longer listed get a shutdown frame (TTL 0).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import Capabilities, ChassisId, Lldpdu, ManagementAddress, PortId
from nodeagent.lldp.lldpdu_codec import encode_lldpdu

TTL_S = 120
_INTERVAL_S = 30.0
FAST_FRAMES = 4
FAST_INTERVAL_S = 1.0

_MAC, _IFNAME, _LOCAL = 4, 5, 7
_STATION = 1 << 7
_TEXT_MAX = 255
_IPV4, _IPV6 = 1, 2


@dataclass(frozen=True, slots=True)
class NodeAnnouncement:
    """The node's own information, sent on every link."""

    system_name: str
    system_description: str
    management_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendingLink:
    """``mac`` is the source address; ``description`` becomes the port description, for the switch's operator."""

    ifindex: int
    mac: bytes
    description: str
    send: Callable[[bytes], bool]


@dataclass(slots=True)
class _Schedule:
    """``due_at``: the time of the next frame. ``fast``: how many frames still follow at the fast interval."""

    link: SendingLink
    due_at: float
    fast: int = FAST_FRAMES
    sent_at: float = float("-inf")


class LldpSender:
    """Sends the announcement on all links. Belongs to one event loop."""

    def __init__(self, announcement: NodeAnnouncement) -> None:
        self._announcement = announcement
        self._chassis: ChassisId | None = None
        self._schedules: dict[str, _Schedule] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.sent = 0

    def update_links(self, links: Mapping[str, SendingLink]) -> None:
        """Send on exactly these links, by name; links no longer listed get a shutdown frame."""
        if self._chassis is None and links:
            self._chassis = ChassisId(_MAC, min(link.mac for link in links.values()))
        for name in [name for name in self._schedules if name not in links]:
            self._remove(name)
        for name, link in links.items():
            schedule = self._schedules.get(name)
            if schedule is not None and schedule.link.ifindex != link.ifindex:
                self._remove(name)  # another netdev has this name now
                schedule = None
            if schedule is None:
                self._schedules[name] = _Schedule(link, self._loop.time())
            else:
                schedule.link = link
        self._set_timer()

    def send_fast(self, name: str) -> None:
        """Start fast transmission on a link: it has a new neighbor, or carrier came up."""
        schedule = self._schedules.get(name)
        if schedule is not None:
            schedule.fast = FAST_FRAMES
            schedule.due_at = max(self._loop.time(), schedule.sent_at + FAST_INTERVAL_S)
            self._set_timer()

    def close(self) -> None:
        self.update_links({})

    def _frame(self, name: str, link: SendingLink, ttl: int = TTL_S) -> bytes:
        chassis = self._chassis or ChassisId(_LOCAL, _octets(self._announcement.system_name))
        port = PortId(_IFNAME, _octets(name))
        if ttl == 0:
            pdu = Lldpdu(chassis, port, 0)
        else:
            pdu = Lldpdu(
                chassis,
                port,
                ttl,
                port_description=_truncated(link.description),
                system_name=_truncated(self._announcement.system_name),
                system_description=_truncated(self._announcement.system_description),
                capabilities=Capabilities(_STATION, _STATION),
                management_addresses=tuple(map(_management_address, self._announcement.management_addresses)),
            )
        return build_frame(NEAREST_BRIDGE, link.mac, encode_lldpdu(pdu))

    def _remove(self, name: str) -> None:
        schedule = self._schedules.pop(name)
        if schedule.sent_at > 0:
            schedule.link.send(self._frame(name, schedule.link, ttl=0))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._schedules:
            due_at = min(schedule.due_at for schedule in self._schedules.values())
            self._timer = self._loop.call_at(due_at, self._send_due)

    def _send_due(self) -> None:
        now = self._loop.time()
        for name, schedule in self._schedules.items():
            if schedule.due_at <= now:
                if schedule.link.send(self._frame(name, schedule.link)):
                    schedule.sent_at = now
                    self.sent += 1
                schedule.fast = max(0, schedule.fast - 1)
                schedule.due_at = now + (FAST_INTERVAL_S if schedule.fast else _INTERVAL_S)
        self._set_timer()


def management_addresses() -> tuple[str, ...]:
    """The source addresses of this host's default routes. Nothing is sent."""
    addresses = []
    # TEST-NET-1 and the documentation prefix: they take the default route, and no host has them.
    for family, remote in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect((remote, 9))
                addresses.append(str(probe.getsockname()[0]))
        except OSError:
            continue  # no such address family, or no route
    return tuple(addresses)


def _management_address(text: str) -> ManagementAddress:
    address = ipaddress.ip_address(text)
    return ManagementAddress(_IPV4 if address.version == 4 else _IPV6, address.packed)


def _truncated(text: str) -> str:
    """Cut a text to the length of a TLV, between two characters."""
    return _octets(text).decode("utf-8", "ignore")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:_TEXT_MAX]
