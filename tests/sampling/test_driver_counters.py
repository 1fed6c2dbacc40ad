"""Drivers' names for their statistics, in the vocabulary of samples."""

from __future__ import annotations

from nodeagent.host.kmsg import PATTERNS
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS, measurement
from nodeagent.sampling.adapter_readers import (
    _MICROSECONDS,
    _NUMBERED,
    _PLAIN,
    RDMA,
    DriverCounters,
    rdma_values,
    sample_name,
)

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


def test_statistics_of_mlx5_get_sample_names_and_microseconds_become_seconds():
    values = DriverCounters().values(MLX5)
    assert values["phy_rx_bits"] == 8 * 10**15
    assert values["symbol_errors"] == 3
    assert values["prio_rx_pause_seconds/3"] == 2.5
    assert values["prio_tx_pause_frames/3"] == 13
    assert values["global_tx_pause_seconds"] == 4.5
    assert values["pcie_stalled_read_seconds"] == 5
    assert values["module_unplugs"] == 0, "zero is a number"
    assert [values[f"lane_errors/{lane}"] for lane in range(8)] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert {name for name in MLX5 if sample_name(name) is None} == {
        *("rx_packets", "rx0_packets", "rx_prio3_bytes", "rx_prio8_pause", "rx_pause_ctrl_phy"),
        "outbound_pci_stalled_rd",
    }


def test_every_translated_name_is_in_the_table():
    for word in (*_PLAIN.values(), *_MICROSECONDS.values(), *(f"{word}/0" for _, word, _ in _NUMBERED)):
        datum = measurement(word)
        assert datum is not None, word
        assert datum.source in (Source.DRIVER, Source.LINK, Source.FEC)
        assert datum.counter, word
    for word in RDMA.values():
        assert MEASUREMENTS[word].source is Source.RDMA
    for pattern in PATTERNS:
        assert measurement(f"kernel_events/{pattern}")


def test_every_measurement_of_driver_statistics_is_a_translation():
    translated = {*_PLAIN.values(), *_MICROSECONDS.values(), *(word for _, word, _ in _NUMBERED)}
    declared = {name for name, datum in MEASUREMENTS.items() if datum.source is Source.DRIVER}
    assert len(declared) > 20
    assert declared - translated == set(), "add the driver's names for these to sampling/adapter_readers.py"


def test_other_statistics_are_ignored():
    assert sample_name("rx_prio3_pause\n") is None
    assert sample_name("") is None
    assert DriverCounters().values({"\x1b[2J": 5}) == {}
    assert rdma_values({"lifespan": 10, "np_cnp_sent": 4}) == {"rdma_cnp_sent": 4}
