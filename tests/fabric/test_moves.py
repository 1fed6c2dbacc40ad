"""When nodes move and when they stay; stable names; a valid tree after every write."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.fabric import FabricRules, Planner
from nodeagent.fabric.fabric_settings import HysteresisSettings, TierSettings
from nodeagent.fabric.hypernode import HyperNode, convert, labels_of, render
from tests.support.fabrics import SHAPES, Cluster, End, Row, links, partition, rails, single, stale, units
from tests.support.volcano_rules import VolcanoTree

HOUR = 3600


def grown(groups: int = 4, size: int = 8, **rules: object) -> Cluster:
    cluster = Cluster(FabricRules(**{"tiers": TierSettings(assume_full_bisection=True), **rules}))
    cables = rails(groups, size)
    cluster.exist(*cables)
    cluster.hear(cables)
    cluster.rest()
    cluster.written.clear()
    return cluster


def test_nodes_are_placed_at_once_and_nothing_is_written_after_that() -> None:
    cluster = grown()
    assert partition(cluster.outcome) == units(rails(4, 8))
    assert cluster.rest() == cluster.rest(HOUR) == 0


def test_an_hour_without_lldp_writes_nothing() -> None:
    cluster = grown()
    for node, row in rails(4, 8).items():
        cluster.hear({node: stale(row)})
    for _ in range(60):
        assert cluster.step(60) == 0
    cluster.restart()
    assert cluster.rest(60) == 0


def test_reports_without_neighbors_change_nothing() -> None:
    cluster = grown()
    cluster.hear(dict.fromkeys(rails(4, 8), (None,) * 8))
    assert cluster.rest(HOUR) == 0
    cluster.restart()
    assert cluster.rest(HOUR) == 0
    for node in rails(4, 8):
        cluster.planner.report(node, None)
    assert cluster.rest(HOUR) == 0


def test_a_switch_that_reboots_writes_nothing() -> None:
    cluster = grown()
    cables = rails(4, 8)
    down = {node: (stale(row)[0], *row[1:]) for node, row in cables.items() if node.startswith("su001")}
    cluster.hear(down)
    assert cluster.rest(300) == 0
    cluster.hear({node: (None, *row[1:]) for node, row in down.items()})
    assert cluster.rest(300) == 0
    cluster.hear(cables)
    assert cluster.rest(300) == 0


def test_an_empty_input_deletes_nothing() -> None:
    cluster = grown()
    before = dict(cluster.tree.objects)
    cluster.planner = Planner(cluster.rules)
    for one in before.values():
        cluster.planner.hypernode(one["metadata"]["name"], convert(one))
    assert cluster.rest(10 * HOUR) == 0
    assert cluster.tree.objects == before


def test_a_recabled_node_is_two_writes_after_the_move_time() -> None:
    cluster = grown()
    old, new = cluster.home("su000-n003"), cluster.home("su002-n000")
    row = rails(1, 9, first=2)["su002-n008"]
    cluster.hear({"su000-n003": row})
    assert cluster.step() == 0
    assert cluster.outcome.waiting == 1
    assert cluster.outcome.next_at == cluster.now + 60
    assert cluster.step(59) == 0
    assert cluster.step(1) == 2
    assert cluster.written == [("update", old), ("update", new)]
    assert cluster.home("su000-n003") == new
    assert cluster.rest(HOUR) == 0


@given(st.floats(0, 1e6))
def test_what_time_alone_changes_is_done_at_the_moment_that_the_plan_names(began: float) -> None:
    """The next plan is made then, and none after it unless something else changes."""
    cluster = grown(hysteresis=HysteresisSettings(move_seconds=0.3, settle_seconds=0.1, grace_seconds=0.7))
    cluster.now = began
    new = links("su000-n008", rails(1, 9)["su000-n008"])
    cluster.exist(new.node_name)
    cluster.report(links_of(new, [*new.links[:7], replace_neighbor(new.links[7])]))
    cluster.hear({"su000-n003": rails(1, 9, first=2)["su002-n008"]})
    cluster.planner.node("su003-n000", None)
    steps = cluster.step()
    while (next_at := cluster.outcome.next_at) is not None:
        assert next_at > cluster.now
        cluster.now = next_at
        steps += cluster.step()
    assert steps == 4
    assert cluster.home(new.node_name) == cluster.home("su000-n000")
    assert cluster.home("su000-n003") == cluster.home("su002-n000")
    assert cluster.home("su003-n000") is None


def test_a_node_does_not_move_while_half_of_its_links_have_no_neighbor() -> None:
    cluster = grown()
    old = cluster.home("su000-n003")
    row = rails(1, 9, first=2)["su002-n008"]
    cluster.hear({"su000-n003": (*row[:4], None, None, None, None)})
    assert cluster.rest(HOUR) == 0
    assert cluster.home("su000-n003") == old
    cluster.hear({"su000-n003": (*row[:5], None, None, None)})
    cluster.rest()
    cluster.rest(60)
    assert cluster.home("su000-n003") == cluster.home("su002-n000")


def test_a_report_that_flaps_moves_no_node() -> None:
    cluster = grown()
    home = rails(4, 8)["su000-n003"]
    away = rails(1, 9, first=2)["su002-n008"]
    for row in (away, home) * 20:
        cluster.hear({"su000-n003": row})
        assert cluster.step(40) == 0


def test_the_move_time_starts_again_when_the_target_changes() -> None:
    cluster = grown()
    cluster.hear({"su000-n003": rails(1, 9, first=2)["su002-n008"]})
    assert cluster.step() == cluster.step(50) == 0
    cluster.hear({"su000-n003": rails(1, 9, first=1)["su001-n008"]})
    assert cluster.step() == cluster.step(50) == 0
    assert cluster.step(10) == 2
    assert cluster.home("su000-n003") == cluster.home("su001-n000")


def test_too_many_moves_are_held_and_reported() -> None:
    cluster = grown(4, 16)
    away = rails(1, 32, first=2)
    for i in range(14):
        cluster.hear({f"su000-n{i:03}": away[f"su002-n{16 + i:03}"]})
    assert cluster.step() == 0
    assert cluster.outcome.breaker is not None
    assert (cluster.outcome.breaker.moves, cluster.outcome.breaker.placed) == (14, 64)
    assert cluster.step(60) == 0
    assert cluster.step(239) == 0
    assert cluster.step(1) == 2
    assert cluster.rest() == 0
    assert cluster.outcome.breaker is None


def test_the_hold_ends_when_the_moves_are_no_longer_wanted() -> None:
    cluster = grown(4, 16)
    cluster.hear({f"su000-n{i:03}": rails(1, 32, first=2)[f"su002-n{16 + i:03}"] for i in range(14)})
    cluster.step(61)
    assert cluster.outcome.breaker
    cluster.hear(rails(4, 16))
    assert cluster.step(HOUR) == 0
    assert cluster.outcome.breaker is None
    assert cluster.outcome.waiting == 0


def test_a_replica_that_leads_again_holds_and_waits_for_the_full_time() -> None:
    cluster = grown(4, 16)
    cluster.hear({f"su000-n{i:03}": rails(1, 32, first=2)[f"su002-n{16 + i:03}"] for i in range(14)})
    cluster.step(61)
    assert cluster.outcome.breaker
    cluster.planner.forget_times()
    cluster.step(HOUR)
    assert cluster.outcome.breaker
    assert cluster.outcome.breaker.since == cluster.now
    assert cluster.outcome.next_at == cluster.now + 60
    assert cluster.step(299) == 0
    assert cluster.step(1) == 2


def test_new_nodes_are_placed_while_moves_are_held() -> None:
    cluster = grown(4, 16)
    cluster.hear({f"su000-n{i:03}": rails(1, 32, first=2)[f"su002-n{16 + i:03}"] for i in range(14)})
    cluster.step(61)
    cluster.exist("su001-n016")
    cluster.hear({"su001-n016": rails(1, 17, first=1)["su001-n016"]})
    assert cluster.step(1) == 1
    assert cluster.outcome.breaker


def test_a_deleted_node_leaves_after_a_grace() -> None:
    cluster = grown()
    cluster.planner.node("su000-n003", None)
    cluster.planner.report("su000-n003", None)
    assert cluster.step() == 0
    assert cluster.step(299) == 0
    assert cluster.step(1) == 1
    assert cluster.home("su000-n003") is None
    assert cluster.rest(HOUR) == 0


def test_a_node_that_returns_in_its_grace_time_keeps_its_place() -> None:
    cluster = grown()
    cluster.planner.node("su000-n003", None)
    assert cluster.step() == cluster.step(200) == 0
    cluster.planner.node("su000-n003", {})
    assert cluster.step(HOUR) == 0


def test_the_loss_of_most_nodes_is_held() -> None:
    cluster = grown(4, 16)
    for node in rails(3, 16):
        cluster.planner.node(node, None)
    assert cluster.step() == 0
    assert cluster.step(299) == 0
    assert cluster.outcome.breaker is not None


def test_a_new_node_waits_for_neighbors_on_its_other_links() -> None:
    cluster = grown()
    row = rails(1, 9)["su000-n008"]
    cluster.exist("su000-n008")
    report = links("su000-n008", row)
    half = [one if i < 4 else replace_neighbor(one) for i, one in enumerate(report.links)]
    cluster.report(links_of(report, half))
    assert cluster.step() == 0
    assert [one.node for one in cluster.outcome.unplaced] == ["su000-n008"]
    cluster.report(report)
    assert cluster.step(5) == 1
    assert not cluster.outcome.unplaced


def test_a_new_node_waits_no_longer_than_settle_s() -> None:
    cluster = grown()
    report = links("su000-n008", rails(1, 9)["su000-n008"])
    cluster.exist("su000-n008")
    cluster.report(
        links_of(report, [one if i < 7 else replace_neighbor(one) for i, one in enumerate(report.links)])
    )
    assert cluster.step() == 0
    assert cluster.outcome.next_at == cluster.now + 30
    assert cluster.step(30) == 1


def replace_neighbor(link):
    import msgspec

    return msgspec.structs.replace(link, neighbor=None)


def links_of(report, made):
    import msgspec

    return msgspec.structs.replace(report, links=tuple(made))


def test_a_group_keeps_its_name_when_its_first_switch_is_replaced() -> None:
    cluster = grown()
    names = {node: cluster.home(node) for node in rails(4, 8)}
    cables = {
        node: tuple(
            End("aaa-new" if end.switch.endswith("r0") and node < "su001" else end.switch, end.port)
            for end in row
        )
        for node, row in rails(4, 8).items()
    }
    cluster.hear(cables)
    assert cluster.rest(HOUR) == 1  # the annotation with its switches
    assert {node: cluster.home(node) for node in cables} == names


def test_a_group_keeps_its_name_when_all_nodes_or_all_switches_are_replaced() -> None:
    cluster = grown(2, 4)
    name = cluster.home("su000-n000")
    others = {f"new-{node}": row for node, row in rails(1, 4).items()}
    cluster.exist(*others)
    cluster.hear(others)
    for node in rails(1, 4):
        cluster.planner.node(node, None)
        cluster.planner.report(node, None)
    cluster.rest()
    cluster.rest(HOUR)
    assert cluster.home("new-su000-n000") == name
    cluster.hear(
        {node: tuple(End("x" + end.switch, end.port) for end in row) for node, row in others.items()}
    )
    cluster.rest(HOUR)
    assert cluster.home("new-su000-n000") == name


def test_the_smaller_part_of_a_split_group_gets_a_new_name() -> None:
    """The object is named after a switch of the smaller part."""
    cluster = Cluster(FabricRules(hysteresis=HysteresisSettings(hold_percent=100)))
    cables = {f"n{i}": (End("a", f"1/{i}"), End("b", f"1/{i}"), End("c", f"1/{i}")) for i in range(9)}
    cluster.hear(cables)
    cluster.rest()
    (name,) = cluster.tree.objects
    cluster.hear({f"n{i}": (End("a", f"2/{i}"),) * 1 for i in range(3)})
    cluster.hear({f"n{i}": (End("b", f"1/{i}"), End("c", f"1/{i}")) for i in range(3, 9)})
    cluster.rest()
    cluster.rest(60)
    assert cluster.home("n5") == name
    assert cluster.home("n0") not in (None, name)
    assert cluster.rest(HOUR) == 0


def test_a_restarted_controller_plans_the_same() -> None:
    cluster = grown()
    before = cluster.outcome
    cluster.restart()
    assert cluster.rest(1) == 0
    assert cluster.outcome.hypernodes == before.hypernodes
    assert dict(cluster.outcome.labels) == dict(before.labels)


def test_an_edited_object_is_restored() -> None:
    cluster = grown()
    name = cluster.home("su000-n003")
    edited = convert(cluster.tree.objects[name])
    for change in (
        {"nodes": edited.nodes[:-1]},
        {"tier_name": "rack"},
        {"annotations": ()},
        {"patterns": ("su0.*",)},
        {"selectors": ('{"matchLabels":{"zone":"a"}}',)},
    ):
        wrong = HyperNode(**{**{key: getattr(edited, key) for key in edited.__struct_fields__}, **change})
        cluster.tree.objects[name] = render(wrong)
        cluster.planner.hypernode(name, wrong)
        assert cluster.rest(1) >= 1
        assert convert(cluster.tree.objects[name]).same(edited)


def test_a_deleted_object_is_created_again() -> None:
    cluster = grown()
    name = cluster.home("su000-n003")
    del cluster.tree.objects[name]
    cluster.planner.hypernode(name, None)
    assert cluster.rest(1) == 1
    assert cluster.home("su000-n003") == name


def random_row(chance: random.Random, groups: int, node: str) -> Row:
    unit = chance.randrange(groups)
    row: list[End | None] = [End(f"su{unit:03}-leaf-r{rail}", f"{node}-{rail}") for rail in range(4)]
    for i in range(4):
        match chance.randrange(12):
            case 0:
                row[i] = None
            case 1:
                row[i] = End(f"su{chance.randrange(groups):03}-leaf-r{i}", f"{node}-{i}x")
            case 2:
                row[i] = End(row[i].switch, row[i].port, stale=True)
    return tuple(row)


@example(seed=540482231, groups=5, steps=3)
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 5), steps=st.integers(1, 12))
def test_every_write_leaves_a_valid_tree_whatever_fails(seed: int, groups: int, steps: int) -> None:
    """Random reports, new and deleted nodes, failed writes, restarts of the controller and changed uplinks."""
    chance = random.Random(seed)
    times = HysteresisSettings(
        move_seconds=chance.choice((0, 60)),
        settle_seconds=0,
        grace_seconds=30,
        hold_percent=chance.choice((20, 100)),
    )
    tiers = TierSettings(assume_full_bisection=chance.random() < 0.5)
    cluster = Cluster(FabricRules(tiers=tiers, hysteresis=times))
    nodes = [f"n{i:02}" for i in range(groups * 4)]
    cluster.exist(*nodes)
    for _ in range(steps):
        for node in chance.sample(nodes, chance.randrange(len(nodes) + 1)):
            match chance.randrange(10):
                case 0:
                    cluster.nodes.discard(node)
                    cluster.planner.node(node, None)
                case 1:
                    cluster.reports.pop(node, None)
                    cluster.planner.report(node, None)
                case _:
                    cluster.exist(node)
                    cluster.hear({node: random_row(chance, groups, node)})
        if chance.random() < 0.4:
            leaves = [f"su{unit:03}-leaf-r{rail}" for unit in range(groups) for rail in range(4)]
            cluster.planner.uplinks(
                {leaf: (f"spine{chance.randrange(3)}", "core0") for leaf in leaves if chance.random() < 0.8}
            )
        trouble = chance.choice((0.0, 0.3, 0.9))
        cluster.step(
            chance.choice((0, 10, 61, 400)), lambda place, trouble=trouble: chance.random() < trouble
        )
        if chance.random() < 0.2:
            cluster.restart()
    for _ in range(12):
        cluster.rest(1000)
    assert cluster.rest(1000) == 0, "an applied plan needs no further writes"


@given(shape=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 2**32))
def test_renamed_switches_keep_the_names_of_the_hypernodes(shape: str, seed: int) -> None:
    """Switches get new names one after the other and keep their chassis IDs. No HyperNode is created or deleted."""
    chance = random.Random(seed)
    cables = SHAPES[shape](3, 4)
    cluster = Cluster(FabricRules())
    cluster.hear(cables)
    cluster.rest()
    cluster.written.clear()
    homes = {node: cluster.home(node) for node in cables}
    nodes = sorted(cables)
    chance.shuffle(nodes)
    for node in nodes:
        row = tuple(
            replace(end, switch=f"new-{end.switch}", chassis=f"chassis of {end.switch}")
            for end in cables[node]
        )
        cluster.hear({node: row})
        cluster.rest(61)
    assert {node: cluster.home(node) for node in cables} == homes
    assert not {verb for verb, _ in cluster.written} - {"update"}


def test_writes_are_safe_when_groups_exchange_their_nodes() -> None:
    """Two groups below one parent exchange their nodes, and a third is divided between them."""

    def tree(*groups: tuple[str, ...]) -> dict[str, HyperNode]:
        leaves = {
            f"g{i}": HyperNode(name=f"g{i}", tier=1, tier_name="leaf", nodes=nodes, labels=labels_of("x", 1))
            for i, nodes in enumerate(groups)
            if nodes
        }
        top = HyperNode(
            name="top", tier=2, tier_name="spine", children=tuple(leaves), labels=labels_of("x", 2)
        )
        return {**leaves, "top": top}

    from nodeagent.fabric.writes import order

    old, new = tree(("a", "b"), ("c", "d"), ("e", "f")), tree(("c", "d", "e"), ("a", "b", "f"))
    model = VolcanoTree()
    for one in old.values():
        model.apply("create", render(one))
    for write in order(old, new, old.keys() | new.keys()):
        model.apply(write.verb, render(write.object))
        assert not model.faults()
    assert model.objects == {name: render(one) for name, one in new.items()}


def test_a_node_with_one_link_stays_without_a_neighbor() -> None:
    cluster = Cluster(FabricRules())
    cluster.hear(single(2, 4))
    cluster.rest()
    cluster.hear({"r000-n000": (None,)})
    assert cluster.rest(HOUR) == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_failed_write_is_repeated(count: int) -> None:
    """For every n, the n-th write fails. The tree stays valid, and the next plans complete it."""
    for place in range(6):
        cluster = grown(3, 4)
        for i in range(count):
            cluster.hear({f"su000-n{i:03}": rails(1, 9, first=2)[f"su002-n{4 + i:03}"]})
        cluster.step()
        cluster.step(61, lambda at, place=place: at == place)
        cluster.rest()
        cluster.rest(400)
        assert cluster.home("su000-n000") == cluster.home("su002-n000")
