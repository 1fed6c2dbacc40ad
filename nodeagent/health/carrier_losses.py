"""The losses of a link that count as flaps, and what explains a loss: an administrator's change, or planned work. Pure.

Drivers drop the carrier to apply a change: igb does so for MTU, rings, channels, pauses and the number of VFs, mlx5 for
MTU, rings and channels. Such a loss is no flap. The notice of the change may arrive before or after the loss, so a
change explains the losses within the settle time on both sides of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nodeagent.health.history import STALE_MIN_S, History
from nodeagent.health.hold import Hold, Penalty
from nodeagent.health.rule import Rule
from nodeagent.measurements.sample import Sample

DAY_S = 86400.0
PHY_COUNTERS = ("ext_down", "link_down_events", "ib_link_downed")
KERNEL_COUNTER = "carrier_down"
COUNTERS = (*PHY_COUNTERS, KERNEL_COUNTER)
"""The counters of lost links, the best first. The PHY counts real losses; the kernel's ``carrier_down`` also counts the
losses that a driver makes to apply a change."""
ADMINISTRATION = "administration"
"""The counter of changes by an administrator, with one key for each kind of change."""
LINK_SETTLE_S = 60.0
"""The default settle time. NVIDIA's and Intel's procedures clear the error counters after link training and wait for
minutes before they read a bit error ratio. A change by an administrator is over after seconds."""
_LOSSES_MAX = 64
"""Far more than a day's worth of any sensible threshold; older losses are dropped."""


class CarrierSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings of a link whose change drops the carrier. ``None`` is unknown; without a driver ``driver`` is
    empty."""

    mtu: float | None = None
    num_vfs: int | None = None
    driver: str | None = None
    admin_up: bool | None = None


class Loss(NamedTuple):
    """Losses of the link: when, how many, and the latest time at which they may have been. That one is later than
    ``at`` if the losses of a long time without a reading were spread over it."""

    at: float
    number: float
    latest: float


class CarrierLosses:
    """The flaps of one link: their times, and the penalty that they cause."""

    def __init__(self, rule: Rule, settle_s: float) -> None:
        """``rule`` is the rule on the penalty; its window is the half-life."""
        self.penalty = Penalty()
        self.times: list[Loss] = []
        """The oldest first."""
        self.changed_at: float | None = None
        """When an administrator last changed the link."""
        self.settings = CarrierSettings()
        self.uncounted_until = 0.0
        """After a restart the losses in between are unknown until their counter is read, or until this time."""
        self.awaited = KERNEL_COUNTER
        """That counter: the one that counted before the restart."""
        self._excused = (math.inf, -math.inf)
        """Begin and end of planned work on the link."""
        self._explained_since = math.inf
        """Since when losses were explained, of those explained after the last call of ``end_explained``."""
        self._ahead = dict.fromkeys(COUNTERS, 0.0)
        """The losses that another counter has counted since the last reading of each: its next value contains them."""
        self.follow(rule, settle_s)

    def follow(self, rule: Rule, settle_s: float) -> None:
        """Apply changed settings."""
        self.settle_s, self._half_life_s, self._reuse = settle_s, rule.window_s or 1.0, rule.clear
        self.penalty.cap(self._half_life_s, self._reuse)

    def restore(
        self,
        penalty: Penalty,
        times: Sequence[Loss],
        settings: CarrierSettings,
        changed_at: float | None,
        ahead: Mapping[str, float],
    ) -> None:
        self.penalty, self.times = penalty, list(times)
        self._ahead |= ahead
        self.settings, self.changed_at = settings, changed_at
        self.penalty.cap(self._half_life_s, self._reuse)

    def counter(self, history: History, now: float) -> str:
        """Return the best counter that is read. After a restart it may be read soon."""
        awaited = now < self.uncounted_until
        for name in PHY_COUNTERS:
            if history.reads(name) or (awaited and name == self.awaited):
                return name
        return KERNEL_COUNTER

    def known(self, history: History) -> bool:
        """Whether a counter of losses is read: without one, no loss is seen."""
        return any(map(history.reads, COUNTERS))

    def ahead(self, counter: str) -> float:
        """Return how many losses of the next value of this counter are counted already."""
        return self._ahead[counter]

    def take(
        self,
        sample: Sample,
        added: Mapping[str, float],
        before: Mapping[str, float | None],
        history: History,
        now: float,
    ) -> bool:
        """Take the increases of all counters in a sample that the history has taken. Return whether the link was lost.

        ``before`` has the times of the last plausible values of the counters of losses in the sample. Losses of a long
        time are spread over it. Garbage neither counts losses nor ends the use of another counter.
        """
        if added and any(count > 0 and name.startswith(ADMINISTRATION) for name, count in added.items()):
            self.explain(sample.at)
        counter = self.counter(history, now)
        read = {name for name in before if history.counted_at(name) == sample.at}
        losses = max(0.0, added.get(counter, 0.0) - self._ahead[counter]) if counter in read else 0.0
        for name in COUNTERS:
            contained = name in read and not history.may_return(name)
            self._ahead[name] = 0.0 if contained else self._ahead[name] + losses
        if counter in read:
            self.uncounted_until = 0.0
        if losses > 0:
            since = before[counter]
            gap = since is not None and sample.at - since > STALE_MIN_S
            self._add(losses, since if since is not None and gap else sample.at, sample.at)
        return losses > 0

    def _add(self, losses: float, since: float, at: float) -> None:
        if self.changed_at is not None and since <= self.changed_at + self.settle_s:
            return
        if self._excused[0] <= at <= self._excused[1]:
            return
        steps = max(1, min(round(losses), _LOSSES_MAX)) if since < at else 1
        for step in range(1, steps + 1):
            lost_at = since + (at - since) * step / steps
            self.penalty.add(losses / steps, lost_at, self._half_life_s, self._reuse)
            self.times.append(Loss(lost_at, losses / steps, at))
        self.times = [loss for loss in self.times if loss.at > at - DAY_S][-_LOSSES_MAX:]

    def compare(self, settings: CarrierSettings, at: float) -> bool:
        """Note the present settings of the link. Return whether an administrator changed one."""
        if settings == self.settings:
            return False
        before, now = msgspec.structs.astuple(self.settings), msgspec.structs.astuple(settings)
        self.settings = CarrierSettings(
            *(old if new is None else new for old, new in zip(before, now, strict=True))
        )
        changed = any(None not in (old, new) and old != new for old, new in zip(before, now, strict=True))
        if changed:
            self.explain(at)
        return changed

    def explain(self, at: float) -> None:
        """An administrator changed the link at this time: losses shortly before and after are no flaps. Each of those
        that were spread over a time may have been as late as its end."""
        self.changed_at = at
        self._remove(at - self.settle_s, math.inf)

    def excuse(self, begin: float, end: float) -> None:
        """Somebody works on the link in this time: its losses are no flaps, the earlier ones included."""
        self._excused = (begin, end)
        self._remove(begin, end)

    def _remove(self, first: float, last: float) -> None:
        kept = []
        for loss in self.times:
            if first <= loss.at <= last or first <= loss.latest <= last:
                self._explained_since = min(first, self._explained_since)
                self.penalty.remove(loss.number, loss.at, self._half_life_s)
            else:
                kept.append(loss)
        self.times = kept

    def end_explained(self, rules: Iterable[Rule], holds: Mapping[str, Hold]) -> None:
        """End the faults that started by losses which a change has explained since. The losses that remain may start
        them again."""
        for hold in (holds[rule.key] for rule in rules if rule.decays is not None and rule.key in holds):
            if hold.active and hold.since is not None and hold.since >= self._explained_since:
                hold.end()
        self._explained_since = math.inf

    def within_day(self, now: float) -> int:
        return round(sum(loss.number for loss in self.times if loss.at + DAY_S > now))

    def since_last(self, now: float) -> float:
        """The seconds since the last loss."""
        return now - self.times[-1].at if self.times else math.inf
