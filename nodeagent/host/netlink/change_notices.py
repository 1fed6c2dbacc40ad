"""Notices of changes that an administrator makes to a netdev: set up or down, MTU, and the settings of ethtool.

The kernel announces a change of flags or MTU on rtnetlink, and a change by ethtool (netlink or ioctl) in the group
``monitor`` of the family ``ethtool``. Each notice names the netdev and the setting; the values do not matter here.
A dropped message (ENOBUFS) is a lost notice and no error.

The sockets belong to the network namespace of the thread that makes them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from errno import ENOBUFS
from typing import Literal, NamedTuple, get_args

from nodeagent.host.fd import Closing
from nodeagent.host.netlink.message import NetlinkError, attributes, messages, number
from nodeagent.host.netlink.socket import GENERIC, HEADER_BYTES, GenericSocket, subscribed

Setting = Literal[
    "admin", "mtu", "modes", "features", "driver_flags", "rings", "channels", "pause", "eee", "fec"
]
SETTINGS: tuple[Setting, ...] = get_args(Setting)

_RTMGRP_LINK = 1  # include/uapi/linux/rtnetlink.h
_RTM_NEWLINK = 16
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_IFF_UP = 1
_IFLA_MTU = 4
_ETHTOOL_NOTICES: dict[int, Setting] = {
    5: "modes",
    13: "features",
    15: "driver_flags",
    17: "rings",
    19: "channels",
    23: "pause",
    25: "eee",
    31: "fec",
}
"""ETHTOOL_MSG_*_NTF, include/uapi/linux/ethtool_netlink.h."""
_HEADER, _DEV_INDEX = 1, 1
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1  # include/uapi/linux/netlink.h
_DATAGRAM_MAX = 32 * 1024
_WHAT = "notices of changes"
_DRAIN_MAX = 1024
"""Bounds the time that a storm of notices holds the event loop."""


class ChangeNotice(NamedTuple):
    """One changed setting of the netdev with this ifindex."""

    ifindex: int
    setting: Setting


class ChangeNotices(Closing):
    """Both subscriptions. ``netdevs`` and ``ethtool`` are their non-blocking sockets; without the family ``ethtool``
    (Linux before 5.6) the second is ``None``."""

    def __init__(self) -> None:
        self.overruns = 0
        self._known: dict[int, tuple[bool, int | None]] = {}
        self.netdevs = subscribed(socket.NETLINK_ROUTE, _RTMGRP_LINK, _WHAT)
        self.ethtool: socket.socket | None = None
        try:
            with GenericSocket("ethtool") as control:
                self._family = control.kind
                group = control.groups().get("monitor")
            if group is not None:
                self.ethtool = subscribed(GENERIC, 0, _WHAT)
                self.ethtool.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except NetlinkError:
            pass

    def close(self) -> None:
        self.netdevs.close()
        if self.ethtool is not None:
            self.ethtool.close()

    def read(self, ifindexes: frozenset[int]) -> Iterator[ChangeNotice]:
        """Drain both sockets, and yield the notices about these netdevs."""
        for payload in self._payloads(self.netdevs, _RTM_NEWLINK):
            if len(payload) >= _IFINFO.size:
                _, _, ifindex, flags, _ = _IFINFO.unpack_from(payload)
                if ifindex in ifindexes:
                    yield from self._of_netdev(ifindex, bool(flags & _IFF_UP), payload)
        if self.ethtool is not None:
            for payload in self._payloads(self.ethtool, self._family):
                setting = _ETHTOOL_NOTICES.get(payload[0]) if len(payload) >= HEADER_BYTES else None
                ifindex = _device(payload) if setting is not None else None
                if setting is not None and ifindex in ifindexes:
                    yield ChangeNotice(ifindex, setting)

    def _of_netdev(self, ifindex: int, up: bool, payload: bytes) -> Iterator[ChangeNotice]:
        mtu = number(attributes(payload, _IFINFO.size).get(_IFLA_MTU))
        before = self._known.get(ifindex)
        self._known[ifindex] = up, mtu
        if before is not None and before[0] != up:
            yield ChangeNotice(ifindex, "admin")
        if before is not None and mtu is not None and before[1] not in (None, mtu):
            yield ChangeNotice(ifindex, "mtu")

    def _payloads(self, subscribed: socket.socket, kind: int) -> Iterator[bytes]:
        for _ in range(_DRAIN_MAX):
            try:
                data, sender = subscribed.recvfrom(_DATAGRAM_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != ENOBUFS:
                    raise NetlinkError(f"notices of changes: {error.strerror}") from error
                self.overruns += 1
                continue
            if sender[0] == 0:  # the kernel; messages of other processes are ignored
                yield from (payload for type_, _, _, payload in messages(data) if type_ == kind)


def _device(payload: bytes) -> int | None:
    """The ifindex in a notice of ethtool."""
    header = attributes(payload, HEADER_BYTES).get(_HEADER)
    return number(attributes(header).get(_DEV_INDEX)) if header is not None else None
