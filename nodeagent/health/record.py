"""The part of a device's state that survives a restart of the agent, in the form of the state file. Pure.

The names of three fields differ from those in the file, which earlier versions of the agent read too.

* Active faults survive, with their texts. The time to enter or to clear of a measured fault starts again.
* Times are CLOCK_BOOTTIME, so a record is only valid in the same boot.
* A record that is impossible (a time in the future, a negative count) is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from nodeagent.health.carrier_losses import COUNTERS, PHY_COUNTERS, CarrierSettings
from nodeagent.health.rules.gpu_rules import FaultKey
from nodeagent.host.gpu_driver import GpuReading

READING_NEWS_S = 300.0
"""A reading alone is stored after this time: each one would be a write to the disk."""
SPEED_MAX_MBPS = 100_000_000.0
"""A higher speed means that the driver does not know it (ethtool's SPEED_UNKNOWN is 0xffffffff)."""


class NicFault(msgspec.Struct, frozen=True, omit_defaults=True, rename={"text": "said"}):
    """An active fault of a PF. ``text`` is the text of its reason."""

    rule: str
    since: float
    good_since: float | None = None
    text: str = ""


class NicRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """``downs`` is the last value of the kernel's counter of lost carriers, ``phy_downs`` the name and last value of
    the PHY's counter, ``losses`` are (time, count). ``losses_latest`` is the latest time at which each may have been,
    if any is later. ``settings`` are the settings of the link as they were last seen,
    ``changed_at`` is the time at which an administrator last changed it. ``read_at`` is the time of the last plausible
    value of the counter of losses: what is lost from then on may be lost at any time until the next reading.
    ``failed_since``: since when the PF and its VFs have failed, by PCI address. ``other_downs``: value and time of the
    PHY's other counters, which did not count then: one that is read again continues from there. ``ahead``: how much of
    each of these values another counter has counted, so that the counter itself has not reached it yet. ``was_away``: a
    pod has had its netdev, which has not been set up since."""

    penalty: float = 0.0
    penalty_at: float = 0.0
    downs: float | None = None
    losses: tuple[tuple[float, float], ...] = ()
    once_up: bool = False
    best_mbps: float | None = None
    faults: tuple[NicFault, ...] = ()
    phy_downs: tuple[str, float] | None = None
    settings: CarrierSettings = CarrierSettings()
    changed_at: float | None = None
    read_at: float | None = None
    losses_latest: tuple[float, ...] = ()
    failed_since: dict[str, float] = {}
    other_downs: dict[str, tuple[float, float]] = {}
    ahead: dict[str, float] = {}
    was_away: bool = False

    def is_possible(self, now: float) -> bool:
        times = [self.penalty_at, *(at for at, _ in self.losses)]
        times += self.losses_latest
        times += [at for fault in self.faults for at in (fault.since, fault.good_since) if at is not None]
        times += [at for _, at in self.other_downs.values()]
        times += [at for at in (self.changed_at, self.read_at, *self.failed_since.values()) if at is not None]
        counts = [self.penalty, self.downs or 0.0, self.best_mbps or 0.0]
        counts += [count for _, count in self.losses]
        counts += [self.phy_downs[1]] if self.phy_downs is not None else []
        counts += [count for count, _ in self.other_downs.values()] + [*self.ahead.values()]
        names = {*self.other_downs, *([self.phy_downs[0]] if self.phy_downs is not None else [])}
        known = names <= set(PHY_COUNTERS) and self.ahead.keys() <= set(COUNTERS)
        finite = all(math.isfinite(count) and count >= 0 for count in counts)
        in_past = all(0 <= at <= now for at in times)
        paired = len(self.losses_latest) in (0, len(self.losses))
        return known and finite and in_past and paired and (self.best_mbps or 0.0) <= SPEED_MAX_MBPS

    def since(self, stored: NicRecord | None) -> NicRecord:
        """Return the stored record if nothing is new but a reading that is not much later."""
        if stored is None or stored.read_at is None or self.read_at is None:
            return self
        recent = self.read_at < stored.read_at + READING_NEWS_S
        return stored if recent and self._without_times() == stored._without_times() else self

    def _without_times(self) -> NicRecord:
        """The record without the times of its readings."""
        others = {name: (count, 0.0) for name, (count, _) in self.other_downs.items()}
        return msgspec.structs.replace(self, read_at=0.0, other_downs=others)


class XidFault(msgspec.Struct, frozen=True):
    """An XID, or with ``None`` that the GPU is unavailable. ``at`` is the time of the last event. ``fatal`` and
    ``detail``: what the kernel log says about it."""

    xid: int | None
    at: float
    fatal: bool = False
    detail: str = ""


class MeasuredHold(msgspec.Struct, frozen=True, rename={"fault": "mark"}):
    """An active fault of a GPU by its measured values. ``bad``, ``at`` and ``held_s`` are not used; earlier versions
    of the file have them."""

    fault: FaultKey
    bad: bool = True
    at: float | None = None
    held_s: float = 0.0
    detail: str = ""
    since: float | None = None


class MeasuredRecord(msgspec.Struct, frozen=True):
    """The active faults of a GPU by its measured values. ``links`` are the NVLinks that were up in this boot."""

    holds: tuple[MeasuredHold, ...] = ()
    links: tuple[int, ...] = ()


class GpuRecord(msgspec.Struct, frozen=True, rename={"measured": "chart"}):
    """``reading`` holds the UUID, and of every other field the last value that the driver reported. ``reset``: the
    GPU was reset, and its measured values were not read since. ``xid_times``: when each XID came. ``failed_since``:
    since when it has failed."""

    reading: GpuReading
    read_at: float
    faults: tuple[XidFault, ...] = ()
    lost: bool = False
    unreadable_since: float | None = None
    measured: MeasuredRecord = MeasuredRecord()
    reset: bool = False
    xid_times: dict[int, tuple[float, ...]] = {}
    failed_since: float | None = None

    @property
    def uuid(self) -> str:
        return self.reading.uuid or ""

    def differs(self, other: GpuRecord | None) -> bool:
        """Whether anything but the time of the reading differs."""
        return other is None or msgspec.structs.replace(other, read_at=self.read_at) != self

    def is_possible(self, now: float) -> bool:
        return bool(self.uuid) and all(math.isfinite(at) and 0 <= at <= now for at in self._times())

    def _times(self) -> Iterator[float]:
        yield self.read_at
        yield from (fault.at for fault in self.faults)
        yield from (at for times in self.xid_times.values() for at in times)
        yield from (at for at in (self.unreadable_since, self.failed_since) if at is not None)
