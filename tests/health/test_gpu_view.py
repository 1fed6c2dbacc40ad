"""The explanation of a GPU's health: measured value, threshold, start, and the condition that clears it."""

from nodeagent.facts.model import State
from nodeagent.health.explain import explain_gpus
from nodeagent.health.gpu_settings import GpuHealthSettings, GpuSettings
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS
from nodeagent.host.gpu_driver import GpuEvent, GpuVitals
from tests.support.judged_gpus import GpuBench, gpu


def views(bench):
    view = explain_gpus(bench.judge, bench.now)[0]
    return {rule.rule: rule for rule in view.rules}, view


def test_a_sound_gpu_has_every_rule_with_its_value_and_its_threshold():
    rules, view = views(GpuBench().tick().tick())
    assert set(rules) == set(MEASURED_KEYS)
    assert {rule.phase for rule in rules.values()} == {"quiet"}
    assert rules["remap_limit"].measured == "0 rows"
    assert rules["remap_limit"].threshold == "≥ 513 rows"
    assert rules["nvlink_down"].measured == "18 up, 0 down"
    assert rules["nvlink_down"].threshold == "any that was up is down for 30 s"
    assert rules["pcie_width"].measured == "16 of 16 lanes"
    assert (view.name, view.kind, view.state, view.for_s) == ("GPU0", "gpu", State.HEALTHY, 30.0)


def test_each_phase_of_a_fault_has_its_remaining_time():
    bad = {"gpu_nvlink_up__3": 0}
    bench = GpuBench().tick().for_s(15, **bad)
    rule = views(bench)[0]["nvlink_down"]
    assert (rule.phase, rule.for_s, rule.in_s, rule.began, rule.clears) == ("entering", 15, 15, None, None)
    bench.for_s(45, **bad)
    rule = views(bench)[0]["nvlink_down"]
    assert (rule.phase, rule.for_s, rule.in_s) == ("active", 45, None)
    assert rule.began == "NVLink 3 is down; 17 are up."
    assert rule.clears == "clean for 10 min, or clean after a reset"
    assert rule.withdraws
    bench.for_s(60)
    rule = views(bench)[0]["nvlink_down"]
    assert (rule.phase, rule.in_s, rule.measured) == ("clearing", 540, "18 up, 0 down")


def test_a_missing_value_is_unknown_and_an_ignored_rule_is_off():
    bench = GpuBench.with_limits(GpuHealthSettings(ignore=("pcie_width",))).read()
    rules, _ = views(bench)
    assert rules["pcie_width"].phase == "off"
    assert {rule.phase for key, rule in rules.items() if key != "pcie_width"} == {"unknown"}


def test_events_and_readings_are_first_with_what_clears_them():
    bench = GpuBench().tick()
    events = [GpuEvent("GPU-0", 79), GpuEvent("GPU-0", 63), GpuEvent("GPU-0", None, unavailable=True)]
    bench.take(15, events=events)
    bench.now = 115
    bench.read(recovery_action="gpu_reset", lost=True, fault="nvmlDeviceGetName: Unknown Error")
    rules, _ = views(bench)
    announced = [
        (rule.rule, rule.state, rule.withdraws) for rule in rules.values() if rule.rule not in MEASURED_KEYS
    ]
    assert announced == [
        ("gpu_lost", State.UNHEALTHY, True),
        ("recovery_gpu_reset", State.UNHEALTHY, True),
        ("gpu_unavailable", State.UNHEALTHY, True),
        ("xid_63", State.DEGRADED, False),
        ("xid_79", State.UNHEALTHY, True),
    ]
    assert (rules["xid_79"].for_s, rules["xid_79"].in_s) == (100, 500)
    assert rules["xid_79"].clears == "a reset, or 10 min without another"


def test_an_xid_that_only_a_reset_clears_has_no_remaining_time():
    bench = GpuBench(gpu(), settings=GpuSettings(xid_clear_seconds=None))
    bench.take(0, events=[GpuEvent("GPU-0", 79)], vitals=[GpuVitals("GPU-0")]).now = 5
    first = views(bench)[1].rules[0]
    assert (first.rule, first.in_s, first.clears) == ("xid_79", None, "a reset")


def test_a_gpu_with_failing_calls_shows_the_error():
    bench = GpuBench().tick()
    bench.read(fault="nvmlDeviceGetName: Unknown Error")
    rule = views(bench)[0]["gpu_unreadable"]
    assert (rule.phase, rule.measured, rule.threshold) == (
        "entering",
        "nvmlDeviceGetName: Unknown Error",
        "for 30 s",
    )
