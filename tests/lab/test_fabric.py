"""The simulated fabric: reports of its agents, and the planner's result."""

from __future__ import annotations

from datetime import UTC, datetime

from nodeagent.cluster.node_report import report
from nodeagent.fabric import IMMEDIATE, FabricRules, NodeLinks, Planner, PlanOutcome
from nodeagent.facts.model import Snapshot
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_fabric import Fabric

NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def fabric(nodes: int) -> Fabric:
    return Fabric(nodes, Machine.load("dgx-h100"))


def reports(fabric: Fabric, before: dict[str, NodeLinks] | None = None) -> dict[str, NodeLinks]:
    rails = {address: rail for rail, address in enumerate(fabric.rails)}
    return {
        node: report(Snapshot(**fabric.facts(node)), node, rails, before[node] if before else None, now=NOW)
        for node in fabric.nodes
    }


def planned(reports: dict[str, NodeLinks]) -> PlanOutcome:
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for name, links in reports.items():
        planner.node(name, {})
        planner.report(name, links)
    return planner.plan(0.0)


def groups(outcome: PlanOutcome) -> list[tuple[str, ...]]:
    return sorted(one.nodes for one in outcome.hypernodes if one.tier == 1)


def test_units_become_groups_although_they_share_the_storage_switches():
    made = fabric(8)
    reported = reports(made)
    switches = {
        link.neighbor.system_name for links in reported.values() for link in links.links if link.neighbor
    }
    assert {"storage-leaf0", "storage-leaf1", "mgmt-leaf0"} <= switches
    assert groups(planned(reported)) == [tuple(made.nodes[:4]), tuple(made.nodes[4:])]


def test_a_report_has_every_nic_and_marks_those_of_the_compute_fabric():
    (report, *_) = reports(fabric(4)).values()
    assert len(report.links) == 13
    compute = [link for link in report.links if link.fabric == "compute"]
    assert [(link.name, link.rail) for link in compute] == [(f"nic{rail}", rail) for rail in range(8)]
    assert all(
        link.neighbor and link.neighbor.system_name == f"hall1-su1-leaf{link.rail}" for link in compute
    )


def test_no_two_nodes_share_a_port_after_any_move():
    made = fabric(8)
    made.plug("gpu-002", 3, made.leaf(1, 3))
    made.rack("gpu-001", 1)
    made.add(1)
    assert {one.kind for one in planned(reports(made)).anomalies} <= {"foreign-leaf"}


def test_a_switch_that_fails_is_a_link_without_carrier_and_a_stale_neighbor():
    made = fabric(4)
    before = reports(made)
    made.stop_frames(made.leaf(0, 2))
    link = reports(made, before)["gpu-001"].links[2]
    assert (link.state, link.reasons, link.speed_mbps) == ("down", ("carrier_down",), None)
    assert link.neighbor is not None
    assert (link.neighbor.system_name, link.neighbor.stale) == ("hall1-su1-leaf2", True)
    made.boot(made.leaf(0, 2))
    again = reports(made, before)["gpu-001"].links[2]
    assert (again.state, again.neighbor) == ("healthy", before["gpu-001"].links[2].neighbor)


def test_a_replaced_switch_has_the_same_name_and_another_chassis_id():
    made = fabric(4)
    leaf = made.leaf(1, 0)
    before = planned(reports(made))
    old, new = made.replace(leaf)
    assert old != new
    assert planned(reports(made)).hypernodes == before.hypernodes


def test_units_have_32_nodes_and_there_are_at_least_two():
    assert [fabric(nodes).units for nodes in (4, 64, 65, 256, 1024)] == [2, 2, 3, 8, 32]
    made = fabric(256)
    assert made.leaf(7, 0) == "hall1-su8-leaf0"
    assert len(made.at("hall1-su8-leaf0")) == 32
    assert fabric(320).leaf(8, 0) == "hall2-su09-leaf0"


def test_every_switch_has_its_own_chassis_id():
    made = fabric(96)
    seen: dict[str, str | None] = {}
    for node in made.nodes:
        for one in Snapshot(**made.facts(node)).neighbors:
            assert seen.setdefault(one.chassis_id.value, one.system_name) == one.system_name
    assert len(seen) == 3 * 8 + 3
