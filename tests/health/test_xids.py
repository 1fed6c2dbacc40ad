"""When a GPU may be handed out: what condemns it, and that each of those has a way back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.xids import FATAL, IGNORE, WATCH, Rules, Severity, judge, severity, unknown, verdict
from nodeagent.host.gpu_driver import GpuEvent, GpuReading
from nodeagent.model import HEALTHY, State

RULES = Rules(clear_after_s=600, unreadable_after_s=30)


def gpu(index=0, **parts):
    known = {"minor": index, "name": "H100", "pci_address": f"0000:{index:02x}:00.0", "memory_mib": 81559}
    return GpuReading(**({"index": index, "uuid": f"GPU-{index}", "recovery_action": "none"} | known | parts))


class Case:
    """One line a moment: what was heard, and what is then said."""

    def __init__(self, *readings, rules=RULES):
        self.rules = rules
        self.latches = ()
        self.read(0, *readings)

    def read(self, now, *readings):
        self.latches = judge(self.latches, now, self.rules, readings=readings)
        return self

    def xid(self, now, *xids, uuid="GPU-0"):
        events = tuple(GpuEvent(uuid, xid) for xid in xids)
        self.latches = judge(self.latches, now, self.rules, events=events)
        return self

    def health(self, uuid="GPU-0"):
        (latch,) = (latch for latch in self.latches if latch.uuid == uuid)
        return verdict(latch, self.rules)

    def keys(self, uuid="GPU-0"):
        return [reason.key for reason in self.health(uuid).reasons]


def test_the_table_is_closed_and_no_xid_is_in_two_classes():
    assert not set(FATAL) & set(WATCH)
    assert not (set(FATAL) | set(WATCH)) & IGNORE


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94, 154])
def test_an_applications_fault_says_nothing_about_its_gpu(xid):
    assert Case(gpu()).xid(1, xid).health() == HEALTHY


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 109, 119, 120])
def test_a_fatal_xid_condemns_its_gpu_and_no_other(xid):
    case = Case(gpu(0), gpu(1)).xid(1, xid)
    assert case.health().state is State.UNHEALTHY
    assert not case.health().allocatable
    assert case.keys() == [f"xid_{xid}"]
    assert case.health("GPU-1") == HEALTHY


@pytest.mark.parametrize("xid", [63, 92, 145, 4242])
def test_a_watched_or_unknown_xid_is_shown_and_condemns_nobody(xid):
    health = Case(gpu()).xid(1, xid).health()
    assert (health.state, health.allocatable) == (State.DEGRADED, True)


def test_a_configuration_overrides_the_table_and_fatal_wins():
    rules = Rules(fatal=frozenset({13, 63}), ignore=frozenset({79, 63, 4242}))
    assert severity(13, rules) is Severity.FATAL
    assert severity(63, rules) is Severity.FATAL
    assert severity(79, rules) is Severity.IGNORE
    assert severity(4242, rules) is Severity.IGNORE


def test_a_reset_that_was_seen_clears_at_once():
    case = Case(gpu()).xid(1, 48).read(2, gpu(recovery_action="gpu_reset"))
    assert case.keys() == ["recovery_gpu_reset", "xid_48"]
    assert case.read(3, gpu()).health() == HEALTHY


def test_a_reset_counts_also_where_the_driver_only_refused_with_reset_required():
    case = Case(gpu(recovery_action=None)).xid(1, 48)
    case.read(2, gpu(recovery_action="gpu_reset", fault="nvmlDeviceGetName: GPU requires restart"))
    assert case.read(3, gpu(recovery_action=None)).health() == HEALTHY


def test_an_xid_after_the_reset_is_not_cleared_with_it():
    case = Case(gpu()).xid(1, 48).read(2, gpu(recovery_action="gpu_reset")).xid(3, 79).read(4, gpu())
    assert case.keys() == ["xid_79"]


@pytest.mark.parametrize("action", ["none", None])
def test_without_a_reset_an_xid_clears_after_a_clean_time(action):
    case = Case(gpu(recovery_action=action)).xid(1, 79)
    assert case.read(600, gpu(recovery_action=action)).keys() == ["xid_79"]
    assert case.read(601, gpu(recovery_action=action)).health() == HEALTHY


def test_the_same_xid_again_counts_again_and_changes_no_word():
    case = Case(gpu()).xid(1, 79)
    once = case.health()
    assert case.xid(500, 79).health() == once
    assert case.read(601, gpu()).keys() == ["xid_79"]
    assert case.read(1100, gpu()).health() == HEALTHY


def test_while_an_action_is_asked_for_no_time_clears():
    case = Case(gpu()).xid(1, 79).read(5000, gpu(recovery_action="node_reboot"))
    assert case.read(9999, gpu(recovery_action="node_reboot")).keys() == ["recovery_node_reboot", "xid_79"]


def test_an_unreadable_gpu_is_no_clean_time():
    case = Case(gpu()).xid(1, 79).read(601, gpu(fault="x"))
    assert case.keys() == ["xid_79", "gpu_unreadable"]


@pytest.mark.parametrize(
    "readings",
    [
        (gpu(0), gpu(1, lost=True)),
        (gpu(0), GpuReading(1, lost=True, fault="nvmlDeviceGetHandleByIndex: GPU is lost")),
        (gpu(0),),
    ],
)
def test_a_lost_gpu_keeps_its_facts_and_comes_back(readings):
    case = Case(gpu(0), gpu(1))
    case.read(1, *readings)
    assert case.keys("GPU-1") == ["gpu_lost"]
    assert not case.health("GPU-1").allocatable
    assert case.health("GPU-0") == HEALTHY
    assert case.latches[1].reading.memory_mib == 81559
    assert case.read(2, gpu(0), gpu(1)).health("GPU-1") == HEALTHY


def test_a_gpu_that_others_moved_into_the_place_of_is_not_taken_for_them():
    case = Case(gpu(0), gpu(1)).read(1, replace(gpu(1), index=0), GpuReading(1, fault="no"))
    assert case.keys("GPU-0") == ["gpu_lost"]
    assert case.health("GPU-1") == HEALTHY


def test_a_gpu_that_answers_with_errors_is_first_in_doubt_then_condemned_then_back():
    case = Case(gpu(0)).read(10, GpuReading(0, fault="nvmlDeviceGetHandleByIndex: Unknown Error"))
    assert (case.health().state, case.health().allocatable) == (State.UNKNOWN, True)
    case.read(39, gpu(fault="x"))
    assert case.health().allocatable
    case.read(40, gpu(fault="x"))
    assert (case.health().state, case.health().allocatable) == (State.UNHEALTHY, False)
    assert case.keys() == ["gpu_unreadable"]
    assert case.read(41, gpu()).health() == HEALTHY


def test_mig_is_stated_plainly_and_is_no_fault():
    health = Case(gpu(mig=True)).health()
    assert (health.state, health.allocatable) == (State.HEALTHY, False)
    assert [reason.key for reason in health.reasons] == ["mig_enabled"]
    assert Case(gpu(mig=True)).read(1, gpu()).health() == HEALTHY


def test_the_gravest_reason_comes_first():
    case = Case(gpu()).xid(1, 63, 79).read(2, gpu(lost=True, mig=True, recovery_action="node_reboot"))
    assert case.keys() == ["gpu_lost", "recovery_node_reboot", "xid_79", "mig_enabled", "xid_63"]


def test_a_silent_driver_changes_no_allocatability():
    for health in (HEALTHY, Case(gpu()).xid(1, 79).health()):
        silent = unknown(health, "it hangs")
        assert (silent.state, silent.allocatable) == (State.UNKNOWN, health.allocatable)
        assert silent.reasons[0].key == "driver_silent"
        assert silent.reasons[1:] == health.reasons


def test_events_that_name_nobody_known_and_no_gpu_condemn_nobody():
    case = Case(gpu()).xid(1, 79, uuid="GPU-9").xid(2, 79, uuid=None).xid(3, None)
    assert case.health() == HEALTHY


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
def test_from_whatever_was_heard_every_gpu_recovers(steps):
    latches, now = judge((), 0.0, RULES, readings=[gpu(0), gpu(1)]), 0.0
    for wait, events, readings in steps:
        now += wait
        before = {latch.uuid for latch in latches}
        latches = judge(latches, now, RULES, events=events, readings=readings)
        assert before <= {latch.uuid for latch in latches}
        assert latches == tuple(sorted(latches, key=lambda latch: (latch.reading.index, latch.uuid)))
        for latch in latches:
            health = verdict(latch, RULES)
            assert (health.state is State.HEALTHY and health.allocatable) or health.reasons
            keys = [reason.key for reason in health.reasons]
            assert len(keys) == len(set(keys))
    clean = [gpu(0), gpu(1), gpu(2)]
    latches = judge(latches, now, RULES, readings=clean)
    latches = judge(latches, now + RULES.clear_after_s + 1, RULES, readings=clean)
    assert [verdict(latch, RULES) for latch in latches] == [HEALTHY] * 3


@given(steps=STEPS)
def test_evidence_about_one_gpu_never_touches_another(steps):
    def other_only(readings):
        return None if readings is None else [gpu(0), *(one for one in readings if one.index != 0)]

    latches, now = judge((), 0.0, RULES, readings=[gpu(0), gpu(1)]), 0.0
    for wait, events, readings in steps:
        now += wait
        others = [event for event in events if event.uuid != "GPU-0"]
        latches = judge(latches, now, RULES, events=others, readings=other_only(readings))
        (mine,) = (latch for latch in latches if latch.uuid == "GPU-0")
        assert verdict(mine, RULES) == HEALTHY


@given(steps=STEPS, ignored=st.integers(0, 200))
def test_an_ignored_xid_is_as_if_it_had_not_been(steps, ignored):
    rules = replace(RULES, ignore=frozenset({ignored}))
    with_it = without = judge((), 0.0, rules, readings=[gpu(0), gpu(1)])
    now = 0.0
    for wait, events, readings in steps:
        now += wait
        with_it = judge(with_it, now, rules, events=[*events, GpuEvent("GPU-0", ignored)], readings=readings)
        without = judge(
            without, now, rules, events=[one for one in events if one.xid != ignored], readings=readings
        )
        assert with_it == without
