"""What is wrong with a link, from both of its sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.lldp.link_remarks import KEYS, Near, findings
from nodeagent.model import Ets, Identifier, Neighbor

LEAF = Neighbor(
    "swp1", Identifier("mac", "02:00:00:00:00:01"), Identifier("ifname", "Ethernet1"), system_name="leaf-1"
)
ETS = Ets(
    (0, 0, 0, 3, 0, 0, 6, 7), (50, 0, 0, 50, 0, 0, 0, 0), ("ets", "strict", "strict", "ets") + ("strict",) * 4
)


def keys(near: Near, *neighbors: Neighbor) -> list[tuple[str, str]]:
    found = findings([near], neighbors)
    assert all(one.key in KEYS for one in found)
    return [(one.link, one.key) for one in found]


@pytest.mark.parametrize(
    ("driver", "device", "says"),
    [
        ("i40e", "1583", "ethtool --set-priv-flags swp1 disable-fw-lldp on"),
        ("ice", "1592", "ethtool --set-priv-flags swp1 fw-lldp-agent off"),
        ("mlx5_core", "1021", "mlxconfig -d 0000:1a:00.0 query"),
        ("mlx5_core", "a2dc", "DPU mode"),
        ("bnxt_en", "1750", "niccli"),
        ("veth", None, "off on the switch port"),
        (None, None, "off on the switch port"),
    ],
)
def test_a_silent_port_has_its_likely_reason_by_driver(driver, device, says):
    (found,) = findings([Near("swp1", "0000:1a:00.0", driver, device, quiet=True)], ())
    assert found.key == "silent_port"
    assert found.detail.startswith("carrier, but no LLDP for 65 s: ")
    assert says in found.detail


def test_a_port_that_sends_what_is_no_lldp_is_not_said_to_be_silent():
    (found,) = findings([Near("swp1", driver="ice", quiet=True, malformed="no chassis ID at byte 14")], ())
    assert found.key == "silent_port"
    assert "are none (no chassis ID at byte 14)" in found.detail
    assert "ethtool" not in found.detail


def test_a_port_that_hears_only_ourselves_is_another_finding():
    assert keys(Near("swp1", quiet=True, hears_itself=True)) == [("swp1", "own_frames")]
    assert keys(Near("swp1", quiet=False, hears_itself=True)) == []


def test_a_flood_is_said():
    assert keys(Near("swp1", flooded=True), LEAF) == [("swp1", "flooded")]


@pytest.mark.parametrize(
    ("mtu", "size", "wrong"),
    [
        (9000, 1518, True),
        (9000, 9000, False),
        (9000, 9216, False),
        (1500, 1500, False),
        (9216, 9216, False),
        (1501, 1500, True),
        (9000, None, False),
        (9000, 0, False),
    ],
)
def test_our_frames_are_too_large_where_that_is_certain(mtu, size, wrong):
    assert bool(keys(Near("swp1", mtu=mtu), replace(LEAF, maximum_frame_size=size))) == wrong


@pytest.mark.parametrize(
    ("ours", "theirs", "wrong"),
    [((3,), (3,), False), ((3,), (3, 4), True), ((), (3,), True), (None, (3,), False), ((3,), None, False)],
)
def test_pfc_has_to_be_the_same_on_both_sides_where_both_say_it(ours, theirs, wrong):
    assert bool(keys(Near("swp1", pfc=ours), replace(LEAF, pfc=theirs))) == wrong


def test_ets_is_compared_where_it_means_something():
    def said(other: Ets) -> str:
        found = findings([Near("swp1", ets=ETS)], [replace(LEAF, ets=other)])
        return found[0].detail.rpartition(" in ")[2] if found else ""

    assert said(ETS) == ""
    assert said(replace(ETS, bandwidth=(50, 9, 9, 50, 9, 9, 9, 9))) == ""
    assert said(replace(ETS, bandwidth=(30, 0, 0, 70, 0, 0, 0, 0))) == "bandwidth"
    assert said(replace(ETS, classes=(0,) * 8)) == "the traffic classes of priorities"
    assert said(replace(ETS, algorithms=("strict",) * 8)) == "algorithms"


def test_stale_neighbors_say_nothing_any_more():
    stale = replace(LEAF, maximum_frame_size=64, pfc=(1,), stale=True)
    other = replace(LEAF, chassis_id=Identifier("local", "x"))
    assert keys(Near("swp1", mtu=1500, pfc=(3,)), stale, other) == []


def test_findings_are_in_order_and_equal_facts():
    sides = [Near("swp2", quiet=True), Near("swp1", quiet=True, flooded=True)]
    first = findings(sides, ())
    assert [(one.link, one.key) for one in first] == [
        ("swp1", "flooded"),
        ("swp1", "silent_port"),
        ("swp2", "silent_port"),
    ]
    assert findings(list(reversed(sides)), ()) == first
