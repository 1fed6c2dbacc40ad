"""The rules of GPUs: on the readings of the driver, and on measured values. Pure.

* Time to enter and to clear counts only between two readings of the same kind: hours without a reading are no
  evidence.
* Every measured fault ends when the readings were good for its time to clear, or with the first good reading after a
  reset.
* The text of a reason is the value at which the fault started. It changes only where the fault itself changes (which
  NVLinks are down): a growing number would publish a new fact at each reading.

Defaults of nodeagent: 600 s to clear, 60 s for PCIe, 30 s for the fabric and for an NVLink that is down. A slow PCIe
link counts after 15 minutes of load, because an idle GPU slows its link down and trains it again many times a minute.

The registration with the fabric is a state and no error that may come again: its faults clear as soon as they start.

Defaults with a source:

* more than 512 rows remapped for uncorrectable errors, and any failed remap: Azure's node health checks
* a pending remap needs a reset: NVIDIA, GPU memory error management
* one uncorrectable SRAM error, and the SRAM threshold flag: the same, "RMA policy"
* a narrow PCIe link for 10 s: DGX health checks
* 100 NVLink errors per second: DCGM's limit for CRC errors; fewer are corrected and do not matter
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nodeagent.facts.model import State
from nodeagent.health.gpu_presence import BY_READING, Whereabouts
from nodeagent.health.rule import Measure, Measured, Rule
from nodeagent.host.gpu_driver import GpuReading

if TYPE_CHECKING:
    from nodeagent.health.gpu_settings import GpuHealthSettings


class MeasuredFault(StrEnum):
    """The faults by measured values, the gravest first."""

    REMAP_FAILED = "remap_failed"
    REMAP_LIMIT = "remap_limit"
    SRAM_UNCORRECTABLE = "sram_uncorrectable"
    SRAM_THRESHOLD = "sram_threshold"
    FABRIC_NOT_READY = "fabric_not_ready"
    FABRIC_FAILED = "fabric_failed"
    FABRIC_MISCONFIGURED = "fabric_misconfigured"
    NVLINK_DOWN = "nvlink_down"
    FABRIC_UNHEALTHY = "fabric_unhealthy"
    NVLINK_ERRORS = "nvlink_errors"
    REMAP_PENDING = "remap_pending"
    FABRIC_DEGRADED = "fabric_degraded"
    PCIE_WIDTH = "pcie_width"
    PCIE_SPEED = "pcie_speed"


OFF_IN_MIG_MODE = frozenset(
    {
        MeasuredFault.NVLINK_DOWN,
        MeasuredFault.NVLINK_ERRORS,
        MeasuredFault.FABRIC_NOT_READY,
        MeasuredFault.FABRIC_FAILED,
        MeasuredFault.FABRIC_MISCONFIGURED,
        MeasuredFault.FABRIC_UNHEALTHY,
        MeasuredFault.FABRIC_DEGRADED,
    }
)
"""MIG mode switches the NVLinks of a GPU off, which is not a fault."""


UNREADABLE_AFTER_S = 30.0
"""A GPU whose calls fail is first in doubt, and Unhealthy after this time (our own choice)."""


class GpuView(NamedTuple):
    """One GPU as the measures of its rules read it. ``values`` are the last measured ones, ``links`` the NVLinks
    that were up in this boot. ``limits`` are the thresholds of the measured values. ``mismatch`` is the sentence about
    a driver whose library and kernel module have different versions. ``nvlink_errors_per_s``: the rate between the
    last two readings."""

    reading: GpuReading
    values: Mapping[str, float]
    links: frozenset[int]
    limits: GpuHealthSettings
    whereabouts: Whereabouts = Whereabouts()
    mismatch: str | None = None
    nvlink_errors_per_s: float | None = None


# --- readings ---------------------------------------------------------------------------------------------

_BY_VALUES = frozenset({"vitals"})


def _measure_unreadable(view: GpuView) -> Measured:
    fault = view.reading.fault
    sentence = f"The driver cannot read this GPU: {fault}."
    bad = fault is not None and not view.reading.lost
    return Measured(math.nan, fault or "", bad=bad, sentence=sentence)


def _measure_mig(view: GpuView) -> Measured:
    sentence = "MIG divides this GPU: only its MIG devices are offered."
    return Measured(float(view.reading.mig), "", sentence=sentence)


def _measure_recovery(view: GpuView) -> Measured:
    action = wanted_action(view.reading) or ""
    words = action.replace("_", " ")
    return Measured(float(bool(action)), "", sentence=f"The driver asks for a recovery action: {words}.")


def wanted_action(reading: GpuReading) -> str | None:
    """Return the recovery action that the driver asks for."""
    return None if reading.recovery_action == "none" else reading.recovery_action


MIG_ENABLED = Rule(
    key="mig_enabled",
    state=State.HEALTHY,
    measure=_measure_mig,
    withdraws=False,
    witnesses=BY_READING,
)
RECOVERY_PREFIX = "recovery_"


def recovery_rule(action: str) -> Rule:
    return Rule(
        key=f"{RECOVERY_PREFIX}{action}",
        state=State.UNHEALTHY,
        measure=_measure_recovery,
        withdraws=True,
        limit="reported by the driver",
        clears="the driver no longer requests it",
        witnesses=BY_READING,
    )


def unreadable_rule(unreadable_after_s: float) -> Rule:
    return Rule(
        key="gpu_unreadable",
        state=State.UNHEALTHY,
        measure=_measure_unreadable,
        withdraws=True,
        enter_for_s=unreadable_after_s,
        limit=f"for {unreadable_after_s:g} s",
        clears="its calls no longer fail",
        follows=True,
        witnesses=BY_READING,
    )


# --- measured values --------------------------------------------------------------------------------------


def _nvlink_states(values: Mapping[str, float]) -> dict[int, bool]:
    return {
        int(name.partition("/")[2]): value == 1
        for name, value in values.items()
        if name.startswith("gpu_nvlink_up/")
    }


def nvlinks_up(values: Mapping[str, float]) -> set[int]:
    return {link for link, up in _nvlink_states(values).items() if up}


def _flag(view: GpuView, name: str, sentence: str) -> Measured | None:
    value = view.values.get(name)
    if value is None:
        return None
    return Measured(value, "set" if value else "not set", bad=value == 1, sentence=sentence)


def _count(view: GpuView, name: str, unit: str, least: float, sentence: str) -> Measured | None:
    """``least``: the fault starts at this count."""
    value = view.values.get(name)
    if value is None:
        return None
    return Measured(
        value,
        _number(value, unit),
        bad=value >= least,
        sentence=sentence.format(value=value, least=least),
    )


def _number(count: float, unit: str) -> str:
    return f"{count:g} {unit}" if count == 1 else f"{count:g} {unit}s"


def _too_many_rows(limits: GpuHealthSettings) -> int:
    return limits.remapped_rows + 1


def remap_failed(view: GpuView) -> Measured | None:
    """A row of the memory could not be remapped."""
    return _flag(view, "gpu_row_remap_failed", "A bad row of the GPU's memory could not be remapped.")


def remap_limit(view: GpuView) -> Measured | None:
    """Too many rows of the memory were remapped for uncorrectable errors."""
    sentence = (
        "{value:g} rows of the GPU's memory were remapped for uncorrectable errors; {least:g} are too many."
    )
    return _count(view, "gpu_remapped_uncorrectable", "row", _too_many_rows(view.limits), sentence)


def sram_uncorrectable(view: GpuView) -> Measured | None:
    """The SRAM met uncorrectable errors since the last reset."""
    sentence = "The GPU met {value:g} uncorrectable SRAM errors since it was reset; {least:g} is too many."
    return _count(view, "gpu_ecc_uncorrectable_sram", "error", view.limits.sram_uncorrectable, sentence)


def sram_threshold(view: GpuView) -> Measured | None:
    """The driver reports that the SRAM errors passed its own threshold."""
    sentence = (
        "The driver reports that the GPU's SRAM errors passed their threshold; the GPU is to be replaced."
    )
    return _flag(view, "gpu_sram_threshold_exceeded", sentence)


def nvlink_down(view: GpuView) -> Measured | None:
    """An NVLink that was up in this boot is down, or fewer NVLinks than required are up."""
    states = _nvlink_states(view.values)
    if not states:
        return None
    up, required = sum(states.values()), view.limits.nvlinks
    if required is not None:
        sentence = f"{up} NVLinks are up where {required} should be."
        return Measured(max(0, required - up), f"{up} up", bad=up < required, sentence=sentence)
    # A link that the driver does not report now is evidence in neither direction.
    down = sorted(link for link in view.links if states.get(link) is False)
    if not down and not states.keys() >= view.links:
        return None
    names = ", ".join(map(str, down))
    verb = "is" if len(down) == 1 else "are"
    sentence = f"NVLink{'s' * (len(down) > 1)} {names} {verb} down; {up} are up."
    return Measured(len(down), f"{up} up, {len(down)} down", bad=bool(down), sentence=sentence)


def fabric_not_ready(view: GpuView) -> Measured | None:
    """The GPU has a place in an NVLink fabric and is not registered there yet: each CUDA program fails.

    Before the first measured values the driver's reading decides.
    """
    value = view.values.get("gpu_fabric_not_ready")
    if value is None and not view.values and view.reading.fabric_pending is not None:
        value = float(view.reading.fabric_pending)
    sentence = "The GPU is not registered with its NVLink fabric yet, so CUDA programs fail (error 802)."
    return (
        value
        if value is None
        else Measured(value, "set" if value else "not set", bad=value == 1, sentence=sentence)
    )


def fabric_failed(view: GpuView) -> Measured | None:
    """The registration of the GPU with its NVLink fabric ended with an error: it has no peers."""
    sentence = "The registration of the GPU with its NVLink fabric failed, so it has no peer-to-peer traffic."
    return _flag(view, "gpu_fabric_failed", sentence)


def fabric_misconfigured(view: GpuView) -> Measured | None:
    """The NVLink fabric reports that the GPU is configured incorrectly."""
    sentence = "The NVLink fabric reports that this GPU is configured incorrectly; nvidia-smi -q names how."
    return _flag(view, "gpu_fabric_misconfigured", sentence)


def fabric_unhealthy(view: GpuView) -> Measured | None:
    """The NVLink fabric has no sound route to the GPU."""
    return _flag(view, "gpu_fabric_route_unhealthy", "The NVLink fabric has no sound route to this GPU.")


NVLINK_ERRORS = ("gpu_nvlink_crc_errors", "gpu_nvlink_replays", "gpu_nvlink_recoveries")


def nvlink_errors(view: GpuView) -> Measured | None:
    """The NVLinks of the GPU meet too many errors per second: CRC errors, replays and recoveries."""
    rate, least = view.nvlink_errors_per_s, view.limits.nvlink_errors_per_second
    if rate is None:
        return None
    sentence = f"The NVLinks met {rate:.0f} errors per second; {least:g} are too many."
    return Measured(rate, f"{rate:.3g} per second", bad=rate >= least, sentence=sentence)


def remap_pending(view: GpuView) -> Measured | None:
    """A row of the memory is remapped at the next reset."""
    return _flag(
        view, "gpu_row_remap_pending", "A bad row of the GPU's memory is remapped at its next reset."
    )


def fabric_degraded(view: GpuView) -> Measured | None:
    """The NVLink fabric gives the GPU less than its bandwidth."""
    sentence = "The NVLink fabric gives this GPU less than its bandwidth."
    return _flag(view, "gpu_fabric_degraded_bandwidth", sentence)


def pcie_width(view: GpuView) -> Measured | None:
    """The PCIe link has fewer lanes than the GPU and its slot support."""
    width, most = view.values.get("gpu_pcie_width"), view.values.get("gpu_pcie_width_max")
    if width is None or most is None:
        return None
    words = f"{width:g} of {most:g} lanes"
    return Measured(width, words, bad=width < most, sentence=f"The PCIe link has {words}.")


def pcie_speed(view: GpuView) -> Measured | None:
    """Under load the PCIe link runs as a lower generation than the GPU and its slot support.

    A link at full speed is good at any time.
    """
    values = view.values
    generation, most = values.get("gpu_pcie_generation"), values.get("gpu_pcie_generation_max")
    if generation is None or most is None:
        return None
    loaded = values.get("gpu_performance_state") == 0 or values.get("gpu_utilization", 0) > 0
    if generation < most and not loaded:
        return None
    sentence = f"Under load the PCIe link runs as generation {generation:g}, not {most:g}."
    return Measured(
        generation, f"generation {generation:g} of {most:g}", bad=generation < most, sentence=sentence
    )


class MeasuredRow(msgspec.Struct, frozen=True):
    """One rule on a measured value, before the settings apply.

    ``limit`` is the threshold in words. ``enter_setting`` and ``clear_setting`` name the settings with the time to
    enter and the time to clear.
    """

    fault: MeasuredFault
    measure: Measure
    limit: str | Callable[[GpuHealthSettings], str]
    enter_setting: str | None = None
    clear_setting: str = "clear_seconds"
    follows: bool = False
    patient: bool = False

    def rule(self, limits: GpuHealthSettings, *, enabled: bool) -> Rule:
        """Return the rule with the thresholds and times of the settings."""
        limit = self.limit if isinstance(self.limit, str) else self.limit(limits)
        enter_s: float = getattr(limits, self.enter_setting) if self.enter_setting else 0.0
        clear_s: float = getattr(limits, self.clear_setting)
        withdraws = self.fault in limits.unhealthy
        return Rule(
            key=self.fault.value,
            state=State.UNHEALTHY if withdraws else State.DEGRADED,
            measure=self.measure,
            withdraws=withdraws,
            enter_for_s=enter_s,
            clear_for_s=clear_s,
            enabled=enabled,
            limit=limit + (f" for {enter_s:g} s" if enter_s else ""),
            clears=f"clean for {clear_s:g} s, or clean after a reset",
            gap_s=limits.gap_s,
            resets=True,
            witnesses=_BY_VALUES,
            follows=self.follows,
            patient=self.patient,
        )


def _limit_of_rows(limits: GpuHealthSettings) -> str:
    return f"≥ {_number(_too_many_rows(limits), 'row')}"


def _limit_of_errors(limits: GpuHealthSettings) -> str:
    return f"≥ {_number(limits.sram_uncorrectable, 'error')}"


def _limit_of_nvlinks(limits: GpuHealthSettings) -> str:
    return "any that was up is down" if limits.nvlinks is None else f"< {limits.nvlinks} up"


def _limit_of_nvlink_errors(limits: GpuHealthSettings) -> str:
    return f"≥ {limits.nvlink_errors_per_second:g} per second"


MEASURED_RULES: tuple[MeasuredRow, ...] = (
    MeasuredRow(MeasuredFault.REMAP_FAILED, remap_failed, "set"),
    MeasuredRow(MeasuredFault.REMAP_LIMIT, remap_limit, _limit_of_rows),
    MeasuredRow(MeasuredFault.SRAM_UNCORRECTABLE, sram_uncorrectable, _limit_of_errors),
    MeasuredRow(MeasuredFault.SRAM_THRESHOLD, sram_threshold, "set"),
    MeasuredRow(MeasuredFault.FABRIC_NOT_READY, fabric_not_ready, "set", "fabric_seconds", "fabric_seconds"),
    MeasuredRow(MeasuredFault.FABRIC_FAILED, fabric_failed, "set", "fabric_seconds", "fabric_seconds"),
    MeasuredRow(
        MeasuredFault.FABRIC_MISCONFIGURED, fabric_misconfigured, "set", "fabric_seconds", "fabric_seconds"
    ),
    MeasuredRow(
        MeasuredFault.NVLINK_DOWN, nvlink_down, _limit_of_nvlinks, "nvlink_down_seconds", follows=True
    ),
    MeasuredRow(MeasuredFault.FABRIC_UNHEALTHY, fabric_unhealthy, "set", "fabric_seconds"),
    MeasuredRow(MeasuredFault.NVLINK_ERRORS, nvlink_errors, _limit_of_nvlink_errors),
    MeasuredRow(MeasuredFault.REMAP_PENDING, remap_pending, "set"),
    MeasuredRow(MeasuredFault.FABRIC_DEGRADED, fabric_degraded, "set", "fabric_seconds"),
    MeasuredRow(
        MeasuredFault.PCIE_WIDTH,
        pcie_width,
        "less than possible",
        "pcie_width_seconds",
        "pcie_clear_seconds",
        follows=True,
    ),
    MeasuredRow(
        MeasuredFault.PCIE_SPEED,
        pcie_speed,
        "less than possible under load",
        "pcie_speed_seconds",
        "pcie_clear_seconds",
        patient=True,
    ),
)
"""The gravest first; the reasons of a GPU have this order."""


def measured_rules(limits: GpuHealthSettings, *, mig: bool = False) -> tuple[Rule, ...]:
    """Return the rules on measured values with the settings applied, the gravest first."""
    off = {*limits.ignore, *(OFF_IN_MIG_MODE if mig else ())}
    return tuple(row.rule(limits, enabled=row.fault not in off) for row in MEASURED_RULES)
