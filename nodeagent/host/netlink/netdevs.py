"""The netdevs of a network namespace by rtnetlink: properties, counters and the traffic of their VFs.

One dump (RTM_GETLINK) returns all netdevs with some 1.5 KiB each; decoding skips the attributes that no field
needs. The socket lists the netdevs of its own network namespace, which are the ones that AF_PACKET can bind;
sysfs shows the namespace in which it was mounted. A dump costs about 1 ms for 70 netdevs and waits for the
kernel's RTNL lock while a driver holds it, so call it in a thread. VF traffic is read one PF at a time: drivers
ask their firmware for each VF while they hold that lock.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.host.netlink.message import (
    ATTRIBUTE,
    TYPE_BITS,
    NetlinkError,
    attribute,
    attribute_text,
    attributes,
    listed_attributes,
    number,
    u32,
)
from nodeagent.host.netlink.socket import NetlinkSocket

_GETLINK = 18  # include/uapi/linux/rtnetlink.h
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, ARPHRD, ifindex, flags, change
# RTEXT_FILTER_*; the latter leaves out statistics of address families, and neither IFLA_STATS nor IFLA_STATS64
_FILTER_VF, _FILTER_SKIP_STATISTICS = 1, 8

# include/uapi/linux/if_link.h
_ADDRESS, _NAME, _MTU, _MASTER, _QUEUE, _OPERSTATE, _LINKINFO = 1, 3, 4, 10, 13, 16, 18
_VF_LIST, _STATISTICS, _GROUP, _EXT_MASK, _CARRIER, _UP_COUNT, _DOWN_COUNT = 22, 23, 27, 29, 33, 47, 48
_PERMANENT_ADDRESS, _PARENT_NAME, _PARENT_BUS = 54, 56, 57
_SHORT_STATISTICS = 7  # IFLA_STATS, the lower halves of the same counters
_INFO_KIND, _INFO_SLAVE_KIND = 1, 4
_PROPERTIES = frozenset(
    (
        *(_ADDRESS, _NAME, _MTU, _MASTER, _LINKINFO, _CARRIER),
        *(_PERMANENT_ADDRESS, _PARENT_NAME, _PARENT_BUS, _GROUP),
    )
)
_COUNTED = frozenset((_QUEUE, _OPERSTATE, _STATISTICS, _UP_COUNT, _DOWN_COUNT))
_ALL = _PROPERTIES | _COUNTED

_VF_INFO = 1
_VF_MAC, _VF_VLAN, _VF_SPOOF_CHECK, _VF_LINK_STATE, _VF_STATISTICS, _VF_TRUST = 1, 2, 4, 5, 8, 9
_VF_WORDS = (
    ("spoof_check", _VF_SPOOF_CHECK, ("off", "on")),
    ("link_state", _VF_LINK_STATE, ("auto", "enable", "disable")),
    ("trust", _VF_TRUST, ("off", "on")),
)
_VF_RX_PACKETS, _VF_TX_PACKETS, _VF_RX_BYTES, _VF_TX_BYTES, _VF_RX_DROPPED, _VF_TX_DROPPED = 0, 1, 2, 3, 7, 8

_IFF_UP = 1
_OPER_UP = 6  # IF_OPER_UP
_COUNTERS = struct.Struct("=24Q")  # struct rtnl_link_stats64 as of Linux 4.6
_ANSWER_MAX = 256 * 1024  # a single answer holds all VFs of a PF

ETHERNET = 1  # ARPHRD_ETHER; the loopback's is 772


class Netdev(Struct, frozen=True):
    """``hardware`` is an ARPHRD number. ``kind`` is the software type that rtnetlink names (``veth``, ``tun``,
    ``bond``, …), ``None`` for hardware. ``bus`` is the bus of the parent device; ``pci_address`` is the parent's
    address where that bus is ``pci``. The kernel reports both since 5.14; ``None`` where it does not.
    ``carrier`` is ``None`` while admin down. ``enslaved``: the netdev is a port of a bond, a bridge or
    Open vSwitch; not of a VRF, in which it keeps its addresses and its frames. ``group`` is a number of its makers, 0
    by default.
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
    group: int = 0


class NetdevCounters(Struct, frozen=True):
    """A netdev with its operational state and counters; ``None`` where the kernel reports no value.

    ``counters`` are the first 24 of ``struct rtnl_link_stats64``: packets, bytes, errors and dropped (received
    before sent), multicast, collisions, then received length, over, CRC, frame, FIFO and missed errors, sent
    aborted, carrier, FIFO, heartbeat and window errors, compressed (received before sent), and received
    without a handler.
    """

    netdev: Netdev
    oper_up: bool
    carrier_up: int | None
    carrier_down: int | None
    counters: tuple[int, ...] | None
    queue_length: int | None = None


class VfTraffic(Struct, frozen=True):
    """Traffic of one VF as its PF counts it. ``setup`` holds the PF's settings for the VF, as far as the driver
    reports them: ``mac``, ``vlan``, ``spoof_check``, ``link_state`` and ``trust``."""

    index: int
    rx_packets: int | None
    tx_packets: int | None
    rx_bytes: int | None
    tx_bytes: int | None
    rx_dropped: int | None
    tx_dropped: int | None
    setup: Mapping[str, str]


class Netdevs(NetlinkSocket):
    """A socket of the network namespace in which it was made; use it from one thread at a time."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE, "netdevs", _ANSWER_MAX)
        self._all_netdevs = _request(0, _FILTER_SKIP_STATISTICS)
        self._last: dict[bytes, DecodedLink] = {}
        """The last message of each netdev, by its ifindex in the message."""

    def read(self) -> tuple[Netdev, ...]:
        """All netdevs, sorted by name."""
        return tuple(
            sorted(self.dump(_GETLINK, self._all_netdevs, netdev_of), key=lambda netdev: netdev.name)
        )

    def counters(self) -> list[NetdevCounters]:
        """All netdevs with their counters, in the kernel's order."""
        decoded: dict[bytes, DecodedLink] = {}

        def read(payload: bytes) -> NetdevCounters:
            ifindex = payload[4:8]
            last = self._last.get(ifindex)
            reading = None if last is None else last.again(payload)
            if last is None or reading is None:
                last = decode_link(payload)
                reading = last.reading
            decoded[ifindex] = last
            return reading

        readings = self.dump(_GETLINK, self._all_netdevs, read)
        self._last = decoded
        return readings

    def vfs(self, ifindex: int) -> tuple[VfTraffic, ...]:
        """The traffic of a PF's VFs, by index. Raises ``NetlinkRefusedError``."""
        return vfs_of(self.ask(_GETLINK, _request(ifindex, _FILTER_VF)))


def _request(ifindex: int, mask: int) -> bytes:
    return _LINK.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0) + attribute(_EXT_MASK, u32(mask))


def netdev_of(payload: bytes) -> Netdev:
    """Decode an RTM_NEWLINK message without its counters."""
    return _netdev(payload, _link_attributes(payload, _PROPERTIES))


def netdev_counters(payload: bytes) -> NetdevCounters:
    """Decode an RTM_NEWLINK message with its counters."""
    return decode_link(payload).reading


class DecodedLink(Struct):
    """A decoded message: its size, the octets beside its counters with their places, and the place of the counters."""

    size: int
    beside: tuple[tuple[int, bytes], ...]
    counters_at: int
    reading: NetdevCounters

    def again(self, payload: bytes) -> NetdevCounters | None:
        """Decode the next message of this netdev if it differs in its counters alone, as most do."""
        reading = self.reading
        if reading.counters is None or len(payload) != self.size:
            return None
        for at, octets in self.beside:
            if not payload.startswith(octets, at):
                return None
        return NetdevCounters(
            reading.netdev,
            reading.oper_up,
            reading.carrier_up,
            reading.carrier_down,
            _COUNTERS.unpack_from(payload, self.counters_at),
            reading.queue_length,
        )


def decode_link(payload: bytes) -> DecodedLink:
    attrs = _link_attributes(payload, _ALL)
    counters = attrs.get(_STATISTICS, b"")
    has_counters = len(counters) >= _COUNTERS.size
    reading = NetdevCounters(
        _netdev(payload, attrs),
        number(attrs.get(_OPERSTATE)) == _OPER_UP,
        number(attrs.get(_UP_COUNT)),
        number(attrs.get(_DOWN_COUNT)),
        _COUNTERS.unpack_from(counters) if has_counters else None,
        number(attrs.get(_QUEUE)),
    )
    return DecodedLink(len(payload), *_beside_counters(payload), reading)


def _beside_counters(payload: bytes) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """The octets of a well-formed message beside its counters, each part with its place; and where the last counters
    begin."""
    at, part_at, counters_at = _LINK.size, 0, 0
    beside = []
    while at + 4 <= len(payload):
        length, kind = ATTRIBUTE.unpack_from(payload, at)
        kind &= TYPE_BITS
        if kind in (_STATISTICS, _SHORT_STATISTICS):
            beside.append((part_at, payload[part_at : at + 4]))
            part_at = at + length
            counters_at = at + 4 if kind == _STATISTICS else counters_at
        at += (length + 3) & ~3
    beside.append((part_at, payload[part_at:]))
    return tuple(beside), counters_at


def _link_attributes(payload: bytes, wanted: frozenset[int]) -> dict[int, bytes]:
    """As ``message.attributes``, but faster: a netdev has some 50 attributes and few of them are wanted."""
    size = len(payload)
    if size < _LINK.size:
        raise NetlinkError("a link message is cut short")
    attrs: dict[int, bytes] = {}
    at = end = _LINK.size
    unpack = ATTRIBUTE.unpack_from
    while at + 4 <= size:
        length, kind = unpack(payload, at)
        kind &= TYPE_BITS
        end = at + length
        if kind in wanted:
            attrs[kind] = payload[at + 4 : end]
        if length < 4:
            raise NetlinkError("a netlink attribute is cut short")
        at = (end + 3) & ~3
    if end > size:
        raise NetlinkError("a netlink attribute is cut short")
    return attrs


def _netdev(payload: bytes, attrs: Mapping[int, bytes]) -> Netdev:
    _, hardware, ifindex, flags, _ = _LINK.unpack_from(payload)
    up = bool(flags & _IFF_UP)
    info = attributes(attrs.get(_LINKINFO, b""))
    bus = attribute_text(attrs.get(_PARENT_BUS))
    carrier = attrs.get(_CARRIER)
    master = attrs.get(_MASTER)
    return Netdev(
        ifindex,
        attribute_text(attrs.get(_NAME)) or "",
        hardware,
        attribute_text(info.get(_INFO_KIND)),
        attrs.get(_ADDRESS) or None,
        attrs.get(_PERMANENT_ADDRESS) or None,
        number(attrs.get(_MTU)),
        up,
        bool(carrier[0]) if up and carrier else None,
        bus,
        attribute_text(attrs.get(_PARENT_NAME)) if bus == "pci" else None,
        master is not None and any(master) and attribute_text(info.get(_INFO_SLAVE_KIND)) != "vrf",
        number(attrs.get(_GROUP)) or 0,
    )


def vfs_of(payload: bytes) -> tuple[VfTraffic, ...]:
    """Decode the VFs of an RTM_NEWLINK message; VFs without counters are left out."""
    vfs = []
    for kind, info in listed_attributes(attributes(payload, _LINK.size).get(_VF_LIST, b"")):
        attrs = attributes(info) if kind == _VF_INFO else {}
        index, statistics = attrs.get(_VF_MAC, b""), attrs.get(_VF_STATISTICS)
        if len(index) < 4 or statistics is None:
            continue
        values = attributes(statistics)
        vfs.append(
            VfTraffic(
                index=number(index[:4]) or 0,
                rx_packets=number(values.get(_VF_RX_PACKETS)),
                tx_packets=number(values.get(_VF_TX_PACKETS)),
                rx_bytes=number(values.get(_VF_RX_BYTES)),
                tx_bytes=number(values.get(_VF_TX_BYTES)),
                rx_dropped=number(values.get(_VF_RX_DROPPED)),
                tx_dropped=number(values.get(_VF_TX_DROPPED)),
                setup=dict(_setup_of(attrs)),
            )
        )
    return tuple(vfs)


def _setup_of(attrs: Mapping[int, bytes]) -> Iterator[tuple[str, str]]:
    """Each attribute begins with the VF's index. All ones mean that the driver reports no value."""
    if len(mac := attrs.get(_VF_MAC, b"")[4:10]) == 6:
        yield "mac", mac.hex(":")
    if (vlan := number(attrs.get(_VF_VLAN, b"")[4:8])) is not None:
        yield "vlan", str(vlan)
    for name, kind, words in _VF_WORDS:
        setting = number(attrs.get(kind, b"")[4:8])
        if setting is not None and setting < len(words):
            yield name, words[setting]
