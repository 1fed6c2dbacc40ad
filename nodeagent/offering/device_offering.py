"""Offer the kubelet the devices that configuration and facts allow, whenever one of them changes.

The order matters: the CDI specs and the slice sizes are on the disk before the kubelet gets the devices, because it
may allocate them at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf

from nodeagent.agent_config import Config, config_digest
from nodeagent.config.file_errors import ConfigError, FileError
from nodeagent.dra.offered import DraOffer
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Rails
from nodeagent.kinds.resource_settings import (
    memory_entries,
)
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.removed_devices import RemovedDevices
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.kubelet.withheld import UnwritableFile, Withheld
from nodeagent.offering.decision import decide, offered_pools
from nodeagent.offering.kept_rails import KeptRails
from nodeagent.offering.offer import Offer, prefix
from nodeagent.offering.readiness import blind_remarks, gpu_remarks, mig_remarks
from nodeagent.web.machine_view import Lack, MachineView, OfferView, machine_view, offered_devices

log = logging.getLogger(__name__)

SENT_S = 0.02
"""Within this time the streams have sent the devices."""
LATE_S = 1.0
"""The search for troubles is put off by further news for at most this time."""


class DeviceOffering:
    """The offer in force. The pages and the API server show ``offered``, ``withheld``, ``remarks`` and ``rails``."""

    def __init__(
        self,
        config: Config,
        inventory: Inventory,
        plugins: DevicePlugins,
        files: OfferFiles,
        sizes: SliceSizes,
        rails: RailMemory,
        forget_nics: Callable[[Iterable[str]], None],
        claim_holdings: Callable[[], Iterable[Holding] | None] = tuple,
        dra: DraOffer | None = None,
        news: asyncio.Event | None = None,
        claims_unwritable: Callable[[], UnwritableFile | None] = lambda: None,
    ) -> None:
        """``claim_holdings`` returns what prepared claims hold, ``None`` while their records cannot be read.
        ``claims_unwritable`` returns the file that keeps every claim from being prepared.

        ``news`` is set where there may be something else to offer.
        """
        self.dra = dra or DraOffer()
        """The devices that claims allocate. The kubelet gets none of them from a device plugin."""
        self._claim_holdings, self._claims_unwritable = claim_holdings, claims_unwritable
        self.offered: tuple[DeviceKind, ...] = ()
        self.withheld: tuple[Withheld, ...] = ()
        """The resources that are not offered."""
        self.remarks: tuple[str, ...] = ()
        """The resources that are offered in another way than configured."""
        self._lacks = Lacks(inventory)
        self._inventory = inventory
        self._plugins = plugins
        self._files = files
        self._sizes = sizes
        self._pod_resources = config.kubelet.pod_resources
        self._scan_seconds = config.scan_seconds
        self._rails = KeptRails(rails, inventory)
        self._forget_nics = forget_nics
        self._removed = RemovedDevices()
        self._offer = Offer(config, rails.content.numbering)
        if rails.lost:
            self._offer.recall(awaits_holdings=rails.content.names_unknown)
        self.begun = asyncio.Event()
        """Set once the plugins have the first offer."""
        self._news = news or asyncio.Event()
        self._prepared: tuple[DeviceKind, ...] = ()
        """The kinds of the last offer, those too whose files cannot be written."""
        self._shown: tuple[tuple[object, object, object], frozenset[str]] = ((None, None, None), frozenset())
        """The devices of the last offer that a page has shown, and what they were made of."""

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._offer.config

    @property
    def rails(self) -> Mapping[str, int]:
        return self._offer.rails

    @property
    def whole(self) -> frozenset[str]:
        """The NICs that entries select to offer them as a whole, by PCI address; also while they have VFs."""
        entries = ((entry, rails) for entry, rails in self._offer.in_force() if entry.whole)
        return frozenset(rail.pci_address for _, rails in entries for rail in rails if rail.pci_address)

    def shown(self) -> OfferView:
        """The offer as pages show it."""
        return OfferView(
            self.offered,
            self.withheld,
            (*self._files.unwritable, *filter(None, (self._claims_unwritable(),))),
            self._lacks.troubles,
            self.remarks,
            self.rails,
            self._lacks.known,
        )

    def view(self) -> MachineView:
        """The facts of now with the devices that the kubelet is offered."""
        snapshot = self._inventory.snapshot
        return machine_view(
            self.offered,
            snapshot,
            (
                *(Lack(f"{one.resource}: {one.reason}", fatal=True) for one in self.withheld),
                *(Lack(remark, fatal=False) for remark in self.remarks),
                *(trouble for trouble in self._lacks.troubles if not trouble.fatal),
            ),
            config_digest(self.config),
            self.dra.current.devices(),
            self.rails,
        )

    def devices(self) -> frozenset[str]:
        """The PFs and GPUs that new pods can have devices of, healthy or not: by PCI address and UUID."""
        made_of = self._inventory.snapshot, self.offered, self.dra.current
        if any(one is not other for one, other in zip(made_of, self._shown[0], strict=True)):
            self._shown = made_of, offered_devices(self.offered, self.dra.current.devices(), made_of[0])
        return self._shown[1]

    def mps_kinds(self) -> tuple[DeviceKind, ...]:
        """The resources that are shared through MPS, also those that are withheld now: their pods run on."""
        if all(entry.enforcement != "mps" for entry in memory_entries(self.config.resources)):
            return ()
        snapshot = self._inventory.snapshot
        by_claim = (device.kind for device in self._offer.dra_devices(snapshot))
        kinds = dict.fromkeys((*self._offer.kinds(snapshot), *by_claim))
        return tuple(kind for kind in kinds if kind.level(snapshot) == "mps")

    def recall(self, reported: Rails) -> None:
        """Number NICs as another memory has them, because the file of the rails is gone."""
        self._offer.recall(reported)

    def check(self, name: str) -> None:
        """Raise ``ConfigError`` if the configuration at start cannot work on this machine."""
        _refuse(name, self._fatal(self._offer))

    def replace(self, config: Config, name: str) -> None:
        """Apply a changed configuration. Raises ``ConfigError`` and keeps the old one if it cannot work here."""
        offer = Offer(config, before=self._offer)
        # A slice that a pod holds must keep its size.
        snapshot = self._inventory.snapshot
        resized = (self._sizes.refusal(kind, snapshot) for kind in offer.kinds(snapshot))
        _refuse(name, [*self._fatal(offer), *filter(None, resized)])
        self._offer = offer
        self._news.set()

    def refresh(self) -> None:
        """Give the plugins the latest facts now: the next request of the kubelet may arrive before the next round."""
        self._plugins.update(self.offered, self._inventory.snapshot, self._removed.gone)

    def device_bytes(self) -> dict[str, int]:
        """Return the memory of one device of each resource that has a share of a GPU's memory."""
        return {
            kind.resource: kind.device_mib << 20 for kind in self.share_kinds() if kind.device_mib is not None
        }

    def share_kinds(self) -> tuple[DeviceKind, ...]:
        """Return the kinds of device plugins and those of claims."""
        return (*self.offered, *(device.kind for device in self.dra.current.known()))

    def holdings_read(self) -> None:
        """The kubelet has listed what pods hold."""
        if self._rails.memory.holdings_read():
            self._news.set()

    async def follow_rails(self) -> None:
        """Take over, every ``scanSeconds``, that `nodeagent remembered forget` removed a rail, until cancelled."""
        while True:
            await asyncio.sleep(self._scan_seconds)
            if rails := await self._rails.memory.forgotten(self._inventory.snapshot):
                self._offer.forget(rails)
                self._forget_nics(rail.pci_address for rail in rails if rail.pci_address is not None)
                self._news.set()

    async def run(self) -> None:
        """Offer the devices now, after each change, and every ``scanSeconds``, until cancelled."""
        with self._inventory.notifying(self._news):
            while True:
                self._news.clear()
                snapshot = await self.offer_now()
                self._lacks.put_off(self._offer, snapshot)
                head = prefix(self.config, snapshot.product).replace("/", "-")
                await self._files.remove_stale(f"{head}-", snapshot.holdings)
                await self._wait_for_news(snapshot)

    async def _wait_for_news(self, snapshot: Snapshot) -> None:
        """Return after ``scanSeconds`` at the latest. The rest of the work may end later: news does not wait for it."""
        rest = asyncio.create_task(self._look_after(snapshot), name="rest of the offer")
        rest.add_done_callback(lambda task: None if task.cancelled() else self._news.set())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._scan_seconds):
                    await self._news.wait()
        finally:
            rest.cancel()
        if rest.done() and not rest.cancelled():
            rest.result()

    async def _look_after(self, snapshot: Snapshot) -> None:
        """Find what is wrong with the offer, after the streams have sent it. Return when a file can be written that
        could not, or the other way round, and when a removed device may leave its list: a disk may have space again,
        a file may have been removed."""
        await asyncio.sleep(SENT_S)
        self._lacks.find(self._offer, snapshot)
        before = self._files.unwritable
        while self._files.unwritable == before and not self._drop_removed(snapshot):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._files.pause_s):
                    await self._files.failed.wait()
            await self._files.prepare(self._prepared, snapshot)

    async def offer_now(self) -> Snapshot:
        """Offer the devices of the latest snapshot once, and return it."""
        snapshot = self._inventory.snapshot
        candidates, withheld = decide(
            self._offer,
            snapshot,
            self._inventory,
            self._claim_holdings(),
            self._rails.memory,
            self._sizes,
            pod_resources=self._pod_resources,
        )
        by_claim = self._offer.dra_devices(snapshot)
        self._prepared = (*candidates, *(device.kind for device in by_claim))
        await self._files.prepare(self._prepared, snapshot)
        self._settle(candidates, withheld, snapshot)
        pools = offered_pools(
            self._offer,
            by_claim,
            snapshot,
            self._inventory,
            self._files,
            pod_resources=self._pod_resources,
            unwritable=self._claims_unwritable(),
        )
        self.dra.update(pools, snapshot)
        await self._sizes.save(self.offered)
        await self._rails.save(self._offer, self.offered, snapshot)
        self._drop_removed(snapshot)
        self._plugins.update(self.offered, snapshot, self._removed.gone)
        self.begun.set()
        return snapshot

    def _drop_removed(self, snapshot: Snapshot) -> bool:
        """Whether removed devices may leave the lists from now on."""
        whole = (pf for kind in self.offered for pf in kind.whole_nics)
        gone = self._removed.take(snapshot, time.monotonic(), whole)
        if gone:
            names = ",".join(sorted(gone))
            log.info("Removed devices leave the device lists: no pod holds them. devices=%s", names)
            here = {function.pci_address for function in snapshot.functions if not function.missing}
            self._forget_nics(gone - here)
        return bool(gone)

    def _settle(self, candidates: list[DeviceKind], withheld: list[Withheld], snapshot: Snapshot) -> None:
        """Offer the kinds whose files can be written."""
        offered = []
        for kind in candidates:
            if (file := self._files.obstacle(kind, snapshot)) is None:
                offered.append(kind)
            else:
                withheld.append(Withheld(kind.resource, str(file)))
        self.offered, self.withheld = tuple(offered), tuple(withheld)
        self.remarks = (
            *self._sizes.remarks,
            *gpu_remarks(snapshot),
            *mig_remarks(snapshot, self.dra),
            *self._rails.missing(self._offer, snapshot),
            *blind_remarks(self.offered, pod_resources=self._pod_resources),
        )

    def _fatal(self, offer: Offer) -> list[str]:
        return [trouble.message for trouble in offer.troubles(self._inventory.snapshot) if trouble.fatal]


class Lacks:
    """Devices that the configuration asks for and this machine lacks: looked for after the kubelet has the devices."""

    def __init__(self, inventory: Inventory) -> None:
        self.troubles: tuple[Lack, ...] = ()
        self.known = False
        """Whether they were looked for since the first offer."""
        self._inventory = inventory
        self._sought_by = inf
        """When they are looked for at the latest; infinite while those of the latest offer are known."""
        self._logged: set[str] = set()

    def put_off(self, offer: Offer, snapshot: Snapshot) -> None:
        """There is another offer: look for them later, by ``LATE_S`` after the first such offer."""
        self._sought_by = min(self._sought_by, time.monotonic() + LATE_S)
        if time.monotonic() >= self._sought_by:
            self.find(offer, snapshot)

    def find(self, offer: Offer, snapshot: Snapshot) -> None:
        self._sought_by, self.known = inf, True
        published = self._inventory.has_published
        self.troubles = tuple(it for it in offer.troubles(snapshot) if published(it.source))
        messages = {trouble.message for trouble in self.troubles}
        for message in sorted(messages - self._logged):
            log.warning("The node offers less than is configured. reason=%r", message)
        self._logged = messages


def _refuse(name: str, messages: list[str]) -> None:
    if messages:
        raise ConfigError(name, [FileError("resources", None, None, message) for message in messages])
