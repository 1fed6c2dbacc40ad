"""The health service: pass facts, samples and driver readings to the rule engines, and publish health when it changes.

All timers of health are here: holds expire, penalties decay, data becomes stale. ``NicJudge`` returns the time of
the next evaluation, and ``run`` evaluates then. Facts and GPU events are evaluated in the call that brings them, so
that a lost carrier and an XID reach the kubelet without delay; so are samples with news of a link, each for the PFs
that have news. ``run`` evaluates all PFs ``_GATHER_S`` later, because samples arrive source by source.

Belongs to one event loop. Times are CLOCK_BOOTTIME.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TypeVar

import msgspec

from nodeagent.facts.card_identity import card_identity, valid_identity
from nodeagent.facts.device_pods import netdevs_by_device, pods_by_device
from nodeagent.facts.model import (
    HEALTHY,
    Function,
    Gpu,
    GpuFunction,
    Health,
    Link,
    Neighbor,
    Snapshot,
    UnusableGpu,
)
from nodeagent.health.cabling import NO_CABLES, CablesOfNode, is_switch
from nodeagent.health.cordons import Cordon, PlannedWork, cordon_reasons
from nodeagent.health.explain import DeviceView, explain_gpus, explain_nics, explain_unusable
from nodeagent.health.gpu import GpuJudge, JudgedGpus
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.judge import DeviceFigures
from nodeagent.health.nic import NicJudge, roles
from nodeagent.health.record import GpuRecord, NicRecord
from nodeagent.health.rules.xids import Severity, severity
from nodeagent.health.state_file import DeviceIdentity, StateFile
from nodeagent.health.structural import NO_FAULTS, Faults
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import DriverMessage, GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample

log = logging.getLogger(__name__)

_R = TypeVar("_R", NicRecord, GpuRecord)

NIC_SECTION = "nic"
GPU_SECTION = "gpu"
_LEAST_S = 0.01
"""Between two evaluations that only time requires."""
_GATHER_S = 1.0
"""The kubelet has the news first; then come the other samples, and the state file. The sources of 72 links are read
within half a second, and an evaluation of each would cost as much as all."""


class HealthService:
    def __init__(
        self,
        settings: HealthSettings | None = None,
        gpu_settings: GpuSettings | None = None,
        state_file: StateFile | None = None,
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """With ``gpu.driver: none`` the records of GPUs in the state file stay as they are."""
        self.nics = NicJudge(settings)
        self.gpus = GpuJudge(gpu_settings, self.nics.settings.guard)
        self.state_file = state_file or StateFile()
        self._with_gpus = self.gpus.settings.driver != "none"
        self._clock = clock
        self._publish_functions: Callable[[tuple[Function, ...]], object] = lambda _functions: None
        self._functions: tuple[Function, ...] = ()
        self._nic_health: dict[str, Health] = {}
        self._gpu_health: dict[str, Health] = {}
        self._identities: dict[str, str | None] = {}
        """The identity of each PF, or the MAC address of its link, as it was seen last."""
        self._nic_records = {
            DeviceIdentity(device.pci_address, valid_identity(device.identity)): record
            for device, record in self._load(NIC_SECTION, NicRecord).items()
        }
        """Records of PFs that have not appeared yet."""
        self._stored_nics: dict[DeviceIdentity, NicRecord] = {}
        self._gpu_records: dict[str, GpuRecord] = {}
        self._unusable: tuple[UnusableGpu, ...] = ()
        self._cordons: tuple[Cordon, ...] = ()
        self._plan: CablesOfNode = NO_CABLES
        self._neighbors: tuple[Neighbor, ...] = ()
        self._logged: set[str] = set()
        """Names in the cabling plan that were logged as unknown."""
        self._wake = asyncio.Event()
        if self._with_gpus:
            self._restore_gpus()

    def publish_functions(self, publish: Callable[[tuple[Function, ...]], object]) -> None:
        """``publish`` takes all functions when time, a sample or a neighbor has changed their health."""
        self._publish_functions = publish

    async def run(self) -> None:
        """Evaluate the NICs when this is due, and update the state file, until cancelled. The records are encoded
        here, so that a fact does not wait for it."""
        try:
            while True:
                self.store()
                due = self.nics.due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else max(_LEAST_S, due - self._clock())):
                        await self._wake.wait()
                        await asyncio.sleep(_GATHER_S)
                self._wake.clear()
                self._judge_and_publish()
        finally:
            self.store(last=True)

    # --- NICs -----------------------------------------------------------------------------------------

    @property
    def settings(self) -> HealthSettings:
        """The settings in force."""
        return self.nics.settings

    def adopt(self, settings: HealthSettings) -> None:
        """Apply changed settings."""
        if settings != self.nics.settings:
            self.nics.adopt(settings)
            self.gpus.adopt_guard(settings.guard)
            self.judge_nics()

    def judge_functions(
        self,
        functions: Iterable[Function],
        links: Iterable[Link],
        faults: Faults = NO_FAULTS,
        gpus: Iterable[Gpu] = (),
    ) -> tuple[Function, ...]:
        """Return the functions with their health. The caller publishes them."""
        functions, links = tuple(functions), tuple(links)
        self._identify(functions, links)
        self._restore_nics(functions)
        self._cordon()
        self.nics.now = max(self.nics.now, self._clock())
        self.nics.take_facts(functions, links, faults)
        self.nics.take_roles(roles(functions, tuple(gpus)))
        self._wake.set()
        return self._judge(only_news=True)

    def _identify(self, functions: Iterable[Function], links: Iterable[Link]) -> None:
        by_address = {link.pci_address: link for link in links}
        for pf in functions:
            link = by_address.get(pf.pci_address)
            card = card_identity(pf, link) or valid_identity(link.mac if link is not None else None)
            if pf.parent is None and card is not None:
                self._identities[pf.pci_address] = card

    def take_gpus(self, gpus: Iterable[Gpu]) -> None:
        """The PFs near a GPU have a role of their own."""
        new_roles = roles((nic.function for nic in self.nics.devices.values()), tuple(gpus))
        if new_roles != self.nics.role_of:
            self.nics.take_roles(new_roles)
            self.judge_nics()

    def take_samples(self, samples: Iterable[Sample]) -> None:
        if self.nics.take_samples(samples):
            self._judge_and_publish(only_news=True)
        self._wake.set()

    def take_neighbors(self, neighbors: Iterable[Neighbor]) -> None:
        self._neighbors = tuple(neighbors)
        self.nics.take_neighbors(self._neighbors)
        self.judge_nics()
        self._log_unknown_names()

    def take_cabling_plan(self, plan: CablesOfNode) -> None:
        """The part of the cabling plan for this node."""
        self._plan = plan
        self.nics.take_plan(plan)
        self.judge_nics()
        self._log_unknown_names()

    def take_cordons(self, cordons: tuple[Cordon, ...]) -> None:
        """The caller publishes the GPUs of ``judged_gpus``."""
        self._cordons = cordons
        self._cordon()
        self.judge_nics()

    def take_planned_work(self, planned: Mapping[str, tuple[float, float, str]]) -> None:
        """Begin and end of the work on NICs, in seconds from now, and a sentence, by PCI address."""
        now = self._clock()
        moved = {nic: PlannedWork(now + begin, now + end, why) for nic, (begin, end, why) in planned.items()}
        if moved or self.nics.planned:
            self.nics.take_planned(moved)
            self.judge_nics()

    def _cordon(self) -> None:
        self.nics.cordons = self.gpus.cordons = cordon_reasons(self._cordons, self._identities)

    def judge_nics(self) -> None:
        """Evaluate now, and publish the functions if their health has changed."""
        self._wake.set()
        self._judge_and_publish()

    def _judge_and_publish(self, *, only_news: bool = False) -> None:
        before = self._functions
        if self._judge(only_news=only_news) != before:
            self._publish_functions(self._functions)

    def _judge(self, *, only_news: bool = False) -> tuple[Function, ...]:
        self._functions = self.nics.judge(self._clock(), only_news=only_news)
        for function in self._functions:
            if function.parent is None:
                self._log_nic(function)
        return self._functions

    def _log_nic(self, pf: Function) -> None:
        before = self._nic_health.get(pf.pci_address)
        if before == pf.health:
            return
        self._nic_health[pf.pci_address] = pf.health
        if before is None and pf.health == HEALTHY:
            return  # the usual start
        log.log(
            logging.INFO if before is None or pf.health.allocatable else logging.WARNING,
            "The health of a NIC is now %s. pci=%s netdev=%s devices=%s before=%s reasons=%s",
            pf.health.state.value,
            pf.pci_address,
            pf.netdev or "-",
            "Healthy" if pf.health.allocatable else "Unhealthy",
            before.state.value if before is not None else "-",
            [reason.detail for reason in pf.health.reasons],
        )

    def _log_unknown_names(self) -> None:
        """Log each link and switch of the cabling plan that this node does not have, once."""
        links = {nic.netdev for nic in self.nics.devices.values()} | set(self.nics.devices)
        fresh = [neighbor for neighbor in self._neighbors if not neighbor.stale]
        with_neighbor = {neighbor.link for neighbor in fresh}
        for link, port in self._plan.items():
            if self.nics.devices and link not in links and link not in self._logged:
                self._logged.add(link)
                log.warning("The cabling plan names a link that this node does not have. link=%r", link)
            known = any(is_switch(port.switch, neighbor) for neighbor in fresh)
            if link in with_neighbor and not known and port.switch not in self._logged:
                self._logged.add(port.switch)
                log.warning(
                    "The cabling plan names a switch that is on no link of this node. switch=%r link=%r",
                    port.switch,
                    link,
                )

    # --- GPUs -----------------------------------------------------------------------------------------

    def judge_gpus(
        self,
        *,
        events: Iterable[GpuEvent] = (),
        messages: Iterable[DriverMessage] = (),
        readings: Sequence[GpuReading] | None = None,
        vitals: Iterable[GpuVitals] = (),
        bus: Mapping[str, GpuFunction] | None = None,
        mismatch: str | None = None,
    ) -> JudgedGpus:
        """Return the GPUs with their health after events, lines of the kernel log, a reading of all GPUs, and
        measured values of some; the caller publishes them. ``bus`` and ``mismatch`` belong to the reading. Without
        one, ``bus`` is news, and a mismatch keeps the driver from answering."""
        now = self._clock()
        self.gpus.take_events(events, now)
        self.gpus.take_messages(messages, now)
        if readings is not None:
            self.gpus.take_readings(readings, now, bus, mismatch)
            self._log_replaced()
        elif bus is not None:
            self.gpus.locate(bus, now)
        elif mismatch is not None:
            self.gpus.take_mismatch(mismatch, now)
        self.gpus.take_vitals(vitals, now)
        for uuid, health in self.gpus.judge(now).items():
            self._log_gpu(uuid, health)
        self._wake.set()
        return self.judged_gpus()

    def xid_severity(self, xid: int) -> Severity:
        """Return the effect of an XID, for the log."""
        return severity(xid, self.gpus.settings)

    def judged_gpus(self) -> JudgedGpus:
        """Return the GPUs with their last health, those of an earlier agent too."""
        return self.gpus.judged()

    def lose_gpu_driver(self, why: str) -> JudgedGpus:
        """Record that the driver does not answer: the state is unknown, and ``allocatable`` does not change."""
        self.gpus.lose_driver(why, self._clock())
        return self.judged_gpus()

    def recall_gpus(self, readings: Iterable[GpuReading]) -> None:
        """Take the GPUs of an earlier agent: until the driver lists one of them again, it is lost."""
        if self._with_gpus:
            self.gpus.recall(readings, self._clock())

    def forget_gpu(self, uuid: str) -> None:
        """Forget a GPU that is gone for good, and its faults."""
        self.gpus.forget(uuid)
        self._gpu_health.pop(uuid, None)
        self._wake.set()

    def take_unusable(self, gpus: tuple[UnusableGpu, ...]) -> None:
        """Take the GPUs that no resource can offer, for ``explain``."""
        self._unusable = gpus

    def _log_replaced(self) -> None:
        for old, new in self.gpus.replaced:
            self._gpu_health.pop(old, None)
            log.warning("A GPU was replaced in its slot; the old one is forgotten. old=%s new=%s", old, new)
        self.gpus.replaced.clear()

    def _log_gpu(self, uuid: str, health: Health) -> None:
        before = self._gpu_health.get(uuid)
        if health == before:
            return
        self._gpu_health[uuid] = health
        at_ease = logging.DEBUG if before is None else logging.INFO  # a GPU that was found healthy is no news
        log.log(
            logging.WARNING if health.reasons else at_ease,
            "A GPU is %s. uuid=%s allocatable=%s reasons=%s",
            health.state.value,
            uuid,
            health.allocatable,
            ",".join(reason.key for reason in health.reasons) or "none",
        )

    # --- for metrics and pages ------------------------------------------------------------------------

    def explain(self, names: Mapping[str, str] = MappingProxyType({})) -> tuple[DeviceView, ...]:
        """Return every PF and GPU with its rules and values. ``names``: of the NICs with a rail, by PCI address."""
        now = self._clock()
        gpus = (*explain_gpus(self.gpus, now), *explain_unusable(self._unusable))
        return (*explain_nics(self.nics, self._nic_health, now, names), *gpus)

    def explain_json(
        self,
        names: Mapping[str, str] = MappingProxyType({}),
        offered: Collection[str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> bytes:
        """Return ``explain`` as a JSON array, for the page /health. ``offered``: the devices that are, where it is
        known. ``snapshot``: what pods hold."""
        pods = pods_by_device(snapshot or Snapshot())
        netdevs = netdevs_by_device(snapshot or Snapshot())
        views = tuple(
            msgspec.structs.replace(
                view, pods=pods.get(view.device, ()), pod_netdevs=netdevs.get(view.device, ())
            )
            for view in self.explain(names)
        )
        if offered is not None:
            views = tuple(msgspec.structs.replace(view, offered=view.device in offered) for view in views)
        return msgspec.json.encode(views) + b"\n"

    def figures(self) -> dict[str, DeviceFigures]:
        """Return the figures of PFs by PCI address and of GPUs by UUID."""
        now = self._clock()
        nics = {address: nic.figures(now) for address, nic in self.nics.devices.items()}
        gpus = {uuid: gpu.figures() for uuid, gpu in self.gpus.devices.items() if gpu.changed_at is not None}
        return {**nics, **gpus}

    def failed_s(self, keys: Collection[str]) -> float | None:
        """Return for how many seconds one of these has failed, under earlier agents too: PCI addresses of functions,
        UUIDs of GPUs. ``None``: none of them is known to have failed."""
        nics = self.nics.devices.values()
        found = [nic.failed_since.get(key) for key in keys for nic in nics]
        found += [gpu.failed_since for key in keys if (gpu := self.gpus.devices.get(key)) is not None]
        began = min((at for at in found if at is not None), default=None)
        return None if began is None else max(0.0, self._clock() - began)

    # --- over a restart -------------------------------------------------------------------------------

    def store(self, *, last: bool = False) -> None:
        """Put the present records into the state file; the ``last`` ones with their last readings."""
        before = {} if last else self._stored_nics
        now = {self._identity(address): record for address, record in self.nics.records().items()}
        nics = {device: record.since(before.get(device)) for device, record in now.items()}
        self._stored_nics = nics
        absent = {
            device: record
            for device, record in self._nic_records.items()
            if not any(device.matches(known) for known in nics)
        }
        self.state_file.store(NIC_SECTION, {**absent, **nics})
        if self._with_gpus:
            # A later reading alone is no news.
            known = self._gpu_records
            self._gpu_records = {
                uuid: record if record.differs(known.get(uuid)) else known[uuid]
                for uuid, record in self.gpus.records().items()
            }
            gpus = {
                DeviceIdentity(record.reading.pci_address or "", uuid): record
                for uuid, record in self._gpu_records.items()
            }
            self.state_file.store(GPU_SECTION, gpus)

    def _identity(self, address: str) -> DeviceIdentity:
        return DeviceIdentity(address, self._identities.get(address))

    def _load(self, section: str, type_: type[_R]) -> dict[DeviceIdentity, _R]:
        """Return the records of a section without impossible ones."""
        now = self._clock()
        records = self.state_file.load(section, type_)
        possible = {device: record for device, record in records.items() if record.is_possible(now)}
        for device in records.keys() - possible.keys():
            log.warning(
                "A record of the state file is impossible and ignored. room=%s pci=%s",
                section,
                device.pci_address,
            )
        return possible

    def _restore_nics(self, functions: Iterable[Function]) -> None:
        """Restore the records of PFs that appear for the first time."""
        restored: dict[str, NicRecord] = {}
        for function in functions:
            address = function.pci_address
            if function.parent is not None or address in self.nics.devices:
                continue
            device = self._identity(address)
            for known, record in self._nic_records.items():
                if device.matches(known):
                    restored[address] = record
        if restored:
            self._nic_records = {
                device: record
                for device, record in self._nic_records.items()
                if device.pci_address not in restored
            }
            self.nics.restore(restored)

    def _restore_gpus(self) -> None:
        self._gpu_records = {record.uuid: record for record in self._load(GPU_SECTION, GpuRecord).values()}
        self.gpus.restore(self._gpu_records.values())
        if self._gpu_records:
            log.info("The faults of GPUs before the restart are restored. gpus=%d", len(self._gpu_records))
