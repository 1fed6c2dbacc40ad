"""The measured values of simulated GPUs, by their names in a recording.

A healthy GPU is idle, cool and free of errors, with all NVLinks up and its PCIe link at full width and speed.
"""

from __future__ import annotations

from typing import Literal

from nodeagent.sim.machine.blueprint import GpuPart

Memory = Literal["sram", "dram"]

_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_NVLINK_BYTES = 26.5625e9
"""One link of the fourth generation, in each direction."""
_VOLATILE = (
    "gpu_ecc_correctable_sram",
    "gpu_ecc_correctable_dram",
    "gpu_ecc_uncorrectable_sram",
    "gpu_ecc_uncorrectable_dram",
    "gpu_nvlink_replays",
    "gpu_nvlink_recoveries",
    "gpu_nvlink_crc_errors",
    "gpu_pcie_replays",
)


def healthy_values(part: GpuPart) -> dict[str, float]:
    generation = _GENERATIONS.get(part.pcie.gts, 1)
    values: dict[str, float] = {
        "gpu_memory_used_bytes": 0,
        "gpu_memory_total_bytes": part.memory_mib << 20,
        "gpu_celsius": 31,
        "gpu_memory_celsius": 38,
        "gpu_utilization": 0,
        "gpu_performance_state": 0,
        "gpu_row_remap_pending": 0,
        "gpu_row_remap_failed": 0,
        "gpu_remapped_correctable": 0,
        "gpu_remapped_uncorrectable": 0,
        "gpu_sram_threshold_exceeded": 0,
        "gpu_pcie_generation": generation,
        "gpu_pcie_generation_max": generation,
        "gpu_pcie_width": part.pcie.width,
        "gpu_pcie_width_max": part.pcie.width,
        **dict.fromkeys(_VOLATILE, 0),
    }
    if part.nvlinks:
        values["gpu_nvlink_bytes_per_second"] = _NVLINK_BYTES
        values |= {f"gpu_nvlink_up/{link}": 1 for link in range(part.nvlinks)}
        values |= {"gpu_fabric_degraded_bandwidth": 0, "gpu_fabric_route_unhealthy": 0}
    return values


def reset(values: dict[str, float]) -> None:
    """Reset the values: volatile counters are zero, pending rows are remapped, the links are trained."""
    values |= dict.fromkeys(_VOLATILE, 0)
    values["gpu_row_remap_pending"] = 0
    values["gpu_pcie_width"] = values["gpu_pcie_width_max"]
    values["gpu_pcie_generation"] = values["gpu_pcie_generation_max"]
    values |= {name: 1 for name in values if name.startswith("gpu_nvlink_up/")}
