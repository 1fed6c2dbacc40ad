"""Who is above a switch, of what it hears: names, chassis IDs, servers that look like switches, and nonsense."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, Planner, Rules
from nodeagent.fabric.uplinks import Above, KnownSwitch, SwitchNeighbor, is_same, uplinks
from nodeagent.switches import lldp_mib
from nodeagent.switches.lldp_mib import forwards, index_of


def heard(name: str, chassis: int = 0, port: str = "1", **more) -> SwitchNeighbor:
    chassis_id = f"mac=02:00:00:00:00:{chassis or sum(name.encode()) % 251:02x}"
    return SwitchNeighbor(chassis_id, f"ifname={port}", name, **{"forwards": True, **more})


def ups(
    told: dict[str, list[SwitchNeighbor]], above: Above | None = None, leaves=()
) -> dict[str, tuple[str, ...]]:
    return uplinks(told, above or Above(), leaves)[0]


def test_only_who_forwards_is_above_and_silence_about_it_is_no():
    told = {"leaf": [heard("spine"), heard("server", forwards=False), heard("old-switch", forwards=None)]}
    assert ups(told) == {"leaf": ("spine",)}


def test_a_node_of_the_cluster_is_never_above_though_it_forwards():
    above = Above(is_node={"node-1"}.__contains__)
    told = {"leaf": [heard("spine"), heard("node-1.example.com"), heard("node-1")]}
    assert ups(told, above) == {"leaf": ("spine",)}


def test_a_name_that_is_told_decides_alone():
    above = Above(name=re.compile(r"^spine-"))
    told = {"leaf": [heard("spine-1", forwards=None), heard("firewall"), heard("")]}
    assert ups(told, above) == {"leaf": ("spine-1",)}


def test_what_is_heard_on_a_management_port_is_passed_over():
    told = {"leaf": [heard("spine", here=("Ethernet1",)), heard("oob", here=("52:54:00:00:00:01", "mgmt0"))]}
    assert ups(told) == {"leaf": ("spine",)}


def test_a_switch_with_a_chassis_id_for_each_port_is_one():
    told = {"a": [heard("spine", 1, "1")], "b": [heard("spine", 2, "2")], "c": [heard("spine", 3, "3")]}
    assert set(ups(told).values()) == {("spine",)}


def test_two_switches_of_one_name_are_told_apart():
    several = {
        "a": [heard("spine", 1, "1"), heard("spine", 1, "2")],
        "b": [heard("spine", 2, "3"), heard("spine", 2, "4")],
    }
    one_port = {"a": [heard("spine", 1, "1")], "b": [heard("spine", 2, "1")]}
    for told in (several, one_port):
        found = ups(told)
        assert found["a"] != found["b"]
        assert found["a"] == ("chassis:mac:02:00:00:00:00:01",)


def test_domains_tell_apart_what_has_one_name_and_nothing_else():
    told = {"a": [heard("spine.pod1")], "b": [heard("spine.pod2")], "c": [heard("core.example")]}
    assert ups(told) == {"a": ("spine.pod1",), "b": ("spine.pod2",), "c": ("core",)}
    assert ups({"a": [heard("spine", 1, "1")], "b": [heard("spine.pod2", 1, "2")]}) == {
        "a": ("spine",),
        "b": ("spine",),
    }


def test_a_name_that_says_nothing_gives_way_to_the_chassis():
    above = Above(generic_names=frozenset(("sonic",)))
    told = {"leaf": [heard("sonic", 7), heard("", 8)]}
    assert ups(told, above) == {"leaf": ("chassis:mac:02:00:00:00:00:07", "chassis:mac:02:00:00:00:00:08")}


def test_a_leaf_that_is_heard_keeps_the_key_under_which_it_is_known():
    leaves = [KnownSwitch("old-name", ("leaf2",), ("mac=02:00:00:00:00:02",), ())]
    by_name = ups({"leaf1": [heard("leaf2", 9)]}, leaves=leaves)
    by_chassis = ups({"leaf1": [heard("whatever", 2)]}, leaves=leaves)
    assert by_name == by_chassis == {"leaf1": ("old-name",)}
    assert ups({"old-name": [heard("leaf2")]}, leaves=leaves) == {"old-name": ()}


def test_who_answers_must_be_who_was_meant():
    known = KnownSwitch("leaf1", ("leaf1.example",), ("mac=1",), ())
    assert is_same(known, "LEAF1", "")
    assert is_same(known, "renamed", "mac=1")
    assert is_same(known, "", "")
    assert not is_same(known, "leaf2", "mac=2")


TEXT = st.text(max_size=12) | st.sampled_from(["spine", "spine.a", "chassis:x", "leaf", ""])
HEARD = st.builds(SwitchNeighbor, TEXT, TEXT, TEXT, st.sampled_from([True, False, None]))


@given(st.dictionaries(TEXT, st.lists(HEARD, max_size=5), max_size=4))
def test_whatever_is_heard_leads_to_safe_keys_in_order(told: dict[str, list[SwitchNeighbor]]):
    found, above = uplinks(told, Above())
    assert found == uplinks(dict(reversed(list(told.items()))), Above())[0]
    for key, keys in found.items():
        assert key not in keys
        assert list(keys) == sorted(set(keys))
        assert all(one.isascii() and one.isprintable() and one and " " not in one for one in keys)
        assert set(keys) <= above.keys()


def test_the_planner_takes_keys_as_they_are():
    planner = Planner(Rules(hysteresis=IMMEDIATE))
    planner.uplinks({"chassis:mac:1": ("chassis:mac:2",)}, by_key=True)
    planner.plan(0.0)
    assert planner.tower.uplinks.heard == {"chassis:mac:1": ("chassis:mac:2",)}


# --- LLDP-MIB -----------------------------------------------------------------------------------------------


def test_capabilities_are_read_as_the_mib_says_and_as_some_send_them():
    assert forwards(b"\x28") is True  # bridge and router
    assert forwards(b"\x20\x00") is True
    assert forwards(b"\x01") is False  # station only
    assert forwards(b"\x00\x14") is True  # as in the frame: bridge and router
    assert forwards(b"\x00\x80") is False  # a C-VLAN component alone, as the MIB says
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
def test_no_answer_of_an_agent_is_too_odd(columns, own):
    reading = lldp_mib.reading_of(own, columns)
    for one in reading.neighbors:
        assert one.chassis
        (one.name + one.chassis + one.port).encode()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), st.text("0123456789.", max_size=20))
def test_an_index_is_what_follows_the_column(index: list[int], junk: str):
    assert index_of(lldp_mib.NAME, ".".join(map(str, (lldp_mib.NAME, *index)))) == tuple(index)
    assert index_of(lldp_mib.ENABLED, lldp_mib.NAME + ".1") is None
    index_of(lldp_mib.NAME, lldp_mib.NAME + junk)
