"""The measured values and counters of simulated NICs and GPUs, which are in their registers and not in sysfs.

Values have the names of recorded samples (docs/reference/samples.md), each under its source. A new machine is healthy:
full optical power, all counters zero, GPUs idle and cool, NVLinks up, PCIe links at full width and speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nodeagent_lab.sim.machine.blueprint import GpuPart, NicPart

LANES = 4
"""100 Gbit/s each, as on a ConnectX-7 with 400 Gbit/s."""

_TRAFFIC = (
    *(
        "rx_bytes",
        "tx_bytes",
        "rx_packets",
        "tx_packets",
        "rx_errors",
        "tx_errors",
        "rx_dropped",
        "tx_dropped",
    ),
    *("rx_missed", "rx_multicast"),
)
_FEC = ("fec_corrected_blocks", "fec_uncorrectable_blocks", "fec_corrected_bits")
_PAUSE = ("rx_pause_frames", "tx_pause_frames")
_STANDARD = (
    *("crc_errors", "mac_length_errors", "mac_too_long", "mac_undersize", "mac_oversize"),
    *("mac_fragments", "mac_jabbers", "mac_control_received", "mac_control_sent", "mac_control_unsupported"),
)
"""The counters of IEEE 802.3 and RMON that mlx5 gives the kernel beside its own statistics."""
_DRIVER = (
    *("phy_rx_bytes", "phy_tx_bytes", "phy_rx_bits", "symbol_errors", "link_down_events"),
    *("rx_discards", "tx_discards", "rx_out_of_buffer", "pause_storm_warnings", "pause_storm_errors"),
    *("pcie_rx_signal_errors", "pcie_tx_signal_errors", "pcie_stalled_read_seconds"),
    *("pcie_stalled_write_seconds", "pcie_buffer_overflows"),
    *("module_unplugs", "module_high_temperatures", "module_bus_stuck", "module_bad_shorted"),
    *(f"lane_errors/{lane}" for lane in range(LANES)),
    *(f"prio_{way}_pause_{what}/3" for way in ("rx", "tx") for what in ("frames", "seconds")),
    *("prio_rx_pause_transitions/3", "prio_ecn_marked/3", "prio_discards/3", "prio_buffer_discards/3"),
)
RDMA_FILES = {
    "rdma_out_of_sequence": "out_of_sequence",
    "rdma_packet_sequence_errors": "packet_seq_err",
    "rdma_ack_timeouts": "local_ack_timeout_err",
    "rdma_rnr_retries": "rnr_nak_retry_err",
    "rdma_adaptive_retransmits": "roce_adp_retrans",
    "rdma_slow_restarts": "roce_slow_restart",
    "rdma_cnp_sent": "np_cnp_sent",
    "rdma_cnp_handled": "rp_cnp_handled",
    "rdma_ecn_marked": "np_ecn_marked_roce_packets",
    "rdma_icrc_errors": "rx_icrc_encapsulated",
    "rdma_requester_cqe_errors": "req_cqe_error",
    "rdma_responder_cqe_errors": "resp_cqe_error",
}
"""The name of each counter's file in hw_counters."""
INFINIBAND_FILES = {
    "symbol_error": "ib_symbol_errors",
    "link_error_recovery": "ib_recoveries",
    "link_downed": "ib_link_downed",
    "port_rcv_errors": "ib_receive_errors",
    "port_rcv_remote_physical_errors": "ib_remote_physical_errors",
    "port_rcv_switch_relay_errors": "ib_switch_relay_errors",
    "port_xmit_discards": "ib_transmit_discards",
    "port_xmit_constraint_errors": "ib_transmit_constraint_errors",
    "port_rcv_constraint_errors": "ib_receive_constraint_errors",
    "local_link_integrity_errors": "ib_integrity_errors",
    "excessive_buffer_overrun_errors": "ib_buffer_overruns",
    "VL15_dropped": "ib_vl15_dropped",
    "port_xmit_wait": "ib_transmit_waits",
}
"""The counters of errors of an InfiniBand port by their files; of an Ethernet port they stay 0."""
ENDS = dict.fromkeys(INFINIBAND_FILES, 2**16 - 1) | {"port_xmit_wait": 2**32 - 1}
ENDS |= dict.fromkeys(("link_error_recovery", "link_downed"), 2**8 - 1)
ENDS |= dict.fromkeys(("port_xmit_constraint_errors", "port_rcv_constraint_errors"), 2**8 - 1)
ENDS |= dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 2**4 - 1)
"""Where each counter stays (PortCounters in IBTA volume 1)."""
_REPORTERS = ("fw", "fw_fatal", "tx", "rx", "vnic")
_PATTERNS = (
    *("command_leak", "health_compromised", "unrecoverable", "insufficient_power", "high_temperature"),
    *("cable_unplugged", "register_access", "transmit_timeout", "command_failed"),
)

_LIMITS = {
    "module_celsius": (75.0, 70.0, 0.0, -5.0),
    "module_volts": (3.465, 3.4, 3.2, 3.135),
    "rx_power_watts": (0.005, 0.004, 0.0002, 0.0001),
    "tx_power_watts": (0.005, 0.004, 0.0003, 0.0002),
    "bias_amperes": (0.012, 0.011, 0.004, 0.003),
}


def _module() -> dict[str, float]:
    values = {"module_celsius": 45.0, "module_volts": 3.3, "module_ready": 1.0}
    for lane in range(LANES):
        values[f"rx_power_watts/{lane}"] = values[f"tx_power_watts/{lane}"] = 0.001
        values[f"bias_amperes/{lane}"] = 0.007
    for name, levels in _LIMITS.items():
        for level, value in zip(
            ("high_alarm", "high_warning", "low_warning", "low_alarm"), levels, strict=True
        ):
            values[f"{name}_{level}"] = value
    return values


def _zero(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, 0)


@dataclass(slots=True)
class Hardware:
    """The values of one NIC.

    ``gts`` and ``width`` are the trained values of the PCIe link if below its capability. ``gids``: the port has GIDs.
    ``speed_mbps`` is the negotiated speed if it is not the port's highest.
    """

    link: dict[str, float] = field(default_factory=lambda: _zero(*_TRAFFIC))
    fec: dict[str, float] = field(default_factory=lambda: _zero(*_FEC))
    pause: dict[str, float] = field(default_factory=lambda: _zero(*_PAUSE))
    standard: dict[str, float] = field(default_factory=lambda: _zero(*_STANDARD))
    driver: dict[str, float] = field(default_factory=lambda: _zero(*_DRIVER))
    module: dict[str, float] = field(default_factory=_module)
    rdma: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (*RDMA_FILES, *INFINIBAND_FILES.values(), "rdma_rx_bytes", "rdma_tx_bytes"), 0
        )
    )
    aer: dict[tuple[str, str], int] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    devlink: dict[str, float] = field(
        default_factory=lambda: _zero(
            *(
                f"{what}/{reporter}"
                for reporter in _REPORTERS
                for what in ("devlink_errors", "devlink_recoveries")
            )
        )
    )
    kernel: dict[str, float] = field(
        default_factory=lambda: _zero(*(f"kernel_events/{pattern}" for pattern in _PATTERNS))
    )
    state: dict[str, float] = field(default_factory=lambda: _zero("ext_down"))
    gts: str | None = None
    width: int | None = None
    speed_mbps: int | None = None
    gids: bool = True

    def counters(self) -> tuple[dict[str, float], ...]:
        return (
            self.link,
            self.fec,
            self.pause,
            self.standard,
            self.driver,
            self.devlink,
            self.kernel,
            self.state,
        )

    def add(self, name: str, count: float) -> bool:
        """Add to a counter; false if it does not exist."""
        if name in self.rdma:
            self.rdma[name] += int(count)
            return True
        for counters in self.counters():
            if name in counters:
                counters[name] += count
                return True
        return False

    def samples(self, part: NicPart, *, carrier: bool) -> list[tuple[str, dict[str, float], dict[str, str]]]:
        """Source, values and texts, except those that depend on the netdev."""
        devlink = {f"devlink_error/{reporter}": float(reporter in self.failing) for reporter in _REPORTERS}
        samples: list[tuple[str, dict[str, float], dict[str, str]]] = [
            ("devlink", {**devlink, **self.devlink}, {}),
            ("kernel", dict(self.kernel), {}),
        ]
        texts = {"driver": part.driver, "firmware": part.firmware}
        samples.append(("driver", dict(self.driver), texts))
        if part.link_type == "ethernet":
            samples += [
                ("fec", dict(self.fec), {"fec_mode": "RS"} if carrier else {}),
                ("pause", dict(self.pause), {}),
                ("standard", dict(self.standard), {}),
                ("state", dict(self.state), {} if carrier else {"ext_state": "no-cable"}),
            ]
        return samples


EccMemory = Literal["sram", "dram"]

_PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_NVLINK_BYTES = 26.5625e9
"""One link of the fourth generation, in each direction."""
_GPU_VOLATILE = (
    "gpu_ecc_correctable_sram",
    "gpu_ecc_correctable_dram",
    "gpu_ecc_uncorrectable_sram",
    "gpu_ecc_uncorrectable_dram",
    "gpu_nvlink_replays",
    "gpu_nvlink_recoveries",
    "gpu_nvlink_crc_errors",
    "gpu_pcie_replays",
)


_CLOCK_REASONS = ("idle", "power_cap", "hardware_slowdown", "thermal", "hardware_thermal", "power_brake")
_FABRIC_FAULTS = (
    *("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout", "misconfigured"),
    *("not_ready", "failed"),
)


def healthy_gpu_values(part: GpuPart) -> dict[str, float]:
    generation = _PCIE_GENERATIONS.get(part.pcie.gts, 1)
    values: dict[str, float] = {
        "gpu_memory_used_bytes": 0,
        "gpu_memory_total_bytes": part.memory_mib << 20,
        "gpu_celsius": 31,
        "gpu_memory_celsius": 38,
        "gpu_limit_celsius": 90,
        "gpu_memory_limit_celsius": 105,
        "gpu_margin_celsius": 56,
        "gpu_memory_least_margin_celsius": 0,
        "gpu_utilization": 0,
        "gpu_memory_utilization": 0,
        "gpu_memory_reserved_bytes": 602 << 20,
        "gpu_encoder_utilization": 0,
        "gpu_decoder_utilization": 0,
        "gpu_power_watts": 72,
        "gpu_power_limit_watts": 700,
        "gpu_ecc_mode": 1,
        "gpu_energy_joules": 0,
        "gpu_sm_hertz": 345e6,
        "gpu_memory_hertz": 2619e6,
        **{f"gpu_clock_reason/{reason}": float(reason == "idle") for reason in _CLOCK_REASONS},
        "gpu_pcie_bytes/transmit": 0,
        "gpu_pcie_bytes/receive": 0,
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
        **dict.fromkeys(_GPU_VOLATILE, 0),
    }
    if part.nvlinks:
        values["gpu_nvlink_bytes_per_second"] = _NVLINK_BYTES
        values |= {"gpu_nvlink_bytes/transmit": 0, "gpu_nvlink_bytes/receive": 0}
        values |= {f"gpu_nvlink_up/{link}": 1 for link in range(part.nvlinks)}
        values |= {f"gpu_fabric_{fault}": 0 for fault in _FABRIC_FAULTS}
    return values


def reset_gpu_values(values: dict[str, float]) -> None:
    """Reset the values: volatile counters are zero, pending rows are remapped, the links are trained."""
    values |= dict.fromkeys(_GPU_VOLATILE, 0)
    values["gpu_row_remap_pending"] = 0
    values["gpu_pcie_width"] = values["gpu_pcie_width_max"]
    values["gpu_pcie_generation"] = values["gpu_pcie_generation_max"]
    values |= {name: 1 for name in values if name.startswith("gpu_nvlink_up/")}
