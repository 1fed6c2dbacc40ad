"""What stands against the GPUs: it hears what the sessions hear, remembers, judges and says.

It outlives the sessions with the driver and the task that keeps them, so that none of these condemns or
forgets a GPU; what must outlive the process as well goes to the memory (``sources/state_file.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from nodeagent.health.explain import DeviceView, explain_gpus
from nodeagent.health.gpu_judge import GpuJudge
from nodeagent.health.judged_device import DeviceFigures
from nodeagent.health.record import GpuRecord
from nodeagent.health.xids import GpuTerms, severity
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import measurement
from nodeagent.model import Gpu
from nodeagent.sampling.reader_status import ReaderStatus
from nodeagent.sources.nvml_session import NOWHERE, Measured, Place, Reading, boottime
from nodeagent.sources.state_file import Memory, Who

log = logging.getLogger(__name__)

ROOM = "gpu"
"""Where the memory keeps what is ours."""


class Ledger:
    """Belongs to one event loop. ``tell`` says who is to hear."""

    def __init__(self, terms: GpuTerms | None = None, memory: Memory | None = None) -> None:
        self.judge = GpuJudge(terms)
        self.memory = memory or Memory.none()
        self.version: str | None = None
        self.xids: Counter[tuple[str, int]] = Counter()
        """By UUID and number, ignored ones too; ``nodeagent_gpu_xid_errors_total``."""
        self.xid_times: dict[tuple[str, int], float] = {}
        """When each was heard last, in seconds since boot."""
        self._state: Callable[[tuple[Gpu, ...]], object] = lambda _: None
        self._samples: Callable[[tuple[Sample, ...]], object] = lambda _: None
        self._vitals: dict[str, Sample] = {}
        self._collector = ReaderStatus(Source.GPU)
        self._places: dict[str, Place] = {}
        self._said: dict[str, str] = {}
        self._kept: dict[str, GpuRecord] = {}
        self._recall()

    def tell(
        self,
        state: Callable[[tuple[Gpu, ...]], object],
        samples: Callable[[tuple[Sample, ...]], object] | None = None,
    ) -> None:
        """``state`` hears all GPUs at every reading and event, ``samples`` what was measured on each."""
        self._state = state
        if samples is not None:
            self._samples = samples

    def explained(self) -> tuple[DeviceView, ...]:
        """Each GPU with what stands behind its health, by index."""
        return explain_gpus(self.judge, boottime())

    def samples(self) -> tuple[Sample, ...]:
        """The newest of each GPU."""
        return tuple(self._vitals.values())

    def reader_statuses(self) -> tuple[ReaderStatus, ...]:
        """How the reading of the vitals goes; none where there is no driver."""
        return (self._collector,)

    def figures(self) -> dict[str, DeviceFigures]:
        """By UUID."""
        return {uuid: gpu.figures() for uuid, gpu in self.judge.gpus.items() if gpu.changed_at is not None}

    def hear_event(self, event: GpuEvent) -> None:
        if event.unavailable:
            log.warning("The driver has given a GPU up as unavailable. uuid=%s", event.uuid)
            self._judge(events=(event,))
        if event.xid is None:
            return
        self.xids[event.uuid or "", event.xid] += 1
        self.xid_times[event.uuid or "", event.xid] = boottime()
        log.warning(
            "A GPU reports an XID. uuid=%s xid=%d severity=%s",
            event.uuid,
            event.xid,
            severity(event.xid, self.judge.terms),
        )
        self._judge(events=(event,))

    def hear_reading(self, news: Reading) -> None:
        for address, place in news.places.items():
            if place != NOWHERE or address not in self._places:  # one that fell off the bus has left sysfs
                self._places[address] = place
        self.version = news.version
        answers = f"The GPU driver answers. version={news.version} gpus={len(news.readings)}"
        self.say("driver", answers, logging.INFO)
        self._judge(readings=news.readings)
        told = {gpu.index for gpu in self.judge.gpus.values()}
        for reading in news.readings:
            if reading.index not in told:
                self.say(
                    f"gpu {reading.index}",
                    f"A GPU cannot be told and is not offered. index={reading.index} why={reading.fault!r}",
                )

    def hear_vitals(self, news: Measured) -> None:
        if news.why is not None:
            self._collector.failed(news.why)
            self.say("vitals", f"The vitals of the GPUs cannot be read; they are judged without. {news.why}")
            return
        self._said.pop("vitals", None)
        self._collector.succeeded(news.at, news.seconds)
        for one in news.vitals:
            strange = sorted({*one.absurd, *(name for name in one.values if measurement(name) is None)})
            if strange:
                self.say(
                    f"{one.uuid} absurd",
                    f"A GPU tells what cannot be; it is left out. uuid={one.uuid} vitals={strange!r}",
                )
        told = tuple(self._sample(news.at, one) for one in news.vitals)
        self._vitals |= {sample.device: sample for sample in told}
        if told:
            self._samples(told)
        self._judge(vitals=news.vitals)

    def _sample(self, at: float, vitals: GpuVitals) -> Sample:
        values = {name: value for name, value in vitals.values.items() if measurement(name) is not None}
        values |= {f"gpu_xids/{xid}": n for (uuid, xid), n in self.xids.items() if uuid == vitals.uuid}
        gpu = self.judge.gpus.get(vitals.uuid)
        action = None if gpu is None else gpu.reading.recovery_action
        also = {"gpu_driver": self.version, "gpu_recovery_action": action}
        texts = vitals.texts | {name: text for name, text in also.items() if text is not None}
        return Sample(at, vitals.uuid, Source.GPU, values, texts)

    def find_absent(self, why: str, again_s: float) -> None:
        absent = f"There is no GPU driver; it is looked for every {again_s:g} s. {why}"
        self.say("driver", absent, logging.INFO)
        self._collector = ReaderStatus(Source.GPU)
        self._judge(readings=())

    def fall_silent(self, why: str) -> None:
        self._collector.failed(why)
        self.say("driver", f"The GPU driver is silent; what was known of its GPUs stands. {why}")
        self.judge.fall_silent(why, boottime())
        gpus = self._gpus()
        if gpus:
            self._state(gpus)

    def _judge(
        self,
        *,
        events: tuple[GpuEvent, ...] = (),
        readings: tuple[GpuReading, ...] | None = None,
        vitals: tuple[GpuVitals, ...] = (),
    ) -> None:
        now = boottime()
        self.judge.take_events(events, now)
        if readings is not None:
            self.judge.take_readings(readings, now)
        self.judge.take_vitals(vitals, now)
        self._remember()
        self.judge.judge(now)
        gpus = self._gpus()
        for gpu in gpus:
            reasons = ",".join(reason.key for reason in gpu.health.reasons)
            self.say(
                gpu.uuid,
                f"A GPU is {gpu.health.state}. uuid={gpu.uuid} allocatable={gpu.health.allocatable} "
                f"reasons={reasons or 'none'}",
                logging.WARNING if gpu.health.reasons else logging.INFO,
            )
        self._state(gpus)

    def _recall(self) -> None:
        now = boottime()
        records = [
            record for record in self.memory.recall(ROOM, GpuRecord).values() if record.is_possible(now)
        ]
        self.judge.restore(records)
        self._kept = {record.uuid: record for record in records}
        if records:
            log.info("What stood against GPUs before the restart is remembered. gpus=%d", len(records))

    def _remember(self) -> None:
        """Those that are the same but for the time of reading are not written again."""
        before = self._kept
        records = self.judge.records()
        self._kept = {
            uuid: record if record.differs(before.get(uuid)) else before[uuid]
            for uuid, record in records.items()
        }
        self.memory.keep(
            ROOM, {Who(one.reading.pci_address or "", one.uuid): one for one in self._kept.values()}
        )

    def _gpus(self) -> tuple[Gpu, ...]:
        """Those of which enough is known to hand them out; the others have been logged."""
        gpus: list[Gpu] = []
        for uuid, state in self.judge.gpus.items():
            reading = state.reading
            if reading.pci_address is None or reading.memory_mib is None:
                why = reading.fault or "the driver does not say its memory or PCI address"
                self.say(f"{uuid} facts", f"A GPU is not offered. uuid={uuid} why={why!r}")
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
                    health=self.judge.health(uuid),
                )
            )
        return tuple(gpus)

    def say(self, what: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence when it is another than the last about the same thing."""
        if self._said.get(what) != sentence:
            self._said[what] = sentence
            log.log(level, "%s", sentence)
