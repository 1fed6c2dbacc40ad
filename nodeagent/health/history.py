"""The samples of one device: the last levels, and counters over windows of time. Pure.

* A counter that decreased was reset or has wrapped: its value is a new baseline, and no event is counted. A counter
  that decreased by less than half was not reset but summed imprecisely, and counts as unchanged.
* A counter that returns to its old value was not reset: a driver reported zeros while its firmware did not answer.
* A step that is larger than the line can carry, or a register of ones, is an implausible value: it is dropped and
  counted. The next value counts from the last plausible one. A second value beyond the same step is a new baseline.
* ``begin`` starts the windows of some counters again: link training makes errors that are not a fault.
* A counter that another source now reports starts again: the two have different origins.
* A window ends at the last sample, not at the present: between samples nothing is known.
* A window is kept in steps of a 32nd of its length, so a day needs no more memory than a minute.
* A sample that is older than the last one of its source is ignored.
* The values of a source without new samples become stale, and count as unknown.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS

_STEPS = 32
_CARELESS_FROM = 100.0
"""Below this, half of the old value may be the count since a reset."""
_ALL_ONES = float(0xFFFF_FFFF)
"""A 32-bit register of ones: a PCI read answers so after its device has left the bus."""
_TOO_LARGE = float(1 << 63)
"""No counter reaches this; 2⁶⁴ - 1 is a 64-bit register of ones."""
LINE_MBPS = 1_600_000.0
"""The fastest Ethernet port (1.6T), where the speed of the line is unknown."""
_LINE_MARGIN = 2.0
"""FEC, encoding and the jitter of sample times: a line counts at most so many events for each bit of its speed."""
_CLOCK_MARGIN = 1.5
"""The same for counters of seconds, which advance by at most one in a second."""
_LOSSES_MAX_PER_S = 1000.0
"""A link that trains needs milliseconds, so it cannot be lost more often."""
_LOSSES = frozenset({"carrier_down", "ext_down", "link_down_events", "ib_link_downed"})
_RESETS_MAX = 4
STALE_GAPS = 5
"""A source is stale after this many of its own periods …"""
STALE_MIN_S = 30.0
"""… and not before this: a busy node may delay any of them for a moment."""
STALE_FIRST_S = 300.0
"""For a source with one sample, whose period is unknown: five periods of the slowest."""
_EVALUATED = frozenset(Source) - {Source.STATE, Source.PAUSE, Source.VF, Source.GPU}
"""The sources that rules use. The metrics show the staleness of the others."""
_ON_EVENT = frozenset({Source.KERNEL, Source.ADMINISTRATION})
"""The kernel log and the notices have entries only on events, so they are never stale."""


def is_ones(value: float) -> bool:
    """Whether this is the value of a register of ones, which no counter has."""
    return value == _ALL_ONES or value >= _TOO_LARGE


class Counter:
    """One counter over the windows of the rules."""

    def __init__(self, raw: float, at: float, window_s: float, source: Source | None = None) -> None:
        self.raw = raw
        self.source = source
        self.total = 0.0
        self.window_s = window_s
        self.at = at  # of the last plausible value
        self._ats = [at]
        self._totals = [0.0]
        self._implausible: float | None = None
        """The value of the last dropped step."""
        self._before_resets: list[float] = []
        """The values before the last resets, until the counter advances again."""

    def take(self, raw: float, at: float, most: float = math.inf) -> float | None:
        """Take the present value and return the increase; ``None``: the step is implausible and was dropped.

        ``most`` is the largest plausible increase per second.
        """
        reached = self.raw
        if self._before_resets:
            reached = max((before for before in self._before_resets if before <= raw), default=reached)
        added = max(0.0, raw - reached)
        limit = most * (at - self._ats[-1] + 1.0)
        if added > limit:
            before, self._implausible = self._implausible, raw
            if before is None or not 0 <= raw - before <= limit:
                return None
            added = 0.0  # the counter continues from there
        self._implausible = None
        if self.raw > raw >= max(self.raw / 2, _CARELESS_FROM):
            raw = self.raw
        if raw < self.raw:
            self._before_resets = [*self._before_resets[-_RESETS_MAX:], self.raw]
        elif raw > self.raw:
            self._before_resets = []
        self.raw = raw
        if added:  # most counters stand still: their totals are one object
            self.total += added
        self._note(at)
        return added

    @property
    def highest(self) -> float:
        """The value, or the highest one before the last resets, while it may return to it."""
        return max((self.raw, *self._before_resets))

    def _note(self, at: float) -> None:
        self.at, ats, totals = at, self._ats, self._totals
        if len(ats) > 1 and at - ats[-2] < self.window_s / _STEPS:
            ats[-1], totals[-1] = at, self.total
        else:
            ats.append(at)
            totals.append(self.total)
        while len(ats) > 2 and ats[1] <= at - self.window_s:
            del ats[0], totals[0]

    def over(self, window_s: float, begin: float = -math.inf) -> tuple[float, float]:
        """Return the increase in the last ``window_s`` before the last sample, and the seconds that it covers.

        The seconds are fewer while the counter is known for a shorter time or began later, and 0 after a single
        sample.
        """
        last_at = self._ats[-1]
        first = max(0, bisect_right(self._ats, last_at - window_s) - 1)
        if self._ats[first] < begin:
            first = min(bisect_left(self._ats, begin), len(self._ats) - 1)
        return self.total - self._totals[first], last_at - self._ats[first]


class _Named(NamedTuple):
    """The names in the samples of a source, and those that are kept as (name, head). They seldom change."""

    names: frozenset[str]
    levels: tuple[tuple[str, str], ...]
    counters: tuple[tuple[str, str], ...]


class History:
    """The samples of one device. ``windows``: the longest window of each counter, by its head."""

    def __init__(self, windows: Mapping[str, float]) -> None:
        self._windows = windows
        self._levels: dict[str, dict[str, float]] = {}
        self._of: dict[str, Source] = {}
        self._counters: dict[str, dict[str, Counter]] = {}
        self._named: dict[Source, _Named] = {}
        self.implausible = 0
        """Values of counters that were dropped."""
        self.line_mbps: float | None = None
        """The speed of the line, which limits the steps of counters."""
        self._begins: dict[str, float] = {}
        self._at: dict[Source, float] = {}
        self._gap: dict[Source, float] = {}
        self._now = 0.0
        self._fresh: set[Source] = set()

    def take(self, sample: Sample) -> dict[str, float]:
        """Take a sample and return the increase of each counter that has advanced."""
        source, at, values, of = sample.source, sample.at, sample.values, self._of
        before = self._at.get(source)
        if before is not None:
            if at <= before:
                return {}
            # A period grows at once and shrinks slowly: otherwise an extra sample would make the next one late. A time
            # in which the source was stale is no period.
            gap = min(at - before, self._patience(source))
            self._gap[source] = max(gap, 0.75 * self._gap.get(source, gap))
        self._at[source] = at
        self._fresh.add(source)
        named = self._named.get(source)
        if named is None or named.names != values.keys():
            named = self._name(sample)
        for name, head in named.levels:
            if math.isfinite(value := values[name]):
                of[name], self._levels[head][name] = source, value
        added = {}
        for name, head in named.counters:
            value = values[name]
            if is_ones(value):
                self.implausible += 1
            elif value >= 0:  # not NaN
                of[name] = source
                if increase := self._count(name, head, value, sample):
                    added[name] = increase
        return added

    def _name(self, sample: Sample) -> _Named:
        """Choose the names to keep. A name that the source no longer reports is dropped, with its value."""
        for name in [name for name, source in self._of.items() if source is sample.source]:
            if name not in sample.values:
                del self._of[name]
                self._levels.get(name.partition("/")[0], {}).pop(name, None)
        levels, counters = [], []
        for name in sample.values:
            head = name.partition("/")[0]
            datum = MEASUREMENTS.get(head)
            if datum is None:
                continue
            if not datum.counter:
                self._levels.setdefault(head, {})
                levels.append((name, head))
            elif head in self._windows:
                counters.append((name, head))
        named = _Named(frozenset(sample.values), tuple(levels), tuple(counters))
        self._named[sample.source] = named
        return named

    def _count(self, name: str, head: str, value: float, sample: Sample) -> float:
        counters = self._counters.setdefault(head, {})
        counter = counters.get(name)
        added = 0.0
        if counter is None or counter.source not in (None, sample.source):
            counters[name] = Counter(value, sample.at, self._windows[head], sample.source)
        else:
            counter.source = sample.source
            taken = counter.take(value, sample.at, self._most(head))
            if taken is None:
                self.implausible += 1
                return 0.0
            added = taken
        return added

    def _most(self, head: str) -> float:
        """The largest plausible increase of a counter per second."""
        if head.endswith("_seconds"):
            return _CLOCK_MARGIN
        if head in _LOSSES:
            return _LOSSES_MAX_PER_S
        return _LINE_MARGIN * 1e6 * (self.line_mbps or LINE_MBPS)

    def begin(self, heads: Iterable[str], at: float) -> None:
        """Let the windows of these counters begin at ``at``, which may be in the future."""
        self._begins.update(dict.fromkeys(heads, at))

    def resume(self, name: str, raw: float, at: float) -> None:
        """Continue from the value before a restart."""
        head = name.partition("/")[0]
        self._counters.setdefault(head, {})[name] = Counter(raw, at, self._windows[head])

    def reads(self, name: str) -> bool:
        """Whether a source still reports this counter."""
        return name in self._of and self.fresh(self._of[name])

    def gives(self, head: str) -> bool:
        """Whether a source still reports this measurement, or one of ``head/…``."""
        return any(name.partition("/")[0] == head and self.fresh(of) for name, of in self._of.items())

    def follow(self, windows: Mapping[str, float]) -> None:
        """Apply changed windows; known values stay."""
        self._windows = windows
        self._named.clear()
        for head in [head for head in self._counters if head not in windows]:
            del self._counters[head]
        for head, counters in self._counters.items():
            for counter in counters.values():
                counter.window_s = windows[head]

    def set_time(self, now: float) -> None:
        """Decide as of ``now`` which sources are fresh."""
        self._now = now
        self._fresh = {
            source
            for source, at in self._at.items()
            if source in _ON_EVENT or now < at + self._patience(source)
        }

    def fresh(self, source: Source) -> bool:
        return source in self._fresh

    def stale(self) -> tuple[Source, ...]:
        """Return the sources that had samples and are stale now."""
        if len(self._fresh) == len(self._at):
            return ()
        return tuple(
            source for source in sorted(self._at) if source in _EVALUATED and source not in self._fresh
        )

    def stale_at(self) -> float | None:
        """When the next source becomes stale without a sample."""
        due = [
            at + self._patience(source)
            for source, at in self._at.items()
            if source not in _ON_EVENT and source in self._fresh
        ]
        return min(due, default=None)

    def _patience(self, source: Source) -> float:
        gap = self._gap.get(source)
        return STALE_FIRST_S if gap is None else max(STALE_MIN_S, STALE_GAPS * gap)

    def level(self, name: str) -> float | None:
        """``None``: unknown, or stale."""
        levels = self._levels.get(name)  # most names have no key and are their own head
        if levels is None:
            levels = self._levels.get(name.partition("/")[0], {})
        value = levels.get(name)
        return value if value is not None and self._of[name] in self._fresh else None

    def levels(self, head: str) -> dict[str, float]:
        """Return all levels of ``head/…``, by the part after the slash."""
        return {
            name.partition("/")[2]: value
            for name, value in self._levels.get(head, {}).items()
            if name != head and self.fresh(self._of[name])
        }

    def over(self, name: str, window_s: float) -> tuple[float, float] | None:
        """As ``Counter.over``; ``None``: unknown, stale, or with a single sample since its windows began."""
        head = name if name in self._counters else name.partition("/")[0]  # most names have no key
        counter = self._counters.get(head, {}).get(name)
        if counter is None or name not in self._of or not self.fresh(self._of[name]):
            return None
        added, seconds = counter.over(window_s, self._begins.get(head, -math.inf))
        return (added, seconds) if seconds > 0 else None

    def rate(self, name: str, window_s: float) -> float | None:
        """Return the increase per second."""
        counted = self.over(name, window_s)
        return None if counted is None else counted[0] / counted[1]

    def each(self, head: str, window_s: float) -> dict[str, tuple[float, float]]:
        """Return ``over`` of all counters of ``head/…``, by the part after the slash."""
        counts = {}
        begin = self._begins.get(head, -math.inf)
        for name, counter in self._counters.get(head, {}).items():
            if self._of.get(name) in self._fresh:
                added, seconds = counter.over(window_s, begin)
                if seconds > 0:
                    counts[name.partition("/")[2]] = added, seconds
        return counts

    def at(self, source: Source) -> float | None:
        """The time of the last sample of a source; ``None``: never, or stale."""
        return self._at.get(source) if self.fresh(source) else None

    def counted_at(self, name: str) -> float | None:
        """The time of the last plausible value of a counter; ``None``: never."""
        counter = self._counters.get(name.partition("/")[0], {}).get(name)
        return None if counter is None else counter.at

    def highest(self, name: str) -> float | None:
        """The last value of a counter, or the one before a reset to which it may return; ``None``: never read."""
        counter = self._counters.get(name.partition("/")[0], {}).get(name)
        return None if counter is None else counter.highest

    def may_return(self, name: str) -> bool:
        """Whether the counter has decreased and not advanced since: it was reset, or its value is garbage."""
        counter = self._counters.get(name.partition("/")[0], {}).get(name)
        return counter is not None and counter.highest > counter.raw


def total(counted: Iterable[tuple[float, float]]) -> float:
    """Return the sum of the increases."""
    return sum(added for added, _ in counted)
