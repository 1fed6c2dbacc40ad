"""Offer the kubelet the devices that configuration and facts allow, whenever one of them changes.

The order matters: the CDI specs and the slice sizes are on the disk before the kubelet gets the devices, because it
may allocate them at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf

from nodeagent.agent_config import Config, digest
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, hanging_calls
from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.dra.devices import GPU, NIC, DraDevice
from nodeagent.dra.offered import (
    DraOffer,
    LeftOut,
    OfferedPools,
    held_by_claims,
    without_plugin_holders,
)
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Numbering, Rails, changes, selection
from nodeagent.kinds.resource_settings import GpuMemResource, VfResource
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.removed_devices import RemovedDevices
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.kubelet.withheld import UnwritableFile, Withheld
from nodeagent.offering.offer import Offer, prefix
from nodeagent.offering.readiness import gpu_remarks
from nodeagent.sources.pci_source import PRODUCT_FILE
from nodeagent.web.machine_view import MachineView, Trouble, machine_view

log = logging.getLogger(__name__)

SENT_S = 0.02
"""Within this time the streams have sent the devices."""
LATE_S = 1.0
"""The search for troubles is put off by further news for at most this time."""
SWEEP_S = 5.0
"""For the files of an earlier agent."""


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
    ) -> None:
        """``claim_holdings`` returns what prepared claims hold, ``None`` while their records cannot be read."""
        self.dra = DraOffer()
        """The devices that claims allocate. The kubelet gets none of them from a device plugin."""
        self._claim_holdings = claim_holdings
        self.offered: tuple[DeviceKind, ...] = ()
        self.withheld: tuple[Withheld, ...] = ()
        """The resources that are not offered."""
        self.remarks: tuple[str, ...] = ()
        """The resources that are offered in another way than configured."""
        self.troubles: tuple[Trouble, ...] = ()
        """The devices that the configuration asks for and that this machine lacks."""
        self._sought_by = inf
        """When the troubles of the offer are looked for at the latest; infinite while they are known."""
        self._logged: set[str] = set()
        self._inventory = inventory
        self._plugins = plugins
        self._files = files
        self._sizes = sizes
        self._pod_resources = config.kubelet.pod_resources
        self._scan_seconds = config.scan_seconds
        self._rails = rails
        self._forget_nics = forget_nics
        self._removed = RemovedDevices()
        self._offer = Offer(config, rails.content.numbering)
        if rails.lost:
            self._offer.recall(awaits_holdings=rails.content.names_unknown)
        self._logged_rails: Numbering = rails.content.numbering
        self.begun = asyncio.Event()
        """Set once the plugins have the first offer."""
        self.examined = False
        """Whether the first offer has been made and its troubles are known."""
        self._news = asyncio.Event()
        """There may be something else to offer."""
        self._prepared: tuple[DeviceKind, ...] = ()
        """The kinds of the last offer, those too whose files cannot be written."""
        self._swept = False
        self._logged_missing = False

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._offer.config

    @property
    def rails(self) -> Mapping[str, int]:
        return self._offer.rails

    @property
    def unwritable(self) -> tuple[UnwritableFile, ...]:
        return self._files.unwritable

    def view(self) -> MachineView:
        """The facts of now with the devices that the kubelet is offered."""
        snapshot = self._inventory.snapshot
        return machine_view(
            self.offered,
            snapshot,
            (
                *(Trouble(f"{one.resource}: {one.reason}", fatal=True) for one in self.withheld),
                *(Trouble(remark, fatal=False) for remark in self.remarks),
                *(trouble for trouble in self.troubles if not trouble.fatal),
            ),
            digest(self.config),
            self.dra.current.devices(),
        )

    def mps_kinds(self) -> tuple[DeviceKind, ...]:
        """The resources that are shared through MPS, also those that are withheld now: their pods run on."""
        entries = (entry for entry in self.config.resources if isinstance(entry, GpuMemResource))
        if all(entry.enforcement != "mps" for entry in entries):
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

    def claims_changed(self) -> None:
        """A claim was prepared or ended."""
        self._news.set()

    def holdings_read(self) -> None:
        """The kubelet has listed what pods hold."""
        if self._rails.holdings_read():
            self._news.set()

    async def follow_rails(self) -> None:
        """Take over, every ``scanSeconds``, that `nodeagent remembered forget` removed a rail, until cancelled."""
        while True:
            await asyncio.sleep(self._scan_seconds)
            if rails := await self._rails.forgotten(self._inventory.snapshot):
                self._offer.forget(rails)
                self._forget_nics(rail.pci_address for rail in rails if rail.pci_address is not None)
                self._news.set()

    async def run(self) -> None:
        """Offer the devices now, after each change, and every ``scanSeconds``, until cancelled."""
        with self._inventory.notifying(self._news):
            while True:
                self._news.clear()
                snapshot = await self.offer_now()
                self._sought_by = min(self._sought_by, time.monotonic() + LATE_S)
                if time.monotonic() >= self._sought_by:
                    self._find_troubles(snapshot)
                await self._remove_stale_files(snapshot)
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
        self._find_troubles(snapshot)
        before = self._files.unwritable
        while self._files.unwritable == before and not self._drop_removed(snapshot):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._files.pause_s):
                    await self._files.failed.wait()
            await self._files.prepare(self._prepared, snapshot)

    async def offer_now(self) -> Snapshot:
        """Offer the devices of the latest snapshot once, and return it."""
        snapshot = self._inventory.snapshot
        candidates, withheld = self._decide(snapshot)
        by_claim = self._offer.dra_devices(snapshot)
        self._prepared = (*candidates, *(device.kind for device in by_claim))
        await self._files.prepare(self._prepared, snapshot)
        self._settle(candidates, withheld, snapshot)
        self._settle_claims(by_claim, snapshot)
        await self._sizes.save(self.offered)
        await self._save_rails(snapshot)
        self._drop_removed(snapshot)
        self._plugins.update(self.offered, snapshot, self._removed.gone)
        self.begun.set()
        return snapshot

    def _drop_removed(self, snapshot: Snapshot) -> bool:
        """Whether removed devices may leave the lists from now on."""
        gone = self._removed.take(snapshot, time.monotonic())
        if gone:
            names = ",".join(sorted(gone))
            log.info("Removed devices leave the device lists: no pod holds them. devices=%s", names)
            self._forget_nics(gone)
        return bool(gone)

    def _decide(self, snapshot: Snapshot) -> tuple[list[DeviceKind], list[Withheld]]:
        """Offer only kinds whose source has published, and no device list that the kubelet would refuse."""
        offered: list[DeviceKind] = []
        withheld: list[Withheld] = []
        by_claims = self._claim_holdings()
        no_claims = by_claims == ()
        for kind in self._offer.kinds(snapshot):
            settled: DeviceKind | str
            if (missing := self._missing_source(kind, snapshot)) is not None:
                settled = missing
            elif (refusal := kind.refusal(snapshot)) is not None:
                settled = refusal
            elif not no_claims and (claimed := held_by_claims(kind.hardware(snapshot), by_claims)):
                settled = claimed
            elif (obstacle := self._rails.obstacle(kind, snapshot)) is not None:
                settled = obstacle
            else:
                settled = self._sizes.settle(kind, snapshot, pod_resources=self._pod_resources)
            if isinstance(settled, str):
                withheld.append(Withheld(kind.resource, settled))
            else:
                offered.append(settled)
        withheld += self._unnamed(snapshot)
        return offered, withheld

    def _settle(self, candidates: list[DeviceKind], withheld: list[Withheld], snapshot: Snapshot) -> None:
        """Offer the kinds whose files can be written."""
        offered = []
        for kind in candidates:
            if (file := self._files.obstacle(kind, snapshot)) is None:
                offered.append(kind)
            else:
                withheld.append(Withheld(kind.resource, str(file)))
        self.offered, self.withheld = tuple(offered), tuple(withheld)
        self.remarks = (*self._sizes.remarks, *gpu_remarks(snapshot), *self._missing_nics(snapshot))

    def _settle_claims(self, devices: Iterable[DraDevice], snapshot: Snapshot) -> None:
        """Publish the devices of the pools whose facts are known and that no device plugin's pod holds."""
        by_pool: dict[str, list[DraDevice]] = {name: [] for name in sorted(self._offer.dra_pools)}
        for device in devices:
            by_pool[device.pool].append(device)
        sources = {GPU: {"gpus"}, NIC: {"pci"}}
        awaited = {"pods"} if self._pod_resources else set()
        pools: dict[str, tuple[DraDevice, ...] | None] = {}
        left_out: list[LeftOut] = []
        for name, members in by_pool.items():
            pools[name] = None
            if all(self._inventory.has_published(source) for source in sources[name] | awaited):
                pools[name], held = without_plugin_holders(members, snapshot)
                left_out += held
        found = ((device, self._files.obstacle(device.kind, snapshot)) for device in devices)
        obstacles = {device.name: str(file) for device, file in found if file is not None}
        self.dra.update(OfferedPools(pools, obstacles, tuple(left_out)), snapshot)

    def _find_troubles(self, snapshot: Snapshot) -> None:
        self._sought_by, self.examined = inf, True
        self.troubles = tuple(
            trouble
            for trouble in self._offer.troubles(snapshot)
            if self._inventory.has_published(trouble.source)
        )
        messages = {trouble.message for trouble in self.troubles}
        for message in sorted(messages - self._logged):
            log.warning("The node offers less than is configured. reason=%r", message)
        self._logged = messages

    def _missing_source(self, kind: DeviceKind, snapshot: Snapshot) -> str | None:
        """Return why the facts of a kind are not known yet: an empty list would be wrong."""
        # With "auto" the product, which the PCI source publishes, is part of every resource's name.
        sources = {kind.source, "pci"} if self.config.resource_prefix == "auto" else {kind.source}
        for source in sorted(sources):
            if not self._inventory.has_published(source):
                return _why_missing(source, snapshot)
        if self.config.resource_prefix == "auto" and snapshot.product is None and _hangs(PRODUCT_FILE):
            return (
                f"{PRODUCT_FILE} does not answer, and the product is a part of each resource's name; set "
                "resourcePrefix to offer the devices without it"
            )
        return None

    def _unnamed(self, snapshot: Snapshot) -> Iterator[Withheld]:
        """Yield the entries whose resources get their names from PFs or GPUs that are not known yet."""
        for entry in self.config.resources:
            source = "pci" if isinstance(entry, VfResource) else "gpus"
            if "{" not in entry.name:
                continue
            if not self._inventory.has_published(source):
                yield Withheld(entry.name, _why_missing(source, snapshot))
            elif self._offer.undecided(entry):
                why = "the file of the rails is gone, and what pods hold, which decides the numbers, is not known yet"
                cause = (entry.reason for entry in snapshot.stale_sources if entry.source == "pods")
                yield Withheld(entry.name, ": ".join((why, *cause)))

    def _missing_nics(self, snapshot: Snapshot) -> Iterator[str]:
        """Yield a sentence for each rail whose NIC is missing."""
        if self._inventory.has_published("pci"):
            for entry, rail in self._offer.missing(snapshot):
                name = entry.name.replace("{rail}", str(rail.number))
                nic = rail.pci_address or rail.permanent_mac
                yield (
                    f"{name}: NIC {nic} is missing and keeps rail {rail.number}; if it does not come back, use "
                    f"`nodeagent remembered forget {nic}`"
                )

    async def _save_rails(self, snapshot: Snapshot) -> None:
        """Save the rails and the names of VFs before the kubelet gets them, and log what is new."""
        names = {selection(entry): entry.name for entry, _ in self._offer.in_force()}
        for key, name in names.items():
            before, now = self._logged_rails.get(key, ()), self._offer.numbering.get(key, ())
            for sentence in changes(before, now):
                log.warning("A NIC has changed and keeps its rail. resource=%s change=%r", name, sentence)
            known = {rail.number for rail in before}
            if new := [f"{rail.number}={rail.pci_address}" for rail in now if rail.number not in known]:
                log.info("NICs have new rails. resource=%s rails=%s", name, ",".join(new))
        self._logged_rails = dict(self._offer.numbering)
        if any(self._offer.undecided(entry) for entry in self.config.resources):
            return  # the next agent too must know that the file is gone
        if self._inventory.has_published("pci"):
            if not self._logged_missing:
                self._logged_missing = True
                for sentence in self._missing_nics(snapshot):
                    log.warning("A NIC of an earlier agent is missing. reason=%r", sentence)
            await self._rails.save(self._offer.numbering, tuple(names), self.offered, snapshot)

    async def _remove_stale_files(self, snapshot: Snapshot) -> None:
        """Once it is known what pods hold, remove the device-info files of an earlier agent."""
        if snapshot.holdings is None or self._swept:
            return
        self._swept = True
        head = prefix(self.config, snapshot.product).replace("/", "-")
        held = (
            f"{holding.resource.replace('/', '-')}-{id_}-device.json"
            for holding in snapshot.holdings
            for id_ in holding.device_ids
        )
        sweep = BoundedCalls("stale device-info files", SWEEP_S)
        try:
            removed = await sweep.run(self._files.device_info.remove_stale, f"{head}-", tuple(held))
        except OSError as error:  # the files harm no pod; the log has a call without an answer
            if not isinstance(error, Unanswered):
                log.warning("Device-info files of an earlier agent stay. reason=%r", str(error))
            return
        for name in removed:
            log.info("A device-info file of an earlier agent was removed. file=%s", name)

    def _fatal(self, offer: Offer) -> list[str]:
        return [trouble.message for trouble in offer.troubles(self._inventory.snapshot) if trouble.fatal]


def _why_missing(source: str, snapshot: Snapshot) -> str:
    reasons = (entry.reason for entry in snapshot.stale_sources if entry.source == source)
    return next(reasons, f"{source} are not known yet")


def _hangs(path: str) -> bool:
    return any(call.step == path for call in hanging_calls())


def _refuse(name: str, messages: list[str]) -> None:
    if messages:
        raise ConfigError(name, [ConfigFault("resources", None, None, message) for message in messages])
