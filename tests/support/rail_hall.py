"""A hall whose rails are probed, simulated: what each fault does to the packets of each leg, when the nodes report it,
and when the controller names the place.

The choice of partners and the localizer are the product's. Simulated are the fabric, with a path for each flow and
direction that nobody else knows (ECMP), and the agents: a leg has a packet each ``EVERY_S``, those across over
``FLOWS`` source ports in turn; an answer is missing after ``WAIT_S``; levels are judged each ``SLOT_S``, and a report
that differs is written ``REPORT_S`` later. The controller judges each ``JUDGE_S``.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from nodeagent.fabric.rail_choice import choose
from nodeagent.fabric.rail_suspects import (
    CheckedLegs,
    Leg,
    RailEnd,
    RailFinding,
    RailPlace,
    Scope,
    Suspect,
    agreed,
    suspects,
)

EVERY_S, FLOWS, WAIT_S, SLOT_S, REPORT_S, JUDGE_S = 2.0, 8, 2.0, 5.0, 2.0, 5.0
WINDOWS_S = (15.0, 60.0, 300.0, 900.0)
LATE_S = 10.0
"""An answer that comes within this time is not lost."""
PATHS = 32
"""Uplinks of a leaf switch, and planes of a spine tier."""
HOUR_S, DAY_S = 3600.0, 86400.0


class Fault(NamedTuple):
    """Loses this share of the packets that pass a place, on one ``path`` of it or on all; one way, or both ways."""

    suspect: Suspect
    share: float = 1.0
    path: int | None = None


class Named(NamedTuple):
    """A finding that the controller shows, and when for the first time."""

    at: float
    finding: RailFinding


def level(losses: list[float], now: float) -> int:
    """The level of a leg in percent, 0 if it is good: two losses or more that two slots or more lie between, so that
    no burst of some seconds counts."""
    for window in WINDOWS_S:
        first = bisect_right(losses, now - window)
        count = bisect_right(losses, now) - first
        if count >= 2 and losses[first + count - 1] - losses[first] >= 2 * SLOT_S:
            sent = (now - losses[first]) / EVERY_S
            if count >= 0.9 * sent:
                return 100
            share = count * EVERY_S / window
            return 50 if share >= 0.3 else 10 if share >= 0.03 else 1
    return 0


class RailHall:
    """``groups`` leaf groups of ``size`` nodes, in ``pods`` spine groups below one core."""

    def __init__(self, groups: int, size: int = 32, rails: int = 8, pods: int = 1, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.places = {
            RailEnd(f"n{group}-{number}", f"rail{rail}"): RailPlace(
                str(rail), f"leaf{group}-{rail}", f"spine{group * pods // groups}", "core" if pods > 1 else ""
            )
            for group in range(groups)
            for number in range(size)
            for rail in range(rails)
        }
        self.legs, self.across = choose(self.places, {})
        self.checked = CheckedLegs(self.legs, self.places)
        self._passing: dict[Suspect, list[Leg]] = defaultdict(list)
        for leg in self.legs:
            for suspect in self.checked.passed(leg):
                self._passing[suspect].append(leg)
        self.phases = {node: self.random.uniform(0, SLOT_S) for node in {end.node for end in self.places}}

    @cached_property
    def leaves(self) -> list[str]:
        return sorted({place.leaf for place in self.places.values()})

    def passing(self, suspect: Suspect) -> list[Leg]:
        return self._passing[suspect]

    # --- packets ----------------------------------------------------------------------------------------

    def losses(self, faults: Iterable[Fault], until: float) -> dict[Leg, list[float]]:
        """When packets of each leg are sent that get no answer; the faults begin at 0."""
        shares: dict[Leg, list[float]] = {}
        for fault in faults:
            for leg in self.passing(fault.suspect):
                passed = shares.setdefault(leg, [1.0] * FLOWS)
                for flow in range(FLOWS):
                    passed[flow] *= 1 - self._lost(leg, fault)
        found: dict[Leg, list[float]] = {}
        for leg, passed in shares.items():
            times, at, flow = [], self.random.uniform(0, EVERY_S), self.random.randrange(FLOWS)
            while at < until:
                if self.random.random() >= passed[flow % FLOWS]:
                    times.append(at)
                at, flow = at + EVERY_S, flow + 1
            found[leg] = times
        return found

    def _lost(self, leg: Leg, fault: Fault) -> float:
        """The share of the round trips of one flow that a fault loses: the path of each direction is chosen anew."""
        scope, share = fault.suspect.scope, fault.share
        if fault.path is not None:
            # One way through the uplinks of a leaf switch, both ways through a tier.
            ways = 1 if scope is Scope.UPLINKS else 2
            hits = sum(self.random.randrange(PATHS) == fault.path for _ in range(ways))
        else:
            hits = 2 if scope is Scope.LEAF else 1
        return float(1 - (1 - share) ** hits)

    # --- agents and controller --------------------------------------------------------------------------

    def reports(self, losses: dict[Leg, list[float]], until: float) -> list[tuple[float, Leg, int]]:
        """When the controller learns of which level of a leg, in order."""
        changes = []
        for leg, times in losses.items():
            known = 0
            for at in self._slots(leg.writer.node, times, until):
                now = level(times, at)
                if now != known:
                    known = now
                    changes.append((at + WAIT_S + REPORT_S, leg, now))
        return sorted(changes)

    def _slots(self, node: str, times: list[float], until: float) -> Iterator[float]:
        """The ends of slots at which the level may differ: after a loss, and when it leaves a window."""
        ends = {
            self.phases[node] + SLOT_S * ((at + window - self.phases[node]) // SLOT_S + step)
            for at in times
            for window in (0.0, SLOT_S, 2 * SLOT_S, *WINDOWS_S)
            for step in (1, 2)
        }
        yield from sorted(end for end in ends if 0 <= end <= until)

    def named(
        self,
        losses: dict[Leg, list[float]],
        until: float,
        judge: Callable[[CheckedLegs, dict[Leg, int]], Iterable[RailFinding]] = suspects,
    ) -> list[Named]:
        """Every finding, when it is shown first, in order."""
        changes, i = self.reports(losses, until), 0
        bad: dict[Leg, int] = {}
        since: dict[Suspect, float] = {}
        shown: dict[Suspect, Named] = {}
        at = self.random.uniform(0, JUDGE_S)
        while at < until and (bad or i < len(changes)):
            if not bad and changes[i][0] > at:
                at += JUDGE_S * ((changes[i][0] - at) // JUDGE_S + 1)
            while i < len(changes) and changes[i][0] <= at:
                _, leg, now = changes[i]
                bad.pop(leg, None)
                if now:
                    bad[leg] = now
                i += 1
            findings, since = agreed(judge(self.checked, bad), since, at)
            for found in findings:
                shown.setdefault(found.suspect, Named(at, found))
            at += JUDGE_S
        return list(shown.values())


def unrest(hall: RailHall, days: float) -> dict[Leg, list[float]]:
    """The losses of a hall in which nothing is wrong: machines pause and reboot, cables have bursts, and a packet is
    lost now and then. An agent that restarts loses nothing, since the refusals of its host excuse it."""
    losses: dict[Leg, list[float]] = defaultdict(list)
    rand, until = hall.random, days * DAY_S

    def lose(legs: Iterable[Leg], begin: float, end: float, share: float) -> None:
        for leg in legs:
            at = begin + rand.uniform(0, EVERY_S)
            while at < end:
                if rand.random() < share:
                    losses[leg].append(at)
                at += EVERY_S

    def often(per_day: float) -> Iterator[float]:
        at = rand.expovariate(per_day / DAY_S)
        while at < until:
            yield at
            at += rand.expovariate(per_day / DAY_S)

    for node in hall.phases:
        asked = [leg for leg in hall.passing(Suspect(Scope.HOST, node)) if leg.partner.node == node]
        for at in often(20):
            pause_s = rand.lognormvariate(math.log(0.5), 1.0)
            if pause_s > LATE_S:  # otherwise all answers come in time to be taken back
                lose(asked, at, at + pause_s - WAIT_S, 1.0)
        for at in often(15 / 1000):
            lose(asked, at, at + 180, 1.0)
    for end in hall.places:
        legs = hall.passing(Suspect(Scope.LINK, *end))
        for at in often(2):
            lose(legs, at, at + 3, 0.05)
    for leg in hall.legs:
        for at in often(DAY_S / EVERY_S * 12e-6):
            losses[leg].append(at)
    return {leg: sorted(times) for leg, times in losses.items()}


# --- the table --------------------------------------------------------------------------------------------------

HALLS = {"256 nodes": (8, 32, 8, 1), "1,024 nodes": (32, 32, 8, 1), "8,192 nodes, 8 pods": (256, 32, 8, 8)}
"""Groups, nodes of a group, rails, pods."""


class Row(NamedTuple):
    """Faults that one hall gets at once, for ``until`` seconds, and by when all are named in 95 of 100 halls."""

    faults: Callable[[RailHall], list[Fault]]
    until: float
    promise_s: float


class Result(NamedTuple):
    """Halls with all faults named, and those with another place named too; when the last fault was named in each."""

    runs: int
    right: int
    extra: int
    times: list[float]
    wrong: list[str]

    def within_s(self, share: float) -> float:
        """The time within which this share of the right halls had all names."""
        return sorted(self.times)[max(0, math.ceil(share * len(self.times)) - 1)]


def row(hall: RailHall, wanted: Row, runs: int, seed: int = 1) -> Result:
    """Try a row of the table in ``runs`` halls."""
    right, extra, times, wrong = 0, 0, [], []
    for run in range(runs):
        hall.random = random.Random(seed * 100_000 + run)
        faults = wanted.faults(hall)
        places = {fault.suspect for fault in faults}
        found = hall.named(hall.losses(faults, wanted.until), wanted.until)
        at = {
            suspect: one.at
            for one in reversed(found)
            for suspect in (one.finding.suspect, *one.finding.rivals)
        }
        others = [
            one.finding for one in found if places.isdisjoint((one.finding.suspect, *one.finding.rivals))
        ]
        if places <= at.keys():
            right += 1
            times.append(max(at[place] for place in places))
        extra += bool(others)
        if others or not places <= at.keys():
            wrong.append(f"{sorted(map(str, places))}: {[str(one.finding.suspect) for one in found]}")
    return Result(runs, right, extra, times, wrong)


def _link(hall: RailHall, leaf: str = "") -> Suspect:
    ends = [end for end, place in hall.places.items() if leaf in ("", place.leaf)]
    return Suspect(Scope.LINK, *hall.random.choice(ends))


def _at_leaf(hall: RailHall, scope: Scope) -> Suspect:
    return Suspect(scope, hall.random.choice(hall.leaves))


def _host(hall: RailHall) -> Suspect:
    return Suspect(Scope.HOST, hall.random.choice(sorted(hall.phases)))


def _spine(hall: RailHall) -> Suspect:
    return Suspect(Scope.SPINE, hall.random.choice(sorted({place.spine for place in hall.places.values()})))


def _links_of_a_leaf(hall: RailHall, count: int) -> list[Fault]:
    leaf = hall.random.choice(hall.leaves)
    ends = [end for end, place in hall.places.items() if place.leaf == leaf]
    return [Fault(Suspect(Scope.LINK, *end)) for end in hall.random.sample(ends, count)]


ROWS = {
    "link dead": Row(lambda hall: [Fault(_link(hall))], 60, 35),
    "link 10 %": Row(lambda hall: [Fault(_link(hall), 0.1)], 150, 75),
    "link 1 %": Row(lambda hall: [Fault(_link(hall), 0.01)], 1500, 720),
    "leaf dead": Row(lambda hall: [Fault(_at_leaf(hall, Scope.LEAF))], 60, 35),
    "leaf 10 %": Row(lambda hall: [Fault(_at_leaf(hall, Scope.LEAF), 0.1)], 60, 75),
    "one of 32 uplinks, one way": Row(lambda hall: [Fault(_at_leaf(hall, Scope.UPLINKS), 1.0, 3)], 120, 60),
    "one of 32 spine planes": Row(lambda hall: [Fault(_spine(hall), 1.0, 3)], 60, 60),
    "one path of the core": Row(lambda hall: [Fault(Suspect(Scope.CORE, ""), 1.0, 3)], 60, 60),
    "silent host": Row(lambda hall: [Fault(_host(hall))], 60, 35),
    "host loses 30 %": Row(lambda hall: [Fault(_host(hall), 0.3)], 60, 75),
    "dead link and a link with 10 %": Row(
        lambda hall: [Fault(_link(hall)), Fault(_link(hall), 0.1)], 150, 90
    ),
    "two dead links of one leaf": Row(lambda hall: _links_of_a_leaf(hall, 2), 60, 35),
    "eight dead links of one leaf": Row(lambda hall: _links_of_a_leaf(hall, 8), 60, 35),
}
