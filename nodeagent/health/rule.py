"""A rule compares one value of a device with thresholds and decides when a fault starts and ends. Pure.

* A fault starts when the value has been at or beyond ``enter`` for ``enter_for_s``. It ends when the value has been
  at or within ``clear`` for ``clear_for_s``. Values in between change nothing, and neither does an unknown value.
* A ``clear`` that is looser than ``enter`` would toggle without end; the configuration refuses it.
* Every rule lets the device recover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from nodeagent.base.duration import duration
from nodeagent.facts.model import State
from nodeagent.measurements.sample import Source

YES_OR_NO = "when it occurs"
"""The unit of a rule without thresholds, and its text in tables."""


class Measured(NamedTuple):
    """One value of a device, NaN where there is no number. ``text`` is the value in words, ``limit`` the device's own
    limit in words.

    ``witnesses`` name the sources of the value. ``enough`` is false when too few events are behind it to start a
    fault. ``bad`` is set where the device's own limit decides instead of the thresholds of the rule. ``sentence``
    replaces the value and the limit in the text of the reason.
    """

    value: float
    text: str
    witnesses: frozenset[str] = frozenset()
    limit: str | None = None
    enough: bool = True
    bad: bool | None = None
    sentence: str | None = None


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

WARNING = State.HEALTHY
"""The state of a device whose only fault is a warning."""

Measure = Callable[[Any], Measured | None]
"""Reads a value from a ``NicView`` or a ``GpuView``. ``None``: the value is unknown."""


class Rule(msgspec.Struct, frozen=True):
    """``state`` is the state of a device with only this fault. With ``withdraws`` the fault makes the devices Unhealthy
    for the kubelet. ``meaning`` is the fault in words, and ``origin`` the source of the default thresholds.

    ``below``: the value is bad when it is less than ``enter``. ``counters``: the counters whose history over
    ``window_s`` the rule needs. ``limit`` and ``clears`` replace the thresholds in the tables.

    ``gap_s``: only time between two known values counts, and only if they are at most so far apart; ``None``: time
    counts by the clock. ``patient``: an unknown value pauses the time to enter instead of restarting it. ``follows``:
    the text of the reason follows the value. ``resets``: the first good value after a reset ends the fault.
    ``latched``: an event starts the fault; it ends ``clear_for_s`` after the last event. ``may_be_negative``: the
    thresholds may be less than 0.

    Rules of PFs. ``on_facts``: the value is a fact, and the rule also applies to a PF outside the gate that was up in
    this boot; with ``ungated`` it applies to every PF. ``by_losses``: the end of the fault depends on the number of
    lost carriers. ``decays``: the value decreases by time alone; it is the penalty, or the losses of the last day.
    ``source``: the value is as old as the last sample of this source, so a single sample is no duration.
    ``settles``: link training makes such errors, so its windows begin a settle time after the carrier returned.
    """

    key: str
    state: State
    measure: Measure
    meaning: str = ""
    origin: str = ""
    unit: str = YES_OR_NO
    enter: float = 1.0
    clear: float = 0.0
    enter_for_s: float = 0.0
    clear_for_s: float = 0.0
    window_s: float | None = None
    withdraws: bool = False
    enabled: bool = True
    below: bool = False
    counters: tuple[str, ...] = ()
    limit: str | None = None
    clears: str | None = None
    gap_s: float | None = None
    patient: bool = False
    follows: bool = False
    resets: bool = False
    latched: bool = False
    may_be_negative: bool = False
    on_facts: bool = False
    ungated: bool = False
    by_losses: bool = False
    decays: Literal["penalty", "losses"] | None = None
    settles: bool = False
    source: Source | None = None
    witnesses: frozenset[str] = frozenset()

    @property
    def has_threshold(self) -> bool:
        return self.unit != YES_OR_NO

    def bad(self, measured: Measured) -> bool:
        if measured.bad is not None:
            return measured.bad
        return measured.value < self.enter if self.below else measured.value >= self.enter

    def good(self, measured: Measured) -> bool:
        """This is not the opposite of ``bad``: values in between change nothing."""
        if measured.bad is not None:
            return not measured.bad
        within = measured.value >= self.clear if self.below else measured.value <= self.clear
        return within and not self.bad(measured)

    @property
    def looser(self) -> bool:
        """Whether the clear is looser than the enter."""
        return self.clear < self.enter if self.below else self.clear > self.enter


def gravity(state: State) -> int:
    return _GRAVITY.index(state)


def gravest(states: Iterable[State]) -> State:
    return max(states, key=_GRAVITY.index, default=State.HEALTHY)


def threshold(rule: Rule) -> str:
    """Return the threshold in words, such as ``≥ 10 per second``; of a rule without thresholds its unit."""
    if rule.limit is not None or not rule.has_threshold:
        return rule.limit or rule.unit
    return _bound("<" if rule.below else "≥", rule.enter, rule.unit)


def clears(rule: Rule) -> str:
    """Return in words what ends the fault."""
    if rule.clears is not None:
        return rule.clears
    end = "when it ends"
    if rule.has_threshold:
        end = _bound("≥" if rule.below else "≤", rule.clear, rule.unit)
    return f"{end}, for {duration(rule.clear_for_s)}" if rule.clear_for_s else end


def _bound(sign: str, value: float, unit: str) -> str:
    """Return one bound as people write it, such as ``≥ 50 % of the time`` or ``less than expected``."""
    if unit.endswith(" above the limit"):
        return _beside_the_limit(sign, value, unit.partition(" ")[0])
    if unit == "of expected" and value == 1:
        return "less than expected" if sign == "<" else "as expected"
    if unit in ("of expected", "of the time"):
        return f"{sign} {100 * value:g} % {unit}"
    if sign == "≤" and value == 0:
        return "none"
    return f"{sign} {value:g} {unit.removesuffix('s') if value == 1 else unit}"


def _beside_the_limit(sign: str, value: float, unit: str) -> str:
    if value == 0:
        return {"<": "below the limit", "≥": "at the limit or above", "≤": "at the limit or below"}[sign]
    side = "above" if value > 0 else "below"
    farther = (sign == "≥") == (value > 0)
    size = f"{abs(value):g} {unit}"
    if sign == "<":
        return f"{'less' if value > 0 else 'more'} than {size} {side} the limit"
    return f"{size} or {'more' if farther else 'less'} {side} the limit"
