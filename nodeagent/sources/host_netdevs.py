"""The netdevs that the host itself needs: those of its default routes and of the Node's addresses, and all below them.

``/proc/net/route`` names only the upper netdev, for example a bond or a VLAN; the netdevs below it count too. For a
multipath IPv4 route the kernel prints only the first hop there.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from nodeagent.host.sysfs import NET, SysfsScan

# include/uapi/linux/route.h
_RTF_UP = 0x0001
_RTF_REJECT = 0x0200


class HostNetdevs(NamedTuple):
    """The netdevs that the host itself needs, and all netdevs below them.

    ``routed``: the outgoing ones of all default routes of the main table; whether each carries them below a bond alone.
    ``of_node``: those that an address of the Node may be on.
    """

    routed: Mapping[str, bool]
    of_node: Collection[str] = ()


def host_netdevs(sysfs: SysfsScan, node_addresses: Collection[str] = ()) -> HostNetdevs:
    """Read the host's netdevs. ``node_addresses`` are those by which the cluster reaches the Node, as texts.

    The kernel's files tell of which netdev an IPv6 address is. For IPv4 they tell of the networks of each netdev alone:
    all netdevs in the network of the address count, unless one of them has the default route too.
    """
    routes = sysfs.read(sysfs.tree.text, "/proc/net/route") or ""
    uppers = _v4(routes) | _v6(sysfs.read(sysfs.tree.text, "/proc/net/ipv6_route") or "")
    routed = _with_lowers(sysfs, uppers)
    own: set[str] = set()
    for text in node_addresses:
        with suppress(ValueError):  # no address
            found = _with_address(sysfs, ip_address(text), routes)
            own |= found if found.isdisjoint(uppers) else set()
    return HostNetdevs(routed, frozenset(_with_lowers(sysfs, own)))


def _with_lowers(sysfs: SysfsScan, uppers: Iterable[str]) -> dict[str, bool]:
    """The netdevs and those below them: whether each is below a bond alone."""
    found: dict[str, bool] = {}
    todo = [(upper, False) for upper in uppers]
    while todo:
        netdev, bonded = todo.pop()
        if found.get(netdev, True) and found.get(netdev) is not bonded:
            found[netdev] = bonded
            is_bond = "bonding" in sysfs.names(f"{NET}/{netdev}")
            todo.extend((under, bonded or is_bond) for under in _under(sysfs, netdev))
    return found


def _with_address(sysfs: SysfsScan, address: IPv4Address | IPv6Address, routes: str) -> set[str]:
    """The netdevs that may have an address of the host."""
    if isinstance(address, IPv6Address):
        # Columns: address, index, length of the prefix, scope, flags, netdev.
        rows = [
            line.split() for line in (sysfs.read(sysfs.tree.text, "/proc/net/if_inet6") or "").splitlines()
        ]
        return {row[5] for row in rows if len(row) == 6 and row[0] == address.packed.hex()}
    netdevs: dict[int, set[str]] = {}
    for row in (line.split() for line in routes.splitlines()):
        if len(row) > 7 and row[2] == "00000000" and _usable(row[3]):
            destination, mask = _number(row[1]), _number(row[7])
            if mask and int(address) & mask == destination:
                netdevs.setdefault(mask, set()).add(row[0])
    return netdevs[max(netdevs)] if netdevs else set()


def _number(text: str) -> int | None:
    """An address or mask of the table of routes, which prints the bytes of the network in the machine's order."""
    try:
        return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")
    except (ValueError, OverflowError):
        return None


def _v4(table: str) -> set[str]:
    """Columns: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., numbers in hex."""
    rows = [line.split() for line in table.splitlines()]
    return {row[0] for row in rows if row[1:2] == row[7:8] == ["00000000"] and _usable(row[3])}


def _v6(table: str) -> set[str]:
    """Columns: destination, its length, source, its length, next hop, metric, counts (2), flags, netdev."""
    rows = [line.split() for line in table.splitlines()]
    return {row[9] for row in rows if len(row) == 10 and row[:2] == ["0" * 32, "00"] and _usable(row[8])}


def _usable(flags: str) -> bool:
    try:
        return int(flags, 16) & (_RTF_UP | _RTF_REJECT) == _RTF_UP
    except ValueError:
        return False


def _under(sysfs: SysfsScan, netdev: str) -> list[str]:
    """The netdevs directly under a bond, team, bridge, VLAN, macvlan, or an Open vSwitch bridge."""
    folder = f"{NET}/{netdev}"
    names = sysfs.names(folder)
    under = [name.removeprefix("lower_") for name in names if name.startswith("lower_")]
    # Kernels since 3.14 link every lower netdev; these two serve a captured tree without the links.
    if not under and "bonding" in names:
        under = (sysfs.read(sysfs.tree.text, f"{folder}/bonding/slaves") or "").split()
    if not under and "brif" in names:
        under = list(sysfs.names(f"{folder}/brif"))
    if not under and "device" not in names:
        under = _under_openvswitch(sysfs, folder)
    return under


def _under_openvswitch(sysfs: SysfsScan, folder: str) -> list[str]:
    """Ports of the datapath with the bridge's MAC address.

    The kernel does not link an Open vSwitch bridge to its ports; their master is the datapath. But a bridge that
    took over the default route of a NIC has its MAC address too.
    """
    mac = sysfs.read(sysfs.tree.text, f"{folder}/address")
    ports = [
        name.removeprefix("lower_") for name in sysfs.names(f"{NET}/ovs-system") if name.startswith("lower_")
    ]
    return [port for port in ports if mac and sysfs.read(sysfs.tree.text, f"{NET}/{port}/address") == mac]
