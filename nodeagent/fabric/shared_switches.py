"""The switches that several leaf groups share, such as those of a storage network or of an upper tier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nodeagent.fabric.groups import MAJORITY, SwitchGraph


def find_shared(graph: SwitchGraph) -> dict[str, tuple[str, str]]:
    """The switches of several leaf groups.

    With each, two switches that serve one rail for different members, and have most of their members in common with
    it. If most of the other switches are common to both too, the rail is divided, and nothing is shared.
    """
    shared: dict[str, tuple[str, str]] = {}
    served = {leaf: graph.rails_of(leaf) for leaf in graph}
    search = _SharedSwitches(graph, served)
    for leaf in graph:
        union: set[str] = set()
        for other in graph.common(leaf):
            if not union.isdisjoint(served[other]):
                if leaf not in graph.static and (pair := search.pair(leaf)):
                    shared[leaf] = pair
                break
            union |= served[other]
    return shared


class _SharedSwitches:
    """Decides on one switch after the other."""

    def __init__(self, graph: SwitchGraph, served: Mapping[str, frozenset[str]]) -> None:
        """``served`` are the rails that each switch serves."""
        self._graph, self._served = graph, served

    def pair(self, leaf: str) -> tuple[str, str] | None:
        """Two switches of one rail that have most of their members in common with ``leaf``, and few with each other.

        None, if most switches of one of them are common to both: the rail is divided then.
        """
        by_rail: dict[str, list[tuple[int, str]]] = {}
        for other, both in self._graph.common(leaf).items():
            for rail in self._served[other]:
                by_rail.setdefault(rail, []).append((-both, other))
        found = (self._pair_of_rail(leaf, rail, near) for rail, near in by_rail.items() if len(near) > 1)
        both, one, another = min((pair for pair in found if pair is not None), default=(0, "", ""))
        return (one, another) if one and self._are_apart(leaf, one, another, both) else None

    def _pair_of_rail(
        self, leaf: str, rail: str, near: Sequence[tuple[int, str]]
    ) -> tuple[int, str, str] | None:
        """The switches of one rail. ``near`` are all of it, each after the number of members in common, negative.

        Few means less than half of the second one's. Half of the members of ``leaf`` have a neighbor on this rail, half
        of these at such switches: few may be at other odd switches. The second switch needs two members that the first
        one has not, and two on this rail, since one may be a wrong cable. Else the first one has no more than two, and
        all have this rail at such switches; or it has no more than half of those at the rail, and others are at a
        switch each.

        While fewer have a neighbor on this rail, three members are needed at switches beside the first one: one may be
        a wrong cable then, and one may lie.
        """
        graph = self._graph
        others = [(both, other) for both, other in near if self._covers(leaf, other)]
        if len(others) < 2:
            return None
        silent = self._count_silent(leaf, rail)
        at_rail = {other: min(-both, graph.members_on(other, rail)) for both, other in others}
        here = sum(at_rail.values())
        few = 2 * silent > graph.degree(leaf) or 2 * here < graph.degree(leaf) - silent
        # The cable of one member may be wrong, unless it is one of two or of three.
        others.sort(key=lambda near: (-at_rail[near[1]], near))
        first, most = others[0]
        beside: list[str] = []
        for both, other in others[1:]:
            common, deciding = graph.overlap(most, other)
            if 2 * common >= min(deciding, graph.degree(other)) or (
                MAJORITY * both > first and self._has_few_rails(other, most)
            ):
                continue
            if few:
                beside.append(other)
            elif (
                (-both - common > 1 or (both < -1 and self._count_beside(leaf, other, most) > 1))
                and graph.members_on(other, rail) > 1
            ) or (-2 * first <= graph.degree(leaf) - silent if first < -2 else here >= graph.degree(leaf)):
                return both, most, other
            else:
                return None
        if beside and self._count_witnesses(leaf, rail, beside, most) >= MAJORITY:
            return -graph.common(leaf)[beside[0]], most, beside[0]
        return None

    def _are_apart(self, leaf: str, one: str, another: str, both: int) -> bool:
        """The two switches share few others, compared with the switches that each has for itself."""
        common_with = self._graph.common(leaf)
        least = {each: min(2, common_with[each]) for each in (one, another)}
        around = self._graph.common(one).keys() & self._graph.common(another).keys()
        sharing = {
            other
            for other in around
            if all(
                self._covers(other, each)
                and self._graph.common(other)[each] >= max(few, _confirmed_third(common_with[each]))
                for each, few in least.items()
            )
        }
        own = 1 + max(self._count_joined(each, sharing, few) for each, few in least.items())
        alone = both == -1 and common_with[one] == 1
        return len(sharing) <= (own - 1 if alone else 2 * own)

    def _count_beside(self, leaf: str, other: str, first: str) -> int:
        """How many members have these two switches, and not the first one."""
        return sum(
            members
            for row, _, members in self._graph.rows
            if leaf in row and other in row and first not in row
        )

    def _count_witnesses(self, leaf: str, rail: str, others: Sequence[str], first: str) -> int:
        """How many members have this switch and, on this rail, one of the others and not the first one, at most.

        A border switch of another rail serves this one too, if one report says so.
        """
        beside, graph = set(others), self._graph
        found = sum(
            members
            for row, known, members in graph.rows
            if (not known or rail in known)
            and leaf in row
            and first not in row
            and not beside.isdisjoint(row)
        )
        return min(found, sum(graph.members_on(other, rail) for other in beside))

    def _count_silent(self, leaf: str, rail: str) -> int:
        """How many members of a switch have no neighbor on this rail."""
        reached = self._graph.reached(leaf)
        return sum(members for known, members in reached.items() if known and rail not in known)

    def _has_few_rails(self, leaf: str, other: str) -> bool:
        """Whether the members have less than half of the other's rails, as gateways beside nodes with eight NICs: their
        rails need not have the same numbers."""
        rails, others = (max(map(len, self._graph.reached(one))) for one in (leaf, other))
        return 2 * rails < others

    def _count_joined(self, leaf: str, except_for: Collection[str], least: int) -> int:
        """How many switches most members have together with this one: ``least`` members at least, and a third of its
        own, also without any one of them."""
        graph, mine = self._graph, self._graph.degree(leaf)
        pairs = (graph.overlap(leaf, other) for other in graph.common(leaf).keys() - except_for)
        return sum(
            both >= least and 2 * both >= deciding and (mine < MAJORITY or MAJORITY * (both - 1) >= mine)
            for both, deciding in pairs
        )

    def _covers(self, leaf: str, other: str) -> bool:
        """Of the members of ``other`` that decide, more than half have ``leaf`` too."""
        twice = 2 * self._graph.common(leaf).get(other, 0)
        return twice > self._graph.degree(other) or twice > self._graph.decide(other, leaf)


def _confirmed_third(members: int) -> int:
    """More than a third of three members or more without any one of them. A border switch has fewer of a unit's."""
    return members // MAJORITY + 2 if members >= MAJORITY else 0
