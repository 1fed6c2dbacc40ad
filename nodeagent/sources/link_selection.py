"""Which netdevs are links: one rule for everything that watches them (LLDP, health, metrics).

Without any list the links are the physical Ethernet NICs: the netdev that stands for each PF, and no VFs,
representors, bridges, bonds or loopback. With lists a link matches all of those given. A software
netdev (veth, tap) or a VF is a link only where it is named: by its name, a software netdev also by its kind
as the driver, a VF also by its exact PCI address; ``drivers: [mlx5_core]`` is not meant to open 128 VFs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent.host.netlink.netdevs import ETHERNET, Netdev
from nodeagent.model import Function
from nodeagent.sources.source_settings import LinkSelect


@dataclass(frozen=True, slots=True)
class Selected:
    """A netdev that is a link, and the PCI function that it is of, if any. ``driver`` is a software netdev's
    kind where there is no function.
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
) -> tuple[Selected, ...]:
    """The links among ``netdevs``, in their order."""
    by_netdev: dict[str, Function] = {}
    by_address: dict[str, Function] = {}
    for function in functions:
        by_address[function.pci_address] = function
        if function.netdev is not None:
            by_netdev[function.netdev] = function
    found = []
    for netdev in netdevs:
        owner = by_netdev.get(netdev.name) or by_address.get(netdev.pci_address or "")
        one = Selected(netdev, owner, owner.driver if owner else netdev.kind)
        if _matches(wanted, one):
            found.append(one)
    return tuple(found)


def _matches(wanted: LinkSelect, one: Selected) -> bool:
    address = one.pci_address or ""
    if one.netdev.hardware != ETHERNET or _any((one.name, address), wanted.exclude):
        return False
    asked = (
        (wanted.netdevs, one.name),
        (wanted.drivers, one.driver or ""),
        (wanted.pci_addresses, address),
    )
    if not all(_any((value,), globs) for globs, value in asked if globs):
        return False
    named = bool(wanted.netdevs) or address in wanted.pci_addresses
    return named or _physical(one) or (one.netdev.kind is not None and bool(wanted.drivers))


def _physical(one: Selected) -> bool:
    """A NIC that is a PCI function, or on a platform bus of its own (virtio, vmbus, Arm).

    A PF's other netdevs are the representors of its VFs. On USB sits the BMC.
    """
    pf = one.function
    if pf is not None:
        return pf.parent is None and pf.netdev == one.name and pf.link_type == "ethernet"
    return one.netdev.kind is None and one.netdev.bus not in (None, "pci", "usb")


def _any(values: Iterable[str], globs: Iterable[str]) -> bool:
    return any(value and fnmatchcase(value, glob) for value in values for glob in globs)
