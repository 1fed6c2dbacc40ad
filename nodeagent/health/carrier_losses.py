"""The losses of a link that count as flaps, and what explains a loss: an administrator's change, or planned work. Pure.

Drivers drop the carrier to apply a change: igb does so for MTU, rings, channels, pauses and the number of VFs, mlx5 for
MTU, rings and channels. Such a loss is no flap. The notice of the change may arrive before or after the loss, so a
change explains the losses within the settle time on both sides of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nodeagent.health.history import STALE_MIN_S, History
from nodeagent.health.hold import Hold, Penalty
from nodeagent.health.rule import Rule
from nodeagent.measurements.sample import Sample

DAY_S = 86400.0
PHY_COUNTERS = ("ext_down", "link_down_events")
KERNEL_COUNTER = "carrier_down"
COUNTERS = (*PHY_COUNTERS, KERNEL_COUNTER)
"""The counters of lost links, the best first. The PHY counts real losses; the kernel's ``carrier_down`` also counts the
losses that a driver makes to apply a change."""
ADMINISTRATION = "administration"
"""The counter of changes by an administrator, with one key for each kind of change."""
SETTLE_S = 60.0
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


class CarrierLosses:
    """The flaps of one link: their times, and the penalty that they cause."""

    def __init__(self, rule: Rule, settle_s: float) -> None:
        """``rule`` is the rule on the penalty; its window is the half-life."""
        self.penalty = Penalty()
        self.times: list[tuple[float, float]] = []
        """Time and number of losses, the oldest first."""
        self.changed_at: float | None = None
        """When an administrator last changed the link."""
        self.settings = CarrierSettings()
        self.uncounted_until = 0.0
        """After a restart the losses in between are unknown until their counter is read, or until this time."""
        self._excused = (math.inf, -math.inf)
        """Begin and end of planned work on the link."""
        self._explained_since = math.inf
        """Since when losses were explained, of those explained after the last call of ``end_explained``."""
        self._gap = (-math.inf, -math.inf)
        """Begin and end of the last time without a reading whose losses were spread over it."""
        self._counted_by = ""
        """The counter that was used last."""
        self.follow(rule, settle_s)

    def follow(self, rule: Rule, settle_s: float) -> None:
        """Apply changed settings."""
        self.settle_s, self._half_life_s, self._reuse = settle_s, rule.window_s or 1.0, rule.clear
        self.penalty.cap(self._half_life_s, self._reuse)

    def restore(
        self,
        penalty: Penalty,
        times: Sequence[tuple[float, float]],
        settings: CarrierSettings,
        changed_at: float | None,
    ) -> None:
        self.penalty, self.times = penalty, list(times)
        self.settings, self.changed_at = settings, changed_at
        self.penalty.cap(self._half_life_s, self._reuse)

    def counter(self, history: History, now: float) -> str:
        """Return the best counter that is read. After a restart it may be read soon."""
        awaited = now < self.uncounted_until
        for name in PHY_COUNTERS:
            if history.reads(name) or (awaited and history.raw(name) is not None):
                return name
        return KERNEL_COUNTER

    def take(
        self, sample: Sample, added: Mapping[str, float], before: float | None, counter: str | None
    ) -> bool:
        """Take the increases of all counters in a sample; ``counter`` is the counter of losses to use, ``None`` if the
        sample has no plausible value of it: garbage neither counts losses nor ends the use of another counter. Return
        whether the link was lost.

        ``before`` is the time of the last plausible value of the counter. Losses of a long time are spread over it.
        """
        if added and any(count > 0 and name.startswith(ADMINISTRATION) for name, count in added.items()):
            self.explain(sample.at)
        if counter is None:
            return False
        self.uncounted_until = 0.0
        counted_before, self._counted_by = self._counted_by == KERNEL_COUNTER != counter, counter
        losses = 0.0 if counted_before else added.get(counter, 0.0)
        if losses > 0:
            gap = before is not None and sample.at - before > STALE_MIN_S
            self._add(losses, before if before is not None and gap else sample.at, sample.at)
        return losses > 0

    def _add(self, losses: float, since: float, at: float) -> None:
        if self.changed_at is not None and since <= self.changed_at + self.settle_s:
            return
        if self._excused[0] <= at <= self._excused[1]:
            return
        steps = max(1, min(round(losses), _LOSSES_MAX)) if since < at else 1
        self._gap = (since, at) if since < at else self._gap
        for step in range(1, steps + 1):
            lost_at = since + (at - since) * step / steps
            self.penalty.add(losses / steps, lost_at, self._half_life_s, self._reuse)
            self.times.append((lost_at, losses / steps))
        self.times = [loss for loss in self.times if loss[0] > at - DAY_S][-_LOSSES_MAX:]

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
        begin, end = self._gap
        kept = []
        for loss_at, losses in self.times:
            if first <= loss_at <= last or (first <= end <= last and loss_at > begin):
                self._explained_since = min(first, self._explained_since)
                self.penalty.remove(losses, loss_at, self._half_life_s)
            else:
                kept.append((loss_at, losses))
        self.times = kept

    def end_explained(self, rules: Iterable[Rule], holds: Mapping[str, Hold]) -> None:
        """End the faults that started by losses which a change has explained since. The losses that remain may start
        them again."""
        for hold in (holds[rule.key] for rule in rules if rule.decays is not None and rule.key in holds):
            if hold.active and hold.since is not None and hold.since >= self._explained_since:
                hold.end()
        self._explained_since = math.inf

    def within_day(self, now: float) -> int:
        return round(sum(losses for at, losses in self.times if at + DAY_S > now))

    def since_last(self, now: float) -> float:
        """The seconds since the last loss."""
        return now - self.times[-1][0] if self.times else math.inf
