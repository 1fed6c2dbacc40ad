"""A device under rules, a PF or a GPU: its holds, its active faults, its state and the changes of that state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from nodeagent.facts.model import State
from nodeagent.health.hold import Hold
from nodeagent.health.rule import Measured, Rule

_GRAVITY = (
    State.HEALTHY,
    State.UNUSED,
    State.UNKNOWN,
    State.MISCABLED,
    State.DEGRADED,
    State.DOWN,
    State.UNHEALTHY,
)
"""A later state is graver."""


def gravity(state: State) -> int:
    return _GRAVITY.index(state)


def gravest(states: Iterable[State]) -> State:
    return max(states, key=_GRAVITY.index, default=State.HEALTHY)


class ActiveFault(NamedTuple):
    rule: Rule
    hold: Hold


class DeviceFigures(msgspec.Struct, frozen=True):
    """The figures of one PF or GPU for metrics. ``since`` is CLOCK_BOOTTIME. ``transitions`` counts changes of the
    state by (from, to). ``values`` are the last values of the rules, in their units, and ``expected_speed_mbps``.
    ``implausible`` counts dropped values of counters."""

    since: float | None
    penalty: float | None = None
    transitions: Mapping[tuple[str, str], int] = {}
    values: Mapping[str, float] = {}
    implausible: int | None = None


class JudgedDevice:
    """The state that a PF and a GPU have in common."""

    kind: Literal["nic", "gpu"]
    watched = False
    """Whether a missing link is a fault: the device has passed the gate."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self.values: dict[str, float] = {}
        """The last value of each rule, in its unit."""
        self.state = State.UNKNOWN
        self.changed_at: float | None = None
        """When the state last changed."""
        self.transitions: Counter[tuple[str, str]] = Counter()

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules of this device, the gravest first."""
        raise NotImplementedError

    def measure_all(self) -> Iterator[tuple[Rule, Measured | None]]:
        """Every rule to explain, with its present value."""
        raise NotImplementedError

    def step_rule(self, rule: Rule, measured: Measured | None, now: float, *, reset: bool = False) -> None:
        """Apply one value of one rule."""
        hold = self.holds.get(rule.key)
        if hold is None:
            if measured is None:
                return
            hold = self.holds[rule.key] = Hold()
        hold.step(rule, measured, now, reset=reset)

    def is_active(self, key: str) -> bool:
        hold = self.holds.get(key)
        return hold is not None and hold.active

    @property
    def active(self) -> list[ActiveFault]:
        """The active faults, the gravest first."""
        if not [hold for hold in self.holds.values() if hold.active]:
            return []  # the usual case
        return [ActiveFault(rule, self.holds[rule.key]) for rule in self.rules if self.is_active(rule.key)]

    @property
    def withdraws(self) -> bool:
        return any(fault.rule.withdraws for fault in self.active)

    @property
    def over(self) -> bool:
        """Whether the faults that withdraw the device have ended and only wait for their time to clear."""
        return all(fault.hold.good_since is not None for fault in self.active if fault.rule.withdraws)

    def set_state(self, state: State, now: float) -> None:
        if self.changed_at is not None and state is self.state:
            return
        if self.changed_at is not None:
            self.transitions[self.state.value, state.value] += 1
        self.state, self.changed_at = state, now
