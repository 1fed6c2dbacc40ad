"""Generated halls: correct cabling of every kind has no anomaly, and each fault is named once.

The generator of the halls (``tests/support/halls.py``) adds the faults, and counts the anomalies that each must cause.
Nothing else may be reported, and not a fault may change the tree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.fabric import IMMEDIATE, AnomalyKind, FabricRules, NodeLinks, PlanOutcome, compute
from nodeagent.fabric.fabric_settings import FabricSelect, HysteresisSettings
from tests.support.examples import examples
from tests.support.fabrics import Cluster, partition
from tests.support.halls import FAULTS, Hall, draw_hall, named

NOW = FabricRules(hysteresis=IMMEDIATE)
GROWING = HysteresisSettings(settle_seconds=0, hold_seconds=0, hold_percent=100)
SEED = st.integers(0, 2**64)


def plan(hall: Hall, seed: int = 0) -> PlanOutcome:
    reports = hall.reports()
    random.Random(seed).shuffle(reports)
    return compute(reports, rules=NOW)


@given(seed=SEED, units=st.integers(1, 4), size=st.integers(2, 12), rails=st.sampled_from((1, 2, 3, 4, 8)))
def test_correct_cabling_of_every_kind_has_no_anomaly(seed: int, units: int, size: int, rails: int) -> None:
    hall = draw_hall(random.Random(seed), units=units, size=size, rails=rails)
    outcome = plan(hall, seed)
    assert named(outcome.anomalies) == hall.anomalies
    assert partition(outcome) == hall.units()


@settings(max_examples=examples(200))
@example(seed=2635, units=2, size=8, rails=4, faults=[Hall.rotate, Hall.rotate, Hall.shift])
@example(seed=63, units=4, size=8, rails=4, faults=[*[Hall.swap] * 4, Hall.send_away])
@example(seed=9, units=1, size=8, rails=8, faults=[])
@given(
    seed=SEED,
    units=st.integers(1, 4),
    size=st.integers(8, 24),
    rails=st.sampled_from((4, 8)),
    faults=st.lists(st.sampled_from(FAULTS), max_size=6),
)
def test_each_fault_is_named_once_and_nothing_else(
    seed: int, units: int, size: int, rails: int, faults: list[object]
) -> None:
    chance = random.Random(seed)
    hall = draw_hall(chance, units=units, size=size, rails=rails)
    if chance.random() < 0.2:
        hall.share_name(chance)
    for fault in faults:
        fault(hall, chance, chance.randrange(units))
    outcome = plan(hall, seed)
    assert named(outcome.anomalies) == hall.anomalies
    assert partition(outcome) == hall.units()
    assert not outcome.unplaced


def grow(hall: Hall, chance: random.Random) -> Iterator[str]:
    """Remove all cables, and add them again in random order. Yields the node of each cable."""
    cables = list(hall.cables.items())
    hall.cables.clear()
    hall.unused.update(place for place, _ in cables)
    chance.shuffle(cables)
    for place, switch in cables:
        hall.cables[place] = switch
        hall.unused.discard(place)
        yield place[0]


@settings(max_examples=examples(30))
@example(seed=5268, units=2, size=2, rails=4)
@example(seed=17180, units=2, size=5, rails=6)
@given(seed=SEED, units=st.integers(1, 3), size=st.integers(1, 5), rails=st.sampled_from((1, 2, 4, 6)))
def test_a_hall_that_grows_cable_by_cable_has_no_anomaly_and_loses_no_name(
    seed: int, units: int, size: int, rails: int
) -> None:
    """The whole hall is published first, and then cabled anew: each node loses its cables at its first one. No
    published group is divided, also while its nodes have no switch in common. Of groups that a cable joins, the larger
    one's name stays; no other name is lost."""
    chance = random.Random(seed)
    hall = draw_hall(chance, units=units, size=size, rails=rails, storage=(0,))
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    cluster.exist(*hall.unit)
    for node in hall.unit:
        cluster.report(hall.report(node))
    before: dict[str, tuple[str, ...]] = {}
    for node in grow(hall, chance):
        cluster.report(hall.report(node))
        cluster.rest(61)
        cluster.rest(61)
        assert cluster.outcome is not None
        assert not cluster.outcome.anomalies
        after = {name: tuple(nodes) for name, nodes in cluster.tree.leaves().items()}
        for name, nodes in before.items():
            assert len({home for home, members in after.items() if set(nodes) & set(members)}) == 1
            if name not in after:
                (home,) = (home for home, members in after.items() if nodes[0] in members)
                assert len(before[home]) >= len(nodes)
        before = after
    assert {frozenset(nodes) for nodes in before.values()} == hall.units()


@settings(max_examples=examples(30))
@example(seed=1, units=3, size=5, rails=2)
@example(seed=993614, units=3, size=3, rails=2)
@example(seed=725286213413, units=3, size=3, rails=6)
@example(seed=45138415149, units=2, size=5, rails=6)
@example(seed=953085916884, units=3, size=5, rails=2)
@example(seed=253, units=3, size=5, rails=4)
@given(seed=SEED, units=st.integers(2, 3), size=st.integers(2, 5), rails=st.sampled_from((2, 4, 6)))
def test_a_hall_with_shared_storage_grows_into_its_units(
    seed: int, units: int, size: int, rails: int
) -> None:
    """With few cables in place, a storage switch may count as a leaf switch of one unit. In the end none does."""
    chance = random.Random(seed)
    hall = draw_hall(chance, units=units, size=size, rails=rails, storage=(1, 2))
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for node in grow(hall, chance):
        cluster.report(hall.report(node))
        cluster.rest(61)
        cluster.rest(61)
    assert {frozenset(nodes) for nodes in cluster.tree.leaves().values()} == hall.units()
    assert cluster.outcome is not None
    assert named(cluster.outcome.anomalies) == hall.anomalies


@settings(max_examples=examples(60))
@given(
    seed=SEED,
    units=st.integers(2, 4),
    size=st.integers(1, 9),
    rails=st.sampled_from((3, 4, 8)),
    storage=st.integers(1, 2),
)
def test_no_node_more_merges_units_beside_a_storage_switch_that_no_setting_names(
    seed: int, units: int, size: int, rails: int, storage: int
) -> None:
    """Nodes come in random order. The first two of two units have the storage switches in common, and no other one."""
    chance = random.Random(seed)
    leaf = [
        [*(f"su{unit}-leaf{rail}" for rail in range(rails)), *(f"storage{i}" for i in range(storage))]
        for unit in range(units)
    ]
    hall = Hall(leaf, size, storage)
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for node in chance.sample([*hall.unit], len(hall.unit)):
        cluster.report(hall.report(node))
        cluster.rest(61)
        for nodes in cluster.tree.leaves().values():
            assert len({hall.unit[member] for member in nodes}) == 1
    assert {frozenset(nodes) for nodes in cluster.tree.leaves().values()} == hall.units()
    assert cluster.outcome is not None
    assert named(cluster.outcome.anomalies) == hall.anomalies


def test_a_unit_with_eight_nodes_on_all_rails_and_24_on_three_is_one_group() -> None:
    hall = Hall([[f"su{unit}-leaf{rail}" for rail in range(8)] for unit in range(2)], 32)
    for node in hall.nodes(0)[8:]:
        for rail in range(3, 8):
            del hall.cables[node, rail]
    outcome = plan(hall)
    assert partition(outcome) == hall.units()
    assert not outcome.anomalies


def ring(switches: int, nodes: int, *, closed: bool = True) -> Hall:
    """Each node has a cable to one switch and one to the next."""
    hall = Hall([["", ""]], 0)
    for i in range(switches if closed else switches - 1):
        for number in range(nodes):
            node = f"r{i:02}-n{number:02}"
            hall.unit[node] = i
            hall.cables[node, 0], hall.cables[node, 1] = f"sw{i:02}", f"sw{(i + 1) % switches:02}"
    return hall


@pytest.mark.parametrize("closed", [True, False], ids=["ring", "chain"])
@pytest.mark.parametrize(("switches", "nodes"), [(4, 1), (4, 4), (6, 2), (24, 2)])
def test_a_ring_of_switches_is_one_anomaly_and_is_one_group(switches: int, nodes: int, closed: bool) -> None:
    hall = ring(switches, nodes, closed=closed)
    outcome = plan(hall)
    assert [(odd.kind, odd.switch) for odd in outcome.anomalies] == [(AnomalyKind.NO_LEAVES, "sw00")]
    assert f"{switches} switches" in outcome.anomalies[0].message
    assert partition(outcome) == {frozenset(hall.unit)}


def test_nodes_cabled_to_each_other_in_a_ring_are_one_anomaly_and_make_no_tree() -> None:
    hall = Hall([["", ""]], 0)
    nodes = [f"r00-n{number:02}" for number in range(48)]
    hall.unit = dict.fromkeys(nodes, 0)
    for i, node in enumerate(nodes):
        hall.cables[node, 0], hall.cables[node, 1] = nodes[i - 1], nodes[(i + 1) % len(nodes)]
    outcome = plan(hall)
    assert [odd.kind for odd in outcome.anomalies] == [AnomalyKind.NO_LEAVES]
    assert outcome.anomalies[0].nodes == tuple(nodes)
    assert not outcome.hypernodes
    assert all("other nodes" in unplaced.reason for unplaced in outcome.unplaced)


def test_a_switch_with_the_name_of_a_node_is_a_switch() -> None:
    hall = Hall([["su0-n00"]], 4)
    assert hall.unit.keys() >= {"su0-n00"}
    hall.cables = dict.fromkeys(hall.cables, "leaf")
    hall.names["leaf"] = "su0-n00"
    outcome = plan(hall)
    assert partition(outcome) == hall.units()
    assert not outcome.anomalies


def per_port(units: int, *, name: str, addressed: bool) -> Hall:
    """Single links to switches with a chassis ID for each port and one name for all."""
    hall = Hall([[f"leaf{unit}"] for unit in range(units)], 6, chassis_per_port=True, addressed=addressed)
    hall.names = {f"leaf{unit}": name for unit in range(units)}
    return hall


@pytest.mark.parametrize("name", ["switch", ""])
def test_a_management_address_identifies_a_switch_with_chassis_ids_per_port(name: str) -> None:
    hall = per_port(3, name=name, addressed=True)
    outcome = plan(hall)
    assert partition(outcome) == hall.units()
    assert not outcome.anomalies
    assert {one.switches for one in outcome.hypernodes} == {(hall.key(f"leaf{unit}"),) for unit in range(3)}


@pytest.mark.parametrize("name", ["switch", "", "leaf-x"])
def test_ambiguous_switches_are_one_anomaly_and_make_no_tree(name: str) -> None:
    outcome = plan(per_port(3, name=name, addressed=False))
    assert [odd.kind for odd in outcome.anomalies] == [AnomalyKind.AMBIGUOUS_SWITCH]
    assert not outcome.hypernodes
    assert len(outcome.unplaced) == 18
    assert all("unknown" in unplaced.reason for unplaced in outcome.unplaced)


def test_ambiguous_switches_move_no_published_node() -> None:
    hall = per_port(3, name="", addressed=False)
    hall.names = {}
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for report in hall.reports():
        cluster.report(report)
    cluster.rest(61)
    published = cluster.tree.leaves()
    hall.names = {f"leaf{unit}": "switch" for unit in range(3)}
    for report in hall.reports():
        cluster.report(report)
    cluster.restart()
    cluster.rest(61)
    cluster.rest(3600)
    assert cluster.tree.leaves() == published


@pytest.mark.parametrize("addressed", [True, False])
def test_a_switch_that_is_known_by_its_address_keeps_its_key_while_links_are_down(addressed: bool) -> None:
    hall = per_port(2, name="switch", addressed=True)
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for report in hall.reports():
        cluster.report(report)
    cluster.rest(61)
    cables = dict(hall.cables)
    hall.cables = {place: switch for place, switch in cables.items() if place[0] in ("su0-n00", "su1-n00")}
    for report in hall.reports():
        cluster.report(report)
    if not addressed:
        cluster.restart()
    assert cluster.rest(61) == cluster.rest(3600) == 0


def test_storage_switches_stay_shared_while_the_leaf_switches_of_a_unit_pause() -> None:
    """Else the storage switches would be leaf switches of the other unit, and the nodes would move there."""
    hall = Hall([[f"su{unit}-leaf0", "storage0", "storage1"] for unit in range(2)], 8, shared=2)
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for report in hall.reports():
        cluster.report(report)
    cluster.rest(61)
    published = cluster.tree.leaves()
    assert {frozenset(nodes) for nodes in published.values()} == hall.units()
    for node in hall.nodes(1):
        cluster.report(expired(hall.report(node), "su1-leaf0"))
    for _ in range(2):
        assert cluster.rest(61) == cluster.rest(3600) == 0
        cluster.restart()


def expired(report: NodeLinks, switch: str) -> NodeLinks:
    """The same report, with expired information about a switch."""
    made = []
    for link in report.links:
        neighbor = link.neighbor
        if neighbor is not None and neighbor.system_name == switch:
            neighbor = structs.replace(neighbor, stale=True)
        made.append(structs.replace(link, neighbor=neighbor))
    return structs.replace(report, links=tuple(made))


def test_the_message_of_a_shared_switch_is_a_rule_that_ends_the_anomaly() -> None:
    hall = Hall([[f"su{unit}-leaf{r}" for r in range(4)] + ["storage0"] for unit in range(3)], 8, shared=1)
    (odd,) = plan(hall).anomalies
    entry = yaml.safe_load(odd.message[odd.message.index("{") :])
    rules = structs.replace(NOW, fabrics=(FabricSelect(**entry),))
    outcome = compute(hall.reports(), rules=rules)
    assert not outcome.anomalies
    assert partition(outcome) == hall.units()


def test_the_message_of_a_tree_of_storage_links_is_a_rule_that_ends_the_anomaly() -> None:
    hall = Hall([[f"su{unit}-leaf{r}" for r in range(4)] + ["storage0"] for unit in range(2)], 8, shared=1)
    hall.outside, hall.speed = range(4), {4: 200_000}
    (odd,) = plan(hall).anomalies
    assert (odd.kind, len(odd.nodes)) == (AnomalyKind.OTHER_FABRIC, 16)
    entries = yaml.safe_load(odd.message[odd.message.index("[{") :])
    rules = structs.replace(NOW, fabrics=tuple(FabricSelect(**entry) for entry in entries))
    outcome = compute(hall.reports(), rules=rules)
    assert not outcome.anomalies
    assert partition(outcome) == hall.units()


def test_a_second_sender_on_a_link_is_an_anomaly_and_changes_nothing_else() -> None:
    hall = Hall([[f"su0-leaf{rail}" for rail in range(4)]], 4)
    reports = hall.reports()
    link = reports[2].links[1]
    assert link.neighbor is not None
    contested = structs.replace(link, neighbor=structs.replace(link.neighbor, contested=True))
    made = (reports[2].links[0], contested, *reports[2].links[2:])
    reports[2] = structs.replace(reports[2], links=made)
    outcome = compute(reports, rules=NOW)
    assert named(outcome.anomalies) == {("contested-link", "su0-n02", "rail1", "su0-leaf1"): 1}
    assert partition(outcome) == hall.units()
