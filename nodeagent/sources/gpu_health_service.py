"""What stands against the GPUs: it hears what the sessions hear, remembers, judges and says.

It outlives the sessions with the driver and the task that keeps them, so that none of these condemns or
forgets a GPU; what must outlive the process as well goes to the memory (``sources/state_file.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from nodeagent.health.explain import DeviceView
from nodeagent.health.gpu_record import lasting, same, sound
from nodeagent.health.gpuguard import Guard
from nodeagent.health.gpuview import explain_gpu
from nodeagent.health.xids import Latch, Rules, judge, severity, unknown, verdict
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import measurement
from nodeagent.model import Gpu, Health
from nodeagent.sampling.collectors import Collector
from nodeagent.sources.nvml_session import NOWHERE, Measured, Place, Reading, boottime
from nodeagent.sources.state_file import Memory, Who

log = logging.getLogger(__name__)

ROOM = "gpu"
"""Where the memory keeps what is ours."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Of one GPU, for metrics. ``since``: when its state became what it is, in seconds since boot.
    ``transitions``: (from, to) → how often. ``values``: what the rules measured last, by rule."""

    since: float | None
    penalty: float | None = None
    transitions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


class Ledger:
    """Belongs to one event loop. ``tell`` says who is to hear."""

    def __init__(
        self, rules: Rules | None = None, memory: Memory | None = None, guard: Guard | None = None
    ) -> None:
        self.rules = rules or Rules()
        self.guard = guard or Guard()
        self.memory = memory or Memory.none()
        self.latches: tuple[Latch, ...] = ()
        self.version: str | None = None
        self.xids: Counter[tuple[str, int]] = Counter()
        """By UUID and number, ignored ones too; ``nodeagent_gpu_xid_errors_total``."""
        self.xid_times: dict[tuple[str, int], float] = {}
        """When each was heard last, in seconds since boot."""
        self._state: Callable[[tuple[Gpu, ...]], object] = lambda _: None
        self._samples: Callable[[tuple[Sample, ...]], object] = lambda _: None
        self._vitals: dict[str, Sample] = {}
        self._collector = Collector(Source.GPU)
        self._places: dict[str, Place] = {}
        self._said: dict[str, str] = {}
        self._states: dict[str, tuple[str, float]] = {}
        self._transitions: dict[str, Counter[tuple[str, str]]] = {}
        self._kept: dict[str, Latch] = {}
        self._healths: dict[str, Health] = {}
        self._silent: str | None = None
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
        return tuple(self._explained(latch, boottime()) for latch in self.latches)

    def _explained(self, latch: Latch, now: float) -> DeviceView:
        """A driver that is silent is no rule of a GPU, yet what is said of it."""
        sample = self._vitals.get(latch.uuid)
        since = self._states.get(latch.uuid, (None, None))[1]
        view = explain_gpu(latch, sample.values if sample is not None else {}, self.rules, now, since)
        health = self._health(latch)
        if self._silent is not None:
            health = unknown(health, self._silent)
        return msgspec.structs.replace(
            view, state=health.state, reasons=health.reasons, allocatable=health.allocatable
        )

    def _health(self, latch: Latch) -> Health:
        """As it was told last; one that was remembered and not judged since, as it was."""
        found = self._healths.get(latch.uuid)
        return verdict(latch, self.rules) if found is None else found

    def samples(self) -> tuple[Sample, ...]:
        """The newest of each GPU."""
        return tuple(self._vitals.values())

    def collectors(self) -> tuple[Collector, ...]:
        """How the reading of the vitals goes; none where there is no driver."""
        return (self._collector,)

    def figures(self) -> dict[str, GpuFigures]:
        """By UUID."""
        values = {
            view.device: {rule.rule: rule.value for rule in view.rules if rule.value is not None}
            for view in self.explained()
        }
        return {
            uuid: GpuFigures(since, None, dict(self._transitions.get(uuid, {})), values.get(uuid, {}))
            for uuid, (_, since) in self._states.items()
        }

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
            severity(event.xid, self.rules),
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
        told = {latch.reading.index for latch in self.latches}
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
        action = next((one.reading.recovery_action for one in self.latches if one.uuid == vitals.uuid), None)
        also = {"gpu_driver": self.version, "gpu_recovery_action": action}
        texts = vitals.texts | {name: text for name, text in also.items() if text is not None}
        return Sample(at, vitals.uuid, Source.GPU, values, texts)

    def find_absent(self, why: str, again_s: float) -> None:
        absent = f"There is no GPU driver; it is looked for every {again_s:g} s. {why}"
        self.say("driver", absent, logging.INFO)
        self._collector = Collector(Source.GPU)
        self._judge(readings=())

    def fall_silent(self, why: str) -> None:
        self._silent = why
        self._collector.failed(why)
        self.say("driver", f"The GPU driver is silent; what was known of its GPUs stands. {why}")
        gpus = tuple(replace(gpu, health=unknown(gpu.health, why)) for gpu in self._gpus())
        for gpu in gpus:
            self._count(gpu)
        if gpus:
            self._state(gpus)

    def _judge(
        self,
        *,
        events: tuple[GpuEvent, ...] = (),
        readings: tuple[GpuReading, ...] | None = None,
        vitals: tuple[GpuVitals, ...] = (),
    ) -> None:
        self._silent = None
        self.latches = judge(
            self.latches, boottime(), self.rules, events=events, readings=readings, vitals=vitals
        )
        self._remember()
        healths = {latch.uuid: verdict(latch, self.rules) for latch in self.latches}
        self._healths = self.guard.judge(healths, boottime())
        gpus = self._gpus()
        for gpu in gpus:
            self._count(gpu)
            reasons = ",".join(reason.key for reason in gpu.health.reasons)
            self.say(
                gpu.uuid,
                f"A GPU is {gpu.health.state}. uuid={gpu.uuid} allocatable={gpu.health.allocatable} "
                f"reasons={reasons or 'none'}",
                logging.WARNING if gpu.health.reasons else logging.INFO,
            )
        self._state(gpus)

    def _count(self, gpu: Gpu) -> None:
        state = gpu.health.state.value
        before = self._states.get(gpu.uuid)
        if before is None or before[0] != state:
            self._states[gpu.uuid] = (state, boottime())
            if before is not None:
                self._transitions.setdefault(gpu.uuid, Counter())[before[0], state] += 1

    def _recall(self) -> None:
        now = boottime()
        latches = self.memory.recall(ROOM, Latch).values()
        believed = {latch.uuid: latch for latch in latches if sound(latch, now)}
        self.latches = tuple(sorted(believed.values(), key=lambda latch: (latch.reading.index, latch.uuid)))
        self._kept = believed
        if believed:
            log.info("What stood against GPUs before the restart is remembered. gpus=%d", len(believed))

    def _remember(self) -> None:
        """Those that are the same but for the time of reading are not written again."""
        before, self._kept = self._kept, {}
        for latch in self.latches:
            old = before.get(latch.uuid)
            self._kept[latch.uuid] = old if old is not None and same(old, latch) else lasting(latch)
        self.memory.keep(
            ROOM, {Who(one.reading.pci_address or "", one.uuid): one for one in self._kept.values()}
        )

    def _gpus(self) -> tuple[Gpu, ...]:
        """Those of which enough is known to hand them out; the others have been logged."""
        gpus: list[Gpu] = []
        for latch in self.latches:
            reading = latch.reading
            if reading.pci_address is None or reading.memory_mib is None:
                why = reading.fault or "the driver does not say its memory or PCI address"
                self.say(f"{latch.uuid} facts", f"A GPU is not offered. uuid={latch.uuid} why={why!r}")
                continue
            numa_node, pci_path = self._places.get(reading.pci_address, NOWHERE)
            gpus.append(
                Gpu(
                    uuid=latch.uuid,
                    index=reading.index,
                    minor=reading.minor,
                    name=reading.name or "",
                    pci_address=reading.pci_address,
                    memory_mib=reading.memory_mib,
                    numa_node=numa_node,
                    pci_path=pci_path,
                    health=self._health(latch),
                )
            )
        return tuple(gpus)

    def say(self, what: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence when it is another than the last about the same thing."""
        if self._said.get(what) != sentence:
            self._said[what] = sentence
            log.log(level, "%s", sentence)
