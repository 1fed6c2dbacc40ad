"""Find the netdevs of the host's default route, down to the physical ones.

``/proc/net/route`` names only the upper netdev, for example a bond or a VLAN; the netdevs below it count too. For a
multipath IPv4 route the kernel prints only the first hop there.
"""

from __future__ import annotations

from nodeagent.host.sysfs import NET, SysfsScan

# include/uapi/linux/route.h
_RTF_UP = 0x0001
_RTF_REJECT = 0x0200


def default_route_netdevs(sysfs: SysfsScan) -> frozenset[str]:
    """The outgoing netdevs of all default routes of the main table, and all netdevs below them."""
    uppers = _v4(sysfs.read(sysfs.tree.text, "/proc/net/route") or "")
    uppers |= _v6(sysfs.read(sysfs.tree.text, "/proc/net/ipv6_route") or "")
    netdevs: set[str] = set()
    todo = list(uppers)
    while todo:
        netdev = todo.pop()
        if netdev not in netdevs:
            netdevs.add(netdev)
            todo.extend(_under(sysfs, netdev))
    return frozenset(netdevs)


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
