"""Announcements that contradict those of other nodes: forgers on the links of one node move no node, and say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric import FabricRules, Planner, compute
from nodeagent.fabric.contested import settle
from nodeagent.fabric.published import PublishedTree
from tests.support.fabrics import Cables, Cluster, End, Row, links, partition, rails, units

NODE, OTHER = "su000-n003", "su000-n007"
NODES, RAILS = 16, 8


def hall() -> Cables:
    return rails(2, NODES, RAILS)


def forged(row: Row, change: Callable[[int, End], End]) -> Row:
    return tuple(change(rail, end) for rail, end in enumerate(row) if end is not None)


def chassis(end: End) -> str:
    return f"chassis of {end.switch}"


def other_name(name: str, **more: object) -> Callable[[int, End], End]:
    return lambda rail, end: End(name.format(rail), end.port, chassis=chassis(end), **more)


NAMES_OF_ANOTHER_UNIT = "su001-leaf-r{}"
CLAIMS: dict[str, tuple[Callable[[int, End], End], bool]] = {
    "names of another unit": (other_name(NAMES_OF_ANOTHER_UNIT), True),
    "names of another unit, expired": (other_name(NAMES_OF_ANOTHER_UNIT, stale=True), False),
    "names that no other node reports": (other_name("ghost{}"), False),
    "such names at the port of another node": (
        lambda rail, end: End(f"ghost{rail}", "swp1", chassis=chassis(end)),
        True,
    ),
    "three names of one chassis": (
        lambda rail, end: End(f"ghost{rail}", end.port, chassis=f"chassis of su000-leaf-r{rail // 2}"),
        True,
    ),
}
"""Announcements of a node with the real chassis IDs of its unit, and whether they are an anomaly. An expired name may
be the former one of a switch."""


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("published", [False, True])
def test_a_chassis_id_keeps_the_name_that_other_nodes_report(claim: str, published: bool) -> None:
    change, is_told = CLAIMS[claim]
    cables, cluster = hall(), Cluster()
    cluster.exist(*cables)
    if published:
        cluster.hear(cables)
        cluster.rest(61)
        before = cluster.tree.leaves()
    cluster.hear(cables | {NODE: forged(cables[NODE], change)})
    cluster.rest(61)
    cluster.rest(3600)
    leaves = {frozenset(nodes) for nodes in cluster.tree.leaves().values()}
    assert not published or cluster.tree.leaves() == before
    assert {nodes - {NODE} for nodes in leaves} == {nodes - {NODE} for nodes in units(cables)}
    assert not any("ghost" in name for name in cluster.tree.leaves())
    told = {(one.node, one.link) for one in cluster.outcome.anomalies if one.kind == "contested-link"}
    texts = [one.message for one in cluster.outcome.anomalies if one.kind == "contested-link"]
    assert all("switches were renamed, which ends" in text for text in texts), "not only of forged frames"
    assert told == ({(NODE, f"rail{rail}") for rail in range(RAILS)} if is_told else set())
    assert not any(
        one.kind in ("shared-chassis-id", "duplicate-system-name") for one in cluster.outcome.anomalies
    )


def test_two_nodes_that_agree_give_no_switch_the_name_of_another_one() -> None:
    cables = hall()
    claims = {node: forged(cables[node], other_name(NAMES_OF_ANOTHER_UNIT)) for node in (NODE, OTHER)}
    assert partition(compute([links(node, row) for node, row in (cables | claims).items()])) == units(cables)


@pytest.mark.parametrize("renamed", [1, 2, 8, 15, 16])
def test_a_switch_that_is_renamed_while_some_reports_have_the_old_name_is_one(renamed: int) -> None:
    cables = hall()
    cluster = Cluster()
    cluster.hear(cables)
    cluster.rest(61)
    for node in sorted(cables)[:renamed]:
        cables[node] = forged(cables[node], other_name("new-leaf{}"))
    cluster.hear(cables)
    cluster.rest(61)
    assert {frozenset(nodes) for nodes in cluster.tree.leaves().values()} == units(cables)
    assert not cluster.outcome.anomalies
    aliases = [one["metadata"].get("annotations", {}) for one in cluster.tree.objects.values()]
    assert any("new-leaf" in str(notes) for notes in aliases) == (renamed > 1)


def test_two_switches_that_exchange_their_names_are_two() -> None:
    cables = hall()
    for moment in (3, 13, 16):
        for unit, other in ((0, 1), (1, 0)):
            for number in range(moment):
                row = hall()[f"su{unit:03}-n{number:03}"]
                name = f"su{other:03}-leaf-r0"
                cables[f"su{unit:03}-n{number:03}"] = (
                    End(name, row[0].port, chassis=chassis(row[0])),
                    *row[1:],
                )
        outcome = compute([links(node, row) for node, row in cables.items()])
        assert partition(outcome) == units(cables)
    assert not outcome.anomalies


def forger_first(end: End, first: End) -> End:
    return replace(first, contenders=(replace(end, contenders=()),))


GHOST = End("ghost", "p0")
FORGED_FIRST: dict[str, Callable[[int, End], End]] = {
    "a switch that no other node reports": lambda _, end: forger_first(end, GHOST),
    "a free port of a switch of another unit": lambda rail, end: forger_first(
        end, End(f"su001-leaf-r{rail}", "swp60")
    ),
    "the port of another node": lambda _, end: forger_first(end, replace(end, port="swp9")),
    "another name with the real chassis ID": lambda rail, end: forger_first(
        end, End(f"su001-leaf-r{rail}", end.port, chassis=chassis(end))
    ),
    "three others": lambda _, end: replace(
        GHOST, contenders=(End("ghost2", "p0"), End("su001-leaf-r1", "swp9"), replace(end))
    ),
}


@pytest.mark.parametrize("what", FORGED_FIRST)
@pytest.mark.parametrize("links_", [1, 7, 8], ids=lambda count: f"{count} links")
def test_the_contender_that_fits_the_fabric_is_the_neighbor(what: str, links_: int) -> None:
    """The forger has sent for longer than the switch on so many links of a published node."""
    cables, cluster = hall(), Cluster()
    cluster.exist(*cables)
    cluster.hear(cables)
    cluster.rest(61)
    before = cluster.tree.leaves()
    row = cables[NODE]
    cluster.hear({NODE: (*forged(row[:links_], FORGED_FIRST[what]), *row[links_:])})
    assert cluster.rest(61) == cluster.rest(3600) == 0
    assert cluster.tree.leaves() == before
    told = {(one.kind, one.node, one.link, one.switch) for one in cluster.outcome.anomalies}
    assert told == {("contested-link", NODE, f"rail{rail}", row[rail].switch) for rail in range(links_)}


def test_a_new_node_is_placed_by_the_contenders_that_fit() -> None:
    cables = hall()
    row = cables[NODE]
    cables[NODE] = (*forged(row[:7], FORGED_FIRST["a free port of a switch of another unit"]), *row[7:])
    assert partition(compute([links(node, row) for node, row in cables.items()])) == units(cables)


def test_a_switch_of_which_no_other_node_reports_stays_the_neighbor() -> None:
    """The first node of a new unit, and a forger that began after its switches."""
    cables = hall()
    new = rails(1, 1, RAILS, first=5)
    ((node, row),) = new.items()
    cables[node] = forged(
        row, lambda rail, end: replace(end, contenders=(End(f"su001-leaf-r{rail}", "swp60"),))
    )
    outcome = compute([links(node, row) for node, row in cables.items()])
    assert partition(outcome) == units(cables)


def test_the_first_node_that_hears_a_switch_again_keeps_it_as_neighbor() -> None:
    """The other nodes hear it seconds later, and a forger names a free port of another switch of the unit."""
    cables, cluster = hall(), Cluster()
    cluster.exist(*cables)
    cluster.hear(cables)
    cluster.rest(61)
    restarted = {node: (replace(row[0], stale=True), *row[1:]) for node, row in cables.items()}
    row = cables[NODE]
    restarted[NODE] = (replace(row[0], contenders=(End("su000-leaf-r1", "swp60"),)), *row[1:])
    cluster.hear(restarted)
    cluster.rest(61)
    (told,) = cluster.outcome.anomalies
    assert (told.kind, told.switch) == ("contested-link", "su000-leaf-r0")


SMALL = rails(2, 5, 4)
SWITCHES = sorted({end.switch for row in SMALL.values() for end in row})
ANY_END = st.none() | st.builds(
    lambda end, name, ids, port, stale: End(
        end.switch if name is None else name, port or end.port, stale, ids or chassis(end)
    ),
    st.sampled_from([end for row in SMALL.values() for end in row]),
    st.none() | st.sampled_from([*SWITCHES, "ghost", ""]),
    st.none() | st.sampled_from([*(f"chassis of {switch}" for switch in SWITCHES), "E"]),
    st.none() | st.sampled_from(["swp60", "swp2"]),
    st.booleans(),
)


@given(st.lists(st.tuples(ANY_END, st.lists(ANY_END, max_size=4)), min_size=4, max_size=4))
def test_whatever_a_node_reports_it_moves_no_other_node(
    ends: list[tuple[End | None, list[End | None]]],
) -> None:
    cluster = Cluster()
    cluster.exist(*SMALL)
    cluster.hear(SMALL)
    cluster.rest(61)
    before = {node: cluster.home(node) for node in SMALL}
    row = [
        None if end is None else replace(end, contenders=tuple(one for one in others if one is not None))
        for end, others in ends
    ]
    cluster.hear({"su000-n001": tuple(row)})
    cluster.rest(61)
    cluster.rest(3600)
    after = {node: cluster.home(node) for node in SMALL}
    del before["su000-n001"], after["su000-n001"]
    assert after == before


def test_reports_without_contradiction_stay_the_same() -> None:
    planner = Planner()
    for node, row in SMALL.items():
        planner.report(node, links(node, row))
    levels = planner.inputs.levels()
    assert settle(FabricRules(), levels, PublishedTree({})) is levels.reports
