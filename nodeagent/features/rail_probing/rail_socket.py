"""A UDP socket of one rail: bound to the netdev and to one of its addresses, at both ends of a probe.

* Without ``SO_BINDTODEVICE`` a host with two NICs in one subnet answers for the dead one through the other.
* The kernel stamps what it receives: a busy host is not a slow network.
* ``IP_PMTUDISC_PROBE`` ignores the cached path MTU, which would fail large packets for 10 minutes after a repair.
* ``IP_RECVERR`` brings ICMP's port unreachable: the partner's agent is absent, and the way to it works.

Without rights of its own; with an unprivileged process the first binding to a netdev needs Linux 5.7.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from nodeagent.features.rail_probing.probe_caps import IpInterface
from nodeagent.features.rail_probing.probe_packet import ProbePacket, decode_probe

_TURN = 64
_PACKET_MAX = 9300
# asm-generic/socket.h, linux/in.h, linux/in6.h, linux/errqueue.h
_SO_TIMESTAMPNS = 35
_IP_RECVERR, _IPV6_RECVERR, _ERRQUEUE = 11, 25, 0x2000
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_TIMESPEC = struct.Struct("@qq")
_EXTENDED_ERROR = struct.Struct("=IBBBxII")
_REFUSED = {(2, 3, 3), (3, 1, 4)}
"""Origin, type and code of port unreachable: ICMP and ICMPv6."""


class RailSocket:
    """Takes over ``opened``. Calls ``on_packet(self, packet, length, address, port, received_ns)`` for each probe or
    answer, and ``on_refused(address, packet)`` for each port unreachable, with the packet that it is about."""

    def __init__(
        self,
        opened: socket.socket,
        interface: IpInterface,
        on_packet: Callable[[RailSocket, ProbePacket, int, str, int, int], object],
        on_refused: Callable[[str, ProbePacket], object],
    ) -> None:
        self.interface = interface
        self._socket, self._on_packet, self._on_refused = opened, on_packet, on_refused
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(opened, self.read)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def send(self, raw: bytes, address: str, port: int) -> bool:
        """Send; false if the kernel takes no such packet now."""
        to: Any = (address, port)
        if self.interface.version == 6:
            to = (address, port, 0, self._socket.getsockname()[3])
        for _ in range(2):
            try:
                self._socket.sendto(raw, to)
            except OSError as error:
                # The kernel gives the error of an earlier packet, maybe to another partner, to the next call.
                if not self._read_errors():
                    return (
                        error.errno == errno.EHOSTUNREACH
                    )  # nobody has this address now: the packet is lost
            else:
                return True
        return False

    def read(self) -> None:
        for _ in range(_TURN):
            try:
                raw, ancillary, _, sender = self._socket.recvmsg(_PACKET_MAX, 128)
            except BlockingIOError:
                return
            except OSError:
                if not self._read_errors():
                    return
                continue
            if (packet := decode_probe(raw)) is not None:
                address = sender[0].partition("%")[0]
                self._on_packet(self, packet, len(raw), address, sender[1], _received_ns(ancillary))

    def _read_errors(self) -> bool:
        """Read the queue of errors; return whether there were any."""
        for count in range(_TURN):
            try:
                raw, ancillary, _, target = self._socket.recvmsg(64, 256, _ERRQUEUE)
            except OSError:
                return count > 0
            if (packet := decode_probe(raw)) is None:
                continue
            for _, kind, data in ancillary:
                if kind in (_IP_RECVERR, _IPV6_RECVERR) and len(data) >= _EXTENDED_ERROR.size:
                    _, *what, _, _ = _EXTENDED_ERROR.unpack_from(data)
                    if tuple(what) in _REFUSED:
                        self._on_refused(target[0].partition("%")[0], packet)
        return True


def _received_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return time.time_ns()


def open_rail_socket(
    netdev: str, ifindex: int, interface: IpInterface, port: int, dscp: int
) -> socket.socket:
    """A socket in this network namespace. Raises ``OSError``."""
    is_v6 = interface.version == 6
    opened = socket.socket(
        socket.AF_INET6 if is_v6 else socket.AF_INET,
        socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
    )
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        if is_v6:
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
            opened.bind((str(interface.ip), port, 0, ifindex if interface.is_link_local else 0))
        else:
            opened.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            opened.bind((str(interface.ip), port))
    except OSError:
        opened.close()
        raise
    return opened
