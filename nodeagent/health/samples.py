"""What a source measured on one device at one moment, and the names of all that can be measured.

One vocabulary for three readers: the rules judge these numbers, the metrics show them, and recorded samples
(JSON lines) are replayed through the rules. So a metric always shows the value that a rule used.

The law of this file:

* A name that a source did not state is absent, and nobody guesses: absent is no zero.
* Counters are as the hardware counts them, since its own beginning; who needs a rate keeps two of them.
* Values per lane or priority are stated under ``name/3``; only ``DATA`` entries with ``per`` may be.
* Units are in the names. A power that a module states as 0 W is 0, not minus infinity decibels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Source(StrEnum):
    """Who measured; each has its own rate and fails alone."""

    LINK = "link"
    """one RTM_GETLINK dump"""
    MODES = "modes"
    """ethtool netlink: speed and lanes"""
    STATE = "state"
    """ethtool netlink: extended link state"""
    FEC = "fec"
    PAUSE = "pause"
    DRIVER = "driver"
    """the driver's private statistics (ETHTOOL_GSTATS), in firmware on mlx5: slower"""
    RDMA = "rdma"
    PCIE = "pcie"
    DEVLINK = "devlink"
    MODULE = "module"
    """transceiver EEPROM over I2C: slow, and needs CAP_NET_ADMIN"""
    KERNEL = "kernel"
    """the kernel's log"""
    VF = "vf"
    """traffic of the PF's VFs: a firmware command for each on mlx5"""
    GPU = "gpu"


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device as one source saw it.

    ``at`` is CLOCK_BOOTTIME in seconds. ``device`` is a PF's PCI address or a GPU's UUID. ``values`` are by
    names of ``DATA``, ``texts`` by names of ``TEXTS``.
    """

    at: float
    device: str
    source: Source
    values: dict[str, float] = {}
    texts: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Datum:
    """``counter``: it only grows, save for resets. ``per``: ``lane``, ``priority``, or a word from a closed set."""

    source: Source
    meaning: str
    counter: bool = False
    per: str | None = None


def _levels(source: Source, **meanings: str) -> dict[str, Datum]:
    return {name: Datum(source, meaning) for name, meaning in meanings.items()}


def _counters(source: Source, **meanings: str) -> dict[str, Datum]:
    return {name: Datum(source, meaning, counter=True) for name, meaning in meanings.items()}


def _each(per: str, data: dict[str, Datum]) -> dict[str, Datum]:
    return {name: Datum(d.source, d.meaning, d.counter, per) for name, d in data.items()}


DATA: dict[str, Datum] = {
    **_levels(
        Source.LINK,
        admin_up="IFF_UP, 0 or 1",
        carrier="IFLA_CARRIER, 0 or 1; absent while admin down",
        oper_up="IFLA_OPERSTATE is UP, 0 or 1",
        mtu_bytes="IFLA_MTU",
        tx_queue_length="IFLA_TXQLEN, in packets",
    ),
    **_counters(
        Source.LINK,
        carrier_up="IFLA_CARRIER_UP_COUNT",
        carrier_down="IFLA_CARRIER_DOWN_COUNT",
        rx_bytes="IFLA_STATS64; without RDMA on mlx5",
        tx_bytes="IFLA_STATS64",
        rx_packets="IFLA_STATS64",
        tx_packets="IFLA_STATS64",
        rx_errors="IFLA_STATS64",
        tx_errors="IFLA_STATS64",
        rx_dropped="IFLA_STATS64",
        tx_dropped="IFLA_STATS64",
        rx_missed="IFLA_STATS64 rx_missed_errors",
        rx_multicast="IFLA_STATS64",
        rx_length_errors="IFLA_STATS64",
        rx_over_errors="IFLA_STATS64",
        rx_frame_errors="IFLA_STATS64",
        rx_fifo_errors="IFLA_STATS64",
        rx_compressed="IFLA_STATS64",
        rx_nohandler="IFLA_STATS64: nobody took the packet, as on the passive slave of a bond",
        tx_aborted_errors="IFLA_STATS64",
        tx_carrier_errors="IFLA_STATS64",
        tx_fifo_errors="IFLA_STATS64",
        tx_heartbeat_errors="IFLA_STATS64",
        tx_window_errors="IFLA_STATS64",
        tx_compressed="IFLA_STATS64",
        collisions="IFLA_STATS64",
        crc_errors="IFLA_STATS64 rx_crc_errors, or the driver's rx_crc_errors_phy where it has one",
    ),
    **_levels(
        Source.MODES,
        speed_mbps="negotiated; absent when unknown",
        lanes="ETHTOOL_A_LINKMODES_LANES",
        supported_mbps="the fastest mode that the port supports",
    ),
    **_counters(Source.STATE, ext_down="ETHTOOL_A_LINKSTATE_EXT_DOWN_CNT: the PHY lost the link"),
    **_counters(
        Source.FEC,
        fec_corrected_blocks="ETHTOOL_A_FEC_STAT_CORRECTED, all lanes",
        fec_uncorrectable_blocks="ETHTOOL_A_FEC_STAT_UNCORR, all lanes",
        fec_corrected_bits="ETHTOOL_A_FEC_STAT_CORR_BITS, or the driver's rx_corrected_bits_phy",
    ),
    **_counters(
        Source.PAUSE, rx_pause_frames="IEEE 802.3x, the peer paused us", tx_pause_frames="we paused the peer"
    ),
    **_counters(
        Source.DRIVER,
        phy_rx_bytes="rx_bytes_phy, RDMA included",
        phy_tx_bytes="tx_bytes_phy, RDMA included",
        phy_rx_bits="rx_bits_phy: the denominator of bit error ratios",
        symbol_errors="rx_pcs_symbol_err_phy: not corrected by FEC, traffic is lost",
        link_down_events="link_down_events_phy",
        rx_discards="rx_discards_phy: the adapter had no room",
        tx_discards="tx_discards_phy",
        rx_out_of_buffer="rx_out_of_buffer: no receive buffer was posted",
        pause_storm_warnings="tx_pause_storm_warning_events",
        pause_storm_errors="tx_pause_storm_error_events: pauses are switched off, packets may be lost",
        pcie_rx_signal_errors="rx_pci_signal_integrity",
        pcie_tx_signal_errors="tx_pci_signal_integrity",
        pcie_stalled_read_seconds="outbound_pci_stalled_rd_events: seconds with a stall above 30 %",
        pcie_stalled_write_seconds="outbound_pci_stalled_wr_events",
        pcie_buffer_overflows="outbound_pci_buffer_overflow",
        module_unplugs="module_unplug",
        module_high_temperatures="module_high_temp",
        module_bus_stuck="module_bus_stuck",
        module_bad_shorted="module_bad_shorted",
    ),
    **_each("lane", _counters(Source.DRIVER, lane_errors="rx_err_lane_N_phy, before FEC")),
    **_each(
        "priority",
        _counters(
            Source.DRIVER,
            prio_rx_pause_frames="rx_prioN_pause: the peer paused us",
            prio_tx_pause_frames="tx_prioN_pause: we paused the peer",
            prio_rx_pause_seconds="rx_prioN_pause_duration, time that we did not send",
            prio_tx_pause_seconds="tx_prioN_pause_duration, time that the peer did not send",
            prio_rx_pause_transitions="rx_prioN_pause_transition",
            prio_ecn_marked="rx_prioN_marked",
            prio_discards="rx_prioN_discards",
            prio_buffer_discards="rx_prioN_buf_discard",
            prio_congestion_discards="rx_prioN_cong_discard",
        ),
    ),
    **_levels(
        Source.RDMA,
        rdma_port_active="ports/N/state is 4, 0 or 1",
        roce_v2_gids="GIDs of type RoCE v2 that are not zero: 0 and no connection can be made",
    ),
    **_counters(
        Source.RDMA,
        rdma_rx_bytes="port_rcv_data x 4",
        rdma_tx_bytes="port_xmit_data x 4",
        rdma_out_of_sequence="out_of_sequence",
        rdma_packet_sequence_errors="packet_seq_err",
        rdma_ack_timeouts="local_ack_timeout_err",
        rdma_rnr_retries="rnr_nak_retry_err: the retry limit was not exceeded, no fault",
        rdma_adaptive_retransmits="roce_adp_retrans",
        rdma_slow_restarts="roce_slow_restart",
        rdma_cnp_sent="np_cnp_sent",
        rdma_cnp_handled="rp_cnp_handled",
        rdma_ecn_marked="np_ecn_marked_roce_packets",
        rdma_icrc_errors="rx_icrc_encapsulated",
        rdma_requester_cqe_errors="req_cqe_error",
        rdma_responder_cqe_errors="resp_cqe_error",
    ),
    **_levels(
        Source.PCIE,
        pcie_gts="current link speed in GT/s",
        pcie_width="current link width in lanes",
        pcie_expected_gts="the least of what the function and the port above it can do",
        pcie_expected_width="the least of what the function and the port above it can do",
    ),
    **_each(
        "error name of the kernel",
        _counters(
            Source.PCIE,
            aer_correctable="aer_dev_correctable",
            aer_nonfatal="aer_dev_nonfatal",
            aer_fatal="aer_dev_fatal",
        ),
    ),
    **_each(
        "reporter",
        {
            "devlink_error": Datum(Source.DEVLINK, "the reporter's state is error, 0 or 1"),
            **_counters(
                Source.DEVLINK,
                devlink_errors="..HEALTH_REPORTER_ERR_COUNT",
                devlink_recoveries="..RECOVER_COUNT",
            ),
        },
    ),
    **_levels(
        Source.MODULE,
        module_celsius="temperature of the module",
        module_volts="supply voltage",
        module_ready="CMIS module state is ready, 0 or 1",
        module_celsius_high_alarm="the module's own limit",
        module_celsius_high_warning="the module's own limit",
        module_celsius_low_warning="the module's own limit",
        module_celsius_low_alarm="the module's own limit",
        module_volts_high_alarm="the module's own limit",
        module_volts_high_warning="the module's own limit",
        module_volts_low_warning="the module's own limit",
        module_volts_low_alarm="the module's own limit",
        rx_power_watts_high_alarm="the module's own limit",
        rx_power_watts_high_warning="the module's own limit",
        rx_power_watts_low_warning="the module's own limit",
        rx_power_watts_low_alarm="the module's own limit",
        tx_power_watts_high_alarm="the module's own limit",
        tx_power_watts_high_warning="the module's own limit",
        tx_power_watts_low_warning="the module's own limit",
        tx_power_watts_low_alarm="the module's own limit",
        bias_amperes_high_alarm="the module's own limit",
        bias_amperes_high_warning="the module's own limit",
        bias_amperes_low_warning="the module's own limit",
        bias_amperes_low_alarm="the module's own limit",
    ),
    **_each(
        "lane",
        _levels(
            Source.MODULE,
            rx_power_watts="light received",
            tx_power_watts="light sent",
            bias_amperes="laser bias current",
        ),
    ),
    **_each("pattern", _counters(Source.KERNEL, kernel_events="lines of the kernel's log that match")),
    **_each(
        "VF index",
        _counters(
            Source.VF,
            vf_rx_bytes="IFLA_VF_STATS",
            vf_tx_bytes="IFLA_VF_STATS",
            vf_rx_packets="IFLA_VF_STATS",
            vf_tx_packets="IFLA_VF_STATS",
            vf_rx_dropped="IFLA_VF_STATS",
            vf_tx_dropped="IFLA_VF_STATS",
        ),
    ),
    **_levels(
        Source.GPU,
        gpu_memory_used_bytes="nvmlDeviceGetMemoryInfo",
        gpu_memory_total_bytes="nvmlDeviceGetMemoryInfo",
        gpu_celsius="nvmlDeviceGetTemperature, the GPU's own sensor",
        gpu_memory_celsius="NVML_FI_DEV_MEMORY_TEMP",
        gpu_utilization="share of the last period in which a kernel ran, 0 to 1",
        gpu_performance_state="0 is the fastest",
        gpu_row_remap_pending="0 or 1: a reset is needed",
        gpu_row_remap_failed="0 or 1",
        gpu_remapped_correctable="rows remapped for correctable errors",
        gpu_remapped_uncorrectable="rows remapped for uncorrectable errors",
        gpu_sram_threshold_exceeded="0 or 1",
        gpu_nvlink_bytes_per_second="speed of the slowest NVLink that is up",
        gpu_pcie_generation="current",
        gpu_pcie_generation_max="what GPU and slot can do",
        gpu_pcie_width="current",
        gpu_pcie_width_max="what GPU and slot can do",
        gpu_fabric_degraded_bandwidth="nvmlDeviceGetGpuFabricInfoV health mask, 0 or 1",
        gpu_fabric_route_unhealthy="nvmlDeviceGetGpuFabricInfoV health mask, 0 or 1",
        gpu_fabric_misconfigured="nvmlDeviceGetGpuFabricInfoV health mask, 0 or 1",
        gpu_processes="processes that compute on the GPU; only where gpu.health.processes is on",
    ),
    **_counters(
        Source.GPU,
        gpu_ecc_correctable_sram="volatile",
        gpu_ecc_correctable_dram="volatile",
        gpu_ecc_uncorrectable_sram="volatile",
        gpu_ecc_uncorrectable_dram="volatile",
        gpu_nvlink_replays="data link layer, all links",
        gpu_nvlink_recoveries="data link layer, all links",
        gpu_nvlink_crc_errors="data link layer, all links",
        gpu_pcie_replays="nvmlDeviceGetPcieReplayCounter",
    ),
    **_each("NVLink", _levels(Source.GPU, gpu_nvlink_up="0 or 1; Hopper has 18")),
    **_each("error name of NVML", _counters(Source.GPU, gpu_pcie_errors="NVML_FI_DEV_PCIE_COUNT_...")),
    **_each(
        "part of the GPU",
        _counters(Source.GPU, gpu_sram_uncorrectable_lifetime="nvmlDeviceGetSramEccErrorStatus, aggregate"),
    ),
    **_each(
        "XID", _counters(Source.GPU, gpu_xids="XIDs heard since the agent began, those ignored included")
    ),
    **_each(
        "container",
        _levels(
            Source.GPU,
            gpu_container_memory_bytes="of its processes, by its ID, host or unknown; as gpu_processes",
        ),
    ),
}
"""By name. What a source cannot tell on a machine, it does not state."""

TEXTS: dict[str, str] = {
    "ext_state": "why the link is down, in the kernel's words (ETHTOOL_A_LINKSTATE_EXT_STATE)",
    "ext_substate": "more on that",
    "fec_mode": "the active FEC mode: RS, BASER, LLRS, …",
    "driver": "ETHTOOL_GDRVINFO",
    "firmware": "ETHTOOL_GDRVINFO",
    "module_type": "the identifier's name: QSFP-DD, OSFP, …",
    "module_vendor": "as the EEPROM has it",
    "module_part": "part number",
    "module_serial": "serial number",
    "module_revision": "revision",
    "module_state": "CMIS: low-power, power-up, ready, power-down, fault",
    "vf_mac": "of a VF, under its index, as its PF was told; zeros: the VF's driver chose one",
    "vf_vlan": "of a VF, under its index; 0: none",
    "vf_trust": "of a VF, under its index: on or off",
    "vf_spoof_check": "of a VF, under its index: on or off",
    "vf_link_state": "of a VF, under its index: auto, enable or disable",
    "rdma_device": "mlx5_0",
    "rdma_link_layer": "Ethernet or InfiniBand",
    "rdma_phys_state": "LinkUp, Disabled, …",
    "node_guid": "of the RDMA device",
    "gpu_fabric_state": "nvmlDeviceGetGpuFabricInfoV",
    "gpu_vbios": "version",
    "gpu_serial": "serial number",
    "gpu_driver": "version",
    "gpu_recovery_action": "what the driver asks for: none, gpu_reset, node_reboot, …",
}

HEARD: dict[str, str] = {
    "gpu_lost": "0 or 1: the driver no longer lists the GPU, or does not reach it",
    "gpu_mig": "0 or 1",
    "gpu_unavailable": "1 in the moment in which the driver gave the GPU up",
    "gpu_fault": "a text: why the driver could not read the GPU",
}
"""In recordings alone: what the driver said of a GPU, which for the agent is no sample."""


def known(name: str) -> Datum | None:
    """The entry that ``name`` or ``name/key`` stands under."""
    head, slash, _ = name.partition("/")
    datum = DATA.get(head)
    return datum if datum is not None and bool(slash) == (datum.per is not None) else None
