"""The rule engine of the node's GPUs: events, readings and measured values in, the health of every GPU out. Pure.

* Evidence is about one GPU. An error of the whole driver, or no answer from it, makes no GPU Unhealthy.
* A GPU that was once known stays known until another GPU is in its slot, or a command drops it: a pod may hold it.
* While a known GPU is missing, the others keep their indexes, although NVML counts without it: a selection by index
  would otherwise move GPUs from one resource to another.
* Equal facts give equal answers: a reason contains nothing that counts or ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from nodeagent.facts.model import GpuFunction, Health, Reason, State
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.gpu_state import GpuRules, GpuState
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.record import GpuRecord
from nodeagent.health.rules.gpu_rules import Whereabouts
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals

KNOWN_MAX = 64
"""New UUIDs in the life of one agent. A driver with another UUID at each reading would make the device list grow. GPUs
of earlier agents do not count: they must not take the place of a GPU that the driver lists."""
_INDEX_MAX = 1023


class GpuJudge:
    def __init__(self, settings: GpuSettings | None = None, guard: GuardSettings | None = None) -> None:
        self.settings = settings or GpuSettings()
        guard = guard or GuardSettings()
        self.gpus: dict[str, GpuState] = {}
        """By UUID, in the order of the driver."""
        self.unnamed: tuple[GpuReading, ...] = ()
        """The readings of the last list that name no known GPU."""
        self.replaced: list[tuple[str, str]] = []
        """The UUIDs of GPUs that were replaced in their slot, each with the new one; the caller empties the list."""
        self._known = 0
        self._rules = GpuRules(self.settings)
        # A single GPU is always allowed, whatever its share of the node.
        self._guard = Guard(guard.share, guard.seconds, least=1.0)
        self._health: dict[str, Health] = {}
        self._driver_failure: str | None = None

    def adopt_guard(self, guard: GuardSettings) -> None:
        """Apply changed settings of the guard, from the next evaluation on."""
        self._guard.share, self._guard.seconds = guard.share, guard.seconds

    def take_events(self, events: Iterable[GpuEvent], now: float) -> None:
        """An event of a GPU that was never read is dropped."""
        for event in events:
            gpu = self.gpus.get(event.uuid or "")
            if gpu is not None and (event.xid is not None or event.unavailable):
                gpu.take_event(event.xid, now)

    def take_readings(
        self,
        readings: Sequence[GpuReading],
        now: float,
        bus: Mapping[str, GpuFunction] | None = None,
        mismatch: str | None = None,
    ) -> None:
        """Take one reading of all GPUs. A GPU that it does not contain is lost.

        ``bus`` has the GPUs on the PCI bus, by address; ``None``: it was not read yet.
        ``mismatch`` is a sentence if library and kernel module of the driver differ.
        """
        by_uuid = self._identify(readings)
        for uuid, reading in tuple(by_uuid.items()):
            if uuid not in self.gpus and not self._add(reading, by_uuid, now):
                del by_uuid[uuid]
        used = {id(reading) for reading in by_uuid.values()}
        self.unnamed = tuple(reading for reading in readings if id(reading) not in used)
        for uuid, gpu in self.gpus.items():
            gpu.take_mismatch(mismatch, now)
            gpu.take_reading(self._with_uuid(by_uuid, uuid), now, self._whereabouts(gpu, bus))
        self._number()

    def _add(self, reading: GpuReading, by_uuid: Mapping[str, GpuReading], now: float) -> bool:
        """Take a new GPU; the one that was in its slot is forgotten. ``False``: there were too many."""
        uuid, address = reading.uuid or "", reading.pci_address
        if self._known >= KNOWN_MAX:
            return False
        for old, gpu in tuple(self.gpus.items()):
            if address is not None and gpu.reading.pci_address == address and old not in by_uuid:
                self.forget(old)
                self.replaced.append((old, uuid))
        self.gpus[uuid] = GpuState(reading, now, self._rules)
        self._known += 1
        return True

    def locate(self, bus: Mapping[str, GpuFunction], now: float) -> None:
        """Take the GPUs on the PCI bus, which are known for the first time: they explain why a GPU is not listed."""
        for gpu in self.gpus.values():
            if not gpu.listed:
                gpu.take_reading(None, now, self._whereabouts(gpu, bus))

    @staticmethod
    def _with_uuid(by_uuid: Mapping[str, GpuReading], uuid: str) -> GpuReading | None:
        reading = by_uuid.get(uuid)
        return None if reading is None else structs.replace(reading, uuid=uuid)

    @staticmethod
    def _whereabouts(gpu: GpuState, bus: Mapping[str, GpuFunction] | None) -> Whereabouts:
        address = gpu.reading.pci_address
        if bus is None or address is None:
            return Whereabouts()
        return Whereabouts.on(bus, address)

    def recall(self, readings: Iterable[GpuReading], now: float) -> None:
        """Take the GPUs of an earlier agent, each with its last known values. They are lost until they are read."""
        for reading in readings:
            uuid = reading.uuid or ""
            if uuid not in self.gpus:
                self.gpus[uuid] = GpuState(reading, now, self._rules)
                self.gpus[uuid].listed = False
            self.gpus[uuid].number = reading.index
        self._number()

    def forget(self, uuid: str) -> None:
        """Forget a GPU that is gone for good."""
        self.gpus.pop(uuid, None)
        self._health.pop(uuid, None)

    def take_mismatch(self, sentence: str, now: float) -> None:
        """Library and kernel module of the driver have different versions, so that it does not answer."""
        for gpu in self.gpus.values():
            gpu.take_mismatch(sentence, now)

    def take_vitals(self, vitals: Iterable[GpuVitals], now: float) -> None:
        """Take the measured values of some GPUs."""
        for values in vitals:
            if (gpu := self.gpus.get(values.uuid)) is not None:
                gpu.take_vitals(values, now)

    def _identify(self, readings: Sequence[GpuReading]) -> dict[str, GpuReading]:
        """Return the readings by UUID. A reading without one is of the known GPU at its PCI address, or else of the
        one that was last at its index, unless that GPU has a reading of its own."""
        by_uuid: dict[str, GpuReading] = {}
        for reading in readings:
            if reading.uuid is not None:
                by_uuid.setdefault(reading.uuid, reading)
        at_address = {gpu.reading.pci_address: uuid for uuid, gpu in self.gpus.items()}
        at_index = {gpu.reading.index: uuid for uuid, gpu in self.gpus.items()}
        for reading in readings:
            if reading.uuid is None:
                known = at_index.get(reading.index)
                if reading.pci_address is not None:
                    known = at_address.get(reading.pci_address)
                if known is not None and known not in by_uuid:
                    by_uuid[known] = reading
        return by_uuid

    def _number(self) -> None:
        """Number the GPUs and sort them: by NVML's index, or by the last number while one is not listed."""
        if all(gpu.listed for gpu in self.gpus.values()):
            for gpu in self.gpus.values():
                gpu.number = None
        taken: set[int] = set()
        order = sorted(
            self.gpus.items(), key=lambda entry: (entry[1].number is None, entry[1].index, entry[0])
        )
        for _, gpu in order:
            free = gpu.index not in taken and 0 <= gpu.index <= _INDEX_MAX
            gpu.number = gpu.index if free else min(set(range(len(taken) + 1)) - taken)
            taken.add(gpu.number)
        self.gpus = dict(sorted(self.gpus.items(), key=lambda entry: (entry[1].index, entry[0])))

    # --- evaluation -----------------------------------------------------------------------------------

    def judge(self, now: float) -> dict[str, Health]:
        """Return the health of every GPU, by UUID. The driver answers."""
        self._driver_failure = None
        self._guard.judge(self.gpus, {}, now)
        for uuid, gpu in self.gpus.items():
            health = gpu.health()
            gpu.set_state(health.state, now)
            if not health.allocatable and self._guard.allocatable(uuid):
                health = structs.replace(
                    health, reasons=(*health.reasons, self._guard_reason()), allocatable=True
                )
            self._health[uuid] = health
        return dict(self._health)

    def _guard_reason(self) -> Reason:
        why = "only one source reports faults of most GPUs of this node; the devices stay Healthy"
        until = f"until a second source confirms them, or for {self._guard.seconds:g} s"
        return Reason("guard", f"{why} {until}", warning=True)

    def lose_driver(self, why: str, now: float) -> dict[str, Health]:
        """Return the health of every GPU while the driver does not answer."""
        self._driver_failure = why
        for gpu in self.gpus.values():
            gpu.set_state(State.UNKNOWN, now)
        return {uuid: self.health(uuid) for uuid in self.gpus}

    def health(self, uuid: str) -> Health:
        """Return the last health. A GPU from the state file without one has its recorded faults."""
        health = self._health.get(uuid)
        health = self.gpus[uuid].health() if health is None else health
        return health if self._driver_failure is None else unknown(health, self._driver_failure)

    # --- over a restart -------------------------------------------------------------------------------

    def restore(self, records: Iterable[GpuRecord]) -> None:
        for record in records:
            self.gpus[record.uuid] = GpuState.restore(record, self._rules)
        self._number()

    def records(self) -> Mapping[str, GpuRecord]:
        return {uuid: gpu.record() for uuid, gpu in self.gpus.items()}


def unknown(health: Health, why: str) -> Health:
    """Return the health of a GPU while its driver does not answer. ``allocatable`` does not change."""
    return Health(State.UNKNOWN, (Reason("driver_silent", why), *health.reasons), health.allocatable)
