"""Drivers' names for their statistics, in the vocabulary of samples.

The listings are facts of real ones, names and values; unlike counters of queues are left out.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.host.kmsg import PATTERNS
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS, measurement
from nodeagent.sampling.driver_names import DRIVERS, driver_names_of, driver_values, rdma_values, sample_name
from tests.support.judged_machine import Bench

MLX5 = {
    "rx_packets": 5,
    "rx0_packets": 5,
    "rx_bytes_phy": 10**15,
    "rx_bits_phy": 8 * 10**15,
    "rx_pcs_symbol_err_phy": 3,
    "rx_corrected_bits_phy": 10**9,
    "rx_discards_phy": 1,
    "link_down_events_phy": 2,
    "rx_prio3_bytes": 7,
    "rx_prio3_pause": 11,
    "rx_prio3_pause_duration": 2_500_000,
    "rx_prio3_pause_transition": 12,
    "tx_prio3_pause": 13,
    "tx_global_pause_duration": 4_500_000,
    "rx_prio8_pause": 1,
    "rx_pause_ctrl_phy": 1,
    "tx_pause_storm_error_events": 1,
    "outbound_pci_stalled_rd": 4,
    "outbound_pci_stalled_rd_events": 5,
    "module_unplug": 0,
    **{f"rx_err_lane_{lane}_phy": lane * 10 for lane in range(8)},
}
BNXT = {
    "rx_total_ring_discards": 655430134,
    "rx_fcs_err_frames": 0,
    "rx_pfc_ena_frames_pri3": 0,
    "rx_bytes": 577687185962088,
    "rx_stat_discard": 49337,
    "rx_stat_err": 0,
    "tx_bytes": 770394433789550,
    "tx_stat_discard": 0,
    "link_down_events": 0,
    "pfc_pri3_rx_duration_us": 0,
    "pfc_pri3_rx_transitions": 0,
    "rx_bits": 4621497487696704,
    "rx_pcs_symbol_err": 0,
    "rx_corrected_bits": 0,
    "pfc_pri3_tx_duration_us": 0,
}
"""isc-projects/ethq, tests/bnxt_en, a card of 10 or 25 Gbit/s."""
ICE = {
    "rx_bytes": 848243014,
    "rx_dropped": 0,
    "rx_bytes.nic": 848255752,
    "tx_bytes.nic": 74057390445,
    "rx_dropped.nic": 0,
    "rx_crc_errors.nic": 0,
    "mac_local_faults.nic": 0,
    "mac_remote_faults.nic": 0,
    "tx_priority_0_xoff.nic": 0,
}
"""isc-projects/ethq, tests/ice."""
IONIC = {
    "hw_rx_dropped": 0,
    "octets_rx_ok": 0,
    "octets_tx_ok": 0,
    "frames_rx_bad_fcs": 0,
    "frames_rx_pripause": 0,
    "frames_rx_dropped": 0,
    "tx_pripause_3_1us_count": 0,
    "rx_pripause_3_1us_count": 0,
    "rx_pause_1us_count": 0,
}
"""Linux, Documentation/networking/device_drivers/ethernet/pensando/ionic.rst."""


def test_statistics_of_mlx5_get_sample_names_and_microseconds_become_seconds():
    values = driver_values("mlx5_core", MLX5)
    assert values["phy_rx_bits"] == 8 * 10**15
    assert values["symbol_errors"] == 3
    assert values["prio_rx_pause_seconds/3"] == 2.5
    assert values["prio_tx_pause_frames/3"] == 13
    assert values["global_tx_pause_seconds"] == 4.5
    assert values["pcie_stalled_read_seconds"] == 5
    assert values["module_unplugs"] == 0, "zero is a number"
    assert [values[f"lane_errors/{lane}"] for lane in range(8)] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert {name for name in MLX5 if sample_name("mlx5_core", name) is None} == {
        *("rx_packets", "rx0_packets", "rx_prio3_bytes", "rx_prio8_pause", "rx_pause_ctrl_phy"),
        "outbound_pci_stalled_rd",
    }


@pytest.mark.parametrize(
    ("driver", "listing", "left_out"),
    [
        ("bnxt_en", BNXT, {"rx_bits", "rx_stat_err"}),
        ("ice", ICE, {"rx_bytes", "rx_dropped"}),
        ("ionic", IONIC, {"hw_rx_dropped", "frames_rx_pripause"}),
    ],
)
def test_a_listing_has_the_names_of_its_driver(
    driver: str, listing: dict[str, int], left_out: set[str]
) -> None:
    assert {name for name in listing if sample_name(driver, name) is None} == left_out
    values = driver_values(driver, listing)
    assert len(values) == len(listing) - len(left_out), "no two statistics have one sample name"


def test_bits_of_frames_are_not_the_bits_of_the_line():
    """In the listing ``rx_bits`` is exactly eight times ``rx_bytes``."""
    assert BNXT["rx_bits"] == 8 * BNXT["rx_bytes"]
    values = driver_values("bnxt_en", BNXT)
    assert "phy_rx_bits" not in values
    assert values["phy_rx_bytes"] == BNXT["rx_bytes"]
    assert (values["rx_discards"], values["rx_out_of_buffer"]) == (49337, 655430134)


RDMA = {
    # Linux 6.x, drivers/infiniband/hw/bnxt_re/hw_counters.c
    "bnxt_re": (
        "bnxt_en",
        "rx_pkts rx_bytes tx_pkts tx_bytes rx_roce_errors rx_roce_discards to_retransmits seq_err_naks_rcvd"
        " max_retry_exceeded rnr_naks_rcvd missing_resp remote_invalid_req_err remote_access_err dup_req"
        " res_length_mismatch oos_drop_count rx_out_of_buffer tx_cnp_pkts rx_cnp_pkts rx_ecn_marked_pkts",
        {"rx_pkts", "tx_pkts"},
    ),
    # Broadcom's driver after the renaming
    "bnxt_re, renamed": (
        "bnxt_en",
        "rx_bytes tx_bytes rx_roce_errors rx_roce_discards local_ack_timeout_err packet_seq_err max_retry_exceeded"
        " rnr_nak_retry_err implied_nak_seq_err req_remote_invalid_request req_remote_access_errors duplicate_request"
        " resp_local_length_error out_of_sequence out_of_buffer np_cnp_sent rp_cnp_handled np_ecn_marked_roce_packets"
        " req_cqe_error resp_cqe_error resp_remote_access_errors",
        set(),
    ),
    # Linux, drivers/infiniband/hw/mlx5/counters.c: basic, out of sequence, retransmission, congestion, extended
    "mlx5": (
        "mlx5_core",
        "rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence"
        " duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err rp_cnp_ignored"
        " rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent resp_local_length_error resp_cqe_error req_cqe_error"
        " req_remote_invalid_request req_remote_access_errors resp_remote_access_errors resp_cqe_flush_error"
        " req_cqe_flush_error req_transport_retries_exceeded req_rnr_retries_exceeded roce_adp_retrans"
        " roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans rx_icrc_encapsulated",
        set(),
    ),
    # Linux, drivers/infiniband/hw/irdma/verbs.c, generation 2 (E810)
    "irdma": ("ice", "cnpHandled cnpIgnored cnpSent RxECNMrkd RxUDP ip4InOctets", {"RxUDP", "ip4InOctets"}),
    # AMD, node-scraper's RdmaAnalyzer
    "ionic": (
        "ionic",
        "req_rx_pkt_seq_err req_rx_rnr_retry_err req_rx_rmt_acc_err req_rx_rmt_req_err req_rx_impl_nak_seq_err"
        " req_rx_cqe_err req_rx_cqe_flush req_tx_retry_excd_err resp_rx_dup_request resp_rx_outof_buf"
        " resp_rx_outouf_seq resp_rx_cqe_err resp_rx_cqe_flush resp_rx_loc_len_err resp_tx_rmt_acc_err"
        " tx_rdma_ack_timeout rx_rdma_mtu_discard_pkts rx_rdma_cnp_pkts tx_rdma_cnp_pkts rx_rdma_ecn_pkts",
        set(),
    ),
    # Linux, drivers/infiniband/hw/efa/efa_verbs.c
    "efa": (
        "efa",
        "tx_bytes rx_bytes rx_drops retrans_bytes retrans_pkts retrans_timeout_events unresponsive_remote_events"
        " impaired_remote_conn_events rdma_read_wr_err rdma_write_wr_err keep_alive_rcvd",
        {"keep_alive_rcvd"},
    ),
}


@pytest.mark.parametrize("rdma_driver", RDMA)
def test_hardware_counters_have_the_names_of_their_driver(rdma_driver: str) -> None:
    driver, listing, left_out = RDMA[rdma_driver]
    names = listing.split()
    known = driver_names_of(driver).rdma
    assert {name for name in names if name not in known} == left_out
    values = rdma_values(driver, {name: number for number, name in enumerate(names)})
    assert len(values) == len(names) - len(left_out)


def test_every_translated_name_is_in_the_table():
    for names in DRIVERS.values():
        assert names.source
        numbered = (f"{word}/0" for _, word, _ in names.numbered)
        for word in (*names.statistics.values(), *names.microseconds.values(), *numbered):
            datum = measurement(word)
            assert datum is not None, word
            assert datum.source in (Source.DRIVER, Source.LINK, Source.FEC)
            assert datum.counter, word
        for word in names.rdma.values():
            assert MEASUREMENTS[word].source is Source.RDMA
    for pattern in PATTERNS:
        assert measurement(f"kernel_events/{pattern}")


def test_every_measurement_of_driver_statistics_is_a_translation():
    translated = {
        word
        for names in DRIVERS.values()
        for word in (
            *names.statistics.values(),
            *names.microseconds.values(),
            *(word for _, word, _ in names.numbered),
        )
    }
    declared = {name for name, datum in MEASUREMENTS.items() if datum.source is Source.DRIVER}
    assert len(declared) > 20
    assert declared - translated == set(), "add the driver's names for these to sampling/driver_names.py"


def test_other_statistics_are_ignored():
    assert sample_name("mlx5_core", "rx_prio3_pause\n") is None
    assert sample_name("mlx5_core", "") is None
    assert driver_values("mlx5_core", {"\x1b[2J": 5}) == {}
    assert driver_values("bnxt_en", {"rx_bits_phy": 5, "rx_crc_errors.nic": 5}) == {}, "a word of others"
    assert driver_values("tg3", BNXT) == driver_values(None, BNXT) == {}
    assert rdma_values("mlx5_core", {"lifespan": 10, "np_cnp_sent": 4}) == {"rdma_cnp_sent": 4}


@pytest.mark.parametrize("driver", sorted(DRIVERS))
@given(load=st.floats(0, 1), mbps=st.sampled_from([25_000, 100_000, 400_000, 800_000]))
@example(load=0.0, mbps=400_000)
@example(load=0.0005, mbps=400_000)
def test_a_ratio_is_divided_by_what_the_line_carried(driver: str, load: float, mbps: int) -> None:
    """The share of the line that has frames does not count: FEC corrects idle symbols too. Each counter that the
    driver's table calls the bits of the line, and each of frames, as the driver counts it."""
    ratio, every = 1e-9, 15.0
    bench = Bench(1).set(speed_mbps=mbps)
    for step in range(1, 9):
        line = mbps * 1e6 * every * step
        statistics = {
            "rx_bits_phy": int(line * 66 / 64),
            "rx_bits": int(8 * load * line / 8),
            "rx_bytes_phy": int(load * line / 8),
            "rx_bytes": int(load * line / 8),
            "rx_corrected_bits": int(ratio * line),
            "rx_corrected_bits_phy": int(ratio * line),
        }
        values = {"fec_corrected_bits": float(int(ratio * line))} | driver_values(driver, statistics)
        bench.take(Source.DRIVER, values, at=bench.now + every)
    nic = bench.engine.devices[bench.pfs[0].pci_address]
    assert nic.values["pre_fec_ber"] == pytest.approx(ratio, rel=0.1)
    assert bench.reasons() == []
