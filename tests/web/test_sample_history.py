"""The curves of the node page: what is kept of samples, and how much memory that takes."""

from __future__ import annotations

import tracemalloc

import pytest

from nodeagent.measurements.sample import Sample, Source
from nodeagent.web.sample_history import HISTORY_SERIES_MAX, POINTS, SAMPLE_EVERY_S, SampleHistory

NIC, GPU = "0000:18:00.0", "GPU-1"


def nic(at: float, **values: float) -> Sample:
    return Sample(at, NIC, Source.DRIVER, {name.replace("__", "/"): value for name, value in values.items()})


def named(history: SampleHistory, now: float) -> dict[str, dict[str, object]]:
    return {str(curve["name"]): curve for curve in history.curves(now, 1000.0 + now).get(NIC, [])}


def test_a_gauge_keeps_its_values_and_of_several_lanes_the_least():
    history = SampleHistory()
    for at in (10.0, 25.0, 40.0):
        sample = nic(at, rx_power_watts__1=2e-3, rx_power_watts__2=at * 1e-5, module_celsius=at)
        history.take([sample], at)
    curves = named(history, 40.0)
    assert curves["module temperature"]["values"] == [10.0, 25.0, 40.0]
    assert curves["module temperature"]["at"] == [1010.0, 1025.0, 1040.0]
    assert curves["received light"]["values"] == [pytest.approx(at * 1e-5) for at in (10, 25, 40)]


def test_counters_become_rates_and_ratios_and_a_counter_that_was_reset_makes_no_point():
    history = SampleHistory()
    for at, bits, errors, pauses in (
        (0.0, 0, 0, 0.0),
        (15.0, 1e12, 1e3, 3.0),
        (30.0, 2e12, 1e3, 1.0),
        (45.0, 3e12, 5e3, 4.0),
    ):
        values = {"phy_rx_bits": bits, "fec_corrected_bits": errors, "prio_rx_pause_seconds/3": pauses}
        history.take([Sample(at, NIC, Source.DRIVER, values)], at)
    curves = named(history, 45.0)
    assert curves["bit error ratio before FEC"]["values"] == [1e-9, 0.0, pytest.approx(4e-9)]
    assert curves["paused by the peer"]["values"] == [pytest.approx(0.2), pytest.approx(0.2)]
    assert curves["paused by the peer"]["at"] == [1015.0, 1045.0]


@pytest.mark.parametrize("frames", [{}, {"phy_rx_bits": 8e3}], ids=["no count of bits", "a count of frames"])
def test_a_nic_without_a_count_of_the_bits_of_its_line_has_a_bit_error_ratio_by_its_speed(
    frames: dict[str, float],
):
    """bnxt_en, and mlx5 before Linux 7.0. A line at 400G carries 6e12 bits in 15 s."""
    history = SampleHistory()
    for i in range(3):
        at = 15.0 * i
        corrected = Sample(at, NIC, Source.FEC, {"fec_corrected_bits": 6e5 * i})
        sent = Sample(at, NIC, Source.DRIVER, {name: i * value for name, value in frames.items()})
        history.take([corrected, sent, Sample(0.0, NIC, Source.MODES, {"speed_mbps": 400_000.0})], at)
    curve = named(history, 30.0)["bit error ratio before FEC"]
    assert curve["values"] == [pytest.approx(1e-7), pytest.approx(1e-7)]


def test_a_nic_without_bits_and_speed_has_no_bit_error_ratio():
    history = SampleHistory()
    for i in range(3):
        history.take([Sample(15.0 * i, NIC, Source.FEC, {"fec_corrected_bits": 6e5 * i})], 15.0 * i)
    assert named(history, 30.0) == {}


def test_the_same_sample_is_kept_once_and_a_device_that_is_gone_is_forgotten():
    history = SampleHistory()
    for now in (10.0, 25.0, 40.0):
        history.take([nic(10.0, module_celsius=40.0)], now)
    assert named(history, 40.0) == {}, "one point is no curve"
    history.take([nic(55.0, module_celsius=41.0)], 55.0)
    assert len(named(history, 55.0)) == 1
    history.take([], 56.0 + SAMPLE_EVERY_S * POINTS)
    assert history.curves(0.0, 0.0) == {}


def test_ten_minutes_of_more_series_than_a_node_has_take_less_than_half_a_mebibyte():
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    history = SampleHistory()
    for round_ in range(2 * POINTS):
        at = round_ * SAMPLE_EVERY_S
        history.take(
            [
                Sample(at, f"GPU-{n}", Source.GPU, {"gpu_celsius": at, "gpu_utilization": 0.5})
                for n in range(HISTORY_SERIES_MAX)
            ],
            at,
        )
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    curves = history.curves(at, at)
    assert sum(map(len, curves.values())) == HISTORY_SERIES_MAX
    assert all(len(curve["values"]) == POINTS for listed in curves.values() for curve in listed)
    assert taken < 512 * 1024
