"""A dead laser of the own module: the fault is in the module, and the list says so."""

from __future__ import annotations

from nodeagent.measurements.sample import Source
from tests.support.judged_machine import Bench

DARK = {"tx_power_watts/2": 0.0, "bias_amperes/2": 0.0}
LIT = {f"tx_power_watts/{lane}": 1e-3 for lane in range(1, 5)} | {
    f"bias_amperes/{lane}": 7e-3 for lane in range(1, 5)
}
LIMIT = {"tx_power_watts_low_alarm": 1e-4}


def judged(values: dict[str, float], *, carrier: bool = False, admin_up: bool = True) -> Bench:
    bench = Bench(2).look()
    bench.set(at=1010, carrier=carrier if admin_up else None, admin_up=admin_up)
    for at in range(1011, 1200, 10):
        bench.take(Source.MODULE, values, at=at)
    return bench


def test_a_dead_laser_names_the_module_and_not_the_fiber() -> None:
    health = judged(LIT | LIMIT | DARK).health()
    (laser,) = [reason for reason in health.reasons if reason.key == "optics_laser"]
    assert (
        "the laser of lane 2 is dead (0 mA, -40.0 dBm sent): replace the module, not the fiber"
        in laser.detail
    )


def test_lasers_that_are_off_unused_or_not_measured_are_no_fault() -> None:
    assert "optics_laser" not in judged(LIT | LIMIT | DARK, carrier=True).reasons()
    assert "optics_laser" not in judged(LIT | LIMIT).reasons()
    assert "optics_laser" not in judged(LIT | DARK).reasons(), "a module without limits of its own"
    assert "optics_laser" not in judged(LIT | LIMIT | DARK, admin_up=False).reasons()
    assert "optics_laser" not in judged(LIT | LIMIT | DARK | {"module_ready": 0}).reasons()


def test_an_unplugged_fiber_accuses_no_module() -> None:
    unlit = {f"rx_power_watts/{lane}": 0.0 for lane in range(1, 5)}
    assert judged(LIT | LIMIT | unlit | {"rx_power_watts_low_alarm": 1e-4}).reasons() == ["carrier_down"]


def test_lanes_of_a_recording_may_have_any_names() -> None:
    named = {"tx_power_watts/x": 0.0, "bias_amperes/x": 0.0} | {
        key.replace("/2", "/10"): value for key, value in DARK.items()
    }
    (laser,) = [it for it in judged(LIT | LIMIT | DARK | named).health().reasons if it.key == "optics_laser"]
    assert "the laser of lane 2, x, 10 is dead" in laser.detail
