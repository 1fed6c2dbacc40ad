"""A plan is a pure function of its inputs, of the memory of the plan before, and of the time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.fabric import FabricRules, Planner, PlanOutcome
from nodeagent.fabric import hypernode as hypernodes
from nodeagent.fabric.fabric_settings import HysteresisSettings, TierSettings
from nodeagent.fabric.hypernode import HyperNode, render
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.topology_file import NO_TOPOLOGY, StaticGroup, Topology
from tests.support.examples import examples
from tests.support.fabrics import SHAPES, Cables, End, Row, links
from tests.support.volcano_rules import VolcanoTree


def comparable(outcome: PlanOutcome) -> dict[str, object]:
    """The reports are an input, of which each planner has a compact form of its own."""
    return {name: getattr(outcome, name) for name in outcome.__dataclass_fields__ if name != "reports"}


@dataclass
class RandomCluster:
    """The latest state of every object in a cluster, and a planner that follows it."""

    rules: FabricRules
    topology: Topology = NO_TOPOLOGY
    now: float = 0.0
    tree: VolcanoTree = field(default_factory=VolcanoTree)

    def __post_init__(self) -> None:
        self.reports: dict[str, NodeLinks] = {}
        self.refused: dict[str, str] = {}
        self.nodes: dict[str, dict[str, str]] = {}
        self.foreign: dict[str, HyperNode] = {}
        self.uplinks: dict[str, tuple[str, ...]] = {}
        self.planner = Planner(self.rules, self.topology)

    def fresh(self, chance: random.Random) -> Planner:
        """A planner that gets the same state in another order, with other states before it."""
        planner = Planner(self.rules, self.topology)
        published = {name: hypernodes.convert_hypernode(found) for name, found in self.tree.objects.items()}
        calls: list[Callable[[], None]] = [
            *(partial(planner.hypernode, name, one) for name, one in (self.foreign | published).items()),
            *(partial(planner.node, node, labels) for node, labels in self.nodes.items()),
            *(partial(planner.report, node, report) for node, report in self.reports.items()),
            *(partial(planner.refuse, node, why) for node, why in self.refused.items()),
            partial(planner.uplinks, self.uplinks),
        ]
        for node, report in self.reports.items():
            planner.report(node, replace_links(report, report.links[1:]))
        planner.node("gone", {})
        planner.node("gone", None)
        planner.report("gone", links("gone", (End("leaf", "1"),)))
        planner.report("gone", None)
        chance.shuffle(calls)
        for call in calls:
            call()
        return planner

    def report(self, node: str, report: NodeLinks | None) -> None:
        self.refused.pop(node, None)
        self.reports.pop(node, None)
        if report is not None:
            self.reports[node] = report
        self.planner.report(node, report)

    def refuse(self, node: str) -> None:
        self.reports.pop(node, None)
        self.refused[node] = "is not JSON"
        self.planner.refuse(node, "is not JSON")

    def node(self, node: str, labels: dict[str, str] | None) -> None:
        self.nodes.pop(node, None)
        if labels is not None:
            self.nodes[node] = labels
        self.planner.node(node, labels)

    def set_uplinks(self, uplinks: dict[str, tuple[str, ...]]) -> None:
        self.uplinks = uplinks
        self.planner.uplinks(uplinks)

    def foreign_hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        self.foreign.pop(name, None)
        if hypernode is not None:
            self.foreign[name] = hypernode
        self.planner.hypernode(name, hypernode)

    def publish(self, name: str, hypernode: HyperNode | None) -> None:
        self.tree.objects.pop(name, None)
        if hypernode is not None:
            self.tree.objects[name] = render(hypernode)
        self.planner.hypernode(name, hypernode)

    def write(self, outcome: PlanOutcome, chance: random.Random, trouble: float) -> None:
        """Apply the writes and labels that succeed."""
        failed: set[int] = set()
        for place, write in enumerate(outcome.writes):
            if failed & set(write.after) or chance.random() < trouble:
                failed.add(place)
                continue
            self.publish(write.object.name, None if write.verb == "delete" else write.object)
        for node, patch in outcome.relabel.items():
            if chance.random() >= trouble:
                labels = self.nodes[node] | patch
                self.node(node, {key: value for key, value in labels.items() if value is not None})


def replace_links(report: NodeLinks, made: Iterable[NodeLink]) -> NodeLinks:
    return msgspec.structs.replace(report, links=tuple(made))


UNITS, SIZE = 3, 4


def rules_for(chance: random.Random) -> tuple[FabricRules, Topology]:
    times = HysteresisSettings(
        move_seconds=chance.choice((0, 60)),
        settle_seconds=chance.choice((0, 30)),
        grace_seconds=30,
        hold_percent=chance.choice((20, 100)),
        hold_nodes=chance.choice((2, 8)),
    )
    groups: tuple[StaticGroup, ...] = ()
    uplinks: dict[str, tuple[str, ...]] = {}
    if chance.random() < 0.3:
        leaves = tuple(f"su{chance.randrange(UNITS):03}-leaf-r{rail}" for rail in range(chance.randrange(4)))
        nodes = tuple(f"su{chance.randrange(UNITS):03}-n{n:03}" for n in range(chance.randrange(3)))
        groups = (StaticGroup("configured", leaves, nodes),)
        if chance.random() < 0.3:
            groups += (StaticGroup("dark", (), ("su000-n003", "nowhere")),)
    if chance.random() < 0.2:
        uplinks = {f"su{unit:03}-leaf-r0": (f"spine{unit // 2}",) for unit in range(UNITS)}
    tiers = TierSettings(
        name_patterns=chance.choice(((), ((r"^su0(?P<tier2>\d)\d-leaf", r"^(?P<tier3>su)")))),
        assume_full_bisection=chance.random() < 0.5,
    )
    rules = FabricRules(
        tiers=tiers,
        min_links=chance.choice((0, 3)),
        foreign=chance.choice(("refuse", "yield", "own")),
        hysteresis=times,
    )
    return rules, Topology(uplinks, groups)


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


def change(chance: random.Random, cluster: RandomCluster, cables: Cables, *, renames: bool = True) -> Cables:
    nodes = sorted(cables)
    if renames and chance.random() < 0.3:
        cables = rename(chance, cables)
    for node in chance.sample(nodes, chance.randrange(len(nodes) + 1)):
        match chance.randrange(14):
            case 0:
                cluster.node(node, None)
            case 1:
                cluster.report(node, None)
            case 2:
                cluster.refuse(node)
            case _:
                if chance.random() < 0.5:
                    cluster.node(node, cluster.nodes.get(node, {"zone": "a"}))
                cluster.report(node, report_of(chance, node, disturbed(chance, cables[node], cables)))
    if chance.random() < 0.3:
        cluster.set_uplinks(uplinks_for(chance, cables) if chance.random() < 0.8 else {})
    if chance.random() < 0.2:
        name = chance.choice(("theirs-a", "theirs-b"))
        members = tuple(sorted(set(chance.sample(nodes, chance.randrange(3)))))
        children = tuple(name for name in sorted(cluster.tree.objects) if chance.random() < 0.2)
        patterns = chance.choice(((), ("su00.-n003",)))
        selectors = chance.choice(((), ('{"matchLabels":{"zone":"a"}}',)))
        made = HyperNode(
            name=name,
            tier=1,
            source="label",
            nodes=members,
            children=children,
            patterns=patterns,
            selectors=selectors,
        )
        cluster.foreign_hypernode(name, chance.choice((made, None)))
    if cluster.tree.objects and chance.random() < 0.15:
        name = chance.choice(sorted(cluster.tree.objects))
        edited = hypernodes.convert_hypernode(cluster.tree.objects[name])
        change = chance.choice(
            ({"nodes": edited.nodes[1:]}, {"annotations": ()}, {"tier_name": "rack"}, None)
        )
        cluster.publish(name, None if change is None else msgspec.structs.replace(edited, **change))
    return cables


def populated(
    chance: random.Random, shape: str, rules: FabricRules, topology: Topology
) -> tuple[RandomCluster, Cables]:
    cluster, cables = RandomCluster(rules, topology), SHAPES[shape](UNITS, SIZE)
    if chance.random() < 0.8:
        for node in cables:
            cluster.node(node, {"zone": "a"})
    for node, row in cables.items():
        if chance.random() < 0.9:
            cluster.report(node, links(node, row))
    return cluster, cables


SHAPE, SEED = st.sampled_from(sorted(SHAPES)), st.integers(0, 2**64)


@pytest.mark.slow
@settings(max_examples=examples(200))
@example(shape="single-homed", seed=20909329, steps=4)
@example(shape="mlag", seed=163, steps=6)
@given(shape=SHAPE, seed=SEED, steps=st.integers(1, 10))
def test_a_plan_depends_on_nothing_but_the_inputs_the_memory_and_the_time(
    shape: str, seed: int, steps: int
) -> None:
    """The order of inputs, and the states before them, do not matter. Planning again changes nothing.

    Reports, links without neighbors, moves, renamed switches, foreign objects, edits, failed writes and
    restarts come at random.
    """
    chance = random.Random(seed)
    cluster, cables = populated(chance, shape, *rules_for(chance))
    last: Plan | None = None
    for _ in range(steps):
        cluster.now += chance.choice((0, 5, 30, 61, 400))
        other = cluster.fresh(chance)
        if last is not None:
            other.accept(last)
        plan = cluster.planner.prepare(cluster.now)()
        same = other.prepare(cluster.now)()
        assert comparable(plan.outcome) == comparable(same.outcome)
        assert plan.memory == same.memory
        cluster.planner.accept(last := plan)
        again = cluster.planner.prepare(cluster.now)()
        assert comparable(plan.outcome) == comparable(again.outcome)
        assert plan.memory == again.memory
        cluster.write(plan.outcome, chance, chance.choice((0.0, 0.0, 0.3)))
        cables = change(chance, cluster, cables)
        if chance.random() < 0.15:
            cluster.planner, last = cluster.fresh(chance), None


@example(shape="dual-tor", seed=84630, steps=5)
@example(shape="dual-tor", seed=4148885076, steps=6)
@given(shape=SHAPE, seed=SEED, steps=st.integers(1, 6))
def test_a_new_planner_agrees_with_the_published_tree(shape: str, seed: int, steps: int) -> None:
    """Once all moves are done, a planner without a memory has nothing to write."""
    chance = random.Random(seed)
    times = HysteresisSettings(grace_seconds=30, hold_seconds=0, hold_percent=100, hold_nodes=100)
    rules, topology = rules_for(chance)
    rules = msgspec.structs.replace(rules, foreign="own", hysteresis=times)
    cluster, cables = populated(chance, shape, rules, topology)
    for _ in range(steps):
        cluster.write(cluster.planner.plan(cluster.now), chance, 0.3)
        change(chance, cluster, cables, renames=False)
        cluster.now += chance.choice((5, 61))
    for _ in range(10):
        cluster.now += 1000
        cluster.write(cluster.planner.plan(cluster.now), chance, 0.0)
    followed, fresh = cluster.planner.plan(cluster.now), cluster.fresh(chance).plan(cluster.now)
    assert not followed.writes
    assert not fresh.writes
    assert fresh.hypernodes == followed.hypernodes
    assert fresh.labels == followed.labels
