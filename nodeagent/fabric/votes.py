"""From reports to leaf groups: cabling patterns, their switches, the groups of these, and the votes for each group.

Nothing here depends on time or on where a node is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.groups import CablingPattern, SwitchGraph, SwitchGroup, count_votes
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.switch_names import SwitchNames


class LinkVotes:
    """``groups`` are all leaf groups, ``static_groups`` those of the topology file by their name there.

    ``unknown`` are nodes with a report but without a Node. Their reports do not count.
    """

    def __init__(
        self, rules: FabricRules, levels: Levels, published: PublishedTree, record: Mapping[str, str]
    ) -> None:
        self._reports = levels.reports
        self.unknown = [node for node in levels.reports if node not in levels.nodes] if levels.nodes else []
        self._patterns = _patterns(levels, frozenset(self.unknown))
        self.names = SwitchNames(
            self._patterns.values(),
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
        return list(self._patterns.values())

    def pattern(self, node: str) -> CablingPattern | None:
        """The pattern of a node whose report counts."""
        report = self._reports.get(node)
        pattern = None if report is None else self._patterns.get(id(report.shape))
        return pattern if pattern is not None and node in pattern.nodes else None

    def at(self, leaf: str) -> Sequence[CablingPattern]:
        """The patterns with a link to a switch."""
        return self._by_leaf.get(leaf, ())

    def _resolve_switches(self) -> None:
        keys, by_leaf = self.names.keys, self._by_leaf
        for pattern in self._patterns.values():
            pattern.keys = tuple(
                ["" if slot.neighbor is None else keys[slot.neighbor] for slot in pattern.shape]
            )
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
        for pattern in self._patterns.values():
            pattern.votes, pattern.best = count_votes(pattern.keys, self.graph.of, self.graph.weight)
            if pattern.best is not None:
                pattern.best.voters.append(pattern)


def _patterns(levels: Levels, unknown: frozenset[str]) -> dict[int, CablingPattern]:
    """The patterns of all nodes that exist, by the identity of their shape.

    Equal shapes are one object, and hashing a shape would cost more than all other work here.
    """
    patterns: dict[int, CablingPattern] = {}
    pattern: CablingPattern | None = None
    for node, report in levels.reports.items():
        if node in unknown:
            continue
        if pattern is None or pattern.shape is not report.shape:
            pattern = patterns.get(id(report.shape))
            if pattern is None:
                pattern = patterns[id(report.shape)] = CablingPattern(report.shape)
        pattern.nodes[node] = report
    return patterns
