"""From reports to leaf groups: cabling patterns, their switches, the groups of these, and the votes for each group.

A link whose LLDP information has expired is a link without a neighbor: it counts for the group in which its node is
published. So expired information keeps a place, and neither makes one nor joins switches. It still identifies switches
if its node is published: some reports contain the old chassis ID of a replaced switch.

Nothing else here depends on where a node is published, and nothing on time.

A node is no switch, whatever it announces. It is known by its name, or by a chassis ID that is the MAC address of one
of its links. An InfiniBand adapter is never a switch; the first word of its description is its host. A switch may have
the name of a node: an announcement on more links than the node has is a switch's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.groups import CablingPattern, SwitchGraph, SwitchGroup, count_votes
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.reports import (
    ADAPTER_GUID,
    MAC_OCTETS,
    CompactReport,
    Shape,
    SwitchAnnouncement,
    octets,
    shown,
)
from nodeagent.fabric.shared_switches import find_shared
from nodeagent.fabric.switch_names import SwitchNames

CHAIN_MIN = 3
"""The fewest switches of a ring or chain, and the fewest nodes: of two switches, or two nodes, no majority is usual."""


class LinkVotes:
    """``groups`` are all leaf groups, ``static_groups`` those of the topology file by their name there.

    ``pairs`` counts the nodes of each switch and of each pair of switches. ``shared`` are switches of several leaf
    groups, each with two switches that it has nodes in common with; links to them count for no group. ``unknown`` are
    nodes with a report but without a Node. Their reports do not count.
    """

    def __init__(
        self, rules: FabricRules, levels: Levels, published: PublishedTree, record: Mapping[str, str]
    ) -> None:
        self.unknown = [node for node in levels.reports if node not in levels.nodes] if levels.nodes else []
        placed = published.tiers[LEAF].placed
        self._patterns = _Patterns(levels.reports, frozenset(self.unknown), placed)
        self.peers = NodePeers(self._patterns, levels)
        self.names = SwitchNames(
            self._patterns,
            rules.generic_names,
            published.switches.placed,
            published.aliases,
            record,
            self.peers.of,
        )
        static = {group.name: group.switches for group in levels.topology.groups}
        self.pairs = SwitchGraph(published.switches.placed, static)
        self._by_leaf: dict[str, list[CablingPattern]] = {}
        self._resolve_switches()
        self.shared = self._find_shared(static)
        self.pairs.leave_out(self.shared)
        self.groups = self.pairs.form_groups()
        self._count()
        if leafless := self._leafless():
            self.groups = _merged(self.pairs, self.groups, leafless)
            self._count()
        for pattern in self._patterns:
            if pattern.best is not None:
                pattern.best.voters.append(pattern)
        self.static_groups = self._static_groups(levels)
        self.of: Mapping[str, SwitchGroup] = self.pairs.of
        self.rails: Mapping[str, Mapping[str, int]] = self.pairs.rails
        """The links to each switch, by rail."""

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
        self._patterns.resolve(self.names.keys)
        for pattern in self._patterns:
            pattern.leaves = tuple(sorted(set(pattern.keys) - {""}))
            for leaf in pattern.leaves:
                self._by_leaf.setdefault(leaf, []).append(pattern)
            _add(self.pairs, pattern.keys, pattern)

    def _find_shared(self, static: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
        """Switches of several leaf groups.

        Expired links of published nodes are evidence here: when the leaf switches of a unit pause, the storage
        switches must not become leaf switches of the other units.
        """
        if all(pattern.cables is pattern.shape for pattern in self._patterns):
            return find_shared(self.pairs)
        graph = SwitchGraph(static=static)
        for pattern in self._patterns:
            _add(graph, _keys(pattern.cables, self.names.keys), pattern)
        return {leaf: pair for leaf, pair in find_shared(graph).items() if leaf in self.pairs}

    def _leafless(self) -> list[list[SwitchGroup]]:
        """Groups that belong to one ring or chain of switches, each ring or chain together.

        Leaf switches share most of their nodes with each other. In a ring each switch shares one half of its nodes
        with the switch before and one with the switch after it, so the links of no node have a majority. What is
        published does not count: an object that lists a chain would undo it.
        """
        if not any(_is_divided(pattern.votes) or _is_tied(pattern) for pattern in self._patterns):
            return []
        reported = self.pairs.reported_parts()
        nodes: dict[tuple[str, ...], int] = {}
        divided: dict[tuple[str, ...], int] = {}
        between: Counter[frozenset[tuple[str, ...]]] = Counter()
        for pattern in self._patterns:
            votes: dict[tuple[str, ...], int] = {}
            for key in pattern.keys:
                if key in reported:
                    votes[reported[key]] = votes.get(reported[key], 0) + 1
            for switches in votes:
                nodes[switches] = nodes.get(switches, 0) + len(pattern.nodes)
            if _is_divided(votes):
                for switches in votes:
                    divided[switches] = divided.get(switches, 0) + len(pattern.nodes)
                for pair in combinations(votes, 2):
                    between[frozenset(pair)] += len(pattern.nodes) if len(votes) > 2 else 2
        chains: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for ends, count in between.items():
            if count > 1:
                chain = set[tuple[str, ...]]().union(*(chains.get(part, {part}) for part in ends))
                for switches in chain:
                    chains[switches] = chain
        of = self.pairs.of
        found: list[list[SwitchGroup]] = []
        for chain in {id(chain): chain for chain in chains.values()}.values():
            total, without = sum(nodes[part] for part in chain), sum(divided[part] for part in chain)
            if len(chain) >= CHAIN_MIN and 4 * without >= 3 * total and without >= 2 * CHAIN_MIN:
                parts = {of[switches[0]].leaves: of[switches[0]] for switches in chain}
                if not any(leaf in self.pairs.static for leaves in parts for leaf in leaves):
                    found.append([parts[leaves] for leaves in sorted(parts)])
        return found

    def _static_groups(self, levels: Levels) -> dict[str, SwitchGroup]:
        """The groups of the topology file. One whose switches are in no report has no switches here."""
        of = self.pairs.of
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
            pattern.votes, pattern.best = count_votes(pattern.keys, self.pairs.of, self.pairs.weight)


class _Patterns:
    """The patterns of all nodes that exist, by the identity of the shape and by the links that do not count.

    Equal shapes are one object, and hashing a shape would cost more than all other work here.
    """

    def __init__(
        self, reports: Mapping[str, CompactReport], unknown: frozenset[str], placed: Container[str]
    ) -> None:
        self._reports = reports
        self._patterns: dict[tuple[int, frozenset[int], bool], CablingPattern] = {}
        self._divided: dict[str, CablingPattern] = {}
        last: Shape | None = None
        pattern = CablingPattern((), ())
        for node, report in reports.items():
            if node in unknown:
                continue
            if report.stale and node not in placed:
                self._divide(node, report, placed=False)
                continue
            if report.shape is not last:
                last = report.shape
                pattern = self._pattern(report.shape, frozenset(), placed=True)
            pattern.nodes[node] = report

    def __iter__(self) -> Iterator[CablingPattern]:
        return iter(self._patterns.values())

    def of(self, node: str) -> CablingPattern | None:
        if (divided := self._divided.get(node)) is not None:
            return divided
        report = self._reports.get(node)
        pattern = None if report is None else self._patterns.get((id(report.shape), frozenset(), True))
        return pattern if pattern is not None and node in pattern.nodes else None

    def resolve(self, keys: Mapping[SwitchAnnouncement, str]) -> None:
        """Set the keys of all patterns. From now on, expired links of published nodes have no neighbor either."""
        for pattern in list(self._patterns.values()):
            for node, report in list(pattern.nodes.items()):
                if report.stale and node not in self._divided:
                    del pattern.nodes[node]
                    self._divide(node, report, placed=True)
        for pattern in self._patterns.values():
            pattern.keys = _keys(pattern.shape, keys)
        self._patterns = {key: pattern for key, pattern in self._patterns.items() if pattern.nodes}

    def _divide(self, node: str, report: CompactReport, *, placed: bool) -> CablingPattern:
        pattern = self._pattern(report.shape, report.stale, placed=placed)
        pattern.nodes[node] = report
        self._divided[node] = pattern
        return pattern

    def _pattern(self, shape: Shape, without: frozenset[int], *, placed: bool) -> CablingPattern:
        """The pattern of this shape without the neighbors of these links."""
        pattern = self._patterns.get((id(shape), without, placed))
        if pattern is None:
            counted = shape
            if without:
                counted = tuple(
                    slot._replace(neighbor=None) if i in without else slot for i, slot in enumerate(shape)
                )
            pattern = CablingPattern(counted, shape if placed else counted)
            self._patterns[id(shape), without, placed] = pattern
        return pattern


def _keys(shape: Shape, keys: Mapping[SwitchAnnouncement, str]) -> tuple[str, ...]:
    return tuple(["" if slot.neighbor is None else keys.get(slot.neighbor, "") for slot in shape])


def _add(graph: SwitchGraph, keys: tuple[str, ...], pattern: CablingPattern) -> None:
    leaves = tuple(sorted(set(keys) - {""}))
    graph.add(leaves, len(pattern.nodes), zip(keys, (slot.rail for slot in pattern.shape), strict=True))


def _is_divided(votes: Mapping[Any, int]) -> bool:
    """No group has more than half of the links."""
    return len(votes) > 1 and 2 * max(votes.values()) <= sum(votes.values())


def _is_tied(pattern: CablingPattern) -> bool:
    return pattern.best is not None and pattern.best.tied


def _merged(
    graph: SwitchGraph, groups: list[SwitchGroup], chains: list[list[SwitchGroup]]
) -> list[SwitchGroup]:
    """The groups, with one group for each ring or chain."""
    parts = {group for chain in chains for group in chain}
    merged = [group for group in groups if group not in parts]
    for chain in chains:
        merged.append(graph.merge(chain))
        merged[-1].leafless = True
    return sorted(merged, key=lambda group: group.leaves)


LINKS_MAX = 16
"""The most links of a node whose announcements are looked for. A DGX H100 has 13 ports."""


class NodePeers:
    """``of`` is the node of each announcement that comes from a node."""

    def __init__(self, patterns: Iterable[CablingPattern], levels: Levels) -> None:
        self._levels = levels
        self.of: dict[SwitchAnnouncement, str] = {}
        links: dict[SwitchAnnouncement, int] = {}
        for pattern in patterns:
            for slot in pattern.cables:
                if slot.neighbor is not None:
                    links[slot.neighbor] = links.get(slot.neighbor, 0) + len(pattern.nodes)
        self._find_adapters(links)
        self._find_by_name(links)
        self._find_by_mac(links)

    def _find_adapters(self, announcements: Iterable[SwitchAnnouncement]) -> None:
        for announcement in announcements:
            subtype, _, guid = announcement.chassis.partition("=")
            if subtype == ADAPTER_GUID:
                host = announcement.name.partition(" ")[0]
                self.of[announcement] = self._node(host) or shown(host or guid)

    def _find_by_name(self, links: dict[SwitchAnnouncement, int]) -> None:
        by_node: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in links:
            if announcement not in self.of and announcement.name and (node := self._node(announcement.name)):
                by_node.setdefault(node, []).append(announcement)
        for node, announcements in by_node.items():
            report = self._levels.reports.get(node)
            has = LINKS_MAX
            if report is not None:
                has = max(len(report.macs) // MAC_OCTETS, len(report.shape))
            if sum(links[announcement] for announcement in announcements) <= has:
                self.of.update(dict.fromkeys(announcements, node))

    def _node(self, name: str) -> str:
        whole = name.lower().rstrip(".")
        reports, nodes = self._levels.reports, self._levels.nodes
        for form in (whole, whole.partition(".")[0]):
            if form in reports or form in nodes:
                return form
        return ""

    def _find_by_mac(self, links: dict[SwitchAnnouncement, int]) -> None:
        wanted: dict[bytes, list[SwitchAnnouncement]] = {}
        for announcement, count in links.items():
            if count <= LINKS_MAX and announcement not in self.of:
                subtype, _, value = announcement.chassis.partition("=")
                if subtype == "mac" and (mac := octets(value)):
                    wanted.setdefault(mac, []).append(announcement)
        if not wanted:
            return
        for node, report in self._levels.reports.items():
            macs = report.macs
            for start in range(0, len(macs), MAC_OCTETS):
                for announcement in wanted.get(macs[start : start + MAC_OCTETS], ()):
                    self.of[announcement] = node
