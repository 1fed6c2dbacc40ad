"""The losses of a link that count as flaps, and the changes by an administrator that explain a loss. Pure.

Drivers drop the carrier to apply a change: igb does so for MTU, rings, channels, pauses and the number of VFs, mlx5 for
MTU, rings and channels. Such a loss is no flap. The notice of the change may arrive before or after the loss, so a
change explains the losses within the settle time on both sides of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from nodeagent.health.hold import Penalty
from nodeagent.health.rule import Rule

DAY_S = 86400.0
PHY_COUNTERS = ("ext_down", "link_down_events")
COUNTERS = (*PHY_COUNTERS, "carrier_down")
"""The counters of lost links, the best first. The PHY counts real losses; the kernel's ``carrier_down`` also counts the
losses that a driver makes to apply a change."""
ADMINISTRATION = "administration"
"""The counter of changes by an administrator, with one key for each kind of change."""
SETTLE_S = 60.0
"""The default settle time. NVIDIA's and Intel's procedures clear the error counters after link training and wait for
minutes before they read a bit error ratio. A change by an administrator is over after seconds."""
_LOSSES_MAX = 64
"""Far more than a day's worth of any sensible threshold; older losses are dropped."""


class LinkSettings(msgspec.Struct, frozen=True, omit_defaults=True):
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
        self.settings = LinkSettings()
        self.follow(rule, settle_s)

    def follow(self, rule: Rule, settle_s: float) -> None:
        """Apply changed settings."""
        self.settle_s, self._half_life_s, self._reuse = settle_s, rule.window_s or 1.0, rule.clear
        self.penalty.cap(self._half_life_s, self._reuse)

    def restore(
        self,
        penalty: Penalty,
        times: Sequence[tuple[float, float]],
        settings: LinkSettings,
        changed_at: float | None,
    ) -> None:
        self.penalty, self.times = penalty, list(times)
        self.settings, self.changed_at = settings, changed_at
        self.penalty.cap(self._half_life_s, self._reuse)

    def take(self, added: Mapping[str, float], counter: str, at: float, since: float | None = None) -> bool:
        """Take the increases of all counters; ``counter`` is the counter of losses to use. Return whether the link was
        lost.

        ``since``: the losses happened at unknown times between ``since`` and ``at``. They are spread over that time.
        """
        if any(count > 0 and name.startswith(ADMINISTRATION) for name, count in added.items()):
            self.explain(at)
        losses = added.get(counter, 0.0)
        first_at = at if since is None else since
        if losses > 0 and (self.changed_at is None or first_at > self.changed_at + self.settle_s):
            steps = 1 if since is None else max(1, min(round(losses), _LOSSES_MAX))
            for step in range(1, steps + 1):
                self._add(losses / steps, first_at + (at - first_at) * step / steps)
        return losses > 0

    def _add(self, losses: float, at: float) -> None:
        self.penalty.add(losses, at, self._half_life_s, self._reuse)
        self.times = [loss for loss in self.times if loss[0] > at - DAY_S][-_LOSSES_MAX:]
        self.times.append((at, losses))

    def compare(self, settings: LinkSettings, at: float) -> bool:
        """Note the present settings of the link. Return whether an administrator changed one."""
        before, now = msgspec.structs.astuple(self.settings), msgspec.structs.astuple(settings)
        self.settings = LinkSettings(
            *(old if new is None else new for old, new in zip(before, now, strict=True))
        )
        changed = any(None not in (old, new) and old != new for old, new in zip(before, now, strict=True))
        if changed:
            self.explain(at)
        return changed

    def explain(self, at: float) -> None:
        """An administrator changed the link at this time: losses shortly before and after are no flaps."""
        self.changed_at = at
        for loss_at, losses in self.times:
            if loss_at >= at - self.settle_s:
                self.penalty.remove(losses, loss_at, self._half_life_s)
        self.times = [loss for loss in self.times if loss[0] < at - self.settle_s]

    def within_day(self, now: float) -> int:
        return round(sum(losses for at, losses in self.times if at + DAY_S > now))

    def since_last(self, now: float) -> float:
        """The seconds since the last loss."""
        return now - self.times[-1][0] if self.times else math.inf
