"""Which switches belong together: the join rule, and the groups that it makes.

* Two switches are joined when at least half of the members that have either have both (Jaccard index ≥ 0.5). Chains
  of joined switches are one group. A member is a node with its leaf switches, or in a higher tier a group with its
  uplinks.
* Exactly half supports both answers. The published tree decides then; without one, the switches are joined.
* Nodes with identical cabling are counted together, so that a sum over 100,000 nodes is one over a few thousand
  patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from nodeagent.fabric.reports import CompactReport, Shape


class CablingPattern:
    """All nodes with identical cabling: their reports share one ``shape``, and the same links count.

    ``keys[i]`` is the switch of ``shape[i]``, empty for a link without a neighbor that counts. ``leaves`` are these
    switches, sorted and each once. ``votes`` counts the links into each group; ``best`` is the group with most of them.
    """

    __slots__ = ("best", "keys", "leaves", "nodes", "shape", "votes")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
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
    """

    __slots__ = ("forced", "leaves", "static", "tied", "voters")

    def __init__(self, leaves: tuple[str, ...], *, tied: bool = False, static: str = "") -> None:
        self.leaves = leaves
        self.tied = tied
        self.static = static
        self.voters: list[CablingPattern] = []
        self.forced: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The name that the group's object is derived from; it also orders groups."""
        return self.static or self.leaves[0]


class SwitchGraph:
    """Counts the members of each switch and of each pair of switches. ``of`` is the group of each switch."""

    def __init__(
        self, apart: Callable[[str, str], bool], static: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``apart``: two switches are published in different objects. ``static``: the switches of each group of
        the topology file.
        """
        self._apart = apart
        self._static = {leaf: leaves for leaves in (static or {}).values() for leaf in leaves}
        self._degree: dict[str, int] = {}
        self._common: dict[str, dict[str, int]] = {}
        self.of: dict[str, SwitchGroup] = {}

    def __contains__(self, leaf: str) -> bool:
        return leaf in self._degree

    def add(self, leaves: tuple[str, ...], members: int) -> None:
        """Count members that have exactly these switches."""
        degree, common = self._degree, self._common
        for leaf in leaves:
            degree[leaf] = degree.get(leaf, 0) + members
            row = common.get(leaf)
            if row is None:
                row = common[leaf] = dict.fromkeys(leaves, members)
                del row[leaf]
                continue
            for other in leaves:
                if other != leaf:
                    row[other] = row.get(other, 0) + members

    def form_groups(self) -> list[SwitchGroup]:
        """Group all switches; the groups are sorted by their switches."""
        groups = []
        for leaf in sorted(self._degree):
            if leaf not in self.of:
                leaves, tied = self.reach(leaf)
                group = SwitchGroup(leaves, tied=tied)
                self.of.update(dict.fromkeys(leaves, group))
                groups.append(group)
        return groups

    def weight(self, group: SwitchGroup) -> int:
        """The number of links into a group."""
        return sum(self._degree.get(leaf, 0) for leaf in group.leaves)

    def overlap(self, leaf: str, other: str) -> tuple[int, int]:
        """How many members have both switches, and how many have either."""
        both = self._common.get(leaf, {}).get(other, 0)
        return both, self._degree.get(leaf, 0) + self._degree.get(other, 0) - both

    def reach(self, start: str, *, strictly: bool = False) -> tuple[tuple[str, ...], bool]:
        """All switches that chains of joins reach, sorted, and whether one of these joins is exactly half.

        ``strictly`` leaves out joins of exactly half.
        """
        reached, todo, tied = {start}, [start], False
        common, degree, static = self._common, self._degree, self._static
        while todo:
            leaf = todo.pop()
            if leaf in static:
                todo += (other for other in static[leaf] if other in degree and other not in reached)
                reached.update(todo)
                continue
            mine = degree[leaf]
            for other, shared in common[leaf].items():
                if other in reached:
                    continue
                surplus = 3 * shared - mine - degree[other]
                if surplus < 0 or other in static:
                    continue
                if surplus == 0:
                    if strictly or self._apart(leaf, other):
                        continue
                    tied = True
                reached.add(other)
                todo.append(other)
        return tuple(sorted(reached)), tied


def count_votes(
    keys: Collection[str], group_of: Mapping[str, SwitchGroup], weight: Callable[[SwitchGroup], int]
) -> tuple[dict[SwitchGroup, int], SwitchGroup | None]:
    """How many links go into each group, and the group with most of them.

    Of equal groups, the one with more links altogether; then the first by its anchor.
    """
    votes: dict[SwitchGroup, int] = {}
    for key in keys:
        if key:
            group = group_of[key]
            votes[group] = votes.get(group, 0) + 1
    if len(votes) < 2:
        return votes, next(iter(votes), None)
    most = max(votes.values())
    equals = [group for group, count in votes.items() if count == most]
    return votes, min(equals, key=lambda group: (-weight(group), group.anchor))
