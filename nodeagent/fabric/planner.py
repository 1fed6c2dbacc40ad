"""The planner: the latest inputs in, the tree and the writes that lead to it out.

``compute_plan`` is a pure function of the inputs, the planner's memory and the time. The order in which inputs arrived
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nodeagent.fabric.anomalies import CablingCheck
from nodeagent.fabric.away_nodes import Away
from nodeagent.fabric.contested import settle
from nodeagent.fabric.desired_places import DesiredPlaces
from nodeagent.fabric.fabric_settings import IMMEDIATE, FabricRules
from nodeagent.fabric.foreign import ForeignHyperNodes
from nodeagent.fabric.hypernode import LEAF, HyperNode
from nodeagent.fabric.inputs import Inputs, Levels
from nodeagent.fabric.leaf_objects import LeafObjects
from nodeagent.fabric.naming import GroupNames
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.nvlink_tier import NvlinkTier
from nodeagent.fabric.outcome import RAIL_KINDS, Anomaly, AnomalyPlace, PlanOutcome
from nodeagent.fabric.outputs import make_outcome
from nodeagent.fabric.placement import Placement, place
from nodeagent.fabric.published import PublishedTree, tree_of_labels
from nodeagent.fabric.reports import SwitchAnnouncement
from nodeagent.fabric.switch_keys import chassis_key
from nodeagent.fabric.switch_names import SwitchNames
from nodeagent.fabric.tiers import UpperTiers
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.fabric.uplinks import KnownSwitch, known_switches
from nodeagent.fabric.votes import LinkVotes


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """The input of a plan from the plan before: placements, waiting nodes and since when, the chassis record, and the
    begin of anomalies.

    A planner that starts without it makes the same tree, but moves wait for their full time again.
    """

    nodes: Placement = field(default_factory=Placement)
    nvlink: Placement = field(default_factory=Placement)
    tiers: Mapping[int, Placement] = field(default_factory=dict)
    waiting: Mapping[str, float] = field(default_factory=dict)
    chassis: Mapping[str, str] = field(default_factory=dict)
    anomalies: Mapping[AnomalyPlace, float | None] | None = None
    """When each anomaly was first seen. ``None``: it was there at the first plan, so its begin is not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An outcome, and everything that it was derived from."""

    rules: FabricRules
    levels: Levels
    published: PublishedTree
    votes: LinkVotes
    names: GroupNames
    nodes: Placement
    cabling: CablingCheck
    nvlink: NvlinkTier
    tiers: UpperTiers
    outcome: PlanOutcome
    memory: PlanMemory

    @property
    def away(self) -> Away:
        """The nodes that are away, of those that have a report or a place."""
        levels, place = self.levels, self.nodes.place
        return {
            node: one
            for node, one in levels.away.items()
            if node in levels.reports or node in levels.refused or node in place
        }

    @property
    def parent(self) -> Mapping[str, str]:
        """The parent of each HyperNode that has one."""
        return {child: upper.name for upper in self.outcome.hypernodes for child in upper.children}


def compute_plan(rules: FabricRules, levels: Levels, memory: PlanMemory, now: float) -> Plan:
    """The plan for these inputs. Changes none of its arguments."""
    foreign = ForeignHyperNodes(levels.foreign)

    def has_other_parent(name: str) -> bool:
        return rules.foreign != "refuse" and bool(foreign.parents(name))

    published = PublishedTree(levels.own or tree_of_labels(levels.nodes, rules), rules.tier_offset)
    placed = published.tiers[LEAF].placed
    levels = replace(levels, reports=settle(rules, levels, published))
    votes = LinkVotes(rules, levels, published, memory.chassis)
    groups = [*votes.groups, *votes.static_groups.values()]
    names = GroupNames(rules.fabric, groups, published, levels.is_taken, rules.tier_offset)
    desired = DesiredPlaces(rules, levels, votes, names, placed, foreign, memory.nodes, memory.waiting, now)
    voted = place(
        memory.nodes, published.tiers[LEAF], desired.desired, desired.leaving, rules.hysteresis, now
    )
    nvlink = NvlinkTier(
        rules, levels, published, voted.place, desired.free, has_other_parent, memory.nvlink, now
    )
    nodes = replace(voted, place={**voted.place, **nvlink.adopted}) if nvlink.adopted else voted
    cabling = CablingCheck(votes, names, placed)
    leaves = LeafObjects(rules, votes, cabling, names, nodes.place, nvlink, levels.own)
    switches = {
        name: frozenset(leaf.switches) for name, leaf in leaves.objects.items() if not has_other_parent(name)
    }
    uplinks = _uplinks_by_key(levels, votes.names)
    announced = votes.names.announced() if rules.tiers.name_patterns else {}
    cables = _cables_by_key(levels.topology, votes.names)
    tiers = UpperTiers(
        rules,
        levels.topology,
        switches,
        cables,
        uplinks,
        announced,
        published,
        levels.is_taken,
        memory.tiers,
        now,
        votes.pairs.degree,
    )
    outcome = make_outcome(
        rules, levels, foreign, votes.names, desired, nodes, cabling, nvlink, leaves, tiers, now
    )
    seen = _first_seen(outcome.anomalies, memory.anomalies, now)
    kept = PlanMemory(voted, nvlink.placement, tiers.placements, desired.waiting, votes.names.record, seen)
    return Plan(rules, levels, published, votes, names, nodes, cabling, nvlink, tiers, outcome, kept)


def _first_seen(
    anomalies: Iterable[Anomaly], before: Mapping[AnomalyPlace, float | None] | None, now: float
) -> Mapping[AnomalyPlace, float | None]:
    unless_known = None if before is None else now
    return {anomaly.place: (before or {}).get(anomaly.place, unless_known) for anomaly in anomalies}


def _uplinks_by_key(levels: Levels, names: SwitchNames) -> dict[str, tuple[str, ...]]:
    """The uplinks of each switch by key. Nodes are left out: they are LLDP neighbors of leaf switches too."""
    uplinks = {
        switch: tuple(up for up in ups if not levels.is_node(up)) for switch, ups in levels.uplinks.items()
    }
    if levels.uplinks_by_key:
        return uplinks
    return {names.key_of(switch): tuple(map(names.key_of, ups)) for switch, ups in uplinks.items()}


def _cables_by_key(topology: Topology, names: SwitchNames) -> dict[str, tuple[str, ...]]:
    """The uplinks of the file of InfiniBand cables. Switches that no report mentions have the keys of their GUIDs."""
    known = topology.neighbors.uplinks
    keys = {chassis: chassis_key(chassis) for chassis in known}
    keys.update((one.chassis, key) for one, key in names.keys.items() if one.chassis in known)
    return {keys[chassis]: tuple(keys[up] for up in ups if up in keys) for chassis, ups in known.items()}


class Planner:
    """Keeps the inputs and the memory of the last plan. The package describes how it is used."""

    def __init__(self, rules: FabricRules | None = None, topology: Topology = NO_TOPOLOGY) -> None:
        self.rules = rules or FabricRules()
        self.inputs = Inputs(self.rules, topology)
        self._memory = PlanMemory()
        self._announced: Mapping[SwitchAnnouncement, str] = {}

    def report(self, name: str, links: NodeLinks | None) -> None:
        """A NodeLinks object, by ``metadata.name``; ``None``: it has been deleted."""
        self.inputs.report(name, links)

    def refuse(self, name: str, why: str) -> None:
        """A NodeLinks object that could not be decoded: ``why`` completes "its report …"."""
        self.inputs.refuse(name, why)

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        """A Node and its labels; ``None``: it has been deleted."""
        self.inputs.node(name, labels)

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        """A HyperNode of any owner, as the API server has it; ``None``: it has been deleted."""
        self.inputs.hypernode(name, hypernode)

    def uplinks(self, uplinks: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None:
        """The switches above each switch, all that are known at present: by system name, or by the keys of
        ``switches`` and of ``fabric.uplinks``.
        """
        self.inputs.uplinks(uplinks, by_key=by_key)

    def rails(self, anomalies: tuple[Anomaly, ...]) -> bool:
        """The places where rails lose packets, all that are known at present. Returns whether they are others."""
        before, self.inputs.rail_anomalies = self.inputs.rail_anomalies, anomalies
        return {one.place for one in before} != {one.place for one in anomalies}

    @property
    def has_legs(self) -> bool:
        """Some report names a leg that loses packets."""
        return any(report.legs for report in self.inputs.reports.values())

    def with_rails(self, outcome: PlanOutcome) -> PlanOutcome:
        """The outcome with the present anomalies of rails in place of its own."""
        others = [anomaly for anomaly in outcome.anomalies if anomaly.kind not in RAIL_KINDS]
        return replace(outcome, anomalies=tuple(sorted([*others, *self.inputs.rail_anomalies])))

    def switches(self) -> tuple[KnownSwitch, ...]:
        """The leaf switches in the reports, as of the last plan, by key."""
        return known_switches(self._announced)

    def is_node(self, name: str) -> bool:
        """The system name ``name`` belongs to a node of the cluster."""
        return self.inputs.is_node(name)

    def has_fault(self, name: str) -> bool:
        """A link of this node has a fault: the list of troubles has the pods of its report."""
        return name in self.inputs.faults.of_node

    def plan(self, now: float) -> PlanOutcome:
        """The tree that should be, and the writes that lead to it. ``now``: seconds, monotonic."""
        plan = self.prepare(now)()
        self.accept(plan)
        return plan.outcome

    def prepare(self, now: float) -> Callable[[], Plan]:
        """A function that computes the plan. It reads nothing that changes, so it may run in a thread."""
        return partial(compute_plan, self.rules, self.inputs.levels(), self._memory, now)

    def accept(self, plan: Plan) -> None:
        """Let the next plan start from this one."""
        self._memory, self._announced = plan.memory, plan.votes.names.keys

    def forget_times(self) -> None:
        """Let moves, new nodes and the breaker wait for their full time again. Known switches keep their keys."""
        self._memory = PlanMemory(chassis=self._memory.chassis)


def compute(
    reports: Iterable[NodeLinks],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    published: Iterable[HyperNode] = (),
    rules: FabricRules | None = None,
) -> PlanOutcome:
    """One plan in one call, without waiting."""
    planner = Planner(rules or FabricRules(hysteresis=IMMEDIATE))
    for hypernode in published:
        planner.hypernode(hypernode.name, hypernode)
    for name, labels in (nodes or {}).items():
        planner.node(name, labels)
    for links in reports:
        planner.report(links.metadata.name or links.node_name, links)
    return planner.plan(0.0)
