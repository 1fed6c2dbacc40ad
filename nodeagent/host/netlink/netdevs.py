"""The netdevs of a network namespace, from one rtnetlink dump.

sysfs tells the same, but of the namespace in which it was mounted; AF_PACKET binds in the namespace of the
process, and this socket lists exactly what can be bound there. A dump costs about 1 ms for 70 netdevs; it
may wait for the kernel's RTNL lock while a driver holds it, so ask in a thread.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from nodeagent.host.netlink.events import NetlinkError

# include/uapi/linux/netlink.h and rtnetlink.h
_ERROR, _DONE = 2, 3
_F_DUMP_INTERRUPTED = 0x10
_REQUEST_DUMP = 0x1 | 0x300
_NEWLINK, _GETLINK = 16, 18
_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # family, ARPHRD, ifindex, flags, change
_ATTRIBUTE = struct.Struct("=HH")  # length, type

# include/uapi/linux/if_link.h
_ADDRESS, _NAME, _MTU, _MASTER, _LINKINFO, _EXT_MASK, _CARRIER = 1, 3, 4, 10, 18, 29, 33
_PERMANENT_ADDRESS, _PARENT_NAME, _PARENT_BUS = 54, 56, 57
_INFO_KIND = 1
_SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS

_IFF_UP = 1
_TYPE_BITS = 0x3FFF  # NLA_TYPE_MASK
_REPLY_MAX = 64 * 1024
_TRIES = 5
_TIMEOUT_S = 10.0

ETHERNET = 1  # ARPHRD_ETHER; the loopback's is 772


@dataclass(frozen=True, slots=True)
class Netdev:
    """``hardware`` is an ARPHRD number. ``kind`` is the software sort that rtnetlink names (``veth``, ``tun``,
    ``bond``, …), ``None`` for hardware. ``bus`` is that of the parent device and ``pci_address`` the parent
    on ``pci``, both ``None`` where the kernel does not say it (it does since 5.14).
    ``carrier`` is ``None`` while admin down. ``enslaved``: it is a port of a bond, a bridge, Open vSwitch….
    """

    ifindex: int
    name: str
    hardware: int
    kind: str | None
    mac: bytes | None
    permanent_mac: bytes | None
    mtu: int | None
    admin_up: bool
    carrier: bool | None
    bus: str | None
    pci_address: str | None
    enslaved: bool = False


class Netdevs:
    """A socket of the network namespace in which it was made; ``read`` may be called from any one thread."""

    def __init__(self) -> None:
        self._sequence = 0
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
            )
        except OSError as error:
            raise NetlinkError(
                f"no netlink socket for netdevs: {error.strerror}; allow AF_NETLINK"
            ) from error
        self._socket.settimeout(_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> tuple[Netdev, ...]:
        """All of them, sorted by name."""
        try:
            for _ in range(_TRIES):
                found = self._dump()
                if found is not None:
                    return tuple(sorted(found, key=lambda netdev: netdev.name))
        except OSError as error:
            why = "the kernel did not answer" if isinstance(error, TimeoutError) else error.strerror
            raise NetlinkError(f"netdevs cannot be listed: {why}") from error
        raise NetlinkError("netdevs cannot be listed: they change faster than they can be read")

    def _dump(self) -> list[Netdev] | None:
        """``None`` when the kernel says that the list changed while it was told."""
        self._sequence += 1
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + struct.pack("=HHI", 8, _EXT_MASK, _SKIP_STATISTICS)
        head = _MESSAGE.pack(_MESSAGE.size + len(body), _GETLINK, _REQUEST_DUMP, self._sequence, 0)
        self._socket.sendto(head + body, (0, 0))
        found: list[Netdev] = []
        whole = True
        while True:
            data = self._socket.recv(_REPLY_MAX)
            for kind, flags, sequence, payload in messages(data):
                if sequence != self._sequence:
                    continue  # the end of a dump that we gave up
                whole = whole and not flags & _F_DUMP_INTERRUPTED
                if kind == _DONE:
                    return found if whole else None
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    raise OSError(code, f"the kernel refused with error {code}")
                if kind == _NEWLINK:
                    found.append(netdev_of(payload))


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence number and payload of each netlink message in a datagram."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        length, kind, flags, sequence, _ = _MESSAGE.unpack_from(data, at)
        if length < _MESSAGE.size or at + length > len(data):
            raise NetlinkError("a netlink message is cut short")
        yield kind, flags, sequence, data[at + _MESSAGE.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    """The attributes from ``at`` on, by type; flags for nesting and byte order are cut off."""
    found = {}
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            raise NetlinkError("a netlink attribute is cut short")
        found[kind & _TYPE_BITS] = data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return found


def netdev_of(payload: bytes) -> Netdev:
    """The payload of an RTM_NEWLINK message."""
    if len(payload) < _LINK.size:
        raise NetlinkError("a link message is cut short")
    _, hardware, ifindex, flags, _ = _LINK.unpack_from(payload)
    told = attributes(payload, _LINK.size)
    up = bool(flags & _IFF_UP)
    kind = attributes(told.get(_LINKINFO, b"")).get(_INFO_KIND)
    bus = _text(told.get(_PARENT_BUS))
    carrier = told.get(_CARRIER)
    mtu = told.get(_MTU)
    return Netdev(
        ifindex=ifindex,
        name=_text(told.get(_NAME)) or "",
        hardware=hardware,
        kind=_text(kind),
        mac=told.get(_ADDRESS) or None,
        permanent_mac=told.get(_PERMANENT_ADDRESS) or None,
        mtu=int.from_bytes(mtu, sys.byteorder) if mtu else None,
        admin_up=up,
        carrier=bool(carrier[0]) if up and carrier else None,
        bus=bus,
        pci_address=_text(told.get(_PARENT_NAME)) if bus == "pci" else None,
        enslaved=any(told.get(_MASTER, b"")),
    )


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.rstrip(b"\0").decode("utf-8", "surrogateescape")
