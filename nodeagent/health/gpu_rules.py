"""What the measured values of a GPU say against it: limits, and how long they must be passed. Pure.

The law of this file:

* A value that is absent says nothing: a fault that stands stays, one that was on its way starts anew.
* Time is what lies between two readings that say the same. Hours in which nothing was read are no evidence.
* Every fault goes when the readings were clean for its hold, or at once when they are clean after a reset.
* The detail is the value at which the fault came; it changes only where the fault itself is another (which
  NVLinks are down), for a number that counts on would wake everybody at each reading.

Defaults, where ours: 600 s clean, 60 s for PCIe, 30 s for the fabric. From elsewhere: more than 512 rows
remapped for uncorrectable errors and any failed remap (Azure's node health checks); a pending remap needs a
reset (NVIDIA, GPU memory error management); one uncorrectable SRAM error and the SRAM threshold flag (same,
"RMA policy"); an NVLink down for 30 s; a narrow PCIe link for 10 s (DGX health checks); a slow one for 15
minutes of load, since an idle GPU slows its link down and trains it again many times a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nodeagent.host.gpu_driver import GpuVitals
from nodeagent.model import Reason


class Mark(StrEnum):
    """What can stand against a GPU by its vitals; the gravest first."""

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


GRAVE = frozenset(
    {
        Mark.REMAP_FAILED,
        Mark.REMAP_LIMIT,
        Mark.SRAM_UNCORRECTABLE,
        Mark.SRAM_THRESHOLD,
        Mark.NVLINK_DOWN,
        Mark.FABRIC_UNHEALTHY,
    }
)
"""Those that make a GPU unhealthy, so that it is not handed out; the others make it degraded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the rules begin. Times are seconds; ``grave`` and ``ignore`` are sets of marks."""

    remapped_rows: int = 512
    sram_uncorrectable: int = 1
    nvlinks: int | None = None
    """How many NVLinks must be up; ``None``: those that were once up this boot."""
    nvlink_down_s: float = 30.0
    fabric_s: float = 30.0
    pcie_width_s: float = 10.0
    pcie_speed_s: float = 900.0
    pcie_clear_s: float = 60.0
    clear_s: float = 600.0
    gap_s: float = 60.0
    """Readings further apart are not taken for the same stretch of time: four missed at the usual rate."""
    grave: frozenset[Mark] = GRAVE
    ignore: frozenset[Mark] = frozenset()


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Hold:
    """One rule's memory of one GPU. ``held_s``: for so long the readings have said ``bad`` (or its opposite)
    without a break. ``at``: when the last of them was, ``None`` where time does not run. ``detail`` is empty
    until the fault stands, ``since`` when it began to."""

    mark: Mark
    bad: bool
    at: float | None
    held_s: float = 0.0
    detail: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """What is remembered of one GPU's vitals. ``links``: the NVLinks that were up this boot."""

    holds: tuple[Hold, ...] = ()
    links: tuple[int, ...] = ()


NO_CHART = Chart()


@dataclass(frozen=True, slots=True)
class Says:
    """What one reading says of one rule; ``None`` in its place is nothing."""

    bad: bool
    value: float
    measured: str
    detail: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One mark: what to look at, and how long. ``limit``: from where on it is bad, in words."""

    mark: Mark
    look: Callable[[Mapping[str, float], Chart, Limits], Says | None]
    limit: Callable[[Limits], str]
    enter_s: Callable[[Limits], float]
    clear_s: Callable[[Limits], float] = field(default=lambda limits: limits.clear_s)
    follows: bool = False
    """The detail follows the readings while the fault stands."""
    patient: bool = False
    """A reading that says nothing stops the clock and does not turn it back."""


def note(chart: Chart, vitals: GpuVitals, now: float, limits: Limits, *, reset: bool = False) -> Chart:
    """The chart after one reading. ``reset``: the GPU was reset since the last one."""
    up = {
        int(name.partition("/")[2])
        for name, value in vitals.values.items()
        if name.startswith("gpu_nvlink_up/") and value == 1
    }
    chart = replace(chart, links=tuple(sorted(up.union(chart.links))))
    before = {hold.mark: hold for hold in chart.holds}
    holds = []
    for rule in RULES:
        if rule.mark not in limits.ignore:
            says = rule.look(vitals.values, chart, limits)
            hold = _step(before.get(rule.mark), rule, says, now, limits, reset=reset)
            if hold is not None:
                holds.append(hold)
    return replace(chart, holds=tuple(holds))


def reasons(chart: Chart, limits: Limits) -> tuple[tuple[Reason, ...], tuple[Reason, ...]]:
    """The grave ones and the others, the gravest first."""
    standing = {hold.mark: hold for hold in chart.holds if hold.detail and hold.mark not in limits.ignore}
    said = [(mark, Reason(mark.value, standing[mark].detail)) for mark in Mark if mark in standing]
    return (
        tuple(reason for mark, reason in said if mark in limits.grave),
        tuple(reason for mark, reason in said if mark not in limits.grave),
    )


def _step(
    hold: Hold | None, rule: Rule, says: Says | None, now: float, limits: Limits, *, reset: bool
) -> Hold | None:
    """One rule, one reading further. ``None``: there is nothing to remember."""
    if says is None:
        if hold is None or reset or (not hold.detail and not rule.patient):
            return None
        # A fault that stands must be clean anew; of one on its way a patient rule keeps the time that it has.
        return replace(hold, at=None, held_s=0.0 if hold.detail else hold.held_s)
    if hold is None and not says.bad:
        return None
    if hold is None or hold.bad != says.bad:
        standing = (hold.detail, hold.since) if hold is not None else ("", None)
        hold = Hold(rule.mark, says.bad, now, 0.0, *standing)
    elif hold.at is not None and 0 <= now - hold.at <= limits.gap_s:
        hold = replace(hold, at=now, held_s=hold.held_s + now - hold.at)
    else:
        hold = replace(hold, at=now)
    if says.bad:
        if hold.detail:
            return replace(hold, detail=says.detail) if rule.follows else hold
        due = hold.held_s >= rule.enter_s(limits)
        return replace(hold, detail=says.detail, since=now) if due else hold
    if not hold.detail or reset or hold.held_s >= rule.clear_s(limits):
        return None
    return hold


def _counted(mark: Mark, name: str, least: Callable[[Limits], float], unit: str, detail: str) -> Rule:
    """Counts at once: what counts it never counts in error. ``unit`` is of one."""

    def look(values: Mapping[str, float], _: Chart, limits: Limits) -> Says | None:
        value = values.get(name)
        if value is None:
            return None
        said = detail.format(value=value, least=least(limits))
        return Says(value >= least(limits), value, f"{value:g} {unit}{'s' * (value != 1)}", said)

    return Rule(
        mark, look, lambda limits: f"≥ {least(limits):g} {unit}{'s' * (least(limits) != 1)}", lambda _: 0.0
    )


def _flagged(mark: Mark, name: str, enter_s: Callable[[Limits], float], detail: str) -> Rule:
    def look(values: Mapping[str, float], _: Chart, __: Limits) -> Says | None:
        value = values.get(name)
        return None if value is None else Says(value == 1, value, "set" if value else "not set", detail)

    return Rule(mark, look, lambda _: "set", enter_s)


def _nvlinks(values: Mapping[str, float], chart: Chart, limits: Limits) -> Says | None:
    told = {
        int(name.partition("/")[2]): value == 1
        for name, value in values.items()
        if name.startswith("gpu_nvlink_up/")
    }
    if not told:
        return None
    up = sum(told.values())
    if limits.nvlinks is not None:
        said = f"{up} NVLinks are up where {limits.nvlinks} should be."
        return Says(up < limits.nvlinks, max(0, limits.nvlinks - up), f"{up} up", said)
    # One that the driver says nothing of in this reading is no evidence in either direction.
    down = sorted(link for link in chart.links if told.get(link) is False)
    if not down and not told.keys() >= set(chart.links):
        return None
    which = ", ".join(map(str, down))
    verb = "is" if len(down) == 1 else "are"
    said = f"NVLink{'s' * (len(down) > 1)} {which} {verb} down; {up} are up."
    return Says(bool(down), len(down), f"{up} up, {len(down)} down", said)


def _width(values: Mapping[str, float], _: Chart, __: Limits) -> Says | None:
    width, most = values.get("gpu_pcie_width"), values.get("gpu_pcie_width_max")
    if width is None or most is None:
        return None
    measured = f"{width:g} of {most:g} lanes"
    return Says(width < most, width, measured, f"The PCIe link has {measured}.")


def _speed(values: Mapping[str, float], _: Chart, __: Limits) -> Says | None:
    """Slow counts only under load; as fast as can be is clean at any time."""
    generation, most = values.get("gpu_pcie_generation"), values.get("gpu_pcie_generation_max")
    if generation is None or most is None:
        return None
    loaded = values.get("gpu_performance_state") == 0 or values.get("gpu_utilization", 0) > 0
    if generation < most and not loaded:
        return None
    said = f"Under load the PCIe link runs as generation {generation:g}, not {most:g}."
    return Says(generation < most, generation, f"generation {generation:g} of {most:g}", said)


RULES = (
    _flagged(
        Mark.REMAP_FAILED,
        "gpu_row_remap_failed",
        lambda _: 0.0,
        "A bad row of the GPU's memory could not be remapped.",
    ),
    _counted(
        Mark.REMAP_LIMIT,
        "gpu_remapped_uncorrectable",
        lambda limits: limits.remapped_rows + 1,
        "row",
        "{value:g} rows of the GPU's memory were remapped for uncorrectable errors; {least:g} are too many.",
    ),
    _counted(
        Mark.SRAM_UNCORRECTABLE,
        "gpu_ecc_uncorrectable_sram",
        lambda limits: limits.sram_uncorrectable,
        "error",
        "The GPU met {value:g} uncorrectable SRAM errors since it was reset; {least:g} is too many.",
    ),
    _flagged(
        Mark.SRAM_THRESHOLD,
        "gpu_sram_threshold_exceeded",
        lambda _: 0.0,
        "The driver says that the GPU's SRAM errors passed their threshold; the GPU is to be replaced.",
    ),
    Rule(
        Mark.NVLINK_DOWN,
        _nvlinks,
        lambda limits: "any that was up is down" if limits.nvlinks is None else f"< {limits.nvlinks} up",
        lambda limits: limits.nvlink_down_s,
        follows=True,
    ),
    _flagged(
        Mark.FABRIC_UNHEALTHY,
        "gpu_fabric_route_unhealthy",
        lambda limits: limits.fabric_s,
        "The NVLink fabric has no sound route to this GPU.",
    ),
    _flagged(
        Mark.REMAP_PENDING,
        "gpu_row_remap_pending",
        lambda _: 0.0,
        "A bad row of the GPU's memory is remapped at its next reset.",
    ),
    _flagged(
        Mark.FABRIC_DEGRADED,
        "gpu_fabric_degraded_bandwidth",
        lambda limits: limits.fabric_s,
        "The NVLink fabric gives this GPU less than its bandwidth.",
    ),
    Rule(
        Mark.PCIE_WIDTH,
        _width,
        lambda _: "less than possible",
        lambda limits: limits.pcie_width_s,
        lambda limits: limits.pcie_clear_s,
        follows=True,
    ),
    Rule(
        Mark.PCIE_SPEED,
        _speed,
        lambda _: "less than possible under load",
        lambda limits: limits.pcie_speed_s,
        lambda limits: limits.pcie_clear_s,
        patient=True,
    ),
)
