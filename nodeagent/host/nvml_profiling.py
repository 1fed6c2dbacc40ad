"""Profiling of the units of a GPU by NVML's GPM (GPU performance monitoring): Hopper and newer.

A value is the mean between two samples, here two readings: the first reading of a session has none. The driver keeps
the samples, so each one is freed when the next one is compared with it, and the last ones before the driver is closed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_ACTIVITIES = {
    "graphics": "GRAPHICS_UTIL",
    "sm": "SM_UTIL",
    "sm_occupancy": "SM_OCCUPANCY",
    "tensor": "ANY_TENSOR_UTIL",
    "fp64": "FP64_UTIL",
    "fp32": "FP32_UTIL",
    "fp16": "FP16_UTIL",
    "memory": "DRAM_BW_UTIL",
}
METRICS = {
    f"gpu_activity/{unit}": (f"NVML_GPM_METRIC_{metric}", 0.01) for unit, metric in _ACTIVITIES.items()
} | {
    f"gpu_nvlink_rate/{way}": (f"NVML_GPM_METRIC_NVLINK_TOTAL_{word}_PER_SEC", 2.0**20)
    for way, word in (("transmit", "TX"), ("receive", "RX"))
}
"""The constants of nvml.h by sample name, and the factor to its unit: they are in percent and in MiB per second."""


class ProfilingReader:
    """Reads one GPU at a time, during one session with the driver. ``lib`` is the opened binding."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._samples: dict[str, Any] = {}
        """The newest sample of each GPU, by UUID."""

    def read(self, handle: Any, uuid: str) -> dict[str, float]:
        """Return the means since the last call; a metric that the GPU lacks is absent. Raises ``NVMLError``."""
        lib, sample = self._lib, self._lib.nvmlGpmSampleAlloc()
        last = self._samples.pop(uuid, None)
        self._samples[uuid] = sample
        try:
            lib.nvmlGpmSampleGet(handle, sample)
            if last is None:
                return {}
            asked = lib.c_nvmlGpmMetricsGet_t(lib.NVML_GPM_METRICS_GET_VERSION, len(METRICS), last, sample)
            for metric, (constant, _) in zip(asked.metrics, METRICS.values(), strict=False):
                metric.metricId = getattr(lib, constant)
            lib.nvmlGpmMetricsGet(asked)
        except lib.NVMLError:
            self._free(self._samples.pop(uuid))  # an incomplete sample: the next reading begins again
            raise
        finally:
            if last is not None:
                self._free(last)
        found = zip(METRICS.items(), asked.metrics, strict=False)
        return {
            name: metric.value * scale
            for (name, (_, scale)), metric in found
            if metric.nvmlReturn == lib.NVML_SUCCESS
        }

    def close(self) -> None:
        for sample in self._samples.values():
            self._free(sample)
        self._samples.clear()

    def _free(self, sample: Any) -> None:
        with suppress(self._lib.NVMLError):  # a driver that is gone has freed it
            self._lib.nvmlGpmSampleFree(sample)
