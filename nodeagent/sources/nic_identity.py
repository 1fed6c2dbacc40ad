"""Which card is behind a PF (``facts/card_identity.py``): permanent MACs, and NICs that moved or are forgotten.

The kernel reports permanent MAC addresses under a lock that drivers hold for seconds. So they are read once for a
netdev (again only for a PF, netdev or current MAC address that is new), with a time limit. Until they are read, the PCI
address alone identifies a NIC of Ethernet. The node GUID of InfiniBand is read with each scan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from nodeagent.facts.card_identity import card_identity, ethernet_mac
from nodeagent.facts.model import Function, Link

ReadMacs = Callable[[], Awaitable[Mapping[str, str | None]]]
"""Returns the permanent MAC addresses by PCI address; empty if the kernel does not answer."""


class NicIdentities:
    """The identities of the NICs of one machine. Its methods that are not ``async`` may be called from any thread."""

    def __init__(self, read: ReadMacs | None = None) -> None:
        """``read`` of ``None``: a recorded machine, where the current MAC address is the only one."""
        self.forgotten: set[str] = set()
        """PCI addresses of PFs and VFs that do not stay in the facts when they are missing."""
        self._read = read
        self._macs: Mapping[str, str | None] = {}
        self._seen: set[tuple[str, str, str | None]] | None = None

    async def start(self) -> None:
        """Read the permanent MAC addresses before the first scan."""
        if self._read is not None and self._seen is None:
            self._macs = await self._read()

    async def learn(self, links: Iterable[Link]) -> bool:
        """Read the permanent MAC addresses if a link is new. Return whether they were read."""
        keys = {(link.pci_address, link.netdev, link.mac) for link in links}
        if self._read is None or (self._seen is not None and keys <= self._seen):
            return False
        first = self._seen is None and bool(self._macs)
        if not first:
            macs = await self._read()
            if not macs:
                return False
            self._macs = macs
        self._seen = keys
        return not first

    def identified(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return the links with their permanent MAC addresses, as far as they were read."""
        return with_permanent_macs(links, None if self._read is None else self._macs)

    def known(
        self,
        functions: Iterable[Function],
        identities: Mapping[str, str],
        present: Sequence[Function],
        links: Sequence[Link],
        *,
        first: bool,
    ) -> tuple[tuple[Function, ...], dict[str, str]]:
        """Return the functions that stay if they are missing, and the identities by PCI address.

        ``functions`` and ``identities`` are the last facts, ``present`` and ``links`` the new ones. A NIC that is at
        another address now is not missing. ``first``: the last facts are those of an earlier agent, and a PF that is
        here may have fewer VFs since.
        """
        here = {function.pci_address for function in present}
        by_address = {link.pci_address: link for link in links}
        pfs = {pf.pci_address: pf for pf in present if pf.parent is None}
        read = {address: card_identity(pf, by_address.get(address)) for address, pf in pfs.items()}
        now = {address: card for address, card in read.items() if card is not None}
        found = set(now.values())
        gone = {address for address, card in identities.items() if address not in here and card in found}
        gone |= self.forgotten
        kept = tuple(
            function
            for function in functions
            if function.pci_address not in gone
            and function.parent not in gone
            and not (first and function.parent in here)
        )
        return kept, {address: card for address, card in identities.items() if address not in gone} | now


def with_permanent_macs(links: Iterable[Link], macs: Mapping[str, str | None] | None) -> tuple[Link, ...]:
    """Return the links with these permanent MAC addresses, by PCI address. Without ``macs`` the machine is recorded,
    and its current addresses count."""
    return tuple(
        replace(link, permanent_mac=ethernet_mac(link.mac if macs is None else macs.get(link.pci_address)))
        for link in links
    )
