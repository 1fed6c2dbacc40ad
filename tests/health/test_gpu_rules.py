"""The faults by measured values of a GPU: when they start, that they stay, and how they end."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import HEALTHY, State
from nodeagent.health.gpu import KNOWN_MAX
from nodeagent.health.gpu_settings import GpuHealthSettings
from nodeagent.health.record import GpuRecord, XidFault
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS, MEASURED_RULES
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from tests.support.findings import one_item
from tests.support.judged_gpus import SOUND, GpuBench, gpu

AT_ONCE = [
    ("remap_failed", {"gpu_row_remap_failed": 1}),
    ("remap_limit", {"gpu_remapped_uncorrectable": 513}),
    ("sram_uncorrectable", {"gpu_ecc_uncorrectable_sram": 1}),
    ("sram_threshold", {"gpu_sram_threshold_exceeded": 1}),
    ("remap_pending", {"gpu_row_remap_pending": 1}),
]
REGISTRATION = ("fabric_not_ready", "fabric_failed", "fabric_misconfigured")
HELD = [
    ("nvlink_down", {"gpu_nvlink_up__17": 0}, 30),
    ("fabric_unhealthy", {"gpu_fabric_route_unhealthy": 1}, 30),
    ("fabric_degraded", {"gpu_fabric_degraded_bandwidth": 1}, 30),
    ("fabric_not_ready", {"gpu_fabric_not_ready": 1}, 30),
    ("fabric_failed", {"gpu_fabric_failed": 1}, 30),
    ("fabric_misconfigured", {"gpu_fabric_misconfigured": 1}, 30),
    (
        "thermal_slowdown",
        {"gpu_clock_reason__hardware_thermal": 1, "gpu_clock_reason__hardware_slowdown": 1},
        30,
    ),
    ("power_slowdown", {"gpu_clock_reason__power_brake": 1}, 30),
    ("power_slowdown", {"gpu_clock_reason__hardware_slowdown": 1}, 30),
    ("memory_temperature", {"gpu_memory_celsius": 105}, 30),
    ("temperature_margin", {"gpu_margin_celsius": 0, "gpu_clock_reason__thermal": 1}, 30),
    ("process_stuck", {"gpu_processes_stuck": 1}, 300),
    ("nvlink_effective_ber", {"gpu_nvlink_bit_error_ratio__effective": 2e-12}, 30),
    ("nvlink_symbol_ber", {"gpu_nvlink_bit_error_ratio__symbol": 1e-12}, 30),
    ("fabric_route_recovery", {"gpu_fabric_route_recovery": 1}, 30),
    ("fabric_access_timeout", {"gpu_fabric_access_timeout": 1}, 30),
    ("pcie_width", {"gpu_pcie_width": 8}, 10),
    ("pcie_speed", {"gpu_pcie_generation": 1}, 900),
]
ALL = [*AT_ONCE, *((key, bad) for key, bad, _ in HELD)]


def test_a_sound_gpu_is_healthy_and_every_fault_is_tested_here():
    assert GpuBench().for_s(3600).health() == HEALTHY
    elsewhere = {"nvlink_errors", "nvlink_symbol_errors", "nvswitch_error"}
    assert {key for key, _ in ALL} | elsewhere == set(MEASURED_KEYS), "add it to AT_ONCE or HELD"


def test_the_table_has_one_row_for_each_fault_the_gravest_first():
    assert len(set(MEASURED_KEYS)) == len(MEASURED_RULES)
    for row in MEASURED_RULES:
        rule = row.rule(GpuHealthSettings(), enabled=True)
        assert rule.meaning.endswith(".")
        assert rule.state in (State.UNHEALTHY, State.DEGRADED)  # the metric of a GPU has no state Down


@pytest.mark.parametrize(("key", "bad"), AT_ONCE)
def test_a_fault_without_a_time_to_enter_starts_at_once(key, bad):
    bench = GpuBench().tick().tick(**bad)
    assert bench.reasons() == [key]
    grave = key in GpuHealthSettings().unhealthy
    assert bench.health().state is (State.UNHEALTHY if grave else State.DEGRADED)
    assert bench.health().allocatable is not grave


@pytest.mark.parametrize(("key", "bad", "hold_s"), HELD)
def test_a_fault_with_a_time_to_enter_starts_after_it(key, bad, hold_s):
    bench = GpuBench(every=5).tick()
    bench.for_s(hold_s - 5, **bad)
    assert bench.reasons() == []
    assert bench.tick(**bad).reasons() == [key]


@pytest.mark.parametrize(("key", "bad", "hold_s"), HELD)
def test_a_good_value_restarts_the_time_to_enter(key, bad, hold_s):
    bench = GpuBench(every=5).tick()
    for _ in range(3):
        bench.for_s(hold_s - 5, **bad).tick()
    assert bench.reasons() == []
    assert bench.for_s(hold_s, **bad).reasons() == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_every_fault_ends_after_its_time_to_clear(key, bad):
    bench = GpuBench().tick().for_s(900, **bad)
    clear_s = 60 if key.startswith("pcie") else 30 if key in REGISTRATION else 600
    assert bench.for_s(clear_s - 15).reasons() == [key]
    assert bench.tick().health() == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_fault_that_is_ignored_is_not_kept_for_the_time_when_it_counts_again(key, bad):
    bench = GpuBench.with_limits(GpuHealthSettings(ignore=(key,))).tick().for_s(900, **bad)
    assert bench.reasons() == []
    (record,) = bench.judge.records().values()
    assert record.measured.holds == ()


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_every_fault_ends_at_once_after_a_reset_that_repaired_it(key, bad):
    bench = GpuBench().tick().for_s(900, **bad).read(recovery_action="gpu_reset").tick(**bad)
    assert bench.reasons() == ["recovery_gpu_reset", key]
    bench.read()
    assert bench.reasons() == [key]  # not evaluated yet
    assert bench.tick().health() == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_reset_without_a_good_value_clears_nothing(key, bad):
    bench = GpuBench().tick().for_s(900, **bad).read(recovery_action="gpu_reset").read().tick(**bad)
    assert bench.reasons() == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_lost_gpu_that_is_listed_again_was_reset(key, bad):
    bench = GpuBench().tick().for_s(900, **bad).read(lost=True)
    assert bench.reasons()[0] == "gpu_lost"
    assert bench.read().tick().health() == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_value_that_is_no_longer_reported_changes_nothing(key, bad):
    bench = GpuBench().tick().for_s(900, **bad)
    bench.for_s(5000, **dict.fromkeys(bad))
    assert bench.reasons() == [key]
    assert GpuBench().tick().for_s(5000, **dict.fromkeys(bad)).health() == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_an_oscillating_value_toggles_at_most_once_in_a_hold(key, bad):
    bench = GpuBench().tick().for_s(900, **bad)
    for _ in range(100):
        bench.tick().tick(**bad)
        assert bench.reasons() == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_faults_can_be_ignored_and_their_severity_chosen(key, bad):
    assert GpuBench.with_limits(GpuHealthSettings(ignore=(key,))).tick().for_s(900, **bad).health() == HEALTHY
    light = GpuBench.with_limits(GpuHealthSettings(unhealthy=())).tick().for_s(900, **bad).health()
    assert (light.state, light.allocatable) == (State.DEGRADED, True)
    hard = GpuBench.with_limits(GpuHealthSettings(unhealthy=MEASURED_KEYS)).tick().for_s(900, **bad).health()
    assert (hard.state, hard.allocatable) == (State.UNHEALTHY, False)


@one_item("link", range(18))
def test_each_of_eighteen_links_is_checked(link):
    bench = GpuBench().tick().for_s(30, **{f"gpu_nvlink_up__{link}": 0})
    assert bench.health().reasons[0].detail == f"NVLink {link} is down; 17 are up."


def test_a_link_that_was_never_up_is_a_fault_only_if_it_is_required():
    off = {f"gpu_nvlink_up__{link}": 0 for link in range(18)}
    assert GpuBench().for_s(3600, **off).health() == HEALTHY
    bench = GpuBench.with_limits(GpuHealthSettings(nvlinks=18)).for_s(30, gpu_nvlink_up__3=0)
    assert bench.health().reasons[0].detail == "17 NVLinks are up where 18 should be."
    assert (
        GpuBench.with_limits(GpuHealthSettings(nvlinks=17)).for_s(3600, gpu_nvlink_up__3=0).health()
        == HEALTHY
    )


def test_the_reason_names_the_links_that_are_down_now():
    bench = GpuBench().tick().for_s(30, gpu_nvlink_up__3=0).tick(gpu_nvlink_up__3=0, gpu_nvlink_up__4=0)
    assert bench.health().reasons[0].detail == "NVLinks 3, 4 are down; 16 are up."


def test_links_that_mig_mode_switches_off_are_no_fault():
    bench = GpuBench().tick()
    bench.reading = gpu(mig=True)
    assert bench.for_s(3600, gpu_nvlink_up__3=0).reasons() == ["mig_enabled"]


def test_a_growing_count_does_not_change_the_health():
    bench = GpuBench().tick().tick(gpu_ecc_uncorrectable_sram=1)
    first = bench.health()
    for count in range(2, 50):
        assert bench.tick(gpu_ecc_uncorrectable_sram=count).health() == first


def test_a_slow_link_counts_only_under_load():
    idle = {"gpu_performance_state": 8, "gpu_utilization": 0, "gpu_pcie_generation": 1}
    assert GpuBench().for_s(7200, **idle).health() == HEALTHY
    bench = GpuBench()
    for _ in range(20):  # a minute of load in each ten: twenty make 900 s only together
        bench.for_s(600, **idle).for_s(45, gpu_pcie_generation=1)
    assert bench.reasons() == ["pcie_speed"]
    bench = (
        GpuBench()
        .for_s(600, gpu_pcie_generation=1)
        .for_s(600, **idle)
        .tick()
        .for_s(600, gpu_pcie_generation=1)
    )
    assert bench.health() == HEALTHY


def test_time_without_a_reading_does_not_count():
    bench = GpuBench().tick().tick(gpu_nvlink_up__3=0)
    bench.now += 3600
    assert bench.tick(gpu_nvlink_up__3=0).health() == HEALTHY
    bench.for_s(30, gpu_nvlink_up__3=0)
    assert bench.reasons() == ["nvlink_down"]
    bench.tick()
    bench.now += 3600
    assert bench.tick().reasons() == ["nvlink_down"]


def test_every_limit_can_be_set():
    assert (
        GpuBench.with_limits(GpuHealthSettings(remapped_rows=513))
        .tick(gpu_remapped_uncorrectable=513)
        .health()
        == HEALTHY
    )
    assert GpuBench.with_limits(GpuHealthSettings(remapped_rows=0)).tick(
        gpu_remapped_uncorrectable=1
    ).reasons() == ["remap_limit"]
    assert (
        GpuBench.with_limits(GpuHealthSettings(sram_uncorrectable=2))
        .tick(gpu_ecc_uncorrectable_sram=1)
        .health()
        == HEALTHY
    )
    assert (
        GpuBench.with_limits(GpuHealthSettings(nvlink_down_seconds=120))
        .tick()
        .for_s(105, gpu_nvlink_up__3=0)
        .health()
        == HEALTHY
    )


def test_an_unavailable_gpu_is_unhealthy_until_a_reset_or_a_clean_time():
    gone = [GpuEvent("GPU-0", None, unavailable=True)]
    for after_s, action in ((10, "gpu_reset"), (600, "none")):
        bench = GpuBench(gpu(0), gpu(1)).take(1, events=gone)
        assert [bench.reasons("GPU-0"), bench.reasons("GPU-1")] == [["gpu_unavailable"], []]
        assert not bench.health().allocatable
        bench.read_at(2, gpu(0, recovery_action=action), gpu(1))
        assert bench.health() != HEALTHY
        bench.read_at(1 + after_s, gpu(0), gpu(1))
        assert bench.healths() == [HEALTHY, HEALTHY]


def test_measured_values_of_a_gpu_that_was_never_read_are_dropped():
    bench = GpuBench().take(0, vitals=[GpuVitals("GPU-9", {"gpu_row_remap_failed": 1})])
    assert bench.judge.devices == {}


# Over a restart


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_fault_outlives_a_restart_and_ends_as_usual(key, bad):
    bench = GpuBench().tick().for_s(900, **bad)
    before = bench.health()
    assert bench.restart(3600).tick(**bad).health() == before
    assert bench.restart().for_s(600).health() == HEALTHY


def test_an_xid_outlives_a_restart_and_a_reset_meanwhile_clears_it():
    for action, keys in (("none", ["xid_79"]), ("gpu_reset", [])):
        bench = GpuBench().tick()
        bench.xid(bench.now, 79)
        bench.now += 1
        bench.read(recovery_action=action)
        bench.restart(30)
        assert "xid_79" in bench.reasons()
        assert bench.read().reasons() == keys


def test_a_gpu_that_was_lost_before_the_restart_and_no_longer_reports_its_uuid_is_known():
    bench = GpuBench().tick().restart(60)
    lost = GpuReading(0, lost=True, fault="nvmlDeviceGetHandleByIndex: GPU is lost")
    bench.read_at(bench.now, lost)
    assert bench.reasons() == ["gpu_lost"]
    assert bench.state().reading.memory_mib == 81559


def test_a_driver_with_another_uuid_at_each_reading_does_not_make_the_list_grow():
    bench = GpuBench()
    for n in range(KNOWN_MAX):
        bench.read_at(n, gpu(uuid=f"GPU-of-reading-{n}"))
    last = f"GPU-of-reading-{KNOWN_MAX - 1}"
    assert list(bench.judge.devices) == [last], "each replaces the one before in its slot"
    bench.read_at(KNOWN_MAX, gpu(uuid="GPU-of-one-reading-more"))
    assert list(bench.judge.devices) == [last]


def test_the_links_that_were_up_before_the_restart_are_expected_after_it():
    bench = GpuBench().tick().restart(10)
    assert bench.for_s(30, gpu_nvlink_up__13=0).reasons() == ["nvlink_down"]


def test_the_time_to_enter_starts_again_and_a_record_changes_only_with_the_faults():
    bench = GpuBench().tick()
    first = bench.state().record()
    bench.for_s(15, gpu_nvlink_up__3=0)
    assert not bench.state().record().differs(first)
    bench.restart()
    assert bench.for_s(15, gpu_nvlink_up__3=0).health() == HEALTHY
    assert bench.tick(gpu_nvlink_up__3=0).state().record().differs(first)
    assert first.differs(None)


@pytest.mark.parametrize("seconds", [10, 40])
def test_a_gpu_with_failing_calls_stays_in_doubt_or_unhealthy_over_a_restart(seconds):
    bench = GpuBench(gpu()).read_at(100, gpu(fault="x")).read_at(100 + seconds, gpu(fault="x"))
    before = bench.health()
    assert before.allocatable == (seconds < 30)
    assert bench.restart().health() == before
    assert not bench.read_at(141, gpu(fault="x")).health().allocatable
    assert bench.read_at(142, gpu()).health() == HEALTHY


@pytest.mark.parametrize(
    "parts",
    [
        {"read_at": 1e9},
        {"read_at": -1.0},
        {"read_at": math.nan},
        {"faults": (XidFault(79, 1e9),)},
        {"unreadable_since": math.inf},
        {"reading": GpuReading(0)},
    ],
)
def test_an_impossible_record_is_not_used(parts):
    record: GpuRecord = GpuBench().tick().state().record()
    assert record.is_possible(100)
    assert not msgspec.structs.replace(record, **parts).is_possible(100)


VALUES = st.dictionaries(
    st.sampled_from([*SOUND, "gpu_utilization", "unknown"]),
    st.sampled_from([0, 1, 5, 16, 513, 0.5, 1e300, -1]),
    max_size=len(SOUND),
)
STEPS = st.lists(
    st.tuples(st.floats(0, 700), VALUES, st.sampled_from(["none", "gpu_reset", None]), st.booleans()),
    max_size=12,
)


@given(steps=STEPS)
def test_every_gpu_recovers_from_any_measured_values_also_over_restarts(steps):
    bench = GpuBench()
    for wait, values, action, restart in steps:
        bench.take(
            bench.now + wait,
            readings=[gpu(recovery_action=action), gpu(1)],
            vitals=[GpuVitals("GPU-0", values)],
        )
        if restart:
            before = bench.healths()
            assert bench.restart().healths() == before
        assert bench.health("GPU-1") == HEALTHY
        assert len(bench.reasons()) == len(set(bench.reasons()))
    for _ in range(45):
        bench.take(bench.now + 15, readings=[gpu(), gpu(1)], vitals=[GpuVitals("GPU-0", SOUND)])
    assert bench.healths() == [HEALTHY, HEALTHY]


def test_nvlinks_with_a_thousand_errors_per_second_degrade_the_gpu():
    bench = GpuBench(every=15).tick(gpu_nvlink_crc_errors=7, gpu_nvlink_replays=1)
    bench.tick(gpu_nvlink_crc_errors=15_007, gpu_nvlink_replays=1)
    assert bench.reasons() == ["nvlink_errors"]
    assert bench.health().state is State.DEGRADED
    assert bench.health().allocatable is True
    bench.for_s(585, gpu_nvlink_crc_errors=15_007, gpu_nvlink_replays=1)
    assert bench.reasons() == ["nvlink_errors"]
    assert bench.for_s(30, gpu_nvlink_crc_errors=15_007, gpu_nvlink_replays=1).health() == HEALTHY


def test_single_nvlink_errors_reset_counters_and_registers_of_ones_are_no_fault():
    bench = GpuBench(every=15).tick(gpu_nvlink_crc_errors=1_000_000)
    for count in (1_001_000, 5, 900, 2**64 - 1, 2**64 - 1, 950, 2**32 - 1, 960):
        assert bench.tick(gpu_nvlink_crc_errors=float(count)).health() == HEALTHY


@pytest.mark.parametrize("between", [{}, {"gpu_nvlink_crc_errors": 0}])
def test_an_nvlink_counter_that_is_missing_or_zero_for_a_moment_is_no_fault(between):
    counts = {"gpu_nvlink_crc_errors": 5e6, "gpu_nvlink_replays": 3}
    bench = GpuBench(every=15).tick(**counts).tick(**counts)
    assert bench.tick(gpu_nvlink_replays=3, **between).health() == HEALTHY
    assert bench.tick(**counts).health() == HEALTHY


def test_nvlink_errors_over_a_gap_without_readings_are_no_rate():
    bench = GpuBench(every=3600).tick(gpu_nvlink_crc_errors=0)
    assert bench.tick(gpu_nvlink_crc_errors=1e9).health() == HEALTHY


def test_symbol_errors_are_a_fault_of_their_own_after_a_while():
    bench = GpuBench(every=10).tick().tick(gpu_nvlink_symbol_errors=50)
    for count in (200, 350, 500):
        assert bench.reasons() == []
        bench.tick(gpu_nvlink_symbol_errors=count)
    assert bench.tick(gpu_nvlink_symbol_errors=650).reasons() == ["nvlink_symbol_errors"]
    assert bench.health().allocatable
    assert bench.for_s(600, gpu_nvlink_symbol_errors=650).reasons() == []


@pytest.mark.parametrize("values", [{"gpu_margin_celsius": -4}, {"gpu_clock_reason__thermal": 1}])
def test_a_margin_counts_only_while_the_driver_slows_the_gpu_down(values):
    """Some GPUs report no margin at any temperature (gpud, temperature component)."""
    assert GpuBench().for_s(3600, **values).reasons() == []


def test_the_limit_of_nvlink_errors_is_configurable():
    bench = GpuBench.with_limits(GpuHealthSettings(nvlink_errors_per_second=2)).tick(gpu_nvlink_replays=0)
    assert bench.tick(gpu_nvlink_replays=60).reasons() == ["nvlink_errors"]
