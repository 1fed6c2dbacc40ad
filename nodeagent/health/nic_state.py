"""One PF under judgment: what is known of it, its holds, its damping. Pure.

Facts (sysfs) come before samples where both tell the same: they are read at once after every event. Samples
tell what facts cannot, stand in where there are none (a replay) or where they are older (a scan that hangs), and
are the second witness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nodeagent.health.history import STALE_MIN_S, History
from nodeagent.health.hold import Hold, Penalty
from nodeagent.health.measures import SYSFS, Measured, Seen
from nodeagent.health.rules import Rule, windows
from nodeagent.health.structural import Fault
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function, Link, Reason, State

DAY_S = 86400.0
_SPEED_MAX = 100_000_000.0
"""Mb/s. What is beyond is a driver that does not know (ethtool's SPEED_UNKNOWN is 0xffffffff)."""
_OLDER_S = 2.0
"""Facts that are older than a sample by more than this were not read after the event that the sample shows."""
_LOSSES_SAY = frozenset({"carrier_down", "flapping", "flapping_daily"})
"""Rules whose end depends on how often the carrier was lost."""
_LOSSES_MAX = 64
"""Far more than a day's worth of any sensible threshold; older ones are merged into none."""
_DAMPING = ("flapping", "flapping_daily")
"""What these measure changes by time alone."""
_PRESSING = ("admin_up", "carrier", "rdma_port_active", "speed_mbps")
_LINK_SOURCES = frozenset({Source.LINK, Source.MODES, Source.RDMA})
"""Who tells these."""
STRUCTURAL = frozenset({"device_missing", "driver_unbound", "admin_down", "carrier_down"})
"""Rules that are judged whether or not the PF is watched closely: they are facts."""


class Latched(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault that stands."""

    rule: str
    since: float
    good_since: float | None = None
    said: str = ""


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a PF must survive a restart of the agent. Times are CLOCK_BOOTTIME."""

    penalty: float = 0.0
    penalty_at: float = 0.0
    downs: float | None = None
    losses: tuple[tuple[float, float], ...] = ()
    once_up: bool = False
    best_mbps: float | None = None
    faults: tuple[Latched, ...] = ()


def sound(kept: Remembered, now: float) -> bool:
    """Whether what was read back can have been so: no time is yet to come, and nothing counts below zero."""
    times = [kept.penalty_at, *(at for at, _ in kept.losses)]
    times += [at for fault in kept.faults for at in (fault.since, fault.good_since) if at is not None]
    counts = [kept.penalty, kept.downs or 0.0, kept.best_mbps or 0.0, *(count for _, count in kept.losses)]
    known = all(math.isfinite(count) and count >= 0 for count in counts)
    return known and all(0 <= at <= now for at in times) and (kept.best_mbps or 0.0) <= _SPEED_MAX


class Pf:
    def __init__(self, function: Function, rules: Sequence[Rule]) -> None:
        self.function = function
        self.link: Link | None = None
        self.reasons: tuple[Reason, ...] = ()
        """Its structural faults."""
        self._faults: frozenset[str] | None = None
        """Their keys; ``None`` before the first facts."""
        self.stirred = True
        """Something is new since it was judged, and any rule may see it."""
        self.sampled = False
        """It has been sampled since, perhaps with nothing new."""
        self.next_at: float | None = None
        """When time alone may change its verdict."""
        self.netdev: str | None = None
        """The last name that its netdev had here."""
        self.history = History(windows(rules))
        self.holds: dict[str, Hold] = {}
        self.values: dict[str, float] = {}
        """What each rule measured last, in its unit."""
        self.expected_mbps: float | None = None
        self.penalty = Penalty()
        self.losses: list[tuple[float, float]] = []
        self.facts_at = 0.0
        """When the facts were stated last, new or not."""
        self.uncounted_until = 0.0
        """After a restart: how often the carrier was lost meanwhile is not known yet, and waited for until then."""
        self.once_up = False
        self.best_mbps: float | None = None
        self.watched = False
        """Passed the gate: a missing link is a fault."""
        self.unused = False
        """By configuration."""
        self.told: bool | None = None
        """Whether its devices were allocatable when that was last said; ``None`` before the first time."""
        self.held_since: float | None = None
        """Since when the guard holds it back."""
        self.state = State.UNKNOWN
        self.changed_at: float | None = None
        """When the state became what it is."""

    # --- what is known --------------------------------------------------------------------------------

    def facts(self, function: Function, link: Link | None, faults: tuple[Reason, ...], now: float) -> None:
        before, self.facts_at = self._up, now
        unchanged = function == self.function and link == self.link and faults == self.reasons
        if unchanged and self._faults is not None:
            # A look at sysfs that is newer than the last sample is believed again.
            self.stirred = self.stirred or self._up != before
            return
        self.stirred = True
        self.function, self.link, self.reasons = function, link, faults
        self._faults = frozenset(reason.key for reason in faults)
        self.netdev = link.netdev if link is not None else self.netdev

    def take(self, sample: Sample, half_life_s: float, reuse: float) -> bool:
        """Whether it says of the link what was not known: that is judged at once, numbers can wait a moment."""
        self.sampled = True
        telling = sample.source in _LINK_SOURCES
        before = self._pressing() if telling else ()
        losses = self.history.take(sample).get("carrier_down", 0.0)
        if "carrier_down" in sample.values:
            self.uncounted_until = 0.0
        if losses > 0:
            self.stirred = True
            self.penalty.add(losses, sample.at, half_life_s, reuse)
            self.losses = [one for one in self.losses if one[0] > sample.at - DAY_S][-_LOSSES_MAX:]
            self.losses.append((sample.at, losses))
            if (hold := self.holds.get("carrier_down")) is not None:
                hold.interrupt()
        pressing = telling and self._pressing() != before
        self.stirred = self.stirred or pressing
        return losses > 0 or pressing

    def _pressing(self) -> tuple[float | bool | None, ...]:
        return (*self._up, *map(self.history.level, _PRESSING))

    @property
    def _up(self) -> tuple[bool | None, bool | None]:
        return self.carrier, self.admin_up

    @property
    def address(self) -> str:
        return self.function.pci_address

    @property
    def name(self) -> str:
        return f"PF {self.address}" + (f" ({self.netdev})" if self.netdev else "")

    def structural(self, fault: Fault) -> Reason | None:
        return next((reason for reason in self.reasons if reason.key == fault.value), None)

    def _is(self, *faults: Fault) -> bool:
        return self._faults is not None and not self._faults.isdisjoint(faults)

    @property
    def gone(self) -> bool:
        return self._is(Fault.DEVICE_MISSING)

    @property
    def carrier(self) -> bool | None:
        if self._is(Fault.DEVICE_MISSING, Fault.DRIVER_UNBOUND) or self.admin_up is False:
            return None
        if self._is(Fault.CARRIER_DOWN):
            return False
        return self._sampled("carrier") if self._is(Fault.LINK_UNSEEN) else not self._overruled("carrier")

    @property
    def admin_up(self) -> bool | None:
        if self._is(Fault.DEVICE_MISSING, Fault.DRIVER_UNBOUND):
            return None
        if self._is(Fault.ADMIN_DOWN):
            return False
        return self._sampled("admin_up") if self._is(Fault.LINK_UNSEEN) else not self._overruled("admin_up")

    def _overruled(self, name: str) -> bool:
        """Whether the kernel has told since the last look at sysfs that it is no longer so. IPoIB may be down
        while its port works."""
        at = self.history.at(Source.LINK)
        newer = at is not None and at > self.facts_at + _OLDER_S
        return newer and self.function.link_type != "infiniband" and self._sampled(name) is False

    def _sampled(self, name: str) -> bool | None:
        value = self.history.level(name)
        return None if value is None else value != 0

    @property
    def default_route(self) -> bool:
        return self.link is not None and self.link.default_route

    @property
    def speed_mbps(self) -> float | None:
        """The sample's first, unlike the carrier: without a change of carrier sysfs is read again at a scan only."""
        sampled = self.history.level("speed_mbps")
        read = self.link.speed_mbps if self.link is not None else None
        return next(
            (speed for speed in (sampled, read) if speed is not None and 0 < speed <= _SPEED_MAX), None
        )

    def look(self, now: float) -> None:
        """Answers are for ``now`` from here on; what was reached in this boot is remembered."""
        self.history.ask(now)
        self.stirred |= self.history.changed
        if self.carrier:
            self.once_up = True
            if self.speed_mbps is not None:
                self.best_mbps = max(self.best_mbps or 0.0, self.speed_mbps)

    def seen(
        self, expected_mbps: float | None, cabled_right: bool | None, cabling: str | None, now: float
    ) -> Seen:
        return Seen(
            history=self.history,
            infiniband=self.function.link_type == "infiniband",
            present=not self._is(Fault.DEVICE_MISSING),
            bound=not self._is(Fault.DRIVER_UNBOUND),
            admin_up=self.admin_up,
            carrier=self.carrier,
            carrier_witnesses=self._carrier_witnesses(),
            speed_mbps=self.speed_mbps,
            expected_mbps=expected_mbps or self.best_mbps,
            losses=round(sum(count for at, count in self.losses if at + DAY_S > now)),
            cabling=cabling,
            cabled_right=cabled_right,
        )

    def _carrier_witnesses(self) -> frozenset[str]:
        found = {SYSFS} if self._is(Fault.CARRIER_DOWN) else set()
        if self._sampled("carrier") is False:
            found.add(Source.LINK.value)
        if self._sampled("rdma_port_active") is False:
            found.add(Source.RDMA.value)
        return frozenset(found)

    # --- what is made of it ---------------------------------------------------------------------------

    def step(self, rules: Sequence[Rule], seen: Seen, now: float, *, whole: bool = True) -> None:
        """``whole``: any rule may see something new. Else only what counters and time may have changed is asked."""
        self.expected_mbps = seen.expected_mbps
        for rule in rules:
            if not (whole or self._moved(rule)):
                continue
            if not (rule.enabled and self.applies(rule.key)):
                self.holds.pop(rule.key, None)
                self.values.pop(rule.key, None)
                continue
            measured = self.measure(rule, seen, now)
            if measured is None:
                self.values.pop(rule.key, None)
            else:
                self.values[rule.key] = measured.value
            hold = self.holds.get(rule.key)
            if hold is None:
                if measured is None:
                    continue
                hold = self.holds[rule.key] = Hold()
            if rule.key in _LOSSES_SAY and hold.active and now < self.uncounted_until:
                continue
            hold.step(rule, measured, now)

    def _moved(self, rule: Rule) -> bool:
        hold = self.holds.get(rule.key)
        if hold is not None and (hold.active or hold.since is not None):
            return True
        if rule.key not in self.values and self.history.follows(rule.counters):
            return True  # a counter that stands tells nothing until it has been watched for long enough
        damping = rule.key in _DAMPING and self.penalty.points > 0
        return damping or not self.history.counted.isdisjoint(rule.counters)

    def judged(self, next_at: float | None) -> None:
        """What is new from here on is new to the rules."""
        self.next_at = next_at
        self.stirred = self.sampled = self.history.changed = False
        self.history.counted.clear()

    def measure(self, rule: Rule, seen: Seen, now: float) -> Measured | None:
        seen.window_s = rule.window_s or 0.0
        if rule.key == "flapping":
            seen.penalty = self.penalty.now(now, seen.window_s or 1.0)
        return rule.measure(seen)

    def applies(self, key: str) -> bool:
        if key in ("device_missing", "driver_unbound"):
            return True
        if key in STRUCTURAL:
            return self.watched or (self.once_up and not self.unused)
        # What stood when it became the way to the world stands until it clears: routes come and go.
        stands = self.default_route and not self.unused and key in self.holds and self.holds[key].active
        return self.watched or stands

    def active(self, rules: Sequence[Rule]) -> list[tuple[Rule, Hold]]:
        """What stands against it, the gravest first."""
        if not any(hold.active for hold in self.holds.values()):
            return []  # as a rule
        return [(r, hold) for r in rules if (hold := self.holds.get(r.key)) is not None and hold.active]

    def reason(self, rule: Rule, hold: Hold) -> Reason:
        detail = f"{self.name}: {hold.said}"
        if rule.key in STRUCTURAL:
            detail = self._sentence(rule.key)
            if rule.clear_for_s:
                detail += f" (held until {rule.clear_for_s:g} s after its end)"
        return Reason(rule.key, detail, warning=rule.state is State.HEALTHY)

    def _sentence(self, key: str) -> str:
        if key == "device_missing":
            return f"PF {self.address} is missing"
        if key == "driver_unbound":
            return f"PF {self.address} has no driver"
        if key == "admin_down":
            return f"{self.name} is set down; ip link set {self.netdev} up"
        infiniband = self.function.link_type == "infiniband"
        return f"{self.name} has " + ("a port that is not active" if infiniband else "no carrier")

    def due(self, rules: Sequence[Rule], now: float) -> float | None:
        """When the verdict may change although nothing happens."""
        moments: list[float | None] = [self.history.stale_at(), self.uncounted_until]
        for rule in rules:
            hold = self.holds.get(rule.key)
            if hold is None:
                continue
            moments.append(hold.due(rule))
            if hold.active and rule.key == "flapping":
                moments.append(self.penalty.reaches(rule.clear, rule.window_s or 1.0))
            if hold.active and rule.key == "flapping_daily":
                moments += [at + DAY_S for at, _ in self.losses]
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    # --- over a restart -------------------------------------------------------------------------------

    def remember(self) -> Remembered:
        return Remembered(
            self.penalty.points,
            self.penalty.at,
            self.history.raw("carrier_down"),
            tuple(self.losses),
            self.once_up,
            self.best_mbps,
            tuple(
                Latched(key, hold.since or 0.0, hold.good_since, hold.said)
                for key, hold in self.holds.items()
                if hold.active
            ),
        )

    def recall(self, kept: Remembered, now: float) -> None:
        self.penalty = Penalty(kept.penalty, kept.penalty_at)
        self.losses = list(kept.losses)
        self.once_up, self.best_mbps = kept.once_up, kept.best_mbps
        if kept.downs is not None:
            self.history.resume("carrier_down", kept.downs, now)
            self.uncounted_until = now + STALE_MIN_S
        for fault in kept.faults:
            self.holds[fault.rule] = Hold(True, fault.since, fault.good_since, fault.said)
