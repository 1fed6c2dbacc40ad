"""``GpuJudge`` with a driver before it: readings, events and values made by hand, and a set clock."""

from __future__ import annotations

import math

import msgspec

from nodeagent.facts.model import Health
from nodeagent.health.gpu import GpuJudge, GpuState
from nodeagent.health.gpu_settings import GpuHealthSettings, GpuSettings
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.record import GpuRecord
from nodeagent.host.gpu_driver import DriverMessage, GpuEvent, GpuReading, GpuVitals

SOUND: dict[str, float] = {
    "gpu_row_remap_pending": 0,
    "gpu_row_remap_failed": 0,
    "gpu_remapped_uncorrectable": 0,
    "gpu_ecc_uncorrectable_sram": 0,
    "gpu_sram_threshold_exceeded": 0,
    "gpu_fabric_degraded_bandwidth": 0,
    "gpu_fabric_route_recovery": 0,
    "gpu_fabric_route_unhealthy": 0,
    "gpu_fabric_access_timeout": 0,
    "gpu_fabric_misconfigured": 0,
    "gpu_fabric_not_ready": 0,
    "gpu_fabric_failed": 0,
    "gpu_pcie_width": 16,
    "gpu_pcie_width_max": 16,
    "gpu_pcie_generation": 5,
    "gpu_pcie_generation_max": 5,
    "gpu_performance_state": 0,
    "gpu_clock_reason/thermal": 0,
    "gpu_clock_reason/hardware_thermal": 0,
    "gpu_clock_reason/hardware_slowdown": 0,
    "gpu_clock_reason/power_brake": 0,
    "gpu_memory_celsius": 60,
    "gpu_memory_limit_celsius": 105,
    "gpu_margin_celsius": 40,
    "gpu_memory_least_margin_celsius": 0,
    "gpu_processes_stuck": 0,
    "gpu_utilization": 0.9,
    "gpu_nvlink_crc_errors": 0,
    "gpu_nvlink_replays": 0,
    "gpu_nvlink_symbol_errors": 0,
    "gpu_nvlink_bit_error_ratio/effective": 15e-255,
    "gpu_nvlink_bit_error_ratio/symbol": 15e-255,
    **{f"gpu_nvlink_up/{link}": 1 for link in range(18)},
}


def gpu(index=0, **parts):
    known = {"minor": index, "name": "H100", "pci_address": f"0000:{index:02x}:00.0", "memory_mib": 81559}
    return GpuReading(**({"index": index, "uuid": f"GPU-{index}", "recovery_action": "none"} | known | parts))


def measured(**changes: float | None) -> dict[str, float]:
    """Sound values with these changes; ``None`` is a value that the driver does not report."""
    values = {**SOUND, **{name.replace("__", "/"): value for name, value in changes.items()}}
    return {name: value for name, value in values.items() if value is not None}


class GpuBench:
    """GPUs with the readings and values of a test. The guard is off: each health state depends on its GPU alone."""

    def __init__(
        self, *readings: GpuReading, settings: GpuSettings | None = None, every: float = 15.0
    ) -> None:
        self.settings = settings
        self.judge = GpuJudge(settings, GuardSettings(share=1.0))
        self.reading = gpu()
        self.now, self.every = 0.0, every
        if readings:
            self.read_at(0, *readings)

    @classmethod
    def with_limits(cls, limits: GpuHealthSettings, every: float = 15.0) -> GpuBench:
        return cls(settings=GpuSettings(health=limits), every=every)

    def take(
        self,
        now: float,
        *,
        events: tuple[GpuEvent, ...] | list[GpuEvent] = (),
        readings: list[GpuReading] | tuple[GpuReading, ...] | None = None,
        vitals: list[GpuVitals] | tuple[GpuVitals, ...] = (),
    ) -> GpuBench:
        self.now = now
        self.judge.take_events(events, now)
        if readings is not None:
            self.judge.take_readings(readings, now)
        self.judge.take_vitals(vitals, now)
        self.judge.judge(now)
        return self

    def read_at(self, now: float, *readings: GpuReading) -> GpuBench:
        return self.take(now, readings=readings)

    def xid(self, now: float, *xids: int | None, uuid: str | None = "GPU-0") -> GpuBench:
        return self.take(now, events=[GpuEvent(uuid, xid) for xid in xids])

    def message(self, now: float, *messages: DriverMessage) -> GpuBench:
        """Take new lines of the kernel log."""
        self.judge.take_messages(messages, now)
        return self.take(now)

    def tick(self, **changes: float | None) -> GpuBench:
        """Read and measure the first GPU, then let ``every`` seconds pass."""
        self.take(self.now, readings=[self.reading], vitals=[GpuVitals("GPU-0", measured(**changes))])
        self.now += self.every
        return self

    def for_s(self, seconds: float, **changes: float | None) -> GpuBench:
        """Tick so often that the first and the last reading are so many seconds apart."""
        for _ in range(math.ceil(seconds / self.every) + 1):
            self.tick(**changes)
        return self

    def read(self, **parts: object) -> GpuBench:
        self.reading = gpu(**parts)
        return self.take(self.now, readings=[self.reading])

    def restart(self, after_s: float = 0.0) -> GpuBench:
        """Continue in a new process, with what the state file holds."""
        self.now += after_s
        text = msgspec.json.encode(list(self.judge.records().values()))
        records = msgspec.json.decode(text, type=list[GpuRecord])
        assert all(record.is_possible(self.now) for record in records)
        self.judge = GpuJudge(self.settings, GuardSettings(share=1.0))
        self.judge.restore(records)
        return self

    def state(self, uuid: str = "GPU-0") -> GpuState:
        return self.judge.devices[uuid]

    def health(self, uuid: str = "GPU-0") -> Health:
        return self.judge.health(uuid)

    def healths(self) -> list[Health]:
        return [self.judge.health(uuid) for uuid in self.judge.devices]

    def reasons(self, uuid: str = "GPU-0") -> list[str]:
        return [reason.key for reason in self.health(uuid).reasons]
