"""Halls with one fault each: the groups and the anomalies that it must cause, each once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec import structs

from nodeagent.fabric import IMMEDIATE, FabricRules, NodeLinks, compute
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.hypernode import ALIASES, SWITCHES
from tests.support.fabrics import Cluster, partition
from tests.support.halls import Hall, named

NOW = FabricRules(hysteresis=IMMEDIATE)
Expected = set[tuple[str, str, str, str]]


def hall(units: int = 2, size: int = 16, rails: int = 8, planes: int = 1) -> Hall:
    leaf = [[f"su{unit}-leaf{rail}" for rail in range(rails)] for unit in range(units)]
    return Hall(leaf, size, planes=planes)


def add_node(of: Hall, unit: int, name: str, *switches: str) -> None:
    """A node with one link to each of these switches."""
    of.unit[name] = unit
    of.cables.update(((name, rail), switch) for rail, switch in enumerate(switches))
    of.links[name] = len(switches)


def foreign(nodes: int, units: int = 1, switch: str = "oob-sw1") -> Callable[[Hall], Expected]:
    """Rail 5 of the first nodes of each of the first units ends in this switch."""

    def fault(of: Hall) -> Expected:
        moved = [node for unit in range(units) for node in of.nodes(unit)[:nodes]]
        of.cables.update(dict.fromkeys(((node, 5) for node in moved), switch))
        return {("foreign-leaf", node, "rail5", switch) for node in moved}

    return fault


def rack_cut_off(of: Hall) -> Expected:
    """The leaf switch of the shifted nodes' last rail is foreign too: one shift, and no foreign cables beside it."""
    rack = of.nodes(0)[:3]
    for node in rack:
        for rail in range(8):
            of.cables[node, rail] = of.leaf[0][rail + 1] if rail < 7 else "spare-leaf"
    return {("rail-shift", rack[0], "", "su0-leaf1")}


def second_leaves(of: Hall) -> Expected:
    """Half of the nodes of a unit have leaf switches of their own on all rails."""
    for node in of.nodes(1)[:6]:
        of.unit[node] = 2
        of.cables.update(((node, rail), f"su1-leaf{rail}b") for rail in range(8))
    of.leaf.append([f"su1-leaf{rail}b" for rail in range(8)])
    return set()


def divided_rail(of: Hall) -> Expected:
    """Three switches share rail 5: none of them serves it for most nodes."""
    for number, node in enumerate(of.nodes(0)):
        of.cables[node, 5] = f"su0-leaf5{'abc'[number % 3]}"
    return set()


def rail_in_two(size: int) -> Callable[[Hall], Expected]:
    """The first ``size`` nodes have another switch on rail 5. No switch has two thirds of the rail, so this may be a
    plan."""

    def fault(of: Hall) -> Expected:
        of.cables.update(((node, 5), "su0-leaf5b") for node in of.nodes(0)[:size])
        return set()

    return fault


def switch_of_each_rack(of: Hall) -> Expected:
    """A ninth link goes to the switch of the rack; the last rack is not full."""
    for number, node in enumerate(of.nodes(0)):
        of.cables[node, 8] = f"rack{number // 6}"
        of.links[node] = 9
    return set()


def two_with_two_links(of: Hall) -> Expected:
    for number in range(2):
        add_node(of, 0, f"su0-n{90 + number}", "su0-leaf0", "su0-leaf4")
    return set()


def three_login_nodes(of: Hall) -> Expected:
    """Their only NIC is at the switch of another rail: of the eight-NIC nodes, which they are not."""
    for number in range(3):
        add_node(of, 0, f"su0-n{90 + number}", "su0-leaf3")
    return set()


def four_with_half(of: Hall) -> Expected:
    for number in range(4):
        add_node(of, 0, f"su0-n{90 + number}", *(f"su0-leaf{2 * rail}" for rail in range(4)))
    return set()


def gateway(of: Hall) -> Expected:
    """Its third link is at a border switch. For nodes of this model, no other switch of the group serves that rail."""
    add_node(of, 0, "su0-n90", "su0-leaf0", "su0-leaf4", "border")
    return set()


def gateways(count: int) -> Callable[[Hall], Expected]:
    """Nodes with two links, the second one at a border switch: their rail 1 is not the rail 1 of the unit."""

    def fault(of: Hall) -> Expected:
        for number in range(count):
            add_node(of, 0, f"su0-n{80 + number}", "su0-leaf0", "border")
        return set()

    return fault


def storage_of_a_small_unit(of: Hall) -> Expected:
    """Many nodes with two links are a unit of their own, which shares the storage switch."""
    of.cables.update(dict.fromkeys(((node, 8) for node in of.nodes(0)), "storage"))
    of.links.update(dict.fromkeys(of.nodes(0), 9))
    for number in range(8):
        add_node(of, 1, f"su1-n{80 + number}", "cpu-leaf", "storage")
    of.leaf.append(["cpu-leaf"])
    return {("shared-switch", "", "", "storage")}


def storage_of_a_few_nodes(of: Hall) -> Expected:
    """Four nodes with most of the rails are the begin of a unit."""
    of.cables.update(dict.fromkeys(((node, 8) for node in of.nodes(0)), "storage"))
    of.links.update(dict.fromkeys(of.nodes(0), 9))
    of.leaf.append([f"su1-leaf{rail}" for rail in range(5)])
    for number in range(4):
        add_node(of, 1, f"su1-n{80 + number}", *of.leaf[1], "storage")
    return {("shared-switch", "", "", "storage")}


def storage_beside_login_nodes(of: Hall) -> Expected:
    """Five nodes with two links hide no second unit of four nodes."""
    for node in of.nodes(1)[4:]:
        del of.unit[node]
        of.cables = {place: switch for place, switch in of.cables.items() if place[0] != node}
    for node in of.nodes(0) + of.nodes(1):
        of.cables[node, 8] = "storage"
        of.links[node] = 9
    for number in range(5):
        add_node(of, 2, f"su2-n{80 + number}", "login-leaf", "storage")
    of.leaf.append(["login-leaf"])
    return {("shared-switch", "", "", "storage")}


def swap_in_the_small_model(of: Hall) -> Expected:
    """Nodes of the small model are compared with each other."""
    for number in range(5):
        add_node(of, 0, f"su0-n{90 + number}", "su0-leaf0", "su0-leaf4")
    of.cables["su0-n90", 0], of.cables["su0-n90", 1] = "su0-leaf4", "su0-leaf0"
    return {
        ("rail-swap", "su0-n90", "rail0", "su0-leaf4"),
        ("rail-swap", "su0-n90", "rail1", "su0-leaf0"),
    }


def absent_nic(of: Hall) -> Expected:
    """A NIC that the node does not list any more."""
    node = of.nodes(0)[3]
    of.links[node] = 7
    return {("missing-rail", node, "", "su0-leaf7")}


def absent_nics(of: Hall) -> Expected:
    """A riser is gone: one node with half of its links is no model."""
    node = of.nodes(0)[3]
    of.links[node] = 4
    return {("missing-rail", node, "", f"su0-leaf{rail}") for rail in range(4, 8)}


def one_default_chassis_id(of: Hall) -> Expected:
    """All switches have names of their own, and the MAC address of the image that was written to them."""
    of.chassis = "02:00:00:00:00:01"
    return {("shared-chassis-id", "", "", "su0-leaf0")}


def exchange(of: Hall, node: str, one: int, other: int) -> None:
    of.cables[node, one], of.cables[node, other] = of.cables[node, other], of.cables[node, one]


def swap(nodes: int) -> Callable[[Hall], Expected]:
    """Rails 1 and 2 of the first nodes of a unit are exchanged."""

    def fault(of: Hall) -> Expected:
        expected: Expected = set()
        for node in of.nodes(0)[:nodes]:
            exchange(of, node, 1, 2)
            expected |= {
                ("rail-swap", node, "rail1", "su0-leaf2"),
                ("rail-swap", node, "rail2", "su0-leaf1"),
            }
        return expected

    return fault


def swap_of_two(of: Hall) -> Expected:
    """Two nodes alone in a unit: which one is wrong is not known, so both are named, once."""
    swap(1)(of)
    return {("rail-swap", "su0-n00", "rail1", "su0-leaf2")}


def shift_of_two(of: Hall) -> Expected:
    """The cables of one of two nodes are shifted by one rail, and the last one is not connected."""
    for rail in range(8):
        of.cables["su0-n01", rail] = of.leaf[0][(rail + 1) % 8]
    del of.cables["su0-n01", 7]
    return {("rail-swap", "su0-n00", "rail1", "su0-leaf1")}


def one_wrong_cable(rail: int, at: int) -> Callable[[Hall], Expected]:
    """The cable of this rail is in the switch of another rail."""

    def fault(of: Hall) -> Expected:
        of.cables["su0-n00", rail] = of.leaf[0][at]
        return {("miscabled", "su0-n00", f"rail{rail}", f"su0-leaf{at}")}

    return fault


def short_shift(of: Hall) -> Expected:
    for rail in range(8):
        of.cables["su0-n01", rail] = of.leaf[0][(rail + 1) % 8]
    return {("rail-shift", "su0-n01", "", "su0-leaf1")}


def crossed_planes(nodes: int) -> Callable[[Hall], Expected]:
    """The two ports of the NIC of rail 3 are exchanged: both have this rail, and each its own switch."""

    def fault(of: Hall) -> Expected:
        expected: Expected = set()
        for node in of.nodes(0)[:nodes]:
            exchange(of, node, 6, 7)
            expected |= {
                ("rail-swap", node, "rail6", "su0-leaf7"),
                ("rail-swap", node, "rail7", "su0-leaf6"),
            }
        return expected

    return fault


def planes_in_either_order(of: Hall) -> Expected:
    """Half of the nodes have the ports of each NIC in the other order, as at pairs of switches (MLAG)."""
    for node in of.nodes(0)[:8]:
        for rail in (0, 2, 4, 6):
            exchange(of, node, rail, rail + 1)
    return set()


def plane_is_down(of: Hall) -> Expected:
    """One port of a NIC is not cabled. The other port has the same rail."""
    del of.cables["su0-n00", 6]
    return {("missing-rail", "su0-n00", "rail6", "su0-leaf6")}


def shared_leaves(fault: Callable[[Hall], Expected]) -> Callable[[Hall], Expected]:
    """Each leaf switch serves two rails."""

    def shared(of: Hall) -> Expected:
        for (node, rail), leaf in of.cables.items():
            of.cables[node, rail] = f"{leaf[:-1]}{2 * (rail // 2)}"
        of.leaf = [[f"{leaf[:-1]}{2 * (rail // 2)}" for rail, leaf in enumerate(row)] for row in of.leaf]
        expected = fault(of)
        return {(kind, node, link, of.cables[node, int(link[4:])]) for kind, node, link, _ in expected}

    return shared


def own_dpus(of: Hall) -> Expected:
    """Each link of each node hears the DPU of its own NIC. No node has a switch in common with another one."""
    of.cables = {(node, rail): f"{node}-dpu{rail}" for node, rail in of.cables}
    of.leaf = [[f"{node}-dpu0"] for node in of.unit]
    of.unit = {node: unit for unit, node in enumerate(of.unit)}
    return {("no-leaves", "", "", "")}


def own_dpus_of_a_few(of: Hall) -> Expected:
    """The same for four nodes beside a unit."""
    for unit, node in enumerate(of.nodes(1)[:4], 2):
        of.unit[node] = unit
        of.leaf.append([f"{node}-dpu0"])
        of.cables.update(((node, rail), f"{node}-dpu{rail}") for rail in range(8))
    return {("no-leaves", "", "", "")}


def first_nodes_of_racks(of: Hall) -> Expected:
    """Each rack has a switch for all links of a node. Its first node is not alone for ever."""
    of.cables = {(node, rail): f"tor-{node}" for node, rail in of.cables}
    of.leaf = [[f"tor-{node}"] for node in of.unit]
    of.unit = {node: unit for unit, node in enumerate(of.unit)}
    return set()


def storage_alone_has_vfs(of: Hall) -> Expected:
    """Only the slower links have a rail and a fabric. The others, with their own leaf switches, have none."""
    of.outside = range(6)
    of.speed = {6: 200_000, 7: 200_000}
    return {("other-fabric", "su0-n00", "", "")}


def storage_without_vfs(of: Hall) -> Expected:
    """The right way round: the slower links are outside, as many as they are."""
    of.outside = range(2, 8)
    of.speed = dict.fromkeys(range(2, 8), 100_000)
    return set()


def one_id_for_all_ports(of: Hall) -> Expected:
    of.one_id = True
    return set()


def one_address_that_is_not_the_chassis_id(of: Hall) -> Expected:
    of.one_id = of.managed = True
    return set()


def one_id_and_a_hub(of: Hall) -> Expected:
    """Two nodes hear one port of a switch, whose name is in the description."""
    of.one_id = True
    first, second = of.nodes(0)[:2]
    of.ports[first, 3, "su0-leaf3"] = of.ports[second, 3, "su0-leaf3"] = 40
    return {("shared-port", node, "rail3", "su0-leaf3") for node in (first, second)}


def nothing_names_a_port(of: Hall) -> Expected:
    of.one_id, of.described = True, False
    return {("shared-port", "", "", leaf) for unit in of.leaf for leaf in unit}


def one_port_for_all_links(one_id: bool) -> Callable[[Hall], Expected]:
    """All ports of a switch have one description, such as an alias, or one ID that is not the ID of the chassis."""

    def fault(of: Hall) -> Expected:
        of.one_id = one_id
        of.ports.update(dict.fromkeys([(node, rail, leaf) for (node, rail), leaf in of.cables.items()], 40))
        return {("shared-port", "", "", leaf) for unit in of.leaf for leaf in unit}

    return fault


def one_port_for_all_links_of_one_switch(of: Hall) -> Expected:
    """Two nodes share a port of another switch."""
    first, second = of.nodes(0)[:2]
    of.one_id = True
    of.ports.update({(node, 3, "su0-leaf3"): 40 for node in of.nodes(0)})
    of.ports[first, 4, "su0-leaf4"] = of.ports[second, 4, "su0-leaf4"] = 40
    return {("shared-port", "", "", "su0-leaf3")} | {
        ("shared-port", node, "rail4", "su0-leaf4") for node in (first, second)
    }


def one_port_for_all_links_but_one(of: Hall) -> Expected:
    """More than half of the links, so it is rather the switch than a hub."""
    of.ports.update({(node, 3, "su0-leaf3"): 40 for node in of.nodes(0)[:-1]})
    return {("shared-port", "", "", "su0-leaf3")}


def hub_of_a_few(of: Hall) -> Expected:
    """The ports of most nodes tell the switch's ports apart, so the others do share one."""
    nodes = of.nodes(0)[:3]
    of.ports.update({(node, 3, "su0-leaf3"): 40 for node in nodes})
    return {("shared-port", node, "rail3", "su0-leaf3") for node in nodes}


def hub_of_a_unit_of_two(of: Hall) -> Expected:
    """Two nodes are too few to say that the switch has one name for all ports."""
    of.ports.update({(node, 3, "su0-leaf3"): 40 for node in of.nodes(0)})
    return {("shared-port", node, "rail3", "su0-leaf3") for node in of.nodes(0)}


def without_vfs(speed: int, management: range = range(8, 9)) -> Callable[[Hall], Expected]:
    """Nodes whose NICs have no VFs, so no link has a rail or a fabric. Slow links go to switches for management."""

    def fault(of: Hall) -> Expected:
        of.outside = range(management.stop)
        of.links.update(dict.fromkeys(of.unit, management.stop))
        of.speed = dict.fromkeys(management, speed)
        of.cables.update({(node, link): f"mgmt{link}" for node in of.unit for link in management})
        return set()

    return fault


def rack_of_another_unit_ends_here(of: Hall) -> Expected:
    """Three nodes have rails 0 and 7 exchanged. The cables of a rack of the other unit are shifted by one, and the last
    ones are at the same leaf switch: they do not make it a switch of rail 7."""
    rack = of.nodes(1)[:3]
    for node in rack:
        for rail in range(8):
            of.cables[node, rail] = of.leaf[1][rail + 1] if rail < 7 else "su0-leaf0"
    expected = {("rail-shift", rack[0], "", "su1-leaf1")}
    for node in of.nodes(0)[:3]:
        exchange(of, node, 0, 7)
        expected |= {("rail-swap", node, "rail0", "su0-leaf7"), ("rail-swap", node, "rail7", "su0-leaf0")}
    return expected


class Row(NamedTuple):
    fault: Callable[[Hall], Expected]
    units: int = 2
    size: int = 16
    planes: int = 1


ROWS = {
    "two cables in a management switch": Row(foreign(2)),
    "three cables in a spare leaf": Row(foreign(3, switch="leaf-spare")),
    "five cables in a spine": Row(foreign(5, switch="spine01")),
    "the same switch in three units": Row(foreign(1, 3), units=3),
    "two cables of each of three units": Row(foreign(2, 3), units=3),
    "a shift that ends in a spare leaf": Row(rack_cut_off),
    "second leaf switches on all rails": Row(second_leaves),
    "a rail that three switches share": Row(divided_rail),
    "a rail in two halves": Row(rail_in_two(8)),
    "a rail in two parts, seven and nine": Row(rail_in_two(7)),
    "a rail in two parts, six and ten": Row(rail_in_two(6)),
    "a switch for each rack, one of them smaller": Row(switch_of_each_rack),
    "two nodes with two links": Row(two_with_two_links),
    "three nodes with one link": Row(three_login_nodes),
    "four nodes with half of the links": Row(four_with_half),
    "a gateway with a link to a border switch": Row(gateway),
    "two gateways on one border switch": Row(gateways(2)),
    "five gateways on one border switch": Row(gateways(5)),
    "a storage switch of a unit with small nodes": Row(storage_of_a_small_unit, units=1),
    "a storage switch of a few nodes with most rails": Row(storage_of_a_few_nodes, units=1),
    "a storage switch of two units and a few small nodes": Row(storage_beside_login_nodes),
    "a swap in the small model": Row(swap_in_the_small_model),
    "one chassis ID for all switches": Row(one_default_chassis_id, units=4),
    "an absent NIC": Row(absent_nic),
    "four absent NICs": Row(absent_nics),
    "a swap in a unit of three": Row(swap(1), size=3),
    "a swap in a unit of two": Row(swap_of_two, size=2),
    "a shift in a unit of three": Row(short_shift, size=3),
    "a shift in a unit of two": Row(shift_of_two, size=2),
    "a wrong cable in a unit of three": Row(one_wrong_cable(1, 2), size=3),
    "a wrong cable in a unit of two": Row(one_wrong_cable(1, 2), size=2),
    "another wrong cable in a unit of two": Row(one_wrong_cable(2, 1), size=2),
    "a swap in a unit of two with two rails on a leaf": Row(shared_leaves(swap_of_two), size=2),
    "a swap in a unit of three with two rails on a leaf": Row(shared_leaves(swap(1)), size=3),
    "a swap in a hall of one unit of three": Row(swap(1), units=1, size=3),
    "swaps in a unit where the shifted rack of another one ends": Row(rack_of_another_unit_ends_here),
    "planes crossed in a NIC": Row(crossed_planes(1), planes=2),
    "planes crossed in the NICs of three": Row(crossed_planes(3), planes=2),
    "planes crossed in a unit of three": Row(crossed_planes(1), size=3, planes=2),
    "planes in either order": Row(planes_in_either_order, planes=2),
    "a plane that is down": Row(plane_is_down, planes=2),
    "four planes": Row(lambda of: set(), planes=4),
    "DPUs alone": Row(own_dpus),
    "DPUs of four nodes alone": Row(own_dpus_of_a_few),
    "racks with one node each": Row(first_nodes_of_racks),
    "the storage NICs alone have VFs": Row(storage_alone_has_vfs, units=1),
    "the storage NICs alone have no VFs": Row(storage_without_vfs),
    "the ports of a switch have one ID and a description each": Row(one_id_for_all_ports),
    "the ports of a switch have one address, and its management port has another": Row(
        one_address_that_is_not_the_chassis_id
    ),
    "the ports of a switch have one ID, and two nodes one port": Row(one_id_and_a_hub),
    "the ports of a switch have one ID and no description": Row(nothing_names_a_port),
    "the ports of a switch have one ID and one description": Row(one_port_for_all_links(True)),
    "the ports of a switch have one ID, not that of the chassis": Row(one_port_for_all_links(False)),
    "the ports of a switch have one ID, in units of three": Row(one_port_for_all_links(False), size=3),
    "the ports of one switch have one description, and two nodes one port": Row(
        one_port_for_all_links_of_one_switch
    ),
    "all nodes of a switch but one hear one port": Row(one_port_for_all_links_but_one),
    "three nodes of a switch hear one port": Row(hub_of_a_few),
    "both nodes of a switch hear one port": Row(hub_of_a_unit_of_two, size=2),
    "no NIC has VFs": Row(without_vfs(10_000)),
    "no NIC has VFs, and many slow ones are faster together": Row(without_vfs(150_000, range(8, 31))),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_fault_is_named_once_and_leaves_the_groups_as_they_are(row: Row) -> None:
    made = hall(row.units, row.size, planes=row.planes)
    expected = row.fault(made)
    outcome = compute(made.reports(), rules=NOW)
    found = named(outcome.anomalies)
    assert dict(found) == dict.fromkeys(expected, 1), [odd.message for odd in outcome.anomalies]
    assert partition(outcome) == made.units()
    strangers = {switch for kind, _, _, switch in expected if kind == "foreign-leaf"}
    assert not strangers & {switch for one in outcome.hypernodes for switch in one.switches}


def test_a_foreign_switch_leaves_the_published_annotation() -> None:
    """Earlier versions listed it. It goes, even while another link of the group has no neighbor."""
    made = hall()
    foreign(3)(made)
    del made.cables[made.nodes(0)[9], 2]
    before = compute(made.reports(), rules=NOW).hypernodes
    published = [
        structs.replace(
            one,
            annotations=tuple(
                (key, f"oob-sw1,{text}" if key == SWITCHES else text) for key, text in one.annotations
            ),
        )
        for one in before
    ]
    assert any("oob-sw1" in one.switches for one in published)
    outcome = compute(made.reports(), published=published, rules=NOW)
    assert not any("oob-sw1" in one.switches for one in outcome.hypernodes)
    message = next(odd.message for odd in outcome.anomalies if odd.kind == "foreign-leaf")
    assert "oob-sw1" in message
    assert message.endswith("move this cable to su0-leaf5")


def test_a_pause_of_lldp_moves_nothing_where_all_switches_have_one_chassis_id() -> None:
    made = hall(3)
    one_default_chassis_id(made)
    cluster = Cluster(FabricRules(hysteresis=HysteresisSettings(settle_seconds=0)))
    for report in made.reports():
        cluster.report(report)
    cluster.rest(61)
    published = cluster.tree.leaves()
    assert {frozenset(nodes) for nodes in published.values()} == made.units()
    for node in made.nodes(0) + made.nodes(1)[2:] + made.nodes(2):
        cluster.report(expired(made.report(node)))
    for _ in range(2):
        assert cluster.rest(61) == cluster.rest(3600) == 0
        cluster.restart()
    assert cluster.tree.leaves() == published


def test_two_switches_with_one_chassis_id_stay_two_while_one_of_them_pauses() -> None:
    """No port has two current names then, and two names may be those of one renamed switch."""
    made = hall(2, rails=1)
    made.chassis = "02:00:00:00:00:01"
    cluster = Cluster(FabricRules(hysteresis=HysteresisSettings(settle_seconds=0)))
    for report in made.reports():
        cluster.report(report)
    cluster.rest(61)
    for node in made.nodes(0):
        cluster.report(expired(made.report(node)))
    for _ in range(2):
        assert cluster.rest(61) == cluster.rest(3600) == 0
        assert {frozenset(nodes) for nodes in cluster.tree.leaves().values()} == made.units()
        assert cluster.outcome is not None
        assert [odd.kind for odd in cluster.outcome.anomalies] == ["shared-chassis-id"]
        cluster.restart()


@pytest.mark.parametrize("restarts", [False, True])
def test_the_last_report_of_a_dead_node_makes_no_default_chassis_id_of_a_renamed_switch(
    restarts: bool,
) -> None:
    """It has the old names, and another node is on its ports by now."""
    made = hall()
    cluster = Cluster(FabricRules(hysteresis=HysteresisSettings(settle_seconds=0)))
    for report in made.reports():
        cluster.report(report)
    cluster.rest(61)
    dead = made.nodes(0)[3]
    last = expired(made.report(dead))
    del made.unit[dead]
    made.names = {switch: f"new-{switch}" for switch in made.leaf[0]}
    add_node(made, 0, "su0-n90", *made.leaf[0])
    for place in [place for place in made.ports if place[0] == dead]:
        made.ports["su0-n90", *place[1:]] = made.ports[place]
    for report in (*made.reports(), last):
        cluster.report(report)
    for _ in range(2):
        cluster.rest(61)
        assert cluster.outcome is not None
        assert not cluster.outcome.anomalies
        assert {frozenset(nodes) for nodes in cluster.tree.leaves().values()} == {
            frozenset((*made.nodes(0), dead)),
            frozenset(made.nodes(1)),
        }
        if restarts:
            cluster.restart()


def test_the_aliases_of_an_earlier_version_do_not_join_switches_with_one_chassis_id() -> None:
    made = hall(3)
    one_default_chassis_id(made)
    merged = compute(hall(1).reports(), rules=NOW).hypernodes
    names = [f"su{unit}-leaf{rail}" for unit in range(3) for rail in range(8)]
    aliases = ",".join(f"{name}=su0-leaf0" for name in names[1:])
    published = [
        structs.replace(one, annotations=((ALIASES, aliases), (SWITCHES, "su0-leaf0"))) for one in merged
    ]
    outcome = compute(made.reports(), published=published, rules=NOW)
    assert {switch for one in outcome.hypernodes for switch in one.switches} == set(names)


def test_a_hall_of_one_unit_is_named_after_a_leaf_switch_and_not_after_its_storage_switch() -> None:
    leaf = [[*(f"su0-leaf{rail}" for rail in range(8)), "a-storage"]]
    (one,) = compute(Hall(leaf, 16).reports(), rules=NOW).hypernodes
    assert one.name.startswith("nodeagent-t1-su0-leaf0-")
    assert "a-storage" in one.switches


def expired(report: NodeLinks) -> NodeLinks:
    """The same report, with expired information alone."""
    links = (
        structs.replace(link, neighbor=structs.replace(link.neighbor, stale=True))
        for link in report.links
        if link.neighbor is not None
    )
    return structs.replace(report, links=tuple(links))
