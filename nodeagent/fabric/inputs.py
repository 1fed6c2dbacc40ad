"""The planner's inputs: the latest state of every report, Node and HyperNode, and the uplinks of switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodeagent.fabric.away_nodes import Away, AwayNode
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.gpu_troubles import GpuFault, gpu_faults
from nodeagent.fabric.hypernode import HyperNode, Texts
from nodeagent.fabric.known_neighbors import KnownNeighbors
from nodeagent.fabric.link_faults import LinkFault, NodeFaults, link_faults
from nodeagent.fabric.maintenance import Maintained, MaintenanceBook
from nodeagent.fabric.node_values import NodeValues, node_values
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Anomaly
from nodeagent.fabric.reports import CompactReport, InternPool, RefusedReportError, ReportReader
from nodeagent.fabric.topology_file import Topology


class KnownLabels(NamedTuple):
    """The labels of a Node, sorted: ``ours`` are those that the planner writes, ``every`` are all that were given."""

    ours: Texts
    every: Texts


@dataclass(frozen=True, slots=True)
class Levels:
    """The inputs at one moment. Its mappings never change, so a thread may read them."""

    reports: Mapping[str, CompactReport]
    refused: Mapping[str, str]
    nodes: Mapping[str, KnownLabels]
    own: Mapping[str, HyperNode]
    foreign: Mapping[str, HyperNode]
    topology: Topology
    uplinks: Mapping[str, tuple[str, ...]]
    uplinks_by_key: bool = False
    faults: Mapping[str, tuple[LinkFault, ...]] = field(default_factory=dict)
    rail_anomalies: tuple[Anomaly, ...] = ()
    more_faults: int = 0
    """Nodes whose faults are not in ``faults``: there are too many."""
    maintained: Maintained = field(default_factory=dict)
    away: Away = field(default_factory=dict)
    gpu_faults: Mapping[str, tuple[GpuFault, ...]] = field(default_factory=dict)
    values: Mapping[str, NodeValues] = field(default_factory=dict)

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
    """Keeps the latest state of each object. Only the compact form of a report is computed here."""

    def __init__(self, rules: FabricRules, topology: Topology) -> None:
        self._topology = topology
        self._reader = ReportReader(rules, InternPool())
        self._our_labels = rules.label_keys
        self.reports: dict[str, CompactReport] = {}
        self.refused: dict[str, str] = {}
        self.faults = NodeFaults(link_faults)
        self.gpu_faults = NodeFaults(gpu_faults)
        self.maintenance = MaintenanceBook()
        self.away: dict[str, AwayNode] = {}
        self.no_agent: dict[str, AwayNode] = {}
        """The nodes without a running agent; what the Node itself says counts more."""
        self.values: dict[str, NodeValues] = {}
        self.nodes: dict[str, KnownLabels] = {}
        self.own: dict[str, HyperNode] = {}
        self.foreign: dict[str, HyperNode] = {}
        self.switch_uplinks: dict[str, tuple[str, ...]] = {}
        self.uplinks_by_key = False
        self.rail_anomalies: tuple[Anomaly, ...] = ()

    @property
    def known_neighbors(self) -> KnownNeighbors:
        """The other ends of links that the topology file knows."""
        return self._topology.neighbors

    def report(self, name: str, links: NodeLinks | None) -> None:
        if links is None:
            self._take_faults(name, None)
            self.reports.pop(name, None)
            self.refused.pop(name, None)
            self.values.pop(name, None)
            return
        try:
            links = self.known_neighbors.complete(links)
            self.reports[name] = self._reader.read(name, links)
            self._take_faults(name, links)
            self.refused.pop(name, None)
            if links.compared is not None:
                self.values[name] = node_values(links.compared, self._reader.pool)
            else:
                self.values.pop(name, None)
        except RefusedReportError as error:
            self.refuse(name, str(error))

    def refuse(self, name: str, why: str) -> None:
        self.reports.pop(name, None)
        self.values.pop(name, None)
        self._take_faults(name, None)
        self.refused[name] = why

    def _take_faults(self, name: str, links: NodeLinks | None) -> None:
        self.faults.take(name, links)
        self.gpu_faults.take(name, links)

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        if labels is None:
            self.nodes.pop(name, None)
            return
        every = tuple(sorted(labels.items()))
        ours = tuple(pair for pair in every if pair[0] in self._our_labels)
        self.nodes[name] = self._reader.pool(KnownLabels(ours, every))

    def take_away(self, name: str, away: AwayNode | None) -> bool:
        """Whether a Node is away, ``None``: it is there or gone. Returns whether this is new."""
        if self.away.get(name) == away:
            return False
        if away is None:
            del self.away[name]
        else:
            self.away[name] = away
        return True

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        self.own.pop(name, None)
        self.foreign.pop(name, None)
        if hypernode is not None:
            (self.own if hypernode.ours else self.foreign)[name] = hypernode

    def uplinks(self, uplinks: Mapping[str, tuple[str, ...]], *, by_key: bool) -> None:
        self.switch_uplinks, self.uplinks_by_key = dict(uplinks), by_key

    def is_node(self, name: str) -> bool:
        return _is_node(name, self.reports, self.nodes)

    def is_of_fabric(self, node: str) -> bool:
        """Some report of this node is known, accepted or refused."""
        return node in self.reports or node in self.refused

    def levels(self) -> Levels:
        """The inputs for one plan, as copies: at 100,000 nodes they take 10 MiB."""
        return Levels(
            self.reports.copy(),
            self.refused.copy(),
            self.nodes.copy(),
            self.own.copy(),
            self.foreign.copy(),
            self._topology,
            self.switch_uplinks,
            self.uplinks_by_key,
            self.faults.of_node.copy(),
            self.rail_anomalies,
            len(self.faults.beyond | self.gpu_faults.beyond),
            self.maintenance.of_node.copy(),
            self.no_agent | self.away,
            self.gpu_faults.of_node.copy(),
            self.values.copy(),
        )


def _is_node(name: str, reports: Mapping[str, CompactReport], nodes: Mapping[str, KnownLabels]) -> bool:
    return any(form in reports or form in nodes for form in (name, name.partition(".")[0]))
