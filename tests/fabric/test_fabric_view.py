"""The document of the fabric map: what it has of links, moves, foreign objects and obstacles."""

from __future__ import annotations

import msgspec
import pytest

from nodeagent.fabric import FabricRules, HyperNode, Planner
from nodeagent.fabric import fabric_view as fabric_view_module
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.fabric_view import FabricView, fabric_view
from nodeagent.fabric.nodelinks import LinkNeighbor, NodeLink, RailLeg, ReportedId
from nodeagent.fabric.outcome import WriteRecord
from tests.support import fabrics
from tests.support.fabrics import End

TIMES = HysteresisSettings(
    move_seconds=60, settle_seconds=20, grace_seconds=300, hold_nodes=3, hold_percent=50
)
UNIX = 1_767_225_600.0


def published(units: int = 2, size: int = 4) -> tuple[Planner, fabrics.Cables]:
    """A planner whose tree the API server has."""
    planner = Planner(FabricRules(hysteresis=TIMES))
    cables = fabrics.rails(units, size, 2)
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))
        planner.node(node, {})
    for hypernode in planner.plan(0.0).hypernodes:
        planner.hypernode(hypernode.name, hypernode)
    return planner, cables


def view_of(planner: Planner, now: float, **more: object) -> FabricView:
    plan = planner.prepare(now)()
    planner.accept(plan)
    return fabric_view(plan, now, UNIX + now, **more)


def test_each_link_has_its_column_switch_port_state_and_marks():
    planner, cables = published()
    node = "su000-n001"
    row = cables[node]
    planner.report(
        node, fabrics.links(node, (row[0], End(row[1].switch, "swp2", stale=True, contested=True)))
    )
    view = view_of(planner, 1.0)
    i = view.nodes.index(node)
    shape = view.shapes[view.shapes_of[i]]
    assert (shape.own, shape.columns) == (2, ("0", "1"))
    assert [view.switches[place] for place in shape.switches] == ["su000-leaf-r0", "su000-leaf-r1"]
    assert [view.port_names[place] for place in view.ports[i]] == ["swp2", "swp2"]
    assert (view.states[i], view.marks[i]) == ("hx", "03")
    assert view.hypernodes[view.groups[i]].switches == ("su000-leaf-r0", "su000-leaf-r1")
    others = [k for k in range(len(view.nodes)) if k != i]
    assert len({view.shapes_of[k] for k in others}) == 2, "equal nodes share a shape"
    assert msgspec.json.decode(msgspec.json.encode(view), type=FabricView) == view


def test_legs_that_lose_packets_are_listed_with_the_worst_first(monkeypatch: pytest.MonkeyPatch):
    planner, cables = published()
    node, far = "su000-n001", "su000-n002"
    legs = (
        RailLeg(node=far, nic="rail0", level=10),
        RailLeg(node="su000-n003", nic="rail0", level=100),
        RailLeg(node=far, nic="rail0", level=100, large=True),
    )
    planner.report(node, fabrics.with_legs(fabrics.links(node, cables[node]), legs))
    view = view_of(planner, 1.0)
    assert [(leg.node, leg.link, leg.to_node, leg.level, leg.large) for leg in view.legs] == [
        (node, "rail0", "su000-n003", 100, False),
        (node, "rail0", far, 10, False),
        (node, "rail0", far, 100, True),
    ]
    monkeypatch.setattr(fabric_view_module, "LEGS_SHOWN", 1)
    view = view_of(planner, 2.0)
    assert (len(view.legs), view.more_legs) == (1, 2)


def test_links_of_other_fabrics_come_after_those_of_the_tree():
    planner, cables = published()
    node = "su000-n000"
    report = fabrics.links(node, cables[node])
    neighbor = LinkNeighbor(
        chassis_id=ReportedId(subtype="mac", value="02:00"), port_id=ReportedId(subtype="ifname", value="e1"),
        system_name="storage-1",
    )  # fmt: skip
    storage = NodeLink(name="ens9", fabric="storage", state="degraded", neighbor=neighbor)
    planner.report(node, msgspec.structs.replace(report, links=(storage, *report.links)))
    view = view_of(planner, 1.0)
    i = view.nodes.index(node)
    shape = view.shapes[view.shapes_of[i]]
    assert (shape.links, shape.columns) == (("rail0", "rail1", "ens9"), ("0", "1", "storage"))
    assert view.switches[shape.switches[2]] == "storage-1"
    assert (view.states[i], len(view.ports[i])) == ("hhd", 2)


def test_a_move_has_its_places_its_times_and_its_reason():
    planner, cables = published()
    planner.report("su000-n000", fabrics.links("su000-n000", cables["su001-n000"]))
    view_of(planner, 10.0)
    view = view_of(planner, 25.0)
    (move,) = view.moves
    first, second = (hypernode.name for hypernode in view.hypernodes)
    assert (move.name, move.here, move.to) == ("su000-n000", first, second)
    assert (move.since, move.due) == (UNIX + 10, UNIX + 70)
    assert "60 s" in move.why
    done = view_of(planner, 71.0)
    assert done.moves == ()
    assert any("su000-n000" in text for text in done.waiting_writes)


def test_a_new_node_that_waits_and_one_that_leaves_are_listed():
    planner, cables = published()
    row = cables["su000-n000"]
    report = fabrics.links("new", (row[0], row[1]))
    half = msgspec.structs.replace(report.links[1], neighbor=None)
    planner.report("new", msgspec.structs.replace(report, links=(report.links[0], half)))
    planner.node("new", {})
    planner.node("su001-n003", None)
    moves = {move.name: move for move in view_of(planner, 5.0).moves}
    assert moves["new"].due == UNIX + 5 + TIMES.settle_seconds
    assert (moves["su001-n003"].to, moves["su001-n003"].due) == ("", UNIX + 5 + TIMES.grace_seconds)


def test_moves_that_are_held_are_listed_and_an_obstacle():
    planner, cables = published(units=4)
    for unit in range(3):
        for n in range(4):
            row = cables[f"su003-n00{n}"]
            planner.report(f"su00{unit}-n00{n}", fabrics.links(f"su00{unit}-n00{n}", row))
    view_of(planner, 6.0)
    view = view_of(planner, 80.0)
    held = next(move for move in view.moves if move.name == "all moves")
    assert (held.since, held.due) == (UNIX + 6, UNIX + 6 + TIMES.hold_seconds)
    assert "12 of 16 members would move at once" in held.why
    assert len(view.moves) == 13
    assert any("moves are held" in text for text in view.obstacles)


def test_foreign_hypernodes_and_writes_are_shown_and_their_text_is_escaped():
    planner, cables = published()
    node = next(iter(cables))
    planner.hypernode("theirs", HyperNode(name="theirs", tier=1, nodes=(node,), source="o\x1b[2Jther"))
    record = WriteRecord(UNIX, "create", "HyperNode a", "is new", "ok")
    view = view_of(planner, 1.0, writes=[record])
    (foreign,) = view.foreign
    assert (foreign.name, foreign.members, foreign.source) == ("theirs", 1, "o\\x1b[2Jther")
    assert view.overlaps[0].members == (node,)
    assert any("theirs" in text for text in view.obstacles)
    assert view.writes == (record,)


@pytest.mark.parametrize("units", [0, 1])
def test_an_empty_cluster_and_one_unit_have_a_document(units: int):
    planner = Planner(FabricRules())
    for node, row in fabrics.rails(units, 2, 2).items():
        planner.report(node, fabrics.links(node, row))
    assert len(view_of(planner, 0.0).nodes) == 2 * units
