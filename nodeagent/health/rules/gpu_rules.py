"""The rules of GPUs: on the driver's list, on its readings, and on measured values. Pure.

* Time to enter and to clear counts only between two readings of the same kind: hours without a reading are no
  evidence.
* Every measured fault ends when the readings were good for its time to clear, or with the first good reading after a
  reset.
* The text of a reason is the value at which the fault started. It changes only where the fault itself changes (which
  NVLinks are down): a growing number would publish a new fact at each reading.

Defaults of nodeagent: 600 s to clear, 60 s for PCIe, 30 s for the fabric and for an NVLink that is down. A slow PCIe
link counts after 15 minutes of load, because an idle GPU slows its link down and trains it again many times a minute.

The registration with the fabric is a state and no error that may come again: its faults clear as soon as they start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from nodeagent.base.duration import duration
from nodeagent.facts.model import GpuFunction, State
from nodeagent.health.rule import Measure, Measured, Rule
from nodeagent.host.gpu_driver import DriverMessage, GpuReading

UNREADABLE_AFTER_S = 30.0
"""A GPU whose calls fail is first in doubt, and Unhealthy after this time (our own choice)."""
NVIDIA_DRIVER = "nvidia"
"""The kernel driver whose GPUs NVML reads."""
EXCLUDED_BY = "NVreg_ExcludedGpus"
"""The parameter of its kernel module that leaves GPUs out."""
_BY_READING = frozenset({"reading"})
_BY_VALUES = frozenset({"vitals"})


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
        said = (
            f" (kernel log: {self.function.said})" if self.function is not None and self.function.said else ""
        )
        if self.intended is EXCLUDED:
            return f"The driver leaves this GPU out; take it out of {EXCLUDED_BY} to offer it."
        if self.intended is PASSTHROUGH:
            return f"This GPU is bound to {driver} for virtual machines, so pods cannot get it."
        if self.on_bus is False:
            return "This GPU is not on the PCI bus; reseat it or reboot the node."
        if self.on_bus and driver is None:
            return f"No kernel driver is bound to this GPU{said}; check the kernel log (NVRM), then reset or reseat it."
        if self.on_bus and driver != NVIDIA_DRIVER:
            return f"This GPU is bound to {driver}, so NVML cannot read it; bind it to {NVIDIA_DRIVER}."
        return f"The driver no longer reaches this GPU{said}; reset it or reboot the node."


class GpuLimits(Protocol):
    """The settings of measured values that their rules read, as ``gpu.health`` has them; a row names its seconds."""

    @property
    def remapped_rows(self) -> int: ...

    @property
    def sram_uncorrectable(self) -> int: ...

    @property
    def nvlinks(self) -> int | None: ...

    @property
    def nvlink_errors_per_second(self) -> float: ...

    @property
    def nvlink_errors_per_terabit(self) -> float: ...

    @property
    def nvlink_symbol_errors_per_second(self) -> float: ...

    @property
    def gap_s(self) -> float: ...

    @property
    def unhealthy(self) -> Collection[str]: ...

    @property
    def ignore(self) -> Collection[str]: ...


class GpuView(NamedTuple):
    """One GPU as the measures of its rules read it. ``values`` are the last measured ones, ``links`` the NVLinks
    that were up in this boot. ``limits`` are the thresholds of the measured values. ``mismatch`` is the sentence about
    a driver whose library and kernel module have different versions. ``nvlink_errors_per_s``: the rates between the
    last two readings, by the name of the counter. ``switch_error``: the last fatal error of an NVSwitch, while
    it is new."""

    reading: GpuReading
    values: Mapping[str, float]
    links: frozenset[int]
    limits: GpuLimits
    whereabouts: Whereabouts = Whereabouts()
    mismatch: str | None = None
    nvlink_errors_per_s: Mapping[str, float] = {}
    switch_error: DriverMessage | None = None


# --- the driver's list and its readings -------------------------------------------------------------------


def _absent(view: GpuView, rule: Rule | None) -> Measured:
    where = view.whereabouts
    return Measured(float(view.reading.lost and where.intended is rule), "", sentence=where.sentence())


def _mismatch(view: GpuView) -> Measured:
    return Measured(float(view.mismatch is not None), "", sentence=view.mismatch or "")


def _unreadable(view: GpuView) -> Measured:
    fault = view.reading.fault
    sentence = f"The driver cannot read this GPU: {fault}."
    bad = fault is not None and not view.reading.lost
    return Measured(math.nan, fault or "", bad=bad, sentence=sentence)


def _mig(view: GpuView) -> Measured:
    sentence = "MIG divides this GPU: only its MIG devices are offered."
    return Measured(float(view.reading.mig), "", sentence=sentence)


def _recovery(view: GpuView) -> Measured:
    action = wanted_action(view.reading) or ""
    words = action.replace("_", " ")
    return Measured(float(bool(action)), "", sentence=f"The driver asks for a recovery action: {words}.")


def wanted_action(reading: GpuReading) -> str | None:
    """Return the recovery action that the driver asks for."""
    return None if reading.recovery_action == "none" else reading.recovery_action


# A person has bound or excluded it, or it is certain for all GPUs at once: two witnesses, so the guard lets it pass.
MISMATCH = Rule("driver_version_mismatch", State.UNHEALTHY, _mismatch,
                limit="library and kernel module differ", clears="their versions are equal", withdraws=True,
                follows=True, witnesses=frozenset({"library", "module"}))  # fmt: skip
LOST = Rule("gpu_lost", State.UNHEALTHY, lambda view: _absent(view, None),
            limit="reported by the driver", clears="the driver lists it again", withdraws=True,
            follows=True, witnesses=_BY_READING)  # fmt: skip
PASSTHROUGH: Rule = Rule("gpu_passthrough", State.UNUSED, lambda view: _absent(view, PASSTHROUGH),
                   limit="bound to vfio-pci", clears="the driver lists it again", withdraws=True,
                   follows=True, witnesses=_BY_READING | {"person"})  # fmt: skip
EXCLUDED: Rule = Rule("gpu_excluded", State.UNUSED, lambda view: _absent(view, EXCLUDED),
                limit="excluded by a setting of the driver", clears="the driver lists it again", withdraws=True,
                follows=True, witnesses=_BY_READING | {"person"})  # fmt: skip
UNREADABLE = Rule("gpu_unreadable", State.UNHEALTHY, _unreadable,
                  limit=f"for {duration(UNREADABLE_AFTER_S)}", clears="its calls no longer fail", withdraws=True,
                  enter_for_s=UNREADABLE_AFTER_S, follows=True, witnesses=_BY_READING)  # fmt: skip
MIG_ENABLED = Rule("mig_enabled", State.HEALTHY, _mig, witnesses=_BY_READING)
RECOVERY_PREFIX = "recovery_"


def recovery_rule(action: str) -> Rule:
    return Rule(f"{RECOVERY_PREFIX}{action}", State.UNHEALTHY, _recovery,
                limit="reported by the driver", clears="the driver no longer requests it", withdraws=True,
                witnesses=_BY_READING)  # fmt: skip


# --- measured values --------------------------------------------------------------------------------------


def nvlink_states(values: Mapping[str, float]) -> dict[int, bool]:
    """Return whether each NVLink is up, by its number."""
    return {
        int(name.partition("/")[2]): value == 1
        for name, value in values.items()
        if name.startswith("gpu_nvlink_up/")
    }


def _set(value: float | None, sentence: str) -> Measured | None:
    if value is None:
        return None
    return Measured(value, "set" if value else "not set", bad=value == 1, sentence=sentence)


def _flag(name: str, sentence: str) -> Measure:
    """Measure whether the driver sets this value."""
    return lambda view: _set(view.values.get(name), sentence)


def _count(name: str, unit: str, least: Callable[[GpuLimits], float], sentence: str) -> Measure:
    """Measure a count; the fault starts at ``least``."""

    def measure(view: GpuView) -> Measured | None:
        value, limit = view.values.get(name), least(view.limits)
        if value is None:
            return None
        words = sentence.format(value=value, least=limit)
        return Measured(value, _number(value, unit), bad=value >= limit, sentence=words)

    return measure


def _number(count: float, unit: str) -> str:
    if count == 1:
        return f"{count:g} {unit}"
    return f"{count:g} {unit}{'es' if unit.endswith('s') else 's'}"


def _too_many_rows(limits: GpuLimits) -> int:
    return limits.remapped_rows + 1


def _nvlink_down(view: GpuView) -> Measured | None:
    states = nvlink_states(view.values)
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


def _fabric_not_ready(view: GpuView) -> Measured | None:
    """Before the first measured values the driver's reading decides."""
    value = view.values.get("gpu_fabric_not_ready")
    if value is None and not view.values and view.reading.fabric_pending is not None:
        value = float(view.reading.fabric_pending)
    sentence = "The GPU is not registered with its NVLink fabric yet, so CUDA programs fail (error 802)."
    return _set(value, sentence)


NVLINK_ERRORS = ("gpu_nvlink_crc_errors", "gpu_nvlink_replays", "gpu_nvlink_recoveries")


NVLINK_SYMBOL_ERRORS = "gpu_nvlink_symbol_errors"


def _nvlink_rate(names: tuple[str, ...], kind: str, least: Callable[[GpuLimits], float]) -> Measure:
    """Measure the sum of the rates of these counters."""

    def measure(view: GpuView) -> Measured | None:
        rates = [rate for name, rate in view.nvlink_errors_per_s.items() if name in names]
        if not rates:
            return None
        rate, limit = sum(rates), least(view.limits)
        sentence = f"The NVLinks met {rate:.0f} {kind} per second; {limit:g} are too many."
        return Measured(rate, f"{rate:.3g} per second", bad=rate >= limit, sentence=sentence)

    return measure


def _most_bit_errors(limits: GpuLimits) -> float:
    return limits.nvlink_errors_per_terabit / 1e12


def _nvlink_ratio(kind: str) -> Measure:
    """Measure this bit error ratio of the worst NVLink."""

    def measure(view: GpuView) -> Measured | None:
        ratio = view.values.get(f"gpu_nvlink_bit_error_ratio/{kind}")
        most = _most_bit_errors(view.limits)
        if ratio is None:
            return None
        sentence = f"The worst NVLink has the {kind} bit error ratio {ratio:.0e}; {most:.0e} is too much."
        return Measured(ratio, f"{ratio:.0e}", bad=ratio >= most, sentence=sentence)

    return measure


def _switch_error(view: GpuView) -> Measured | None:
    """Only a GPU with NVLinks that were up depends on the switches of its node."""
    if not view.links:
        return None
    error = view.switch_error
    if error is None:
        return Measured(0.0, "none", bad=False)
    link = "" if error.link is None else f" on its link {error.link}"
    sentence = f"The NVSwitch {error.pci_address} reported the fatal SXid {error.number}{link} (kernel log)."
    return Measured(1.0, "", bad=True, sentence=sentence)


def _pcie_width(view: GpuView) -> Measured | None:
    width, most = view.values.get("gpu_pcie_width"), view.values.get("gpu_pcie_width_max")
    if width is None or most is None:
        return None
    words = f"{width:g} of {most:g} lanes"
    return Measured(width, words, bad=width < most, sentence=f"The PCIe link has {words}.")


def _pcie_speed(view: GpuView) -> Measured | None:
    """A link at full speed is good at any time."""
    values = view.values
    generation, most = values.get("gpu_pcie_generation"), values.get("gpu_pcie_generation_max")
    if generation is None or most is None:
        return None
    loaded = values.get("gpu_performance_state") == 0 or values.get("gpu_utilization", 0) > 0
    if generation < most and not loaded:
        return None
    words = f"generation {generation:g} of {most:g}"
    sentence = f"Under load the PCIe link runs as generation {generation:g}, not {most:g}."
    return Measured(generation, words, bad=generation < most, sentence=sentence)


def _slowed_by_power(view: GpuView) -> Measured | None:
    """The hardware also slows a GPU down that is too hot; that is the other rule."""
    reasons = [view.values.get(f"gpu_clock_reason/{name}") for name in ("power_brake", "hardware_slowdown")]
    hot = view.values.get("gpu_clock_reason/hardware_thermal")
    if None in reasons or hot is None:
        return None
    brake, slowed = reasons
    sentence = "The hardware slows the GPU down: its power supply cannot give what it draws."
    return _set(float(brake == 1 or (slowed == 1 and not hot)), sentence)


def _memory_too_hot(view: GpuView) -> Measured | None:
    celsius, most = view.values.get("gpu_memory_celsius"), view.values.get("gpu_memory_limit_celsius")
    if celsius is None or not most:
        return None
    sentence = f"The memory has {celsius:g} °C; its limit is {most:g} °C."
    return Measured(celsius, f"{celsius:g} of {most:g} °C", bad=celsius >= most, sentence=sentence)


def _no_margin(view: GpuView) -> Measured | None:
    """The driver's reason for lower clocks confirms the margin: some GPUs report 0 at any temperature."""
    names = ("gpu_margin_celsius", "gpu_memory_least_margin_celsius", "gpu_clock_reason/thermal")
    margin, least, slowed = (view.values.get(name) for name in names)
    if margin is None or least is None or slowed is None:
        return None
    sentence = (
        f"The driver slows the GPU down: {margin:g} °C are left, {least:g} °C is the limit of its memory."
    )
    bad = margin <= least and slowed == 1
    return Measured(margin, f"{margin:g} °C left", bad=bad, sentence=sentence)


class MeasuredRow(msgspec.Struct, frozen=True):
    """One rule on a measured value, before the settings apply.

    ``limit`` is the threshold in words. ``enter`` and ``clear`` name the settings with the time to enter and the time
    to clear. ``withdraws``: the fault is in the default of ``unhealthy``. ``nvlinks``: it reads NVLinks, which MIG mode
    switches off.
    """

    key: str
    measure: Measure
    limit: str | Callable[[GpuLimits], str]
    meaning: str
    origin: str = ""
    enter: str | None = None
    clear: str = "clear_seconds"
    withdraws: bool = False
    nvlinks: bool = False
    follows: bool = False
    patient: bool = False

    def rule(self, limits: GpuLimits, *, enabled: bool) -> Rule:
        """Return the rule with the thresholds and times of the settings."""
        limit = self.limit if isinstance(self.limit, str) else self.limit(limits)
        enter_s: float = getattr(limits, self.enter) if self.enter else 0.0
        clear_s: float = getattr(limits, self.clear)
        withdraws = self.key in limits.unhealthy
        return Rule(
            self.key,
            State.UNHEALTHY if withdraws else State.DEGRADED,
            self.measure,
            self.meaning,
            self.origin,
            withdraws=withdraws,
            enter_for_s=enter_s,
            clear_for_s=clear_s,
            enabled=enabled,
            limit=limit + (f" for {duration(enter_s)}" if enter_s else ""),
            clears=f"clean for {duration(clear_s)}, or clean after a reset",
            gap_s=limits.gap_s,
            resets=True,
            witnesses=_BY_VALUES,
            follows=self.follows,
            patient=self.patient,
        )


FABRIC_NOT_READY = "fabric_not_ready"

MEASURED_RULES: tuple[MeasuredRow, ...] = (
    MeasuredRow("remap_failed",
                _flag("gpu_row_remap_failed", "A bad row of the GPU's memory could not be remapped."), "set",
                "A row of the memory could not be remapped.", "Azure's node health checks.", withdraws=True),
    MeasuredRow("remap_limit",
                _count("gpu_remapped_uncorrectable", "row", _too_many_rows,
                       "{value:g} rows of the GPU's memory were remapped for uncorrectable errors; {least:g} are too "
                       "many."),
                lambda limits: f"≥ {_number(_too_many_rows(limits), 'row')}",
                "Too many rows of the memory were remapped for uncorrectable errors.",
                "More than 512: Azure's node health checks.", withdraws=True),
    MeasuredRow("sram_uncorrectable",
                _count("gpu_ecc_uncorrectable_sram", "error", lambda limits: limits.sram_uncorrectable,
                       "The GPU met {value:g} uncorrectable SRAM errors since it was reset; {least:g} is too many."),
                lambda limits: f"≥ {_number(limits.sram_uncorrectable, 'error')}",
                "The SRAM met uncorrectable errors since the last reset.",
                "One: NVIDIA, GPU memory error management, RMA policy.", withdraws=True),
    MeasuredRow("sram_threshold",
                _flag("gpu_sram_threshold_exceeded", "The driver reports that the GPU's SRAM errors passed their "
                      "threshold; the GPU is to be replaced."), "set",
                "The driver reports that the SRAM errors passed its own threshold.",
                "NVIDIA, GPU memory error management, RMA policy.", withdraws=True),
    MeasuredRow(FABRIC_NOT_READY, _fabric_not_ready, "set",
                "The GPU has a place in an NVLink fabric and is not registered there yet: each CUDA program fails.",
                enter="fabric_seconds", clear="fabric_seconds", withdraws=True, nvlinks=True),
    MeasuredRow("fabric_failed",
                _flag("gpu_fabric_failed", "The registration of the GPU with its NVLink fabric failed, so it has no "
                      "peer-to-peer traffic."), "set",
                "The registration of the GPU with its NVLink fabric ended with an error: it has no peers.",
                enter="fabric_seconds", clear="fabric_seconds", withdraws=True, nvlinks=True),
    MeasuredRow("fabric_misconfigured",
                _flag("gpu_fabric_misconfigured", "The NVLink fabric reports that this GPU is configured incorrectly; "
                      "nvidia-smi -q names how."), "set",
                "The NVLink fabric reports that the GPU is configured incorrectly.",
                enter="fabric_seconds", clear="fabric_seconds", withdraws=True, nvlinks=True),
    MeasuredRow("nvlink_down", _nvlink_down,
                lambda limits: (
                    "any that was up is down" if limits.nvlinks is None else f"< {limits.nvlinks} up"
                ),
                "An NVLink that was up in this boot is down, or fewer NVLinks than required are up.",
                enter="nvlink_down_seconds", withdraws=True, nvlinks=True, follows=True),
    MeasuredRow("fabric_unhealthy",
                _flag("gpu_fabric_route_unhealthy", "The NVLink fabric has no sound route to this GPU."), "set",
                "The NVLink fabric has no sound route to the GPU.",
                enter="fabric_seconds", withdraws=True, nvlinks=True),
    MeasuredRow("nvlink_errors",
                _nvlink_rate(NVLINK_ERRORS, "errors", lambda limits: limits.nvlink_errors_per_second),
                lambda limits: f"≥ {limits.nvlink_errors_per_second:g} per second",
                "The NVLinks of the GPU meet too many errors per second: CRC errors, replays and recoveries.",
                "100: DCGM's limit for CRC errors; fewer are corrected and do not matter.", nvlinks=True),
    MeasuredRow("nvlink_effective_ber", _nvlink_ratio("effective"),
                lambda limits: f"≥ {_most_bit_errors(limits):g}",
                "The worst NVLink has too many bit errors after correction.",
                "1e-12: IBTA's limit after correction, as for NICs. DCGM reports any error.",
                enter="fabric_seconds", nvlinks=True),
    MeasuredRow("nvlink_symbol_ber", _nvlink_ratio("symbol"),
                lambda limits: f"≥ {_most_bit_errors(limits):g}",
                "The worst NVLink has too many wrong symbols.", "As nvlink_effective_ber.",
                enter="fabric_seconds", nvlinks=True),
    MeasuredRow("nvlink_symbol_errors",
                _nvlink_rate((NVLINK_SYMBOL_ERRORS,), "symbol errors",
                             lambda limits: limits.nvlink_symbol_errors_per_second),
                lambda limits: f"≥ {limits.nvlink_symbol_errors_per_second:g} per second",
                "The NVLinks of the GPU meet too many symbol errors per second.",
                "10: NVSentinel's symbol_error of InfiniBand ports.", enter="fabric_seconds", nvlinks=True),
    MeasuredRow("nvswitch_error", _switch_error, "a fatal SXid in the kernel log",
                "An NVSwitch of the node reported a fatal error; the GPU at a link that fails reports XID 74 itself.",
                "NVIDIA, Fabric Manager User Guide, fatal SXid errors.", nvlinks=True),
    MeasuredRow("remap_pending",
                _flag("gpu_row_remap_pending", "A bad row of the GPU's memory is remapped at its next reset."), "set",
                "A row of the memory is remapped at the next reset.",
                "It needs a reset: NVIDIA, GPU memory error management."),
    MeasuredRow("fabric_degraded",
                _flag("gpu_fabric_degraded_bandwidth", "The NVLink fabric gives this GPU less than its bandwidth."),
                "set", "The NVLink fabric gives the GPU less than its bandwidth.",
                enter="fabric_seconds", nvlinks=True),
    MeasuredRow("fabric_route_recovery",
                _flag("gpu_fabric_route_recovery", "The NVLink fabric is recovering the routes to this GPU."), "set",
                "The NVLink fabric is recovering the routes to the GPU.",
                "nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY.", enter="fabric_seconds", nvlinks=True),
    MeasuredRow("fabric_access_timeout",
                _flag("gpu_fabric_access_timeout", "The NVLink fabric is recovering from an access of this GPU that "
                      "timed out."), "set",
                "The NVLink fabric is recovering from an access of the GPU that timed out.",
                "nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY.", enter="fabric_seconds", nvlinks=True),
    MeasuredRow("thermal_slowdown",
                _flag("gpu_clock_reason/hardware_thermal", "The hardware slows the GPU down, because it is too hot."),
                "set", "The hardware slows the GPU down, because it is too hot.",
                "nvmlClocksEventReasonHwThermalSlowdown.", enter="slowdown_seconds"),
    MeasuredRow("power_slowdown", _slowed_by_power, "set",
                "The hardware slows the GPU down, because its power supply cannot give what it draws.",
                "nvmlClocksEventReasonHwPowerBrakeSlowdown and HwSlowdown.",
                enter="slowdown_seconds"),
    MeasuredRow("memory_temperature", _memory_too_hot, "≥ the driver's limit",
                "The memory of the GPU is too hot.", "NVML_TEMPERATURE_THRESHOLD_MEM_MAX.",
                enter="slowdown_seconds"),
    MeasuredRow("temperature_margin", _no_margin, "≤ the memory's limit while the driver slows the GPU down",
                "No degrees are left to the limit of the memory, and the driver slows the GPU down.",
                "NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, which replaces the limit above from Ada on.",
                enter="slowdown_seconds"),
    MeasuredRow("process_stuck",
                _count("gpu_processes_stuck", "process", lambda _limits: 1,
                       "A process that holds the GPU hangs in the kernel (state D), so a reset has to wait for it; "
                       "ps -eo pid,stat,wchan,args names it."),
                "≥ 1 process", "A process on the GPU hangs in the kernel (state D) and makes no progress.",
                "The same process without any CPU time between the readings (our own choice).",
                enter="stuck_seconds"),
    MeasuredRow("pcie_width", _pcie_width, "less than possible",
                "The PCIe link has fewer lanes than the GPU and its slot support.", "For 10 s: DGX health checks.",
                enter="pcie_width_seconds", clear="pcie_clear_seconds", follows=True),
    MeasuredRow("pcie_speed", _pcie_speed, "less than possible under load",
                "Under load the PCIe link runs as a lower generation than the GPU and its slot support.",
                enter="pcie_speed_seconds", clear="pcie_clear_seconds", patient=True),
)  # fmt: skip
"""The gravest first; the reasons of a GPU have this order."""

MEASURED_KEYS: tuple[str, ...] = tuple(row.key for row in MEASURED_RULES)
if TYPE_CHECKING:
    FaultKey = str  # mypy accepts only a Literal whose values stand in the source
else:
    FaultKey = Literal[MEASURED_KEYS]
UNHEALTHY: tuple[str, ...] = tuple(row.key for row in MEASURED_RULES if row.withdraws)


def measured_rules(limits: GpuLimits, *, mig: bool = False) -> tuple[Rule, ...]:
    """Return the rules on measured values with the settings applied, the gravest first. ``mig``: the GPU is in MIG
    mode, which switches its NVLinks off; that is not a fault."""
    return tuple(
        row.rule(limits, enabled=row.key not in limits.ignore and not (mig and row.nvlinks))
        for row in MEASURED_RULES
    )
