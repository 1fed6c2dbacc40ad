"""The rules of GPUs: on what the driver reports with each reading, and on measured values. Pure.

* Time to enter and to clear counts only between two readings of the same kind: hours without a reading are no
  evidence.
* Every measured fault ends when the readings were good for its time to clear, or with the first good reading after a
  reset.
* The text of a reason is the value at which the fault started. It changes only where the fault itself changes (which
  NVLinks are down): a growing number would publish a new fact at each reading.

Defaults of nodeagent: 600 s to clear, 60 s for PCIe, 30 s for the fabric and for an NVLink that is down. A slow PCIe
link counts after 15 minutes of load, because an idle GPU slows its link down and trains it again many times a minute.

Defaults with a source:

* more than 512 rows remapped for uncorrectable errors, and any failed remap: Azure's node health checks
* a pending remap needs a reset: NVIDIA, GPU memory error management
* one uncorrectable SRAM error, and the SRAM threshold flag: the same, "RMA policy"
* a narrow PCIe link for 10 s: DGX health checks
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.health.rule import Measure, Measured, Rule
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.model import State

if TYPE_CHECKING:
    from nodeagent.health.gpu_settings import GpuHealthSettings


class MeasuredFault(StrEnum):
    """The faults by measured values, the gravest first."""

    REMAP_FAILED = "remap_failed"
    REMAP_LIMIT = "remap_limit"
    SRAM_UNCORRECTABLE = "sram_uncorrectable"
    SRAM_THRESHOLD = "sram_threshold"
    NVLINK_DOWN = "nvlink_down"
    FABRIC_UNHEALTHY = "fabric_unhealthy"
    REMAP_PENDING = "remap_pending"
    FABRIC_DEGRADED = "fabric_degraded"
    PCIE_WIDTH = "pcie_width"
    PCIE_SPEED = "pcie_speed"


OFF_IN_MIG_MODE = frozenset(
    {MeasuredFault.NVLINK_DOWN, MeasuredFault.FABRIC_UNHEALTHY, MeasuredFault.FABRIC_DEGRADED}
)
"""MIG mode switches the NVLinks of a GPU off, which is not a fault."""


UNREADABLE_AFTER_S = 30.0
"""A GPU whose calls fail is first in doubt, and Unhealthy after this time (our own choice)."""


class GpuView(NamedTuple):
    """One GPU as the measures of its rules read it. ``values`` are the last measured ones, ``links`` the NVLinks
    that were up in this boot."""

    reading: GpuReading
    values: Mapping[str, float]
    links: frozenset[int]


# --- what the driver reports with each reading ------------------------------------------------------------

_BY_READING = frozenset({"reading"})
_BY_VALUES = frozenset({"vitals"})


def _measure_lost(view: GpuView) -> Measured:
    sentence = "The driver no longer reaches this GPU; reset it or reboot the node."
    return Measured(float(view.reading.lost), "", sentence=sentence)


def _measure_unreadable(view: GpuView) -> Measured:
    fault = view.reading.fault
    sentence = f"The driver cannot read this GPU: {fault}."
    bad = fault is not None and not view.reading.lost
    return Measured(math.nan, fault or "", bad=bad, sentence=sentence)


def _measure_mig(view: GpuView) -> Measured:
    sentence = "MIG divides this GPU, so its memory is not sliced."
    return Measured(float(view.reading.mig), "", sentence=sentence)


def _measure_recovery(view: GpuView) -> Measured:
    action = wanted_action(view.reading) or ""
    words = action.replace("_", " ")
    return Measured(float(bool(action)), "", sentence=f"The driver asks for a recovery action: {words}.")


def wanted_action(reading: GpuReading) -> str | None:
    """Return the recovery action that the driver asks for."""
    return None if reading.recovery_action == "none" else reading.recovery_action


LOST = Rule(
    key="gpu_lost",
    state=State.UNHEALTHY,
    measure=_measure_lost,
    withdraws=True,
    limit="reported by the driver",
    clears="the driver lists it again",
    witnesses=_BY_READING,
)
MIG_ENABLED = Rule(
    key="mig_enabled",
    state=State.HEALTHY,
    measure=_measure_mig,
    withdraws=True,
    witnesses=_BY_READING | {"person"},  # a person switched MIG on, so the guard lets it pass
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
        witnesses=_BY_READING,
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
        witnesses=_BY_READING,
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


def _flag(name: str, sentence: str) -> Measure:
    def measure(view: GpuView) -> Measured | None:
        value = view.values.get(name)
        if value is None:
            return None
        return Measured(value, "set" if value else "not set", bad=value == 1, sentence=sentence)

    return measure


def _count(name: str, unit: str, enter: float, sentence: str) -> Measure:
    def measure(view: GpuView) -> Measured | None:
        value = view.values.get(name)
        if value is None:
            return None
        return Measured(
            value,
            f"{value:g} {_plural(unit, value)}",
            bad=value >= enter,
            sentence=sentence.format(value=value, least=enter),
        )

    return measure


def _plural(unit: str, count: float) -> str:
    return unit if count == 1 else f"{unit}s"


def _nvlinks(required: int | None) -> Measure:
    def measure(view: GpuView) -> Measured | None:
        states = _nvlink_states(view.values)
        if not states:
            return None
        up = sum(states.values())
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

    return measure


def _measure_width(view: GpuView) -> Measured | None:
    width, most = view.values.get("gpu_pcie_width"), view.values.get("gpu_pcie_width_max")
    if width is None or most is None:
        return None
    words = f"{width:g} of {most:g} lanes"
    return Measured(width, words, bad=width < most, sentence=f"The PCIe link has {words}.")


def _measure_speed(view: GpuView) -> Measured | None:
    """A slow link counts only under load; a link at full speed is good at any time."""
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


def measured_rules(limits: GpuHealthSettings, *, mig: bool = False) -> tuple[Rule, ...]:
    """Return the rules on measured values, the gravest first."""
    rows, errors = limits.remapped_rows + 1, limits.sram_uncorrectable
    links = "any that was up is down" if limits.nvlinks is None else f"< {limits.nvlinks} up"
    off = {*limits.ignore, *(OFF_IN_MIG_MODE if mig else ())}

    def rule(fault: MeasuredFault, measure: Measure, limit: str, enter_s: float = 0.0, **more: Any) -> Rule:
        withdraws = fault in limits.unhealthy
        clear_s = more.pop("clear_for_s", limits.clear_seconds)
        return Rule(
            key=fault.value,
            state=State.UNHEALTHY if withdraws else State.DEGRADED,
            measure=measure,
            withdraws=withdraws,
            enter_for_s=enter_s,
            clear_for_s=clear_s,
            enabled=fault not in off,
            limit=limit + (f" for {enter_s:g} s" if enter_s else ""),
            clears=f"clean for {clear_s:g} s, or clean after a reset",
            gap_s=limits.gap_s,
            resets=True,
            witnesses=_BY_VALUES,
            **more,
        )

    return (
        rule(
            MeasuredFault.REMAP_FAILED,
            _flag("gpu_row_remap_failed", "A bad row of the GPU's memory could not be remapped."),
            "set",
        ),
        rule(
            MeasuredFault.REMAP_LIMIT,
            _count(
                "gpu_remapped_uncorrectable",
                "row",
                rows,
                "{value:g} rows of the GPU's memory were remapped for uncorrectable errors; "
                "{least:g} are too many.",
            ),
            f"≥ {rows:g} {_plural('row', rows)}",
        ),
        rule(
            MeasuredFault.SRAM_UNCORRECTABLE,
            _count(
                "gpu_ecc_uncorrectable_sram",
                "error",
                errors,
                "The GPU met {value:g} uncorrectable SRAM errors since it was reset; {least:g} is too many.",
            ),
            f"≥ {errors:g} {_plural('error', errors)}",
        ),
        rule(
            MeasuredFault.SRAM_THRESHOLD,
            _flag(
                "gpu_sram_threshold_exceeded",
                "The driver reports that the GPU's SRAM errors passed their threshold; the GPU is to be replaced.",
            ),
            "set",
        ),
        rule(
            MeasuredFault.NVLINK_DOWN,
            _nvlinks(limits.nvlinks),
            links,
            limits.nvlink_down_seconds,
            follows=True,
        ),
        rule(
            MeasuredFault.FABRIC_UNHEALTHY,
            _flag("gpu_fabric_route_unhealthy", "The NVLink fabric has no sound route to this GPU."),
            "set",
            limits.fabric_seconds,
        ),
        rule(
            MeasuredFault.REMAP_PENDING,
            _flag("gpu_row_remap_pending", "A bad row of the GPU's memory is remapped at its next reset."),
            "set",
        ),
        rule(
            MeasuredFault.FABRIC_DEGRADED,
            _flag(
                "gpu_fabric_degraded_bandwidth", "The NVLink fabric gives this GPU less than its bandwidth."
            ),
            "set",
            limits.fabric_seconds,
        ),
        rule(
            MeasuredFault.PCIE_WIDTH,
            _measure_width,
            "less than possible",
            limits.pcie_width_seconds,
            clear_for_s=limits.pcie_clear_seconds,
            follows=True,
        ),
        rule(
            MeasuredFault.PCIE_SPEED,
            _measure_speed,
            "less than possible under load",
            limits.pcie_speed_seconds,
            clear_for_s=limits.pcie_clear_seconds,
            patient=True,
        ),
    )
