"""The netdevs of a network namespace, from one rtnetlink dump.

sysfs tells the same, but of the namespace in which it was mounted; AF_PACKET binds in the namespace of the
process, and this socket lists exactly what can be bound there. A dump costs about 1 ms for 70 netdevs; it
may wait for the kernel's RTNL lock while a driver holds it, so ask in a thread.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Self

from nodeagent.host.netlink.message import NetlinkError, attribute, attributes, number, text, u32
from nodeagent.host.netlink.socket import Dialog

_GETLINK = 18  # include/uapi/linux/rtnetlink.h
_LINK = struct.Struct("=BxHiII")  # family, ARPHRD, ifindex, flags, change

# include/uapi/linux/if_link.h
_ADDRESS, _NAME, _MTU, _MASTER, _LINKINFO, _EXT_MASK, _CARRIER = 1, 3, 4, 10, 18, 29, 33
_PERMANENT_ADDRESS, _PARENT_NAME, _PARENT_BUS = 54, 56, 57
_INFO_KIND = 1
_SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS

_IFF_UP = 1

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
        self._dialog = Dialog(socket.NETLINK_ROUTE, "netdevs")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._dialog.close()

    def read(self) -> tuple[Netdev, ...]:
        """All of them, sorted by name."""
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_EXT_MASK, u32(_SKIP_STATISTICS))
        return tuple(sorted(self._dialog.dump(_GETLINK, body, netdev_of), key=lambda netdev: netdev.name))


def netdev_of(payload: bytes) -> Netdev:
    """The payload of an RTM_NEWLINK message."""
    if len(payload) < _LINK.size:
        raise NetlinkError("a link message is cut short")
    _, hardware, ifindex, flags, _ = _LINK.unpack_from(payload)
    told = attributes(payload, _LINK.size)
    up = bool(flags & _IFF_UP)
    kind = attributes(told.get(_LINKINFO, b"")).get(_INFO_KIND)
    bus = text(told.get(_PARENT_BUS))
    carrier = told.get(_CARRIER)
    return Netdev(
        ifindex=ifindex,
        name=text(told.get(_NAME)) or "",
        hardware=hardware,
        kind=text(kind),
        mac=told.get(_ADDRESS) or None,
        permanent_mac=told.get(_PERMANENT_ADDRESS) or None,
        mtu=number(told.get(_MTU)),
        admin_up=up,
        carrier=bool(carrier[0]) if up and carrier else None,
        bus=bus,
        pci_address=text(told.get(_PARENT_NAME)) if bus == "pci" else None,
        enslaved=any(told.get(_MASTER, b"")),
    )
