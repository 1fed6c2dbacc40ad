"""One report changes no group of others, whatever it says, and one wrong cable changes none.

Halls without wrong cables come from ``tests/support/random_halls.py``, and so does a report of any content.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.fabric import IMMEDIATE, FabricRules, Planner, PlanOutcome, compute
from nodeagent.fabric.fabric_settings import TierSettings
from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.known_neighbors import KnownNeighbors
from nodeagent.fabric.nodelinks import Contender, NodeLink, NodeLinks, ReportedDomain, ReportedId
from nodeagent.fabric.topology_file import Topology
from tests.support.examples import examples
from tests.support.fabrics import partition
from tests.support.halls import Hall
from tests.support.random_halls import Cabling, Links, draw_cabling, draw_lie, report, reports, switches

NOW = FabricRules(hysteresis=IMMEDIATE)
SEED = st.integers(0, 2**64)
Groups = set[frozenset[str]]


def plan(cabling: Mapping[str, Links], published: Collection[HyperNode] = ()) -> PlanOutcome:
    return compute(reports(cabling), published=published, rules=NOW)


def units_of(cabling: Iterable[str]) -> Groups:
    """A node's unit is the first part of its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in cabling:
        found[node.partition("-")[0]].add(node)
    return {frozenset(nodes) for nodes in found.values()}


def rail_units(units: int, size: int, rails: int = 8) -> Cabling:
    return {
        f"su{unit}-n{n:02}": tuple((rail, f"su{unit}-leaf{rail}") for rail in range(rails))
        for unit in range(units)
        for n in range(size)
    }


def changes(before: Groups, after: Groups, node: str) -> list[str]:
    """How the report of one node joins or divides groups of others: those of two or more, or of three or more."""
    place = {member: group for group in after for member in group}
    found: list[str] = []
    meets: Counter[frozenset[str]] = Counter()
    for group in (group - {node} for group in before):
        places = {place.get(member) for member in group}
        if len(group) > 2 and (len(places) > 1 or None in places):
            found.append(f"divided: {sorted(group)}")
        if len(group) > 1:
            meets.update(one for one in places if one is not None)
    return found + [f"joined: {sorted(group)}" for group, count in meets.items() if count > 1]


def is_of_all(link: tuple[int | None, str]) -> bool:
    """The link leads to a switch that all units have."""
    return link[1].startswith(("storage", "management"))


def named(outcome: PlanOutcome) -> set[tuple[str, str, str]]:
    return {(str(odd.kind), odd.node, odd.link) for odd in outcome.anomalies}


@pytest.mark.parametrize("ninth", [8, 20, None], ids=["rail 8", "rail 20", "no rail"])
def test_a_wrong_cable_beside_a_nic_on_a_switch_of_its_own_joins_nothing_and_is_named(
    ninth: int | None,
) -> None:
    cabling = rail_units(10, 16)
    links = list(cabling["su0-n00"])
    links[1] = (1, "su1-leaf1")
    cabling["su0-n00"] = (*links, (ninth, "border"))
    outcome = plan(cabling)
    assert partition(outcome) == units_of(cabling)
    assert named(outcome) == {("foreign-leaf", "su0-n00", "nic1")}


@pytest.mark.parametrize("rail", [2, 8, None], ids=["a common rail", "a rail of its own", "no rail"])
@pytest.mark.parametrize("gateways", [1, 2, 3])
def test_gateways_between_two_units_and_a_border_switch_join_nothing(gateways: int, rail: int | None) -> None:
    """As many gateways as the units have not: 16 nodes each testify that they are apart."""
    cabling = rail_units(2, 16)
    units = units_of(cabling)
    for i in range(gateways):
        cabling[f"gateway-{i}"] = ((0, "su0-leaf0"), (1, "su1-leaf1"), (rail, "border"))
    groups = {
        group - {node for node in group if node.startswith("gateway")} for group in partition(plan(cabling))
    }
    assert groups - {frozenset()} == units


def test_a_report_of_nine_links_joins_no_unit() -> None:
    cabling = rail_units(8, 16)
    units = units_of(cabling)
    cabling["liar"] = (*((unit, f"su{unit}-leaf{unit}") for unit in range(8)), (50, "fake"))
    assert not changes(units, partition(plan(cabling)), "liar")
    cabling["liar"] = (*((50 + unit, f"su{unit}-leaf{unit}") for unit in range(8)), (50, "fake"))
    assert not changes(units, partition(plan(cabling)), "liar")


def test_one_witness_joins_its_own_switches_and_two_join_parts_of_a_unit() -> None:
    """Each node of a unit has one of two cables. Nobody can say that the two leaf switches are apart."""
    half = {f"su0-n{n}": ((n % 2, f"su0-leaf{n % 2}"),) for n in range(6)}
    parts = {frozenset(node for node in half if int(node[-1]) % 2 == side) for side in (0, 1)}
    both = ((0, "su0-leaf0"), (1, "su0-leaf1"))
    assert partition(plan(half)) == parts
    assert not changes(parts, partition(plan({**half, "su0-n0": both})), "su0-n0")
    assert partition(plan({**half, "su0-n0": both, "su0-n1": both})) == {frozenset(half)}
    alone = {"su0-n0": both, "su0-n1": ((1, "su0-leaf1"),)}
    assert partition(plan(alone)) == {frozenset(alone)}


def test_one_witness_joins_what_is_published_together() -> None:
    both = ((0, "su0-leaf0"), (1, "su0-leaf1"))
    half: Cabling = {f"su0-n{n}": ((n % 2, f"su0-leaf{n % 2}"),) for n in range(6)}
    whole = plan(dict.fromkeys(half, both))
    for witness in ({}, {"su0-n0": both}):
        assert partition(plan({**half, **witness}, whole.hypernodes)) == {frozenset(half)}


@settings(max_examples=examples(200))
@example(seed=6509435713896552669, units=3, small=True, replaces=True)
@example(seed=43896, units=3, small=False, replaces=True)
@example(seed=87138697049, units=2, small=True, replaces=True)
@example(seed=2663, units=3, small=True, replaces=True)
@example(seed=742912719638, units=6, small=True, replaces=True)
@example(seed=508737283325, units=4, small=True, replaces=False)
@example(seed=4593242, units=2, small=False, replaces=False)
@given(seed=SEED, units=st.integers(2, 6), small=st.booleans(), replaces=st.booleans())
def test_one_report_of_any_content_joins_and_divides_no_group_of_others(
    seed: int, units: int, small: bool, replaces: bool
) -> None:
    """One more node, or a node of the hall; with the tree that is published, and without. Units of one node that share
    as many switches as they have of their own are one group, or several: such halls prove nothing."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, sizes=range(1, 4) if small else range(1, 33))
    node = chance.choice(sorted(cabling)) if replaces else "liar"
    lie = draw_lie(chance, cabling)
    cabling.pop(node, None)
    before = plan(cabling)
    assume(partition(before) == units_of(cabling))
    for published in ((), before.hypernodes):
        after = plan({**cabling, node: lie}, published)
        assert not changes(partition(before), partition(after), node)


@settings(max_examples=examples(200))
@example(seed=744120828751, units=4)
@example(seed=72967029957, units=5)
@given(seed=SEED, units=st.integers(2, 5))
def test_one_report_joins_no_two_units_and_divides_no_published_group_while_cables_are_missing(
    seed: int, units: int
) -> None:
    """Up to seven of ten links have no neighbor yet, and all switches are leaf switches: about a storage or management
    switch too few nodes decide then. The report may be the second of two about the parts of one unit, and about a node
    that has half of its links at switches of its own."""
    chance = random.Random(seed)
    holes = chance.choice((0.1, 0.3, 0.5, 0.7))
    cabling = draw_cabling(chance, units, sizes=range(3, 12), holes=holes)
    assume(not any(map(is_of_all, chain.from_iterable(cabling.values()))))
    node = chance.choice((*sorted(cabling), "liar"))
    lie = draw_lie(chance, cabling)
    cabling.pop(node, None)
    before = plan(cabling)
    decided = sure(cabling)
    groups = {group & decided for group in partition(before)}
    after = {
        group & (decided | {node}) for group in partition(plan({**cabling, node: lie}, before.hypernodes))
    }
    assert not [change for change in changes(groups, after, node) if change.startswith("divided")]
    for group in after:
        parts = [part - {node} for part in groups if len(part - {node}) > 1 and not group.isdisjoint(part)]
        assert len(parts) < 2 or len(units_of(chain.from_iterable(parts))) == 1


@settings(max_examples=examples(200))
@example(seed=38351, units=2)
@example(seed=8213, units=6)
@example(seed=215075, units=6)
@given(seed=SEED, units=st.integers(2, 6))
def test_one_cable_in_another_unit_joins_nothing_and_is_named(seed: int, units: int) -> None:
    """With and without nodes that have more rails, fewer, or a NIC on a border switch. Other nodes keep their place.
    Two nodes have each of the switches: of one alone nobody knows to which unit it belongs. A node with less than
    half of the links of others, such as a gateway, is compared with nodes of its model alone. If a border switch has as
    many links of the node as its unit, less the wrong one, the published tree decides."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, rails=chance.randint(3, 10), sizes=range(4, 33))
    before = plan(cabling)
    node = chance.choice(sorted(cabling))
    unit = node.partition("-")[0]
    nodes = Counter(switch for links in cabling.values() for switch in {switch for _, switch in links})
    others: dict[int | None, set[str]] = defaultdict(set)
    for rail, switch in chain.from_iterable(cabling.values()):
        if switch.startswith("su") and not switch.startswith(unit + "-") and nodes[switch] > 1:
            others[rail].add(switch)
    own = [
        i
        for i, (rail, switch) in enumerate(cabling[node])
        if switch.startswith(unit + "-") and nodes[switch] > 1 and others[rail]
    ]
    most = max(len(links) for other, links in cabling.items() if other.startswith(unit + "-"))
    assume(len(own) > 2 and 2 * len(cabling[node]) >= most)
    i = chance.choice(own)
    rail = cabling[node][i][0]
    other = chance.choice(sorted(others[rail]))
    links = list(cabling[node])
    links[i] = (rail, other)
    border = sum(switch.startswith("border") for _, switch in links)
    for published in ((), before.hypernodes) if len(own) > 2 + border else (before.hypernodes,):
        after = plan({**cabling, node: tuple(links)}, published)
        assert partition(after) == partition(before)
        assert ("foreign-leaf", node, f"nic{i}") in named(after)


def sure(cabling: Mapping[str, Links]) -> set[str]:
    """The nodes with most of their links at leaf switches that three nodes have. Two decide about the others."""
    nodes = Counter(switch for links in cabling.values() for switch in {switch for _, switch in links})
    known = {
        node: [switch for rail, switch in links if switch and not is_of_all((rail, switch))]
        for node, links in cabling.items()
    }
    return {
        node for node, links in known.items() if 2 * sum(nodes[switch] < 3 for switch in links) < len(links)
    }


def contested(one: NodeLinks, chance: random.Random, names: Collection[str], most: int = 8) -> NodeLinks:
    """The report with another switch as the neighbor of some links, whose own one is a contender."""
    links = list(one.links)
    for i in chance.sample(range(len(links)), min(most, len(links))):
        neighbor, name = links[i].neighbor, chance.choice([*names])
        if neighbor is not None:
            contender = Contender(
                chassis_id=neighbor.chassis_id, port_id=neighbor.port_id, system_name=neighbor.system_name
            )
            first = structs.replace(
                neighbor,
                chassis_id=structs.replace(neighbor.chassis_id, value=f"chassis of {name}"),
                system_name=name,
                contested=True,
                contenders=(contender,),
            )
            links[i] = structs.replace(links[i], neighbor=first)
    return structs.replace(one, links=tuple(links))


def nodes_below(outcome: PlanOutcome, tier: int) -> Groups:
    """The nodes below each object of a tier."""
    by_name = {one.name: one for one in outcome.hypernodes}

    def below(name: str) -> set[str]:
        one = by_name[name]
        return set(one.nodes).union(*map(below, one.children))

    return {frozenset(below(name)) for name, one in by_name.items() if one.tier == tier}


@settings(max_examples=examples(60))
@example(seed=264, units=5, patterns=False)
@example(seed=54817, units=6, patterns=False)
@example(seed=22613, units=5, patterns=False)
@example(seed=32466, units=4, patterns=False)
@example(seed=628682551861, units=4, patterns=False)
@example(seed=21326641815, units=4, patterns=False)
@example(seed=10003093, units=4, patterns=False)
@example(seed=11000229, units=5, patterns=False)
@given(seed=SEED, units=st.integers(4, 6), patterns=st.booleans())
def test_one_report_of_any_content_joins_and_divides_no_group_of_an_upper_tier(
    seed: int, units: int, patterns: bool
) -> None:
    """Two units have one pair of spines. The report names spines as its leaf switches too, and leaf switches of any
    unit; the uplinks come from the switches, or from their names."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, sizes=range(3, 9))
    pods = {
        switch: int(switch[2]) // 2
        for links in cabling.values()
        for _, switch in links
        if switch.startswith("su")
    }
    uplinks: dict[str, tuple[str, ...]] = {
        leaf: (f"spine{pod}a", f"spine{pod}b") for leaf, pod in pods.items()
    }
    uplinks |= {f"spine{pod}{side}": ("core",) for pod in range(3) for side in "ab"}
    by_name = (r"^su(?P<tier2>[01])-", r"^su(?P<tier2>[2-3])-", r"^su(?P<tier2>[4-5])-")
    rules = structs.replace(NOW, tiers=TierSettings(name_patterns=by_name)) if patterns else NOW
    spines = [switch for switch in uplinks if not switch.startswith("su")]
    node = chance.choice((*sorted(cabling), "liar"))
    lie = (
        *draw_lie(chance, cabling),
        *((chance.choice((0, 1, 50)), spine) for spine in chance.sample(spines, 2)),
    )
    cabling.pop(node, None)

    def planned(cabling: Mapping[str, Links]) -> PlanOutcome:
        planner = Planner(rules)
        planner.uplinks({} if patterns else uplinks)
        for one in reports(cabling):
            planner.report(one.node_name, one)
        return planner.plan(0.0)

    before = planned(cabling)
    assume(partition(before) == units_of(cabling))
    after = planned({**cabling, node: lie})
    assert not changes(nodes_below(before, 2), nodes_below(after, 2), node)


@settings(max_examples=examples(60))
@example(seed=751782465221, units=2)
@example(seed=985680179459, units=4)
@example(seed=26603634486, units=3)
@example(seed=833787607840, units=3)
@example(seed=27477887556, units=2)
@example(seed=10004472, units=2)
@given(seed=SEED, units=st.integers(2, 5))
def test_one_report_of_any_content_changes_no_group_beside_contested_links(seed: int, units: int) -> None:
    """A few links of others have a bridge as neighbor, with the switch as contender. The report may name the switch
    ports of these, contenders of its own, and the names of others for a chassis ID. Two of three nodes at one bridge
    are no unit that others agree about: if the third one has a border switch, and the report puts that on the rail of
    the bridge, all three are at one of two switches of the rail, so that the leaf switches seem shared. 1 of 723 halls
    with three nodes in each unit was so."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, rails=chance.randint(3, 8), sizes=range(3, 17))
    node = chance.choice((*sorted(cabling), "liar"))
    lie = contested(report(node, draw_lie(chance, cabling)), chance, switches(cabling))
    cabling.pop(node, None)
    bridged = set(chance.sample(sorted(cabling), 2))
    for unit in units_of(cabling):
        assume(len(unit) > 3 or len(unit & bridged) < 2)
    honest = [
        contested(one, chance, ["bridge"], 1) if one.node_name in bridged else one for one in reports(cabling)
    ]
    ports = [link.neighbor.port_id for one in honest for link in one.links[:1] if link.neighbor is not None]
    lie = structs.replace(
        lie,
        links=tuple(
            link
            if link.neighbor is None or chance.random() < 0.5
            else structs.replace(link, neighbor=structs.replace(link.neighbor, port_id=chance.choice(ports)))
            for link in lie.links
        ),
    )
    before = compute(honest, rules=NOW)
    assume(partition(before) == units_of(cabling))
    heard: Cabling = {
        one.node_name: tuple(
            (link.rail, (link.neighbor and link.neighbor.system_name) or "") for link in one.links
        )
        for one in honest
    }
    decided = sure(heard)
    groups = {group & decided for group in partition(before)}
    for published in ((), before.hypernodes):
        after = partition(compute([*honest, lie], published=published, rules=NOW))
        assert not changes(groups, {group & (decided | {node}) for group in after}, node)


@settings(max_examples=examples(60))
@given(seed=SEED, units=st.integers(2, 5))
def test_one_report_of_any_ports_takes_no_known_neighbor_from_others(seed: int, units: int) -> None:
    """The operator's file has the neighbor of each InfiniBand port. The report has ports of others, by GUID and by the
    names of their devices, and neighbors of its own: it changes no group, and no link of another report."""
    chance = random.Random(seed)
    cabling = draw_cabling(chance, units, sizes=range(3, 12))
    guids = {
        (node, i): f"{i:08x}{n:08x}" for n, node in enumerate(cabling) for i in range(len(cabling[node]))
    }
    whole = {one.node_name: one for one in reports(cabling)}
    of_port = {(node, i): whole[node].links[i].neighbor for node, i in guids}
    known = KnownNeighbors(
        {guids[port]: neighbor for port, neighbor in of_port.items() if neighbor is not None},
        {(node, f"mlx5_{i}"): neighbor for (node, i), neighbor in of_port.items() if neighbor is not None},
    )

    def silent(node: str, i: int, link: NodeLink, guid: str) -> NodeLink:
        """The link without a neighbor of its own, or with one that has expired; known by its device or its GUID."""
        neighbor = None if link.neighbor is None else structs.replace(link.neighbor, stale=True)
        mac = ":".join(
            ("00:00:00:00:fe:80:00:00:00:00:00:00", *(guid[at : at + 2] for at in range(0, 16, 2)))
        )
        return structs.replace(
            link,
            neighbor=chance.choice((None, neighbor)),
            mac=mac if chance.random() < 0.7 else None,
            rdma_device=f"mlx5_{i}",
        )

    honest = {
        node: structs.replace(
            one, links=tuple(silent(node, i, link, guids[node, i]) for i, link in enumerate(one.links))
        )
        for node, one in whole.items()
    }
    liar = chance.choice((*sorted(cabling), "liar"))
    links = report(liar, draw_lie(chance, cabling)).links
    lie = structs.replace(
        report(liar, ()),
        links=tuple(
            link if chance.random() < 0.5 else silent(liar, i, link, chance.choice([*guids.values()]))
            for i, link in enumerate(links)
        ),
    )

    def planned(told: Mapping[str, NodeLinks], published: Collection[HyperNode] = ()) -> PlanOutcome:
        planner = Planner(NOW, Topology(neighbors=known))
        for hypernode in published:
            planner.hypernode(hypernode.name, hypernode)
        for name, one in told.items():
            planner.report(name, one)
        return planner.plan(0.0)

    others = {name: one for name, one in honest.items() if name != liar}
    assert {name: known.complete(one) for name, one in others.items()} == {
        name: structs.replace(
            one,
            links=tuple(structs.replace(link, neighbor=of_port[name, i]) for i, link in enumerate(one.links)),
        )
        for name, one in others.items()
    }
    before = planned(others)
    assume(partition(before) == units_of(others))
    decided = sure({node: links for node, links in cabling.items() if node != liar})
    groups = {group & decided for group in partition(before)}
    for published in ((), before.hypernodes):
        after = partition(planned({**others, liar: lie}, published))
        assert not changes(groups, {group & (decided | {liar}) for group in after}, liar)


@given(seed=SEED, racks=st.integers(2, 4), trays=st.integers(3, 9))
def test_one_report_of_any_domains_changes_no_nvlink_domain_of_three_nodes(
    seed: int, racks: int, trays: int
) -> None:
    chance = random.Random(seed)
    cabling = rail_units(racks, trays, 4)

    def domains(*racks: int) -> tuple[ReportedDomain, ...]:
        return tuple(
            ReportedDomain(cluster_uuid=f"00000000-0000-0000-0000-{rack:012x}", clique_id=1, gpus=(i,))
            for i, rack in enumerate(racks)
        )

    rules = structs.replace(NOW, tiers=TierSettings(nvlink="auto"))
    node = chance.choice((*sorted(cabling), "liar"))
    lie = structs.replace(
        report(node, draw_lie(chance, cabling)),
        nvlink_domains=domains(*(chance.randrange(racks + 1) for _ in range(chance.choice((0, 1, 1, 1, 2))))),
    )
    honest = [
        structs.replace(report(one, links), nvlink_domains=domains(int(one[2])))
        for one, links in cabling.items()
        if one != node
    ]
    before, after = compute(honest, rules=rules), compute([*honest, lie], rules=rules)
    for tier in (1, 2):
        assert not changes(nodes_below(before, tier), nodes_below(after, tier), node)


@pytest.mark.parametrize("node", ["a-liar", "su0-n03", "z-liar"])
def test_a_second_chassis_id_under_the_name_of_a_leaf_switch_takes_that_name_from_no_switch(
    node: str,
) -> None:
    """Uplinks of a file, and patterns, know a leaf switch by its name."""
    cabling = rail_units(4, 4, 2)
    uplinks = {f"su{unit}-leaf{rail}": (f"spine{unit // 2}",) for unit in range(4) for rail in range(2)}
    lie = {node: tuple((rail, f"su1-leaf0|chassis {rail % 2}") for rail in range(4))}

    def planned(cabling: Mapping[str, Links], published: Collection[HyperNode]) -> PlanOutcome:
        planner = Planner(NOW)
        planner.uplinks(uplinks)
        for hypernode in published:
            planner.hypernode(hypernode.name, hypernode)
        for one in reports(cabling):
            planner.report(one.node_name, one)
        return planner.plan(0.0)

    others = {one: links for one, links in cabling.items() if one != node}
    before = planned(others, ())
    for published in ((), before.hypernodes):
        after = planned({**others, **lie}, published)
        for tier in (1, 2):
            assert not changes(nodes_below(before, tier), nodes_below(after, tier), node)
        (unit,) = (one for one in after.hypernodes if "su1-n00" in one.nodes)
        assert {"su1-leaf0", "su1-leaf1"} <= set(unit.switches)
        (odd,) = (odd for odd in after.anomalies if str(odd.kind) == "duplicate-system-name")
        assert "except for the one that several nodes report" in odd.message


def draw_lie_about_ports(
    chance: random.Random, *, replaces: bool
) -> tuple[dict[str, str], list[NodeLinks], NodeLinks]:
    """The unit of each other node, the others' reports, and one that mixes IDs, ports, names and addresses of switches.

    The switches have a chassis ID for each port, and names of their own or a factory default name."""
    units, rails, generic = chance.randint(2, 3), chance.choice((1, 2, 4)), chance.random() < 0.5
    leaf = [[f"su{unit}-leaf{rail}" for rail in range(rails)] for unit in range(units)]
    hall = Hall(leaf, chance.randint(3, 6), chassis_per_port=True)
    hall.names = dict.fromkeys(chain.from_iterable(leaf), "switch") if generic else {}
    told = hall.reports()
    node = chance.choice(sorted(hall.unit)) if replaces else "liar"
    known = [link.neighbor for one in told for link in one.links if link.neighbor is not None]
    links: list[NodeLink] = []
    for i in range(chance.randint(1, 6)):
        one, other = chance.choice(known), chance.choice(known)
        new_id = ReportedId(subtype="mac", value=f"02:ff:ff:ff:ff:0{chance.randrange(3)}")
        new_port = ReportedId(subtype="ifname", value=f"Eth1/{chance.randint(90, 93)}")
        both = (*one.management_addresses, *other.management_addresses)
        neighbor = structs.replace(
            one,
            chassis_id=chance.choice((one.chassis_id, new_id)),
            port_id=chance.choice((one.port_id, new_port, other.port_id)),
            system_name=chance.choice((one.system_name, one.system_name, other.system_name, "fake", None)),
            management_addresses=chance.choice((one.management_addresses, (), ("10.9.9.9",), both)),
        )
        links.append(
            NodeLink(
                name=f"nic{i}",
                rail=chance.randint(0, 4),
                fabric="compute",
                speed_mbps=400_000,
                state="healthy",
                neighbor=neighbor,
            )
        )
    others = {one: f"su{unit}" for one, unit in hall.unit.items() if one != node}
    honest = [one for one in told if one.node_name != node]
    return others, honest, structs.replace(report(node, ()), links=tuple(links))


@settings(max_examples=examples(200))
@example(seed=8860, replaces=True)
@example(seed=8892, replaces=True)
@example(seed=8931, replaces=True)
@example(seed=9082, replaces=True)
@example(seed=9223, replaces=True)
@given(seed=SEED, replaces=st.booleans())
def test_one_report_of_any_ids_divides_no_switch_with_an_id_for_each_port(seed: int, replaces: bool) -> None:
    """One more node, or a node of the hall: three others of its unit are left at least. Where its report contradicts
    another one, the order of their names says nothing."""
    others, honest, lie = draw_lie_about_ports(random.Random(seed), replaces=replaces)
    before = compute(honest, rules=NOW)
    units = units_of(others)
    assume(min(map(len, units)) > 2)
    assert partition(before) == units
    for published in ((), before.hypernodes):
        after = compute([*honest, lie], published=published, rules=NOW)
        assert not changes(units, partition(after), lie.node_name)
        again = compute([*honest, lie], published=after.hypernodes, rules=NOW)
        assert not changes(units, partition(again), lie.node_name)
