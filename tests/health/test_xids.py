"""The faults of GPUs by events and readings, and that a GPU recovers from each."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.gpu_judge import unknown
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.xids import FATAL, IGNORE, WATCH, Severity, severity
from nodeagent.host.gpu_driver import GpuEvent, GpuReading
from nodeagent.model import HEALTHY, State
from tests.support.judged_gpus import GpuBench, gpu

SETTINGS = GpuSettings(xid_clear_seconds=600)


def test_the_table_is_closed_and_no_xid_is_in_two_classes():
    assert not set(FATAL) & set(WATCH)
    assert not (set(FATAL) | set(WATCH)) & IGNORE


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94, 154])
def test_an_applications_fault_says_nothing_about_its_gpu(xid):
    assert GpuBench(gpu()).xid(1, xid).health() == HEALTHY


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 109, 119, 120])
def test_a_fatal_xid_condemns_its_gpu_and_no_other(xid):
    bench = GpuBench(gpu(0), gpu(1)).xid(1, xid)
    assert bench.health().state is State.UNHEALTHY
    assert not bench.health().allocatable
    assert bench.reasons() == [f"xid_{xid}"]
    assert bench.health("GPU-1") == HEALTHY


@pytest.mark.parametrize("xid", [63, 92, 145, 4242])
def test_a_watched_or_unknown_xid_is_shown_and_condemns_nobody(xid):
    health = GpuBench(gpu()).xid(1, xid).health()
    assert (health.state, health.allocatable) == (State.DEGRADED, True)


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


def test_a_reset_that_was_seen_clears_at_once():
    bench = GpuBench(gpu()).xid(1, 48).read_at(2, gpu(recovery_action="gpu_reset"))
    assert bench.reasons() == ["recovery_gpu_reset", "xid_48"]
    assert bench.read_at(3, gpu()).health() == HEALTHY


def test_a_reset_counts_also_where_the_driver_only_refused_with_reset_required():
    bench = GpuBench(gpu(recovery_action=None)).xid(1, 48)
    bench.read_at(2, gpu(recovery_action="gpu_reset", fault="nvmlDeviceGetName: GPU requires restart"))
    assert bench.read_at(3, gpu(recovery_action=None)).health() == HEALTHY


def test_an_xid_after_the_reset_is_not_cleared_with_it():
    bench = (
        GpuBench(gpu()).xid(1, 48).read_at(2, gpu(recovery_action="gpu_reset")).xid(3, 79).read_at(4, gpu())
    )
    assert bench.reasons() == ["xid_79"]


@pytest.mark.parametrize("action", ["none", None])
def test_without_a_reset_an_xid_clears_after_a_clean_time(action):
    bench = GpuBench(gpu(recovery_action=action)).xid(1, 79)
    assert bench.read_at(600, gpu(recovery_action=action)).reasons() == ["xid_79"]
    assert bench.read_at(601, gpu(recovery_action=action)).health() == HEALTHY


def test_the_same_xid_again_counts_again_and_changes_no_word():
    bench = GpuBench(gpu()).xid(1, 79)
    once = bench.health()
    assert bench.xid(500, 79).health() == once
    assert bench.read_at(601, gpu()).reasons() == ["xid_79"]
    assert bench.read_at(1100, gpu()).health() == HEALTHY


def test_while_an_action_is_asked_for_no_time_clears():
    bench = GpuBench(gpu()).xid(1, 79).read_at(5000, gpu(recovery_action="node_reboot"))
    assert bench.read_at(9999, gpu(recovery_action="node_reboot")).reasons() == [
        "recovery_node_reboot",
        "xid_79",
    ]


def test_an_unreadable_gpu_is_no_clean_time():
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
def test_a_lost_gpu_keeps_its_facts_and_comes_back(readings):
    bench = GpuBench(gpu(0), gpu(1))
    bench.read_at(1, *readings)
    assert bench.reasons("GPU-1") == ["gpu_lost"]
    assert not bench.health("GPU-1").allocatable
    assert bench.health("GPU-0") == HEALTHY
    assert bench.state("GPU-1").reading.memory_mib == 81559
    assert bench.read_at(2, gpu(0), gpu(1)).health("GPU-1") == HEALTHY


def test_a_gpu_that_others_moved_into_the_place_of_is_not_taken_for_them():
    bench = GpuBench(gpu(0), gpu(1)).read_at(1, replace(gpu(1), index=0), GpuReading(1, fault="no"))
    assert bench.reasons("GPU-0") == ["gpu_lost"]
    assert bench.health("GPU-1") == HEALTHY


def test_a_gpu_that_answers_with_errors_is_first_in_doubt_then_condemned_then_back():
    bench = GpuBench(gpu(0)).read_at(10, GpuReading(0, fault="nvmlDeviceGetHandleByIndex: Unknown Error"))
    assert (bench.health().state, bench.health().allocatable) == (State.UNKNOWN, True)
    bench.read_at(39, gpu(fault="x"))
    assert bench.health().allocatable
    bench.read_at(40, gpu(fault="x"))
    assert (bench.health().state, bench.health().allocatable) == (State.UNHEALTHY, False)
    assert bench.reasons() == ["gpu_unreadable"]
    assert bench.read_at(41, gpu()).health() == HEALTHY


def test_mig_is_stated_plainly_and_is_no_fault():
    health = GpuBench(gpu(mig=True)).health()
    assert (health.state, health.allocatable) == (State.HEALTHY, False)
    assert [reason.key for reason in health.reasons] == ["mig_enabled"]
    assert GpuBench(gpu(mig=True)).read_at(1, gpu()).health() == HEALTHY


def test_the_gravest_reason_comes_first():
    bench = GpuBench(gpu()).xid(1, 63, 79).read_at(2, gpu(lost=True, mig=True, recovery_action="node_reboot"))
    assert bench.reasons() == ["gpu_lost", "recovery_node_reboot", "xid_79", "mig_enabled", "xid_63"]


def test_a_silent_driver_changes_no_allocatability():
    for health in (HEALTHY, GpuBench(gpu()).xid(1, 79).health()):
        silent = unknown(health, "it hangs")
        assert (silent.state, silent.allocatable) == (State.UNKNOWN, health.allocatable)
        assert silent.reasons[0].key == "driver_silent"
        assert silent.reasons[1:] == health.reasons


def test_events_that_name_nobody_known_and_no_gpu_condemn_nobody():
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
def test_every_gpu_recovers_from_any_events_and_readings(steps):
    bench = GpuBench(gpu(0), gpu(1))
    for wait, events, readings in steps:
        before = set(bench.judge.gpus)
        bench.take(bench.now + wait, events=events, readings=readings)
        assert before <= set(bench.judge.gpus)
        order = [(state.index, uuid) for uuid, state in bench.judge.gpus.items()]
        assert order == sorted(order)
        for uuid in bench.judge.gpus:
            health = bench.health(uuid)
            assert (health.state is State.HEALTHY and health.allocatable) or health.reasons
            assert len(bench.reasons(uuid)) == len(set(bench.reasons(uuid)))
    clean = [gpu(0), gpu(1), gpu(2)]
    bench.read_at(bench.now, *clean).read_at(bench.now + SETTINGS.xid_clear_s + 1, *clean)
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
