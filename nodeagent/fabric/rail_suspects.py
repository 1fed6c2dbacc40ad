"""The place where rails lose packets, from the legs that nodes report: a link, a leaf, its uplinks, a tier, or a host.

A leg is a pair of NICs of which one, the writer, sends packets to the other, its partner, and counts answers. A report
names only legs that lose packets, with a level; how many legs pass a place is known from the lists of partners. A place
is suspected if the share q of its legs that are bad is far above ``BAD_BY_CHANCE``, the gain of the explanation being
B ln(q/p) + (N-B) ln((1-q)/(1-p)) for B bad legs of N. The place with the highest gain explains its legs, and the rest
is judged again.

Guards, each found necessary by simulation:

* Breadth: a link is blamed on legs with two other nodes, a leaf with four of its links, its uplinks with three, a tier
  with three leaves, a host with four rails. A leg is believed only about its own ends, so one node that lies can name
  only itself.
* A link is blamed only if its own node sees it too: a host that pauses or boots says nothing. Two legs do not
  suffice if one has the lowest level: two bursts within a quarter of an hour look like them.
* A link that has partners at its leaf switch is blamed only with a bad leg to one of them: two legs across may have one
  bad uplink in common. So is a leaf switch: of two leaf switches each is at the end of all legs across of the other.
* Concentration: no link has more than a quarter of the bad legs of a leaf, and no leaf more than a third of those of a
  tier; where there are few, a little more than its share. Two dead cables are not a dead leaf,
  and neither are more, if they explain the legs better.
* Two judgements agree that are ``AGREE_S`` apart: reports of one fault arrive one after the other.

A NIC, its cable and the port of the leaf are on the same legs, so no probe tells them apart: all three are "the link".
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from nodeagent.fabric.nodelinks import LEG_LEVELS

BAD_BY_CHANCE = 1e-4
"""The share of legs that are reported as bad where nothing is wrong: far above what was simulated, so that a place with
many legs is not blamed for a few."""
GAIN_MIN = 14.0
AGREE_S = 5.0
PRICE = 5.0
"""The gain that each further place of an explanation must bring."""
FEW_SHARE, FEW_LEGS = 1.2, 3
PARTNERS_MIN = 2
"""Other nodes with bad legs to a link or a host that is blamed."""


class Scope(Enum):
    """The kinds of places, with the fewest parts that must be bad, and the largest share of bad legs of one part."""

    LINK = "link", 2, 1.0
    LEAF = "leaf", 4, 1 / 4
    UPLINKS = "uplinks", 3, 1 / 4
    SPINE = "spine", 3, 1 / 3
    CORE = "core", 3, 1 / 3
    HOST = "host", 4, 1.0

    def __init__(self, word: str, breadth: int, share: float) -> None:
        self.word, self.breadth, self.share = word, breadth, share


NODES_OF_TIER = 8
"""A node that lies speaks of itself and its partners, on all rails, hence at many leaf switches."""
_TIERS = {Scope.SPINE, Scope.CORE}
_BEYOND = {Scope.UPLINKS, *_TIERS}
"""Beyond the leaf switches. A leg of a link that loses packets at its leaf switch too says nothing about them."""


class RailEnd(NamedTuple):
    """A NIC: a link of a node."""

    node: str
    link: str


class RailPlace(NamedTuple):
    """The rail and the leaf switch of a link, and the names of the HyperNodes of the tiers spine and core above it;
    empty: none is known."""

    rail: str
    leaf: str
    spine: str = ""
    core: str = ""


class Leg(NamedTuple):
    """A sender and the partner that answers."""

    writer: RailEnd
    partner: RailEnd


class Suspect(NamedTuple):
    """A place: ``name`` is a node, a switch, a HyperNode or nothing, ``link`` is set for a link only."""

    scope: Scope
    name: str
    link: str = ""


class ExplainedLegs(NamedTuple):
    """A suspect with the bad legs that it explains, of ``checked`` legs that pass it. ``rivals`` would explain the
    same legs equally well."""

    suspect: Suspect
    legs: tuple[Leg, ...]
    checked: int
    rivals: tuple[Suspect, ...] = ()


class CheckedLegs:
    """The legs that are checked, counted by the places that they pass."""

    def __init__(self, legs: Iterable[Leg], places: Mapping[RailEnd, RailPlace]) -> None:
        self.places = places
        self.legs = dict.fromkeys(legs)
        self.counts: Counter[Suspect] = Counter()
        self.near: set[RailEnd] = set()
        """The links with a partner at their leaf switch."""
        rails: dict[str, set[str]] = {}
        for leg in self.legs:
            self.counts.update(self.passed(leg))
            for end in leg:
                rails.setdefault(end.node, set()).add(end.link)
            if self.is_near(leg):
                self.near.update(leg)
        self.rails = {node: len(links) for node, links in rails.items()}

    def is_near(self, leg: Leg) -> bool:
        """Both ends are at one leaf switch."""
        one, other = (self.places.get(end) for end in leg)
        return one is not None and other is not None and one.leaf == other.leaf

    def passed(self, leg: Leg) -> tuple[Suspect, ...]:
        """All places that packets of a leg pass; none if an end is unknown."""
        one, other = (self.places.get(end) for end in leg)
        if one is None or other is None or leg.writer.node == leg.partner.node:
            return ()
        passed = [Suspect(Scope.LINK, *end) for end in leg]
        passed += (Suspect(Scope.HOST, end.node) for end in leg)
        passed += (Suspect(Scope.LEAF, leaf) for leaf in dict.fromkeys((one.leaf, other.leaf)))
        if one.leaf != other.leaf:
            passed += (Suspect(Scope.UPLINKS, place.leaf) for place in (one, other))
            passed += (Suspect(Scope.SPINE, spine) for spine in dict.fromkeys((one.spine, other.spine)))
            if one.spine != other.spine:
                passed.append(Suspect(Scope.CORE, ""))
        return tuple(passed)


def gain(bad: int, checked: int) -> float:
    """How much better a place explains its bad legs than chance does; 0 if chance explains them."""
    share = bad / max(bad, checked)
    if share <= BAD_BY_CHANCE:
        return 0.0
    good = max(bad, checked) - bad
    rest = good * math.log((1 - share) / (1 - BAD_BY_CHANCE)) if good else 0.0
    return bad * math.log(share / BAD_BY_CHANCE) + rest


def suspects(
    checked: CheckedLegs, bad: Mapping[Leg, int], scopes: Iterable[Scope] = Scope
) -> Iterator[ExplainedLegs]:
    """The places that explain the bad legs, given with their levels; the best explanation first."""
    scopes = frozenset(scopes)
    near = {end for leg in bad if checked.is_near(leg) for end in leg}
    of: dict[Suspect, dict[Leg, None]] = {}
    for leg in bad:
        here = scopes - _BEYOND if near.intersection(leg) else scopes
        for suspect in checked.passed(leg):
            if suspect.scope in here:
                of.setdefault(suspect, {})[leg] = None
    heap = [(-_weight(suspect, of, checked), *_key(suspect), suspect) for suspect in of]
    heapq.heapify(heap)
    while heap:
        before, *_, best = heapq.heappop(heap)
        weight = _weight(best, of, checked)
        if weight < GAIN_MIN:
            continue
        if weight < -before:  # an earlier suspect has explained some of its legs
            heapq.heappush(heap, (-weight, *_key(best), best))
            continue
        if not _is_broad(best, {leg: bad[leg] for leg in of[best]}, checked):
            continue
        legs = tuple(of[best])
        rivals = tuple(
            other
            for other in checked.passed(legs[0])
            if other.scope is best.scope
            and other != best
            and of.get(other, {}).keys() == of[best].keys()
            and checked.counts[other] == checked.counts[best]
        )
        yield ExplainedLegs(best, legs, checked.counts[best], rivals)
        for leg in legs:
            for suspect in checked.passed(leg):
                of.get(suspect, {}).pop(leg, None)


def _weight(suspect: Suspect, of: Mapping[Suspect, Mapping[Leg, None]], checked: CheckedLegs) -> float:
    return gain(len(of[suspect]), checked.counts[suspect])


def _key(suspect: Suspect) -> tuple[int, str, str]:
    """Of equal explanations a host comes before its only link, which the host's own word decides."""
    order = (Scope.HOST, Scope.LINK, Scope.LEAF, Scope.UPLINKS, Scope.SPINE, Scope.CORE)
    return order.index(suspect.scope), suspect.name, suspect.link


def _is_broad(suspect: Suspect, legs: Mapping[Leg, int], checked: CheckedLegs) -> bool:
    """The bad legs are not those of a few parts of the place."""
    scope, parts, others = suspect.scope, Counter[Suspect](), set[str]()
    for leg in legs:
        if scope in (Scope.LINK, Scope.HOST):
            own, far = leg if leg.writer.node == suspect.name else (leg.partner, leg.writer)
            parts[Suspect(Scope.LINK, *own)] += 1
            others.add(far.node)
        elif scope in (Scope.LEAF, Scope.UPLINKS):
            here = [end for end in leg if checked.places[end].leaf == suspect.name]
            parts.update(Suspect(Scope.LINK, *end) for end in here)
        else:
            parts.update(Suspect(Scope.UPLINKS, leaf) for leaf in {checked.places[end].leaf for end in leg})
            others.update(end.node for end in leg)
    if scope in (Scope.LINK, Scope.HOST):
        own_word = any(leg.writer.node == suspect.name for leg in legs)
        if len(others) < PARTNERS_MIN:
            return False
        if scope is Scope.LINK:
            near = RailEnd(suspect.name, suspect.link) not in checked.near or any(map(checked.is_near, legs))
            return near and own_word and (len(legs) >= FEW_LEGS or min(legs.values()) > LEG_LEVELS[0])
        return len(parts) >= scope.breadth or (len(parts) == checked.rails[suspect.name] and not own_word)
    if scope in _TIERS and len(others) < NODES_OF_TIER:
        return False
    part, most = parts.most_common(1)[0]
    fair = FEW_SHARE * checked.counts[part] / max(1, checked.counts[suspect])
    if len(parts) < scope.breadth or most > max(FEW_LEGS, len(legs) * max(scope.share, fair)):
        return False
    if scope is not Scope.LEAF:
        return True
    below = {end for leg in legs for end in leg if checked.places[end].leaf == suspect.name}
    near = checked.near.isdisjoint(below) or any(map(checked.is_near, legs))
    return near and not _is_several(suspect, legs, checked)


def _is_several(leaf: Suspect, legs: Mapping[Leg, int], checked: CheckedLegs) -> bool:
    """Several links explain the legs better than their leaf switch does, each at its ``PRICE``."""
    links = suspects(checked, legs, (Scope.LINK, Scope.HOST))
    sum_of_links = sum(gain(len(found.legs), found.checked) - PRICE for found in links)
    return sum_of_links > gain(len(legs), checked.counts[leaf]) - PRICE


def agreed(
    explained: Iterable[ExplainedLegs], before: Mapping[Suspect, float], now: float
) -> tuple[list[ExplainedLegs], dict[Suspect, float]]:
    """Those whose suspect was one ``AGREE_S`` ago too, and since when each has been one."""
    explained = list(explained)
    since = {found.suspect: before.get(found.suspect, now) for found in explained}
    return [found for found in explained if now - since[found.suspect] >= AGREE_S], since
