"""Write the plan for `nodeagent attach`: the name, the address and the MTU of each VF in a pod.

It follows from the facts of the node and the addresses of the PFs, which are read when the facts change and every
``ADDRESSES_S``. The file is written when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nodeagent.attach.address_plan import AddressPlan, AddressPlanError, VfAddress
from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.plan_file import write_attach_plan
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Snapshot
from nodeagent.host.netlink.addresses import Addresses
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.kinds.vf import has_netdev

log = logging.getLogger(__name__)

ADDRESSES_S = 10.0
_WRITE_S = 5.0

PfAddresses = Mapping[str, tuple[VfAddress, ...]]
"""The addresses of PFs, by the PCI address of the PF."""


def attach_plan(
    settings: AttachSettings, snapshot: Snapshot, rails: Mapping[str, int], addresses: PfAddresses
) -> AttachPlan:
    """The plan for each VF with a netdev whose PF has a rail. Pure. ``rails`` are those of the PFs."""
    links = {link.pci_address: link for link in snapshot.links}
    addressing = settings.address_plan
    vfs = {}
    for vf in snapshot.functions:
        pf = vf.parent
        if pf is None or pf not in rails or not has_netdev(vf):
            continue
        link = links.get(pf)
        address, refusal = _address(addressing, vf, rails[pf], addresses.get(pf, ()))
        vfs[vf.pci_address] = PlannedVf(rails[pf], None if link is None else link.mtu, address, refusal)
    return AttachPlan(settings.interface or "", vfs)


def _address(
    plan: AddressPlan | None, vf: Function, rail: int, pf: Iterable[VfAddress]
) -> tuple[str | None, str]:
    if plan is None:
        return None, ""
    if vf.vf_index is None:
        return None, "the kernel does not tell its index"
    try:
        return str(plan.address(rail, vf.vf_index, pf=pf, mac=vf.mac)), ""
    except AddressPlanError as error:
        return None, str(error)


def pf_addresses(pfs: frozenset[str]) -> dict[str, tuple[VfAddress, ...]]:
    """Read the addresses of PFs on the host. Blocks; raises ``NetlinkError``."""
    with Netdevs() as netdevs, Addresses() as addresses:
        by_ifindex = addresses.read()
        return {
            netdev.pci_address: by_ifindex.get(netdev.ifindex, ())
            for netdev in netdevs.read()
            if netdev.pci_address in pfs
        }


class PlanWriter:
    """``rails`` returns the rail of each PF. Belongs to one event loop."""

    def __init__(
        self,
        settings: AttachSettings,
        inventory: Inventory,
        rails: Callable[[], Mapping[str, int]],
        folder: Path,
        read_addresses: Callable[[frozenset[str]], PfAddresses] = pf_addresses,
    ) -> None:
        self._settings, self._inventory, self._rails = settings, inventory, rails
        self._folder = folder
        self._read = read_addresses
        self._addresses: PfAddresses = {}
        self._calls = BoundedCalls("attach plan", _WRITE_S)

    async def run(self) -> None:
        """Follow the facts until cancelled."""
        while True:
            revision = self._inventory.snapshot.revision
            await self.write()
            with suppress(TimeoutError):
                async with asyncio.timeout(ADDRESSES_S):
                    await self._inventory.changed(revision)

    async def write(self) -> None:
        """Write the present plan, if it changed."""
        snapshot, rails = self._inventory.snapshot, self._rails()
        if not self._inventory.has_published("pci"):
            return  # the VFs of pods would be in no plan
        try:
            self._addresses = await self._calls.run(self._read, frozenset(rails))
        except NetlinkError as error:
            log.warning("The addresses of the PFs cannot be read; the last ones stay. reason=%r", str(error))
        plan = attach_plan(self._settings, snapshot, rails, self._addresses)
        try:
            if await self._calls.run(write_attach_plan, self._folder, plan):
                log.info("The plan for netdevs in pods was written. vfs=%d", len(plan.vfs))
        except OSError as error:
            log.warning("The plan for pods cannot be written. reason=%r", str(error))
