"""Which card is behind a PF: permanent MAC addresses, and NICs that moved to another PCI address.

A permanent MAC address is read once for a netdev, because the kernel answers under a lock that drivers hold for
seconds: again only for a PF, netdev or current MAC address that is new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from nodeagent.model import Function, Link

ReadMacs = Callable[[], Mapping[str, str | None]]
"""Returns the permanent MAC addresses by PCI address; empty if the kernel does not answer."""

_ETHERNET = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class PermanentMacs:
    """Adds the permanent MAC addresses to links. ``read`` of ``None``: a recorded machine, where the current address
    is the only one."""

    def __init__(self, read: ReadMacs | None = None) -> None:
        self._read = read
        self._known: dict[tuple[str, str, str | None], str | None] = {}

    def identified(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return the links with their permanent MAC addresses. Blocks."""
        links = tuple(links)
        if self._read is None:
            return tuple(replace(link, permanent_mac=_ethernet(link.mac)) for link in links)
        known = self._known
        if any(_key(link) not in known for link in links) and (macs := self._read()):
            known = self._known = {_key(link): _ethernet(macs.get(link.pci_address)) for link in links}
        return tuple(replace(link, permanent_mac=known.get(_key(link))) for link in links)


def moved(known: Mapping[str, str], links: Iterable[Link], functions: Iterable[Function]) -> frozenset[str]:
    """Return the addresses that NICs had before they moved: another PF has the permanent MAC address now.

    ``known`` are permanent MAC addresses by the PCI address at which each was seen last.
    """
    present = {function.pci_address for function in functions}
    macs = {link.permanent_mac for link in links}
    return frozenset(address for address, mac in known.items() if address not in present and mac in macs)


def without(functions: Iterable[Function], addresses: frozenset[str]) -> tuple[Function, ...]:
    """Return the functions without these PFs and their VFs."""
    return tuple(
        function
        for function in functions
        if function.pci_address not in addresses and function.parent not in addresses
    )


def _key(link: Link) -> tuple[str, str, str | None]:
    return link.pci_address, link.netdev, link.mac


def _ethernet(mac: str | None) -> str | None:
    """``None`` for the address of IPoIB, whose first bytes change, and for one of zeros."""
    mac = mac.lower() if mac else ""
    return mac if _ETHERNET.fullmatch(mac) and mac.strip("0:") else None
