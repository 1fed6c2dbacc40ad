"""The planner's inputs: the latest state of every report, Node and HyperNode, and what switches hear above them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nodeagent.fabric.build import label_key
from nodeagent.fabric.hypernode import TIER_NAMES, HyperNode, Texts
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.reports import Pool, Reader, RefusedError, Report
from nodeagent.fabric.rules import Rules

T = TypeVar("T", bound=Hashable)
_SHARED_MIN = 1 << 16
_SHARED_PER_REPORT = 16


class NodeLabels(NamedTuple):
    """The labels of a Node, sorted: ``ours`` are those that the planner writes, ``every`` are all that were given."""

    ours: Texts
    every: Texts


@dataclass(frozen=True, slots=True)
class Levels:
    """The inputs at one moment. No mapping in it changes any more, so a thread may read it."""

    reports: Mapping[str, Report]
    refused: Mapping[str, str]
    nodes: Mapping[str, NodeLabels]
    own: Mapping[str, HyperNode]
    foreign: Mapping[str, HyperNode]
    uplinks: Mapping[str, tuple[str, ...]]
    uplinks_by_key: bool = False

    def exists(self, node: str) -> bool:
        """While no Node at all is known, every node counts as existing: an empty list is no evidence."""
        return not self.nodes or node in self.nodes

    def is_node(self, name: str) -> bool:
        """The system name ``name`` belongs to a node of the cluster."""
        return _is_node(name, self.reports, self.nodes)

    def is_taken(self, name: str) -> bool:
        """Some HyperNode has this name."""
        return name in self.own or name in self.foreign


class Inputs:
    """Keeps the latest state of each object. Storing one computes nothing but the compact form of a report."""

    def __init__(self, rules: Rules) -> None:
        self._pool = Pool()
        self._reader = Reader(rules, self._pool)
        self._our_labels = frozenset(
            label_key(template, tier, rules.fabric)
            for template in rules.label_keys
            for tier in range(1, len(TIER_NAMES) + 1)
        )
        self.reports: dict[str, Report] = {}
        self.refused: dict[str, str] = {}
        self.nodes: dict[str, NodeLabels] = {}
        self.own: dict[str, HyperNode] = {}
        self.foreign: dict[str, HyperNode] = {}
        self._uplinks: dict[str, tuple[str, ...]] = {}
        self._uplinks_by_key = False

    def report(self, name: str, links: NodeLinks | None) -> None:
        if links is None:
            self.reports.pop(name, None)
            self.refused.pop(name, None)
            return
        try:
            self.reports[name] = self._reader.read(name, links)
            self.refused.pop(name, None)
        except RefusedError as error:
            self.refuse(name, str(error))

    def refuse(self, name: str, why: str) -> None:
        self.reports.pop(name, None)
        self.refused[name] = why

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        if labels is None:
            self.nodes.pop(name, None)
            return
        every = tuple(sorted(labels.items()))
        ours = tuple(pair for pair in every if pair[0] in self._our_labels)
        self.nodes[name] = self._pool(NodeLabels(ours, every))

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        self.own.pop(name, None)
        self.foreign.pop(name, None)
        if hypernode is not None:
            (self.own if hypernode.ours else self.foreign)[name] = hypernode

    def uplinks(self, heard: Mapping[str, tuple[str, ...]], *, by_key: bool) -> None:
        self._uplinks, self._uplinks_by_key = dict(heard), by_key

    def is_node(self, name: str) -> bool:
        return _is_node(name, self.reports, self.nodes)

    def levels(self) -> Levels:
        """A copy that later changes do not reach. The values in it are never changed, only replaced."""
        return Levels(
            self.reports.copy(),
            self.refused.copy(),
            self.nodes.copy(),
            self.own.copy(),
            self.foreign.copy(),
            self._uplinks,
            self._uplinks_by_key,
        )


def _is_node(name: str, reports: Mapping[str, Report], nodes: Mapping[str, NodeLabels]) -> bool:
    return any(form in reports or form in nodes for form in (name, name.partition(".")[0]))
