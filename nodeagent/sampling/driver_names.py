"""The names of drivers for their statistics, and the sample names that mean the same. Pure.

One vendor's word is not another's: bnxt_en's ``rx_bits`` are the bits of received frames, mlx5's ``rx_bits_phy`` all
bits of the line. So each driver has a table of its own, with the source of its names, and a driver without one has no
such samples. To add a statistic, add a line to the driver's table and a row to ``measurements/table.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

_MICRO = 1e-6


class DriverNames(NamedTuple):
    """The names of one PCI driver.

    ``statistics`` are those of ETHTOOL_GSTATS, ``microseconds`` those that count microseconds, ``numbered`` those with
    a number (a regular expression with one group), each with its factor. ``rdma`` are the hardware counters of the
    RDMA port, which the files in ``hw_counters`` and netlink name alike. ``source`` is where the names are from.
    """

    source: str
    statistics: Mapping[str, str] = {}
    microseconds: Mapping[str, str] = {}
    numbered: tuple[tuple[str, str, float], ...] = ()
    rdma: Mapping[str, str] = {}


_RDMA_OF_MLX5 = {
    "out_of_sequence": "rdma_out_of_sequence",
    "packet_seq_err": "rdma_packet_sequence_errors",
    "implied_nak_seq_err": "rdma_implied_naks",
    "local_ack_timeout_err": "rdma_ack_timeouts",
    "rnr_nak_retry_err": "rdma_rnr_retries",
    "duplicate_request": "rdma_duplicate_requests",
    "out_of_buffer": "rdma_out_of_buffer",
    "roce_adp_retrans": "rdma_adaptive_retransmits",
    "roce_adp_retrans_to": "rdma_adaptive_timeouts",
    "roce_slow_restart": "rdma_slow_restarts",
    "roce_slow_restart_cnps": "rdma_slow_restart_cnps",
    "roce_slow_restart_trans": "rdma_slow_restart_transitions",
    "np_cnp_sent": "rdma_cnp_sent",
    "rp_cnp_handled": "rdma_cnp_handled",
    "rp_cnp_ignored": "rdma_cnp_ignored",
    "np_ecn_marked_roce_packets": "rdma_ecn_marked",
    "rx_icrc_encapsulated": "rdma_icrc_errors",
    "req_cqe_error": "rdma_requester_cqe_errors",
    "resp_cqe_error": "rdma_responder_cqe_errors",
    "req_cqe_flush_error": "rdma_requester_flush_errors",
    "resp_cqe_flush_error": "rdma_responder_flush_errors",
    "req_remote_access_errors": "rdma_requester_access_errors",
    "resp_remote_access_errors": "rdma_responder_access_errors",
    "req_remote_invalid_request": "rdma_invalid_requests",
    "resp_local_length_error": "rdma_length_errors",
    "req_transport_retries_exceeded": "rdma_transport_retries_exceeded",
    "req_rnr_retries_exceeded": "rdma_rnr_retries_exceeded",
    "rx_read_requests": "rdma_read_requests",
    "rx_write_requests": "rdma_write_requests",
    "rx_atomic_requests": "rdma_atomic_requests",
    "rx_dct_connect": "rdma_dct_connections",
}

DRIVERS: Mapping[str, DriverNames] = {
    "mlx5_core": DriverNames(
        "Linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst and"
        " drivers/infiniband/hw/mlx5/counters.c",
        statistics={
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
        },
        microseconds={
            "rx_global_pause_duration": "global_rx_pause_seconds",
            "tx_global_pause_duration": "global_tx_pause_seconds",
        },
        numbered=(
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
        ),
        rdma=_RDMA_OF_MLX5,
    ),
    # ``rx_bits`` is 8 * rx_bytes (isc-projects/ethq, tests/bnxt_en): frames, not the line.
    # Broadcom's own bnxt_re took over mlx5's names in a commit "for compatibility with open-source monitoring agents".
    "bnxt_en": DriverNames(
        "Linux, drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c and drivers/infiniband/hw/bnxt_re/hw_counters.c;"
        " Broadcom's bnxt_re after its renaming; isc-projects/ethq, tests/bnxt_en",
        statistics={
            "rx_bytes": "phy_rx_bytes",
            "tx_bytes": "phy_tx_bytes",
            "rx_pcs_symbol_err": "symbol_errors",
            "rx_corrected_bits": "fec_corrected_bits",
            "link_down_events": "link_down_events",
            "rx_fcs_err_frames": "crc_errors",
            "rx_stat_discard": "rx_discards",
            "tx_stat_discard": "tx_discards",
            "rx_total_ring_discards": "rx_out_of_buffer",
        },
        numbered=(
            (r"rx_pfc_ena_frames_pri([0-7])", "prio_rx_pause_frames", 1),
            (r"tx_pfc_ena_frames_pri([0-7])", "prio_tx_pause_frames", 1),
            (r"pfc_pri([0-7])_rx_duration_us", "prio_rx_pause_seconds", _MICRO),
            (r"pfc_pri([0-7])_tx_duration_us", "prio_tx_pause_seconds", _MICRO),
            (r"pfc_pri([0-7])_rx_transitions", "prio_rx_pause_transitions", 1),
        ),
        rdma={
            **_RDMA_OF_MLX5,
            "oos_drop_count": "rdma_out_of_sequence",
            "seq_err_naks_rcvd": "rdma_packet_sequence_errors",
            "missing_resp": "rdma_implied_naks",
            "to_retransmits": "rdma_ack_timeouts",
            "rnr_naks_rcvd": "rdma_rnr_retries",
            "dup_req": "rdma_duplicate_requests",
            "rx_out_of_buffer": "rdma_out_of_buffer",
            "tx_cnp_pkts": "rdma_cnp_sent",
            "np_cnp_pkts": "rdma_cnp_sent",
            "rx_cnp_pkts": "rdma_cnp_handled",
            "rx_ecn_marked_pkts": "rdma_ecn_marked",
            "remote_access_err": "rdma_requester_access_errors",
            "remote_invalid_req_err": "rdma_invalid_requests",
            "res_length_mismatch": "rdma_length_errors",
            "max_retry_exceeded": "rdma_retries_exceeded",
            "rx_read_req": "rdma_read_requests",
            "rx_write_req": "rdma_write_requests",
            "rx_atomic_req": "rdma_atomic_requests",
            "rx_bytes": "rdma_rx_bytes",
            "tx_bytes": "rdma_tx_bytes",
            "rx_roce_discards": "rdma_rx_discards",
            "tx_roce_discards": "rdma_tx_discards",
            "rx_roce_errors": "rdma_rx_errors",
            "tx_roce_errors": "rdma_tx_errors",
        },
    ),
    "ice": DriverNames(
        "Linux, drivers/net/ethernet/intel/ice/ice_ethtool.c and drivers/infiniband/hw/irdma/verbs.c;"
        " isc-projects/ethq, tests/ice",
        statistics={
            "rx_bytes.nic": "phy_rx_bytes",
            "tx_bytes.nic": "phy_tx_bytes",
            "rx_crc_errors.nic": "crc_errors",
            "rx_dropped.nic": "rx_discards",
            "mac_local_faults.nic": "mac_local_faults",
            "mac_remote_faults.nic": "mac_remote_faults",
        },
        numbered=(
            (r"rx_priority_([0-7])_xoff\.nic", "prio_rx_pause_frames", 1),
            (r"tx_priority_([0-7])_xoff\.nic", "prio_tx_pause_frames", 1),
        ),
        rdma={
            "cnpSent": "rdma_cnp_sent",
            "cnpHandled": "rdma_cnp_handled",
            "cnpIgnored": "rdma_cnp_ignored",
            "RxECNMrkd": "rdma_ecn_marked",
        },
    ),
    "idpf": DriverNames(
        "Linux, drivers/infiniband/hw/irdma/verbs.c, generation 3",
        rdma={
            "cnpSent": "rdma_cnp_sent",
            "cnpHandled": "rdma_cnp_handled",
            "cnpIgnored": "rdma_cnp_ignored",
            "RxECNMrkd": "rdma_ecn_marked",
            "Nak Sequence Error": "rdma_packet_sequence_errors",
            "Nak Sequence Error Implied": "rdma_implied_naks",
            "RTO": "rdma_ack_timeouts",
            "Rcvd Out of order packets": "rdma_out_of_sequence",
            "RNR received": "rdma_rnr_retries",
            "CRC errors": "rdma_icrc_errors",
        },
    ),
    "ionic": DriverNames(
        "Linux, drivers/net/ethernet/pensando/ionic/ionic_stats.c (rx_bits_phy since June 2026); the names of the RDMA"
        " counters are the firmware's: AMD's node-scraper and device-metrics-exporter",
        statistics={
            "octets_rx_ok": "phy_rx_bytes",
            "octets_tx_ok": "phy_tx_bytes",
            "rx_bits_phy": "phy_rx_bits",
            "frames_rx_bad_fcs": "crc_errors",
            "frames_rx_dropped": "rx_discards",
        },
        microseconds={"rx_pause_1us_count": "global_rx_pause_seconds"},
        numbered=(
            (r"rx_pripause_([0-7])_1us_count", "prio_rx_pause_seconds", _MICRO),
            (r"tx_pripause_([0-7])_1us_count", "prio_tx_pause_seconds", _MICRO),
        ),
        rdma={
            "resp_rx_outouf_seq": "rdma_out_of_sequence",
            "req_rx_pkt_seq_err": "rdma_packet_sequence_errors",
            "req_rx_impl_nak_seq_err": "rdma_implied_naks",
            "tx_rdma_ack_timeout": "rdma_ack_timeouts",
            "req_rx_rnr_retry_err": "rdma_rnr_retries",
            "resp_rx_dup_request": "rdma_duplicate_requests",
            "resp_rx_outof_buf": "rdma_out_of_buffer",
            "tx_rdma_cnp_pkts": "rdma_cnp_sent",
            "rx_rdma_cnp_pkts": "rdma_cnp_handled",
            "rx_rdma_ecn_pkts": "rdma_ecn_marked",
            "req_rx_cqe_err": "rdma_requester_cqe_errors",
            "resp_rx_cqe_err": "rdma_responder_cqe_errors",
            "req_rx_cqe_flush": "rdma_requester_flush_errors",
            "resp_rx_cqe_flush": "rdma_responder_flush_errors",
            "req_rx_rmt_acc_err": "rdma_requester_access_errors",
            "resp_tx_rmt_acc_err": "rdma_responder_access_errors",
            "req_rx_rmt_req_err": "rdma_invalid_requests",
            "resp_rx_loc_len_err": "rdma_length_errors",
            "req_tx_retry_excd_err": "rdma_retries_exceeded",
            "rx_rdma_ucast_bytes": "rdma_rx_bytes",
            "tx_rdma_ucast_bytes": "rdma_tx_bytes",
            "rx_rdma_mtu_discard_pkts": "rdma_rx_discards",
            "tx_rdma_retx_pkts": "rdma_retransmitted_packets",
            "tx_rdma_retx_bytes": "rdma_retransmitted_bytes",
        },
    ),
    "efa": DriverNames(
        "Linux, drivers/infiniband/hw/efa/efa_verbs.c; Amazon EC2 User Guide, Monitor an Elastic Fabric Adapter",
        rdma={
            "rx_bytes": "rdma_rx_bytes",
            "tx_bytes": "rdma_tx_bytes",
            "rx_drops": "rdma_rx_discards",
            "retrans_pkts": "rdma_retransmitted_packets",
            "retrans_bytes": "rdma_retransmitted_bytes",
            "retrans_timeout_events": "rdma_path_timeouts",
            "unresponsive_remote_events": "rdma_unresponsive_remotes",
            "impaired_remote_conn_events": "rdma_impaired_connections",
            "rdma_read_wr_err": "rdma_read_errors",
            "rdma_write_wr_err": "rdma_write_errors",
        },
    ),
}
"""By the name of the PCI driver. An RDMA driver is that of the function below it: bnxt_re of bnxt_en, irdma of ice or
idpf."""

NO_NAMES = DriverNames("")
"""Of a driver without a table."""


def driver_names_of(driver: str | None) -> DriverNames:
    return DRIVERS.get(driver or "", NO_NAMES)


@lru_cache(65536)
def sample_name(driver: str | None, statistic: str) -> tuple[str, float] | None:
    """The sample name of a driver's statistic, and the factor for its unit."""
    names = driver_names_of(driver)
    if statistic in names.statistics:
        return names.statistics[statistic], 1
    if statistic in names.microseconds:
        return names.microseconds[statistic], _MICRO
    for pattern, name, factor in names.numbered:
        match = re.fullmatch(pattern, statistic)
        if match:
            return f"{name}/{int(match[1])}", factor
    return None


def driver_values(driver: str | None, statistics: Mapping[str, int]) -> dict[str, float]:
    """The statistics that have a sample name, in its unit."""
    values: dict[str, float] = {}
    for statistic, value in statistics.items():
        if (translated := sample_name(driver, statistic)) is not None:
            name, factor = translated
            values[name] = value if factor == 1 else value * factor
    return values


def rdma_values(driver: str | None, counters: Mapping[str, int]) -> dict[str, float]:
    """The hardware counters that have a sample name."""
    names = driver_names_of(driver).rdma
    return {names[name]: value for name, value in counters.items() if name in names}
