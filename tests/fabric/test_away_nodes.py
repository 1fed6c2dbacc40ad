"""Nodes that are away: what of a Node says so, and what the list of troubles and the map make of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.fabric import Planner
from nodeagent.fabric.away_nodes import AwayNode, WatchedNode, away_node, away_of_document, away_series
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.troubles import AWAY_TOGETHER_S, FabricTrouble, troubles
from tests.fabric.test_fabric_view import UNIX, published, view_of
from tests.fabric.test_troubles import down
from tests.support import fabrics

SINCE = 1_767_225_600.0
UNREACHABLE = "node.kubernetes.io/unreachable"
SILENT = "its kubelet does not answer"


def node(status: str, *taints: str, message: str = "", since: str | None = "2026-01-01T00:00:00Z") -> Any:
    ready = {"type": "Ready", "status": status, "message": message, "lastTransitionTime": since}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu-040"},
        "spec": {"taints": [{"key": key, "effect": "NoExecute", "timeAdded": None} for key in taints]},
        "status": {"conditions": [{"type": "DiskPressure", "status": "Unknown"}, ready], "images": [{}]},
    }


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (node("True"), None),
        (node("True", UNREACHABLE), None),
        (node("Unknown", UNREACHABLE), AwayNode("unreachable", SINCE, SILENT)),
        (node("Unknown", since=None), AwayNode("unreachable", None, SILENT)),
        (node("Unknown", since="soon"), AwayNode("unreachable", None, SILENT)),
        (node("False", message="PLEG is\nnot healthy"),
         AwayNode("not_ready", SINCE, "its kubelet says: PLEG is\\nnot healthy")),
        (node("False", UNREACHABLE), AwayNode("unreachable", SINCE, SILENT)),
        (node("Unknown", "node.kubernetes.io/out-of-service"),
         AwayNode("unreachable", SINCE, f"{SILENT}; it is marked out of service")),
        ({"metadata": {"name": "new"}}, None),
        ({"metadata": {"name": "new"}, "spec": {}, "status": {}}, None),
        ({"metadata": {"name": "new"}, "spec": {"taints": None}, "status": {"conditions": None}}, None),
    ],
)  # fmt: skip
def test_only_a_condition_ready_that_is_not_true_says_that_a_node_is_away(
    document: dict[str, Any], expected: AwayNode | None
) -> None:
    assert away_of_document(document) == expected
    watched = msgspec.json.decode(msgspec.json.encode(document), type=WatchedNode)
    assert away_node(watched.spec, watched.status) == expected


@pytest.mark.parametrize("part", [{"status": {"conditions": 5}}, {"spec": {"taints": {}}}, {"status": [1]}])
def test_a_part_of_a_file_that_cannot_be_read_says_nothing(part: dict[str, Any]) -> None:
    assert away_of_document({**node("Unknown"), **part}) is None


def without_power(planner: Planner, *names: str, at: float = SINCE, apart_s: float = 0.0) -> None:
    for i, name in enumerate(names):
        since = rfc3339(at + i * apart_s)
        assert planner.inputs.take_away(name, away_of_document(node("Unknown", UNREACHABLE, since=since)))


def listed(planner: Planner, **more: Any) -> list[FabricTrouble]:
    return troubles(planner.prepare(1.0)(), **more)


def test_a_dead_node_is_a_trouble_that_takes_the_faults_of_its_links_with_it() -> None:
    planner, cables = published()
    first, second, *_ = cables
    planner.report(first, down(first, cables[first], links=2))
    planner.report(second, down(second, cables[second], links=1))
    without_power(planner, first)
    (dead, link) = listed(planner, held=lambda name: {"ml/train": ("rail1",)} if name == first else {})
    assert (dead.where, dead.what, dead.since, dead.pods) == (first, "unreachable", SINCE, ("ml/train",))
    assert dead.details == (SILENT, "its links are as last reported (rail0 down; rail1 down)")
    assert f"kubectl describe node {first}" in dead.remedy
    assert link.links == ((second, "rail0"),)


def test_a_node_without_a_report_and_a_place_is_no_trouble_of_the_fabric() -> None:
    planner, _ = published()
    without_power(planner, "storage-1")
    assert listed(planner) == []


def test_a_node_of_a_refused_report_that_is_away_is_told_once() -> None:
    planner, cables = published()
    first = next(iter(cables))
    planner.refuse(first, "is broken")
    without_power(planner, first)
    assert [one.what for one in listed(planner)] == ["unreachable"]


@pytest.mark.parametrize(
    ("apart_s", "count"), [(0.0, 1), (AWAY_TOGETHER_S / 31, 1), (AWAY_TOGETHER_S + 1, 32)]
)
def test_a_rack_without_power_is_one_line_and_nodes_that_went_one_by_one_are_not(
    apart_s: float, count: int
) -> None:
    planner, cables = published(2, 32)
    rack = [name for name in cables if name.startswith("su001")]
    without_power(planner, *rack, apart_s=apart_s)
    found = listed(planner)
    assert len(found) == count
    if count == 1:
        (one,) = found
        assert (one.what, one.since, one.nodes) == ("32 nodes went away at once", SINCE, tuple(rack))
        assert one.where == planner.prepare(1.0)().nodes.place[rack[0]]
        assert one.details == ("su001-n[000-031]", SILENT, "their links are as last reported")


def test_racks_of_two_groups_are_two_lines_and_two_nodes_may_be_a_coincidence() -> None:
    planner, cables = published(3, 4)
    without_power(planner, *(name for name in cables if not name.startswith("su002")))
    without_power(planner, "su002-n000", "su002-n001")
    assert sorted((one.what, len(one.nodes)) for one in listed(planner)) == [
        ("4 nodes went away at once", 4),
        ("4 nodes went away at once", 4),
        ("unreachable", 1),
        ("unreachable", 1),
    ]


def test_a_silent_host_of_the_rails_that_is_away_is_told_once() -> None:
    planner, cables = published()
    first, second, *_ = cables
    anomalies = tuple(Anomaly(AnomalyKind.HOST_SILENT, name, "", "", "silent") for name in (first, second))
    planner.rails(anomalies)
    without_power(planner, first)
    assert sorted((one.where, one.what) for one in listed(planner)) == [
        (first, "unreachable"),
        (second, "host-silent"),
    ]


def test_planned_work_on_some_of_the_nodes_is_counted() -> None:
    planner, cables = published()
    rack = list(cables)[:4]
    without_power(planner, *rack)
    planner.inputs.maintenance.take(rack[0], '[{"until":"2030-01-01T00:00:00Z"}]')
    (one,) = listed(planner, at=UNIX)
    assert one.maintenance == "1 of 4 nodes: maintenance until 2030-01-01T00:00:00Z"
    assert not one.maintenance.startswith("maintenance"), "the others need somebody now"
    planner.inputs.take_away(rack[0], None)
    without_power(planner, "su001-n000")
    planner.inputs.maintenance.take("su001-n000", '[{"until":"2030-01-01T00:00:00Z"}]')
    assert listed(planner, at=UNIX)[-1].maintenance == "maintenance until 2030-01-01T00:00:00Z"


def test_a_node_that_is_away_changes_nothing_of_the_tree() -> None:
    planner, cables = published()
    before = planner.prepare(1.0)().outcome
    without_power(planner, *cables)
    after = planner.prepare(1.0)().outcome
    assert (after.hypernodes, after.writes, after.relabel) == (
        before.hypernodes,
        before.writes,
        before.relabel,
    )


def test_the_map_has_each_node_that_is_away() -> None:
    planner, cables = published()
    first = next(iter(cables))
    without_power(planner, first, "storage-1")
    view = view_of(planner, 1.0)
    assert {name: (one.what, one.since) for name, one in view.away.items()} == {first: ("unreachable", SINCE)}


def test_the_series_have_the_leaf_group_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    away = {f"n{i}": AwayNode("unreachable", SINCE + i, "") for i in range(3)}
    assert away_series(away, {"n1": "leaf"})["n1", "leaf", "unreachable"] == SINCE + 1
    monkeypatch.setattr("nodeagent.fabric.away_nodes.AWAY_SERIES_MAX", 2)
    assert list(away_series(away, {})) == [("n0", "", "unreachable"), ("n1", "", "unreachable")]


def test_whoever_hears_of_the_same_twice_hears_nothing_new() -> None:
    planner = Planner()
    one = AwayNode("unreachable", SINCE, "")
    told = [planner.inputs.take_away("n", it) for it in (None, one, one, one._replace(since=2.0), None, None)]
    assert told == [False, True, False, True, True, False]
    report: NodeLinks = fabrics.links("n", ())
    planner.report("n", report)
    assert planner.prepare(0.0)().away == {}
