"""Hysteresis and damping: what a rule and a link remember from one moment to the next. Pure.

A fault is entered and left by values that stood for a time, never by one that is not known. Whatever stands
between ``enter`` and ``clear`` changes nothing, so a value that swings around a threshold toggles at most once
for each hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nodeagent.health.measures import Measured
from nodeagent.health.rules import Rule

LOSS_POINTS = 1000.0
_DOUBLINGS_MAX = 64.0
"""More points than any link could be given."""
_BEYOND_S = 0.001
"""Asked at the very moment, rounding would answer either way."""
LONGEST_S = 3600.0
"""A link is damped for no longer than this after its last loss (RFC 2439's maximum hold-down)."""


@dataclass(slots=True)
class Hold:
    """One rule on one PF. ``since``: while active, when it was entered; before, since when its value is bad.

    ``said`` is what was measured when it was entered, which stays the same as long as the fault does.
    """

    active: bool = False
    since: float | None = None
    good_since: float | None = None
    said: str = ""

    def step(self, rule: Rule, measured: Measured | None, now: float) -> None:
        if measured is None:
            # Not known: the fault stands or does not, and whatever was under way begins anew.
            self.good_since = None
            self.since = self.since if self.active else None
        elif self.active:
            self._leave(rule, measured, now)
        else:
            self._enter(rule, measured, now)

    def _enter(self, rule: Rule, measured: Measured, now: float) -> None:
        if not (measured.enough and rule.bad(measured.value)):
            self.since = None
            return
        if self.since is None:
            self.since = now
        if now >= self.since + rule.enter_for_s:
            self.active, self.since, self.good_since = True, now, None
            limit = measured.limit or (f"{rule.enter:g} {rule.unit}" if rule.has_threshold else None)
            self.said = measured.said if limit is None else f"{measured.said}, limit {limit}"

    def _leave(self, rule: Rule, measured: Measured, now: float) -> None:
        if not rule.good(measured.value):
            self.good_since = None
            return
        if self.good_since is None:
            self.good_since = now
        if now >= self.good_since + rule.clear_for_s:
            self.active, self.since, self.good_since, self.said = False, None, None, ""

    def interrupt(self) -> None:
        """It was bad in between: a hold that was running begins anew."""
        self.good_since = None

    def due(self, rule: Rule) -> float | None:
        """When it changes if the value stays as it is."""
        if self.active:
            return None if self.good_since is None else self.good_since + rule.clear_for_s
        return None if self.since is None else self.since + rule.enter_for_s


def ceiling(reuse: float, half_life_s: float) -> float:
    """The most points that decay to ``reuse`` within ``LONGEST_S``."""
    return reuse * math.exp2(min(LONGEST_S / half_life_s, _DOUBLINGS_MAX))


@dataclass(slots=True)
class Penalty:
    """RFC 2439's figure of merit: each loss adds ``LOSS_POINTS``, and it halves every half-life."""

    points: float = 0.0
    at: float = 0.0

    def now(self, now: float, half_life_s: float) -> float:
        return self.points * math.exp2(-max(0.0, now - self.at) / half_life_s)

    def add(self, losses: float, now: float, half_life_s: float, reuse: float) -> None:
        """The ceiling makes ``LONGEST_S`` the longest that it can stay above ``reuse``."""
        self.points = min(self.now(now, half_life_s) + LOSS_POINTS * losses, ceiling(reuse, half_life_s))
        self.at = now

    def cap(self, half_life_s: float, reuse: float) -> None:
        """By other terms than those that it grew under, it must not last longer either."""
        self.points = min(self.points, ceiling(reuse, half_life_s))

    def reaches(self, level: float, half_life_s: float) -> float | None:
        """When it will have decayed to ``level``; ``None`` when it has."""
        if self.points <= level or level <= 0:
            return None
        return self.at + half_life_s * math.log2(self.points / level) + _BEYOND_S
