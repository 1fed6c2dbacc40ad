"""The faults of GPUs by events and readings, and that a GPU recovers from each."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hack.docs.health_rules import gpu_rules_table, xids_table
from nodeagent.facts.model import HEALTHY, State
from nodeagent.health.gpu import with_unknown
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.rules.xids import FATAL, IGNORE, RECOVERY_ACTION_CHANGED, WATCH, Severity, severity
from nodeagent.host.gpu_driver import GpuEvent, GpuReading
from tests.support import golden
from tests.support.judged_gpus import GpuBench, gpu

SETTINGS = GpuSettings(xid_clear_seconds=600)


@pytest.mark.parametrize(
    ("name", "table"), [("xids", xids_table), ("gpu rules", gpu_rules_table)], ids=["xids", "gpu-rules"]
)
@pytest.mark.golden("docs/reference/gpu-rules.md")
def test_the_documented_tables_are_those_of_the_code(name, table):
    page = Path(__file__).parents[2] / "docs/reference/gpu-rules.md"
    golden.same_between(page, f"<!-- {name} -->\n", "<!-- end -->\n", table())


def test_no_xid_has_two_severities():
    assert not set(FATAL) & set(WATCH)
    assert not (set(FATAL) | set(WATCH) | {RECOVERY_ACTION_CHANGED}) & IGNORE
    assert RECOVERY_ACTION_CHANGED not in {**FATAL, **WATCH}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94])
def test_an_xid_of_the_application_leaves_the_gpu_healthy(xid):
    assert GpuBench(gpu()).xid(1, xid).health() == HEALTHY


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 109, 119, 120])
def test_a_fatal_xid_makes_its_gpu_unhealthy_and_no_other(xid):
    bench = GpuBench(gpu(0), gpu(1)).xid(1, xid)
    assert bench.health().state is State.UNHEALTHY
    assert not bench.health().allocatable
    assert bench.reasons() == [f"xid_{xid}"]
    assert bench.health("GPU-1") == HEALTHY


@pytest.mark.parametrize("xid", [63, 92, 145, 4242])
def test_a_watched_or_unknown_xid_is_shown_and_withdraws_nothing(xid):
    health = GpuBench(gpu()).xid(1, xid).health()
    assert (health.state, health.allocatable) == (State.DEGRADED, True)


@pytest.mark.parametrize(("action", "reasons"), [("none", []), ("node_reboot", ["recovery_node_reboot"])])
def test_xid_154_means_the_action_that_the_driver_reports(action, reasons):
    bench = GpuBench(gpu()).xid(1, 154)
    assert bench.health() == HEALTHY
    assert bench.read_at(2, gpu(recovery_action=action)).reasons() == reasons


def test_xid_154_counts_itself_where_the_driver_reports_no_action():
    bench = GpuBench(gpu(recovery_action=None)).xid(1, 154).read_at(2, gpu(recovery_action=None))
    assert (bench.reasons(), bench.health().allocatable) == (["xid_154"], False)
    assert "kernel log" in bench.health().reasons[0].detail
    assert bench.read_at(601, gpu(recovery_action=None)).health() == HEALTHY


def test_settings_decide_about_xid_154_first():
    assert severity(154, GpuSettings(fatal_xids=(154,))) is Severity.FATAL
    assert severity(154, GpuSettings(ignore_xids=(154,))) is Severity.IGNORE


def test_a_configuration_overrides_the_table_and_fatal_wins():
    settings = GpuSettings(
        fatal_xids=(
            13,
            63,
        ),
        ignore_xids=(
            79,
            63,
            4242,
        ),
    )
    assert severity(13, settings) is Severity.FATAL
    assert severity(63, settings) is Severity.FATAL
    assert severity(79, settings) is Severity.IGNORE
    assert severity(4242, settings) is Severity.IGNORE


def test_a_reset_clears_at_once():
    bench = GpuBench(gpu()).xid(1, 48).read_at(2, gpu(recovery_action="gpu_reset"))
    assert bench.reasons() == ["recovery_gpu_reset", "xid_48"]
    assert bench.read_at(3, gpu()).health() == HEALTHY


def test_a_reset_also_counts_if_the_driver_reported_it_only_with_an_error():
    bench = GpuBench(gpu(recovery_action=None)).xid(1, 48)
    bench.read_at(2, gpu(recovery_action="gpu_reset", fault="nvmlDeviceGetName: GPU requires restart"))
    assert bench.read_at(3, gpu(recovery_action=None)).health() == HEALTHY


def test_a_reset_does_not_clear_a_later_xid():
    bench = (
        GpuBench(gpu()).xid(1, 48).read_at(2, gpu(recovery_action="gpu_reset")).xid(3, 79).read_at(4, gpu())
    )
    assert bench.reasons() == ["xid_79"]


@pytest.mark.parametrize("action", ["none", None])
def test_without_a_reset_an_xid_clears_after_its_time(action):
    bench = GpuBench(gpu(recovery_action=action)).xid(1, 79)
    assert bench.read_at(600, gpu(recovery_action=action)).reasons() == ["xid_79"]
    assert bench.read_at(601, gpu(recovery_action=action)).health() == HEALTHY


def test_a_repeated_xid_restarts_its_time_and_keeps_its_text():
    bench = GpuBench(gpu()).xid(1, 79)
    once = bench.health()
    assert bench.xid(500, 79).health() == once
    assert bench.read_at(601, gpu()).reasons() == ["xid_79"]
    assert bench.read_at(1100, gpu()).health() == HEALTHY


HOUR = 3600.0


def incidents(xid: int, *hours: float, settings: GpuSettings | None = None, uuid: str = "GPU-0") -> GpuBench:
    bench = GpuBench(gpu(0), gpu(1), settings=settings)
    for hour in hours:
        bench.xid(hour * HOUR, xid, uuid=uuid)
        bench.read_at(hour * HOUR + 1, gpu(0, recovery_action="gpu_reset"), gpu(1))
        bench.read_at(hour * HOUR + 2, gpu(0), gpu(1))
    return bench


@pytest.mark.parametrize("xid", [79, 92, 4242, 13, 31, 94])
def test_an_xid_that_comes_three_times_in_a_day_is_a_fault_that_no_reset_ends(xid):
    assert incidents(xid, 1, 9).reasons() == []
    bench = incidents(xid, 1, 9, 20)
    assert bench.reasons() == ["repeated_xid"]
    assert bench.health().allocatable, "it is shown, and withdraws nothing"
    detail = f"XID {xid} came at least 3 times within 1 d."
    assert bench.health().reasons[0].detail == detail
    assert bench.restart().read_at(24.9 * HOUR, gpu(0), gpu(1)).reasons() == ["repeated_xid"]
    assert bench.read_at(25.1 * HOUR, gpu(0), gpu(1)).health() == HEALTHY
    assert bench.health("GPU-1") == HEALTHY


@pytest.mark.parametrize(
    ("xid", "hours", "settings"),
    [
        (79, (1, 20, 26), None),  # not within a day
        (79, (1, 1.01, 1.02, 1.03, 1.05), None),  # one incident
        (43, (1, 2, 3, 4), None),  # follows another error
        (45, (1, 2, 3, 4), None),
        (154, (1, 2, 3, 4), None),  # sums up the action for others
        (92, (1, 2, 3, 4), GpuSettings(ignore_xids=(92,))),
        (79, (1, 2, 3), GpuSettings(xid_repeats=4)),
        (79, (1, 2, 3), GpuSettings(xid_repeat_seconds=3600)),
    ],
)
def test_what_is_no_repetition(xid, hours, settings):
    assert incidents(xid, *hours, settings=settings).reasons() == []


@pytest.mark.parametrize(
    ("xid", "reasons"), [(13, []), (31, []), (94, ["repeated_xid"]), (79, ["repeated_xid"])]
)
def test_an_application_that_fails_on_another_gpu_too_is_to_blame_itself(xid, reasons):
    bench = incidents(xid, 1, 9).xid(10 * HOUR, xid, uuid="GPU-1")
    bench.xid(20 * HOUR, xid).read_at(20 * HOUR + 1, gpu(0, recovery_action="gpu_reset"), gpu(1))
    bench.read_at(20 * HOUR + 2, gpu(0), gpu(1))
    assert bench.reasons() == reasons


def test_a_storm_of_unknown_numbers_is_bounded():
    bench = GpuBench(gpu()).xid(1, *range(1000, 2000))
    assert len(bench.state().xid_history.times) == 64


def test_no_time_clears_an_xid_while_the_driver_asks_for_an_action():
    bench = GpuBench(gpu()).xid(1, 79).read_at(5000, gpu(recovery_action="node_reboot"))
    assert bench.read_at(9999, gpu(recovery_action="node_reboot")).reasons() == [
        "recovery_node_reboot",
        "xid_79",
    ]


def test_an_unreadable_gpu_clears_no_xid():
    bench = GpuBench(gpu()).xid(1, 79).read_at(601, gpu(fault="x"))
    assert bench.reasons() == ["xid_79", "gpu_unreadable"]


@pytest.mark.parametrize(
    "readings",
    [
        (gpu(0), gpu(1, lost=True)),
        (gpu(0), GpuReading(1, lost=True, fault="nvmlDeviceGetHandleByIndex: GPU is lost")),
        (gpu(0),),
    ],
)
def test_a_lost_gpu_keeps_its_facts_and_recovers(readings):
    bench = GpuBench(gpu(0), gpu(1))
    bench.read_at(1, *readings)
    assert bench.reasons("GPU-1") == ["gpu_lost"]
    assert not bench.health("GPU-1").allocatable
    assert bench.health("GPU-0") == HEALTHY
    assert bench.state("GPU-1").reading.memory_mib == 81559
    assert bench.read_at(2, gpu(0), gpu(1)).health("GPU-1") == HEALTHY


def test_a_lost_gpu_is_not_confused_with_the_one_at_its_old_index():
    bench = GpuBench(gpu(0), gpu(1)).read_at(
        1, msgspec.structs.replace(gpu(1), index=0), GpuReading(1, fault="no")
    )
    assert bench.reasons("GPU-0") == ["gpu_lost"]
    assert bench.health("GPU-1") == HEALTHY


def test_a_gpu_with_failing_calls_is_first_unknown_then_unhealthy_then_recovers():
    bench = GpuBench(gpu(0)).read_at(10, GpuReading(0, fault="nvmlDeviceGetHandleByIndex: Unknown Error"))
    assert (bench.health().state, bench.health().allocatable) == (State.UNKNOWN, True)
    bench.read_at(39, gpu(fault="x"))
    assert bench.health().allocatable
    bench.read_at(40, gpu(fault="x"))
    assert (bench.health().state, bench.health().allocatable) == (State.UNHEALTHY, False)
    assert bench.reasons() == ["gpu_unreadable"]
    assert bench.read_at(41, gpu()).health() == HEALTHY


def test_mig_is_a_reason_but_no_fault():
    health = GpuBench(gpu(mig=True)).health()
    assert (health.state, health.allocatable) == (State.HEALTHY, True), "its MIG devices are healthy"
    assert [reason.key for reason in health.reasons] == ["mig_enabled"]
    assert GpuBench(gpu(mig=True)).read_at(1, gpu()).health() == HEALTHY


def test_the_gravest_reason_is_first():
    bench = GpuBench(gpu()).xid(1, 63, 79).read_at(2, gpu(lost=True, mig=True, recovery_action="node_reboot"))
    assert bench.reasons() == ["gpu_lost", "recovery_node_reboot", "xid_79", "xid_63", "mig_enabled"]


def test_a_driver_without_an_answer_withdraws_and_returns_nothing():
    for health in (HEALTHY, GpuBench(gpu()).xid(1, 79).health()):
        unanswered = with_unknown(health, "it hangs")
        assert (unanswered.state, unanswered.allocatable) == (State.UNKNOWN, health.allocatable)
        assert unanswered.reasons[0].key == "driver_silent"
        assert unanswered.reasons[1:] == health.reasons


def test_events_of_unknown_gpus_and_without_a_gpu_have_no_effect():
    bench = GpuBench(gpu()).xid(1, 79, uuid="GPU-9").xid(2, 79, uuid=None).xid(3, None)
    assert bench.health() == HEALTHY


XIDS = st.none() | st.sampled_from([13, 48, 63, 74, 79, 4242]) | st.integers(0, 2**64 - 1)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "uuid": st.none(),
        "memory_mib": st.none(),
        "mig": st.booleans(),
        "lost": st.booleans(),
        "fault": st.just("nvmlDeviceGetName: Unknown Error"),
        "recovery_action": st.sampled_from([None, "none", "gpu_reset", "drain_p2p", "action_9"]),
    },
)
ONE_READING = st.builds(lambda index, parts: gpu(index, **parts), st.integers(0, 2), PARTS)
STEPS = st.lists(
    st.tuples(
        st.floats(0, 1000),
        st.lists(st.builds(GpuEvent, st.sampled_from(["GPU-0", "GPU-1", None]), XIDS), max_size=3),
        st.none()
        | st.lists(st.builds(lambda i, parts: gpu(i, **parts), st.integers(0, 2), PARTS), max_size=4),
    ),
    max_size=8,
)


@given(steps=STEPS)
@example([(300.0, [GpuEvent("GPU-1", 13)], None)] * 3)
def test_every_gpu_recovers_from_any_events_and_readings(steps):
    bench = GpuBench(gpu(0), gpu(1))
    for wait, events, readings in steps:
        before = set(bench.judge.devices)
        bench.take(bench.now + wait, events=events, readings=readings)
        assert before <= set(bench.judge.devices)
        order = [(state.index, uuid) for uuid, state in bench.judge.devices.items()]
        assert order == sorted(order)
        for uuid in bench.judge.devices:
            health = bench.health(uuid)
            assert (health.state is State.HEALTHY and health.allocatable) or health.reasons
            assert len(bench.reasons(uuid)) == len(set(bench.reasons(uuid)))
    clean = [gpu(0), gpu(1), gpu(2)]
    bench.read_at(bench.now, *clean).read_at(bench.now + SETTINGS.xid_clear_s + 1, *clean)
    assert {reason for uuid in bench.judge.devices for reason in bench.reasons(uuid)} <= {"repeated_xid"}
    bench.read_at(bench.now + SETTINGS.xid_repeat_seconds, *clean)
    assert bench.healths() == [HEALTHY] * 3


@given(steps=STEPS)
def test_evidence_about_one_gpu_never_touches_another(steps):
    def other_only(readings):
        return None if readings is None else [gpu(0), *(r for r in readings if r.index != 0)]

    bench = GpuBench(gpu(0), gpu(1))
    for wait, events, readings in steps:
        others = [event for event in events if event.uuid != "GPU-0"]
        bench.take(bench.now + wait, events=others, readings=other_only(readings))
        assert bench.health("GPU-0") == HEALTHY


@given(steps=STEPS, ignored=st.integers(0, 200))
def test_an_ignored_xid_has_no_effect(steps, ignored):
    settings = msgspec.structs.replace(SETTINGS, ignore_xids=(ignored,))
    with_it, without = (GpuBench(gpu(0), gpu(1), settings=settings) for _ in range(2))
    for wait, events, readings in steps:
        now = with_it.now + wait
        with_it.take(now, events=[*events, GpuEvent("GPU-0", ignored)], readings=readings)
        without.take(now, events=[event for event in events if event.xid != ignored], readings=readings)
        assert with_it.judge.records() == without.judge.records()
        assert with_it.healths() == without.healths()
