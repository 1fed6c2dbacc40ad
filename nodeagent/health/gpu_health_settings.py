"""When the measured values of a GPU stand against it; the law of these rules is ``health/gpu_rules.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import Seconds, Settings, listed, setting, wire

Mark = Literal[
    "remap_failed",
    "remap_limit",
    "sram_uncorrectable",
    "sram_threshold",
    "nvlink_down",
    "fabric_unhealthy",
    "remap_pending",
    "fabric_degraded",
    "pcie_width",
    "pcie_speed",
]


class GpuHealthSettings(Settings, frozen=True, kw_only=True):
    """When a GPU's ECC, remapped rows, NVLinks, fabric and PCIe link stand against it."""

    read_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=3600)],
        setting("How often they are read; some hundred questions to the driver for each GPU."),
    ] = 15.0
    clear_seconds: Annotated[
        Seconds, setting("A fault goes when the readings were clean for so long, or after a reset.")
    ] = 600.0
    remapped_rows: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**32 - 3)],
        setting("More rows of memory than this remapped for uncorrectable errors are too many."),
    ] = 512
    sram_uncorrectable: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**31)],
        setting("So many uncorrectable SRAM errors since the last reset are too many."),
    ] = 1
    nvlinks: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=36)] | None,
        setting(
            "How many NVLinks of each GPU must be up (18 on an HGX H100); null: those once up this boot."
        ),
    ] = None
    nvlink_down_seconds: Annotated[Seconds, setting("An NVLink is down when it was for so long.")] = 30.0
    fabric_seconds: Annotated[
        Seconds, setting("What the NVLink fabric says against a GPU counts when it said so for so long.")
    ] = 30.0
    pcie_width_seconds: Annotated[
        Seconds, setting("The PCIe link is narrow when it had fewer lanes than it can for so long.")
    ] = 10.0
    pcie_speed_seconds: Annotated[
        Seconds,
        setting("The PCIe link is slow when it was under load for so long, and slower than it can be."),
    ] = 900.0
    pcie_clear_seconds: Annotated[Seconds, setting("As clearSeconds, for the PCIe link.")] = 60.0
    unhealthy: Annotated[
        tuple[Mark, ...],
        listed("Faults that turn the devices of the GPU Unhealthy; the others are shown as degraded."),
    ] = (
        "remap_failed",
        "remap_limit",
        "sram_uncorrectable",
        "sram_threshold",
        "nvlink_down",
        "fabric_unhealthy",
    )
    ignore: Annotated[tuple[Mark, ...], listed("Faults that are not looked for.")] = ()
    processes: Annotated[
        bool,
        setting(
            "Also measure the GPU memory of each container; it needs the host's PID namespace (hostPID)."
        ),
    ] = False


def gpu_health_conflicts(health: GpuHealthSettings) -> Iterator[Conflict]:
    """Faults that would clear sooner than they are raised: a swinging value would toggle them for ever."""
    for clear, hold in (
        ("clear_seconds", "nvlink_down_seconds"),
        ("clear_seconds", "fabric_seconds"),
        ("pcie_clear_seconds", "pcie_width_seconds"),
    ):
        least = getattr(health, hold)
        if getattr(health, clear) < least:
            message = (
                f"must be at least {wire(hold)}, {least:g}: a fault must not clear sooner than it is raised"
            )
            yield Conflict(((wire(clear),), (wire(hold),)), message)
