"""A hall whose rails are probed, simulated: what each fault does to the packets of each leg, when the nodes report it,
and when the controller names the place.

The choice of partners, the windows of the agents and the localizer are the product's. Simulated are the fabric, with a
path for each flow and direction that nobody else knows (ECMP), and the times of agents and controller. A leg has
``per_second`` packets a second, those across over ``FLOWS`` source ports in turn; it has lost nothing for ``HEALTHY_S``
when a fault begins. A node writes what has changed ``GATHER_S`` later, and again after ``GAP_S`` at the earliest.
"""

from __future__ import annotations

import math
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from itertools import groupby
from typing import NamedTuple

from nodeagent.cluster.node_report import GAP_S, GATHER_S
from nodeagent.fabric.rail_anomalies import ACROSS_PORTS as FLOWS
from nodeagent.fabric.rail_choice import choose
from nodeagent.fabric.rail_suspects import (
    CheckedLegs,
    ExplainedLegs,
    Leg,
    RailEnd,
    RailPlace,
    Scope,
    Suspect,
    agreed,
    suspects,
)
from nodeagent.features.rail_probing.leg_windows import SLOT_S, LegWindows
from nodeagent.features.rail_probing.rail_keeper import JUDGE_S
from nodeagent.features.rail_probing.rail_probes import FORGOTTEN_S, MISSING_S

PATHS = 32
"""Uplinks of a leaf switch, and planes of a spine tier."""
HOUR_S, DAY_S = 3600.0, 86400.0
HEALTHY_S = 975.0
"""Losses that lie further apart than twice this time share no window and no level."""
CALM_S = 60.0
"""So long after the last loss a leg without a level gets none."""
LATTICE_S = 75.0
"""A multiple of the steps of all windows."""
LEAST_S = 8.0
"""Losses within a shorter time make no level."""


class Lost(NamedTuple):
    """A packet that was sent ``at`` and has no answer in time; it comes ``answered``, if at all."""

    at: float
    answered: float = math.inf


class Fault(NamedTuple):
    """Loses this share of the packets that pass a place, on one ``path`` of it or on all; one way, or both ways."""

    suspect: Suspect
    share: float = 1.0
    path: int | None = None


class Named(NamedTuple):
    """A finding that the controller shows, and when for the first time."""

    at: float
    finding: ExplainedLegs


@cache
def _healthy(every_s: float, phase: float) -> bytes:
    """A leg that has lost nothing until 0, and sends its next packet at ``phase``."""
    leg, count = LegWindows(-HEALTHY_S), int(HEALTHY_S / every_s)
    for i in range(count, 0, -1):
        leg.answered(phase - i * every_s)
    return pickle.dumps(leg)


def levels(
    losses: list[Lost], every_s: float, evaluated: float = 0.0, until: float = math.inf
) -> Iterator[tuple[float, int]]:
    """The changes of the level of a leg, by the agent's windows. It is evaluated at ``evaluated`` and each ``SLOT_S``
    later; its packets are as far from each other as its first loss is from 0, modulo ``every_s``."""
    begin = 0
    for i in range(1, len(losses) + 1):
        if i == len(losses) or losses[i].at - losses[i - 1].at > 2 * HEALTHY_S:
            if losses[i - 1].at - losses[begin].at >= LEAST_S:
                yield from _levels(losses[begin:i], every_s, evaluated, until)
            begin = i


def _levels(
    losses: list[Lost], every_s: float, evaluated: float, until: float
) -> Iterator[tuple[float, int]]:
    base = LATTICE_S * (losses[0].at // LATTICE_S)
    phase = round((losses[0].at - base) % every_s / every_s * PHASES) % PHASES * every_s / PHASES
    end = min(until, losses[-1].at + HEALTHY_S) - base
    calm = losses[-1].at - base + CALM_S
    lost = {round((at - base - phase) / every_s): answered - base for at, answered in losses}
    events: list[tuple[float, int, float]] = []
    for i in range(math.ceil((end - phase) / every_s)):
        at, answered = phase + i * every_s, lost.get(i, -math.inf)
        if answered <= at + MISSING_S:
            events.append((at, _ANSWERED, at))
        else:
            events.append((at + MISSING_S, _MISSING, at))
            if answered <= at + FORGOTTEN_S:
                events.append((answered, _LATE, at))
    first = (losses[0].at - base - evaluated) // SLOT_S * SLOT_S + evaluated
    events += ((first + i * SLOT_S, _EVALUATED, 0.0) for i in range(int((end - first) / SLOT_S) + 1))
    leg: LegWindows = pickle.loads(_healthy(every_s, phase))
    for now, kind, at in sorted(events):
        if kind == _ANSWERED:
            leg.answered(at)
        elif kind == _MISSING:
            leg.missing(at, now)
        elif kind == _LATE:
            leg.late(at)
        elif leg.evaluate(now):
            yield base + now, leg.level
        elif not leg.level and now > calm:
            return


DEFAULT, FASTEST = 0.5, 1.3
"""Packets a second to each partner: that of a hall without a setting, and the most that can be set."""
PHASES = 16
"""Legs send their packets at so many different times within the time from one to the next."""
_ANSWERED, _MISSING, _LATE, _EVALUATED = range(4)


class RailHall:
    """``groups`` leaf groups of ``size`` nodes, in ``pods`` spine groups below one core."""

    def __init__(
        self,
        groups: int,
        size: int = 32,
        rails: int = 8,
        pods: int = 1,
        seed: int = 0,
        per_second: float = DEFAULT,
    ) -> None:
        self.random, self.every_s = random.Random(seed), 1 / per_second
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
        self.phases = {
            node: self.random.uniform(0, SLOT_S) for node in sorted({end.node for end in self.places})
        }

    @cached_property
    def leaves(self) -> list[str]:
        return sorted({place.leaf for place in self.places.values()})

    def passing(self, suspect: Suspect) -> list[Leg]:
        return self._passing[suspect]

    # --- packets ----------------------------------------------------------------------------------------

    def losses(self, faults: Iterable[Fault], until: float) -> dict[Leg, list[Lost]]:
        """The packets of each leg that get no answer; the faults begin at 0."""
        shares: dict[Leg, list[float]] = {}
        for fault in faults:
            for leg in self.passing(fault.suspect):
                passed = shares.setdefault(leg, [1.0] * FLOWS)
                for flow in range(FLOWS):
                    passed[flow] *= 1 - self._lost(leg, fault)
        found: dict[Leg, list[Lost]] = {}
        for leg, passed in shares.items():
            phase, flow = self.random.randrange(PHASES) * self.every_s / PHASES, self.random.randrange(FLOWS)
            found[leg] = [
                Lost(phase + i * self.every_s)
                for i in range(int(until / self.every_s))
                if self.random.random() >= passed[(flow + i) % FLOWS]
            ]
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

    def reports(self, losses: dict[Leg, list[Lost]], until: float) -> list[tuple[float, Leg, int]]:
        """When the controller learns of which level of a leg, in order."""
        written = []
        for node, legs in groupby(sorted(losses), key=lambda leg: leg.writer.node):
            changes = sorted(
                (at, leg, level)
                for leg in legs
                for at, level in levels(losses[leg], self.every_s, self.phases[node], until)
            )
            free = at = -math.inf
            for changed, leg, level in changes:
                if changed > at:
                    at = max(changed, free) + GATHER_S
                    free = at + GAP_S
                written.append((at, leg, level))
        return sorted(written)

    def named(
        self,
        losses: dict[Leg, list[Lost]],
        until: float,
        judge: Callable[[CheckedLegs, dict[Leg, int]], Iterable[ExplainedLegs]] = suspects,
    ) -> list[Named]:
        """Every finding, when it is shown first, in order."""
        changes, i = self.reports(losses, until), 0
        bad: dict[Leg, int] = {}
        since: dict[Suspect, float] = {}
        shown: dict[Suspect, Named] = {}
        at, every, judged = self.random.uniform(0, JUDGE_S), list[ExplainedLegs](), -1
        while at < until and (bad or i < len(changes)):
            if not bad and changes[i][0] > at:
                at += JUDGE_S * ((changes[i][0] - at) // JUDGE_S + 1)
            while i < len(changes) and changes[i][0] <= at:
                _, leg, now = changes[i]
                bad.pop(leg, None)
                if now:
                    bad[leg] = now
                i += 1
            if judged < i:  # the same legs give the same findings
                every, judged = list(judge(self.checked, bad)), i
            findings, since = agreed(every, since, at)
            for found in findings:
                shown.setdefault(found.suspect, Named(at, found))
            at += JUDGE_S
        return list(shown.values())


def unrest(hall: RailHall, days: float) -> dict[Leg, list[Lost]]:
    """The losses of a hall in which nothing is wrong: machines pause and reboot, cables have bursts, and a packet is
    lost now and then. What a machine gets while it pauses it answers afterwards. An agent that restarts loses nothing,
    since the refusals of its host excuse it."""
    losses: dict[Leg, list[Lost]] = defaultdict(list)
    rand, until, every_s = hall.random, days * DAY_S, hall.every_s

    def lose(legs: Iterable[Leg], begin: float, end: float, share: float, answered: float = math.inf) -> None:
        for leg in legs:
            at = begin + rand.uniform(0, every_s)
            while at < end:
                if rand.random() < share:
                    losses[leg].append(Lost(at, answered))
                at += every_s

    def often(per_day: float) -> Iterator[float]:
        at = rand.expovariate(per_day / DAY_S)
        while at < until:
            yield at
            at += rand.expovariate(per_day / DAY_S)

    for node in sorted(hall.phases):
        asked = [leg for leg in hall.passing(Suspect(Scope.HOST, node)) if leg.partner.node == node]
        for at in often(20):
            pause_s = rand.lognormvariate(math.log(0.5), 1.0)
            if pause_s > MISSING_S:
                lose(asked, at, at + pause_s - MISSING_S, 1.0, at + pause_s)
        for at in often(15 / 1000):
            lose(asked, at, at + 180, 1.0)
    for end in hall.places:
        legs = hall.passing(Suspect(Scope.LINK, *end))
        for at in often(2):
            lose(legs, at, at + 3, 0.05)
    for leg in hall.legs:
        for at in often(DAY_S / every_s * 12e-6):
            losses[leg].append(Lost(at))
    return {leg: sorted(lost) for leg, lost in losses.items()}


# --- the table --------------------------------------------------------------------------------------------------

HALLS = {"64 nodes": (2, 32, 8, 1), "1,024 nodes": (32, 32, 8, 1), "8,192 nodes, 8 pods": (256, 32, 8, 8)}
"""Groups, nodes of a group, rails, pods."""


class Row(NamedTuple):
    """Faults that one hall gets at once, for ``until`` seconds, and by when all are named in 95 of 100 halls; at the
    highest rate by ``soon_s``, if that is promised."""

    faults: Callable[[RailHall], list[Fault]]
    until: float
    promise_s: float
    soon_s: float = 0.0

    def promised_s(self, per_second: float) -> float:
        return self.soon_s if self.soon_s and per_second == FASTEST else self.promise_s


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


def row(hall: RailHall, wanted: Row, runs: int, first: int = 0) -> Result:
    """Try a row of the table in ``runs`` halls; the number of each, from ``first`` on, is its seed."""
    right, extra, times, wrong = 0, 0, [], []
    for run in range(first, first + runs):
        hall.random = random.Random(100_000 + run)
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
    "link 10 %": Row(lambda hall: [Fault(_link(hall), 0.1)], 150, 75, 50),
    "link 1 %": Row(lambda hall: [Fault(_link(hall), 0.01)], 1500, 720, 300),
    "leaf dead": Row(lambda hall: [Fault(_at_leaf(hall, Scope.LEAF))], 60, 35),
    "leaf 10 %": Row(lambda hall: [Fault(_at_leaf(hall, Scope.LEAF), 0.1)], 60, 75),
    "one of 32 uplinks, one way": Row(
        lambda hall: [Fault(_at_leaf(hall, Scope.UPLINKS), 1.0, 3)], 120, 60, 45
    ),
    "one of 32 spine planes": Row(lambda hall: [Fault(_spine(hall), 1.0, 3)], 60, 60),
    "one path of the core": Row(lambda hall: [Fault(Suspect(Scope.CORE, ""), 1.0, 3)], 60, 60),
    "silent host": Row(lambda hall: [Fault(_host(hall))], 60, 35),
    "host loses 30 %": Row(lambda hall: [Fault(_host(hall), 0.3)], 60, 75),
    "dead link and a link with 10 %": Row(
        lambda hall: [Fault(_link(hall)), Fault(_link(hall), 0.1)], 150, 90
    ),
    "two dead links of one leaf": Row(lambda hall: _links_of_a_leaf(hall, 2), 60, 35),
    "eight dead links of one leaf": Row(lambda hall: _links_of_a_leaf(hall, 8), 60, 45),
}
