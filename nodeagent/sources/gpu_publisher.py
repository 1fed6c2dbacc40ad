"""The facts and figures of the GPUs, collected over all sessions with the driver.

The health service evaluates what a session reads; this module adds the place of each GPU, counts XIDs, keeps the newest
samples, and publishes the GPUs with their health. It outlives the sessions and their task, so that the end of one
neither changes nor loses the health of a GPU.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from nodeagent.health.service import HealthService
from nodeagent.health.xids import severity
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import GpuEvent, GpuVitals
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import measurement
from nodeagent.model import Gpu
from nodeagent.sources.nvml_session import NOWHERE, DriverReading, DriverVitals, Place

log = logging.getLogger(__name__)


class GpuPublisher:
    """Publishes the GPUs. Belongs to one event loop."""

    def __init__(self, health: HealthService) -> None:
        self.health = health
        self.version: str | None = None
        self.xids: Counter[tuple[str, int]] = Counter()
        """By UUID and number, ignored ones too; ``nodeagent_gpu_xid_errors_total``."""
        self.xid_times: dict[tuple[str, int], float] = {}
        """The time of the last event of each, in seconds since boot."""
        self._publish: Callable[[tuple[Gpu, ...]], object] = lambda _gpus: None
        self._publish_samples: Callable[[tuple[Sample, ...]], object] = lambda _samples: None
        self._samples: dict[str, Sample] = {}
        self._status = ReaderStatus(Source.GPU)
        self._places: dict[str, Place] = {}
        self._logged: dict[str, str] = {}

    def publish_to(
        self,
        gpus: Callable[[tuple[Gpu, ...]], object],
        samples: Callable[[tuple[Sample, ...]], object] | None = None,
    ) -> None:
        """``gpus`` takes all GPUs at every reading and event, ``samples`` the measured values of each."""
        self._publish = gpus
        if samples is not None:
            self._publish_samples = samples

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
            self.health.judge_gpus(events=(event,))
            self._publish(self._gpus())
        if event.xid is None:
            return
        self.xids[event.uuid or "", event.xid] += 1
        self.xid_times[event.uuid or "", event.xid] = boottime()
        log.warning(
            "A GPU reports an XID. uuid=%s xid=%d severity=%s",
            event.uuid,
            event.xid,
            severity(event.xid, self.health.gpus.settings),
        )
        self.health.judge_gpus(events=(event,))
        self._publish(self._gpus())

    def take_reading(self, reading: DriverReading) -> None:
        for address, place in reading.places.items():
            if place != NOWHERE or address not in self._places:  # a lost GPU is no longer in sysfs
                self._places[address] = place
        self.version = reading.version
        answers = f"The GPU driver answers. version={reading.version} gpus={len(reading.readings)}"
        self.log_change("driver", answers, logging.INFO)
        self.health.judge_gpus(readings=reading.readings)
        self._publish(self._gpus())
        known = {gpu.index for gpu in self.health.gpus.gpus.values()}
        for gpu in reading.readings:
            if gpu.index not in known:
                self.log_change(
                    f"gpu {gpu.index}",
                    f"A GPU without a UUID is not offered. index={gpu.index} why={gpu.fault!r}",
                )

    def take_vitals(self, measured: DriverVitals) -> None:
        if measured.why is not None:
            self._status.failed(measured.why)
            self.log_change(
                "vitals", f"The GPUs cannot be measured; their health is without it. {measured.why}"
            )
            return
        self._logged.pop("vitals", None)
        self._status.succeeded(measured.at, measured.seconds)
        for vitals in measured.vitals:
            unusable = sorted(
                {*vitals.absurd, *(name for name in vitals.values if measurement(name) is None)}
            )
            if unusable:
                self.log_change(
                    f"{vitals.uuid} absurd",
                    f"Implausible GPU values dropped. uuid={vitals.uuid} vitals={unusable!r}",
                )
        samples = tuple(self._sample(measured.at, vitals) for vitals in measured.vitals)
        self._samples |= {sample.device: sample for sample in samples}
        if samples:
            self._publish_samples(samples)
        self.health.judge_gpus(vitals=measured.vitals)
        self._publish(self._gpus())

    def take_absence(self, why: str, again_s: float) -> None:
        """There is no driver; the source looks for one every ``again_s``."""
        absent = f"There is no GPU driver; the next look is in {again_s:g} s. {why}"
        self.log_change("driver", absent, logging.INFO)
        self._status = ReaderStatus(Source.GPU)
        self.health.judge_gpus(readings=())
        self._publish(self._gpus())

    def take_driver_failure(self, why: str) -> None:
        """The driver does not answer."""
        self._status.failed(why)
        self.log_change("driver", f"The GPU driver does not answer; the last facts of its GPUs stay. {why}")
        self.health.lose_gpu_driver(why)
        if gpus := self._gpus():
            self._publish(gpus)

    # --- to the inventory -----------------------------------------------------------------------------

    def _sample(self, at: float, vitals: GpuVitals) -> Sample:
        values = {name: value for name, value in vitals.values.items() if measurement(name) is not None}
        values |= {f"gpu_xids/{xid}": n for (uuid, xid), n in self.xids.items() if uuid == vitals.uuid}
        gpu = self.health.gpus.gpus.get(vitals.uuid)
        action = None if gpu is None else gpu.reading.recovery_action
        texts = {"gpu_driver": self.version, "gpu_recovery_action": action}
        known = {name: text for name, text in texts.items() if text is not None}
        return Sample(at, vitals.uuid, Source.GPU, values, vitals.texts | known)

    def _gpus(self) -> tuple[Gpu, ...]:
        """The GPUs with known memory and PCI address; the others are logged."""
        gpus: list[Gpu] = []
        for uuid, state in self.health.gpus.gpus.items():
            reading = state.reading
            if reading.pci_address is None or reading.memory_mib is None:
                why = reading.fault or "the driver reports no memory size or PCI address"
                self.log_change(f"{uuid} facts", f"A GPU is not offered. uuid={uuid} why={why!r}")
                continue
            numa_node, pci_path = self._places.get(reading.pci_address, NOWHERE)
            gpus.append(
                Gpu(
                    uuid=uuid,
                    index=reading.index,
                    minor=reading.minor,
                    name=reading.name or "",
                    pci_address=reading.pci_address,
                    memory_mib=reading.memory_mib,
                    numa_node=numa_node,
                    pci_path=pci_path,
                    health=self.health.gpus.health(uuid),
                )
            )
        return tuple(gpus)

    def log_change(self, topic: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence if it differs from the last one on this topic."""
        if self._logged.get(topic) != sentence:
            self._logged[topic] = sentence
            log.log(level, "%s", sentence)
