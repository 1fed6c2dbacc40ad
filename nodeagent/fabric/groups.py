"""Which switches belong together: the join rule, and the groups that it makes.

* Two switches are joined when at least half of the members that decide on them have both. A member decides if it has
  one of the two, and a neighbor on a rail that the other one serves. So a cable that is not there yet is no evidence,
  and a unit that is half cabled is one group. Chains of joined switches are one group. A member is a node with its
  leaf switches, or in a higher tier a group with its uplinks.
* Exactly half supports both answers. The published tree decides then; without one, the switches are joined.
* Nodes with identical cabling are counted together, so that a sum over 100,000 nodes is one over a few thousand
  patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from nodeagent.fabric.reports import CompactReport, Shape

MAJORITY = 3
"""A rail of a switch with less than a third of the links of its first rail is not one that it serves."""


class CablingPattern:
    """All nodes with identical cabling: their reports share one ``shape``, and the same links count.

    ``keys[i]`` is the switch of ``shape[i]``, empty for a link without a neighbor that counts. ``leaves`` are these
    switches, sorted and each once. ``votes`` counts the links into each group; ``best`` is the group with most of them.
    ``cables`` is the shape with the expired neighbors of published nodes.
    """

    __slots__ = ("best", "cables", "keys", "leaves", "nodes", "shape", "votes")

    def __init__(self, shape: Shape, cables: Shape) -> None:
        self.shape = shape
        self.cables = cables
        self.nodes: dict[str, CompactReport] = {}
        self.keys: tuple[str, ...] = ()
        self.leaves: tuple[str, ...] = ()
        self.votes: dict[SwitchGroup, int] = {}
        self.best: SwitchGroup | None = None

    @property
    def unanimous(self) -> bool:
        """Every link has a neighbor, and all of them are in one group."""
        return len(self.votes) == 1 and "" not in self.keys

    @property
    def links_without_neighbor(self) -> int:
        """The number of links without a neighbor that counts."""
        return self.keys.count("")


class SwitchGroup:
    """Joined switches, sorted.

    ``voters`` are the patterns with most of their links here, ``forced`` the nodes that the topology file puts here,
    ``static`` the group's name in that file. ``tied``: some switches are joined by exactly half of their members.
    ``leafless``: the switches are a ring or a chain, in which neighbors share some nodes, and no two share most.
    """

    __slots__ = ("forced", "leafless", "leaves", "static", "tied", "voters")

    def __init__(self, leaves: tuple[str, ...], *, tied: bool = False, static: str = "") -> None:
        self.leaves = leaves
        self.tied = tied
        self.static = static
        self.leafless = False
        self.voters: list[CablingPattern] = []
        self.forced: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The name that the group's object is derived from; it also orders groups."""
        return self.static or self.leaves[0]


class SwitchGraph:
    """Counts the members of each switch and of each pair of switches. ``of`` is the group of each switch.

    ``rails[leaf]`` counts the members of a switch by rail. ``static`` are the switches of the topology file, each
    with those of its group.
    """

    def __init__(
        self, apart: Callable[[str, str], bool], static: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``apart``: two switches are published in different objects. ``static``: the switches of each group of
        the topology file.
        """
        self._apart = apart
        self.static = {leaf: leaves for leaves in (static or {}).values() for leaf in leaves}
        self._degree: dict[str, int] = {}
        self._common: dict[str, dict[str, int]] = {}
        self._reached: dict[str, dict[frozenset[str], int]] = {}
        """The members of a switch by the rails that they reach; none: every rail."""
        self._deciding: dict[str, dict[frozenset[str], int]] = {}
        self._served: dict[str, frozenset[str]] = {}
        self._left_out: frozenset[str] = frozenset()
        self.rails: dict[str, dict[str, int]] = {}
        self.of: dict[str, SwitchGroup] = {}

    def __contains__(self, leaf: str) -> bool:
        return leaf in self._degree

    def add(self, leaves: tuple[str, ...], members: int, links: Iterable[tuple[str, str]] = ()) -> None:
        """Count members that have exactly these switches. ``links`` are the switch and the rail of each link.

        Without ``links``, each member decides on every pair of switches of which it has one.
        """
        degree, common = self._degree, self._common
        cabled = [(leaf, rail) for leaf, rail in links if leaf]
        for leaf, rail in cabled:
            counts = self.rails.setdefault(leaf, {})
            counts[rail] = counts.get(rail, 0) + members
        known = frozenset(rail for _, rail in cabled)
        for leaf in leaves:
            reached = self._reached.setdefault(leaf, {})
            reached[known] = reached.get(known, 0) + members
            degree[leaf] = degree.get(leaf, 0) + members
            row = common.get(leaf)
            if row is None:
                row = common[leaf] = dict.fromkeys(leaves, members)
                del row[leaf]
                continue
            for other in leaves:
                if other != leaf:
                    row[other] = row.get(other, 0) + members

    def leave_out(self, leaves: Collection[str]) -> None:
        """Let these switches join nothing. They are in no group."""
        self._left_out = frozenset(leaves)

    def form_groups(self) -> list[SwitchGroup]:
        """Group all switches; the groups are sorted by their switches."""
        groups = []
        for leaf in sorted(self._degree):
            if leaf not in self.of and leaf not in self._left_out:
                leaves, tied = self.reach(leaf)
                group = SwitchGroup(leaves, tied=tied)
                self.of.update(dict.fromkeys(leaves, group))
                groups.append(group)
        return groups

    def merge(self, groups: Collection[SwitchGroup]) -> SwitchGroup:
        """Make one group of several."""
        group = SwitchGroup(tuple(sorted(leaf for part in groups for leaf in part.leaves)))
        self.of.update(dict.fromkeys(group.leaves, group))
        return group

    def weight(self, group: SwitchGroup) -> int:
        """The number of links into a group."""
        return sum(self._degree.get(leaf, 0) for leaf in group.leaves)

    def overlap(self, leaf: str, other: str) -> tuple[int, int]:
        """How many members have both switches, and how many decide on this pair."""
        both = self._common.get(leaf, {}).get(other, 0)
        return both, max(both, self._decide(leaf, other) + self._decide(other, leaf) - both)

    def reach(self, start: str, *, strictly: bool = False) -> tuple[tuple[str, ...], bool]:
        """All switches that chains of joins reach, sorted, and whether one of these joins is exactly half.

        ``strictly`` leaves out joins of exactly half.
        """
        reached, todo, tied = {start}, [start], False
        common, degree, static, left_out = self._common, self._degree, self.static, self._left_out
        while todo:
            leaf = todo.pop()
            if leaf in static:
                todo += (other for other in static[leaf] if other in degree and other not in reached)
                reached.update(todo)
                continue
            mine = degree[leaf]
            for other, shared in common[leaf].items():
                if other in reached or other in static or other in left_out:
                    continue
                if not shared == mine == degree[other]:
                    both, deciding = self.overlap(leaf, other)
                    surplus = 2 * both - deciding
                    if surplus < 0:
                        continue
                    if surplus == 0:
                        if strictly or self._apart(leaf, other):
                            continue
                        tied = True
                reached.add(other)
                todo.append(other)
        return tuple(sorted(reached)), tied

    def find_shared(self) -> dict[str, tuple[str, str]]:
        """The switches that several leaf groups share, such as those of a storage network or of an upper tier.

        With each, two switches that serve one rail for different members, and have most of their members in common
        with it. If most of the other switches are common to both too, the rail is divided, and nothing is shared.
        """
        shared: dict[str, tuple[str, str]] = {}
        served = {leaf: self._rails_of(leaf) for leaf in self._common}
        for leaf, row in self._common.items():
            union: set[str] = set()
            for other in row:
                if not union.isdisjoint(served[other]):
                    if leaf not in self.static and (pair := self._shared_by(leaf)):
                        shared[leaf] = pair
                    break
                union |= served[other]
        return shared

    def _shared_by(self, leaf: str) -> tuple[str, str] | None:
        """Two switches of one rail that have most of their members in common with ``leaf``, and few with each other.

        The second one needs two members, since one may be a wrong cable, or two thirds of three.
        """
        by_rail: dict[str, list[tuple[int, str]]] = {}
        for other, both in self._common[leaf].items():
            if self._covers(leaf, other):
                for rail in self._rails_of(other):
                    by_rail.setdefault(rail, []).append((-both, other))
        pairs: list[tuple[int, str, str]] = []
        for others in by_rail.values():
            others.sort()  # The cable of one member may be wrong, unless it is one of two or of three.
            first, most = others[0]
            for both, other in others[1:]:
                common, deciding = self.overlap(most, other)
                if 2 * common >= deciding or (MAJORITY * both > first and self._has_few_rails(other, most)):
                    continue
                if both < -1 or first >= -2:
                    pairs.append((both, most, other))
                break
        if not pairs:
            return None
        both, one, another = min(pairs)
        around = self._common[one].keys() & self._common[another].keys()
        sharing = {other for other in around if self._covers(other, one) and self._covers(other, another)}
        own = 1 + max(self._count_joined(one, sharing), self._count_joined(another, sharing))
        alone = both == -1 and self._common[leaf][one] == 1
        return (one, another) if len(sharing) <= (own - 1 if alone else 2 * own) else None

    def _has_few_rails(self, leaf: str, other: str) -> bool:
        """Whether the members have less than half of the other's rails, as gateways beside nodes with eight NICs: their
        rails need not have the same numbers."""
        rails, others = (max(map(len, self._reached[one])) for one in (leaf, other))
        return 2 * rails < others

    def _count_joined(self, leaf: str, except_for: Collection[str]) -> int:
        pairs = (self.overlap(leaf, other) for other in self._common[leaf].keys() - except_for)
        return sum(2 * both >= deciding for both, deciding in pairs)

    def _covers(self, leaf: str, other: str) -> bool:
        """Of the members of ``other`` that decide, more than half have ``leaf`` too."""
        return 2 * self._common[leaf].get(other, 0) > self._decide(other, leaf)

    def _decide(self, leaf: str, other: str) -> int:
        """How many members of ``leaf`` have a neighbor on a rail of ``other``."""
        served = self._rails_of(other)
        counts = self._deciding.setdefault(leaf, {})
        if (count := counts.get(served)) is None:
            count = counts[served] = sum(
                members
                for known, members in self._reached.get(leaf, {}).items()
                if not known or not served or not known.isdisjoint(served)
            )
        return count

    def _rails_of(self, leaf: str) -> frozenset[str]:
        """The rails that a switch serves; none: every rail."""
        served = self._served.get(leaf)
        if served is None:
            counts = self.rails.get(leaf, {})
            least = max(counts.values(), default=0) / MAJORITY
            served = self._served[leaf] = frozenset(rail for rail, count in counts.items() if count > least)
        return served


def count_votes(
    keys: Collection[str], group_of: Mapping[str, SwitchGroup], weight: Callable[[SwitchGroup], int]
) -> tuple[dict[SwitchGroup, int], SwitchGroup | None]:
    """How many links go into each group, and the group with most of them.

    Of equal groups, the one with more links altogether; then the first by its anchor.
    """
    votes: dict[SwitchGroup, int] = {}
    for key in keys:
        if key and (group := group_of.get(key)) is not None:
            votes[group] = votes.get(group, 0) + 1
    if len(votes) < 2:
        return votes, next(iter(votes), None)
    most = max(votes.values())
    equals = [group for group, count in votes.items() if count == most]
    return votes, min(equals, key=lambda group: (-weight(group), group.anchor))
