"""The facts and figures of the GPUs, collected over all sessions with the driver.

The health service evaluates what a session reads; this module adds the place of each GPU, counts XIDs, keeps the newest
samples, and publishes the GPUs with their health. It compares the driver's list with the PCI bus and with the GPUs of
earlier agents. It outlives the sessions and their task, so that the end of one neither changes nor loses the health of
a GPU.

A domain that differs from the last one counts when two readings in succession report it: while the fabric is divided
again, the driver reports other IDs for a moment. A reading without a domain, of a driver that does not know it, changes
nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from nodeagent.facts.gpu_usage import GpuUsage
from nodeagent.facts.model import Gpu, GpuFunction, UnusableGpu
from nodeagent.health.service import HealthService
from nodeagent.health.unusable_gpus import DriverTrouble, find_unusable
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import DriverMessage, GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import measurement
from nodeagent.sources.nvml_session import NOWHERE, DriverReading, DriverVitals, Place
from nodeagent.sources.remembered_gpus import RememberedGpus

log = logging.getLogger(__name__)

SXIDS_MAX = 256
"""Series of errors of NVSwitches."""


class GpuPublisher:
    """Publishes the GPUs. Belongs to one event loop."""

    def __init__(self, health: HealthService, remembered: RememberedGpus | None = None) -> None:
        """Without ``remembered`` a GPU that is gone before the start is unknown."""
        self.health = health
        self.remembered = remembered or RememberedGpus()
        self.unusable: tuple[UnusableGpu, ...] = ()
        """The GPUs that no resource can offer, beside those that are published."""
        self.version: str | None = None
        self.xids: Counter[tuple[str, int]] = Counter()
        """By UUID and number, ignored ones too; ``nodeagent_gpu_xid_errors_total``."""
        self.xid_times: dict[tuple[str, int], float] = {}
        """The time of the last event of each, in seconds since boot."""
        self.sxids: Counter[tuple[str, int]] = Counter()
        """By PCI address of the NVSwitch and number; ``nodeagent_nvswitch_sxid_errors_total``."""
        self._judged = health.judged_gpus()
        """The GPUs that the driver listed, or an earlier agent, with the last health of each."""
        self._publish: Callable[[tuple[Gpu, ...]], object] = lambda _gpus: None
        self._publish_samples: Callable[[tuple[Sample, ...]], object] = lambda _samples: None
        self._publish_usage: Callable[[Mapping[str, GpuUsage], str | None], object] = lambda _usage, _why: (
            None
        )
        self._samples: dict[str, Sample] = {}
        self._status = ReaderStatus(Source.GPU)
        self._places: dict[str, Place] = {}
        self._domains = NvlinkDomains()
        self._islands = NvlinkIslands()
        self._logged: dict[str, str] = {}
        self._functions: tuple[GpuFunction, ...] | None = None
        self._excluded: frozenset[str] = frozenset()
        """The PCI addresses that the driver leaves out."""
        self._said: dict[str, str] = {}
        """Why the driver does not reach a GPU, by PCI address, as it wrote into the kernel log."""
        self._trouble: DriverTrouble | None = None
        self._has_driver_news = False
        """Whether the driver has answered, or is known to be absent."""
        self._has_list = False
        """Whether the driver has listed its GPUs."""

    def publish_to(
        self,
        gpus: Callable[[tuple[Gpu, ...]], object],
        samples: Callable[[tuple[Sample, ...]], object] | None = None,
    ) -> None:
        """``gpus`` takes all GPUs at every reading and event, ``samples`` the measured values of each."""
        self._publish = gpus
        if samples is not None:
            self._publish_samples = samples

    def publish_usage_to(self, usage: Callable[[Mapping[str, GpuUsage], str | None], object]) -> None:
        """``usage`` takes who uses each GPU, by UUID, at every measurement, or why this is unknown."""
        self._publish_usage = usage

    def samples(self) -> tuple[Sample, ...]:
        """The newest sample of each GPU."""
        return tuple(self._samples.values())

    def reader_statuses(self) -> tuple[ReaderStatus, ...]:
        """The status of the reading of measured values; without a driver it is empty."""
        return (self._status,)

    # --- from the session -----------------------------------------------------------------------------

    def take_event(self, event: GpuEvent) -> None:
        if event.unavailable:
            log.warning("The driver has given a GPU up as unavailable. uuid=%s", event.uuid)
            self._judge_event(event)
        if event.xid is None:
            return
        uuid = event.uuid if event.uuid is not None and event.uuid in self._judged.gpus else ""
        self.xids[uuid, event.xid] += 1
        self.xid_times[uuid, event.xid] = boottime()
        log.warning(
            "A GPU reports an XID. uuid=%s xid=%d severity=%s",
            event.uuid,
            event.xid,
            self.health.xid_severity(event.xid),
        )
        self._judge_event(event)

    def _judge_event(self, event: GpuEvent) -> None:
        self._judged = self.health.judge_gpus(events=(event,))
        self._publish(self._gpus())

    def take_messages(self, messages: Sequence[DriverMessage]) -> None:
        """Take new lines of the kernel log about NVLinks and NVSwitches, and about GPUs that are not reached."""
        said = {one.pci_address: one.words for one in messages if one.words}
        if said.items() - self._said.items():  # the driver repeats a line at each attempt to open the GPU
            self._said |= said
            log.warning("The kernel log tells why GPUs are not reached. gpus=%r", said)
            if self._has_driver_news:
                self._judged = self.health.judge_gpus(bus=self._bus())
                self._take_all()
        messages = [one for one in messages if not one.words]
        for one in messages:
            if one.switch and (
                (key := (one.pci_address, one.number)) in self.sxids or len(self.sxids) < SXIDS_MAX
            ):
                self.sxids[key] += 1
        if not messages or not self._judged.gpus:
            return
        first = messages[0]
        log.warning(
            "The kernel log reports NVLink errors. lines=%d first: pci=%s number=%d fatal=%s link=%s unit=%s",
            *(len(messages), first.pci_address, first.number, first.fatal, first.link, first.unit or "-"),
        )
        self._judged = self.health.judge_gpus(messages=messages)
        self._publish(self._gpus())

    def take_functions(self, functions: tuple[GpuFunction, ...]) -> None:
        """Take the GPUs on the PCI bus. Later changes count with the next reading: a GPU that was just plugged in is
        not lost before the driver has had time to list it."""
        first, self._functions = self._functions is None, functions
        if first and self._has_driver_news:
            self._judged = self.health.judge_gpus(bus=self._bus())
            self._remember(self._take_all())

    def take_reading(self, reading: DriverReading) -> None:
        self._recall()
        for address, place in reading.places.items():
            if place != NOWHERE or address not in self._places:  # a lost GPU is no longer in sysfs
                self._places[address] = place
        for gpu in reading.readings:
            if not gpu.lost:
                self._said.pop(gpu.pci_address or "", None)
        self._domains.take(reading.readings)
        self._islands.take(reading.readings, self._domains)
        self.version = reading.version
        answers = f"The GPU driver answers. version={reading.version!r} gpus={len(reading.readings)}"
        self.log_change("driver", answers, logging.INFO)
        self._trouble, self._excluded, self._has_list = None, reading.excluded, True
        self._judged = self.health.judge_gpus(
            readings=reading.readings, bus=self._bus(), mismatch=reading.mismatch
        )
        self._remember(self._take_all())

    def _remember(self, gpus: tuple[Gpu, ...]) -> None:
        """Keep the GPUs for the next agent. Without the bus their indexes may change."""
        if self._functions is not None and self._has_list:
            self.remembered.update(gpus)

    def _take_all(self) -> tuple[Gpu, ...]:
        """Publish the GPUs, find those that are unusable, and return the others."""
        gpus = self._gpus()
        known = {gpu.uuid for gpu in gpus}
        self.unusable = find_unusable(
            (self._bus() or {}).values(),
            (gpu.pci_address for gpu in gpus),
            self._judged.unnamed,
            (gpu.reading for uuid, gpu in self._judged.gpus.items() if uuid not in known),
            self._trouble,
        )
        self.health.take_unusable(self.unusable)
        self._log_unusable()
        self._publish(gpus)
        return gpus

    def _log_unusable(self) -> None:
        """Log each unusable GPU once, and again if its reason changes."""
        topics = set()
        for gpu in self.unusable:
            topics.add(topic := f"unusable {gpu.place}")
            reason = gpu.health.reasons[0]
            self.log_change(
                topic,
                f"A GPU is not offered. gpu={gpu.place!r} reason={reason.key} why={reason.detail!r}",
            )
        for topic in [name for name in self._logged if name.startswith("unusable ") and name not in topics]:
            del self._logged[topic]

    def _recall(self) -> None:
        """Take the GPUs of earlier agents once, when it is first known whether the driver lists them."""
        if self._has_driver_news:
            return
        self._has_driver_news = True
        for gpu in self.remembered.gpus:
            self._places[gpu.pci_address] = gpu.place
        if self.remembered.was_read:
            # A command may have removed a GPU while no agent ran; the state file has its faults.
            kept = {gpu.uuid for gpu in self.remembered.gpus}
            for uuid, judged in self._judged.gpus.items():
                if uuid not in kept and judged.lost:
                    self.health.forget_gpu(uuid)
        self.health.recall_gpus(gpu.reading for gpu in self.remembered.gpus)

    def forget(self, uuids: Iterable[str]) -> None:
        """Forget lost GPUs that a command has removed from the file. A GPU that the driver lists stays."""
        for uuid in uuids:
            gpu = self._judged.gpus.get(uuid)
            if gpu is not None and gpu.reading.lost:
                self.health.forget_gpu(uuid)
                log.warning("A lost GPU is forgotten, because a command has removed it. uuid=%s", uuid)
        self._judged = self.health.judged_gpus()
        self.remembered.update(self._take_all())

    def publish_again(self) -> None:
        """Publish the GPUs with their present health, if they are known: cordons have changed."""
        self._judged = self.health.judged_gpus()
        if self._has_driver_news:
            self._publish(self._gpus())

    def _bus(self) -> dict[str, GpuFunction] | None:
        if self._functions is None:
            return None
        return {
            function.pci_address: replace(
                function,
                excluded=function.pci_address in self._excluded,
                said=self._said.get(function.pci_address, ""),
            )
            for function in self._functions
        }

    def take_vitals(self, measured: DriverVitals) -> None:
        if measured.why is not None:
            self._status.failed(measured.why)
            self.log_change(
                "vitals", f"The GPUs cannot be measured; their health is without it. {measured.why}"
            )
            self._publish_usage({}, measured.why)
            return
        self._logged.pop("vitals", None)
        self._status.succeeded(measured.at, measured.seconds)
        known = [vitals for vitals in measured.vitals if vitals.uuid in self._judged.gpus]
        for vitals in known:
            unusable = sorted(
                {*vitals.absurd, *(name for name in vitals.values if measurement(name) is None)}
            )
            if unusable:
                self.log_change(
                    f"{vitals.uuid} absurd",
                    f"Implausible GPU values dropped. uuid={vitals.uuid} vitals={unusable!r}",
                )
        samples = tuple(self._sample(measured.at, vitals) for vitals in known)
        self._samples |= {sample.device: sample for sample in samples}
        if samples:
            self._publish_samples(samples)
        self._judged = self.health.judge_gpus(vitals=measured.vitals)
        self._publish(self._gpus())
        users = {vitals.uuid: vitals.usage for vitals in known if vitals.usage is not None}
        self._publish_usage(users, measured.users_unknown)

    def take_absence(self, why: str, again_s: float) -> None:
        """There is no driver; the source looks for one every ``again_s``."""
        self._recall()
        absent = f"There is no GPU driver; the next look is in {again_s:g} s. {why}"
        self.log_change("driver", absent, logging.INFO)
        self._status = ReaderStatus(Source.GPU)
        sentence = f"No GPU driver is loaded, so NVML cannot name this GPU: {why}."
        self._trouble = DriverTrouble(sentence, absent=True)
        self._judged = self.health.judge_gpus(readings=(), bus=self._bus())
        self._take_all()

    def take_driver_failure(self, why: str) -> None:
        """The driver does not answer."""
        self._status.failed(why)
        self.log_change("driver", f"The GPU driver does not answer; the last facts of its GPUs stay. {why}")
        self._judged = self.health.lose_gpu_driver(why)
        if gpus := self._gpus():
            self._publish(gpus)

    def take_mismatch(self, why: str) -> None:
        """Library and kernel module of the driver have different versions, so that it does not answer."""
        self._recall()
        self._status.failed(why)
        self.log_change("driver", f"The GPU driver was upgraded; new pods get no GPU until this ends. {why}")
        sentence = f"The driver was upgraded and cannot be used: {why}."
        self._trouble = DriverTrouble(sentence)
        self._judged = self.health.judge_gpus(mismatch=sentence)
        self._take_all()

    # --- to the inventory -----------------------------------------------------------------------------

    def _sample(self, at: float, vitals: GpuVitals) -> Sample:
        values = {name: value for name, value in vitals.values.items() if measurement(name) is not None}
        values |= {f"gpu_xids/{xid}": n for (uuid, xid), n in self.xids.items() if uuid == vitals.uuid}
        gpu = self._judged.gpus.get(vitals.uuid)
        action = None if gpu is None else gpu.reading.recovery_action
        texts = {"gpu_driver": self.version, "gpu_recovery_action": action}
        known = {name: text for name, text in texts.items() if text is not None}
        return Sample(at, vitals.uuid, Source.GPU, values, vitals.texts | known)

    def _gpus(self) -> tuple[Gpu, ...]:
        """The GPUs with known memory and PCI address."""
        gpus: list[Gpu] = []
        for uuid, judged in self._judged.gpus.items():
            reading = judged.reading
            if reading.pci_address is None or reading.memory_mib is None:
                continue
            numa_node, pci_path = self._places.get(reading.pci_address, NOWHERE)
            gpus.append(
                Gpu(
                    uuid=uuid,
                    index=judged.index,
                    # Another GPU may have the minor number of a GPU that the driver does not list.
                    minor=reading.minor if judged.listed else None,
                    name=reading.name or "",
                    pci_address=reading.pci_address,
                    memory_mib=reading.memory_mib,
                    numa_node=numa_node,
                    pci_path=pci_path,
                    health=judged.health,
                    lost=reading.lost,
                    nvlink_domain=self._domains.of(uuid),
                    nvlink_island=self._islands.of(reading.pci_address),
                    mig=reading.mig,
                    mig_devices=reading.mig_devices or (),
                    mig_profiles=reading.mig_profiles or (),
                    mig_instances=reading.mig_instances or (),
                )
            )
        return tuple(gpus)

    def log_change(self, topic: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence if it differs from the last one on this topic."""
        if self._logged.get(topic) != sentence:
            self._logged[topic] = sentence
            log.log(level, "%s", sentence)


class NvlinkDomains:
    """By the UUID of the GPU."""

    def __init__(self) -> None:
        self._domains: dict[str, str] = {}
        self._differing: dict[str, str] = {}

    def take(self, readings: Iterable[GpuReading]) -> None:
        for reading in readings:
            uuid, domain = reading.uuid, reading.nvlink_domain
            if uuid is None or domain is None:
                continue
            differing = self._differing.pop(uuid, None)
            if domain == self._domains.setdefault(uuid, domain):
                continue
            if domain == differing:
                self._domains[uuid] = domain
            else:
                self._differing[uuid] = domain

    def of(self, uuid: str) -> str | None:
        """The domain; ``None`` if no reading had one."""
        return self._domains.get(uuid)


class NvlinkIslands:
    """Which GPUs of this machine NVLinks join: directly, by an NVSwitch, or by the fabric of an NVLink domain. What was
    read last of a GPU that is lost stays."""

    def __init__(self) -> None:
        self._ends: dict[str, set[str]] = {}
        self._islands: dict[str, str] = {}

    def take(self, readings: Iterable[GpuReading], domains: NvlinkDomains) -> None:
        for reading in readings:
            gpu = reading.pci_address
            if gpu is None or reading.uuid is None:
                continue
            if reading.nvlink_ends is not None:
                self._ends[gpu] = {*reading.nvlink_ends}
            if domain := domains.of(reading.uuid):
                self._ends.setdefault(gpu, set()).add(domain)
        islands: list[set[str]] = []
        for gpu, ends in self._ends.items():
            reached = {gpu, *ends}
            touching = [island for island in islands if island & reached]
            islands = [island for island in islands if not island & reached]
            islands.append(reached.union(*touching))
        self._islands = {
            gpu: min(island & self._ends.keys()) for island in islands for gpu in island & self._ends.keys()
        }

    def of(self, address: str) -> str | None:
        """By the PCI address of a GPU. One without NVLinks is an island of its own."""
        return self._islands.get(address)
