"""Hostile machines, restarts at bad moments and failing sources before the rule engine of NICs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.model import State
from nodeagent.health.health_settings import HealthSettings, RuleSettings
from nodeagent.health.record import NicFault, NicRecord
from nodeagent.health.service import NIC_SECTION, HealthService
from nodeagent.health.state_file import DeviceIdentity, StateFile
from nodeagent.health.structural import find_faults
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS
from tests.support.examples import examples
from tests.support.judged_machine import Bench, link, pf, with_rules

LINK, DRIVER, MODES, MODULE = Source.LINK, Source.DRIVER, Source.MODES, Source.MODULE
KERNEL = Source.KERNEL


def restarted(bench: Bench) -> Bench:
    after = Bench(len(bench.pfs), bench.engine.settings)
    after.now, after.links = bench.now, bench.links
    after.engine.restore(bench.engine.records())
    return after


# --- a restart at the wrong moment -------------------------------------------------------------------------


def test_a_hold_waits_for_the_losses_during_a_restart() -> None:
    bench = Bench(2).look().sample(LINK, at=1001, carrier=1, carrier_down=3).down(at=1010).up(at=1020)
    after = restarted(bench).look(at=1100)
    assert after.health().allocatable is False, (
        "its hold is over by the clock, but who saw the link meanwhile?"
    )
    after.sample(LINK, at=1101, carrier=1, carrier_down=4)
    assert after.wait(59).health().allocatable is False
    assert after.wait(1).allocatable() == [True, True]


def test_a_hold_ends_when_there_were_no_losses_during_a_restart() -> None:
    bench = Bench(2).look().sample(LINK, at=1001, carrier=1, carrier_down=3).down(at=1010).up(at=1020)
    bench.sample(LINK, at=1021, carrier=1, carrier_down=4)
    after = restarted(bench).look(at=1100).sample(LINK, at=1101, carrier=1, carrier_down=4)
    assert after.allocatable() == [True, True]


def test_a_hold_ends_without_a_counter_of_losses() -> None:
    bench = Bench(2).look().sample(LINK, at=1001, carrier=1, carrier_down=3).down(at=1010).up(at=1020)
    after = restarted(bench).look(at=1100)
    assert after.wait(30).allocatable() == [True, True]


def test_a_damped_link_waits_for_the_losses_during_a_restart() -> None:
    bench = Bench(2).look().sample(LINK, at=1001, carrier=1, carrier_down=0)
    bench.sample(LINK, at=1002, carrier=1, carrier_down=3)
    after = restarted(bench).look(at=1002 + 1200)
    assert after.health().allocatable is False
    after.sample(LINK, at=2203, carrier=1, carrier_down=6)
    assert after.health().allocatable is False


def test_a_firmware_fault_stays_over_a_restart_until_the_log_is_clean() -> None:
    bench = Bench(2).look()
    for at, lines in ((1000, 0), (1060, 1)):
        bench.take(KERNEL, {"kernel_events/unrecoverable": lines}, at=at)
    assert bench.reasons() == ["firmware_fatal"]
    after = restarted(bench).look(at=1070)
    for at in range(1080, 1080 + 600, 60):
        after.take(KERNEL, {"kernel_events/unrecoverable": 1}, at=at)
        assert after.reasons() == ["firmware_fatal"], "the log must have been quiet for the window"
    after.take(KERNEL, {"kernel_events/unrecoverable": 1}, at=1680)
    assert after.wait(60).reasons() == []


# --- a state file that cannot be so ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kept",
    [
        NicRecord(faults=(NicFault("carrier_down", 1e18, 1e18, "x"),)),
        NicRecord(faults=(NicFault("carrier_down", 10.0, 1e18, "x"),)),
        NicRecord(penalty=1e300, penalty_at=1e18),
        NicRecord(penalty=-1.0),
        NicRecord(losses=((1e18, 50.0),)),
        NicRecord(losses=((1.0, -50.0),)),
        NicRecord(best_mbps=1e300),
        NicRecord(downs=-1.0),
    ],
)
def test_an_impossible_record_is_ignored(kept: NicRecord, caplog: pytest.LogCaptureFixture) -> None:
    state_file, nic = StateFile(), pf(1)
    state_file.store(NIC_SECTION, {DeviceIdentity(nic.pci_address): kept})
    judge = HealthService(HealthSettings(), state_file=state_file, clock=lambda: 5000.0)
    functions, faults = find_faults([nic], [link(nic)])
    (judged,) = judge.judge_functions(functions, [link(nic)], faults)
    assert judged.health.reasons == ()
    assert "is impossible and ignored" in caplog.text


def test_a_restored_penalty_ends_within_an_hour() -> None:
    bench = Bench(1)
    bench.engine.restore({bench.pfs[0].pci_address: NicRecord(penalty=1e300, penalty_at=1000.0)})
    bench.look(at=1001)
    assert bench.reasons() == ["flapping"]
    assert bench.wait(3600).reasons() == []


def test_a_changed_half_life_keeps_the_limit_of_an_hour() -> None:
    bench = Bench(2).look().sample(LINK, at=1000, carrier=1, carrier_down=0)
    bench.sample(LINK, at=1005, carrier=1, carrier_down=1000)
    bench.engine.adopt(with_rules(RuleSettings(rule="flapping", window_seconds=1700)))
    for at in range(1035, 4700, 30):
        bench.sample(LINK, at=at, carrier=1, carrier_down=1000)
    assert "flapping" not in bench.reasons()


# --- sources that fail -------------------------------------------------------------------------------------


def test_an_empty_sysfs_is_guarded() -> None:
    bench = Bench(2).look()
    bench.functions = []
    bench.look(at=1100)
    offered = [health.allocatable for number in (1, 2) for health in bench.vfs(number)]
    assert offered == [False, False, True, True], "VFs that went with their PF are guarded with it"
    bench.wait(60)
    assert not any(health.allocatable for number in (1, 2) for health in bench.vfs(number))


def test_vfs_that_are_gone_are_withdrawn() -> None:
    bench = Bench(1).look()
    bench.functions = bench.functions[:1]
    bench.look(at=1100)
    assert [health.allocatable for health in bench.vfs()] == [False, False]


def test_a_sample_shows_a_lost_carrier_while_the_scan_hangs() -> None:
    bench = Bench(2).look().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=0)
    bench.sample(LINK, at=1006, admin_up=1, carrier=0, carrier_down=1)
    assert bench.reasons() == ["carrier_down"]
    bench.sample(LINK, at=1011, admin_up=1, carrier=1, carrier_down=1)
    assert bench.wait(59).health().allocatable is False
    assert bench.wait(1).allocatable() == [True, True]


def test_a_sample_of_the_same_moment_does_not_overrule_a_scan() -> None:
    bench = Bench(2).look(at=1000).sample(LINK, at=1000.5, admin_up=1, carrier=0, carrier_down=1)
    assert bench.reasons() == []


def test_ipoib_without_carrier_is_no_fault() -> None:
    bench = Bench(1)
    bench.functions = [replace(bench.pfs[0], link_type="infiniband")]
    bench.look().sample(LINK, at=1010, admin_up=0, carrier=0, carrier_down=1)
    assert bench.reasons() == []


def test_a_default_route_that_moves_clears_no_fault() -> None:
    bench = Bench(4).look().set(1, at=1000, speed_mbps=200_000).wait(11)
    assert bench.allocatable() == [False, True, True, True]
    assert bench.set(1, at=1020, default_route=True).reasons() == ["speed_reduced"]
    bench.set(1, at=1030, speed_mbps=400_000)
    assert bench.wait(59).health().allocatable is False
    assert bench.wait(1).health().allocatable is True
    assert bench.set(1, speed_mbps=200_000).wait(60).reasons() == [], (
        "the NIC of the default route is no longer evaluated"
    )


# --- counters ----------------------------------------------------------------------------------------------


def test_a_counter_that_decreases_a_little_is_no_reset() -> None:
    bench = Bench(1).look()
    for step in range(12):
        bench.sample(DRIVER, at=1000 + 15 * step, symbol_errors=1e9, phy_rx_bits=1e12 * step)
    bench.sample(DRIVER, at=1200, symbol_errors=1e9 - 7, phy_rx_bits=1.2e13)
    bench.sample(DRIVER, at=1215, symbol_errors=1e9, phy_rx_bits=1.3e13)
    assert bench.reasons() == []


def test_a_counter_of_another_source_starts_again() -> None:
    bench = Bench(1).look()
    for step in range(5):
        bench.sample(LINK, at=1000 + 5 * step, carrier=1, crc_errors=0)
    for step in range(3):
        bench.sample(DRIVER, at=1030 + 15 * step, crc_errors=5_000_000)
        bench.sample(LINK, at=1031 + 15 * step, carrier=1)
    assert bench.reasons() == []
    bench.sample(DRIVER, at=1090, crc_errors=5_001_000)
    assert bench.reasons() == ["crc_errors"]


def test_an_impossible_speed_is_not_the_best_speed() -> None:
    bench = Bench(1).look().sample(MODES, at=1005, speed_mbps=3_999_999_999)
    for at in range(1010, 1200, 5):
        bench.sample(MODES, at=at, speed_mbps=400_000)
    assert bench.reasons() == []
    assert bench.health().state is State.HEALTHY


def test_a_negative_limit_is_ignored() -> None:
    bench = Bench(1).look()
    bench.take(MODULE, {"rx_power_watts/0": 1e-3, "rx_power_watts_low_alarm": -3.0}, at=1010)
    assert bench.reasons() == []


_NAMES = sorted(
    f"{name}/{key}" if datum.per else name
    for name, datum in MEASUREMENTS.items()
    for key in (("fw_fatal", "command_leak", "0", "1") if datum.per else ("",))
    if datum.source is not Source.GPU
)
_ABSURD = st.sampled_from([0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, 2.0**64, float("inf"), float("nan")])
_SAID = st.dictionaries(st.sampled_from(_NAMES), _ABSURD | st.floats(0, 1e6), max_size=30)


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(Source)), _SAID, st.sampled_from([0.0, 1, 60, 4000])), max_size=12
    )
)
def test_any_samples_give_a_health_state(
    steps: list[tuple[Source, dict[str, float], float]],
) -> None:
    bench = Bench(2).look()
    for source, values, pause in steps:
        bench.wait(pause).take(source, values)
        bench.explained()


class AllRulesBench(Bench):
    """Applies every rule at each evaluation."""

    def wait(self, seconds: float) -> Bench:
        self._mark_news()
        until = self.now + seconds
        while (due := self.engine.due()) is not None and due <= until:
            self.judged = self.engine.judge(due)
            self._mark_news()
        return super().wait(seconds)

    def _mark_news(self) -> None:
        for nic in self.engine.devices.values():
            nic.has_news = True


_PAUSES = st.sampled_from([0.01, 1.0, 5.0, 15.0, 60.0, 700.0])
_HAPPENS = st.tuples(
    _PAUSES,
    st.integers(1, 3),
    st.sampled_from(["up", "down", *sorted(Source)]),
    st.dictionaries(
        st.sampled_from(_NAMES), st.sampled_from([0.0, 1, 1e-7, 1e-3, 10, 1e6, 4e5, 1e12]), max_size=8
    ),
)


@given(st.lists(_HAPPENS, max_size=40))
def test_skipped_rules_would_not_change_the_health(
    history: list[tuple[float, int, str, dict[str, float]]],
) -> None:
    benches = (Bench(3).look(), AllRulesBench(3).look())
    for pause, number, step, values in history:
        for bench in benches:
            bench.now += pause
            if step in ("up", "down"):
                bench.up(number) if step == "up" else bench.down(number)
            else:
                bench.take(Source(step), values, number)
        with_skips, without_skips = (
            [(function.health, function.pci_address) for function in bench.judged] for bench in benches
        )
        assert with_skips == without_skips
