"""The netdevs of pods that have shares of an HCA: a macvlan on the PF, for each share its own. Pure.

A share is ``<PCI address of the PF>::<n>``. Its netdev is made in the pod's namespace and is gone with it. The kernel
keeps for us which share it is of: the group of the netdev (IFLA_GROUP) is made of the two, in the same request as the
netdev. So no file has to be right after a crash.

The MAC address is made of the PF's and the number, so that it is the same again: IPv6 addresses follow it.
"""

from __future__ import annotations

import re

from nodeagent.host.netlink.netdevs import Netdev

SHARE_KIND = "macvlan"
_DEVICE = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])::(?P<number>[0-9]{1,4})"
)
_DOMAIN_MAX, _NUMBER_MAX = 0x1F, 0x3FF
_OURS = 1 << 31
"""In the group of each netdev that is made here; that of others is 0 by default."""
_LOCAL = 0x02
"""The bit of a MAC address that is not a manufacturer's (IEEE 802)."""


def is_share(device: str) -> bool:
    """Whether a device is a share of an HCA, and no VF."""
    return "::" in device


def share_group(device: str) -> int | None:
    """Return the group of the netdev of a share, ``None`` for one that has no place in its 32 bits.

    >>> hex(share_group("0000:18:00.1::5"))
    '0x80600405'
    >>> share_group("10000:18:00.1::5") is None
    True
    """
    found = _DEVICE.fullmatch(device)
    if found is None:
        return None
    domain, number = int(found["domain"], 16), int(found["number"])
    if domain > _DOMAIN_MAX or number > _NUMBER_MAX:
        return None
    place = int(found["bus"], 16) << 8 | int(found["slot"], 16) << 3 | int(found["function"])
    return _OURS | domain << 26 | place << 10 | number


def share_of(netdev: Netdev) -> str | None:
    """Return the share that a netdev is of, ``None`` for one of somebody else."""
    if netdev.kind != SHARE_KIND or not netdev.group & _OURS:
        return None
    place = netdev.group >> 10 & 0xFFFF
    address = f"{netdev.group >> 26 & _DOMAIN_MAX:04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return f"{address}::{netdev.group & _NUMBER_MAX}"


def share_mac(pf: str, number: int) -> str:
    """Return the MAC address of the netdev of a share on a PF with this one.

    >>> share_mac("0c:42:a1:16:05:4c", 5)
    '02:05:a1:16:05:4c'
    >>> share_mac("0c:42:a1:16:05:4c", 300)
    '06:2c:a1:16:05:4c'
    """
    first = _LOCAL | number >> 8 << 2
    return f"{first:02x}:{number & 0xFF:02x}:{pf[6:]}"
