"""Which switches belong together: the join rule, and the groups that it makes.

* A member is a node with its leaf switches, or in a higher tier a group with its uplinks. It decides on two switches if
  it has one of them, and a neighbor on a rail that the other one serves. So a cable that is not there yet is no
  evidence, and a unit that is half cabled is one group.
* Two parts, sets of switches, are joined if more than half of all decisions on their pairs are for it, and if two
  members at least have switches of both. Whatever one member says, the others decide. One member joins what nobody else
  has: its own switches to those of others, but not these to a third part.
* The parts that reports alone leave are whole from then on, and the published tree joins them: those of one object,
  unless most decisions are against it. It is the object that lists most of a part. So what is published stays so, and a
  plan from the tree of this plan makes the same groups.
* Exactly half supports both answers. Parts of two objects stay apart then, and a part that no object lists joins the
  one that has most of its members.
* Nodes with identical cabling are counted together, so that a sum over 100,000 nodes is one over a few thousand
  patterns. Switches with the same members are joined without counting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from typing import NamedTuple

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
        self, homes: Mapping[str, str] | None = None, static: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``homes`` is the published object that lists a switch. ``static``: the switches of each group of the
        topology file.
        """
        self.homes = homes or {}
        self.static = {leaf: leaves for leaves in (static or {}).values() for leaf in leaves}
        self._degree: dict[str, int] = {}
        self._common: dict[str, dict[str, int]] = {}
        self._reached: dict[str, dict[frozenset[str], int]] = {}
        """The members of a switch by the rails that they reach; none: every rail."""
        self._deciding: dict[str, dict[frozenset[str], int]] = {}
        self._served: dict[str, frozenset[str]] = {}
        self._left_out: frozenset[str] = frozenset()
        self._further: dict[tuple[str, str], int] = {}
        """The links of a rail to a switch beside the first one of each member."""
        self.rows: list[tuple[Sequence[str], frozenset[str], int]] = []
        """The switch of each link of a member, the rails that it reaches, and how many members have this cabling."""
        self._rail_sets: dict[frozenset[str], frozenset[str]] = {}
        self._at_odd_rails: dict[tuple[str, str], int] | None = None
        self._formed: list[_Group] = []
        self.rails: dict[str, dict[str, int]] = {}
        self.of: dict[str, SwitchGroup] = {}

    def __contains__(self, leaf: str) -> bool:
        return leaf in self._degree

    def __iter__(self) -> Iterator[str]:
        return iter(self._degree)

    def add(self, leaves: tuple[str, ...], members: int, links: Iterable[tuple[str, str]] = ()) -> None:
        """Count members that have exactly these switches. ``links`` are the switch and the rail of each link.

        Without ``links``, each member decides on every pair of switches of which it has one.
        """
        degree, common = self._degree, self._common
        cabled = [(leaf, rail) for leaf, rail in links if leaf]
        for leaf, rail in cabled:
            counts = self.rails.setdefault(leaf, {})
            counts[rail] = counts.get(rail, 0) + members
        row: Sequence[str] = leaves
        if len(cabled) > len(leaves):
            row = [leaf for leaf, _ in cabled]
            for (leaf, rail), count in Counter(cabled).items():
                if count > 1:
                    self._further[leaf, rail] = self._further.get((leaf, rail), 0) + (count - 1) * members
        known = frozenset([rail for _, rail in cabled])
        known = self._rail_sets.setdefault(known, known)
        self.rows.append((row, known, members))
        for leaf in leaves:
            reached = self._reached.setdefault(leaf, {})
            reached[known] = reached.get(known, 0) + members
            degree[leaf] = degree.get(leaf, 0) + members
            near = common.get(leaf)
            if near is None:
                near = common[leaf] = dict.fromkeys(leaves, members)
                del near[leaf]
                continue
            for other in leaves:
                if other != leaf:
                    near[other] = near.get(other, 0) + members

    def leave_out(self, leaves: Collection[str]) -> None:
        """Let these switches join nothing. They are in no group."""
        self._left_out = frozenset(leaves)

    def form_groups(self) -> list[SwitchGroup]:
        """Group all switches; the groups are sorted by their switches."""
        groups = []
        self._formed = self._form_parts()
        for formed in self._formed:
            groups.append(SwitchGroup(formed.leaves, tied=formed.tied))
            self.of.update(dict.fromkeys(formed.leaves, groups[-1]))
        return groups

    def strict_parts(self) -> Mapping[str, tuple[str, ...]]:
        """The switches of each switch's group, sorted, if exactly half were not enough."""
        return {leaf: part for formed in self._formed for part in formed.strict for leaf in part}

    def reported_parts(self) -> Mapping[str, tuple[str, ...]]:
        """The switches of each switch's group, sorted, if no object were published."""
        return {leaf: part for formed in self._formed for part in formed.reported for leaf in part}

    def _form_parts(self) -> list[_Group]:
        degree, static, left_out = self._degree, self.static, self._left_out
        done: set[str] = set()
        groups: list[_Group] = []
        islands: list[tuple[str, ...]] = []
        whole: list[tuple[str, ...]] = []
        for leaf in sorted(degree):
            if leaf in done or leaf in left_out:
                continue
            if leaf in static:
                island = tuple(sorted(other for other in static[leaf] if other in degree))
                groups.append(_Group(island, (island,), (island,), tied=False))
                done.update(island)
                continue
            mine, row = degree[leaf], self._common[leaf]
            same, shares = [leaf], False
            for other, both in row.items():
                if other in static or other in left_out:
                    continue
                if both == mine == degree[other]:
                    same.append(other)
                else:
                    shares = True
            island = tuple(sorted(same))
            done.update(island)
            (islands if shares else whole).append(island)
        divided = self._divided(whole, islands)
        islands += (island for island in whole if island in divided)
        groups += (
            _Group(island, (island,), (island,), tied=False) for island in whole if island not in divided
        )
        if islands:
            groups += _Joins(self, islands).groups()
        groups.sort(key=lambda group: group.leaves)
        return groups

    def _divided(self, *islands: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Islands that are published together with others."""
        first: dict[str, tuple[str, ...]] = {}
        divided: set[tuple[str, ...]] = set()
        if not self.homes:
            return divided
        for island in chain.from_iterable(islands):
            for leaf in island:
                home = self.homes.get(leaf)
                if home is not None and (other := first.setdefault(home, island)) is not island:
                    divided.update((island, other))
        return divided

    def common(self, leaf: str) -> Mapping[str, int]:
        """The number of members that a switch has in common with each other switch."""
        return self._common[leaf]

    def reached(self, leaf: str) -> Mapping[frozenset[str], int]:
        """The members of a switch by the rails that they reach; an empty set: every rail."""
        return self._reached[leaf]

    def degree(self, leaf: str) -> int:
        """The number of members of a switch."""
        return self._degree.get(leaf, 0)

    def inhabited(self, parts: Sequence[tuple[str, ...]]) -> list[bool]:
        """Whether each of these parts has most links of some member."""
        every = (*parts, *set(self.static.values()))
        part_of = {leaf: i for i, part in enumerate(every) for leaf in part}
        weight = [sum(map(self.degree, part)) for part in every]
        found: set[int] = set()
        for row, _, _ in self.rows:
            places = {part_of[leaf] for leaf in row if leaf in part_of}
            if len(places) > 1:
                votes = Counter(part_of[leaf] for leaf in row if leaf in part_of)
                places = {min(votes, key=lambda i: (-votes[i], -weight[i], every[i]))}
            found |= places
        return [i in found for i in range(len(parts))]

    def witnesses(self, leaves: Collection[str]) -> dict[str, set[int]]:
        """The members of these switches, those with identical cabling once, by number."""
        found: dict[str, set[int]] = {leaf: set() for leaf in leaves}
        for i, (row, _, _) in enumerate(self.rows):
            for leaf in row:
                if leaf in found:
                    found[leaf].add(i)
        return found

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
        return both, self.decide(leaf, other) + self.decide(other, leaf) - both

    def decide(self, leaf: str, other: str) -> int:
        """How many members of ``leaf`` have ``other`` too, or a neighbor on a rail of it."""
        served = self._served.get(other)
        if served is None:
            served = self.rails_of(other)
        counts = self._deciding.get(leaf)
        if counts is None:
            counts = self._deciding[leaf] = {}
        if (count := counts.get(served)) is None:
            count = counts[served] = sum(
                members
                for known, members in self._reached.get(leaf, {}).items()
                if not known or not served or not known.isdisjoint(served)
            )
        odd = self._at_odd_rails
        if odd is None:
            odd = self._find_at_odd_rails()
        return count + odd.get((leaf, other), 0) if odd else count

    def _find_at_odd_rails(self) -> dict[tuple[str, str], int]:
        """How many members of the first switch have the second one too, and reach none of its rails."""
        odd = {
            (leaf, known)
            for leaf, reached in self._reached.items()
            if (served := self.rails_of(leaf))
            for known in reached
            if known and known.isdisjoint(served)
        }
        found = self._at_odd_rails = {}
        sets = {known for _, known in odd}
        for row, known, members in self.rows if odd else ():
            if known in sets:
                leaves = set(row)
                for other in leaves:
                    if (other, known) in odd:
                        for leaf in leaves - {other}:
                            found[leaf, other] = found.get((leaf, other), 0) + members
        return found

    def members_on(self, leaf: str, rail: str) -> int:
        """How many members have a link of this rail to a switch."""
        return self.rails[leaf].get(rail, 0) - self._further.get((leaf, rail), 0)

    def rails_of(self, leaf: str) -> frozenset[str]:
        """The rails that a switch serves; none: every rail."""
        served = self._served.get(leaf)
        if served is None:
            rails = self.rails.get(leaf, {})
            if len(rails) > 1:
                counts = {rail: self.members_on(leaf, rail) for rail in rails}
                least = max(counts.values()) / MAJORITY
                rails = {rail: count for rail, count in counts.items() if count > least}
            served = self._served[leaf] = frozenset(rails)
        return served


class _Group(NamedTuple):
    """Switches of a group, sorted; ``strict`` are its parts if exactly half were not enough, ``reported`` those if no
    object were published."""

    leaves: tuple[str, ...]
    strict: tuple[tuple[str, ...], ...]
    reported: tuple[tuple[str, ...], ...]
    tied: bool


class _Joins:
    """Joins islands: switches with the same members, which other members have in common with further switches.

    Reports alone join the parts. Published objects and decisions of exactly half then join whole parts, each of which
    keeps to one object, so that a plan from the tree of this plan makes the same groups.
    """

    def __init__(self, graph: SwitchGraph, islands: Sequence[tuple[str, ...]]) -> None:
        self._graph, self._islands = graph, islands
        self._tallies: dict[tuple[int, int], tuple[int, int]] = {}
        self._witnesses: dict[str, set[int]] | None = None
        self._near = self._neighbors()
        self._degrees = [graph.degree(island[0]) for island in islands]

    def groups(self) -> list[_Group]:
        parts = self._by_reports()
        leaves = list(map(self._leaves, parts))
        inhabited = self._graph.inhabited(leaves)
        home = [self._home(part) for part in parts]
        strict, tied = _Union(len(parts)), _Union(len(parts))
        together: dict[str, list[int]] = {}
        for i, name in enumerate(home):
            if name:
                together.setdefault(name, []).append(i)
        near = self._near_parts(parts)
        for i, j in chain.from_iterable(combinations(found, 2) for found in together.values()):
            if not (inhabited[i] or inhabited[j]):
                continue  # their object lists them as switches without nodes, which joined they might not be
            if j not in near[i]:
                if not self._are_apart(parts[i], parts[j]):
                    strict.join(i, j)
                    tied.join(i, j)
                continue
            surplus, votes = self._tally(parts[i], parts[j])
            if surplus > 0 or surplus == votes == 0:
                strict.join(i, j)
            if surplus >= 0:
                tied.join(i, j)
        self._follow(parts, inhabited, home, near, tied)
        groups: list[_Group] = []
        for group in tied.sets(range(len(parts))):
            reported = tuple(leaves[i] for i in group)
            if len(group) == 1:
                groups.append(_Group(leaves[group[0]], reported, reported, tied=False))
                continue
            inner = tuple(
                tuple(sorted(chain.from_iterable(leaves[i] for i in part))) for part in strict.sets(group)
            )
            groups.append(
                _Group(tuple(sorted(chain.from_iterable(inner))), inner, reported, tied=len(inner) > 1)
            )
        return groups

    def _by_reports(self) -> list[list[int]]:
        """Join what most decisions are for, the clearest majority first. Switches of one member come last: however many
        it names, they join what others have joined, and of several what that member has most links to.

        A join that is refused is tried again when others have been made.
        """
        part_of, pairs = self._whole_units()
        links = self._links_of_one(chain.from_iterable(pairs))
        found: list[tuple[bool, float, int, int, int, int]] = []
        for i, j in pairs:
            surplus, votes = self._pair(i, j)
            alone = i in links or j in links
            most = links[i][j] if i in links else links[j][i] if j in links else 0
            found.append((alone, surplus / (surplus - 2 * votes), -surplus, -most, i, j))
        found.sort()
        for alone in (False, True):
            todo, count = [(i, j) for last, *_, i, j in found if last == alone], -1
            while len(todo) != count:
                count, rest = len(todo), []
                for i, j in todo:
                    one, other = part_of[i], part_of[j]
                    if one is other:
                        continue
                    if self._tally(one, other)[0] > 0 and self._are_witnessed(one, other):
                        one += other
                        for k in other:
                            part_of[k] = one
                    else:
                        rest.append((i, j))
                todo = rest
        return list({id(part): part for part in part_of}.values())

    def _links_of_one(self, islands: Iterable[int]) -> dict[int, Counter[int]]:
        """For each of these islands that has one member: that member's links to each island."""
        alone = {self._islands[i][0]: i for i in islands if self._degrees[i] == 1}
        if not alone:
            return {}
        at = {leaf: i for i, island in enumerate(self._islands) for leaf in island}
        return {
            alone[leaf]: Counter(at[other] for k in rows for other in self._graph.rows[k][0] if other in at)
            for leaf, rows in self._graph.witnesses(alone).items()
        }

    def _whole_units(self) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """The part of each island, and the other pairs of islands that some decision may join.

        Two islands are clearly together if two members have both, and more than half of all their members do. Islands
        that all are clearly together, and are with no other one, are a part without counting decisions.
        """
        clear: list[set[int]] = [{i} for i in range(len(self._islands))]
        pairs: list[tuple[int, int]] = []
        degrees, first = self._degrees, [island[0] for island in self._islands]
        for i, near in enumerate(self._near):
            common, degree = self._graph.common(first[i]), degrees[i]
            for j in near:
                if j < i:
                    continue
                both = common[first[j]]
                if both > 1 and 3 * both > degree + degrees[j]:
                    clear[i].add(j)
                    clear[j].add(i)
                elif not self._is_clearly_against(i, j, both) and self._pair(i, j)[0] >= 0:
                    pairs.append((i, j))
        doubtful = set(chain.from_iterable(pairs))
        part_of = [[i] for i in range(len(self._islands))]
        for i, mates in enumerate(clear):
            if part_of[i][0] != i:
                continue
            if mates.isdisjoint(doubtful) and all(clear[j] == mates for j in mates):
                part = sorted(mates)
                for j in part:
                    part_of[j] = part
            else:
                pairs += [(i, j) for j in mates if j > i]
        return part_of, pairs

    def _is_clearly_against(self, i: int, j: int, both: int) -> bool:
        """Of the members of one switch alone, more decide against a join with the other than for it."""
        one, other = self._islands[i], self._islands[j]
        return len(one) == len(other) == 1 and 2 * both < self._graph.decide(one[0], other[0])

    def _follow(
        self,
        parts: Sequence[list[int]],
        inhabited: Sequence[bool],
        home: Sequence[str],
        near: Sequence[set[int]],
        joined: _Union,
    ) -> None:
        """Join each part that no object lists to one with nodes, if exactly half of the decisions are for it, and fewer
        for each other one. Of two parts with nodes, the other one is published, or larger: no two that are published
        are joined. Of several parts with nodes that would join one, the one with most decisions for it does, or none:
        nothing says that the others belong to it."""
        weight = [sum(self._graph.degree(leaf) for i in part for leaf in self._islands[i]) for part in parts]
        joins: dict[int, list[tuple[int, int]]] = {}
        for place, part in enumerate(parts):
            if home[place]:
                continue
            found: list[tuple[int, int]] = []
            for other in sorted(near[place]):
                larger = (weight[other], -other) > (weight[place], -place)
                if not inhabited[other] or (inhabited[place] and not (home[other] or larger)):
                    continue
                votes = self._half(part, parts[other])
                if votes and self._are_witnessed(part, parts[other]):
                    found.append((-votes, other))
            found.sort()
            if found and found[0][0] < min((votes for votes, _ in found[1:]), default=0):
                votes, other = found[0]
                if inhabited[place]:
                    joins.setdefault(other, []).append((votes, place))
                else:
                    joined.join(place, other)
        for other, following in joins.items():
            following.sort()
            if len(following) == 1 or following[0][0] < following[1][0]:
                joined.join(following[0][1], other)

    def _neighbors(self) -> list[set[int]]:
        """The islands that share members with each one."""
        at = {leaf: i for i, island in enumerate(self._islands) for leaf in island}
        return [
            {at[leaf] for leaf in self._graph.common(island[0]) if leaf in at} - {i}
            for i, island in enumerate(self._islands)
        ]

    def _near_parts(self, parts: Sequence[list[int]]) -> list[set[int]]:
        """The parts that share members with each one."""
        at = {i: place for place, part in enumerate(parts) for i in part}
        return [{at[j] for i in part for j in self._near[i]} - {place} for place, part in enumerate(parts)]

    def _are_apart(self, one: Collection[int], other: Collection[int]) -> bool:
        """Of two parts without common members, some member decides against a join."""
        islands = self._islands
        return any(
            self._graph.overlap(leaf, another)[1]
            for i, j in product(one, other)
            for leaf, another in product(islands[i], islands[j])
        )

    def _leaves(self, islands: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(leaf for i in islands for leaf in self._islands[i]))

    def _pair(self, i: int, j: int) -> tuple[int, int]:
        """Of the decisions on all pairs of switches of two islands, how many more are for a join than against it, and
        how many are for it."""
        known = self._tallies.get((i, j))
        if known is None:
            surplus = votes = 0
            for one in self._islands[i]:
                for other in self._islands[j]:
                    both, deciding = self._graph.overlap(one, other)
                    surplus += 2 * both - deciding
                    votes += both
            known = self._tallies[i, j] = self._tallies[j, i] = surplus, votes
        return known

    def _tally(self, one: Collection[int], other: Collection[int]) -> tuple[int, int]:
        """The same of two parts."""
        tallies = [self._pair(i, j) for i in one for j in other]
        return sum(tally[0] for tally in tallies), sum(tally[1] for tally in tallies)

    def _half(self, one: Collection[int], other: Collection[int]) -> int:
        """How many decisions are for a join of two parts, if these are exactly half of all; none otherwise.

        Two units with one wrong cable between them have dozens against it on the first pair already.
        """
        graph, islands = self._graph, self._islands
        votes = 0
        for i in one:
            for j in self._near[i].intersection(other):
                both = graph.common(islands[i][0])[islands[j][0]]
                votes += both * len(islands[i]) * len(islands[j])
        rest = 2 * votes
        for i, j in product(one, other):
            for leaf, another in product(islands[i], islands[j]):
                rest -= graph.overlap(leaf, another)[1]
                if rest < 0:
                    return 0
        return votes if rest == 0 else 0

    def _are_witnessed(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Two members have switches of both; or one member, and nobody else has any of one side."""
        if any(len(part) == 1 and self._degrees[part[0]] == 1 for part in (one, other)):
            return True
        for i in one:
            common = self._graph.common(self._islands[i][0])
            if any(common.get(self._islands[j][0], 0) > 1 for j in other):
                return True
        if self._witnesses is None:
            self._witnesses = self._graph.witnesses([island[0] for island in self._islands])
        members, others = (
            set[int]().union(*(self._witnesses[self._islands[i][0]] for i in part)) for part in (one, other)
        )
        return len(members & others) > 1

    def _home(self, part: Iterable[int]) -> str:
        """The published object that lists most of a part, by links: one, so that no part joins those of two objects.

        Switches of one member count only where there are no others.
        """
        homes, weight = self._graph.homes, defaultdict[str, list[int]](lambda: [0, 0])
        for i in part:
            for leaf in self._islands[i]:
                if (home := homes.get(leaf)) is not None:
                    weight[home][0] += self._degrees[i] - 1
                    weight[home][1] += 1
        return min(weight, key=lambda home: ([-count for count in weight[home]], home), default="")


class _Union:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def join(self, i: int, j: int) -> None:
        i, j = sorted((self._root(i), self._root(j)))
        self._parent[j] = i

    def sets(self, numbers: Iterable[int]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for i in numbers:
            found.setdefault(self._root(i), []).append(i)
        return list(found.values())

    def _root(self, i: int) -> int:
        while (parent := self._parent[i]) != i:
            self._parent[i] = i = self._parent[parent]
        return i


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
    return votes, best_of(votes, weight)


def best_of(votes: Mapping[SwitchGroup, int], weight: Callable[[SwitchGroup], int]) -> SwitchGroup | None:
    """The group with most votes; of equal ones as ``count_votes`` has it."""
    if len(votes) < 2:
        return next(iter(votes), None)
    most = max(votes.values())
    equals = [group for group, count in votes.items() if count == most]
    return min(equals, key=lambda group: (-weight(group), group.anchor))
