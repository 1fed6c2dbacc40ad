"""The planner that recomputes gives the same outcome as the one that follows changes, whatever happens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.fabric import Hysteresis, Outcome, Planner, Rules
from nodeagent.fabric import hypernode as hypernodes
from nodeagent.fabric.hypernode import HyperNode, render
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.recompute.planner import Planner as Recomputing
from nodeagent.fabric.rules import StaticGroup, Topology
from tests.support.fabrics import SHAPES, Cables, End, Row, links
from tests.support.volcano_rules import Tree


def comparable(outcome: Outcome) -> dict[str, object]:
    values = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}
    return values | {
        "labels": {node: dict(outcome.labels[node]) for node in outcome.labels},
        "relabel": {node: dict(outcome.relabel[node]) for node in outcome.relabel},
    }


@dataclass
class Twins:
    """Two planners that get the same inputs, and the cluster that both of them plan for."""

    rules: Rules
    now: float = 0.0
    tree: Tree = field(default_factory=Tree)

    def __post_init__(self) -> None:
        self.reports: dict[str, NodeLinks] = {}
        self.refused: dict[str, str] = {}
        self.nodes: dict[str, dict[str, str]] = {}
        self.foreign: dict[str, HyperNode] = {}
        self.uplinks: dict[str, tuple[str, ...]] = {}
        self.restart()

    def restart(self) -> None:
        self.planners = (Planner(self.rules), Recomputing(self.rules))
        for planner in self.planners:
            for name, hypernode in self.foreign.items():
                planner.hypernode(name, hypernode)
            for name, found in self.tree.objects.items():
                planner.hypernode(name, hypernodes.convert(found))
            for node, labels in self.nodes.items():
                planner.node(node, labels)
            for node, report in self.reports.items():
                planner.report(node, report)
            for node, why in self.refused.items():
                planner.refuse(node, why)
            planner.uplinks(self.uplinks)

    def report(self, node: str, report: NodeLinks | None) -> None:
        self.refused.pop(node, None)
        if report is None:
            self.reports.pop(node, None)
        else:
            self.reports[node] = report
        for planner in self.planners:
            planner.report(node, report)

    def refuse(self, node: str) -> None:
        self.reports.pop(node, None)
        self.refused[node] = "is not JSON"
        for planner in self.planners:
            planner.refuse(node, "is not JSON")

    def node(self, node: str, labels: dict[str, str] | None) -> None:
        if labels is None:
            self.nodes.pop(node, None)
        else:
            self.nodes[node] = labels
        for planner in self.planners:
            planner.node(node, labels)

    def hear(self, uplinks: dict[str, tuple[str, ...]]) -> None:
        self.uplinks = uplinks
        for planner in self.planners:
            planner.uplinks(uplinks)

    def stranger(self, name: str, hypernode: HyperNode | None) -> None:
        if hypernode is None:
            self.foreign.pop(name, None)
        else:
            self.foreign[name] = hypernode
        for planner in self.planners:
            planner.hypernode(name, hypernode)

    def publish(self, name: str, hypernode: HyperNode | None) -> None:
        if hypernode is None:
            self.tree.objects.pop(name, None)
        else:
            self.tree.objects[name] = render(hypernode)
        for planner in self.planners:
            planner.hypernode(name, hypernode)

    def step(self, seconds: float, chance: random.Random, trouble: float) -> None:
        """Both plan the same; some of the writes and labels succeed."""
        self.now += seconds
        # In full: on its incremental path, a node that is in order again hides that its like are miscabled.
        first, second = self.planners[0].plan(self.now, full=True), self.planners[1].plan(self.now)
        ours, theirs = comparable(second), comparable(first)
        for name in theirs:
            assert ours[name] == theirs[name], name
        failed: set[int] = set()
        for place, write in enumerate(first.writes):
            if failed & set(write.after) or chance.random() < trouble:
                failed.add(place)
                continue
            self.publish(write.object.name, None if write.verb == "delete" else write.object)
        for node, patch in {node: dict(first.relabel[node]) for node in first.relabel}.items():
            if chance.random() >= trouble:
                labels = self.nodes[node] | patch
                self.node(node, {key: value for key, value in labels.items() if value is not None})


UNITS, SIZE = 3, 4


def rules_for(chance: random.Random) -> Rules:
    times = Hysteresis(
        chance.choice((0, 60)),
        chance.choice((0, 30)),
        30,
        300,
        chance.choice((0.2, 1.0)),
        chance.choice((2, 8)),
    )
    groups: tuple[StaticGroup, ...] = ()
    uplinks: dict[str, tuple[str, ...]] = {}
    if chance.random() < 0.3:
        leaves = tuple(f"su{chance.randrange(UNITS):03}-leaf-r{rail}" for rail in range(chance.randrange(4)))
        nodes = tuple(f"su{chance.randrange(UNITS):03}-n{n:03}" for n in range(chance.randrange(3)))
        groups = (StaticGroup("told", leaves, nodes),)
        if chance.random() < 0.3:
            groups += (StaticGroup("dark", (), ("su000-n003", "nowhere")),)
    if chance.random() < 0.2:
        uplinks = {f"su{unit:03}-leaf-r0": (f"spine{unit // 2}",) for unit in range(UNITS)}
    return Rules(
        topology=Topology(uplinks, groups),
        name_patterns=chance.choice(((), ((r"^su0(?P<tier2>\d)\d-leaf", r"^(?P<tier3>su)")))),
        assume_full_bisection=chance.random() < 0.5,
        min_links=chance.choice((0, 3)),
        foreign=chance.choice(("refuse", "yield", "own")),
        hysteresis=times,
    )


def disturbed(chance: random.Random, row: Row, cables: Cables) -> Row:
    ends = [end for other in cables.values() for end in other if end is not None]
    made: list[End | None] = list(row)
    for i, end in enumerate(row):
        if end is None:
            continue
        match chance.randrange(30):
            case 0:
                made[i] = None
            case 1 | 2:
                made[i] = replace(end, stale=True)
            case 3:
                made[i] = chance.choice(ends)
            case 4:
                made[i] = replace(chance.choice(ends), port=f"other-{i}")
            case 5 if len(row) > 1:
                other = chance.randrange(len(row))
                made[i], made[other] = made[other], made[i]
    return tuple(made)


def rename(chance: random.Random, cables: Cables) -> Cables:
    """A switch gets another name, another chassis, a domain, or the name of another switch."""
    switches = sorted({end.switch for row in cables.values() for end in row if end is not None})
    one, other = chance.choice(switches), chance.choice(switches)
    chassis = chance.choice(
        (f"chassis of {one}", f"chassis of {one}", f"new chassis of {one}", f"chassis of {other}")
    )
    name = chance.choice((f"new-{one}", other, f"{one}.example", "sonic", "", one, one.removeprefix("new-")))
    return {
        node: tuple(
            replace(end, switch=name, chassis=end.chassis or chassis)
            if end is not None and end.switch == one
            else end
            for end in row
        )
        for node, row in cables.items()
    }


def report_of(chance: random.Random, node: str, row: Row) -> NodeLinks:
    report = links(node, row)
    made = list(report.links)
    for i, link in enumerate(made):
        match chance.randrange(20):
            case 0:
                made[i] = msgspec.structs.replace(link, state="miscabled")
            case 1:
                made[i] = msgspec.structs.replace(link, state="healthy", neighbor=None)
    return msgspec.structs.replace(report, links=tuple(made))


def uplinks_for(chance: random.Random, cables: Cables) -> dict[str, tuple[str, ...]]:
    switches = sorted({end.switch for row in cables.values() for end in row if end is not None})
    heard = {
        switch: (f"spine{chance.randrange(3)}", chance.choice(sorted(cables)), chance.choice(switches))
        for switch in switches
        if chance.random() < 0.8
    }
    return heard | {f"spine{i}": ("core0",) for i in range(3) if chance.random() < 0.7}


def happens(chance: random.Random, twins: Twins, cables: Cables) -> Cables:
    nodes = sorted(cables)
    if chance.random() < 0.3:
        cables = rename(chance, cables)
    for node in chance.sample(nodes, chance.randrange(len(nodes) + 1)):
        match chance.randrange(14):
            case 0:
                twins.node(node, None)
            case 1:
                twins.report(node, None)
            case 2:
                twins.refuse(node)
            case _:
                if chance.random() < 0.5:
                    twins.node(node, twins.nodes.get(node, {"zone": "a"}))
                twins.report(node, report_of(chance, node, disturbed(chance, cables[node], cables)))
    if chance.random() < 0.3:
        twins.hear(uplinks_for(chance, cables) if chance.random() < 0.8 else {})
    if chance.random() < 0.2:
        name = chance.choice(("theirs-a", "theirs-b"))
        members = tuple(sorted(set(chance.sample(nodes, chance.randrange(3)))))
        children = tuple(name for name in sorted(twins.tree.objects) if chance.random() < 0.2)
        # Where nodes are left to others, the incremental path remembers a pattern's nodes after their report is gone.
        patterns = chance.choice(((), ("su00.-n003",))) if twins.rules.foreign != "yield" else ()
        made = HyperNode(
            name=name, tier=1, source="label", nodes=members, children=children, patterns=patterns
        )
        twins.stranger(name, chance.choice((made, None)))
    if twins.tree.objects and chance.random() < 0.15:
        name = chance.choice(sorted(twins.tree.objects))
        edited = hypernodes.convert(twins.tree.objects[name])
        change = chance.choice(
            ({"nodes": edited.nodes[1:]}, {"annotations": ()}, {"tier_name": "rack"}, None)
        )
        twins.publish(name, None if change is None else msgspec.structs.replace(edited, **change))
    return cables


@settings(max_examples=300)
@given(shape=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 2**64), steps=st.integers(1, 12))
def test_both_planners_give_the_same_outcome(shape: str, seed: int, steps: int) -> None:
    """Reports, silence, moves, renamed switches, foreign objects, edits, failed writes and restarts at random."""
    chance = random.Random(seed)
    twins = Twins(rules_for(chance))
    cables = SHAPES[shape](UNITS, SIZE)
    if chance.random() < 0.8:
        for node in cables:
            twins.node(node, {"zone": "a"})
    for node, row in cables.items():
        if chance.random() < 0.9:
            twins.report(node, links(node, row))
    for _ in range(steps):
        twins.step(chance.choice((0, 5, 30, 61, 400)), chance, chance.choice((0.0, 0.0, 0.3)))
        cables = happens(chance, twins, cables)
        if chance.random() < 0.15:
            twins.restart()
