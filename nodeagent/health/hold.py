"""Hysteresis and damping: the state of one rule on one device, and the penalty of a flapping link. Pure.

A value must be bad or good for some time before it starts or ends a fault; an unknown value does neither. Values
between ``enter`` and ``clear`` change nothing, so a value that swings around a threshold toggles at most once
for each hold time.
"""

from __future__ import annotations

import math

import msgspec

from nodeagent.health.rule import Measured, Rule

LOSS_POINTS = 1000.0
_DOUBLINGS_MAX = 64.0
"""More points than any link can reach."""
_BEYOND_S = 0.001
"""Exactly at the moment of decay, rounding could give either answer."""
LONGEST_S = 3600.0
"""The longest damping of a link after its last loss (RFC 2439's maximum hold-down)."""


class Hold(msgspec.Struct):
    """One rule on one device.

    ``since``: while the fault is active, when it started; before, since when the value is bad. ``good_since``: since
    when the value of an active fault is good. ``text``: the text of the reason, constant as long as the fault is.
    ``read_at`` and ``paused`` serve rules with ``gap_s``: the last known value, and whether it was followed by an
    unknown one.
    """

    active: bool = False
    since: float | None = None
    good_since: float | None = None
    text: str = ""
    read_at: float | None = None
    paused: bool = False

    def step(self, rule: Rule, measured: Measured | None, now: float, *, reset: bool = False) -> None:
        """Take one value. ``reset``: the device was reset since the last value."""
        if measured is None:
            self._take_unknown(rule, reset=reset)
            return
        if rule.gap_s is not None:
            self._skip_gap(rule.gap_s, now)
        if self.active:
            self._leave(rule, measured, now, reset=reset)
        else:
            self._enter(rule, measured, now)

    def _take_unknown(self, rule: Rule, *, reset: bool) -> None:
        if rule.latched:
            return
        if reset and rule.resets:
            self.end()
        elif self.active or not rule.patient:
            self.good_since = None
            self.since = self.since if self.active else None
        else:
            self.paused = True

    def _skip_gap(self, longest_s: float, now: float) -> None:
        """Move the start of the running time forward over a gap that does not count."""
        if self.read_at is not None:
            gap = now - self.read_at
            if self.paused or not 0 <= gap <= longest_s:
                if self.good_since is not None:
                    self.good_since += gap
                elif self.since is not None and not self.active:
                    self.since += gap
        self.read_at, self.paused = now, False

    def _enter(self, rule: Rule, measured: Measured, now: float) -> None:
        if not (measured.enough and rule.bad(measured)):
            self.since = None
            return
        if self.since is None:
            self.since = now
        if now >= self.since + rule.enter_for_s:
            self.active, self.since, self.good_since = True, now, None
            self.text = _sentence(rule, measured)

    def _leave(self, rule: Rule, measured: Measured, now: float, *, reset: bool) -> None:
        if rule.latched:
            self._step_latched(rule, measured, now)
            return
        if not rule.good(measured):
            self.good_since = None
            if rule.follows:
                self.text = _sentence(rule, measured)
            return
        if self.good_since is None:
            self.good_since = now
        if now >= self.good_since + rule.clear_for_s or (reset and rule.resets):
            self.end()

    def _step_latched(self, rule: Rule, measured: Measured, now: float) -> None:
        if rule.bad(measured):
            self.since = now
        elif self.since is None or now >= self.since + rule.clear_for_s:
            self.end()

    def end(self) -> None:
        """End the fault."""
        self.active, self.since, self.good_since, self.text = False, None, None, ""

    def interrupt(self) -> None:
        """Restart the time to clear: the value was bad in between."""
        self.good_since = None

    def due(self, rule: Rule) -> float | None:
        """When the fault starts or ends if the value stays as it is."""
        if self.active:
            start = self.since if rule.latched else self.good_since
            return None if start is None else start + rule.clear_for_s
        return None if self.since is None else self.since + rule.enter_for_s


def _sentence(rule: Rule, measured: Measured) -> str:
    if measured.sentence is not None:
        return measured.sentence
    limit = measured.limit or (f"{rule.enter:g} {rule.unit}" if rule.has_threshold else None)
    return measured.text if limit is None else f"{measured.text}, limit {limit}"


def ceiling(reuse: float, half_life_s: float) -> float:
    """Return the most points that decay to ``reuse`` within ``LONGEST_S``."""
    return reuse * math.exp2(min(LONGEST_S / half_life_s, _DOUBLINGS_MAX))


class Penalty(msgspec.Struct):
    """RFC 2439's figure of merit: each loss adds ``LOSS_POINTS``, and the points halve every half-life."""

    points: float = 0.0
    at: float = 0.0

    def now(self, now: float, half_life_s: float) -> float:
        return self.points * math.exp2(-max(0.0, now - self.at) / half_life_s)

    def add(self, losses: float, now: float, half_life_s: float, reuse: float) -> None:
        """Add losses. The ceiling keeps the points above ``reuse`` for ``LONGEST_S`` at most."""
        self.points = min(self.now(now, half_life_s) + LOSS_POINTS * losses, ceiling(reuse, half_life_s))
        self.at = now

    def remove(self, losses: float, at: float, half_life_s: float) -> None:
        """Remove losses that were added at ``at``."""
        decayed = LOSS_POINTS * losses * math.exp2(-max(0.0, self.at - at) / half_life_s)
        self.points = max(0.0, self.points - decayed)

    def cap(self, half_life_s: float, reuse: float) -> None:
        """Apply the ceiling of changed settings."""
        self.points = min(self.points, ceiling(reuse, half_life_s))

    def reaches(self, level: float, half_life_s: float) -> float | None:
        """When the points will have decayed to ``level``; ``None`` when they have."""
        if self.points <= level or level <= 0:
            return None
        return self.at + half_life_s * math.log2(self.points / level) + _BEYOND_S
