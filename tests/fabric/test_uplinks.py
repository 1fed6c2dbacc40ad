"""Uplinks from the neighbors of switches: names, chassis IDs, servers that look like switches, and random input."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, FabricRules, Planner
from nodeagent.fabric.uplinks import KnownSwitch, SwitchNeighbor, UplinkRule, find_uplinks, is_same
from nodeagent.features.switches import lldp_mib
from nodeagent.features.switches.lldp_mib import forwards, index_of
from tests.support.fabrics import End, links


def neighbor(name: str, chassis: int = 0, port: str = "1", **more) -> SwitchNeighbor:
    chassis_id = f"mac=02:00:00:00:00:{chassis or sum(name.encode()) % 251:02x}"
    return SwitchNeighbor(chassis_id, f"ifname={port}", name, **{"forwards": True, **more})


def uplinks_of(
    neighbors: dict[str, list[SwitchNeighbor]], rule: UplinkRule | None = None, leaves=()
) -> dict[str, tuple[str, ...]]:
    return find_uplinks(neighbors, rule or UplinkRule(), leaves)[0]


def test_only_a_neighbor_that_announces_forwarding_is_an_uplink():
    neighbors = {
        "leaf": [neighbor("spine"), neighbor("server", forwards=False), neighbor("old-switch", forwards=None)]
    }
    assert uplinks_of(neighbors) == {"leaf": ("spine",)}


def test_a_node_of_the_cluster_is_never_an_uplink():
    rule = UplinkRule(is_node={"node-1"}.__contains__)
    neighbors = {"leaf": [neighbor("spine"), neighbor("node-1.example.com"), neighbor("node-1")]}
    assert uplinks_of(neighbors, rule) == {"leaf": ("spine",)}


def test_a_name_pattern_decides_alone():
    rule = UplinkRule(name=re.compile(r"^spine-"))
    neighbors = {"leaf": [neighbor("spine-1", forwards=None), neighbor("firewall"), neighbor("")]}
    assert uplinks_of(neighbors, rule) == {"leaf": ("spine-1",)}


def test_neighbors_on_management_ports_are_ignored():
    neighbors = {
        "leaf": [
            neighbor("spine", local_ports=("Ethernet1",)),
            neighbor("oob", local_ports=("52:54:00:00:00:01", "mgmt0")),
        ]
    }
    assert uplinks_of(neighbors) == {"leaf": ("spine",)}


def test_one_chassis_id_for_each_port_is_one_switch():
    neighbors = {
        "a": [neighbor("spine", 1, "1")],
        "b": [neighbor("spine", 2, "2")],
        "c": [neighbor("spine", 3, "3")],
    }
    assert set(uplinks_of(neighbors).values()) == {("spine",)}


def test_two_uplinks_with_one_name_are_two_switches():
    several = {
        "a": [neighbor("spine", 1, "1"), neighbor("spine", 1, "2")],
        "b": [neighbor("spine", 2, "3"), neighbor("spine", 2, "4")],
    }
    one_port = {"a": [neighbor("spine", 1, "1")], "b": [neighbor("spine", 2, "1")]}
    for neighbors in (several, one_port):
        uplinks = uplinks_of(neighbors)
        assert uplinks["a"] != uplinks["b"]
        assert uplinks["a"] == ("chassis:mac:02:00:00:00:00:01",)


def test_the_domain_is_kept_only_where_it_separates_switches():
    neighbors = {
        "a": [neighbor("spine.pod1")],
        "b": [neighbor("spine.pod2")],
        "c": [neighbor("core.example")],
    }
    assert uplinks_of(neighbors) == {"a": ("spine.pod1",), "b": ("spine.pod2",), "c": ("core",)}
    assert uplinks_of({"a": [neighbor("spine", 1, "1")], "b": [neighbor("spine.pod2", 1, "2")]}) == {
        "a": ("spine",),
        "b": ("spine",),
    }


def test_a_generic_name_gives_way_to_the_chassis_id_of_an_uplink():
    rule = UplinkRule(generic_names=frozenset(("sonic",)))
    neighbors = {"leaf": [neighbor("sonic", 7), neighbor("", 8)]}
    assert uplinks_of(neighbors, rule) == {
        "leaf": ("chassis:mac:02:00:00:00:00:07", "chassis:mac:02:00:00:00:00:08")
    }


def test_a_leaf_switch_keeps_its_key_as_a_neighbor():
    leaves = [KnownSwitch("old-name", ("leaf2",), ("mac=02:00:00:00:00:02",), ())]
    by_name = uplinks_of({"leaf1": [neighbor("leaf2", 9)]}, leaves=leaves)
    by_chassis = uplinks_of({"leaf1": [neighbor("whatever", 2)]}, leaves=leaves)
    assert by_name == by_chassis == {"leaf1": ("old-name",)}
    assert uplinks_of({"old-name": [neighbor("leaf2")]}, leaves=leaves) == {"old-name": ()}


def test_an_answer_must_come_from_the_queried_switch():
    known = KnownSwitch("leaf1", ("leaf1.example",), ("mac=1",), ())
    assert is_same(known, "LEAF1", "")
    assert is_same(known, "renamed", "mac=1")
    assert is_same(known, "", "")
    assert not is_same(known, "leaf2", "mac=2")


TEXT = st.text(max_size=12) | st.sampled_from(["spine", "spine.a", "chassis:x", "leaf", ""])
NEIGHBOR = st.builds(SwitchNeighbor, TEXT, TEXT, TEXT, st.sampled_from([True, False, None]))


@given(st.dictionaries(TEXT, st.lists(NEIGHBOR, max_size=5), max_size=4))
def test_all_neighbors_get_safe_and_sorted_keys(neighbors: dict[str, list[SwitchNeighbor]]):
    uplinks, above = find_uplinks(neighbors, UplinkRule())
    assert uplinks == find_uplinks(dict(reversed(list(neighbors.items()))), UplinkRule())[0]
    for key, keys in uplinks.items():
        assert key not in keys
        assert list(keys) == sorted(set(keys))
        assert all(one.isascii() and one.isprintable() and one and " " not in one for one in keys)
        assert set(keys) <= above.keys()


def test_uplinks_by_key_are_used_as_they_are():
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    cables = {"n1": (End("", "1", chassis="1"),), "n2": (End("", "1", chassis="3"),)}
    for node, row in cables.items():
        planner.report(node, links(node, row))
    assert [one.tier for one in planner.plan(0.0).hypernodes] == [1, 1]
    planner.uplinks({"chassis:mac:1": ("chassis:mac:2",), "chassis:mac:3": ("chassis:mac:2",)}, by_key=True)
    assert [one.tier for one in planner.plan(0.0).hypernodes] == [1, 1, 2]


# --- LLDP-MIB -----------------------------------------------------------------------------------------------


def test_capabilities_are_read_in_both_bit_orders():
    assert forwards(b"\x28") is True  # bridge and router
    assert forwards(b"\x20\x00") is True
    assert forwards(b"\x01") is False  # station only
    assert forwards(b"\x00\x14") is True  # as in the frame: bridge and router
    assert forwards(b"\x00\x08") is False  # as in the frame: WLAN access point
    assert forwards(b"\x00\x80") is False  # a C-VLAN component alone, as the MIB defines it
    assert forwards(b"") is None
    assert forwards(None) is None


OCTETS = st.binary(max_size=40)
VALUE = st.none() | st.integers() | OCTETS | st.text(max_size=5) | st.floats()
INDEX = st.lists(st.integers(0, 2**32 - 1), max_size=24).map(tuple)
ROW = st.sampled_from([(0, 1, 1), (0, 2, 1), (9, 2, 3)])
COLUMN = st.dictionaries(ROW | INDEX, VALUE | st.integers(1, 7), max_size=6)


@given(
    st.fixed_dictionaries(dict.fromkeys(lldp_mib.COLUMNS, COLUMN)),
    st.dictionaries(st.sampled_from(lldp_mib.OWN), VALUE),
)
def test_every_answer_of_an_snmp_agent_is_readable(columns, own):
    reading = lldp_mib.reading_of(own, columns)
    for one in reading.neighbors:
        assert one.chassis
        (one.name + one.chassis + one.port).encode()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), st.text("0123456789.", max_size=20))
def test_the_index_follows_the_column(index: list[int], junk: str):
    assert index_of(lldp_mib.NAME, ".".join(map(str, (lldp_mib.NAME, *index)))) == tuple(index)
    assert index_of(lldp_mib.ENABLED, lldp_mib.NAME + ".1") is None
    index_of(lldp_mib.NAME, lldp_mib.NAME + junk)
