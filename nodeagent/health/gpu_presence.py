"""The rules about the presence of a GPU: whether the driver lists it, its kernel driver, and the driver's versions.

Pure. ``gpu_rules`` has the other rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nodeagent.health.rule import Measured, Rule
from nodeagent.model import State

if TYPE_CHECKING:
    from nodeagent.health.gpu_rules import GpuView

BY_READING = frozenset({"reading"})
DRIVER = "nvidia"
"""The kernel driver whose GPUs NVML reads."""
_FOR_GUESTS = ("vfio", "pci-stub", "pciback")
"""Parts of the names of drivers that keep a function for virtual machines: vfio-pci and its variants, Xen's."""


class Whereabouts(NamedTuple):
    """Where a GPU is that NVML does not list: whether it is on the PCI bus (``None``: unknown), and its driver."""

    on_bus: bool | None = None
    driver: str | None = None

    @property
    def for_guests(self) -> bool:
        """Whether its driver keeps it for virtual machines."""
        return self.driver is not None and any(part in self.driver for part in _FOR_GUESTS)

    def sentence(self) -> str:
        """Return why NVML does not list it, with the remedy."""
        if self.for_guests:
            return f"This GPU is bound to {self.driver} for virtual machines, so pods cannot get it."
        if self.on_bus is False:
            return "This GPU is not on the PCI bus; reseat it or reboot the node."
        if self.on_bus and self.driver is None:
            return (
                "No kernel driver is bound to this GPU; check the kernel log (NVRM), then reset or reseat it."
            )
        if self.on_bus and self.driver != DRIVER:
            return f"This GPU is bound to {self.driver}, so NVML cannot read it; bind it to {DRIVER}."
        return "The driver no longer reaches this GPU; reset it or reboot the node."


def _measure_lost(view: GpuView) -> Measured:
    lost = view.reading.lost and not view.whereabouts.for_guests
    return Measured(float(lost), "", sentence=view.whereabouts.sentence())


def _measure_passthrough(view: GpuView) -> Measured:
    passed = view.reading.lost and view.whereabouts.for_guests
    return Measured(float(passed), "", sentence=view.whereabouts.sentence())


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
