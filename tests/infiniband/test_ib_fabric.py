"""InfiniBand in the planner: adapters are no leaves, GUIDs are identities, and a file gives missing neighbors."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.controller_config import read_fabric
from nodeagent.fabric import IMMEDIATE, AnomalyKind, FabricRules, PlanOutcome, compute
from nodeagent.fabric.fabric_settings import FabricSelect
from nodeagent.fabric.hypernode import DERIVED_FROM
from nodeagent.fabric.nodelinks import LinkNeighbor, Metadata, NodeLink, NodeLinks, ReportedId
from nodeagent.fabric.planner import Planner
from nodeagent.fabric.topology_file import Topology
from nodeagent.infiniband.ibnetdiscover import DiscoveredCablesError, parse_ibnetdiscover
from tests.support.fabrics import partition

RULES = FabricRules(hysteresis=IMMEDIATE)
HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"


def neighbor(guid: int, port: int, name: str | None = None, subtype: str = "switch-guid") -> LinkNeighbor:
    return LinkNeighbor(
        chassis_id=ReportedId(subtype=subtype, value=f"{guid:016x}"),
        port_id=ReportedId(subtype="port-number", value=str(port)),
        system_name=name,
    )


def report(node: str, *neighbors: LinkNeighbor | None, macs: tuple[str, ...] = ()) -> NodeLinks:
    return NodeLinks(
        metadata=Metadata(name=node),
        node_name=node,
        links=tuple(
            NodeLink(
                name=f"nic{rail}", rail=rail, fabric="compute", speed_mbps=400_000, state="healthy",
                neighbor=found, netdev=f"ibp{rail}", rdma_device=f"mlx5_{rail}", mac=macs[rail] if macs else None,
            )
            for rail, found in enumerate(neighbors)
        ),
    )  # fmt: skip


def switches(outcome: PlanOutcome) -> set[str]:
    return {switch for one in outcome.hypernodes for switch in one.switches}


def test_switches_without_a_name_are_known_by_their_guid() -> None:
    reports = [report(f"n{i}", neighbor(0xA0, i), neighbor(0xA1, i)) for i in range(3)]
    outcome = compute(reports, rules=RULES)
    assert switches(outcome) == {
        "chassis:switch-guid:00000000000000a0",
        "chassis:switch-guid:00000000000000a1",
    }
    assert not outcome.anomalies


def test_two_guids_with_one_name_are_two_switches() -> None:
    """Each has one port with a node, so that on Ethernet they could be one switch with an ID for each port."""
    reports = [report("n0", neighbor(0xA0, 1, "rack7")), report("n1", neighbor(0xB0, 2, "rack7"))]
    outcome = compute(reports, rules=RULES)
    assert [anomaly.kind for anomaly in outcome.anomalies] == [AnomalyKind.DUPLICATE_SYSTEM_NAME]
    assert len(partition(outcome)) == 2


def test_a_replaced_switch_keeps_its_name() -> None:
    planner = Planner(RULES)
    for i in range(3):
        planner.report(f"n{i}", report(f"n{i}", neighbor(0xA0, i, "leaf-0"), neighbor(0xA1, i, "leaf-1")))
    before = planner.plan(0.0)
    for i in range(3):
        planner.report(f"n{i}", report(f"n{i}", neighbor(0xC0, i, "leaf-0"), neighbor(0xA1, i, "leaf-1")))
    after = planner.plan(1.0)
    assert partition(after) == partition(before)
    assert switches(after) == {"leaf-0", "leaf-1"}


def test_hosts_back_to_back_are_no_leaves() -> None:
    one, other = (
        neighbor(0xD0, 1, "n1 mlx5_0", "hca-guid"),
        neighbor(0xD1, 1, "n0 mlx5_0", "hca-guid"),
    )
    outcome = compute([report("n0", one), report("n1", other)], rules=RULES)
    assert outcome.hypernodes == ()
    assert {unplaced.node for unplaced in outcome.unplaced} == {"n0", "n1"}
    assert [(one.kind, one.node, one.link) for one in outcome.anomalies] == [
        (AnomalyKind.NODE_TO_NODE, "n0", "nic0")
    ]


def test_the_adapter_of_an_unknown_host_is_no_leaf_either() -> None:
    storage = neighbor(0xD0, 1, None, "hca-guid")
    reports = [report(f"n{i}", neighbor(0xA0, i, "leaf-0"), storage if i == 0 else None) for i in range(3)]
    outcome = compute(reports, rules=RULES)
    assert switches(outcome) == {"leaf-0"}
    assert [(one.kind, one.node, one.link) for one in outcome.anomalies] == [
        (AnomalyKind.NODE_TO_NODE, "n0", "nic1")
    ]


def test_a_rule_selects_a_switch_by_its_guid() -> None:
    storage = neighbor(0xEE, 5)
    reports = [report(f"n{i}", neighbor(0xA0, i, "leaf-0"), storage) for i in range(2)]
    rules = FabricRules(hysteresis=IMMEDIATE, fabrics=(FabricSelect(fabric="storage", switches=("*00ee",)),))
    assert switches(compute(reports, rules=rules)) == {"leaf-0"}


def test_infiniband_ports_that_ask_nothing_do_not_hide_the_tree_of_ethernet() -> None:
    """They are faster, and have rails."""
    reports = []
    for i in range(2):
        compute_links = report(f"n{i}", None, None).links
        infiniband = [replace(link, link_type="infiniband") for link in compute_links]
        ethernet = replace(
            report(f"n{i}", neighbor(0, i, "leaf-0", "mac")).links[0],
            name="eno1", rail=None, fabric=None, speed_mbps=100_000,
        )  # fmt: skip
        reports.append(replace(report(f"n{i}"), links=(*infiniband, ethernet)))
    assert switches(compute(reports, rules=RULES)) == {"leaf-0"}


# The file for fabrics whose switches answer no node

DISCOVERED = """\
#
# Topology file: generated on Mon Nov 23 05:17:28 2026
#
# Initiated from node 0000000000100000 port 0000000000100001

vendid=0x2c9
devid=0xd2f2
sysimgguid=0xb83fd20300aa0000
switchguid=0xb83fd20300aa0000(b83fd20300aa0000)
Switch\t64 "S-b83fd20300aa0000"\t\t# "MF0;su1-leaf0:MQM9700/U1" base port 0 lid 2 lmc 0
[1]\t"H-0000000000100000"[1](100001) \t\t# "gpu-001 mlx5_0" lid 1 4xNDR
[2]\t"H-0000000000100004"[1](100005) \t\t# "gpu-002 mlx5_0" lid 3 4xNDR

vendid=0x0
devid=0xd2f2
sysimgguid=0x100004
caguid=0x100004
Ca\t1 "H-0000000000100004"\t\t# "gpu-002 mlx5_0"
[1](100005) \t"S-b83fd20300aa0000"[2]\t\t# lid 3 lmc 0 "MF0;su1-leaf0:MQM9700/U1" lid 2 4xNDR

vendid=0x0
devid=0xd2f2
sysimgguid=0x100000
caguid=0x100000
Ca\t1 "H-0000000000100000"\t\t# "gpu-001 mlx5_0"
[1](100001) \t"S-b83fd20300aa0000"[1]\t\t# lid 1 lmc 0 "MF0;su1-leaf0:MQM9700/U1" lid 2 4xNDR
"""
"""Printed by ibnetdiscover 44 on ibsim 0.10, except for the speed."""


def ipoib_mac(port_guid: int) -> str:
    return f"00:00:10:49:fe:80:00:00:00:00:00:00:{port_guid.to_bytes(8).hex(':')}"


def test_a_file_gives_links_the_neighbors_that_they_lack(tmp_path: Path) -> None:
    (tmp_path / "cables").write_text(DISCOVERED)
    (tmp_path / "fabric.yaml").write_text(f"{HEAD}infinibandCables: cables\n")
    config, topology = read_fabric(tmp_path / "fabric.yaml")
    by_guid = topology.neighbors.complete(report("gpu-x", None, macs=(ipoib_mac(0x100001),)))
    assert by_guid.links[0].neighbor == neighbor(0xB83FD20300AA0000, 1, "su1-leaf0")
    by_name = topology.neighbors.complete(report("gpu-002.example.com", None))
    assert by_name.links[0].neighbor == neighbor(0xB83FD20300AA0000, 2, "su1-leaf0")
    planner = Planner(replace(config, hysteresis=IMMEDIATE), topology)
    for node in ("gpu-001", "gpu-002"):
        planner.report(node, report(node, None))
    outcome = planner.plan(0.0)
    assert switches(outcome) == {"su1-leaf0"}
    assert outcome.placed == 2


def test_an_answer_has_priority_over_the_file() -> None:
    known = parse_ibnetdiscover(DISCOVERED)
    answered = report("gpu-001", neighbor(0xA0, 9, "leaf-0"))
    assert known.complete(answered) == answered
    expired = report("gpu-001", replace(neighbor(0xA0, 9, "leaf-0"), stale=True))
    found = known.complete(expired).links[0].neighbor
    assert found is not None
    assert found.system_name == "su1-leaf0"


def test_two_hosts_with_one_description_are_found_by_their_guid_alone() -> None:
    known = parse_ibnetdiscover(DISCOVERED.replace("gpu-002", "gpu-001"))
    assert known.complete(report("gpu-001", None)).links[0].neighbor is None
    found = known.complete(report("gpu-001", None, macs=(ipoib_mac(0x100005),))).links[0].neighbor
    assert found is not None
    assert found.port_id.value == "2"


def test_the_cables_between_switches_make_the_tiers_above_the_leaves() -> None:
    """Two pods of two units, each pod with two spines, and two cores above. Spines have aggregation nodes, and a core
    the host of the subnet manager. Printed by ibnetdiscover 44 on ibsim 0.10."""
    text = Path(__file__).with_name("two_pods.ibnetdiscover").read_text()
    known = parse_ibnetdiscover(text)
    planner = Planner(RULES, Topology(neighbors=known))
    units = [[f"gpu-{pod}{unit}{number}" for number in range(2)] for pod in range(2) for unit in range(2)]
    for node in (node for unit in units for node in unit):
        planner.report(node, report(node, None, None))
    outcome = planner.plan(0.0)
    assert not outcome.anomalies
    assert partition(outcome) == {*map(frozenset, units)}
    below = {one.name: {*one.nodes} for one in outcome.hypernodes if one.tier == 1}
    for tier, expected in ((2, [{*units[0], *units[1]}, {*units[2], *units[3]}]), (3, [{*chain(*units)}])):
        objects = [one for one in outcome.hypernodes if one.tier == tier]
        assert {one.note(DERIVED_FROM) for one in objects} == {"infiniband-cables"}
        below = {one.name: set().union(*(below[child] for child in one.children)) for one in objects}
        assert sorted(below.values(), key=min) == expected

    # A unit that reports nothing is no tier above the others.
    for node in (*units[1], *units[3]):
        planner.report(node, None)
    outcome = planner.plan(0.0)
    assert [len(one.children) for one in outcome.hypernodes if one.tier > 1] == [2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no adapter with a switch"),
        ("switches:\n- name: leaf\n", "no adapter with a switch"),
        (DISCOVERED + DISCOVERED.replace('0000"[1]', '0000"[7]'), "another switch port above"),
    ],
)
def test_a_file_of_another_kind_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DiscoveredCablesError, match=reason):
        parse_ibnetdiscover(text)
