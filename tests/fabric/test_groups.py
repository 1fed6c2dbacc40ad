"""Leaf groups match the cabling in spite of broken links and wrong cables, in any order of the reports."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, AnomalyKind, FabricRules, PlanOutcome, compute
from nodeagent.fabric.anomaly_texts import node_to_node
from tests.support.fabrics import (
    SHAPES,
    Cables,
    End,
    dual,
    links,
    one_leaf,
    pairs,
    partition,
    rails,
    single,
    units,
)

NOW = FabricRules(hysteresis=IMMEDIATE)


def plan(cables: Cables, rules: FabricRules = NOW, seed: int | None = None) -> PlanOutcome:
    reports = [links(node, row) for node, row in cables.items()]
    if seed is not None:
        random.Random(seed).shuffle(reports)
    return compute(reports, rules=rules)


def kinds(outcome: PlanOutcome) -> list[str]:
    return sorted(str(anomaly.kind) for anomaly in outcome.anomalies)


def swap(cables: Cables, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Swap two cables."""
    rows = {node: list(cables[node]) for node in (one[0], other[0])}
    rows[one[0]][one[1]], rows[other[0]][other[1]] = rows[other[0]][other[1]], rows[one[0]][one[1]]
    cables.update({node: tuple(row) for node, row in rows.items()})


def cut(cables: Cables, node: str, *places: int) -> None:
    cables[node] = tuple(None if i in places else end for i, end in enumerate(cables[node]))


def test_scalable_units_of_32_nodes_are_leaf_groups() -> None:
    outcome = plan(rails(4, 32))
    assert partition(outcome) == units(rails(4, 32))
    assert not outcome.anomalies
    assert not outcome.unplaced


def test_one_cable_to_another_unit_is_an_anomaly_and_merges_nothing() -> None:
    cables = rails(4, 32)
    row = list(cables["su000-n005"])
    row[2] = End("su003-leaf-r2", "swp60")
    cables["su000-n005"] = tuple(row)
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    (odd,) = outcome.anomalies
    assert (odd.kind, odd.node, odd.link, odd.switch) == (
        AnomalyKind.FOREIGN_LEAF,
        "su000-n005",
        "rail2",
        "su003-leaf-r2",
    )
    assert "su000-leaf-r2" in odd.message


def test_two_swapped_rails_are_two_anomalies() -> None:
    cables = rails(4, 32)
    swap(cables, ("su001-n000", 3), ("su001-n000", 5))
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert kinds(outcome) == ["rail-swap", "rail-swap"]
    assert {(one.link, one.switch) for one in outcome.anomalies} == {
        ("rail3", "su001-leaf-r5"),
        ("rail5", "su001-leaf-r3"),
    }


def test_two_links_to_the_switch_of_one_rail_are_miscabled() -> None:
    cables = rails(2, 8)
    row = list(cables["su000-n000"])
    row[3] = End("su000-leaf-r5", "swp77")
    cables["su000-n000"] = tuple(row)
    outcome = plan(cables)
    assert kinds(outcome) == ["miscabled"]
    assert outcome.anomalies[0].link == "rail3"


def test_a_rail_without_a_neighbor_is_missing() -> None:
    cables = rails(2, 8)
    cut(cables, "su000-n000", 6)
    outcome = plan(cables)
    assert kinds(outcome) == ["missing-rail"]
    assert (outcome.anomalies[0].link, outcome.anomalies[0].switch) == ("rail6", "su000-leaf-r6")


def test_groups_stand_with_five_percent_of_the_links_down() -> None:
    cables = rails(4, 32)
    for node in random.Random(5).sample(sorted(cables), 51):
        cut(cables, node, int(node[-1]) % 8)
    assert partition(plan(cables)) == units(cables)


def test_groups_stand_with_one_leaf_down() -> None:
    cables = rails(4, 32)
    for node in [node for node in cables if node.startswith("su002")]:
        cut(cables, node, 0)
    assert partition(plan(cables)) == units(cables)


def test_a_leaf_with_most_of_its_links_down_still_belongs_to_its_group() -> None:
    cables = rails(4, 32)
    for n in range(20):
        cut(cables, f"su002-n{n:03}", 0)
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    group = next(one for one in outcome.hypernodes if "su002-n031" in one.nodes)
    assert "su002-leaf-r0" in group.switches
    assert "foreign-leaf" not in kinds(outcome)


@pytest.mark.parametrize(
    ("cables", "count"),
    [(pairs(4, 16), 4), (one_leaf(4, 8), 4), (single(2, 2), 2), (dual(3, 8, 8), 3)],
    ids=["MLAG", "8 NICs on one leaf", "2 leaves of 4 nodes", "16 ports"],
)
def test_other_kinds_of_cabling_are_grouped(cables: Cables, count: int) -> None:
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert len(partition(outcome)) == count
    assert not outcome.anomalies


def test_units_of_two_nodes_with_a_wrong_cable_stay_apart() -> None:
    cables = rails(2, 2)
    cables["su000-n000"] = (End("su001-leaf-r0", "swp9"), *cables["su000-n000"][1:])
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert kinds(outcome) == ["foreign-leaf"]


def test_units_of_one_node_with_a_wrong_cable_stay_apart() -> None:
    """The switch of this cable may be one that both units share, too."""
    cables = rails(2, 1)
    cables["su000-n000"] = (End("su001-leaf-r0", "swp9"), *cables["su000-n000"][1:])
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert kinds(outcome) == ["shared-switch"]


def test_units_of_two_nodes_with_two_wrong_cables_and_one_that_is_absent_stay_apart() -> None:
    """Half of the nodes that decide have the leaf switches of rail 1 together; those of all rails decide."""
    cables = rails(2, 2)
    swapped = {
        "su001-n000": (1, End("su000-leaf-r1", "swp8")),
        "su001-n001": (7, End("su000-leaf-r7", "swp9")),
    }
    for node, (rail, end) in {**swapped, "su000-n000": (1, None)}.items():
        cables[node] = (*cables[node][:rail], end, *cables[node][rail + 1 :])
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert kinds(outcome) == ["foreign-leaf", "foreign-leaf"]


def test_leaves_cabled_to_the_other_unit_are_grouped_as_cabled() -> None:
    cables = rails(4, 32)
    for n in range(32):
        swap(cables, (f"su000-n{n:03}", 0), (f"su001-n{n:03}", 0))
    assert partition(plan(cables)) == units(cables)


def test_two_nodes_at_one_switch_port_are_an_anomaly() -> None:
    cables = rails(2, 4)
    cables["su000-n001"] = (cables["su000-n000"][0], *cables["su000-n001"][1:])
    outcome = plan(cables)
    assert partition(outcome) == units(cables)
    assert [(one.kind, one.node) for one in outcome.anomalies] == [
        (AnomalyKind.SHARED_PORT, "su000-n000"),
        (AnomalyKind.SHARED_PORT, "su000-n001"),
    ]


def with_port(cables: Cables, port: str, count: int) -> Cables:
    """The first rail of the first nodes is at this port."""
    for node in sorted(cables)[:count]:
        first, *others = cables[node]
        assert first is not None
        cables[node] = (replace(first, port=port), *others)
    return cables


@pytest.mark.parametrize("port", ["", "uplink to GPU"])
def test_one_port_at_all_links_of_a_switch_is_one_anomaly_with_the_command(port: str) -> None:
    (odd,) = plan(with_port(rails(1, 4), port, 4)).anomalies
    assert (odd.kind, odd.node, odd.link, odd.switch) == (AnomalyKind.SHARED_PORT, "", "", "su000-leaf-r0")
    assert len(odd.nodes) == 4
    assert port in odd.message
    assert "the ports of 4 links apart" in odd.message
    assert "`lldpcli configure lldp portidsubtype ifname`" in odd.message


def with_ports(cables: Cables, ports: Iterable[str]) -> Cables:
    """The first rail of the nodes is at these ports, in order."""
    for node, port in zip(sorted(cables), ports, strict=False):
        first, *others = cables[node]
        assert first is not None
        cables[node] = (replace(first, port=port), *others)
    return cables


@pytest.mark.parametrize(
    ("ports", "apart"),
    [
        pytest.param(["gpu"] * 8 + ["storage"] * 8, 16, id="two descriptions"),
        pytest.param(["gpu"] * 8 + [f"swp{n}" for n in range(8)], 8, id="a description at half of the ports"),
    ],
)
def test_descriptions_of_many_ports_are_one_anomaly_of_the_switch(ports: list[str], apart: int) -> None:
    (odd,) = plan(with_ports(rails(1, 16), ports)).anomalies
    assert (odd.kind, odd.node, odd.link, odd.switch) == (AnomalyKind.SHARED_PORT, "", "", "su000-leaf-r0")
    assert len(odd.nodes) == apart
    assert f"the ports of {apart} links apart" in odd.message
    assert all(name in odd.message for name in {"gpu", "storage"} & set(ports))


def test_a_description_of_many_ports_beside_ports_without_a_name_is_an_anomaly_of_the_switch_too() -> None:
    anomalies = plan(with_ports(rails(1, 16), ["gpu"] * 8 + [""] * 8)).anomalies
    assert {(odd.kind, odd.node, odd.switch) for odd in anomalies} == {
        (AnomalyKind.SHARED_PORT, "", "su000-leaf-r0")
    }
    assert sorted(len(odd.nodes) for odd in anomalies) == [8, 8]


@pytest.mark.parametrize(
    ("ports", "shared"),
    [
        pytest.param(["gpu"] * 8 + ["storage"] * 6 + ["swp99"] * 2, 2, id="two nodes at one port"),
        pytest.param(["swp99"] * 3, 3, id="three nodes behind a hub, the other ports are told apart"),
    ],
)
def test_a_port_that_few_nodes_share_stays_an_anomaly_of_each(ports: list[str], shared: int) -> None:
    anomalies = plan(with_ports(rails(1, 16), ports)).anomalies
    assert sum(bool(odd.node) for odd in anomalies) == shared
    assert all("report the same port swp99" in odd.message for odd in anomalies if odd.node)
    assert sum(not odd.node for odd in anomalies) == (len(ports) > 3)


@pytest.mark.parametrize(("nameless", "found"), [(1, []), (2, [""])])
def test_one_link_without_a_port_has_nothing_to_be_told_apart_from(nameless: int, found: list[str]) -> None:
    """Beside two nodes at one port."""
    cables = with_port(with_port(rails(1, 6), "swp9", nameless + 2), "", nameless)
    shared = sorted(cables)[nameless : nameless + 2]
    anomalies = plan(cables).anomalies
    assert {odd.kind for odd in anomalies} == {AnomalyKind.SHARED_PORT}
    assert [odd.node for odd in anomalies] == [*found, *shared]
    assert [odd.message.count(f"the ports of {nameless} links apart") for odd in anomalies] == [
        *(1 for _ in found),
        0,
        0,
    ]


def test_a_second_device_beside_a_switch_is_an_anomaly_and_moves_no_node() -> None:
    cables = rails(2, 4)
    before = plan(cables)
    row = list(cables["su000-n001"])
    row[2] = replace(row[2], contested=True)
    cables["su000-n001"] = tuple(row)
    outcome = plan(cables)
    assert partition(outcome) == partition(before)
    assert [(one.kind, one.node, one.link, one.switch) for one in outcome.anomalies] == [
        (AnomalyKind.CONTESTED_LINK, "su000-n001", "rail2", row[2].switch)
    ]
    assert f"beside {row[2].switch} another device announces itself on rail2" in outcome.anomalies[0].message
    assert "forged frames" in outcome.anomalies[0].message
    row[2] = replace(row[2], contenders=(replace(row[2], contested=False),))
    cables["su000-n001"] = tuple(row)
    (odd,) = plan(cables).anomalies
    assert odd.message.startswith(
        f"{row[2].switch} announces itself on rail2 of su000-n001 from two MAC addresses: it "
    )


def test_a_node_without_neighbors_is_unplaced_with_a_reason() -> None:
    cables = rails(1, 4)
    cables["su000-n003"] = (None,) * 8
    (unplaced,) = plan(cables).unplaced
    assert unplaced.node == "su000-n003"
    assert "LLDP" in unplaced.reason


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    groups=st.integers(1, 5),
    size=st.integers(4, 20),
    seed=st.integers(0, 2**32),
)
def test_groups_stand_with_dead_links_and_wrong_cables(shape: str, groups: int, size: int, seed: int) -> None:
    """A tenth of each group's links is down, and 3 % of the links of nodes with several go to another group."""
    chance = random.Random(seed)
    true = SHAPES[shape](groups, size)
    cables = dict(true)
    spares: dict[str, list[str]] = {}
    for node, row in true.items():
        spares.setdefault(node.partition("-")[0], []).extend(end.switch for end in row if end)
    for unit in sorted(spares):
        ends = [(node, i) for node in true if node.startswith(unit + "-") for i in range(len(true[node]))]
        chance.shuffle(ends)
        dead = ends[: len(ends) // 10]
        wrong = ends[len(dead) : len(dead) + 3 * len(ends) // 100]
        for node, i in dead:
            cut(cables, node, i)
        others = [switch for other, switches in spares.items() if other != unit for switch in switches]
        touched: set[str] = set()
        for node, i in wrong:
            left = sum(end is not None for end in cables[node])
            if others and left > 2 and node not in touched:
                touched.add(node)
                row = list(cables[node])
                row[i] = End(chance.choice(others), f"wrong-{node}-{i}")
                cables[node] = tuple(row)
    outcome = plan(cables, seed=seed)
    assert partition(outcome) == units(cables)
    assert {one.node for one in outcome.unplaced} == {node for node, row in cables.items() if not any(row)}


@given(shape=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 2**32), other=st.integers(0, 2**32))
def test_the_order_of_reports_does_not_matter(shape: str, seed: int, other: int) -> None:
    chance = random.Random(seed)
    cables = SHAPES[shape](3, 5)
    ends = [end for row in cables.values() for end in row]
    for node in chance.sample(sorted(cables), 4):
        cables[node] = tuple(chance.choice((None, end, chance.choice(ends))) for end in cables[node])
    one, two = plan(cables, seed=seed), plan(cables, seed=other)
    assert one.hypernodes == two.hypernodes
    assert one.anomalies == two.anomalies
    assert one.unplaced == two.unplaced
    assert one.writes == two.writes
    assert dict(one.labels) == dict(two.labels)


def test_a_cable_between_two_nodes_is_one_anomaly_whether_one_end_reports_it_or_both() -> None:
    def starts(*ends: tuple[str, str]) -> list[str]:
        return [one.message.partition(": a node is no switch")[0] for one in node_to_node("n0", "n1", ends)]

    assert starts(("n1", "ens2")) == ["ens2 of n1 is cabled to the node n0"]
    assert starts(("n0", "ens1"), ("n1", "ens2")) == ["ens1 of n0 is cabled to the node n1 (ens2)"]
    assert starts(("n0", "ens1"), ("n1", "ens2"), ("n1", "ens3")) == [
        "ens2 of n1 is cabled to the node n0 (ens1)",
        "ens3 of n1 is cabled to the node n0",
    ]


def test_half_of_the_nodes_join_two_switches_that_are_new_and_none_that_are_published_apart() -> None:
    def cabled(**far: str) -> Cables:
        return {
            node: tuple(End(f"leaf-{switch}", f"{node}-{i}") for i, switch in enumerate(row))
            for node, row in far.items()
        }

    before, after = cabled(n1="aa", n2="aa", n3="aa", n4="bb"), cabled(n1="aa", n2="ab", n3="ab", n4="bb")
    assert partition(plan(after)) == {frozenset(after)}
    assert "undecidable" in kinds(plan(after))
    published = plan(before).hypernodes
    outcome = compute([links(node, row) for node, row in after.items()], published=published, rules=NOW)
    assert partition(outcome) == {frozenset(("n1", "n2", "n3")), frozenset(("n4",))}
