"""Each rule of NICs on samples made by hand: its fault starts and ends as in the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError
from nodeagent.facts.model import HEALTHY, Rdma, State
from nodeagent.health.health_settings import GuardSettings, HealthSettings, RuleSettings, effective
from nodeagent.health.history import History
from nodeagent.health.rule import Rule, clears, threshold
from nodeagent.health.rules import NIC_RULE_KEYS, NIC_RULES, default
from nodeagent.health.structural import Fault
from nodeagent.measurements.sample import Sample, Source
from tests.support.findings import one_item
from tests.support.judged_machine import Bench, with_rules

OPEN = HealthSettings(guard=GuardSettings(share=1.0))
S = Source


@dataclass(frozen=True)
class Case:
    """``bad`` and ``good`` are added to each counter (or stated as each level) every ``every`` seconds."""

    rule: str
    source: Source
    bad: dict[str, float]
    good: dict[str, float]
    every: float = 15.0
    counters: bool = True
    also: dict[str, float] = field(default_factory=dict)
    other: Source | None = None
    load: float = 0.0
    """The share of the line that carries traffic."""


LINE = 400e9 * 15
CASES = [
    Case("pre_fec_ber", S.FEC, {"fec_corrected_bits": 2e-4 * LINE}, {"fec_corrected_bits": 1e-6 * LINE}),
    Case("pre_fec_ber_warning", S.FEC, {"fec_corrected_bits": 2e-5 * LINE}, {"fec_corrected_bits": 0}),
    Case("post_fec_errors", S.DRIVER, {"symbol_errors": 30}, {"symbol_errors": 0}),
    Case("post_fec_errors", S.STANDARD, {"symbol_errors": 30}, {"symbol_errors": 0}),
    Case("fec_uncorrectable", S.FEC, {"fec_uncorrectable_blocks": 3}, {"fec_uncorrectable_blocks": 0}),
    Case("crc_errors", S.LINK, {"crc_errors": 200}, {"crc_errors": 0}),
    Case("crc_errors", S.STANDARD, {"crc_errors": 200}, {"crc_errors": 0}),
    Case("link_recoveries", S.RDMA, {"ib_recoveries": 2}, {"ib_recoveries": 0}),
    Case("link_symbol_errors", S.RDMA, {"ib_symbol_errors": 200}, {"ib_symbol_errors": 0}),
    Case("pause_storm", S.DRIVER, {"pause_storm_errors": 1}, {"pause_storm_errors": 0}),
    Case("host_stall", S.DRIVER, {"prio_tx_pause_seconds/3": 1.5}, {"prio_tx_pause_seconds/3": 0}),
    Case("pause_source", S.DRIVER, {"prio_tx_pause_seconds/3": 14}, {"prio_tx_pause_seconds/3": 0.5}),
    Case("pause_source", S.DRIVER, {"global_tx_pause_seconds": 14}, {"global_tx_pause_seconds": 0.5}),
    Case(
        "network_paused", S.DRIVER, {"prio_rx_pause_seconds/0": 0.217 * 15}, {"prio_rx_pause_seconds/0": 0.5}
    ),
    Case("pcie_stall", S.DRIVER, {"pcie_stalled_write_seconds": 3}, {"pcie_stalled_write_seconds": 0}),
    Case("pcie_aer_fatal", S.PCIE, {"aer_fatal/SurpriseDown": 1}, {"aer_fatal/SurpriseDown": 0}, every=60),
    Case("pcie_aer_nonfatal", S.PCIE, {"aer_nonfatal/TLP": 1}, {"aer_nonfatal/TLP": 0}, every=60),
    Case(
        "pcie_aer_correctable", S.PCIE, {"aer_correctable/RxErr": 50}, {"aer_correctable/RxErr": 0}, every=60
    ),
    Case("rdma_timeouts", S.RDMA, {"rdma_ack_timeouts": 30}, {"rdma_ack_timeouts": 0}),
    Case("slow_restart", S.RDMA, {"rdma_slow_restarts": 300}, {"rdma_slow_restarts": 10}),
    Case("out_of_sequence", S.RDMA, {"rdma_out_of_sequence": 3000}, {"rdma_out_of_sequence": 100}),
    Case(
        "rail_loss",
        S.RAILS,
        {"rail_partners": 3, "rail_lossy_small": 3, "rail_loss": 0.012},
        {"rail_partners": 3, "rail_lossy_small": 0, "rail_loss": 0},
        counters=False,
    ),
    Case(
        "rail_mtu",
        S.RAILS,
        {"rail_partners": 3, "rail_lossy_large": 2},
        {"rail_partners": 3, "rail_lossy_large": 0},
        counters=False,
    ),
    Case(
        "lane_imbalance",
        S.DRIVER,
        {"lane_errors/0": 10, "lane_errors/1": 900},
        {"lane_errors/0": 10, "lane_errors/1": 10},
        also={"rx_power_watts/0": 1e-3, "rx_power_watts/1": 5e-4},
        other=S.MODULE,
    ),
    Case(
        "gid_missing",
        S.RDMA,
        {"rdma_port_active": 1, "roce_v2_gids": 0},
        {"rdma_port_active": 1, "roce_v2_gids": 2},
        counters=False,
    ),
    Case(
        "transmit_timeouts",
        S.KERNEL,
        {"kernel_events/transmit_timeout": 1},
        {"kernel_events/transmit_timeout": 0},
    ),
    Case(
        "command_failures", S.KERNEL, {"kernel_events/command_failed": 1}, {"kernel_events/command_failed": 0}
    ),
    Case(
        "high_temperature",
        S.KERNEL,
        {"kernel_events/high_temperature": 1},
        {"kernel_events/high_temperature": 0},
    ),
    Case("slot_power", S.KERNEL, {"slot_power_low": 1}, {"slot_power_low": 0}, counters=False),
    Case("ib_disabled", S.RDMA, {"ib_physical_state": 3}, {"ib_physical_state": 5}, counters=False),
    Case(
        "ib_no_sm",
        S.RDMA,
        {"ib_state": 2, "ib_physical_state": 5},
        {"ib_state": 4, "ib_physical_state": 5},
        counters=False,
    ),
    Case(
        "ib_armed",
        S.RDMA,
        {"ib_state": 3, "ib_physical_state": 5},
        {"ib_state": 4, "ib_physical_state": 5},
        counters=False,
    ),
    Case(
        "ib_no_lid",
        S.RDMA,
        {"ib_state": 4, "ib_lid": 7, "ib_sm_lid": 0},
        {"ib_state": 4, "ib_lid": 7, "ib_sm_lid": 1},
        counters=False,
    ),
    Case(
        "pcie_width",
        S.PCIE,
        {"pcie_width": 8, "pcie_expected_width": 16},
        {"pcie_width": 16, "pcie_expected_width": 16},
        counters=False,
    ),
    Case(
        "pcie_speed",
        S.PCIE,
        {"pcie_gts": 16, "pcie_expected_gts": 32},
        {"pcie_gts": 32, "pcie_expected_gts": 32},
        counters=False,
        load=0.2,
    ),
    Case(
        "optics_temperature",
        S.MODULE,
        {"module_celsius": 81, "module_celsius_high_alarm": 80},
        {"module_celsius": 60, "module_celsius_high_alarm": 80},
        every=60,
        counters=False,
    ),
    Case("optics_temperature_warning", S.MODULE, {"module_celsius": 72}, {"module_celsius": 60}, 60, False),
    Case(
        "optics_rx_power",
        S.MODULE,
        {"rx_power_watts/0": 1e-3, "rx_power_watts/1": 0, "rx_power_watts_low_alarm": 1e-4},
        {"rx_power_watts/0": 1e-3, "rx_power_watts/1": 2e-4, "rx_power_watts_low_alarm": 1e-4},
        every=60,
        counters=False,
    ),
    Case(
        "optics_rx_power_warning",
        S.MODULE,
        {"rx_power_watts/0": 1e-4, "rx_power_watts_low_warning": 2e-4},
        {"rx_power_watts/0": 1e-3, "rx_power_watts_low_warning": 2e-4},
        every=60,
        counters=False,
    ),
    Case(
        "firmware_fatal", S.DEVLINK, {"devlink_error/fw_fatal": 1}, {"devlink_error/fw_fatal": 0}, 30, False
    ),
]
ELSEWHERE = {
    "optics_laser",
    "device_missing",
    "driver_unbound",
    "not_answering",
    "admin_down",
    "carrier_down",
    "flapping",
    "flapping_daily",
    "speed_reduced",
    "miscabled",
    "verbs_missing",
}
"""Tested with the engine: they are of facts, or of neighbors."""


class Feed:
    def __init__(self, case: Case) -> None:
        self.case, self.bench = case, Bench(1, OPEN).look()
        self.totals = dict.fromkeys(case.bad, 0.0)
        self.carried = 0.0

    def go(self, values: dict[str, float], seconds: float) -> list[str]:
        """For so long; the reasons that stood at the end."""
        for _ in range(math.ceil(seconds / self.case.every)):
            at = self.bench.now + self.case.every
            if self.case.counters:
                self.totals = {name: total + values[name] for name, total in self.totals.items()}
                values_now = dict(self.totals)
            else:
                values_now = dict(values)
            if self.case.load:
                self.carried += self.case.load * 400e9 / 8 * self.case.every
                self.bench.take(S.DRIVER, {"phy_tx_bytes": self.carried}, at=at)
            if self.case.other is not None:
                self.bench.take(self.case.other, self.case.also, at=at)
            self.bench.take(self.case.source, values_now, at=at)
        return self.bench.reasons()


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} | ELSEWHERE == set(NIC_RULE_KEYS), "add a case to CASES"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_fault_starts_after_its_time_and_ends_after_its_hold(case: Case) -> None:
    rule, feed = default(case.rule), Feed(case)
    assert case.rule not in feed.go(case.good, 2 * case.every)
    entered = rule.enter_for_s + (rule.window_s or 0) + 3 * case.every
    assert case.rule in feed.go(case.bad, entered)
    health = feed.bench.health()
    assert health.allocatable is not rule.withdraws
    assert health.state is rule.state or case.rule == "firmware_fatal"
    left = rule.clear_for_s + (rule.window_s or 0) + 4 * case.every
    if rule.clear_for_s > 3 * case.every:
        assert case.rule in feed.go(case.good, rule.clear_for_s - 2 * case.every), "it is held"
    feed.go(case.good, left)
    assert feed.bench.health() == HEALTHY


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_disabled_rule_starts_no_fault(case: Case) -> None:
    feed = Feed(case)
    feed.bench.engine.adopt(
        with_rules(RuleSettings(rule=case.rule, enabled=False), guard=GuardSettings(share=1.0))
    )
    assert case.rule not in feed.go(case.bad, 3600)


def test_nine_symbol_errors_are_no_fault_at_any_ratio() -> None:
    bench = Bench(1, OPEN)
    bench.set(1, speed_mbps=10)  # a slow line makes a great ratio
    for i in range(1, 10):
        bench.sample(S.DRIVER, at=1000 + 15 * i, symbol_errors=i)
    assert bench.health() == HEALTHY


@pytest.mark.parametrize(("bits", "ratio"), [(6e12, 1e-4), (12e12, 0.5e-4), (1e9, 1e-4)])
def test_a_count_of_bits_counts_unless_the_line_carries_more(bits: float, ratio: float) -> None:
    """A line at 400G carries 6e12 bits in 15 s, whatever is sent: a lower count is one of frames."""
    bench = Bench(1, OPEN).look()
    for i in range(9):
        at = 1000 + 15 * i
        bench.take(S.DRIVER, {"phy_rx_bits": bits * i}, at=at)
        bench.take(S.FEC, {"fec_corrected_bits": 6e8 * i}, at=at)
    nic = bench.engine.devices[bench.pfs[0].pci_address]
    assert nic.values["pre_fec_ber"] == pytest.approx(ratio)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, -5.0])
def test_impossible_values_are_ignored(value: float) -> None:
    bench = Bench(1, OPEN).look()
    for i in range(30):
        at = 1000 + 60 * i
        bench.take(S.MODULE, {"module_celsius": value, "rx_power_watts/0": value}, at=at)
        bench.take(S.MODES, {"speed_mbps": value}, at=at)
        bench.take(S.LINK, {"carrier_down": value, "crc_errors": value}, at=at)
    assert bench.reasons() == []


def test_a_dark_lane_of_a_link_that_is_down_is_no_fault() -> None:
    bench = Bench(2, OPEN).look().down()
    for i in range(10):
        bench.take(S.MODULE, {"rx_power_watts/0": 0, "rx_power_watts_low_alarm": 1e-4}, at=1010 + 60 * i)
    assert bench.reasons() == ["carrier_down"]


def test_a_message_of_the_kernel_counts_for_its_window() -> None:
    bench = Bench(2, OPEN).look()
    bench.take(S.KERNEL, {"kernel_events/health_compromised": 3, "kernel_events/cable_unplugged": 0})
    assert bench.health() == HEALTHY, "events before the start of the agent do not count"
    bench.take(S.KERNEL, {"kernel_events/health_compromised": 3, "kernel_events/cable_unplugged": 9}, at=1010)
    assert bench.health() == HEALTHY
    bench.take(S.KERNEL, {"kernel_events/health_compromised": 4, "kernel_events/cable_unplugged": 9}, at=1020)
    assert bench.reasons() == ["firmware_fatal"]
    assert bench.health().state is State.DOWN


def timeouts(bench: Bench, *, paused_s: float) -> list[str]:
    """Time-outs every half minute, of which the network paused the NIC for so long."""
    for i in range(1, 9):
        at = 1001.0 + 30 * i
        bench.take(S.DRIVER, {"prio_rx_pause_seconds/3": paused_s * i}, at=at)
        bench.take(S.KERNEL, {"kernel_events/transmit_timeout": i}, at=at)
    return bench.reasons()


def test_a_nic_that_is_up_and_dead_is_withdrawn_unless_the_network_stops_it() -> None:
    bench = Bench(2, OPEN).look()
    assert timeouts(bench, paused_s=1) == ["transmit_timeouts"]
    assert not bench.health().allocatable
    assert "transmit_timeouts" not in timeouts(Bench(2, OPEN).look(), paused_s=9)


def test_one_transmit_timeout_from_which_the_driver_recovers_is_no_fault() -> None:
    bench = Bench(2, OPEN).look()
    for i, count in enumerate((5, 6, 7, 7, 7)):
        bench.take(S.KERNEL, {"kernel_events/transmit_timeout": count}, at=1010 + 60 * i)
    assert bench.health() == HEALTHY


def with_rdma(bench: Bench, number: int, uverbs: str | None, num_vfs: int = 0) -> Bench:
    address = bench.pfs[number - 1].pci_address
    known = {"rdma": Rdma(f"mlx5_{number}", uverbs), "num_vfs": num_vfs}
    bench.functions = [replace(f, **known) if f.pci_address == address else f for f in bench.functions]
    return bench.look()


@pytest.mark.parametrize(
    ("active", "vfs", "others", "reasons"),
    [
        (1, 0, True, ["verbs_missing"]),
        (0, 0, True, []),  # the port is down
        (1, 0, False, []),  # the node uses no verbs at all
        (1, 8, True, []),  # its VFs have devices of their own
    ],
)
def test_a_healthy_port_without_a_device_for_programs_is_withdrawn(
    active: float, vfs: int, others: bool, reasons: list[str]
) -> None:
    bench = with_rdma(Bench(2, OPEN), 2, "/dev/infiniband/uverbs1" if others else None)
    with_rdma(bench, 1, None, vfs)
    port = {"rdma_port_active": active, "roce_v2_gids": 2}
    for i in range(6):
        bench.take(S.RDMA, port, at=1001 + 15 * i)
    assert bench.reasons() == reasons
    assert bench.health().allocatable is not bool(reasons)
    with_rdma(bench, 1, "/dev/infiniband/uverbs0", vfs)
    for i in range(6, 12):
        bench.take(S.RDMA, port, at=1001 + 15 * i)
    assert bench.health() == HEALTHY


# --- windows -----------------------------------------------------------------------------------------------


def history(*points: tuple[float, float], window: float = 60.0) -> History:
    samples = History({"crc_errors": window})
    for at, value in points:
        samples.take(Sample(at, "x", S.LINK, {"crc_errors": value}))
        samples.set_time(at)
    return samples


def test_a_window_ends_at_the_last_sample_and_covers_the_known_time() -> None:
    assert history((0, 5)).over("crc_errors", 60) is None, "a single sample has no rate"
    assert history((0, 5), (10, 25)).over("crc_errors", 60) == (20, 10)
    long = history(*((10.0 * i, 10.0 * i) for i in range(100)))
    assert long.over("crc_errors", 60) == (60, 60)


def test_a_reset_counter_is_a_new_baseline() -> None:
    assert history((0, 1000), (10, 1010), (20, 3), (30, 5)).over("crc_errors", 60) == (12, 30)


@pytest.mark.parametrize("garbage", [2**64 - 1, 2**32 - 1, 2**63, 10**15])
def test_a_value_that_the_line_cannot_carry_is_dropped(garbage: float) -> None:
    samples = history((0, 1000), (10, 1010), (20, garbage), (30, 1020))
    assert samples.over("crc_errors", 60) == (20, 30)
    assert samples.implausible == 1


def test_a_counter_that_stays_beyond_a_large_step_continues_from_there() -> None:
    samples = history((0, 10), (10, 20), (20, 1e15), (30, 1e15 + 8), (40, 1e15 + 16))
    assert samples.over("crc_errors", 60) == (18, 40)
    assert samples.implausible == 1


def test_a_counter_of_seconds_advances_with_the_clock() -> None:
    samples = History({"prio_tx_pause_seconds": 60.0})
    for at, raw in ((0, 0.0), (10, 9.9), (20, 4000.0), (30, 29.0)):
        samples.take(Sample(at, "nic", S.DRIVER, {"prio_tx_pause_seconds/3": raw}))
    samples.set_time(30)
    assert samples.over("prio_tx_pause_seconds/3", 60) == (29, 30)


def test_the_windows_of_a_counter_begin_at_a_given_time() -> None:
    samples = history((0, 0), (10, 100), (20, 200), (30, 201))
    samples.begin(["crc_errors"], 15)
    assert samples.over("crc_errors", 60) == (1, 10)
    samples.begin(["crc_errors"], 31)
    assert samples.over("crc_errors", 60) is None


def test_samples_older_than_the_last_are_ignored() -> None:
    assert history((10, 5), (20, 6), (5, 100), (30, 7)).over("crc_errors", 60) == (2, 20)


def test_a_window_of_a_day_needs_no_more_memory_than_a_minute() -> None:
    samples = history(*((5.0 * i, float(i)) for i in range(20_000)), window=86400.0)
    counter = samples._counters["crc_errors"]["crc_errors"]
    assert len(counter._ats) < 70
    added, seconds = counter.over(86400.0)
    assert added / seconds == pytest.approx(0.2)
    assert seconds == pytest.approx(86400, rel=0.05)


def test_a_value_that_is_no_longer_reported_is_unknown() -> None:
    samples = History({})
    samples.take(Sample(1, "x", S.MODULE, {"module_celsius": 50, "rx_power_watts/0": 1e-3}))
    samples.set_time(1)
    assert samples.level("module_celsius") == 50
    samples.take(Sample(2, "x", S.MODULE, {"rx_power_watts/0": 1e-3}))
    assert samples.level("module_celsius") is None
    assert samples.levels("rx_power_watts") == {"0": 1e-3}


# --- the configuration -------------------------------------------------------------------------------------


def settings(text: str) -> HealthSettings:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
    return load(f"{head}health:\n  rules:\n{text}", name="file").health


@one_item("rule", NIC_RULES, ids=lambda rule: rule.key)
def test_every_part_of_every_rule_can_be_changed(rule: object) -> None:
    known = default(rule.key)
    lines = [
        f"rule: {known.key}",
        "enterForSeconds: 7",
        "clearForSeconds: 8",
        "allocatable: false",
        "enabled: false",
    ]
    if known.has_threshold:
        low, high = ("0.5", "0.25") if not known.below else ("0.5", "0.75")
        lines += [f"enter: {low}", f"clear: {high}"]
    if known.window_s is not None and known.key != "flapping_daily":
        lines.append("windowSeconds: 9")
    read = settings(f"  - {{{', '.join(lines)}}}\n")
    changed = next(each for each in effective(read.rules) if each.key == known.key)
    assert (changed.enter_for_s, changed.clear_for_s, changed.withdraws, changed.enabled) == (
        7,
        8,
        True,
        False,
    )
    assert changed.enter == (0.5 if known.has_threshold else known.enter)
    assert changed.window_s == (9 if "windowSeconds: 9" in lines else known.window_s)
    assert [each for each in effective(read.rules) if each.key != known.key] == [
        each for each in NIC_RULES if each.key != known.key
    ]


@pytest.mark.parametrize(
    ("changes", "enter", "clear"),
    [
        ({"unit": "of expected", "below": True, "clear": 1.0}, "less than expected", "as expected"),
        (
            {"unit": "of expected", "below": True, "enter": 0.5, "clear": 1.0},
            "< 50 % of expected",
            "as expected",
        ),
        ({"unit": "of the time", "enter": 0.25, "clear": 0.1}, "≥ 25 % of the time", "≤ 10 % of the time"),
        (
            {"unit": "°C above the limit", "enter": 0.0, "clear": -3.0},
            "at the limit or above",
            "3 °C or more below the limit",
        ),
        (
            {"unit": "°C above the limit", "enter": 5.0, "clear": 2.0},
            "5 °C or more above the limit",
            "2 °C or less above the limit",
        ),
        (
            {"unit": "°C above the limit", "enter": -2.0, "clear": -3.0},
            "2 °C or less below the limit",
            "3 °C or more below the limit",
        ),
        (
            {"unit": "°C above the limit", "enter": 1.0, "clear": 0.0},
            "1 °C or more above the limit",
            "at the limit or below",
        ),
        (
            {"unit": "dB above the limit", "below": True, "enter": 0.0, "clear": 0.5},
            "below the limit",
            "0.5 dB or more above the limit",
        ),
        (
            {"unit": "dB above the limit", "below": True, "enter": -2.0, "clear": 0.0},
            "more than 2 dB below the limit",
            "at the limit or above",
        ),
        (
            {"unit": "dB above the limit", "below": True, "enter": 3.0, "clear": 3.0},
            "less than 3 dB above the limit",
            "3 dB or more above the limit",
        ),
        ({"unit": "errors"}, "≥ 1 error", "none"),
        ({"unit": "points", "enter": 2500.0, "clear": 1000.0}, "≥ 2500 points", "≤ 1000 points"),
        ({}, "when it occurs", "when it ends"),
    ],
)
def test_a_threshold_is_written_in_words(changes: dict[str, Any], enter: str, clear: str) -> None:
    rule = Rule(key="x", state=State.DEGRADED, measure=lambda _: None, **changes)
    assert (threshold(rule), clears(rule)) == (enter, clear)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rule: post_fec_errors, clear: 1e-11", "clear must be at most 1e-12"),
        ("rule: post_fec_errors, enter: 1e-14", "clear must be at most 1e-14"),
        ("rule: pcie_width, clear: 0.5", "clear must be at least 1"),
        ("rule: crc_errors, enter: -1", "must be at least 0 per second"),
        ("rule: crc_errors, enter: .nan", "must be a number"),
        ("rule: crc_errors, enter: 1e999", "must be a number"),
        ("rule: crc_errors, enterForSeconds: -1", "must be at least 0"),
        ("rule: crc_errors, clearForSeconds: 1e3", "did you mean 1000?"),
        ("rule: carrier_down, enter: 1", "is a fact and has no enter"),
        ("rule: carrier_down, windowSeconds: 5", "has no window"),
        ("rule: flapping_daily, windowSeconds: 5", "counts over a day"),
        ("rule: flapping, clear: 0", "never reaches 0"),
        ("rule: flapping, windowSeconds: 86400", "at most 1029, but enter is 2500"),
        ("rule: flapping, enter: 70000", "no link would ever be damped"),
        ("rule: carrier-down", "did you mean carrier_down?"),
        ("enter: 1", "rule: is missing"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_line_and_the_remedy(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(f"  - {{{text}}}\n")
    assert complaint in str(refused.value)
    assert "file:5:" in str(refused.value)


def test_a_rule_is_changed_in_one_place() -> None:
    with pytest.raises(ConfigError, match=r"already changed by health.rules\[0\]"):
        settings("  - {rule: crc_errors, enter: 1}\n  - {rule: crc_errors, clear: 0}\n")


def test_every_rule_gives_a_state_of_a_link_and_the_fields_of_losses_fit_together() -> None:
    """The metric of a link has no state Unhealthy, which GPUs alone have."""
    assert {rule.state for rule in NIC_RULES} == {State.DOWN, State.DEGRADED, State.MISCABLED, State.HEALTHY}
    assert [rule.key for rule in NIC_RULES if rule.decays == "penalty"] == ["flapping"]
    assert all(rule.by_losses and rule.window_s for rule in NIC_RULES if rule.decays is not None)
    assert all(rule.on_facts for rule in NIC_RULES if rule.ungated)
    of_vfs_alone = {Fault.GUID_MISSING, Fault.IOMMU_GROUP_MISSING}
    assert {rule.key for rule in NIC_RULES if rule.on_facts} == set(Fault) - {
        Fault.LINK_UNSEEN
    } - of_vfs_alone


def test_the_evidence_of_lost_packets_has_their_number_the_partners_and_the_time() -> None:
    bench = Bench(1, OPEN).look()
    lost = {"rail_lossy_packets": 3600.0, "rail_lossy_partners": 7.0, "rail_lossy_since": 1795788120.0}
    rails = {"rail_partners": 6.0, "rail_lossy_small": 6.0, "rail_loss": 0.012, **lost}
    for _ in range(120):
        bench.take(S.LINK, {"crc_errors": 0.0}, at=bench.now + 5)
        bench.take(S.RAILS, rails, at=bench.now)
    (rule,) = (rule for view in bench.explained() for rule in view.rules if rule.rule == "rail_loss")
    said = "1.2 % of 3,600 packets to and from 7 partners on 6 nodes lost since 14:02 UTC; 0 CRC errors in"
    assert said in str(rule)
    bench.take(S.RAILS, rails | {"rail_lossy_way": -1.0}, at=bench.now + 5)
    (rule,) = (rule for view in bench.explained() for rule in view.rules if rule.rule == "rail_loss")
    assert "since 14:02 UTC, most on the way back; 0 CRC errors in" in str(rule)
