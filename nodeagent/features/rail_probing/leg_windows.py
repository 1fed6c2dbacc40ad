"""One leg: the way to a partner's NIC and back, and the level of its loss. Pure; every call brings the time.

* A probe is missing 2 s after it was sent. An answer within 10 s takes that back: a host that pauses loses nothing.
* A port-unreachable message proves the way: the partner's agent is absent, and its silence says nothing of the network.
* Probes lost in a row make a dead leg, if two evaluations agree; the window of 60 s finds a loss of some percent, that
  of 900 s one of a percent. The first and the last loss of a window are 10 s apart, or one burst would be a fault.
* A level stays until the leg has been good for long enough. Then the windows begin again: what a dead leg lost is not a
  loss of some percent afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

SLOT_S = 5.0
EXCUSED_S = 15.0
APART_S = 10.0
"""Losses within a shorter time may be one burst."""
# Of 900 s at 8 packets a second two losses are too few for a level: two bursts look like them.
_LEVEL_FROM = ((100, 0.75), (50, 0.22), (10, 0.035), (1, 0.0022))
_GOOD_S, _GOOD_LEAST_S, _GOOD_MOST_S = 300.0, 60.0, 900.0
"""A leg is good again after three times as long without loss as it took from one loss to the next. Few losses say
little about that time, so ``_GOOD_S`` counts as well. A dead leg is over when half of its short window is answered."""
_DEAD_LEAST, _DEAD_FOR_S = 5, 8.0
"""A dead leg has lost so many probes in a row, over so long: a pause of a host is shorter."""
_SILENT_LEAST = 3
"""With so many in a row the leg may be dead, and is not judged by its share."""
_NEVER_LEAST = 4
"""Probes to a partner that has never answered, which gets one a minute."""
_FORGOTTEN_S = 1000.0
"""No window has older losses."""


class LossWindow(NamedTuple):
    """Sent and lost probes of a window, and the time between the first and the last lost one."""

    sent: int
    lost: int
    apart_s: float


class _Ring:
    """Counts what is sent within some seconds, in steps."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._step_s, self._steps = seconds / steps, steps
        self._buckets: deque[list[int]] = deque()  # step, sent

    def add(self, at: float) -> None:
        step = int(at // self._step_s)
        for bucket in reversed(self._buckets):
            if bucket[0] == step:
                bucket[1] += 1
                return
        self._buckets.append([step, 1])
        if len(self._buckets) > self._steps + 1:
            self._buckets.popleft()

    def window(self, now: float, lost: list[float]) -> LossWindow:
        oldest = int(now // self._step_s) - self._steps  # the step of now is not whole
        sent = sum(sent for step, sent in self._buckets if step >= oldest)
        first = bisect_left(lost, oldest * self._step_s)
        return LossWindow(sent, len(lost) - first, lost[-1] - lost[first] if first < len(lost) else 0.0)


class LegWindows:
    """The windows and the level of one leg, for packets of one size.

    ``short_s`` is the window that ends a dead leg; large packets are rare and need a longer one.
    """

    def __init__(self, now: float, short_s: float = 15.0) -> None:
        self._short_s = short_s
        self.level = 0
        self.since = 0.0
        """The time of the first loss of this level."""
        self.counted_at = now
        """The time of the last evaluation."""
        self._proposed = 0
        self._excused_until = 0.0
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._short = _Ring(self._short_s, round(self._short_s / SLOT_S))
        self._middle, self._long = _Ring(60.0, 12), _Ring(900.0, 12)
        self._began = now
        self._lost: list[float] = []
        """When the lost probes of the longest window were sent."""
        self._run, self._run_from = 0, now

    def absent(self, now: float) -> bool:
        """Whether the partner's agent is not there."""
        return now < self._excused_until

    def refused(self, now: float) -> None:
        """A port-unreachable message came back: what was silent until now is excused, and what will be."""
        if not self.absent(now):
            self._begin(now)
            self.level = self._proposed = 0
        self._excused_until = now + EXCUSED_S

    def answered(self, at: float) -> None:
        """The probe that was sent ``at`` was answered in time."""
        self._add(at)
        self._run = 0

    def missing(self, at: float, now: float) -> None:
        """The probe that was sent ``at`` has no answer yet."""
        if self.absent(now) or at < self._began:
            return
        self._add(at)
        insort(self._lost, at)
        del self._lost[: bisect_left(self._lost, at - _FORGOTTEN_S)]
        self._run, self._run_from = self._run + 1, self._run_from if self._run else at

    def late(self, at: float) -> None:
        """The answer to a missing probe has come."""
        if at in self._lost:
            self._lost.remove(at)
            self._run = 0

    def _add(self, at: float) -> None:
        for ring in (self._short, self._middle, self._long):
            ring.add(at)

    def short(self, now: float) -> LossWindow:
        return self._short.window(now, self._lost)

    def long(self, now: float) -> LossWindow:
        return self._long.window(now, self._lost)

    def evaluate(self, now: float) -> bool:
        """Decide about the level, every 5 s. Return whether it has changed."""
        before, found = self.level, self._found(now)
        self.counted_at = now
        # Half of the packets may be lost five times in a row: a dead leg needs two evaluations.
        rises, self._proposed = found if found < 100 else min(found, self._proposed), found
        if rises > self.level:
            self.since = self.since if self.level else self._lost[0]
            self.level = rises
        elif self.level and self._is_good(now):
            self._begin(now)
            self.level = self._proposed = 0
        return self.level != before

    def _found(self, now: float) -> int:
        if self._run >= _DEAD_LEAST and self._lost[-1] - self._run_from >= _DEAD_FOR_S:
            return 100
        middle, long = self._middle.window(now, self._lost), self.long(now)
        if now - self._began >= 240 and long.sent >= _NEVER_LEAST and long.lost == long.sent:
            return 100
        if self._run >= _SILENT_LEAST:
            return 0
        for window in (middle, long):
            if window.sent >= 10 and window.apart_s >= APART_S:
                share = window.lost / window.sent
                level = next((level for level, from_ in _LEVEL_FROM if share >= from_), 0)
                if level:
                    return min(level, 50)
        return 0

    def _is_good(self, now: float) -> bool:
        short, long = self.short(now), self.long(now)
        if not short.sent:
            return False
        if self.level == 100:
            return 2 * short.lost <= short.sent
        if long.apart_s < APART_S:
            return True  # the other losses were late answers, or are too old
        good_s = 3 * (long.apart_s + _GOOD_S) / long.lost
        return now - self._lost[-1] >= min(max(good_s, _GOOD_LEAST_S), _GOOD_MOST_S)
