"""Settings of the GPUs: the driver, XIDs, and the limits of measured values. ``rules.gpu_rules`` uses the limits."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import AbsolutePath, Seconds, Settings, listed, setting, wire
from nodeagent.health.rules.gpu_rules import UNHEALTHY, FaultKey

Xid = Annotated[int, msgspec.Meta(ge=1, le=65535)]
READINGS_MISSED = 4
"""Time between readings counts for a fault while at most so many were missed."""


class GpuHealthSettings(Settings, frozen=True, kw_only=True):
    """Limits for the measured values of a GPU: ECC, remapped rows, NVLinks, fabric, PCIe link."""

    read_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=3600)],
        setting("Seconds between two readings; a reading takes some hundred driver calls for each GPU."),
    ] = 15.0
    clear_seconds: Annotated[
        Seconds, setting("Seconds of clean readings after which a fault clears; a reset clears it at once.")
    ] = 600.0
    remapped_rows: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**32 - 3)],
        setting(
            "Maximum number of memory rows remapped for uncorrectable errors. The default is from "
            "Azure's node health checks."
        ),
    ] = 512
    sram_uncorrectable: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**31)],
        setting("Number of uncorrectable SRAM errors since the last reset that is a fault."),
    ] = 1
    nvlinks: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=36)] | None,
        setting(
            "Number of NVLinks of each GPU that must be up (18 on an HGX H100); null: all links that were up "
            "since the boot."
        ),
    ] = None
    nvlink_down_seconds: Annotated[
        Seconds, setting("Seconds that an NVLink must be down before it is a fault.")
    ] = 30.0
    nvlink_errors_per_second: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=1e9)],
        setting("CRC errors, replays and recoveries of all NVLinks per second that are a fault."),
    ] = 100.0
    nvlink_errors_per_terabit: Annotated[
        Annotated[float, msgspec.Meta(ge=0.001, le=1e9)],
        setting(
            "Errors of the worst NVLink in 10^12 bits that are a fault. Drivers report it from Blackwell on."
        ),
    ] = 1.0
    nvlink_symbol_errors_per_second: Annotated[
        Annotated[float, msgspec.Meta(ge=0.001, le=1e9)],
        setting("Symbol errors of all NVLinks per second that are a fault."),
    ] = 10.0
    fabric_seconds: Annotated[
        Seconds,
        setting(
            "Seconds that the NVLink fabric must report a fault of the GPU, or too many bit and symbol errors, before "
            "it counts. A GPU that is not registered when the agent starts is withheld at once."
        ),
    ] = 30.0
    slowdown_seconds: Annotated[
        Seconds,
        setting(
            "Seconds that the hardware must slow the GPU down for heat or power, or that its memory must be too hot, "
            "before it is a fault."
        ),
    ] = 30.0
    stuck_seconds: Annotated[
        Seconds,
        setting(
            "Seconds that a process on the GPU must hang in the kernel to be a fault. Only with processes."
        ),
    ] = 300.0
    pcie_width_seconds: Annotated[
        Seconds,
        setting("Seconds that the PCIe link must have fewer lanes than possible before it is a fault."),
    ] = 10.0
    pcie_speed_seconds: Annotated[
        Seconds,
        setting(
            "Seconds under load that the PCIe link must be slower than possible before it is a fault. The "
            "link of an idle GPU is slow on purpose."
        ),
    ] = 900.0
    pcie_clear_seconds: Annotated[Seconds, setting("As clearSeconds, for faults of the PCIe link.")] = 60.0
    unhealthy: Annotated[
        tuple[FaultKey, ...],
        listed("Faults that make the devices of the GPU Unhealthy. Other faults are shown as degraded."),
    ] = UNHEALTHY
    ignore: Annotated[tuple[FaultKey, ...], listed("Faults that are not checked.")] = ()
    processes: Annotated[
        bool,
        setting(
            "Measure the GPU memory and the SM utilization of each container and pod too, and report pods that use "
            "more than their share (gpu.accounting). Off by default: it needs the host's PID namespace (hostPID)."
        ),
    ] = False

    @property
    def gap_s(self) -> float:
        """The longest time between two readings that counts for a fault."""
        return READINGS_MISSED * self.read_seconds


class GpuAccountingSettings(Settings, frozen=True, kw_only=True):
    """Pods that use more GPU memory than they were granted. Only with gpu.health.processes."""

    tolerance_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**22)],
        setting(
            "MiB that a pod may use of a GPU beyond its share. The default is that of reservedMiB: CUDA contexts take "
            "memory that no program asks for."
        ),
    ] = 512
    grace_seconds: Annotated[
        Seconds, setting("Seconds that a pod must exceed its share before it is reported.")
    ] = 60.0
    evict_seconds: Annotated[
        Seconds,
        setting(
            "Seconds that a pod must exceed its share before it is evicted, where enforcement is evict. At least "
            "graceSeconds, so that the Event comes first."
        ),
    ] = 300.0
    pod_logs: Annotated[
        AbsolutePath,
        setting(
            "The kubelet's folder of logs (podLogsDir) of the host, whose entries name the pods of processes."
        ),
    ] = "/var/log/pods"


class GpuMpsSettings(Settings, frozen=True, kw_only=True):
    """MPS daemons of shared GPUs. Only where enforcement of a gpu-mem resource is mps."""

    clients: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=4096)],
        setting(
            "Containers that may share one GPU. The default is the number of CUDA contexts that one MPS server accepts "
            "(NVIDIA, MPS documentation); a container with several processes needs more than one of them."
        ),
    ] = 48
    threads: Annotated[
        Literal["all", "share"],
        setting(
            "Part of the SMs that a container may use at a time. share: that of its memory "
            "(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); all: no limit."
        ),
    ] = "all"
    exclusive_process: Annotated[
        bool,
        setting(
            "true: `nodeagent mps` sets the compute mode of these GPUs to EXCLUSIVE_PROCESS, so that a program without "
            "MPS cannot use a GPU while the MPS server does, and sets it back to DEFAULT at its end. false: the "
            "compute mode is never touched."
        ),
    ] = False


class GpuSettings(Settings, frozen=True, kw_only=True):
    """How the agent finds and watches GPUs."""

    driver: Annotated[
        Literal["nvml", "none"], setting("Library that reads the GPUs; none: ignore the GPUs of this node.")
    ] = "nvml"
    driver_root: Annotated[
        AbsolutePath | None,
        setting(
            "Folder of the host with the driver's libraries, or with their folder (lib64, lib, usr/lib, …), for the "
            "agent's own CDI spec: /home/kubernetes/bin/nvidia on GKE. The DaemonSet must mount it. null: the folders "
            "of Debian, Red Hat and Talos below /usr, and those of the GPU operator's driver container."
        ),
    ] = None
    timeout_seconds: Annotated[
        Seconds, setting("A driver that has not answered for this many seconds is reported as hanging.")
    ] = 5.0
    fatal_xids: Annotated[
        tuple[Xid, ...],
        listed(
            "XID errors that make all devices of the GPU Unhealthy, in addition to those of the agent's own table "
            "(docs/gpu-health.md)."
        ),
    ] = ()
    ignore_xids: Annotated[
        tuple[Xid, ...],
        listed(
            "XID errors that are not a fault of the GPU, in addition to those of the agent's own table "
            "(docs/gpu-health.md)."
        ),
    ] = ()
    xid_clear_seconds: Annotated[
        Seconds | None,
        setting(
            "Seconds without a further XID after which the GPU is Healthy again; a reset clears the fault at "
            "once. null: only a reset clears it."
        ),
    ] = 600.0
    xid_repeats: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=100)],
        setting("Number of times that an XID must come on one GPU, at least 5 minutes apart, to be a fault."),
    ] = 3
    xid_repeat_seconds: Annotated[Seconds, setting("Seconds within which it must come so often.")] = 86400.0
    health: Annotated[GpuHealthSettings, setting("Limits for the measured values of a GPU.")] = (
        GpuHealthSettings()
    )
    profiling: Annotated[
        bool,
        setting(
            "Measure what the units of each GPU do between two readings: SMs and their occupancy, tensor cores, memory "
            "and NVLinks. Needs a Hopper GPU or a newer one. Off by default: these are further calls of the driver."
        ),
    ] = False
    accounting: Annotated[
        GpuAccountingSettings, setting("Pods that use more GPU memory than they were granted.")
    ] = GpuAccountingSettings()
    mps: Annotated[GpuMpsSettings, setting("MPS daemons of shared GPUs.")] = GpuMpsSettings()

    @property
    def xid_clear_s(self) -> float:
        """As ``xid_clear_seconds``; infinite where only a reset clears an XID."""
        return math.inf if self.xid_clear_seconds is None else self.xid_clear_seconds


def gpu_health_conflicts(health: GpuHealthSettings) -> Iterator[Conflict]:
    """Faults that would clear sooner than they are raised: a swinging value would toggle them without end."""
    for clear, hold in (
        ("clear_seconds", "nvlink_down_seconds"),
        ("clear_seconds", "fabric_seconds"),
        ("clear_seconds", "slowdown_seconds"),
        ("clear_seconds", "stuck_seconds"),
        ("pcie_clear_seconds", "pcie_width_seconds"),
    ):
        least = getattr(health, hold)
        if getattr(health, clear) < least:
            message = (
                f"must be at least {wire(hold)}, {least:g}: a fault must not clear sooner than it is raised"
            )
            yield Conflict(((wire(clear),), (wire(hold),)), message)


def accounting_conflicts(accounting: GpuAccountingSettings) -> Iterator[Conflict]:
    """An eviction before the Event that announces it."""
    if accounting.evict_seconds < accounting.grace_seconds:
        message = f"must be at least graceSeconds, {accounting.grace_seconds:g}: the Event comes before the eviction"
        yield Conflict((("evictSeconds",), ("graceSeconds",)), message)
