"""The choice of partners: for each link two at its leaf switch, and one at another leaf switch, all of its rail.

* At a leaf switch the links form two rings, ordered by two digests of the names of nodes: each link probes the next one
  in both, or the one after it in the second. A link that joins changes its neighbors in the rings and nobody else.
* Across, each link keeps its partner while that one is there. Others take a partner that nobody probes yet, as far as
  there is one. So a link that joins or leaves changes at most nine lists.
* Across means to another leaf switch below the same spine; below a core every other link probes one below another
  spine. Between leaf groups that no tier joins there may be no path, so nobody probes there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from nodeagent.fabric.rail_partners import PARTNERS_MAX
from nodeagent.fabric.rail_suspects import Leg, RailEnd, RailPlace

RINGS = ("first", "second")
ACROSS_MAX = PARTNERS_MAX - len(RINGS) - 1
"""The most links that probe one link across: a list has room for no more."""


def choose(
    places: Mapping[RailEnd, RailPlace], across: Mapping[RailEnd, RailEnd]
) -> tuple[list[Leg], dict[RailEnd, RailEnd]]:
    """All legs, each once, and the partner across of each link that has one. ``across`` are those until now."""
    legs: dict[Leg, None] = {}
    leaves: dict[tuple[str, str], list[RailEnd]] = defaultdict(list)
    for end, place in places.items():
        leaves[place.rail, place.leaf].append(end)
    for ends in leaves.values():
        for ring in RINGS:
            order = sorted(ends, key=lambda end: (_digest(ring, end.node), end.link))
            for i, end in enumerate(order):
                leg = Leg(end, order[i - 1])
                if leg in legs:
                    leg = Leg(end, order[i - 2])
                if leg.partner.node != end.node:
                    legs[leg] = None
    far = _across(places, across)
    legs.update((Leg(*pair), None) for pair in far.items() if pair[0].node != pair[1].node)
    return list(legs), far


def _across(places: Mapping[RailEnd, RailPlace], before: Mapping[RailEnd, RailEnd]) -> dict[RailEnd, RailEnd]:
    found: dict[RailEnd, RailEnd] = {}
    load = Counter[RailEnd]()
    order = sorted(places, key=lambda end: (_digest("across", end.node), end.link))
    for end in order:
        kept = before.get(end)
        if kept is None or kept not in places or load[kept] >= ACROSS_MAX:
            continue
        if _joined(places[end], places[kept]):
            found[end] = kept
            load[kept] += 1
    pools = _Pools(places, order, load)
    for end in order:
        if end not in found and (partner := pools.partner(end)) is not None:
            found[end] = partner
    return found


class _Pool:
    """Links that may be chosen, by leaf switch; as often as each stands here."""

    def __init__(self) -> None:
        self._ends: dict[str, list[RailEnd]] = {}
        self._leaves: list[str] = []

    def add(self, leaf: str, end: RailEnd) -> None:
        if leaf not in self._ends:
            self._ends[leaf] = []
            self._leaves.append(leaf)
        self._ends[leaf].append(end)

    def take(self, turn: int, other_than: str) -> RailEnd | None:
        """A link at another leaf switch; ``turn`` differs from node to node."""
        leaves, count = self._leaves, len(self._leaves)
        if count - (other_than in self._ends) < 1:
            return None
        at = turn % count
        if leaves[at] == other_than:
            at = (at + 1) % count
        ends = self._ends[leaves[at]]
        chosen = ends.pop()
        if not ends:
            del self._ends[leaves[at]]
            leaves[at] = leaves[-1]
            leaves.pop()
        return chosen


class _Pools:
    """The links that nobody probes across, then those that answer few, by rail and spine."""

    def __init__(
        self, places: Mapping[RailEnd, RailPlace], order: Sequence[RailEnd], load: Mapping[RailEnd, int]
    ) -> None:
        self._places = places
        self._free: dict[tuple[str, str], _Pool] = defaultdict(_Pool)
        self._others: dict[tuple[str, str], _Pool] = defaultdict(_Pool)
        spines: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for answered in reversed(range(ACROSS_MAX)):
            pools = self._others if answered else self._free
            for end in order:
                place = places[end]
                if place.spine and load[end] <= answered:
                    pools[place.rail, place.spine].add(place.leaf, end)
                    spines[place.rail, place.core or place.spine][place.spine] = None
        self._spines = {key: list(names) for key, names in spines.items()}

    def partner(self, end: RailEnd) -> RailEnd | None:
        """A partner across for a link; ``None``: no other leaf switch is joined with its own."""
        place, turn = self._places[end], _digest("turn", end.node)
        if not place.spine:
            return None
        for pools in (self._free, self._others):
            for spine in self._spines_for(place, turn):
                partner = pools[place.rail, spine].take(turn, place.leaf)
                if partner is not None:
                    return partner
        return None

    def _spines_for(self, place: RailPlace, turn: int) -> Iterator[str]:
        """One's own spine first for every other link, and last for the rest."""
        names = self._spines.get((place.rail, place.core or place.spine), ())
        own_first = bool(turn & 1 << 20)
        if own_first:
            yield place.spine
        yield from (
            spine for i in range(len(names)) if (spine := names[(turn + i) % len(names)]) != place.spine
        )
        if not own_first:
            yield place.spine


def _joined(one: RailPlace, other: RailPlace) -> bool:
    """Two links of one rail have different leaf switches that a known tier joins."""
    same = one.spine == other.spine or one.core == other.core != ""
    return one.rail == other.rail and one.leaf != other.leaf and one.spine != "" and same


def _digest(salt: str, node: str) -> int:
    """The same for all links of a node, so that its rails have the same partner nodes."""
    return int.from_bytes(blake2b(f"{salt} {node}".encode(), digest_size=8).digest())
