"""The rules about the presence of a GPU: whether the driver lists it, its kernel driver, and the driver's versions.

Pure. ``gpu_rules`` has the other rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.facts.model import GpuFunction, State
from nodeagent.health.rule import Measured, Rule

if TYPE_CHECKING:
    from nodeagent.health.gpu_rules import GpuView

BY_READING = frozenset({"reading"})
DRIVER = "nvidia"
"""The kernel driver whose GPUs NVML reads."""
EXCLUDED_BY = "NVreg_ExcludedGpus"
"""The parameter of its kernel module that leaves GPUs out."""


class Whereabouts(NamedTuple):
    """Where a GPU is that NVML does not list: whether it is on the PCI bus (``None``: unknown), and what is there."""

    on_bus: bool | None = None
    function: GpuFunction | None = None

    @classmethod
    def on(cls, bus: Mapping[str, GpuFunction], address: str) -> Whereabouts:
        return cls(address in bus, bus.get(address))

    @property
    def intended(self) -> Rule | None:
        """The rule of a GPU that a person has kept from pods; ``None`` if it is lost."""
        if self.function is None:
            return None
        if self.function.excluded:
            return EXCLUDED
        return PASSTHROUGH if self.function.for_guests else None

    def sentence(self) -> str:
        """Return why NVML does not list it, with the remedy."""
        driver = None if self.function is None else self.function.driver
        if self.intended is EXCLUDED:
            return f"The driver leaves this GPU out; take it out of {EXCLUDED_BY} to offer it."
        if self.intended is PASSTHROUGH:
            return f"This GPU is bound to {driver} for virtual machines, so pods cannot get it."
        if self.on_bus is False:
            return "This GPU is not on the PCI bus; reseat it or reboot the node."
        if self.on_bus and driver is None:
            return (
                "No kernel driver is bound to this GPU; check the kernel log (NVRM), then reset or reseat it."
            )
        if self.on_bus and driver != DRIVER:
            return f"This GPU is bound to {driver}, so NVML cannot read it; bind it to {DRIVER}."
        return "The driver no longer reaches this GPU; reset it or reboot the node."


def _measure_absence(view: GpuView, rule: Rule | None) -> Measured:
    where = view.whereabouts
    return Measured(float(view.reading.lost and where.intended is rule), "", sentence=where.sentence())


def _measure_lost(view: GpuView) -> Measured:
    return _measure_absence(view, None)


def _measure_passthrough(view: GpuView) -> Measured:
    return _measure_absence(view, PASSTHROUGH)


def _measure_excluded(view: GpuView) -> Measured:
    return _measure_absence(view, EXCLUDED)


def _measure_mismatch(view: GpuView) -> Measured:
    return Measured(float(view.mismatch is not None), "", sentence=view.mismatch or "")


LOST = Rule(
    key="gpu_lost",
    state=State.UNHEALTHY,
    measure=_measure_lost,
    withdraws=True,
    limit="reported by the driver",
    clears="the driver lists it again",
    follows=True,
    witnesses=BY_READING,
)
PASSTHROUGH = Rule(
    key="gpu_passthrough",
    state=State.UNUSED,
    measure=_measure_passthrough,
    withdraws=True,
    limit="bound to vfio-pci",
    clears="the driver lists it again",
    follows=True,
    witnesses=BY_READING | {"person"},  # a person bound it, so the guard lets it pass
)
EXCLUDED = Rule(
    key="gpu_excluded",
    state=State.UNUSED,
    measure=_measure_excluded,
    withdraws=True,
    limit="excluded by a setting of the driver",
    clears="the driver lists it again",
    follows=True,
    witnesses=BY_READING | {"person"},  # a person excluded it, so the guard lets it pass
)
MISMATCH = Rule(
    key="driver_version_mismatch",
    state=State.UNHEALTHY,
    measure=_measure_mismatch,
    withdraws=True,
    limit="library and kernel module differ",
    clears="their versions are equal",
    follows=True,
    witnesses=frozenset({"library", "module"}),  # certain for all GPUs at once, so the guard lets it pass
)
