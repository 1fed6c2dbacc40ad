"""Which switches belong together: the join rule, and what is joined by it.

The law of this file: two switches are joined when at least half of the members that have either have both
(Jaccard ≥ 0.5), and what is joined by a chain is one group. A member is a node with its leaf switches, or one
tier further up a group with its uplinks. Exactly a half is evidence for both answers: there the published
tree decides, and where there is none they are joined.

The sums are kept, so that a member which changes costs only the switches that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from nodeagent.fabric.wiring import Wiring


class Group:
    """Switches that are joined, sorted. ``voters`` are the wirings with most of their links here;
    ``tied`` says that some two of the switches are joined by exactly a half.
    """

    __slots__ = ("forced", "leaves", "static", "tied", "voters")

    def __init__(self, leaves: tuple[str, ...], tied: bool = False, static: str = "") -> None:
        self.leaves = leaves
        self.tied = tied
        self.static = static
        self.voters: set[Wiring] = set()
        self.forced: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """What it is named for, and its place among others."""
        return self.static or self.leaves[0]


class Graph:
    """How many members each switch has, and how many each two of them have in common."""

    def __init__(
        self, apart: Callable[[str, str], bool], static: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``apart``: two switches are published, and not together. ``static`` are the switches of each group
        that is told.
        """
        self._apart = apart
        self._static = {leaf: leaves for leaves in (static or {}).values() for leaf in leaves}
        self._degree: dict[str, int] = {}
        self._common: dict[str, dict[str, int]] = {}
        self.of: dict[str, Group] = {}

    def __contains__(self, leaf: str) -> bool:
        return leaf in self._degree

    def weigh(self, leaves: tuple[str, ...], by: int) -> None:
        """``by`` members more (or fewer) have exactly these switches."""
        degree, common = self._degree, self._common
        for leaf in leaves:
            now = degree.get(leaf, 0) + by
            if now:
                degree[leaf] = now
            else:
                del degree[leaf]
            row = common.get(leaf)
            if row is None:
                row = common[leaf] = {}
            for other in leaves:
                if other != leaf:
                    now = row.get(other, 0) + by
                    if now:
                        row[other] = now
                    else:
                        del row[other]
            if not row:
                del common[leaf]

    def weight(self, group: Group) -> int:
        """How many links go to a group."""
        return sum(self._degree.get(leaf, 0) for leaf in group.leaves)

    def overlap(self, one: str, other: str) -> tuple[int, int]:
        """How many members have both switches, and how many have either."""
        both = self._common.get(one, {}).get(other, 0)
        return both, self._degree.get(one, 0) + self._degree.get(other, 0) - both

    def joined(self, leaf: str, *, strictly: bool = False) -> Iterator[tuple[str, bool]]:
        """The switches that a switch is joined to, and whether by exactly a half."""
        degree, static = self._degree, self._static
        if leaf in static:
            for other in static[leaf]:
                if other != leaf and other in degree:
                    yield other, False
            return
        mine = degree.get(leaf, 0)
        for other, shared in self._common.get(leaf, {}).items():
            surplus = 3 * shared - mine - degree[other]
            if surplus < 0 or other in static:
                continue
            if surplus > 0:
                yield other, False
            elif not strictly and not self._apart(leaf, other):
                yield other, True

    def regroup(self, touched: Iterable[str]) -> tuple[list[Group], list[Group]]:
        """The groups that are gone and those that are new, after the sums of some switches have changed."""
        of, degree = self.of, self._degree
        old: set[Group] = set()
        todo: set[str] = set()
        if not of:
            todo.update(leaf for leaf in touched if leaf in degree)
            touched = ()
        for leaf in touched:
            if (group := of.get(leaf)) is not None:
                old.add(group)
            if leaf in degree:
                todo.add(leaf)
                for other, _ in self.joined(leaf):
                    if (group := of.get(other)) is not None:
                        old.add(group)
                    else:
                        todo.add(other)
        for group in old:
            todo.update(leaf for leaf in group.leaves if leaf in degree)
        new: list[Group] = []
        seen: set[str] = set()
        kept: set[Group] = set()
        for leaf in sorted(todo):
            if leaf in seen:
                continue
            leaves, tied = self.reach(leaf)
            seen.update(leaves)
            before = of.get(leaf)
            if before is not None and before.leaves == leaves:
                before.tied = tied
                kept.add(before)
            else:
                new.append(Group(leaves, tied))
        gone = sorted(old - kept, key=lambda group: group.leaves)
        for group in gone:
            for leaf in group.leaves:
                if of.get(leaf) is group:
                    del of[leaf]
        for group in new:
            for leaf in group.leaves:
                of[leaf] = group
        return gone, new

    def reach(self, leaf: str, *, strictly: bool = False) -> tuple[tuple[str, ...], bool]:
        """The group of a switch from scratch, sorted, and whether some join is exactly a half."""
        found, todo, tied = {leaf}, [leaf], False
        common, degree = self._common, self._degree
        if not self._static and not strictly:
            # The same as below, without a generator for each of many thousand switches.
            while todo:
                one = todo.pop()
                row = common.get(one)
                if row is None:
                    continue
                mine = degree[one]
                for other, shared in row.items():
                    if other in found:
                        continue
                    surplus = 3 * shared - mine - degree[other]
                    if surplus < 0:
                        continue
                    if surplus == 0:
                        if self._apart(one, other):
                            continue
                        tied = True
                    found.add(other)
                    todo.append(other)
            return tuple(sorted(found)), tied
        while todo:
            for other, half in self.joined(todo.pop(), strictly=strictly):
                if other not in found:
                    tied = tied or half
                    found.add(other)
                    todo.append(other)
        return tuple(sorted(found)), tied


def vote(
    keys: Iterable[str], group_of: Callable[[str], Group | None], weight: Callable[[Group], int]
) -> tuple[dict[Group, int], Group | None, bool]:
    """How many links go into each group, which has most of them, and whether another has as many.

    Of equals the one with more links altogether, then the first by its anchor.
    """
    votes: dict[Group, int] = {}
    for key in keys:
        if key and (group := group_of(key)) is not None:
            votes[group] = votes.get(group, 0) + 1
    if len(votes) < 2:
        return votes, next(iter(votes), None), False
    most = max(votes.values())
    equals = [group for group in votes if votes[group] == most]
    return votes, min(equals, key=lambda group: (-weight(group), group.anchor)), len(equals) > 1
