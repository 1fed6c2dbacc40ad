"""Doing what the message of an anomaly says ends it, and causes no other one: at once, and where a controller has
published the tree with the fault before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
import yaml
from msgspec import structs

from nodeagent.fabric import FabricRules
from nodeagent.fabric.fabric_settings import FabricSelect, TierSettings
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import RAIL_KINDS, Anomaly, AnomalyKind
from nodeagent.fabric.topology_file import NO_TOPOLOGY, StaticGroup, Topology
from tests.fabric.test_hall_faults import NOW, ROWS, Expected, Row, hall, own_dpus
from tests.fabric.test_halls import ring
from tests.fabric.test_nvlink_tier import tray
from tests.support.fabrics import Cables, Cluster, End, links, rails
from tests.support.halls import Hall

MOVED = re.compile(r"move (?:it|this cable) to (\S+?)(?:,|$)")
SWAPPED = re.compile(r"swap it with the cable of (\S+)$")
ENTRIES = re.compile(r"controller's file: (.*)$")
NOT_APPLIED = {
    **dict.fromkeys(
        RAIL_KINDS, "probes find it, not plans: it ends when no packet is lost (test_rail_keeper.py)"
    ),
    AnomalyKind.SHARED_NUMBER: "it is no cable: tests/fabric/test_shared_numbers.py",
    AnomalyKind.OVERSIZED: "it takes 20,000 nodes: the entry of its message is applied in test_flat_fabric.py",
}
"""The kinds whose remedy is applied elsewhere, each with its reason."""


def one_name(of: Hall) -> Expected:
    """Two switches of one unit, each with more than one node."""
    of.names = {"su0-leaf1": "twin", "su1-leaf2": "twin"}
    return {("duplicate-system-name", "", "", "twin")}


def nodes_back_to_back(of: Hall) -> Expected:
    one, other = of.nodes(0)[:2]
    of.cables[one, 3], of.cables[other, 3] = other, one
    return {("node-to-node", one, "rail3", "")}


ANNOUNCED = {
    "two switches with one name": Row(one_name),
    "two nodes cabled to each other": Row(nodes_back_to_back),
}


def sound(row: Row) -> Hall:
    """The hall without its fault."""
    return hall(row.units, row.size, planes=row.planes)


def repaired(of: Hall, anomalies: Iterable[Anomaly], right: Hall) -> FabricRules:
    """Do what the messages say; the rules with the entries that they want. ``right``: the hall as it is planned."""
    rules, before = NOW, dict(of.cables)
    for odd in anomalies:
        place = (odd.node, int(odd.link.removeprefix("rail") or 0))
        if found := ENTRIES.search(odd.message):
            entries = yaml.safe_load(found[1])
            added = [FabricSelect(**entry) for entry in (entries if isinstance(entries, list) else [entries])]
            rules = structs.replace(rules, fabrics=(*rules.fabrics, *added))
        elif found := SWAPPED.search(odd.message):
            of.cables[place] = before[odd.node, int(found[1].removeprefix("rail"))]
        elif found := MOVED.search(odd.message):
            of.cables[place] = found[1]
        elif odd.kind in (AnomalyKind.RAIL_SHIFT, AnomalyKind.RAIL_SWAP):  # all cables of these nodes
            for node in odd.nodes or (odd.node,):
                of.cables.update(((node, rail), of.leaf[of.unit[node]][rail]) for rail in range(8))
        elif odd.kind == AnomalyKind.MISSING_RAIL:  # the NIC answers again, and its cable is in the switch
            of.links.pop(odd.node, None)
            if odd.link:
                of.cables[place] = odd.switch
        elif odd.kind == AnomalyKind.NODE_TO_NODE:  # both ends
            for node in odd.nodes:
                of.cables[node, place[1]] = of.leaf[of.unit[node]][place[1]]
        elif (
            odd.kind == AnomalyKind.SHARED_PORT and odd.link
        ):  # no hub any more: each cable has a port of its own
            of.ports.pop((*place, odd.switch), None)
        elif odd.kind == AnomalyKind.SHARED_PORT:  # the switches name their ports
            of.one_id = False
            of.ports = {port: number for port, number in of.ports.items() if port[2] != odd.switch}
        elif odd.kind == AnomalyKind.SHARED_CHASSIS_ID:
            of.chassis = ""
        elif odd.kind == AnomalyKind.DUPLICATE_SYSTEM_NAME:
            of.names = {}
        else:
            assert odd.kind == AnomalyKind.NO_LEAVES, odd.message  # the DPUs forward LLDP
            of.cables, of.leaf, of.unit = right.cables, right.leaf, right.unit
    return rules


def plan(reports: Iterable[NodeLinks], cluster: Cluster) -> list[Anomaly]:
    """The anomalies when the tree no longer changes."""
    for report in reports:
        cluster.exist(report.node_name)
        cluster.report(report)
    cluster.rest()
    assert cluster.outcome is not None
    return list(cluster.outcome.anomalies)


def after(
    reports: Iterable[NodeLinks], seen: Cluster, published: bool, rules: FabricRules, file: Topology
) -> list[str]:
    """The messages that are left. ``published``: with the tree and the memory of the controller that saw the fault."""
    if not published:
        seen = Cluster(rules, file)
    elif rules != seen.rules or file != seen.topology:
        seen.rules, seen.topology = rules, file
        seen.restart()
    return [f"{odd.kind}: {odd.message}" for odd in plan(reports, seen)]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("row", (ROWS | ANNOUNCED).values(), ids=ROWS | ANNOUNCED)
def test_what_the_messages_say_ends_the_anomalies(row: Row, published: bool) -> None:
    made, cluster = sound(row), Cluster(NOW)
    row.fault(made)
    rules = repaired(made, plan(made.reports(), cluster), sound(row))
    assert after(made.reports(), cluster, published, rules, NO_TOPOLOGY) == []


@dataclass(frozen=True)
class Case:
    """Reports with anomalies of ``kinds``, and reports and topology file after the remedy. ``first`` are reports that
    a controller has seen before these."""

    kinds: tuple[AnomalyKind, ...]
    wrong: list[NodeLinks]
    right: list[NodeLinks]
    file: Topology = NO_TOPOLOGY
    first: tuple[NodeLinks, ...] = ()


def reports(cables: Cables) -> list[NodeLinks]:
    return [links(node, row) for node, row in cables.items()]


def on_leaf(chassis: str, count: int, stale: int = 0) -> list[NodeLinks]:
    """Six nodes at one switch; the first ones hear it under a chassis ID, the last ``stale`` ones no longer."""
    ends = [
        End("leaf1", f"swp{i}", chassis=chassis if i < count else "old", stale=i >= 6 - stale)
        for i in range(6)
    ]
    return [links(f"n{i}", (end,)) for i, end in enumerate(ends)]


def replaced() -> Case:
    return Case(
        (AnomalyKind.REPLACED_SWITCH,),
        on_leaf("new", 3, 3),
        on_leaf("new", 6),
        first=tuple(on_leaf("old", 6)),
    )


def contested(other: Callable[[End], End]) -> Callable[[], Case]:
    def case() -> Case:
        wrong = rails(2, 16, 8)
        node, (end, *others) = next(iter(wrong.items()))
        assert end is not None
        wrong[node] = (replace(end, contenders=(other(end),)), *others)
        return Case((AnomalyKind.CONTESTED_LINK,), reports(wrong), reports(rails(2, 16, 8)))

    return case


def ambiguous(remedy: Callable[[Hall], None]) -> Callable[[], Case]:
    """Single links to three switches with a chassis ID for each port, all with one name."""

    def case() -> Case:
        made = Hall([[f"leaf{unit}"] for unit in range(3)], 6, chassis_per_port=True, addressed=False)
        made.names = {f"leaf{unit}": "switch" for unit in range(3)}
        wrong = made.reports()
        remedy(made)
        return Case((AnomalyKind.AMBIGUOUS_SWITCH,), wrong, made.reports())

    return case


def undecidable() -> Case:
    """Half of the nodes of two leaf switches have both, and the others one of them each."""

    def cabled(*rows: str) -> list[NodeLinks]:
        cables = {
            f"n{n}": tuple(End(f"leaf-{switch}", f"swp{2 * n + i}") for i, switch in enumerate(row))
            for n, row in enumerate(rows)
        }
        return reports(cables)

    kinds = (AnomalyKind.MISCABLED, AnomalyKind.UNDECIDABLE)
    file = Topology(groups=(StaticGroup("unit", ("leaf-a", "leaf-b")),))
    return Case(kinds, cabled("aa", "ab", "ab", "bb"), cabled("ab", "ab", "ab", "ab"), file)


def mixed_domains() -> Case:
    cables = rails(1, 4, 4)
    right = [tray(node, row, (1, 0)) for node, row in cables.items()]
    wrong = [
        tray(node, row, (1, 0), (2, 0)) if node == min(cables) else old
        for (node, row), old in zip(cables.items(), right, strict=True)
    ]
    return Case((AnomalyKind.NVLINK_DOMAIN_MIXED,), wrong, right)


def split_domain() -> Case:
    """One domain in two racks, four nodes in each, whose nodes are all listed in one group."""
    wrong = [tray(node, row, (1, 0)) for node, row in rails(2, 4, 4).items()]
    return Case((AnomalyKind.NVLINK_DOMAIN_SPLIT,), wrong, wrong, listed(wrong))


def tray_apart() -> Case:
    """The cables of one node of a rack end in the switches of another one."""
    cables = rails(2, 8, 4)
    moved = "su000-n000"
    away = {moved: tuple(End(f"su001-leaf-r{rail}", "swp99") for rail in range(4))}
    wrong, right = (
        [tray(node, row, (1 + int(node[2:5]), 0)) for node, row in each.items()]
        for each in (cables | away, cables)
    )
    return Case((AnomalyKind.NVLINK_DOMAIN_SPLIT,), wrong, right)


def listed(of: Iterable[NodeLinks], size: int = 1000) -> Topology:
    """A topology file that lists the nodes in groups of this size."""
    nodes = [report.node_name for report in of]
    parts = [tuple(nodes[i : i + size]) for i in range(0, len(nodes), size)]
    return Topology(groups=tuple(StaticGroup(f"group{i}", (), part) for i, part in enumerate(parts)))


def without_leaves(of: Callable[[], Hall], size: int = 1000) -> Callable[[], Case]:
    """Nothing is cabled anew; the nodes are listed."""

    def case() -> Case:
        wrong = of().reports()
        return Case((AnomalyKind.NO_LEAVES,), wrong, wrong, listed(wrong, size))

    return case


def nodes_in_a_ring() -> Hall:
    made = Hall([["", ""]], 0)
    nodes = [f"r00-n{number:02}" for number in range(48)]
    made.unit = dict.fromkeys(nodes, 0)
    for i, node in enumerate(nodes):
        made.cables[node, 0], made.cables[node, 1] = nodes[i - 1], nodes[(i + 1) % len(nodes)]
    return made


def dpus() -> Hall:
    made = hall()
    own_dpus(made)
    return made


def told_by_the_node() -> Case:
    """The plan of the node's own configuration has another port for a link that is as those of its neighbors."""
    right = hall().reports()
    first, *others = right
    odd = [structs.replace(link, state="miscabled") if link.name == "rail2" else link for link in first.links]
    return Case((AnomalyKind.MISCABLED,), [structs.replace(first, links=tuple(odd)), *others], right)


RULES = structs.replace(NOW, tiers=TierSettings(nvlink="auto"))


CASES: dict[str, Callable[[], Case]] = {
    "a switch was replaced: nothing, until all nodes hear it": replaced,
    "another device sends on the link": contested(lambda end: End("bridge", "p1")),
    "the switch sends under two MAC addresses": contested(lambda end: end),
    "ports without names of their switches get them": ambiguous(lambda of: of.names.clear()),
    "ports without names of their switches get its address": ambiguous(
        lambda of: setattr(of, "addressed", True)
    ),
    "switches that may be one unit or two are listed, and their cables corrected": undecidable,
    "the GPUs of a node get one domain": mixed_domains,
    "the nodes of a domain in two racks are listed": split_domain,
    "a node of a domain is cabled to the switches of its rack": tray_apart,
    "the nodes of a ring of switches are listed": without_leaves(lambda: ring(5, 4), 10),
    "the nodes of a chain of switches are listed": without_leaves(lambda: ring(24, 2, closed=False), 23),
    "the nodes of a ring of nodes are listed": without_leaves(nodes_in_a_ring),
    "nodes with DPUs are listed": without_leaves(dpus, 16),
    "a link that its node calls miscabled is moved": told_by_the_node,
}


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_the_message_says_ends_the_anomaly_of_announcements(
    case: Callable[[], Case], published: bool
) -> None:
    of, cluster = case(), Cluster(RULES)
    plan(of.first, cluster)
    assert tuple(sorted({odd.kind for odd in plan(of.wrong, cluster)})) == of.kinds
    assert after(of.right, cluster, published, RULES, of.file) == []


def test_a_link_that_its_node_calls_miscabled_is_not_to_be_moved_to_where_it_is() -> None:
    (odd,) = plan(told_by_the_node().wrong, Cluster(RULES))
    assert odd.message == (
        "su0-n00 itself reports rail2 as miscabled, at su0-leaf2: move this cable to the port of the node's cabling "
        "plan, which `nodeagent health` on the node names"
    )


def test_each_kind_has_a_fault_whose_remedy_is_applied_or_a_reason() -> None:
    applied = {kind for of in CASES.values() for kind in of().kinds}
    for row in (ROWS | ANNOUNCED).values():
        applied |= {AnomalyKind(kind) for kind, _, _, _ in row.fault(sound(row))}
    assert applied | NOT_APPLIED.keys() == {*AnomalyKind}
    assert not applied & NOT_APPLIED.keys()
