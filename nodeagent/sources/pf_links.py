"""Read the links from sysfs: the state of each PF's netdev.

On InfiniBand the RDMA port decides, because RDMA works without IPoIB, whose netdev is often down: carrier means
that the port is active, and the speed is the port's rate. Without an IPoIB netdev the link has the name of the RDMA
device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from nodeagent.facts.model import Function, Link
from nodeagent.host.sysfs import SysfsScan, Tree

_PCI = "/sys/bus/pci/devices"
_IFF_UP = 1
_SPEED_UNKNOWN = 0xFFFF_FFFF  # -1 as drivers with an unsigned speed print it
_PORT_ACTIVE = "4"  # of "4: ACTIVE" (enum ib_port_state)


def sweep_links(tree: Tree, functions: Iterable[Function], before: Iterable[Link]) -> tuple[Link, ...]:
    """Read the links again, with one small file for each that is as it was, and three for InfiniBand.

    The kernel refuses to read the carrier of a link that is set down (``carrier_show`` in net/core/net-sysfs.c), so a
    carrier that can be read and is that of before means the same administrative state too. A new link, or one whose
    carrier changed, is read in full. The rest, such as operstate, changes with the next ``scan``, which also reports
    unreadable files.
    """
    known = {link.pci_address: link for link in before}
    default_route = frozenset(link.netdev for link in known.values() if link.default_route)
    return read_links(SysfsScan(tree), functions, default_route, known)


def read_links(
    sysfs: SysfsScan,
    functions: Iterable[Function],
    default_route: frozenset[str],
    known: dict[str, Link] | None = None,
) -> tuple[Link, ...]:
    """The links of the PFs, sorted by name; with ``known`` (by PCI address) at the cost of ``sweep_links``."""
    read = []
    for pf in functions:
        name = pf.netdev
        if name is None and pf.link_type == "infiniband" and pf.rdma is not None:
            name = pf.rdma.device
        if pf.parent is None and name is not None:
            before = known.get(pf.pci_address) if known else None
            link = _link(sysfs, pf, name, name in default_route, before)
            if link is not None:
                read.append(link)
    return tuple(sorted(read, key=lambda link: link.netdev))


def _link(sysfs: SysfsScan, pf: Function, name: str, default_route: bool, before: Link | None) -> Link | None:
    """``None`` if the netdev does not exist any more."""
    tree = sysfs.tree
    port = f"{_PCI}/{pf.pci_address}/infiniband/{pf.rdma.device}/ports/1" if pf.rdma else None
    state = sysfs.read(tree.text, f"{port}/state") if port and pf.link_type == "infiniband" else None
    if state is None and before is not None and before.netdev == name and before.admin_up:
        carrier = _carrier(sysfs, name)
        if carrier is not None and carrier == before.carrier:
            return before
    flags = sysfs.netdev(tree.integer, name, "flags") if pf.netdev else _IFF_UP
    if flags is None:
        return None
    admin_up = bool(flags & _IFF_UP)
    if state is not None:
        carrier = state.startswith(_PORT_ACTIVE)
    elif admin_up:
        carrier = _carrier(sysfs, name)
    else:
        carrier = None
    operstate = sysfs.netdev(tree.text, name, "operstate") if pf.netdev else None
    if before is not None and before.netdev == name and before.carrier == carrier:
        if before.admin_up == admin_up and before.operstate == operstate:
            return before
        return replace(before, admin_up=admin_up, operstate=operstate)
    return Link(
        netdev=name,
        pci_address=pf.pci_address,
        mac=sysfs.netdev(tree.text, name, "address") if pf.netdev else None,
        admin_up=admin_up,
        carrier=carrier,
        operstate=operstate,
        speed_mbps=_rate(sysfs, f"{port}/rate") if state is not None else _speed(sysfs, name, admin_up),
        mtu=sysfs.netdev(tree.integer, name, "mtu") if pf.netdev else None,
        default_route=default_route,
        permanent_mac=before.permanent_mac if before is not None and before.netdev == name else None,
    )


def _carrier(sysfs: SysfsScan, name: str) -> bool | None:
    """``None`` if the kernel does not report it."""
    digit = sysfs.netdev(sysfs.tree.integer, name, "carrier")
    return None if digit is None else digit == 1


def _speed(sysfs: SysfsScan, name: str, admin_up: bool) -> int | None:
    speed = sysfs.netdev(sysfs.tree.integer, name, "speed") if admin_up else None
    return speed if speed is not None and 0 < speed < _SPEED_UNKNOWN else None


def _rate(sysfs: SysfsScan, path: str) -> int | None:
    """The rate in ``400 Gb/sec (4X NDR)`` or ``2.5 Gb/sec (1X SDR)``."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", sysfs.read(sysfs.tree.text, path) or "")
    return round(float(match[1]) * 1000) if match else None
