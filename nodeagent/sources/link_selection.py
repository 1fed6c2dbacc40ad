"""Select the netdevs that are links, by one rule for LLDP, health and metrics.

Without any list the links are the physical Ethernet NICs: the netdev of each PF, but no VFs, representors, bridges,
bonds or loopback. With lists a link matches all of them. A software netdev (veth, tap) or a VF is a link only if it
is named: by its name, a software netdev also by its kind as the driver, a VF also by its exact PCI address. So
``drivers: [mlx5_core]`` does not select 128 VFs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent.facts.model import Function
from nodeagent.host.netlink.netdevs import ETHERNET, Netdev
from nodeagent.sources.source_settings import LinkSelect


@dataclass(frozen=True, slots=True)
class SelectedLink:
    """A netdev that is a link, and its PCI function, if any. Without a function ``driver`` is the kind of a software
    netdev.
    """

    netdev: Netdev
    function: Function | None
    driver: str | None

    @property
    def name(self) -> str:
        return self.netdev.name

    @property
    def pci_address(self) -> str | None:
        return self.function.pci_address if self.function else self.netdev.pci_address


def select(
    wanted: LinkSelect, netdevs: Iterable[Netdev], functions: Iterable[Function]
) -> tuple[SelectedLink, ...]:
    """The links among ``netdevs``, in their order."""
    by_netdev: dict[str, Function] = {}
    by_address: dict[str, Function] = {}
    for function in functions:
        by_address[function.pci_address] = function
        if function.netdev is not None:
            by_netdev[function.netdev] = function
    selected = []
    for netdev in netdevs:
        owner = by_netdev.get(netdev.name) or by_address.get(netdev.pci_address or "")
        link = SelectedLink(netdev, owner, owner.driver if owner else netdev.kind)
        if _matches(wanted, link):
            selected.append(link)
    return tuple(selected)


def _matches(wanted: LinkSelect, link: SelectedLink) -> bool:
    address = link.pci_address or ""
    if link.netdev.hardware != ETHERNET or _any((link.name, address), wanted.exclude):
        return False
    lists = (
        (wanted.netdevs, link.name),
        (wanted.drivers, link.driver or ""),
        (wanted.pci_addresses, address),
    )
    if not all(_any((value,), globs) for globs, value in lists if globs):
        return False
    named = bool(wanted.netdevs) or address in wanted.pci_addresses
    return named or _physical(link) or (link.netdev.kind is not None and bool(wanted.drivers))


def _physical(link: SelectedLink) -> bool:
    """A NIC that is a PCI function, or on a platform bus (virtio, vmbus, Arm).

    Other netdevs of a PF are representors of its VFs. A netdev on USB belongs to the BMC.
    """
    pf = link.function
    if pf is not None:
        return pf.parent is None and pf.netdev == link.name and pf.link_type == "ethernet"
    return link.netdev.kind is None and link.netdev.bus not in (None, "pci", "usb")


def _any(values: Iterable[str], globs: Iterable[str]) -> bool:
    return any(value and fnmatchcase(value, glob) for value in values for glob in globs)
