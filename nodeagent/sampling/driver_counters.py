"""Translate the names of driver statistics and RDMA counters to sample names. Other statistics are ignored.

To add a driver statistic, add a line here and a row to ``measurements/``. The names are those of mlx5
(Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst), then those of bnxt_en and ice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLAIN = {
    "rx_bytes_phy": "phy_rx_bytes",
    "tx_bytes_phy": "phy_tx_bytes",
    "rx_bits_phy": "phy_rx_bits",
    "rx_pcs_symbol_err_phy": "symbol_errors",
    "link_down_events_phy": "link_down_events",
    "rx_discards_phy": "rx_discards",
    "tx_discards_phy": "tx_discards",
    "rx_out_of_buffer": "rx_out_of_buffer",
    "rx_crc_errors_phy": "crc_errors",
    "rx_corrected_bits_phy": "fec_corrected_bits",
    "tx_pause_storm_warning_events": "pause_storm_warnings",
    "tx_pause_storm_error_events": "pause_storm_errors",
    "rx_pci_signal_integrity": "pcie_rx_signal_errors",
    "tx_pci_signal_integrity": "pcie_tx_signal_errors",
    "outbound_pci_stalled_rd_events": "pcie_stalled_read_seconds",
    "outbound_pci_stalled_wr_events": "pcie_stalled_write_seconds",
    "outbound_pci_buffer_overflow": "pcie_buffer_overflows",
    "module_unplug": "module_unplugs",
    "module_high_temp": "module_high_temperatures",
    "module_bus_stuck": "module_bus_stuck",
    "module_bad_shorted": "module_bad_shorted",
    # bnxt_en
    "rx_bits": "phy_rx_bits",
    "rx_pcs_symbol_err": "symbol_errors",
    "rx_corrected_bits": "fec_corrected_bits",
    "link_down_events": "link_down_events",
    "rx_fcs_err_frames": "crc_errors",
    # ice
    "rx_crc_errors.nic": "crc_errors",
}

_MICRO = 1e-6
_MICROSECONDS = {
    "rx_global_pause_duration": "global_rx_pause_seconds",
    "tx_global_pause_duration": "global_tx_pause_seconds",
}
_NUMBERED: tuple[tuple[re.Pattern[str], str, float], ...] = tuple(
    (re.compile(pattern), name, factor)
    for pattern, name, factor in (
        (r"rx_err_lane_(\d{1,2})_phy", "lane_errors", 1),
        (r"rx_prio([0-7])_pause", "prio_rx_pause_frames", 1),
        (r"tx_prio([0-7])_pause", "prio_tx_pause_frames", 1),
        (r"rx_prio([0-7])_pause_duration", "prio_rx_pause_seconds", _MICRO),
        (r"tx_prio([0-7])_pause_duration", "prio_tx_pause_seconds", _MICRO),
        (r"rx_prio([0-7])_pause_transition", "prio_rx_pause_transitions", 1),
        (r"rx_prio([0-7])_marked", "prio_ecn_marked", 1),
        (r"rx_prio([0-7])_discards", "prio_discards", 1),
        (r"rx_prio([0-7])_buf_discard", "prio_buffer_discards", 1),
        (r"rx_prio([0-7])_cong_discard", "prio_congestion_discards", 1),
        # bnxt_en
        (r"rx_pfc_ena_frames_pri([0-7])", "prio_rx_pause_frames", 1),
        (r"tx_pfc_ena_frames_pri([0-7])", "prio_tx_pause_frames", 1),
        (r"pfc_pri([0-7])_rx_duration_us", "prio_rx_pause_seconds", _MICRO),
        (r"pfc_pri([0-7])_tx_duration_us", "prio_tx_pause_seconds", _MICRO),
        (r"pfc_pri([0-7])_rx_transitions", "prio_rx_pause_transitions", 1),
        # ice
        (r"rx_priority_([0-7])_xoff\.nic", "prio_rx_pause_frames", 1),
        (r"tx_priority_([0-7])_xoff\.nic", "prio_tx_pause_frames", 1),
    )
)


class DriverCounters:
    """Translates statistics and caches each name."""

    _NAMES_MAX = 65536

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, float] | None] = {}

    def values(self, statistics: Mapping[str, int]) -> dict[str, float]:
        """The statistics that have a sample name, in its unit."""
        names = self._names
        if len(names) > self._NAMES_MAX:
            names.clear()
        for statistic in statistics.keys() - names.keys():
            names[statistic] = sample_name(statistic)
        values: dict[str, float] = {}
        for statistic, value in statistics.items():
            translated = names[statistic]
            if translated is not None:
                name, factor = translated
                values[name] = value if factor == 1 else value * factor
        return values


def sample_name(statistic: str) -> tuple[str, float] | None:
    """The sample name, and the factor for its unit."""
    plain = _PLAIN.get(statistic)
    if plain is not None:
        return plain, 1
    if statistic in _MICROSECONDS:
        return _MICROSECONDS[statistic], _MICRO
    for pattern, name, factor in _NUMBERED:
        match = pattern.fullmatch(statistic)
        if match:
            return f"{name}/{int(match[1])}", factor
    return None


RDMA: Mapping[str, str] = {
    "out_of_sequence": "rdma_out_of_sequence",
    "packet_seq_err": "rdma_packet_sequence_errors",
    "local_ack_timeout_err": "rdma_ack_timeouts",
    "rnr_nak_retry_err": "rdma_rnr_retries",
    "roce_adp_retrans": "rdma_adaptive_retransmits",
    "roce_slow_restart": "rdma_slow_restarts",
    "np_cnp_sent": "rdma_cnp_sent",
    "rp_cnp_handled": "rdma_cnp_handled",
    "np_ecn_marked_roce_packets": "rdma_ecn_marked",
    "rx_icrc_encapsulated": "rdma_icrc_errors",
    "req_cqe_error": "rdma_requester_cqe_errors",
    "resp_cqe_error": "rdma_responder_cqe_errors",
}
"""Hardware counters of RDMA ports. The files in ``hw_counters`` and netlink use the same names."""


def rdma_values(counters: Mapping[str, int]) -> dict[str, float]:
    return {RDMA[name]: value for name, value in counters.items() if name in RDMA}
