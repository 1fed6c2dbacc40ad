"""Expired LLDP information at first sight, after a restart, and mixed with current information.

Conditions: a controller sees reports whose neighbors have expired, and two switches share a name. What must hold:
expired information keeps a node where the published tree confirms it. It creates no tree, joins no switches, moves no
node and names no cable to move.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, AnomalyKind, FabricRules, PlanOutcome, compute
from nodeagent.fabric.fabric_settings import HysteresisSettings
from tests.fabric.test_plan_properties import rename
from tests.support.examples import examples
from tests.support.fabrics import SHAPES, Cables, Cluster, Row, links, partition, rails, stale, units

NOW = FabricRules(hysteresis=IMMEDIATE)
CABLES = {AnomalyKind.FOREIGN_LEAF, AnomalyKind.RAIL_SWAP, AnomalyKind.MISCABLED}
"""The anomalies whose remedy is to move a cable."""


def plan(cables: Cables) -> PlanOutcome:
    return compute([links(node, row) for node, row in cables.items()], rules=NOW)


def with_shared_name(cables: Cables, *switches: str) -> Cables:
    """The same fabric, in which these switches have one name. Each keeps its own chassis ID."""
    return {
        node: tuple(
            replace(end, switch="leaf-x", chassis=f"chassis of {end.switch}")
            if end is not None and end.switch in switches
            else end
            for end in row
        )
        for node, row in cables.items()
    }


def all_stale(cables: Cables) -> Cables:
    return {node: stale(row) for node, row in cables.items()}


def test_stale_reports_at_first_sight_make_no_tree_although_two_switches_share_a_name() -> None:
    cables = with_shared_name(rails(2, 8), "su000-leaf-r0", "su001-leaf-r0")
    outcome = plan(all_stale(cables))
    assert not outcome.hypernodes
    assert not outcome.writes
    assert not outcome.anomalies
    assert {node.node for node in outcome.unplaced} == cables.keys()
    assert all("expired" in node.reason for node in outcome.unplaced)


def test_single_links_with_one_switch_name_are_no_tree_while_they_are_stale() -> None:
    cables = with_shared_name(SHAPES["single-homed"](2, 4), "tor000", "tor001")
    assert not plan(all_stale(cables)).hypernodes
    assert partition(plan(cables)) == units(cables)


def test_the_tree_is_right_as_soon_as_frames_arrive() -> None:
    cables = with_shared_name(rails(2, 8), "su000-leaf-r0", "su001-leaf-r0")
    cluster = Cluster(FabricRules())
    cluster.exist(*cables)
    cluster.hear(all_stale(cables))
    assert cluster.rest(3600) == 0
    for node, row in cables.items():
        cluster.hear({node: row})
        cluster.rest(1)
    cluster.rest(3600)
    assert partition(cluster.outcome) == units(cables)
    assert {odd.kind for odd in cluster.outcome.anomalies} == {AnomalyKind.DUPLICATE_SYSTEM_NAME}


def test_a_stale_rail_with_a_shared_name_joins_no_groups() -> None:
    cables = with_shared_name(rails(2, 8), "su000-leaf-r0", "su001-leaf-r0")
    outcome = plan({node: (stale(row)[0], *row[1:]) for node, row in cables.items()})
    assert partition(outcome) == units(cables)
    assert not CABLES & {odd.kind for odd in outcome.anomalies}


def test_a_published_node_stays_whatever_its_stale_links_report() -> None:
    cables = rails(3, 8)
    cluster = Cluster(FabricRules())
    cluster.exist(*cables)
    cluster.hear(cables)
    cluster.rest()
    cluster.hear({"su000-n003": stale(rails(1, 9, first=2)["su002-n008"])})
    assert [cluster.step(61) for _ in range(3)] == [0, 0, 0]
    cluster.restart()
    assert [cluster.step(61) for _ in range(3)] == [0, 0, 0]
    assert not CABLES & {odd.kind for odd in cluster.outcome.anomalies}
    cluster.hear({"su000-n003": rails(1, 9, first=2)["su002-n008"]})
    cluster.step()
    assert cluster.step(60) == 2


def expire(chance: random.Random, row: Row, share: float) -> Row:
    return tuple(
        replace(end, stale=True) if end is not None and chance.random() < share else end for end in row
    )


SHAPE, SEED = st.sampled_from(sorted(SHAPES)), st.integers(0, 2**64)


@given(shape=SHAPE, seed=SEED, share=st.sampled_from((0.1, 0.5, 0.9, 1.0)))
def test_at_first_sight_a_stale_link_is_a_link_without_a_neighbor(
    shape: str, seed: int, share: float
) -> None:
    """Names and chassis IDs collide at random."""
    chance = random.Random(seed)
    cables = SHAPES[shape](3, 4)
    for _ in range(chance.randrange(4)):
        cables = rename(chance, cables)
    cables = {node: expire(chance, row, share) for node, row in cables.items()}
    current = {
        node: tuple(None if end is None or end.stale else end for end in row) for node, row in cables.items()
    }
    seen, expected = plan(cables), plan(current)
    assert seen.hypernodes == expected.hypernodes
    missing = AnomalyKind.MISSING_RAIL  # a pause of LLDP is no reason to check every cable
    assert seen.anomalies == tuple(
        odd for odd in expected.anomalies if odd.kind != missing or odd in seen.anomalies
    )
    assert seen.labels == expected.labels


@settings(max_examples=examples(60))
@given(shape=SHAPE, seed=SEED)
def test_reports_that_expire_write_nothing(shape: str, seed: int) -> None:
    """After the tree is published, names collide, cables are swapped, the controller restarts, and all of it is
    reported by expired links alone: no node moves, no group merges, and no cable is named."""
    chance = random.Random(seed)
    cables = SHAPES[shape](3, 4)
    times = HysteresisSettings(hold_seconds=0, hold_percent=100, hold_nodes=100)
    cluster = Cluster(FabricRules(hysteresis=times))
    cluster.exist(*cables)
    cluster.hear(cables)
    cluster.rest(60)
    before = cluster.tree.leaves()
    for _ in range(chance.randrange(4)):
        cables = rename(chance, cables)
    nodes = sorted(cables)
    for node in chance.sample(nodes, 3):
        cables[node] = cables[chance.choice(nodes)]
    cluster.hear(all_stale(cables))
    if chance.random() < 0.5:
        cluster.restart()
    for _ in range(3):
        cluster.rest(600)
        assert cluster.tree.leaves() == before
        assert not CABLES & {odd.kind for odd in cluster.outcome.anomalies}
