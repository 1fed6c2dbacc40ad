"""Write the plan for `nodeagent attach`: the name, the address and the MTU of each VF in a pod.

It follows from the facts of the node, the addresses of the PFs and the numbers that the controller has given, which are
read when the facts change and every ``ADDRESSES_S``. The file is written when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.given_numbers import read_given_numbers
from nodeagent.attach.host_names import read_left
from nodeagent.attach.plan_file import write_attach_plan
from nodeagent.attach.vf_plan import (
    PfAddresses,
    attach_plan,
    node_numbers,
    pf_addresses,
    route_gateways,
    with_left,
)
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.allocation import Devices
from nodeagent.facts.inventory import Inventory
from nodeagent.host.netlink.message import NetlinkError

log = logging.getLogger(__name__)

ADDRESSES_S = 10.0
_SOURCE = "attach plan"
_WRITE_S = 5.0


class PlanWriter:
    """``rails`` returns the rail of each PF, ``offered`` the devices that get netdevs, ``whole`` the NICs that the
    settings offer as a whole. ``node`` is the name of the Node. Belongs to one event loop."""

    def __init__(
        self,
        settings: AttachSettings,
        inventory: Inventory,
        rails: Callable[[], Mapping[str, int]],
        folder: Path,
        read_addresses: Callable[[frozenset[str]], PfAddresses] = pf_addresses,
        offered: Callable[[], Iterable[Devices]] = tuple,
        node: str = "",
        whole: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._settings, self._inventory, self._rails = settings, inventory, rails
        self._folder, self._node = folder, node
        self._offered, self._whole = offered, whole
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
            self._addresses = await self._calls.run(self._addresses_of, frozenset(rails))
        except NetlinkError as error:
            log.warning("The addresses of the PFs cannot be read; the last ones stay. reason=%r", str(error))
        try:
            given = None
            if self._settings.numbers:
                given = await self._calls.run(read_given_numbers, self._folder, self._node)
            numbers = node_numbers(self._settings, rails, self._addresses, given)
            self._inventory.publish(_SOURCE, node_numbers=numbers)
            gateways = await self._calls.run(route_gateways)
            offered = self._offered()
            plan = attach_plan(
                self._settings, snapshot, rails, self._addresses, gateways, offered, given, self._whole()
            )
            if await self._calls.run(write_attach_plan, self._folder, plan):
                log.info("The plan for netdevs in pods was written. vfs=%d", len(plan.vfs))
        except OSError as error:
            log.warning("The plan for pods cannot be written. reason=%r", str(error))

    def _addresses_of(self, pfs: frozenset[str]) -> PfAddresses:
        left = read_left(
            self._folder
        )  # first: then a NIC that comes back meanwhile has its addresses in one of both
        return with_left(self._read(pfs), left)
