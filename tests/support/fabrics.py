"""Fabrics for tests: cabling plans, the reports of their nodes, and a cluster that applies the planner's writes.

``Cables`` is a cabling plan; ``links`` turns one row of it into a report. ``Cluster`` keeps HyperNodes as the API
server does, applies writes in their order and checks the scheduler's rules after each write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from nodeagent.fabric import FabricRules, Planner, PlanOutcome
from nodeagent.fabric import hypernode as hypernodes
from nodeagent.fabric.hypernode import render
from nodeagent.fabric.nodelinks import (
    Contender,
    LinkNeighbor,
    Metadata,
    NodeLink,
    NodeLinks,
    RailLeg,
    ReportedId,
)
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from tests.support.volcano_rules import VolcanoTree


@dataclass(frozen=True)
class End:
    """A switch port, as LLDP announces it."""

    switch: str
    port: str
    stale: bool = False
    chassis: str | None = None
    address: str | None = None
    contested: bool = False
    contenders: tuple[End, ...] = ()


Row = tuple[End | None, ...]
Cables = dict[str, Row]
"""The far end of each link, by node."""


def announced(end: End) -> dict[str, Any]:
    return {
        "chassis_id": ReportedId(subtype="mac", value=end.chassis or f"chassis of {end.switch}"),
        "port_id": ReportedId(subtype="ifname", value=end.port),
        "system_name": end.switch or None,
        "management_addresses": (end.address,) if end.address else (),
    }


def links(node: str, row: Iterable[End | None], **more: object) -> NodeLinks:
    made = []
    for rail, end in enumerate(row):
        neighbor = None
        if end is not None:
            neighbor = LinkNeighbor(
                **announced(end),
                stale=end.stale,
                contested=end.contested or bool(end.contenders),
                contenders=tuple(Contender(**announced(other)) for other in end.contenders),
            )
        state = "healthy" if end is not None and not end.stale else "down"
        made.append(
            NodeLink(
                name=f"rail{rail}",
                rail=rail,
                fabric="compute",
                speed_mbps=400_000,
                state=state,
                neighbor=neighbor,
            )
        )
    return NodeLinks(metadata=Metadata(name=node), node_name=node, links=tuple(made), **more)


def with_legs(report: NodeLinks, legs: tuple[RailLeg, ...]) -> NodeLinks:
    """The report with legs that lose packets on its first link."""
    first, *others = report.links
    return structs.replace(report, links=(structs.replace(first, legs=legs), *others))


def rails(groups: int, size: int, count: int = 8, first: int = 0) -> Cables:
    """Scalable units: the n-th link of every node goes to the n-th leaf of its unit."""
    return {
        f"su{unit:03}-n{n:03}": tuple(
            End(f"su{unit:03}-leaf-r{rail}", f"swp{n + 1}") for rail in range(count)
        )
        for unit in range(first, first + groups)
        for n in range(size)
    }


def single(groups: int, size: int) -> Cables:
    """One link for each node."""
    return {
        f"r{g:03}-n{n:03}": (End(f"tor{g:03}", f"Ethernet{n}"),) for g in range(groups) for n in range(size)
    }


def pairs(groups: int, size: int, count: int = 4) -> Cables:
    """MLAG: the links of a node alternate between two switches."""
    return {
        f"p{g:03}-n{n:03}": tuple(End(f"leaf{g:03}{'ab'[i % 2]}", f"swp{n}s{i}") for i in range(count))
        for g in range(groups)
        for n in range(size)
    }


def dual(groups: int, size: int, count: int = 4) -> Cables:
    """Dual ToR: each NIC has two ports, to two independent switches of its rail."""
    return {
        f"h{g:03}-n{n:03}": tuple(
            End(f"seg{g:03}-tor{i}{side}", f"1/{n}") for i in range(count) for side in ("x", "y")
        )
        for g in range(groups)
        for n in range(size)
    }


def one_leaf(groups: int, size: int, count: int = 8) -> Cables:
    """All links of a node to one switch."""
    return {
        f"g{g:03}-n{n:03}": tuple(End(f"big{g:03}", f"swp{n}s{i}") for i in range(count))
        for g in range(groups)
        for n in range(size)
    }


SHAPES: dict[str, Callable[[int, int], Cables]] = {
    "single-homed": single,
    "rail-optimised": rails,
    "mlag": pairs,
    "dual-tor": dual,
    "one leaf": one_leaf,
}


def units(cables: Mapping[str, Row]) -> set[frozenset[str]]:
    """The expected groups: a node's unit is the first part of its name."""
    found: dict[str, set[str]] = {}
    for node, row in cables.items():
        if any(row):
            found.setdefault(node.partition("-")[0], set()).add(node)
    return {frozenset(nodes) for nodes in found.values()}


def partition(outcome: PlanOutcome) -> set[frozenset[str]]:
    return {frozenset(one.nodes) for one in outcome.hypernodes if one.tier == 1}


def stale(row: Row) -> Row:
    """The same neighbors, expired."""
    return tuple(
        None if end is None else End(end.switch, end.port, True, end.chassis, end.address) for end in row
    )


@dataclass
class Cluster:
    """A planner and the tree that its writes make. ``step`` advances ``now``."""

    rules: FabricRules = field(default_factory=FabricRules)
    topology: Topology = NO_TOPOLOGY
    now: float = 0.0
    tree: VolcanoTree = field(default_factory=VolcanoTree)
    written: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.planner = Planner(self.rules, self.topology)
        self.outcome: PlanOutcome | None = None
        self.reports: dict[str, NodeLinks] = {}
        self.nodes: set[str] = set()

    def hear(self, cables: Mapping[str, Row]) -> None:
        for node, row in cables.items():
            self.report(links(node, row))

    def report(self, report: NodeLinks) -> None:
        name = report.metadata.name or report.node_name
        self.reports[name] = report
        self.planner.report(name, report)

    def exist(self, *nodes: str) -> None:
        for node in nodes:
            self.nodes.add(node)
            self.planner.node(node, {})

    def restart(self) -> None:
        """Replace the planner by one without a memory."""
        self.planner = Planner(self.rules, self.topology)
        for one in self.tree.objects.values():
            self.planner.hypernode(one["metadata"]["name"], hypernodes.convert_hypernode(one))
        for node in self.nodes:
            self.planner.node(node, {})
        for name, report in self.reports.items():
            self.planner.report(name, report)

    def step(self, seconds: float = 0.0, fails: Callable[[int], bool] = lambda place: False) -> int:
        """Advance the time, plan, and apply the writes. Returns how many succeeded. Each leaves a valid tree."""
        self.now += seconds
        self.outcome = self.planner.plan(self.now)
        failed: set[int] = set()
        count = 0
        for place, write in enumerate(self.outcome.writes):
            assert all(before < place for before in write.after)
            if failed & set(write.after) or fails(place):
                failed.add(place)
                continue
            self.tree.apply(write.verb, render(write.object))
            faults = self.tree.faults()
            assert not faults, (write.verb, write.object.name, write.reason, faults)
            name = write.object.name
            gone = write.verb == "delete"
            self.planner.hypernode(
                name, None if gone else hypernodes.convert_hypernode(self.tree.objects[name])
            )
            self.written.append((write.verb, name))
            count += 1
        return count

    def rest(self, seconds: float = 0.0) -> int:
        """Step until nothing is written any more. Returns the number of writes."""
        total = count = self.step(seconds)
        for _ in range(10):
            if not count:
                return total
            count = self.step()
            total += count
        raise AssertionError(f"writes do not end: {self.written[-20:]}")

    def home(self, node: str) -> str | None:
        for name, nodes in self.tree.leaves().items():
            if node in nodes:
                return name
        return None
