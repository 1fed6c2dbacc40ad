"""The GPU driver of the simulated machine: its answers in the form of ``/.nodeagent/gpus.json``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from nodeagent.sim.machine.blueprint import DriverVersions
from nodeagent.sim.machine.state import Device

_EVENTS_KEPT = 64


class GpuDriver:
    """``failure`` makes a call fail: ``{"call": ..., "error": ...}``."""

    def __init__(self, driver: DriverVersions | None) -> None:
        self._driver = driver
        self.failure: dict[str, str] | None = None
        self._events: deque[dict[str, str | int | bool | None]] = deque(maxlen=_EVENTS_KEPT)
        self._sequence = 0

    def add_event(self, uuid: str, xid: int | None) -> None:
        """Add an XID event; ``None`` means that the GPU is unavailable."""
        self._sequence += 1
        event: dict[str, str | int | bool | None] = {"sequence": self._sequence, "uuid": uuid, "xid": xid}
        self._events.append(event if xid is not None else event | {"unavailable": True})

    def facts(self, devices: Iterable[Device]) -> dict[str, object]:
        driver = self._driver
        gpus = []
        for device in devices:
            facts = device.gpu
            assert facts is not None
            # A GPU bound to another driver is not listed; a removed one is still listed, as lost.
            if device.driver == device.natural or (not device.present and facts.lost):
                gpus.append(
                    {
                        "uuid": facts.uuid,
                        "index": facts.index,
                        "minor": facts.index,
                        "name": facts.part.name,
                        "pci_address": device.address,
                        "memory_mib": facts.part.memory_mib,
                        "mig": facts.mig,
                        "lost": facts.lost,
                        "recovery_action": facts.recovery_action,
                        "values": facts.values,
                        "texts": facts.texts,
                    }
                )
        return {
            "driver_version": driver.version if driver else None,
            "cuda_version": driver.cuda_version if driver else None,
            "failure": self.failure,
            "gpus": gpus,
            "events": list(self._events),
        }
