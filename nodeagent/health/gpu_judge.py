"""The rule engine of the node's GPUs: events, readings and measured values in, the health of every GPU out. Pure.

* Evidence is about one GPU. An error of the whole driver, or no answer from it, makes no GPU Unhealthy.
* A GPU that was once known stays known while the agent lives: a pod may hold it.
* Equal facts give equal answers: a reason contains nothing that counts or ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.gpu_state import GpuRules, GpuState
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.record import GpuRecord
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.model import Health, Reason, State


class GpuJudge:
    def __init__(self, settings: GpuSettings | None = None, guard: GuardSettings | None = None) -> None:
        self.settings = settings or GpuSettings()
        guard = guard or GuardSettings()
        self.gpus: dict[str, GpuState] = {}
        """By UUID, in the order of the driver."""
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

    def take_readings(self, readings: Sequence[GpuReading], now: float) -> None:
        """Take one reading of all GPUs. A GPU that it does not contain is lost."""
        by_uuid = self._identify(readings)
        for uuid, reading in by_uuid.items():
            if uuid not in self.gpus:
                self.gpus[uuid] = GpuState(reading, now, self._rules)
        for uuid, gpu in self.gpus.items():
            gpu.take_reading(by_uuid.get(uuid), now)
        self._sort()

    def take_vitals(self, vitals: Iterable[GpuVitals], now: float) -> None:
        """Take the measured values of some GPUs."""
        for values in vitals:
            if (gpu := self.gpus.get(values.uuid)) is not None:
                gpu.take_vitals(values, now)

    def _identify(self, readings: Sequence[GpuReading]) -> dict[str, GpuReading]:
        """Return the readings by UUID. A reading without one is of the GPU that was last at its index, unless that
        GPU has a reading of its own."""
        by_uuid: dict[str, GpuReading] = {}
        for reading in readings:
            if reading.uuid is not None:
                by_uuid.setdefault(reading.uuid, reading)
        at_index = {gpu.index: uuid for uuid, gpu in self.gpus.items()}
        for reading in readings:
            uuid = at_index.get(reading.index)
            if reading.uuid is None and uuid is not None and uuid not in by_uuid:
                by_uuid[uuid] = structs.replace(reading, uuid=uuid)
        return by_uuid

    def _sort(self) -> None:
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
        self._sort()

    def records(self) -> Mapping[str, GpuRecord]:
        return {uuid: gpu.record() for uuid, gpu in self.gpus.items()}


def unknown(health: Health, why: str) -> Health:
    """Return the health of a GPU while its driver does not answer. ``allocatable`` does not change."""
    return Health(State.UNKNOWN, (Reason("driver_silent", why), *health.reasons), health.allocatable)
