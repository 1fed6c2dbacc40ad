"""The GPUs that no resource can offer, with their health: NVML does not name them, or cannot read what a device needs.

Pure. No rule of ``gpu_rules`` reads them: without a UUID they are no device of the kubelet, and no pod can
hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nodeagent.facts.model import GpuFunction, Health, Reason, State, UnusableGpu
from nodeagent.health.rules.gpu_rules import LOST, MISMATCH, NVIDIA_DRIVER, Whereabouts
from nodeagent.host.gpu_driver import GpuReading


class DriverTrouble(msgspec.Struct, frozen=True):
    """Why no GPU has a name: there is no driver (``absent``), or library and kernel module differ. ``sentence`` is for
    people."""

    sentence: str
    absent: bool = False

    @property
    def health(self) -> Health:
        """A driver that is absent may be loaded later, so the state of its GPUs is unknown."""
        if self.absent:
            return Health(State.UNKNOWN, (Reason("driver_absent", self.sentence),), allocatable=False)
        return _unhealthy(Reason(MISMATCH.key, self.sentence))


def find_unusable(
    functions: Iterable[GpuFunction],
    named: Iterable[str],
    unnamed: Sequence[GpuReading],
    incomplete: Iterable[GpuReading] = (),
    trouble: DriverTrouble | None = None,
) -> tuple[UnusableGpu, ...]:
    """Return the GPUs that no resource can offer, by place.

    ``named`` are the PCI addresses of the usable GPUs, ``unnamed`` the readings without a UUID that is known to be
    true, ``incomplete`` those without PCI address or memory.
    """
    addresses = frozenset(named)
    left = [function for function in functions if function.pci_address not in addresses]
    readings = [*unnamed, *incomplete]
    taken = {reading.pci_address for reading in readings}
    # NVML lists GPUs in the order of the bus.
    places = (f.pci_address for f in left if f.pci_address not in taken and f.driver == NVIDIA_DRIVER)
    found = {
        reading.pci_address or next(places, f"index {reading.index}"): _of_reading(reading)
        for reading in readings
        if reading.pci_address not in addresses
    }
    for function in left:
        found.setdefault(function.pci_address, _of_function(function, trouble))
    return tuple(UnusableGpu(place, health) for place, health in sorted(found.items()))


def _of_reading(reading: GpuReading) -> Health:
    if reading.lost:
        return _unhealthy(Reason(LOST.key, Whereabouts().sentence()))
    fault = reading.fault
    if fault is None:
        fault = "it reports no UUID" if reading.uuid is None else "it reports no memory size or PCI address"
    return _unhealthy(Reason("gpu_unreadable", f"The driver cannot read this GPU: {fault}."))


def _of_function(function: GpuFunction, trouble: DriverTrouble | None) -> Health:
    where = Whereabouts(on_bus=True, function=function)
    if (rule := where.intended) is not None:
        return Health(rule.state, (Reason(rule.key, where.sentence()),), allocatable=False)
    return trouble.health if trouble is not None else _unhealthy(Reason(LOST.key, where.sentence()))


def _unhealthy(reason: Reason) -> Health:
    return Health(State.UNHEALTHY, (reason,), allocatable=False)
