"""The list of troubles of a plan: its bound, the begin of anomalies, and its part of the map's document."""

from __future__ import annotations

import pytest
from msgspec import structs

from nodeagent.fabric import NodeLinks, Planner, fabric_view, link_faults
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.link_faults import NodeFaults
from nodeagent.fabric.nodelinks import HeldVf, VfHolder
from nodeagent.fabric.troubles import troubles
from tests.fabric.test_fabric_view import UNIX, published, view_of
from tests.support import fabrics
from tests.support.fabrics import End

AT = "2026-01-01T00:00:00Z"


def down(node: str, row: fabrics.Row, *, pods: int = 0, links: int = 2) -> NodeLinks:
    report = fabrics.links(node, row)
    held = tuple(
        VfHolder(
            namespace="team",
            pod=f"{node}-{n}",
            vfs=(HeldVf(link="rail0", pci_address="0000:18:00.1"),),
            since=AT,
        )
        for n in range(pods)
    )
    broken = tuple(
        structs.replace(link, state="down", reasons=("carrier_down",), last_transition_time=AT)
        for link in report.links[:links]
    )
    return structs.replace(report, links=(*broken, *report.links[links:]), holders=held)


def test_the_document_has_the_list_of_the_verb_and_the_pods_in_trouble():
    planner, cables = published()
    for node in list(cables)[:4]:
        planner.report(node, down(node, cables[node], pods=1, links=1))
    planner.report("su001-n002", down("su001-n002", cables["su001-n002"], pods=2, links=1))
    view = view_of(planner, 1.0)
    first, second = view.troubles
    assert (first.where, first.what, first.link_count, first.pods) == (
        "su000-leaf-r0",
        "4 links of 4 nodes went down at once",
        4,
        4,
    )
    assert first.since == 1_767_225_600.0
    assert "su000-leaf-r0" in first.remedy
    assert (second.links, second.remedy) == (
        (("su001-n002", "rail0"),),
        "check cable, optics and the switch port",
    )
    assert view.pods == {
        **{f"team/{node}-0": (0,) for node in list(cables)[:4]},
        "team/su001-n002-0": (1,),
        "team/su001-n002-1": (1,),
    }


def test_a_switch_outside_the_tree_is_alive_while_a_link_to_it_is_up():
    """So links to it that went down within minutes, as clocks of nodes differ, have a cause each."""
    planner, cables = published()
    for minute, node in enumerate(list(cables)[:4]):
        report = fabrics.links(node, (*cables[node], End("storage", f"swp{minute}")))
        *links, storage = report.links
        storage = structs.replace(storage, fabric=None, rail=None)
        if minute:
            at = f"2026-01-01T00:0{minute}:00Z"
            storage = structs.replace(
                storage, state="down", reasons=("carrier_down",), last_transition_time=at
            )
        planner.report(node, structs.replace(report, links=(*links, storage)))
    assert [one.link_count for one in view_of(planner, 1.0).troubles] == [1, 1, 1]


def test_a_link_that_is_mended_a_refused_report_and_a_deleted_one_leave_the_list():
    planner, cables = published()
    nodes = list(cables)[:3]
    for node in nodes:
        planner.report(node, down(node, cables[node], links=1))
    planner.report(nodes[0], fabrics.links(nodes[0], cables[nodes[0]]))
    planner.report(nodes[1], structs.replace(down(nodes[1], cables[nodes[1]]), node_name="another"))
    planner.report(nodes[2], None)
    assert [one.what for one in troubles(planner.prepare(1.0)())] == ["not placed"]


def test_an_anomaly_has_the_time_of_its_first_plan_unless_it_was_there_before():
    cables = fabrics.rails(2, 4, 4)
    good = dict(cables)
    cables["su000-n000"] = (*good["su000-n000"][:3], End("su001-leaf-r3", "swp9"))
    planner = Planner(FabricRules())
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))

    def since() -> dict[str, float | None]:
        return {one.where: one.since for one in troubles(planner.prepare(50.0)(), UNIX)}

    assert since() == {"su000-n000 rail3": None}, "a plan that is not accepted knows no time"
    planner.plan(10.0)
    planner.report(
        "su001-n001", fabrics.links("su001-n001", (*good["su001-n001"][:3], End("su000-leaf-r3", "swp9")))
    )
    planner.plan(20.0)
    planner.plan(30.0)
    assert since() == {"su000-n000 rail3": None, "su001-n001 rail3": UNIX + 20.0}
    planner.report("su001-n001", fabrics.links("su001-n001", cables["su001-n001"]))
    planner.plan(40.0)
    assert list(since()) == ["su000-n000 rail3"]


def test_the_faults_of_a_hall_without_power_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_faults, "FAULTS_MAX", 5)
    planner, cables = published()
    for node, row in cables.items():
        planner.report(node, down(node, row))
    found = troubles(planner.prepare(1.0)())
    assert sum(len(one.links) for one in found) == 4
    (more,) = [one for one in found if one.where == "the fabric"]
    assert more.what.startswith("links or GPUs of 6 more nodes have a fault")
    for node, row in list(cables.items())[:2]:
        planner.report(node, fabrics.links(node, row))
    late = list(cables)[-1]
    planner.report(late, down(late, cables[late]))
    assert [link for one in troubles(planner.prepare(1.0)()) for link in one.links] == [
        (late, "rail0"),
        (late, "rail1"),
    ], "it has room again"


def test_the_count_of_faults_follows_every_change():
    _, cables = published()
    faults = NodeFaults(link_faults.link_faults)
    for node, row in cables.items():
        for report in (down(node, row), down(node, row, links=1), fabrics.links(node, row), None):
            faults.take(node, report)
            assert faults._count == sum(map(len, faults.of_node.values()))
    assert faults.of_node == {}
    assert not faults.beyond


def test_the_document_has_the_first_troubles_and_the_number_of_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fabric_view, "TROUBLES_SHOWN", 3)
    monkeypatch.setattr(fabric_view, "PODS_SHOWN", 2)
    planner, cables = published()
    for node, row in list(cables.items())[:5]:
        report = down(node, row, pods=3, links=1)
        late = structs.replace(report.links[0], last_transition_time=f"2026-01-01T0{node[-1]}:00:00Z")
        planner.report(node, structs.replace(report, links=(late, *report.links[1:])))
    view = view_of(planner, 1.0)
    assert (len(view.troubles), view.more_troubles, len(view.pods)) == (3, 2, 2)
