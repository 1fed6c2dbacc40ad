"""When a port asks: after changes, seldom otherwise, and at most three times without an answer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from nodeagent.infiniband.asking import ASK_TRIES, AskingPace, IbPortState, PeerState, PortAsking
from tests.support.examples import examples

PACE = AskingPace()
ACTIVE = IbPortState(4, 5, 7, 1)
INIT = IbPortState(2, 5, 0, 0)
DOWN = IbPortState(1, 2, 0, 0)
DAY = 86_400.0


def unresponsive(state: IbPortState = ACTIVE) -> tuple[PortAsking, float]:
    """A port whose three questions had no answer, and the time of the third."""
    asking, now = PortAsking(PACE), 100.0
    asking.observe(state, now)
    for _ in range(ASK_TRIES):
        assert asking.due_at is not None
        now = max(now, asking.due_at)
        asking.asked(now, 0.5, answered=False)
    return asking, now


def test_a_port_that_is_up_asks_at_once_and_again_after_five_to_ten_minutes() -> None:
    asking = PortAsking(PACE)
    asking.observe(ACTIVE, 100.0)
    assert asking.due(100.0)
    asking.asked(100.0, 0.0, answered=True)
    assert asking.due_at == 400.0
    asking.asked(400.0, 1.0, answered=True)
    assert asking.due_at == 1000.0


@pytest.mark.parametrize("state", [DOWN, IbPortState(1, 3), IbPortState(4, 6, 7), IbPortState(5, 5, 7)])
def test_a_port_whose_link_is_not_up_asks_nothing(state: IbPortState) -> None:
    asking = PortAsking(PACE)
    asking.observe(state, 100.0)
    assert not asking.due(10 * DAY)
    assert asking.peer is PeerState.DOWN


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    asking = PortAsking(PACE)
    asking.observe(IbPortState(), 100.0)
    assert asking.due_at is None
    asking.observe(ACTIVE, 100.0)
    asking.asked(100.0, 0.0, answered=True)
    asking.observe(IbPortState(), 110.0)
    asking.observe(ACTIVE, 120.0)
    assert (asking.peer, asking.due_at) == (PeerState.ANSWERED, 400.0)
    asking.remove()
    assert (asking.peer, asking.due_at) == (PeerState.DOWN, None)
    asking.observe(ACTIVE, 130.0)
    assert asking.due(130.0)


def test_a_port_without_a_subnet_manager_asks_too() -> None:
    asking = PortAsking(PACE)
    asking.observe(INIT, 100.0)
    assert asking.due(100.0)


def test_after_three_questions_without_an_answer_a_port_is_left_alone_for_a_day() -> None:
    asking, now = unresponsive()
    assert asking.peer is PeerState.UNRESPONSIVE
    assert asking.due_at is not None
    assert asking.due_at - now == pytest.approx(1.05 * DAY), "the ports of a hall do not ask together"
    asking.asked(asking.due_at, 0.0, answered=False)
    assert asking.due_at >= now + 2 * DAY


def test_a_port_whose_device_cannot_be_used_is_tried_again_after_minutes_or_when_the_device_returns() -> None:
    asking = PortAsking(PACE)
    asking.postpone(50.0, 0.0)
    asking.hasten(50.0)
    assert asking.due_at is None, "the link is down"
    asking.observe(ACTIVE, 100.0)
    asking.postpone(100.0, 0.5)
    assert asking.due_at == 550.0
    asking.hasten(200.0)
    assert asking.due(200.0)
    asking.hasten(300.0)
    assert asking.due_at == 200.0


@pytest.mark.parametrize("change", [IbPortState(4, 5, 8, 1), IbPortState(3, 5, 7, 1)])
def test_an_unresponsive_peer_is_asked_again_after_a_change_of_state_or_lid(change: IbPortState) -> None:
    asking, now = unresponsive()
    asking.observe(ACTIVE, now + 1000)
    assert not asking.due(now + 1000)
    asking.observe(change, now + 1000)
    assert asking.due(now + 1000)


@pytest.mark.parametrize("asked", range(1, ASK_TRIES + 1))
def test_an_agent_that_starts_again_asks_only_what_is_left_of_three_questions(asked: int) -> None:
    asking, now = PortAsking(PACE), 100.0
    asking.observe(ACTIVE, now)
    questions = 0
    for _ in range(5 * ASK_TRIES):
        if asking.due_at is None or asking.due_at > DAY:
            break
        now = max(now, asking.due_at)
        asking.asked(now, 0.5, answered=False)
        questions += 1
        if questions == asked:
            asking = PortAsking(PACE, asking.unanswered())
            asking.observe(ACTIVE, now)
    assert questions == ASK_TRIES
    assert asking.peer is PeerState.UNRESPONSIVE
    assert asking.due_at is not None
    assert asking.due_at >= DAY


@pytest.mark.parametrize("meanwhile", [IbPortState(4, 5, 8, 1), INIT])
def test_after_a_change_during_a_restart_a_port_asks_again(meanwhile: IbPortState) -> None:
    asking, now = unresponsive()
    again = PortAsking(PACE, asking.unanswered())
    again.observe(meanwhile, now)
    assert again.due(now)
    again = PortAsking(PACE, asking.unanswered())
    again.observe(DOWN, now)
    again.observe(ACTIVE, now)
    assert again.due(now)


def test_a_stored_time_far_away_delays_a_question_by_little_more_than_a_day() -> None:
    asking, now = unresponsive()
    stored = asking.unanswered()
    assert stored is not None
    again = PortAsking(PACE, structs.replace(stored, due_at=1e12))
    again.observe(ACTIVE, now)
    assert again.due_at is not None
    assert again.due_at <= now + 1.1 * DAY


def test_another_subnet_manager_alone_is_no_reason_to_ask() -> None:
    asking, now = unresponsive()
    asking.observe(IbPortState(4, 5, 7, 99), now + 1000)
    assert not asking.due(now + 1000)


def test_a_link_that_flaps_at_an_unresponsive_peer_raises_one_trap_a_minute_at_most() -> None:
    asking, now = unresponsive()
    for second in range(1, 60):
        asking.observe(DOWN, now + second - 0.5)
        asking.observe(ACTIVE, now + second)
        assert not asking.due(now + second)
    asking.observe(DOWN, now + 60)
    asking.observe(ACTIVE, now + 60)
    assert asking.due(now + 60)


class Port(RuleBasedStateMachine):
    """Any order of states, time and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = PortAsking(PACE)
        self.now = 0.0
        self.state = IbPortState()
        self.unanswered = 0
        self.asked_at: list[float] = []

    @rule(state=st.sampled_from([ACTIVE, INIT, DOWN, IbPortState(4, 5, 8, 1)]))
    def change(self, state: IbPortState) -> None:
        if state != self.state and state.up:
            self.unanswered = 0
        self.state = state
        self.asking.observe(state, self.now)

    @rule(seconds=st.floats(0.0, 200_000.0), answered=st.booleans(), spread=st.floats(0.0, 1.0))
    def wait_and_ask(self, seconds: float, answered: bool, spread: float) -> None:
        self.now += seconds
        if self.asking.due(self.now):
            if self.unanswered >= ASK_TRIES:  # only a day allows one more
                assert self.now - self.asked_at[-1] >= DAY
            self.asking.asked(self.now, spread, answered=answered)
            self.unanswered = 0 if answered else self.unanswered + 1
            self.asked_at.append(self.now)

    @invariant()
    def a_question_is_due_exactly_while_the_link_is_up(self) -> None:
        assert (self.asking.due_at is not None) == self.state.up

    @invariant()
    def questions_keep_their_distance(self) -> None:
        assert all(after - before >= PACE.gap_s for before, after in pairwise(self.asked_at))


TestPort = Port.TestCase
TestPort.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
