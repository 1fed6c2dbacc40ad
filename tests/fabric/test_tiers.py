"""The tiers above the leaves: their sources, which tiers are left out, and what stays when a source is missing."""

from __future__ import annotations

import pytest

from nodeagent.fabric import IMMEDIATE, FabricRules, PlanOutcome
from nodeagent.fabric.fabric_settings import HysteresisSettings, TierSettings
from nodeagent.fabric.topology_file import StaticGroup, Topology
from tests.support.fabrics import Cluster, End, links, rails, single

NOW = FabricRules(hysteresis=IMMEDIATE)
ASSUMED = TierSettings(assume_full_bisection=True)


def above(outcome: PlanOutcome, tier: int) -> set[frozenset[str]]:
    """The units below each object of this tier."""
    by = {one.name: one for one in outcome.hypernodes}

    def units(name: str) -> set[str]:
        one = by[name]
        return {node.partition("-")[0] for node in one.nodes} | {
            u for child in one.children for u in units(child)
        }

    return {frozenset(units(one.name)) for one in outcome.hypernodes if one.tier == tier}


def clos(pods: int, per_pod: int, spines: int = 2, cores: int = 2) -> dict[str, tuple[str, ...]]:
    """Neighbors in a Clos fabric: leaves and spines of a pod, spines and cores, and some nodes below the leaves."""
    heard: dict[str, tuple[str, ...]] = {}
    for pod in range(pods):
        of_pod = tuple(f"pod{pod}-spine{i}" for i in range(spines))
        leaves = tuple(f"su{pod * per_pod + i:03}-leaf-r{r}" for i in range(per_pod) for r in range(8))
        heard.update((leaf, (*of_pod, f"{leaf[:5]}-n000", f"{leaf[:5]}-n001.example.com")) for leaf in leaves)
        heard.update(dict.fromkeys(of_pod, (*leaves, *(f"core{i}" for i in range(cores)))))
    return heard


def planned(cluster: Cluster, units: int = 4) -> PlanOutcome:
    cluster.hear(rails(units, 4))
    cluster.rest()
    return cluster.outcome


def test_without_uplinks_there_is_one_tier() -> None:
    assert {one.tier for one in planned(Cluster(NOW)).hypernodes} == {1}


def test_uplinks_from_lldp_make_spine_and_core() -> None:
    cluster = Cluster(NOW)
    cluster.planner.uplinks(clos(2, 2, cores=2))
    outcome = planned(cluster)
    assert above(outcome, 2) == {frozenset({"su000", "su001"}), frozenset({"su002", "su003"})}
    assert above(outcome, 3) == {frozenset({"su000", "su001", "su002", "su003"})}
    assert {one.tier: one.tier_name for one in outcome.hypernodes} == {1: "leaf", 2: "spine", 3: "core"}
    labels = outcome.labels["su000-n000"]
    assert set(labels) == {f"topology.nodeagent.io/tier-{tier}" for tier in (1, 2, 3)}
    assert {one.note("nodeagent.io/derived-from") for one in outcome.hypernodes if one.tier > 1} == {
        "spine-lldp"
    }


def test_a_tier_that_joins_nothing_is_left_out() -> None:
    """With one unit in each pod, the cores make tier 2."""
    cluster = Cluster(NOW)
    cluster.planner.uplinks(clos(4, 1))
    outcome = planned(cluster)
    assert above(outcome, 2) == {frozenset({"su000", "su001", "su002", "su003"})}
    assert not above(outcome, 3)


def test_one_group_needs_no_tier_above() -> None:
    cluster = Cluster(FabricRules(hysteresis=IMMEDIATE, tiers=ASSUMED))
    assert {one.tier for one in planned(cluster, 1).hypernodes} == {1}


def test_a_pattern_on_leaf_names_makes_a_tier() -> None:
    cluster = Cluster(
        FabricRules(hysteresis=IMMEDIATE, tiers=TierSettings(name_patterns=(r"^su0(?P<tier2>\d)\d-leaf",)))
    )
    cluster.hear({**rails(2, 4), **rails(2, 4, first=10)})
    cluster.rest()
    assert above(cluster.outcome, 2) == {frozenset({"su000", "su001"}), frozenset({"su010", "su011"})}


def test_the_topology_file_overrides_lldp() -> None:
    uplinks = {f"su{unit:03}-leaf-r{r}": ("one",) for unit in range(4) for r in range(8)}
    cluster = Cluster(NOW, topology=Topology(uplinks))
    cluster.planner.uplinks(clos(2, 2))
    outcome = planned(cluster)
    assert above(outcome, 2) == {frozenset({"su000", "su001", "su002", "su003"})}
    assert {one.note("nodeagent.io/derived-from") for one in outcome.hypernodes if one.tier == 2} == {
        "topology-file"
    }


def test_missing_uplinks_change_nothing() -> None:
    cluster = Cluster(FabricRules())
    cluster.planner.uplinks(clos(2, 2))
    planned(cluster)
    cluster.planner.uplinks({})
    assert cluster.rest(3600) == 0
    cluster.restart()
    assert cluster.rest(3600) == 0
    cluster.planner.uplinks({name: ups for name, ups in clos(2, 2).items() if name < "pod1"})
    assert cluster.rest(3600) == 0


def test_an_asserted_tier_goes_with_the_assertion() -> None:
    cluster = Cluster(FabricRules(tiers=ASSUMED))
    planned(cluster)
    cluster.rules = FabricRules()
    cluster.restart()
    assert cluster.rest() == 1
    assert cluster.written[-1][0] == "delete"


def test_a_group_recabled_to_other_spines_moves_after_the_move_time() -> None:
    cluster = Cluster(FabricRules())
    heard = clos(2, 2)
    cluster.planner.uplinks(heard)
    planned(cluster)
    heard.update({f"su001-leaf-r{r}": ("pod1-spine0", "pod1-spine1") for r in range(8)})
    cluster.planner.uplinks(heard)
    assert cluster.step() == 0
    assert cluster.step(59) == 0
    assert cluster.rest(1) > 0
    assert above(cluster.outcome, 2) == {frozenset({"su000"}), frozenset({"su001", "su002", "su003"})}


def test_a_tier_that_joins_nothing_after_a_move_is_deleted_though_the_first_write_fails() -> None:
    cluster = Cluster(FabricRules())
    cluster.planner.uplinks({"tor000": ("spine0",), "tor001": ("spine0",), "tor002": ("spine1",)})
    cluster.hear(single(3, 3))
    cluster.rest()
    assert above(cluster.outcome, 2) == {frozenset({"r000", "r001"}), frozenset({"r002"})}
    cluster.planner.uplinks({"tor000": ("spine0",), "tor001": ("spine2",)})
    assert cluster.step() == cluster.step(59) == 0
    assert cluster.outcome.waiting == 1
    assert cluster.step(1, lambda place: True) == 0
    assert {write.verb for write in cluster.outcome.writes} == {"delete"}
    assert cluster.rest() == 2
    assert not above(cluster.outcome, 2)


def test_a_peer_link_is_not_an_uplink() -> None:
    cluster = Cluster(NOW)
    cluster.planner.uplinks({"tor000": ("tor001",), "tor001": ("tor000",)})
    cluster.hear(single(2, 3))
    cluster.rest()
    assert {one.tier for one in cluster.outcome.hypernodes} == {1}


def test_groups_of_the_topology_file_replace_the_join_rule() -> None:
    """Two units of one node with a wrong cable, which only the file can decide."""
    groups = tuple(
        StaticGroup(f"unit-{unit}", tuple(f"su{unit:03}-leaf-r{r}" for r in range(8))) for unit in range(2)
    )
    cluster = Cluster(NOW, topology=Topology({}, groups))
    cables = rails(2, 1)
    cables["su000-n000"] = (End("su001-leaf-r0", "swp9"), *cables["su000-n000"][1:])
    cluster.hear(cables)
    cluster.rest()
    assert above(cluster.outcome, 1) == {frozenset({"su000"}), frozenset({"su001"})}
    assert {one.name.rpartition("-")[0] for one in cluster.outcome.hypernodes} == {
        "nodeagent-t1-unit-0",
        "nodeagent-t1-unit-1",
    }
    assert [str(one.kind) for one in cluster.outcome.anomalies] == ["foreign-leaf"]


def test_nodes_of_the_topology_file_are_placed_without_a_report() -> None:
    groups = (StaticGroup("dark", (), ("n1", "n2")), StaticGroup("lit", ("tor000",), ("n3",)))
    cluster = Cluster(NOW, topology=Topology({}, groups))
    cluster.exist("n1", "n2", "n3", *single(1, 2))
    cluster.hear(single(1, 2))
    cluster.rest()
    assert {one.nodes for one in cluster.outcome.hypernodes} == {
        ("n1", "n2"),
        ("n3", "r000-n000", "r000-n001"),
    }
    cluster.restart()
    assert cluster.rest(10) == 0


def test_a_node_of_the_topology_file_claims_no_name_for_its_switches() -> None:
    """Otherwise its switches would take the name of the file's object, and the node would move again and again."""
    cluster = Cluster(topology=Topology({}, (StaticGroup("unlit", (), ("r000-n000",)),)))
    cluster.exist("r000-n000")
    cluster.hear(single(1, 1))
    cluster.rest()
    name = cluster.home("r000-n000")
    for _ in range(5):
        assert cluster.rest(61) == 0
    cluster.restart()
    assert cluster.rest(61) == 0
    assert cluster.home("r000-n000") == name


def test_an_asserted_root_gains_new_groups_at_once() -> None:
    cluster = Cluster(FabricRules(tiers=ASSUMED, hysteresis=HysteresisSettings(hold_percent=100)))
    planned(cluster, 2)
    cluster.hear(rails(1, 4, first=2))
    assert cluster.rest() == 2
    assert above(cluster.outcome, 2) == {frozenset({"su000", "su001", "su002"})}


def pods(*names: str) -> dict[str, tuple[End, ...]]:
    """Two nodes with one link to each switch of these names."""
    return {
        f"{name.replace('.', '-').lower()}-n{number}": (End(name, f"Eth1/{number}"),)
        for name in names
        for number in range(2)
    }


@pytest.mark.parametrize("fabric", ["f01", "F01"])
def test_a_pattern_matches_the_name_with_its_domain(fabric: str) -> None:
    """Meta's scheme: the pod is a part of the domain."""
    pattern = rf"^rtsw\d+\.(?P<tier2>p\d+)\.{fabric}$"
    cluster = Cluster(FabricRules(hysteresis=IMMEDIATE, tiers=TierSettings(name_patterns=(pattern,))))
    cluster.hear(pods(*(f"rtsw{number:03}.p{1 + number // 2:03}.{fabric}" for number in range(4))))
    cluster.rest()
    outcome = cluster.outcome
    assert above(outcome, 2) == {frozenset({"rtsw000", "rtsw001"}), frozenset({"rtsw002", "rtsw003"})}
    assert {one.switches for one in outcome.hypernodes if one.tier == 1} == {
        (f"rtsw{number:03}",) for number in range(4)
    }


def test_a_tier_from_names_with_their_domain_stays_while_no_report_has_them() -> None:
    rules = FabricRules(tiers=TierSettings(name_patterns=(r"\.(?P<tier2>p\d+)\.",)))
    cluster = Cluster(rules)
    cables = pods(*(f"rtsw{number:03}.p001.f01" for number in range(3)))
    cluster.hear(cables)
    cluster.rest(61)

    for node in cables:
        if node.startswith("rtsw002"):
            cluster.report(links(node, (None,)))
    for _ in range(2):
        assert cluster.rest(61) == cluster.rest(3600) == 0
        cluster.restart()
