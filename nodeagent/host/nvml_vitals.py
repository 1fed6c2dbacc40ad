"""Read the measured values of one GPU by NVML: one batch of field values and some further calls.

* A call that fails, is missing in an old driver or returns an invalid value affects only its own values. A missing
  value is logged once for each call and GPU.
* An impossible value (``_LIMITS``) is dropped and named. Hardware that has left the bus returns ``0xffffffff``, and so
  does NVML for a value that is not available.
* All field values of a GPU are one call, because each call may wait for the driver's lock. NVLinks are selected by
  number in ``scopeId``: the field IDs of single links end at link 11 of Hopper's 18.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar

from nodeagent.host.gpu_driver import DriverError, GpuProcess, GpuVitals
from nodeagent.host.nvlink_domain import fabric_info, fabric_state, is_pending
from nodeagent.host.nvml_profiling import ProfilingReader

log = logging.getLogger(__name__)

T = TypeVar("T")

LINKS = 18
"""NVLinks that are read before the driver has returned their number (Hopper and Blackwell: 18)."""
_LINKS_MAX = 36  # NVML_NVLINK_MAX_LINKS
_TEXT_MAX = 96  # NVML's longest buffer for these texts
_ONES_32 = 2.0**32 - 1
COUNTER_MAX = 2.0**63
"""Values above it are negative ones: no counter reaches it, and 2**64 - 1 is NVML's "not available"."""

_LIMITS: dict[str, tuple[float, float]] = {
    "gpu_memory_used_bytes": (0, 2.0**50),
    "gpu_memory_total_bytes": (0, 2.0**50),
    "gpu_celsius": (-55, 150),
    "gpu_memory_celsius": (-55, 150),
    "gpu_limit_celsius": (-55, 150),
    "gpu_memory_limit_celsius": (-55, 150),
    "gpu_margin_celsius": (-128, 205),
    "gpu_memory_least_margin_celsius": (-128, 127),
    "gpu_utilization": (0, 1),
    "gpu_memory_reserved_bytes": (0, 2.0**50),
    "gpu_memory_utilization": (0, 1),
    "gpu_encoder_utilization": (0, 1),
    "gpu_decoder_utilization": (0, 1),
    "gpu_power_watts": (0, 10_000),
    "gpu_power_limit_watts": (0, 10_000),
    "gpu_sm_hertz": (0, 1e10),
    "gpu_memory_hertz": (0, 1e11),
    "gpu_clock_reason": (0, 1),
    "gpu_performance_state": (0, 15),
    "gpu_persistence_mode": (0, 1),
    "gpu_ecc_mode": (0, 1),
    "gpu_row_remap_pending": (0, 1),
    "gpu_row_remap_failed": (0, 1),
    "gpu_remapped_correctable": (0, 2.0**32 - 2),
    "gpu_remapped_uncorrectable": (0, 2.0**32 - 2),
    "gpu_sram_threshold_exceeded": (0, 1),
    "gpu_nvlink_up": (0, 1),
    "gpu_nvlink_bytes_per_second": (0, 1e13),
    "gpu_activity": (0, 1),
    "gpu_nvlink_rate": (0, 1e13),
    "gpu_nvlink_bit_error_ratio": (0, 1),
    "gpu_pcie_generation": (1, 16),
    "gpu_pcie_generation_max": (1, 16),
    "gpu_pcie_width": (1, 64),
    "gpu_pcie_width_max": (1, 64),
    "gpu_fabric_degraded_bandwidth": (0, 1),
    "gpu_fabric_route_recovery": (0, 1),
    "gpu_fabric_route_unhealthy": (0, 1),
    "gpu_fabric_access_timeout": (0, 1),
    "gpu_fabric_misconfigured": (0, 1),
    "gpu_fabric_not_ready": (0, 1),
    "gpu_fabric_failed": (0, 1),
}
"""The lowest and the highest possible value; all other names are counters."""

FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
"""By ``nvmlGpuFabricState_t``. A registration that was completed with an error is ``failed``."""

_PCIE_ERRORS = {
    "correctable": "CORRECTABLE_ERRORS",
    "naks_received": "NAKS_RECEIVED",
    "receiver": "RECEIVER_ERROR",
    "bad_tlp": "BAD_TLP",
    "naks_sent": "NAKS_SENT",
    "bad_dllp": "BAD_DLLP",
    "nonfatal": "NON_FATAL_ERROR",
    "fatal": "FATAL_ERROR",
    "unsupported_request": "UNSUPPORTED_REQ",
    "lcrc": "LCRC_ERROR",
    "lane": "LANE_ERROR",
}
CLOCK_REASONS = {
    "idle": "GpuIdle",
    "application_clocks": "ApplicationsClocksSetting",
    "power_cap": "SwPowerCap",
    "hardware_slowdown": "HwSlowdown",
    "sync_boost": "SyncBoost",
    "thermal": "SwThermalSlowdown",
    "hardware_thermal": "HwThermalSlowdown",
    "power_brake": "HwPowerBrakeSlowdown",
    "display": "DisplayClockSetting",
}
"""Why the clocks are not the highest, by the constants ``nvmlClocksEventReason...`` of nvml.h."""
_CALLS = {
    "nvmlDeviceGetCurrPcieLinkGeneration": ("gpu_pcie_generation", 1.0),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("gpu_pcie_generation_max", 1.0),
    "nvmlDeviceGetCurrPcieLinkWidth": ("gpu_pcie_width", 1.0),
    "nvmlDeviceGetMaxPcieLinkWidth": ("gpu_pcie_width_max", 1.0),
    "nvmlDeviceGetPowerUsage": ("gpu_power_watts", 1e-3),
    "nvmlDeviceGetEnforcedPowerLimit": ("gpu_power_limit_watts", 1e-3),
    "nvmlDeviceGetTotalEnergyConsumption": ("gpu_energy_joules", 1e-3),
    "nvmlDeviceGetPersistenceMode": ("gpu_persistence_mode", 1.0),
    "nvmlDeviceGetMarginTemperature": ("gpu_margin_celsius", 1.0),
}
"""The calls that return one number, with its name and the factor to its unit."""
_CODECS = {
    "nvmlDeviceGetEncoderUtilization": "gpu_encoder_utilization",
    "nvmlDeviceGetDecoderUtilization": "gpu_decoder_utilization",
}
_ECC = {
    "gpu_ecc_correctable_sram": ("CORRECTED", "SRAM", "VOLATILE"),
    "gpu_ecc_correctable_dram": ("CORRECTED", "DRAM", "VOLATILE"),
    "gpu_ecc_uncorrectable_sram": ("UNCORRECTED", "SRAM", "VOLATILE"),
    "gpu_ecc_uncorrectable_dram": ("UNCORRECTED", "DRAM", "VOLATILE"),
    "gpu_ecc_correctable_sram_lifetime": ("CORRECTED", "SRAM", "AGGREGATE"),
    "gpu_ecc_correctable_dram_lifetime": ("CORRECTED", "DRAM", "AGGREGATE"),
    "gpu_ecc_uncorrectable_sram_lifetime": ("UNCORRECTED", "SRAM", "AGGREGATE"),
    "gpu_ecc_uncorrectable_dram_lifetime": ("UNCORRECTED", "DRAM", "AGGREGATE"),
}
_LINK_COUNTERS = {
    "gpu_nvlink_replays": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "gpu_nvlink_recoveries": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "gpu_nvlink_crc_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "gpu_nvlink_symbol_errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
}
_LINK_RATIOS = {
    "ber_effective": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER",
    "ber_symbol": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER",
}
"""Bit error ratios since the link came up: 4 bits of mantissa above 8 bits of a negative decimal exponent (nvml.h,
``NVML_NVLINK_ERROR_COUNTER_BER_GET``). 0xfff is a link without errors."""
_BER_MAX = 0xFFF
_FIELDS = {
    "gpu_memory_celsius": "NVML_FI_DEV_MEMORY_TEMP",
    "gpu_memory_least_margin_celsius": "NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT",
    "gpu_remapped_correctable": "NVML_FI_DEV_REMAPPED_COR",
    "gpu_remapped_uncorrectable": "NVML_FI_DEV_REMAPPED_UNC",
    "gpu_row_remap_pending": "NVML_FI_DEV_REMAPPED_PENDING",
    "gpu_row_remap_failed": "NVML_FI_DEV_REMAPPED_FAILURE",
    "gpu_pcie_replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "gpu_pcie_bytes/transmit": "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
    "gpu_pcie_bytes/receive": "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
    **{f"gpu_pcie_errors/{name}": f"NVML_FI_DEV_PCIE_COUNT_{field}" for name, field in _PCIE_ERRORS.items()},
}


def plausible_vitals(
    uuid: str,
    values: dict[str, float],
    texts: dict[str, str],
    processes: tuple[GpuProcess, ...] | None = None,
) -> GpuVitals:
    """The vitals without impossible values."""
    absurd = [name for name, value in values.items() if not _is_possible(name, value)]
    used, total = values.get("gpu_memory_used_bytes"), values.get("gpu_memory_total_bytes")
    if used is not None and total is not None and used > total:
        absurd.append("gpu_memory_used_bytes")
    kept = {name: value for name, value in values.items() if name not in absurd}
    short = {name: text[:_TEXT_MAX] for name, text in texts.items() if text}
    return GpuVitals(uuid, kept, short, tuple(sorted(set(absurd))), processes)


def _is_possible(name: str, value: float) -> bool:
    head, _, link = name.partition("/")
    if head == "gpu_nvlink_up" and not (link.isascii() and link.isdecimal() and int(link) < _LINKS_MAX):
        return False
    least, most = _LIMITS.get(head, (0.0, COUNTER_MAX))
    return math.isfinite(value) and least <= value <= most


class VitalsReader:
    """Reads the vitals of one GPU at a time, during one session with the driver."""

    _logged: ClassVar[set[tuple[str, str]]] = set()
    """The missing values that are logged: once, not at each opening."""

    def __init__(self, lib: Any, *, processes: bool = False, profiling: bool = False) -> None:
        self._lib = lib
        self._processes = processes
        self._profiling = ProfilingReader(lib) if profiling else None
        self._links: dict[str, int] = {}
        self._unsupported: dict[str, frozenset[str]] = {}
        """The values that no NVLink of a GPU has, by UUID: fifth-generation links have others than those before."""
        self._sampled: dict[str, int] = {}
        """The time stamp of the newest sample of a process, by UUID, in microseconds of the driver's clock."""
        self._texts: dict[str, dict[str, str]] = {}
        self._uuid = ""
        self._lost = False

    def read(self, handle: Any, uuid: str) -> GpuVitals:
        """Raises ``DriverError`` if the driver as a whole does not answer."""
        lib = self._lib
        self._uuid, self._lost = uuid, False
        values: dict[str, float] = {}
        texts: dict[str, str] = {}
        for name, function in self._calls(handle):
            result = self._call(name, function)
            if result is not None:
                values |= result
        texts |= self._call("nvmlDeviceGetGpuFabricInfoV", lambda: _fabric(lib, handle, values)) or {}
        texts |= self._names(handle)
        processes = None
        if self._processes:
            processes = self._running(handle)
        return plausible_vitals(uuid, values, texts, processes)

    def close(self) -> None:
        """Free what the driver keeps for this reader."""
        if self._profiling is not None:
            self._profiling.close()

    def _calls(self, handle: Any) -> Iterable[tuple[str, Callable[[], dict[str, float]]]]:
        lib = self._lib
        yield "nvmlDeviceGetFieldValues", lambda: self._fields(handle)
        yield "nvmlDeviceGetMemoryInfo", lambda: _memory(lib, handle)
        yield "nvmlDeviceGetSramEccErrorStatus", lambda: _sram(lib, handle)
        for name, (error, location, period) in _ECC.items():
            yield (
                f"nvmlDeviceGetMemoryErrorCounter({error}, {location}, {period})",
                partial(_ecc, lib, handle, name, error, location, period),
            )
        for call, (name, scale) in _CALLS.items():
            yield call, partial(_number_of, lib, call, handle, name, scale)
        yield "nvmlDeviceGetEccMode", lambda: {"gpu_ecc_mode": float(lib.nvmlDeviceGetEccMode(handle)[0])}
        for clock, name in (("SM", "gpu_sm_hertz"), ("MEM", "gpu_memory_hertz")):
            which = getattr(lib, f"NVML_CLOCK_{clock}")
            yield (
                f"nvmlDeviceGetClockInfo({clock})",
                partial(_number_of, lib, "nvmlDeviceGetClockInfo", handle, name, 1e6, which),
            )
        for threshold, name in (("SLOWDOWN", "gpu_limit_celsius"), ("MEM_MAX", "gpu_memory_limit_celsius")):
            which = getattr(lib, f"NVML_TEMPERATURE_THRESHOLD_{threshold}")
            yield (
                f"nvmlDeviceGetTemperatureThreshold({threshold})",
                partial(_number_of, lib, "nvmlDeviceGetTemperatureThreshold", handle, name, 1.0, which),
            )
        yield "nvmlDeviceGetCurrentClocksEventReasons", lambda: _clock_reasons(lib, handle)
        if (profiling := self._profiling) is not None:
            yield "nvmlGpmMetricsGet", lambda: profiling.read(handle, self._uuid)
        yield "nvmlDeviceGetPerformanceState", lambda: _performance(lib, handle)
        yield "nvmlDeviceGetUtilizationRates", lambda: _utilization(lib, handle)
        for call, name in _CODECS.items():
            yield call, lambda call=call, name=name: {name: getattr(lib, call)(handle)[0] / 100}  # type: ignore[misc]
        yield (
            "nvmlDeviceGetTemperature",
            lambda: {"gpu_celsius": float(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU))},
        )

    def _fields(self, handle: Any) -> dict[str, float]:
        lib, links = self._lib, range(self._links.get(self._uuid, LINKS))
        wanted: list[tuple[str, int, int]] = [("links", lib.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)]
        wanted += [(name, getattr(lib, field), 0) for name, field in _FIELDS.items()]
        wanted += [(f"gpu_nvlink_up/{link}", lib.NVML_FI_DEV_NVLINK_GET_STATE, link) for link in links]
        wanted += [(f"speed/{link}", lib.NVML_FI_DEV_NVLINK_GET_SPEED, link) for link in links]
        # The scope of all links: UINT_MAX (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX). The driver counts KiB.
        wanted += [
            (f"nvlink_kib/{way}", getattr(lib, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{word}"), 2**32 - 1)
            for way, word in (("transmit", "TX"), ("receive", "RX"))
        ]
        of_links = {**_LINK_COUNTERS, **_LINK_RATIOS}
        unsupported = self._unsupported.get(self._uuid, frozenset())
        for name, field in of_links.items():
            if name not in unsupported:
                wanted += [(f"{name}/{link}", getattr(lib, field), link) for link in links]
        answers = lib.nvmlDeviceGetFieldValues(handle, [(field, scope) for _, field, scope in wanted])
        kinds = _value_names(lib)
        numbers = {
            name: _number(kinds, answer)
            for (name, _, _), answer in zip(wanted, answers, strict=True)
            if answer.nvmlReturn == lib.NVML_SUCCESS
        }
        count = numbers.pop("links", None)
        if count is not None and LINKS < count <= _LINKS_MAX:
            self._links[self._uuid] = int(count)  # used by the next reading
        if self._uuid not in self._unsupported and any(
            numbers.get(f"gpu_nvlink_up/{link}") == 1 for link in links
        ):
            possible = {
                name.partition("/")[0]
                for (name, _, _), answer in zip(wanted, answers, strict=True)
                if answer.nvmlReturn not in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_INVALID_ARGUMENT)
            }
            self._unsupported[self._uuid] = frozenset(of_links.keys() - possible)
        return _over_all_links(numbers)

    def _running(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        """All processes of the GPU, by pid. A process with a compute and a graphics context is in both lists, with its
        whole memory in each; so is a client of MPS."""
        lib = self._lib
        memory: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            call = f"nvmlDeviceGet{kind}RunningProcesses_v3"
            found = self._call(call, lambda call=call: getattr(lib, call)(handle))  # type: ignore[misc]
            if found is None and kind == "Compute":
                return None
            for process in found or ():
                seen = [memory.get(process.pid), process.usedGpuMemory]
                memory[int(process.pid)] = max((int(size) for size in seen if size is not None), default=None)
        shares = (
            (self._call("nvmlDeviceGetProcessUtilization", lambda: self._shares(handle))) if memory else {}
        )
        return tuple(
            GpuProcess(pid, size, None if shares is None else shares.get(pid, 0.0))
            for pid, size in sorted(memory.items())
        )

    def _shares(self, handle: Any) -> dict[int, float]:
        """The SM utilization by pid since the last call. A process without a sample has not used the SMs.

        The driver may fill up the answer with samples of ended processes and with values above 100.
        """
        lib, since = self._lib, self._sampled.get(self._uuid, 0)
        try:
            samples = lib.nvmlDeviceGetProcessUtilization(handle, since)
        except lib.NVMLError as error:
            if error.value == lib.NVML_ERROR_NOT_FOUND:  # nothing was sampled since then
                return {}
            raise
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            time_us, percent = int(sample.timeStamp), int(sample.smUtil)
            if time_us > since and percent <= 100:
                newest[int(sample.pid)] = max(newest.get(int(sample.pid), (0, 0.0)), (time_us, percent / 100))
        self._sampled[self._uuid] = max((time_us for time_us, _ in newest.values()), default=since)
        return {pid: share for pid, (_, share) in newest.items()}

    def _names(self, handle: Any) -> dict[str, str]:
        """Texts that do not change while the driver is open."""
        if self._uuid not in self._texts:
            lib = self._lib
            serial = self._call("nvmlDeviceGetSerial", lambda: str(lib.nvmlDeviceGetSerial(handle)))
            vbios = self._call(
                "nvmlDeviceGetVbiosVersion", lambda: str(lib.nvmlDeviceGetVbiosVersion(handle))
            )
            names = {
                "gpu_serial": serial,
                "gpu_vbios": vbios,
                "gpu_compute_capability": self._call(
                    "nvmlDeviceGetCudaComputeCapability", lambda: _compute_capability(lib, handle)
                ),
                "gpu_cuda_version": self._call(
                    "nvmlSystemGetCudaDriverVersion_v2",
                    lambda: cuda_version(lib.nvmlSystemGetCudaDriverVersion_v2()),
                ),
                "gpu_mig_capable": self._call("nvmlDeviceGetMigMode", lambda: _mig_capable(lib, handle)),
            }
            self._texts[self._uuid] = {name: text for name, text in names.items() if text}
        return self._texts[self._uuid]

    def _call(self, call: str, function: Callable[[], T]) -> T | None:
        lib = self._lib
        if self._lost:
            return None  # each further call would wait for its own timeout
        try:
            return function()
        except lib.NVMLError as error:
            if error.value in (lib.NVML_ERROR_UNINITIALIZED, lib.NVML_ERROR_DRIVER_NOT_LOADED):
                raise DriverError(
                    f"{call}: {error}", absent=error.value == lib.NVML_ERROR_DRIVER_NOT_LOADED
                ) from error
            self._lost = error.value == lib.NVML_ERROR_GPU_IS_LOST
            if self._lost:
                return None  # the next reading of all GPUs reports it
            # A driver without a call has it for no GPU.
            uuid = "" if error.value == lib.NVML_ERROR_FUNCTION_NOT_FOUND else self._uuid
            level = logging.INFO if error.value in _missing(lib) else logging.WARNING
            self._log_missing(call, uuid, str(error), level)
        except ValueError as error:  # includes UnicodeDecodeError: an invalid text
            self._log_missing(call, self._uuid, str(error), logging.WARNING)
        return None

    def _log_missing(self, call: str, uuid: str, reason: str, level: int) -> None:
        if (call, uuid) not in self._logged:
            self._logged.add((call, uuid))
            log.log(level, "GPU value is not available. call=%s of=%r why=%r", call, uuid or "all", reason)


def _missing(lib: Any) -> tuple[int, ...]:
    """The errors of a driver or a GPU that lacks a call, or this version of it."""
    return (
        lib.NVML_ERROR_FUNCTION_NOT_FOUND,
        lib.NVML_ERROR_NOT_SUPPORTED,
        lib.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )


def _value_names(lib: Any) -> dict[int, str]:
    """The part of a field value that holds it, by its type."""
    return {
        lib.NVML_VALUE_TYPE_DOUBLE: "dVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        lib.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        lib.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }


def _number(names: dict[int, str], answer: Any) -> float:
    """A field value by its own type. An unknown type gives NaN, and so does an unsigned value with all bits set: it is
    NVML_VALUE_NOT_AVAILABLE."""
    name = names.get(answer.valueType)
    value = math.nan if name is None else float(getattr(answer.value, name))
    return math.nan if name == "uiVal" and value == _ONES_32 else value


def _over_all_links(numbers: dict[str, float]) -> dict[str, float]:
    """Add up the errors of the links. The speed is that of the slowest link that is up, an error ratio that of the
    worst link."""
    values: dict[str, float] = {}
    speeds: list[float] = []
    for name, value in numbers.items():
        head, _, link = name.partition("/")
        if head == "speed":
            if numbers.get(f"gpu_nvlink_up/{link}") == 1 and math.isfinite(value):
                speeds.append(value * 1e6)  # reported in MB/s
        elif head in _LINK_RATIOS:
            worst = f"gpu_nvlink_bit_error_ratio/{head.removeprefix('ber_')}"
            values[worst] = _worse(values.get(worst, 0.0), value)
        elif head == "nvlink_kib":
            values[f"gpu_nvlink_bytes/{link}"] = value * 1024
        elif head in _LINK_COUNTERS:
            # One impossible term makes the sum impossible, so the whole sum is dropped.
            values[head] = values.get(head, 0.0) + (value if 0 <= value <= COUNTER_MAX else math.nan)
        else:
            values[name] = value
    if speeds:
        values["gpu_nvlink_bytes_per_second"] = min(speeds)
    return values


def _worse(ratio: float, encoded: float) -> float:
    """The larger of a bit error ratio and an encoded one. One impossible value makes the result impossible."""
    if not 0 <= encoded <= _BER_MAX:
        return math.nan
    decoded = (int(encoded) >> 8) * 10.0 ** -(int(encoded) & 0xFF)
    return ratio if math.isnan(ratio) else max(ratio, decoded)


def _memory(lib: Any, handle: Any) -> dict[str, float]:
    """The memory as nvidia-smi shows it. A driver before 510 has only the first version of the call, which counts what
    the driver reserves as used."""
    try:
        memory = lib.nvmlDeviceGetMemoryInfo(handle, lib.nvmlMemory_v2)
        reserved = {"gpu_memory_reserved_bytes": float(memory.reserved)}
    except lib.NVMLError as error:
        if error.value not in _missing(lib):
            raise
        memory, reserved = lib.nvmlDeviceGetMemoryInfo(handle), {}
    used, total = float(memory.used), float(memory.total)
    return {"gpu_memory_used_bytes": used, "gpu_memory_total_bytes": total, **reserved}


def _ecc(lib: Any, handle: Any, name: str, error: str, location: str, period: str) -> dict[str, float]:
    count = lib.nvmlDeviceGetMemoryErrorCounter(
        handle,
        getattr(lib, f"NVML_MEMORY_ERROR_TYPE_{error}"),
        getattr(lib, f"NVML_{period}_ECC"),
        getattr(lib, f"NVML_MEMORY_LOCATION_{location}"),
    )
    return {name: float(count)}


def _number_of(
    lib: Any, call: str, handle: Any, name: str, scale: float, *arguments: Any
) -> dict[str, float]:
    value = float(getattr(lib, call)(handle, *arguments))
    return {name: value * scale if value <= COUNTER_MAX else math.nan}


def _clock_reasons(lib: Any, handle: Any) -> dict[str, float]:
    """A driver before 535 has the call under its former name only."""
    try:
        bits = int(lib.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except lib.NVMLError as error:
        if error.value != lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        bits = int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    gone = bits in (2**32 - 1, 2**64 - 1)
    return {
        f"gpu_clock_reason/{name}": math.nan
        if gone
        else float(bool(bits & getattr(lib, f"nvmlClocksEventReason{reason}")))
        for name, reason in CLOCK_REASONS.items()
    }


def _utilization(lib: Any, handle: Any) -> dict[str, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_utilization": rates.gpu / 100, "gpu_memory_utilization": rates.memory / 100}


def _sram(lib: Any, handle: Any) -> dict[str, float]:
    """The threshold flag, and the uncorrectable errors of the GPU's lifetime by the driver's buckets."""
    status = lib.c_nvmlEccSramErrorStatus_v1_t()
    lib.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    buckets = {
        "l2": status.aggregateUncBucketL2,
        "sm": status.aggregateUncBucketSm,
        "pcie": status.aggregateUncBucketPcie,
        "mcu": status.aggregateUncBucketMcu,
        "other": status.aggregateUncBucketOther,
    }
    values = {f"gpu_sram_uncorrectable_lifetime/{name}": float(count) for name, count in buckets.items()}
    return values | {"gpu_sram_threshold_exceeded": float(status.bThresholdExceeded)}


def cuda_version(number: int) -> str:
    """The newest version of CUDA that a driver runs, from NVML's form of it (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).

    >>> cuda_version(12040)
    '12.4'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def _compute_capability(lib: Any, handle: Any) -> str:
    major, minor = lib.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _mig_capable(lib: Any, handle: Any) -> str:
    """``yes`` or ``no``: a GPU that cannot be divided has no MIG mode, not even one that is off."""
    try:
        lib.nvmlDeviceGetMigMode(handle)
    except lib.NVMLError as error:
        if error.value not in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND):
            raise
        return "no"
    return "yes"


def _performance(lib: Any, handle: Any) -> dict[str, float]:
    state = int(lib.nvmlDeviceGetPerformanceState(handle))
    return {} if state == lib.NVML_PSTATE_UNKNOWN else {"gpu_performance_state": float(state)}


def _fabric(lib: Any, handle: Any, values: dict[str, float]) -> dict[str, str]:
    """Return the state as a text; put its values, and the supported ones of the health mask, into ``values``. The
    status is valid only in the state "completed". A GPU without a fabric has none of them."""
    info = fabric_info(lib, handle)
    if info is None or (state := fabric_state(info)) == lib.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return {}
    text = FABRIC_STATES[state] if state < len(FABRIC_STATES) else f"state_{state}"
    if (pending := is_pending(lib, state)) is not None:
        values["gpu_fabric_not_ready"] = float(pending)
    if pending is False:
        values["gpu_fabric_failed"] = float(info.status != lib.NVML_SUCCESS)
        text = "failed" if values["gpu_fabric_failed"] else text
    mask = int(getattr(info, "healthMask", 0))  # the first version has none

    def bits(what: str) -> int:
        shift = getattr(lib, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{what}")
        return int(mask >> shift & getattr(lib, f"NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_{what}"))

    for name, what in (
        ("gpu_fabric_degraded_bandwidth", "DEGRADED_BW"),
        ("gpu_fabric_route_recovery", "ROUTE_RECOVERY"),
        ("gpu_fabric_route_unhealthy", "ROUTE_UNHEALTHY"),
        ("gpu_fabric_access_timeout", "ACCESS_TIMEOUT_RECOVERY"),
    ):
        if bits(what) in (1, 2):  # 1 is true, 2 is false
            values[name] = float(bits(what) == 1)
    configuration = bits("INCORRECT_CONFIGURATION")
    if configuration:  # 1 is none, above it are the kinds
        values["gpu_fabric_misconfigured"] = float(configuration != 1)
    return {"gpu_fabric_state": text}
