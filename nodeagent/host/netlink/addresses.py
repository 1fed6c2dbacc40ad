"""The IP addresses of the netdevs of a network namespace, by rtnetlink. One dump returns all of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from nodeagent.host.netlink.message import attributes
from nodeagent.host.netlink.socket import NetlinkSocket

Interface = IPv4Interface | IPv6Interface

# include/uapi/linux/rtnetlink.h, if_addr.h
_GETADDR = 22
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix length, flags, scope, ifindex
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_LASTING = 0x80  # IFA_F_PERMANENT
_UNUSABLE = 0x01 | 0x08 | 0x20 | 0x40
"""IFA_F_TEMPORARY (on IPv4: secondary), DADFAILED, DEPRECATED, TENTATIVE."""


class Addresses(NetlinkSocket):
    """A socket of the network namespace in which it was made; use it from one thread at a time."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE, "rtnetlink")

    def read(self, *, lasting: bool = False) -> dict[int, tuple[Interface, ...]]:
        """The addresses that other hosts may use, by ifindex, IPv4 first. See ``addresses_by_ifindex``. Raises
        ``NetlinkError``."""
        return addresses_by_ifindex(self, lasting=lasting)


def addresses_by_ifindex(
    rtnetlink: NetlinkSocket, *, lasting: bool = False
) -> dict[int, tuple[Interface, ...]]:
    """Ask this socket of rtnetlink, as ``Addresses.read``. ``lasting``: without the IPv6 addresses that router
    advertisements give, and take away."""
    found: dict[int, list[Interface]] = {}
    dumped = rtnetlink.dump(
        _GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0), lambda body: tuple(_of(body, lasting=lasting))
    )
    for ifindex, interface in (pair for pairs in dumped for pair in pairs):
        found.setdefault(ifindex, []).append(interface)
    return {ifindex: tuple(sorted(of, key=lambda one: (one.version, one))) for ifindex, of in found.items()}


def _of(payload: bytes, *, lasting: bool) -> Iterator[tuple[int, Interface]]:
    family, length, flags, _, ifindex = _ADDRESS.unpack_from(payload)
    attrs = attributes(payload, _ADDRESS.size)
    raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
    flags |= int.from_bytes(attrs.get(_IFA_FLAGS, b""), "little")
    passing = lasting and family == socket.AF_INET6 and not flags & _LASTING
    if (
        raw is not None
        and not flags & _UNUSABLE
        and not passing
        and family in (socket.AF_INET, socket.AF_INET6)
    ):
        yield ifindex, ip_interface((raw, length))
