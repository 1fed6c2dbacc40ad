"""When a port asks its peer, and how often. Pure.

* A port asks when its link is up: at first, after each change of its state or LID, and otherwise every five to ten
  minutes. The spread keeps the ports of ten thousand nodes apart.
* A question without an answer is repeated twice. Then the port is left alone until its state or LID changes, or a day
  has passed: a switch with a management key (M_Key) does not answer, counts each question as a violation and sends a
  trap to its subnet manager.
* A port whose state keeps changing asks at most once in ``gap_s``, or in
  ``unanswered_gap_s`` while its peer does not answer.
* Questions without an answer count across restarts of the agent, as long as state and LID of the port stay the same.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

ASK_TRIES = 3
_UP_STATES = (2, 3, 4)
_LINK_UP = 5


class AskingPace(msgspec.Struct, frozen=True):
    """Times in seconds. ``try_again_s`` are the waits after the first and the second question without an answer: a
    subnet manager needs some 10 s to sweep after a change."""

    again_s: float = 300.0
    """The least time between two questions to a peer that answers; with its spread it is up to twice as long."""
    try_again_s: tuple[float, float] = (2.0, 15.0)
    left_alone_s: float = 86_400.0
    gap_s: float = 2.0
    unanswered_gap_s: float = 60.0


class IbPortState(msgspec.Struct, frozen=True):
    """A port as sysfs shows it; ``None`` is unknown. ``state`` is 1 Down, 2 Init, 3 Armed, 4 Active; ``phys_state``
    2 Polling, 3 Disabled, 5 LinkUp (IBTA volume 1, 14.2.5.6)."""

    state: int | None = None
    phys_state: int | None = None
    lid: int | None = None
    sm_lid: int | None = None

    @property
    def up(self) -> bool:
        """Packets of subnet management pass. A port without a subnet manager is in Init, and asks too."""
        return self.state in _UP_STATES and self.phys_state in (None, _LINK_UP)


class UnansweredQuestions(msgspec.Struct, frozen=True):
    """A port whose peer has not answered: state and LID, how many questions (``ASK_TRIES``: it is left alone), and when
    the next one is due."""

    state: int | None
    lid: int | None
    questions: int
    due_at: float


class PeerState(StrEnum):
    """The peer as its answers show it."""

    DOWN = "down"
    UNASKED = "unasked"
    ANSWERED = "answered"
    UNRESPONSIVE = "unresponsive"
    """No answer to all tries"""


class PortAsking:
    """One port. ``now`` is in seconds of any monotonic clock; ``spread`` is a random number from 0 to 1."""

    def __init__(self, pace: AskingPace, before: UnansweredQuestions | None = None) -> None:
        """``before``: the questions of an earlier agent without an answer."""
        self._before = before
        self.peer = PeerState.DOWN
        self.due_at: float | None = None
        """When the next question is due; ``None`` while the link is down."""
        self._pace = pace
        self._state: IbPortState | None = None
        self._unanswered = 0
        self._next_change_at = float("-inf")

    def observe(self, state: IbPortState, now: float) -> None:
        """Take the port's state. A change of state or LID makes a question due; an unknown state changes nothing."""
        if state.state is None:
            return
        before, self._state = self._state, state
        if not state.up:
            self.peer, self.due_at, self._unanswered, self._before = PeerState.DOWN, None, 0, None
        elif before is None or not before.up or (before.state, before.lid) != (state.state, state.lid):
            self._unanswered = 0
            if self.peer is PeerState.DOWN:
                self.peer = PeerState.UNASKED
            self.due_at = max(now, self._next_change_at)
            if before is None:
                self._resume(state, now)

    def _resume(self, state: IbPortState, now: float) -> None:
        """Continue the questions of an earlier agent, if the port is as it was."""
        past = self._before
        if past is None or (past.state, past.lid) != (state.state, state.lid) or past.questions < 1:
            return
        left_alone = past.questions >= ASK_TRIES
        self._unanswered = min(past.questions, ASK_TRIES - 1)
        if left_alone:
            self.peer = PeerState.UNRESPONSIVE
        self.due_at = max(now, min(past.due_at, now + self._pace.left_alone_s * 1.1))

    def unanswered(self) -> UnansweredQuestions | None:
        """The questions without an answer, for the next agent; ``None`` if there are none."""
        if self._state is None or self.due_at is None or not self._unanswered:
            return None
        questions = ASK_TRIES if self.peer is PeerState.UNRESPONSIVE else self._unanswered
        return UnansweredQuestions(self._state.state, self._state.lid, questions, self.due_at)

    def remove(self) -> None:
        """The port is gone."""
        self.peer, self.due_at, self._unanswered, self._state = PeerState.DOWN, None, 0, None
        self._before = None

    def due(self, now: float) -> bool:
        return self.due_at is not None and self.due_at <= now

    def postpone(self, now: float, spread: float) -> None:
        """No question was sent, because the port's device cannot be used."""
        if self.due_at is not None:
            self.due_at = now + self._pace.again_s * (1 + spread)

    def hasten(self, now: float) -> None:
        """The port's device can be used again."""
        if self.due_at is not None:
            self.due_at = min(self.due_at, now)

    def asked(self, now: float, spread: float, *, answered: bool) -> None:
        """Take the result of a question."""
        pace = self._pace
        self._next_change_at = now + (pace.gap_s if answered else pace.unanswered_gap_s)
        if self.due_at is None:  # the link went down meanwhile
            return
        if answered:
            self.peer, self._unanswered = PeerState.ANSWERED, 0
            self.due_at = now + pace.again_s * (1 + spread)
            return
        self._unanswered += 1
        if self._unanswered < ASK_TRIES:
            self.due_at = now + pace.try_again_s[self._unanswered - 1]
        else:
            # After a day there is one question, not three.
            self.peer, self._unanswered = PeerState.UNRESPONSIVE, ASK_TRIES - 1
            self.due_at = now + pace.left_alone_s * (1 + spread / 10)
