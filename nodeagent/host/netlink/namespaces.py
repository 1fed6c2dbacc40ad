"""Read and change the netdevs of any network namespace by rtnetlink.

A netlink socket belongs to the namespace in which it was made, whoever uses it. So only the making of the socket needs
a thread in that namespace, and the thread ends at once. Entering needs CAP_SYS_ADMIN, changes need CAP_NET_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Mapping
from errno import EEXIST, ENOENT
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
)
from typing import TypeVar

from nodeagent.base.bounded_calls import within
from nodeagent.host.netlink.message import (
    NetlinkError,
    NetlinkRefusedError,
    attribute,
    attributes,
    nest,
    u32,
)
from nodeagent.host.netlink.netdevs import Netdev, netdev_of
from nodeagent.host.netlink.socket import NetlinkSocket

T = TypeVar("T")

_CLONE_NEWNET = 0x4000_0000  # include/uapi/linux/sched.h
_ENTER_S = 5.0

# include/uapi/linux/netlink.h
_F_REPLACE, _F_EXCLUSIVE, _F_CREATE = 0x100, 0x200, 0x400
# include/uapi/linux/rtnetlink.h
_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _NEWROUTE, _NEWRULE = 16, 17, 18, 20, 24, 32
_NEWNEIGH, _DELNEIGH, _GETNEIGH = 28, 29, 30
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, ARPHRD, ifindex, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix length, flags, scope, ifindex
_ROUTE = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags. struct
fib_rule_hdr has the same sizes, with the action in the place of the type."""
_IFF_UP = 1
# include/uapi/linux/neighbour.h
_NEIGHBOR = struct.Struct("=BxxxiHBB")  # struct ndmsg: family, ifindex, state, flags, type
_NDA_DST, _NDA_LLADDR = 1, 2
_USE = 1  # NTF_USE
_REACHABLE, _FIXED = 0x02, 0x40 | 0x80
"""NUD_REACHABLE; NUD_NOARP and NUD_PERMANENT, which nobody asks for."""
# include/uapi/linux/if_link.h
_MAC, _IFNAME, _MTU, _ON, _LINKINFO, _AF_SPEC, _GROUP, _NET_NS_FD, _EXT_MASK = 1, 3, 4, 5, 18, 26, 27, 28, 29
_INFO_KIND, _INFO_DATA, _MACVLAN_MODE, _BRIDGE = 1, 2, 1, 4
_INET_CONF, _SKIP_STATISTICS = 1, 8
ARP_ANNOUNCE, ARP_IGNORE = 18, 19
"""IPV4_DEVCONF_*, include/uapi/linux/ip.h: the sysctls of a netdev."""
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_NODAD = 0x02  # IFA_F_NODAD, include/uapi/linux/if_addr.h
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC, _RTA_TABLE = 1, 4, 5, 7, 15
_ONLINK = 4  # RTNH_F_ONLINK
_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE = 2, 6, 15
_STATIC, _SCOPE_UNIVERSE, _SCOPE_LINK, _UNICAST, _TO_TABLE = 4, 0, 253, 1, 1


def in_namespace(namespace: int, call: Callable[[], T], limit_s: float = _ENTER_S) -> T:
    """Call ``call`` in a thread of its own in the network namespace of this descriptor. Raises ``NetlinkError`` where
    it cannot be entered, and ``TimeoutError``."""

    def enter() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise NetlinkError(f"cannot enter the network namespace: {os.strerror(code)}")
        return call()

    return within("network namespace", limit_s, enter)


class NamespaceNetdevs(NetlinkSocket):
    """The netdevs of one network namespace. Use it from one thread at a time; every call blocks.

    ``namespace`` is an open descriptor of it, ``None`` for that of this process. Each change raises
    ``NetlinkRefusedError`` where the kernel refuses it.
    """

    def __init__(self, namespace: int | None) -> None:
        self._namespace = namespace
        super().__init__(socket.NETLINK_ROUTE, "rtnetlink")

    def _open(self) -> socket.socket:
        if self._namespace is None:
            return super()._open()
        return in_namespace(self._namespace, super()._open)

    def read(self) -> tuple[Netdev, ...]:
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_EXT_MASK, u32(_SKIP_STATISTICS))
        return tuple(self.dump(_GETLINK, body, netdev_of))

    def move(self, ifindex: int, namespace: int, name: str) -> None:
        """Set a netdev down and put it into the namespace of this descriptor under a new name, in one request. A name
        with ``%d`` gets a free number. MAC address and ifindex stay where they are free.

        **A refusal may come after the move**: of a name that is taken there (EEXIST) the kernel moves the netdev under
        its old name first. Look where it is."""
        attrs = attribute(_NET_NS_FD, u32(namespace)) + _text(_IFNAME, name)
        self._change(_NEWLINK, 0, _link(ifindex, up=False) + attrs)

    def add_macvlan(self, parent: int, namespace: int, name: str, mac: bytes, group: int) -> None:
        """Make a macvlan in bridge mode on the netdev ``parent`` of this namespace, in the namespace of this
        descriptor: down, with this name, MAC address and group, or not at all."""
        data = nest(_INFO_DATA, attribute(_MACVLAN_MODE, u32(_BRIDGE)))
        attrs = (
            attribute(_ON, u32(parent)),
            attribute(_NET_NS_FD, u32(namespace)),
            _text(_IFNAME, name),
            attribute(_MAC, mac),
            attribute(_GROUP, u32(group)),
            nest(_LINKINFO, _text(_INFO_KIND, "macvlan") + data),
        )
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + b"".join(attrs)
        self._change(_NEWLINK, _F_CREATE | _F_EXCLUSIVE, body)

    def remove(self, ifindex: int) -> None:
        """Remove a netdev that is made of software."""
        self._change(_DELLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0))

    def rename(self, ifindex: int, name: str) -> None:
        """Set a netdev down and rename it."""
        self._change(_NEWLINK, 0, _link(ifindex, up=False))
        self._change(_NEWLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0) + _text(_IFNAME, name))

    def set_up(self, ifindex: int, mtu: int | None, conf: Mapping[int, int]) -> None:
        """Set MTU and IPv4 sysctls of a netdev (``ARP_IGNORE``, …), and set it up, in one request."""
        values = b"".join(attribute(which, u32(value)) for which, value in sorted(conf.items()))
        attrs = nest(_AF_SPEC, nest(socket.AF_INET, nest(_INET_CONF, values))) if conf else b""
        attrs += b"" if mtu is None else attribute(_MTU, u32(mtu))
        self._change(_NEWLINK, 0, _link(ifindex, up=True) + attrs)

    def add_address(self, ifindex: int, address: IPv4Interface | IPv6Interface) -> None:
        """Give a netdev an address, unless it has it. IPv6: programs can use it at once, because the kernel does not
        look for a duplicate first, which takes up to two seconds."""
        raw, flags = address.ip.packed, _IFA_NODAD if address.version == 6 else 0
        body = _ADDRESS.pack(_family(address), address.network.prefixlen, flags, _SCOPE_UNIVERSE, ifindex)
        self._add(_NEWADDR, body + attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw))

    def route_by_source(self, ifindex: int, address: IPv4Interface | IPv6Interface, table: int) -> None:
        """Send what has this source address through this netdev: a table with its prefix, and a rule."""
        network, family, bits = address.network, _family(address), address.max_prefixlen
        scope = _SCOPE_LINK if address.version == 4 else _SCOPE_UNIVERSE
        route = (
            _ROUTE.pack(family, network.prefixlen, 0, 0, 0, _STATIC, scope, _UNICAST, 0),
            attribute(_RTA_DST, network.network_address.packed),
            attribute(_RTA_OIF, u32(ifindex)),
            attribute(_RTA_TABLE, u32(table)),
            attribute(_RTA_PREFSRC, address.ip.packed) if address.version == 4 else b"",
        )
        self._change(_NEWROUTE, _F_CREATE | _F_REPLACE, b"".join(route))
        rule = (
            _ROUTE.pack(family, 0, bits, 0, 0, 0, 0, _TO_TABLE, 0),
            attribute(_FRA_SRC, address.ip.packed),
            attribute(_FRA_PRIORITY, u32(table)),
            attribute(_FRA_TABLE, u32(table)),
        )
        self._add(_NEWRULE, b"".join(rule))

    def add_route(
        self,
        ifindex: int,
        destination: IPv4Network | IPv6Network,
        gateway: IPv4Address | IPv6Address | None,
        address: IPv4Interface | IPv6Interface,
        table: int,
    ) -> None:
        """Reach a destination over this netdev and a gateway from this source address, in one table; ``None``: it is on
        the link. The gateway need not be in the prefix of the address."""
        family = _family(address)
        scope = _SCOPE_LINK if gateway is None and family == socket.AF_INET else _SCOPE_UNIVERSE
        flags = _ONLINK if gateway is not None and gateway not in address.network else 0
        route = (
            _ROUTE.pack(family, destination.prefixlen, 0, 0, 0, _STATIC, scope, _UNICAST, flags),
            attribute(_RTA_DST, destination.network_address.packed) if destination.prefixlen else b"",
            attribute(_RTA_OIF, u32(ifindex)),
            b"" if gateway is None else attribute(_RTA_GATEWAY, gateway.packed),
            attribute(_RTA_TABLE, u32(table)),
            attribute(_RTA_PREFSRC, address.ip.packed) if address.version == 4 else b"",
        )
        self._change(_NEWROUTE, _F_CREATE | _F_REPLACE, b"".join(route))

    def ask_for(self, ifindex: int, address: IPv4Address | IPv6Address) -> bool:
        """Let the kernel ask on this netdev who has an address, by ARP or neighbor discovery, and return at once;
        ``False`` if an administrator has entered the answer."""
        if self._neighbors().get((ifindex, address), (0, b""))[0] & _FIXED:
            return False
        self.forget(ifindex, address)
        body = _NEIGHBOR.pack(_version_family(address.version), ifindex, 0, _USE, 0)
        self._change(_NEWNEIGH, _F_CREATE | _F_REPLACE, body + attribute(_NDA_DST, address.packed))
        return True

    def answered(self) -> dict[tuple[int, IPv4Address | IPv6Address], bytes]:
        """The MAC address that has answered, by netdev and address that was asked for."""
        return {key: mac for key, (state, mac) in self._neighbors().items() if state & _REACHABLE and mac}

    def forget(self, ifindex: int, address: IPv4Address | IPv6Address) -> None:
        """Remove the answer, or the question that nobody has answered."""
        body = _NEIGHBOR.pack(_version_family(address.version), ifindex, 0, 0, 0)
        try:
            self._change(_DELNEIGH, 0, body + attribute(_NDA_DST, address.packed))
        except NetlinkRefusedError as error:
            if error.code != ENOENT:
                raise

    def _neighbors(self) -> dict[tuple[int, IPv4Address | IPv6Address], tuple[int, bytes]]:
        """State and MAC address."""
        dumped = self.dump(_GETNEIGH, _NEIGHBOR.pack(socket.AF_UNSPEC, 0, 0, 0, 0), _neighbor_of)
        return dict(one for one in dumped if one is not None)

    def _add(self, kind: int, body: bytes) -> None:
        try:
            self._change(kind, _F_CREATE | _F_EXCLUSIVE, body)
        except NetlinkRefusedError as error:
            if error.code != EEXIST:
                raise


def _link(ifindex: int, *, up: bool) -> bytes:
    return _LINK.pack(socket.AF_UNSPEC, 0, ifindex, _IFF_UP if up else 0, _IFF_UP)


def _neighbor_of(
    payload: bytes,
) -> tuple[tuple[int, IPv4Address | IPv6Address], tuple[int, bytes]] | None:
    family, ifindex, state, _, _ = _NEIGHBOR.unpack_from(payload)
    attrs = attributes(payload, _NEIGHBOR.size)
    raw = attrs.get(_NDA_DST)
    if family not in (socket.AF_INET, socket.AF_INET6) or raw is None:
        return None
    return (ifindex, ip_address(raw)), (state, attrs.get(_NDA_LLADDR, b""))


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode("utf-8", "surrogateescape") + b"\0")


def _family(address: IPv4Interface | IPv6Interface) -> int:
    return _version_family(address.version)


def _version_family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6
