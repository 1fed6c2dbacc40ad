"""From reports to leaf groups: cabling patterns, their switches, the groups of these, and the votes for each group.

A link whose LLDP information has expired is a link without a neighbor: it counts for the group in which its node is
published. So expired information keeps a place, and neither makes one nor joins switches. It still identifies switches
if its node is published: some reports contain the old chassis ID of a replaced switch.

Nothing else here depends on where a node is published, and nothing on time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.groups import CablingPattern, SwitchGraph, SwitchGroup, count_votes
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.reports import CompactReport, Shape, SwitchAnnouncement
from nodeagent.fabric.switch_names import SwitchNames


class LinkVotes:
    """``groups`` are all leaf groups, ``static_groups`` those of the topology file by their name there.

    ``unknown`` are nodes with a report but without a Node. Their reports do not count.
    """

    def __init__(
        self, rules: FabricRules, levels: Levels, published: PublishedTree, record: Mapping[str, str]
    ) -> None:
        self.unknown = [node for node in levels.reports if node not in levels.nodes] if levels.nodes else []
        placed = published.tiers[1].placed
        self._patterns = _Patterns(levels.reports, frozenset(self.unknown), placed)
        self.names = SwitchNames(
            self._patterns,
            rules.generic_names,
            published.switches.placed,
            published.aliases,
            record,
        )
        self._by_leaf: dict[str, list[CablingPattern]] = {}
        static = {group.name: group.switches for group in levels.topology.groups}
        self.graph = SwitchGraph(published.switches.apart, static)
        self._resolve_switches()
        self.groups = self.graph.form_groups()
        self.static_groups = self._static_groups(levels)
        self._count()

    @property
    def patterns(self) -> Sequence[CablingPattern]:
        return list(self._patterns)

    def pattern(self, node: str) -> CablingPattern | None:
        """The pattern of a node whose report counts."""
        return self._patterns.of(node)

    def at(self, leaf: str) -> Sequence[CablingPattern]:
        """The patterns with a link to a switch."""
        return self._by_leaf.get(leaf, ())

    def _resolve_switches(self) -> None:
        by_leaf = self._by_leaf
        self._patterns.resolve(self.names.keys)
        for pattern in self._patterns:
            pattern.leaves = tuple(sorted(set(pattern.keys) - {""}))
            for leaf in pattern.leaves:
                by_leaf.setdefault(leaf, []).append(pattern)
            self.graph.add(pattern.leaves, len(pattern.nodes))

    def _static_groups(self, levels: Levels) -> dict[str, SwitchGroup]:
        """The groups of the topology file. One whose switches are in no report has no switches here."""
        of = self.graph.of
        entries = levels.topology.groups
        name_of = {leaf: entry.name for entry in entries for leaf in entry.switches}
        for group in self.groups:
            group.static = name_of.get(group.leaves[0], "")
        static: dict[str, SwitchGroup] = {}
        for entry in entries:
            known = (of[leaf] for leaf in entry.switches if leaf in of)
            group = next(known, SwitchGroup((), static=entry.name))
            group.forced = tuple(node for node in entry.nodes if levels.exists(node))
            static[entry.name] = group
        return static

    def _count(self) -> None:
        for pattern in self._patterns:
            pattern.votes, pattern.best = count_votes(pattern.keys, self.graph.of, self.graph.weight)
            if pattern.best is not None:
                pattern.best.voters.append(pattern)


class _Patterns:
    """The patterns of all nodes that exist, by the identity of the shape and by the links that do not count.

    Equal shapes are one object, and hashing a shape would cost more than all other work here.
    """

    def __init__(
        self, reports: Mapping[str, CompactReport], unknown: frozenset[str], placed: Container[str]
    ) -> None:
        self._reports = reports
        self._patterns: dict[tuple[int, int], CablingPattern] = {}
        self._divided: dict[str, CablingPattern] = {}
        last: Shape | None = None
        pattern = CablingPattern(())
        for node, report in reports.items():
            if node in unknown:
                continue
            if report.stale and node not in placed:
                self._divide(node, report, report.stale)
                continue
            if report.shape is not last:
                last = report.shape
                pattern = self._pattern(report.shape, 0)
            pattern.nodes[node] = report

    def __iter__(self) -> Iterator[CablingPattern]:
        return iter(self._patterns.values())

    def of(self, node: str) -> CablingPattern | None:
        if (divided := self._divided.get(node)) is not None:
            return divided
        report = self._reports.get(node)
        pattern = None if report is None else self._patterns.get((id(report.shape), 0))
        return pattern if pattern is not None and node in pattern.nodes else None

    def resolve(self, keys: Mapping[SwitchAnnouncement, str]) -> None:
        """Set the keys of all patterns. From now on, expired links of published nodes have no neighbor either."""
        for pattern in list(self._patterns.values()):
            for node, report in list(pattern.nodes.items()):
                if report.stale and node not in self._divided:
                    del pattern.nodes[node]
                    self._divide(node, report, report.stale)
        for pattern in self._patterns.values():
            pattern.keys = _keys(pattern.shape, keys)
        self._patterns = {key: pattern for key, pattern in self._patterns.items() if pattern.nodes}

    def _divide(self, node: str, report: CompactReport, without: int) -> CablingPattern:
        pattern = self._pattern(report.shape, without)
        pattern.nodes[node] = report
        self._divided[node] = pattern
        return pattern

    def _pattern(self, shape: Shape, without: int) -> CablingPattern:
        """The pattern of this shape without the neighbors of the links in the bits of ``without``."""
        pattern = self._patterns.get((id(shape), without))
        if pattern is None:
            counted = tuple(
                slot._replace(neighbor=None) if without >> i & 1 else slot for i, slot in enumerate(shape)
            )
            pattern = self._patterns[id(shape), without] = CablingPattern(counted if without else shape)
        return pattern


def _keys(shape: Shape, keys: Mapping[SwitchAnnouncement, str]) -> tuple[str, ...]:
    return tuple(["" if slot.neighbor is None else keys[slot.neighbor] for slot in shape])
