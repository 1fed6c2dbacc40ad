"""Remarks on a link, from the node's side and its neighbors."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import Ets, Identifier, Neighbor
from nodeagent.lldp.link_remarks import CROWDED, LINK_REMARK_KEYS, LinkSide, find_remarks

LEAF = Neighbor(
    "swp1", Identifier("mac", "02:00:00:00:00:01"), Identifier("ifname", "Ethernet1"), system_name="leaf-1"
)
ETS = Ets(
    (0, 0, 0, 3, 0, 0, 6, 7), (50, 0, 0, 50, 0, 0, 0, 0), ("ets", "strict", "strict", "ets") + ("strict",) * 4
)


def keys(side: LinkSide, *neighbors: Neighbor) -> list[tuple[str, str]]:
    remarks = find_remarks([side], neighbors)
    assert all(remark.key in LINK_REMARK_KEYS for remark in remarks)
    return [(remark.link, remark.key) for remark in remarks]


@pytest.mark.parametrize(
    ("driver", "device", "reason"),
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
def test_a_port_without_lldp_has_its_likely_reason_by_driver(driver, device, reason):
    (remark,) = find_remarks([LinkSide("swp1", "0000:1a:00.0", driver, device, without_neighbor=True)], ())
    assert remark.key == "silent_port"
    assert remark.detail.startswith("carrier, but no LLDP for 65 s: ")
    assert reason in remark.detail


def test_a_port_with_malformed_frames_has_their_error_as_reason():
    (remark,) = find_remarks(
        [LinkSide("swp1", driver="ice", without_neighbor=True, malformed="no chassis ID at byte 14")], ()
    )
    assert remark.key == "silent_port"
    assert "are malformed (no chassis ID at byte 14)" in remark.detail
    assert "ethtool" not in remark.detail


def test_a_port_with_only_own_frames_has_another_remark():
    assert keys(LinkSide("swp1", without_neighbor=True, own_frames=True)) == [("swp1", "own_frames")]
    assert keys(LinkSide("swp1", without_neighbor=False, own_frames=True)) == []


def test_a_flood_is_a_remark():
    assert keys(LinkSide("swp1", flooded=True), LEAF) == [("swp1", "flooded")]


@pytest.mark.parametrize(
    ("mtu", "size", "remark"),
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
def test_a_frame_size_remark_needs_an_mtu_above_the_announced_size(mtu, size, remark):
    assert bool(keys(LinkSide("swp1", mtu=mtu), replace(LEAF, maximum_frame_size=size))) == remark


@pytest.mark.parametrize(
    ("ours", "theirs", "remark"),
    [((3,), (3,), False), ((3,), (3, 4), True), ((), (3,), True), (None, (3,), False), ((3,), None, False)],
)
def test_pfc_must_be_equal_if_both_sides_announce_it(ours, theirs, remark):
    assert bool(keys(LinkSide("swp1", pfc=ours), replace(LEAF, pfc=theirs))) == remark


def test_ets_bandwidth_is_compared_only_for_ets_classes():
    def difference(other: Ets) -> str:
        remarks = find_remarks([LinkSide("swp1", ets=ETS)], [replace(LEAF, ets=other)])
        return remarks[0].detail.rpartition(" in ")[2] if remarks else ""

    assert difference(ETS) == ""
    assert difference(replace(ETS, bandwidth=(50, 9, 9, 50, 9, 9, 9, 9))) == ""
    assert difference(replace(ETS, bandwidth=(30, 0, 0, 70, 0, 0, 0, 0))) == "bandwidth"
    assert difference(replace(ETS, classes=(0,) * 8)) == "the traffic classes of priorities"
    assert difference(replace(ETS, algorithms=("strict",) * 8)) == "algorithms"


def test_stale_neighbors_cause_no_remark():
    stale = replace(LEAF, maximum_frame_size=64, pfc=(1,), stale=True)
    other = replace(LEAF, chassis_id=Identifier("local", "x"))
    assert keys(LinkSide("swp1", mtu=1500, pfc=(3,)), stale, other) == []


def test_remarks_are_sorted_and_equal_for_equal_facts():
    sides = [LinkSide("swp2", without_neighbor=True), LinkSide("swp1", without_neighbor=True, flooded=True)]
    first = find_remarks(sides, ())
    assert [(remark.link, remark.key) for remark in first] == [
        ("swp1", "flooded"),
        ("swp1", "silent_port"),
        ("swp2", "silent_port"),
    ]
    assert find_remarks(list(reversed(sides)), ()) == first


def test_a_contender_is_named_beside_the_neighbor_and_by_its_source_if_the_rest_is_equal() -> None:
    first = replace(LEAF, source="02:00:00:00:00:01")
    copy = replace(first, source="02:00:00:00:ee:01", contender=True)
    (remark,) = find_remarks([LinkSide("swp1")], (first, copy))
    assert (remark.link, remark.key) == ("swp1", CROWDED)
    assert (
        "beside leaf-1 Ethernet1, confirmed longest, there is leaf-1 Ethernet1 from 02:00:00:00:ee:01 and not from "
        in remark.detail
    )
    other = replace(copy, system_name="evil")
    (remark,) = find_remarks([LinkSide("swp1")], (first, other, copy))
    assert "there is evil Ethernet1 and others: " in remark.detail
    assert not find_remarks(
        [LinkSide("swp1")], (first, replace(other, stale=True), replace(other, contender=False))
    )
