"""The neighbor table: neighbors, their TTLs, and the bounds on a hostile link."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from nodeagent.facts.model import Identifier, Neighbor
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.link_remarks import find_crowded, find_duplicates
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, ManagementAddress, Pfc, PortId
from nodeagent.lldp.lldpdu_codec import encode_lldpdu
from nodeagent.lldp.neighbor_table import (
    CAPACITY,
    DECODES_PER_SECOND,
    FrameOutcome,
    NeighborTable,
    OwnIdentity,
    neighbor_of,
)

SOURCE = bytes.fromhex("1c34da1c5801")
CHASSIS = bytes.fromhex("1c34da1c5800")


def pdu(port: str = "swp1", *, chassis: bytes = CHASSIS, ttl: int = 120, **rest) -> Lldpdu:
    return Lldpdu(ChassisId(4, chassis), PortId(5, port.encode()), ttl, **rest)


def frame(port: str = "swp1", *, source: bytes = SOURCE, **rest) -> bytes:
    return build_frame(NEAREST_BRIDGE, source, encode_lldpdu(pdu(port, **rest)))


def speak(table: NeighborTable, sent: bytes, at: float) -> None:
    """Two frames in an interval of 30 s: the neighbor is confirmed."""
    for now in (at, at + 30.0):
        table.receive("eth0", sent, now)


def ports(table: NeighborTable) -> list[tuple[str, str, bool]]:
    return [(one.link, one.port_id.value, one.stale) for one in table.neighbors()]


def test_a_neighbor_has_the_values_of_the_frame():
    table = NeighborTable()
    heard = frame(
        system_name="leaf01\0",
        system_description="",
        port_description="to\nnode-1",
        management_addresses=(ManagementAddress(1, bytes((192, 0, 2, 1))),),
        pvid=0,
        maximum_frame_size=9216,
        pfc=Pfc(True, False, 8, 0b1000),
    )
    assert table.receive("eth0", heard, 0.0) is FrameOutcome.NEW
    assert table.neighbors() == (
        Neighbor(
            link="eth0",
            chassis_id=Identifier("mac", "1c:34:da:1c:58:00"),
            port_id=Identifier("ifname", "swp1"),
            system_name="leaf01",
            port_description="to\\nnode-1",
            management_addresses=("192.0.2.1",),
            maximum_frame_size=9216,
            pfc=(3,),
            source="1c:34:da:1c:58:01",
        ),
    )


def test_each_field_of_a_neighbor_is_filled():
    filled = set(re.findall(r"^ {8}(\w+)=", inspect.getsource(neighbor_of), re.M))
    of_table = {"stale", "confirmed", "contender"}
    assert filled | of_table == {*Neighbor.__struct_fields__}, "fill it in `neighbor_of`"


def test_a_repeated_frame_keeps_the_neighbor_and_changes_no_fact():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    table.receive("eth0", frame(), 30.0)
    facts, revision = table.neighbors(), table.revision
    assert table.receive("eth0", frame(), 100.0) is FrameOutcome.REFRESHED
    table.expire(219.0)
    assert table.neighbors() is facts
    assert table.revision == revision


def test_the_second_frame_confirms_a_neighbor_and_a_change_keeps_it_confirmed():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    assert [one.confirmed for one in table.neighbors()] == [False]
    table.receive("eth0", frame(), 1.0)
    assert [one.confirmed for one in table.neighbors()] == [True]
    table.receive("eth0", frame(port_description="to node 2"), 2.0)
    assert [(one.confirmed, one.port_description) for one in table.neighbors()] == [(True, "to node 2")]


def test_a_new_ttl_or_an_unused_tlv_does_not_change_the_fact():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    table.receive("eth0", frame(), 0.0)
    revision = table.revision
    assert table.receive("eth0", frame(ttl=20, ppvids=()), 0.0) is FrameOutcome.REFRESHED
    assert table.revision == revision
    assert table.next_expiry() == 20.0
    assert table.receive("eth0", frame(ttl=20), 1.0) is FrameOutcome.REFRESHED


def test_a_changed_value_changes_the_fact_and_keeps_the_neighbor():
    table = NeighborTable()
    table.receive("eth0", frame(port_description="a"), 0.0)
    assert table.receive("eth0", frame(port_description="b"), 1.0) is FrameOutcome.CHANGED
    assert [one.port_description for one in table.neighbors()] == ["b"]
    assert [entry.first_received for entry in table.entries()] == [0.0]


def test_an_earlier_frame_that_returns_is_a_change():
    table = NeighborTable()
    table.receive("eth0", frame(port_description="a"), 0.0)
    table.receive("eth0", frame(port_description="b"), 1.0)
    assert table.receive("eth0", frame(port_description="a"), 2.0) is FrameOutcome.CHANGED
    assert [one.port_description for one in table.neighbors()] == ["a"]


def test_a_neighbor_marked_stale_does_not_remove_another():
    table = NeighborTable()
    table.receive("eth0", frame("swp1", ttl=5), 0.0)
    table.receive("eth0", frame("swp2", ttl=120), 0.0)
    table.mark_stale("eth0")
    table.expire(60.0)
    assert ports(table) == [("eth0", "swp1", True), ("eth0", "swp2", True)]


def test_a_shutdown_frame_makes_the_neighbor_of_a_link_stale_at_once_and_removes_another():
    table = NeighborTable()
    speak(table, frame("swp1"), 0.0)
    speak(table, frame("swp2"), 0.0)
    assert table.receive("eth0", frame("swp2", ttl=0), 31.0) is FrameOutcome.SHUTDOWN
    assert ports(table) == [("eth0", "swp1", False)]
    assert table.receive("eth0", frame("swp1", ttl=0), 31.0) is FrameOutcome.SHUTDOWN
    assert ports(table) == [("eth0", "swp1", True)]
    assert table.receive("eth0", frame("swp3", ttl=0), 31.0) is FrameOutcome.SHUTDOWN
    assert ports(table) == [("eth0", "swp1", True)]
    assert table.receive("eth0", frame("swp1"), 32.0) is FrameOutcome.REFRESHED
    assert ports(table) == [("eth0", "swp1", False)]


def test_a_shutdown_frame_after_a_loss_of_the_carrier_gives_the_neighbor_no_time():
    """The carrier ended the time of all neighbors: one that sends again is current for its new TTL alone."""
    table = NeighborTable()
    table.receive("eth0", frame("other"), 0.0)
    speak(table, frame("swp1"), 0.0)
    table.mark_stale("eth0")
    table.receive("eth0", frame("swp1", ttl=0), 31.0)
    table.receive("eth0", frame("swp1", ttl=1), 32.0)
    table.expire(33.0)
    assert ports(table)[0] == ("eth0", "swp1", True)


def test_the_last_neighbor_of_a_link_is_stale_after_its_ttl_and_live_after_a_frame():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    table.expire(119.9)
    assert ports(table) == [("eth0", "swp1", False)]
    table.expire(120.0)
    assert ports(table) == [("eth0", "swp1", True)]
    assert table.next_expiry() is None
    assert table.receive("eth0", frame(), 500.0) is FrameOutcome.REFRESHED
    assert ports(table) == [("eth0", "swp1", False)]
    assert table.next_expiry() == 620.0


def test_a_stale_neighbor_that_returns_with_other_values_is_changed_and_live():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    table.expire(500.0)
    assert table.receive("eth0", frame(port_description="new"), 501.0) is FrameOutcome.CHANGED
    assert [(one.port_description, one.stale) for one in table.neighbors()] == [("new", False)]


def test_a_moved_cable_shows_the_new_port_and_its_second_frame_removes_the_stale_one():
    table = NeighborTable()
    speak(table, frame("swp1"), 0.0)
    table.expire(160.0)
    table.receive("eth0", frame("swp2"), 161.0)
    assert ports(table) == [("eth0", "swp1", True), ("eth0", "swp2", False)]
    table.receive("eth0", frame("swp2"), 191.0)
    assert ports(table) == [("eth0", "swp2", False)]


def test_a_port_renamed_at_boot_is_listed_twice_until_the_old_name_expires():
    table = NeighborTable()
    speak(table, frame("Ethernet0"), 0.0)
    speak(table, frame("Eth1/1"), 60.0)
    assert ports(table) == [("eth0", "Ethernet0", False), ("eth0", "Eth1/1", False)]
    assert find_crowded(table.neighbors()) == ()
    table.expire(150.0)
    assert ports(table) == [("eth0", "Eth1/1", False)]


def test_neighbors_marked_stale_return_one_by_one():
    table = NeighborTable()
    other = bytes.fromhex("1c34da1c6600")
    speak(table, frame("swp1"), -30.0)
    speak(table, frame("swp9", chassis=other), -30.0)
    table.receive("eth1", frame("swp2"), 0.0)
    table.mark_stale("eth0")
    assert ports(table) == [("eth0", "swp1", True), ("eth0", "swp9", True), ("eth1", "swp2", False)]
    table.receive("eth0", frame("swp1"), 10.0)
    assert ports(table)[:2] == [("eth0", "swp1", False), ("eth0", "swp9", True)]
    table.expire(120.0)
    assert ports(table) == [("eth0", "swp1", False), ("eth1", "swp2", True)]


def test_a_removed_link_loses_its_neighbors_and_a_renamed_one_keeps_them():
    table = NeighborTable()
    table.receive("eth0", frame("swp1"), 0.0)
    table.receive("eth1", frame("swp2"), 0.0)
    table.rename_link("eth0", "rail0")
    table.remove_link("eth1")
    assert ports(table) == [("rail0", "swp1", False)]
    assert table.receive("rail0", frame("swp1"), 1.0) is FrameOutcome.REFRESHED
    table.rename_link("eth7", "eth8")
    table.mark_stale("eth7")
    table.remove_link("eth7")
    assert table.counts("eth7") == {}


def test_a_ttl_counts_for_at_most_the_configured_time():
    table = NeighborTable(ttl_max_s=300.0)
    table.receive("eth0", frame(ttl=65535), 0.0)
    assert table.next_expiry() == 300.0
    table.expire(300.0)
    assert ports(table) == [("eth0", "swp1", True)]
    assert NeighborTable().receive("eth0", frame(ttl=65535), 0.0) is FrameOutcome.NEW


def test_the_neighbor_confirmed_longest_is_the_neighbor_of_the_link():
    table = NeighborTable()
    speak(table, frame("z-real"), 0.0)
    speak(table, frame("a-forged", ttl=65535), 40.0)
    assert ports(table) == [("eth0", "z-real", False), ("eth0", "a-forged", False)]


def test_a_neighbor_of_one_frame_is_no_fact_beside_a_confirmed_one():
    table = NeighborTable()
    speak(table, frame("real"), 0.0)
    facts = table.neighbors()
    assert table.receive("eth0", frame("forged"), 31.0) is FrameOutcome.NEW
    assert table.neighbors() is facts
    table.receive("eth0", frame("forged"), 32.0)
    assert ports(table) == [("eth0", "real", False), ("eth0", "forged", False)]


def test_a_switch_that_was_away_is_the_neighbor_again_with_its_first_frame():
    table = NeighborTable()
    for n in range(10):
        table.receive("eth0", frame("real"), 30.0 * n)
    for n in range(8):  # while the switch boots, and less long than it was live
        table.receive("eth0", frame("forged", ttl=65535), 400.0 + 30.0 * n)
        table.expire(400.0 + 30.0 * n)
    assert ports(table) == [("eth0", "forged", False)]
    assert table.receive("eth0", frame("real"), 620.0) is FrameOutcome.NEW
    assert ports(table) == [("eth0", "real", False), ("eth0", "forged", False)]
    assert table.neighbors()[0].confirmed


def test_a_neighbor_that_sends_in_bursts_is_never_before_one_that_sends_for_longer():
    """A long TTL is no evidence: only the time between frames counts."""
    table = NeighborTable()
    for n in range(4):
        table.receive("eth0", frame("real"), 1.0 * n)
    for n in range(40):
        table.receive("eth0", frame("forged", ttl=65535), 4.0 + n / 100)
    table.receive("eth0", frame("real", ttl=0), 5.0)
    assert ports(table) == [("eth0", "real", True), ("eth0", "forged", False)]
    table.expire(123.0)
    assert ports(table) == [("eth0", "forged", False)]
    table.receive("eth0", frame("real"), 300.0)
    assert ports(table) == [("eth0", "real", False), ("eth0", "forged", False)]


@given(st.lists(st.sampled_from([1.0, 7.0, 29.0, 30.0]), min_size=2, max_size=2), st.floats(0.0, 60.0))
def test_two_steady_senders_never_change_places(intervals, later):
    """With any two intervals. The first one is confirmed before the other one sends."""
    table = NeighborTable()
    frames = [(intervals[0] * n, "z") for n in range(2, 40)]
    frames += [(intervals[0] + later + intervals[1] * n, "a") for n in range(1, 40)]
    for n in range(2):
        table.receive("eth0", frame("z"), intervals[0] * n)
    for at, port in sorted(frames):
        table.receive("eth0", frame(port), at)
        table.expire(at)
        if at < min(39 * interval for interval in intervals):
            assert ports(table)[0][1] == "z"


def test_time_without_frames_makes_no_neighbor_senior():
    table = NeighborTable()
    speak(table, frame("once", ttl=20), 0.0)
    speak(table, frame("steady"), 1000.0)
    speak(table, frame("once", ttl=20), 1031.0)
    assert ports(table) == [("eth0", "steady", False), ("eth0", "once", False)]


def test_a_full_link_replaces_those_of_one_frame_and_keeps_the_confirmed_ones():
    table = NeighborTable()
    speak(table, frame("kept"), 0.0)
    for n in range(CAPACITY - 1):
        assert table.receive("eth0", frame(f"p{n}"), 40.0 + n) is FrameOutcome.NEW
    facts = table.neighbors()
    table.receive("eth0", frame("p7"), 90.0)
    assert table.receive("eth0", frame("one too many"), 91.0) is FrameOutcome.CROWDED
    assert table.counts("eth0")[FrameOutcome.CROWDED] == 1
    assert len(list(table.entries())) == CAPACITY
    assert table.neighbors() != facts, "p7 is confirmed now"
    assert [port for _, port, _ in ports(table)] == ["kept", "p7"]
    assert table.receive("eth0", frame("p0"), 92.0) is FrameOutcome.CROWDED, "it was the oldest of one frame"
    assert table.receive("eth0", frame("p2"), 93.0) is FrameOutcome.REFRESHED
    assert table.receive("eth1", frame("another link"), 94.0) is FrameOutcome.NEW


def test_a_full_link_of_confirmed_neighbors_replaces_the_one_that_has_sent_for_the_shortest_time():
    table = NeighborTable()
    for n in range(CAPACITY):
        table.receive("eth0", frame(f"p{n:02}"), float(n))
        table.receive("eth0", frame(f"p{n:02}"), n + (5.0 if n == 9 else 30.0))
    assert table.receive("eth0", frame("new"), 70.0) is FrameOutcome.CROWDED
    assert table.receive("eth0", frame("new"), 71.0) is FrameOutcome.REFRESHED
    names = [port for _, port, _ in ports(table)]
    assert names[0] == "p00"
    assert "new" in names
    assert "p09" not in names


def test_a_full_link_replaces_a_stale_neighbor():
    table = NeighborTable()
    for n in range(CAPACITY):
        table.receive("eth0", frame(f"p{n:02}"), n / 100)
    table.mark_stale("eth0")
    assert table.receive("eth0", frame("new"), 10.0) is FrameOutcome.CROWDED
    names = [entry.neighbor.port_id.value for entry in table.entries()]
    assert len(names) == CAPACITY
    assert "p00" in names, "it is the neighbor of the link until another one is confirmed"
    assert "p01" not in names


def test_forged_neighbors_never_change_the_facts_of_a_full_link():
    """40 forged frames with the longest TTL, again and again: no fact changes, and nothing wakes a reader."""
    table = NeighborTable()
    real = frame("real", system_name="leaf-1")
    speak(table, real, 0.0)
    facts = table.neighbors()
    for n in range(4000):
        table.receive("eth0", frame(f"forged-{n}", ttl=65535), 31.0 + n / 40)
        if n % 1200 == 0:
            table.receive("eth0", real, 31.0 + n / 40)
        table.expire(31.0 + n / 40)
        assert table.neighbors() is facts


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_unknown_switch_is_the_neighbor_of_a_flooded_link_after_two_of_its_intervals(times):
    """The forged frames were first, and each comes ``times`` times with the longest TTL."""
    table = NeighborTable()
    for n in range(40 * times):
        table.receive("eth0", frame(f"forged-{n % 40}", ttl=65535), n / 20)
    real = frame("real", system_name="leaf-1")
    for n in range(2):
        table.receive("eth0", real, 30.0 * (n + 1))
    (fact,) = [one for one in table.neighbors() if one.system_name == "leaf-1"]
    assert fact.confirmed
    assert not fact.stale
    now = 60.0
    while now < 700.0:  # the forged ones leave when the greatest TTL in use has passed
        now += 30.0
        table.receive("eth0", real, now)
        table.expire(now)
    assert ports(table) == [("eth0", "real", False)]


@pytest.mark.parametrize(
    "reflection",
    [
        frame(source=bytes.fromhex("020000000001")),
        frame(chassis=bytes.fromhex("020000000001")),
        build_frame(
            NEAREST_BRIDGE,
            SOURCE,
            encode_lldpdu(Lldpdu(ChassisId(7, b"x"), PortId(3, bytes.fromhex("020000000001")), 120)),
        ),
        build_frame(
            NEAREST_BRIDGE,
            SOURCE,
            encode_lldpdu(Lldpdu(ChassisId(7, b"x"), PortId(5, b"swp1"), 120, system_name="node-1\0")),
        ),
    ],
    ids=["source", "chassis", "port", "name and no MAC"],
)
def test_a_frame_with_our_own_identity_is_not_a_neighbor(reflection):
    table = NeighborTable(OwnIdentity(frozenset((bytes.fromhex("020000000001"),)), frozenset(("node-1",))))
    assert table.receive("eth0", reflection, 0.0) is FrameOutcome.OWN
    assert table.neighbors() == ()
    assert table.receive("eth0", frame(system_name="node-10"), 0.0) is FrameOutcome.NEW


def test_a_switch_with_the_name_of_the_node_is_a_neighbor():
    own = OwnIdentity(frozenset((bytes.fromhex("020000000001"),)), frozenset(("node-1",)))
    table = NeighborTable(own)
    assert table.receive("eth0", frame(system_name="node-1"), 0.0) is FrameOutcome.NEW
    assert [one.system_name for one in table.neighbors()] == ["node-1"]


def test_a_neighbor_that_matches_our_own_identity_is_removed():
    table = NeighborTable()
    table.receive("eth0", frame("swp1"), 0.0)
    table.receive("eth1", frame("swp2", source=bytes.fromhex("020000000001")), 0.0)
    table.set_own(OwnIdentity(frozenset((bytes.fromhex("020000000001"),))))
    assert ports(table) == [("eth0", "swp1", False)]
    assert table.receive("eth1", frame("swp2", source=bytes.fromhex("020000000001")), 1.0) is FrameOutcome.OWN


def test_a_malformed_frame_is_counted_and_its_reason_kept_until_a_valid_one():
    table = NeighborTable()
    assert table.receive("eth0", b"\0" * 60, 0.0) is FrameOutcome.MALFORMED
    assert table.last_error("eth0") == "EtherType 0x0000 is not LLDP at byte 12"
    assert table.last_error("eth1") is None
    assert table.counts("eth0") == {FrameOutcome.MALFORMED: 1}
    for _ in range(2):
        table.receive("eth0", frame("swp1"), 0.0)
        assert table.last_error("eth0") is None
        table.receive("eth0", b"\0" * 60, 0.0)


def test_a_flood_is_not_decoded_and_does_not_affect_the_switch_or_another_link():
    table = NeighborTable()
    switch = frame("swp1", system_name="leaf")
    table.receive("eth0", switch, 0.0)
    for n in range(10_000):
        now = n / 10_000
        table.receive("eth0", frame("flood", system_name=str(n)), now)
    counts = table.counts("eth0")
    looked_at = sum(counts.values()) - counts[FrameOutcome.FLOODED]
    assert 100 <= looked_at <= 102 + DECODES_PER_SECOND
    assert table.receive("eth0", switch, 1.0) is FrameOutcome.REFRESHED
    assert table.receive("eth1", frame("swp2"), 1.0) is FrameOutcome.NEW
    changed = frame("swp1", system_name="leaf", port_description="node-1")
    assert table.receive("eth0", changed, 3.0) is FrameOutcome.CHANGED


def test_one_port_on_two_links_is_a_duplicate_until_one_is_stale():
    table = NeighborTable()
    for link in ("eth0", "eth1"):
        table.receive(link, frame("swp1"), 0.0)
    table.receive("eth2", frame("swp3"), 0.0)
    assert [[one.link for one in group] for group in find_duplicates(table.neighbors())] == [["eth0", "eth1"]]
    table.mark_stale("eth0")
    assert find_duplicates(table.neighbors()) == ()


@pytest.mark.parametrize("described", [True, False])
def test_two_ports_with_the_id_of_their_switch_are_no_duplicates(described: bool) -> None:
    """A switch with one MAC address for all ports: the description names the port, or nothing does."""
    neighbors = [
        Neighbor(
            link=f"eth{port}",
            chassis_id=Identifier("mac", "02:00:00:00:00:01"),
            port_id=Identifier("mac", "02:00:00:00:00:01"),
            system_name="sonic",
            port_description=f"Ethernet{port}" if described else None,
        )
        for port in (0, 4)
    ]
    assert find_duplicates(neighbors) == ()
    assert neighbors[0].place == ("sonic Ethernet0" if described else "sonic 02:00:00:00:00:01")
    same = (neighbors[0], structs.replace(neighbors[0], link="eth8"))
    assert find_duplicates(same) == ((same,) if described else ())


def test_a_link_is_contested_once_its_neighbor_sends_after_another_one_is_confirmed():
    table = NeighborTable()
    speak(table, frame("swp1"), 0.0)
    speak(table, frame("swp1", chassis=bytes(6)), 1.0)
    speak(table, frame("swp2"), 0.0)
    assert not find_crowded(table.neighbors())
    table.receive("eth1", frame("swp1"), 60.0)
    table.receive("eth0", frame("swp1"), 60.0)
    (crowded,) = find_crowded(table.neighbors())
    assert [(one.link, one.chassis_id.value[:2], one.contender) for one in crowded] == [
        ("eth0", "1c", False), ("eth0", "00", True), ("eth0", "1c", True),
    ]  # fmt: skip


@given(st.lists(st.binary(max_size=80) | st.just(frame()), max_size=20))
def test_any_frames_get_an_outcome(frames):
    table = NeighborTable()
    for n, each in enumerate(frames):
        assert table.receive("eth0", each, float(n)) in FrameOutcome


REAL = frame("real", system_name="leaf-1")
ELSEWHERE = bytes.fromhex("02000000ee01")
DAY = 86400
Identity = tuple[str, str | None, bytes]
SWITCH: Identity = ("real", "leaf-1", SOURCE)


class AnyHistory(RuleBasedStateMachine):
    """A switch that has sent for a day, and a forger on the same link who may do anything but copy its IDs, its MAC and
    its name at once. A shutdown frame from the MAC of the switch is forged too.

    The model has the times of the frames and nothing else of the table.
    """

    @initialize()
    def begin(self):
        self.table = NeighborTable(ttl_max_s=300.0)
        self.now = 0.0
        self.expires: dict[Identity, float] = {}
        """The end of the time in which a neighbor is live, if no shutdown frame ends it."""
        self.frames: Counter[Identity] = Counter()
        self.shut_down: set[Identity] = set()
        self.seen: tuple[int, tuple[Neighbor, ...]] = (0, ())
        for _ in range(DAY // 30):
            self.table.receive("eth0", REAL, self.now)
            self.heard(SWITCH, 120)
            self.now += 30.0

    def heard(self, identity, ttl):
        self.frames[identity] += 1
        self.expires[identity] = max(self.expires.get(identity, 0.0), self.now + min(ttl, 300))
        self.shut_down.discard(identity)

    @rule()
    def the_switch_sends(self):
        if self.table.receive("eth0", REAL, self.now) is not FrameOutcome.FLOODED:
            self.heard(SWITCH, 120)

    @rule(
        numbers=st.lists(st.integers(0, 60), max_size=80),
        ttl=st.sampled_from([0, 1, 5, 120, 65535]),
        name=st.sampled_from([None, "a", "b", "leaf-1"]),
        seconds=st.sampled_from([0.0, 0.001, 0.1]),
        source=st.sampled_from([SOURCE, ELSEWHERE]),
        tagged=st.booleans(),
    )
    def the_forger_sends(self, numbers, ttl, name, seconds, source, tagged):
        for number in numbers:
            port = "real" if number > 50 else f"forged-{number}"
            if (port, name, source) == SWITCH:
                continue
            sent = frame(port, ttl=ttl, system_name=name, source=source)
            outcome = self.table.receive("eth0", sent, self.now, tagged=tagged)
            if outcome is FrameOutcome.SHUTDOWN:
                self.ended(port, source)
            elif outcome is not FrameOutcome.FLOODED:
                self.heard((port, name, source), ttl)
            self.now += seconds

    def ended(self, port, source):
        """It may be refused: the neighbor has outlived one before."""
        self.shut_down |= {identity for identity in self.expires if identity[::2] == (port, source)}

    @rule(port=st.sampled_from(["real", "forged-1"]), source=st.sampled_from([SOURCE, ELSEWHERE]))
    def a_shutdown_frame_comes_in(self, port, source):
        if self.table.receive("eth0", frame(port, ttl=0, source=source), self.now) is FrameOutcome.SHUTDOWN:
            self.ended(port, source)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 29.0, 130.0, 310.0]))
    def wait(self, seconds):
        self.now += seconds
        self.table.expire(self.now)

    @rule()
    def carrier_is_lost(self):
        self.table.mark_stale("eth0")
        self.expires = dict.fromkeys(self.expires, 0.0)

    def live(self):
        return {identity for identity, end in self.expires.items() if end > self.now}

    @invariant()
    def the_switch_is_the_neighbor_while_it_is_live(self):
        self.table.expire(self.now)
        (first, *_) = self.table.neighbors()
        assert first.confirmed
        if SWITCH in self.live():
            assert identity_of(first) == SWITCH
            assert not first.stale or SWITCH in self.shut_down
            assert not first.contender

    @invariant()
    def the_facts_follow_from_what_was_heard(self):
        self.table.expire(self.now)
        assert len(list(self.table.entries())) <= CAPACITY
        facts = self.table.neighbors()
        assert {identity_of(one) for one in facts if not one.stale} <= self.live()
        confirmed = {identity_of(one) for one in facts if one.confirmed}
        assert all(self.frames[identity] >= 2 for identity in confirmed)
        if facts[0].confirmed and not facts[0].stale:
            assert {identity_of(one) for one in facts} == confirmed

    @invariant()
    def equal_revisions_mean_equal_facts(self):
        if self.seen[0] == self.table.revision:
            assert self.seen[1] == self.table.neighbors()
        self.seen = (self.table.revision, self.table.neighbors())

    @invariant()
    def the_next_expiry_is_never_late(self):
        due = self.table.next_expiry()
        for entry in self.table.entries():
            if not entry.neighbor.stale:
                assert due is not None
                assert due <= entry.expires

    def teardown(self):
        """After a flood the switch is back with its next frame: at most one interval later."""
        if hasattr(self, "table"):
            self.now += 30.0
            assert self.table.receive("eth0", REAL, self.now) is not FrameOutcome.FLOODED
            assert identity_of(self.table.neighbors()[0]) == SWITCH


def identity_of(neighbor: Neighbor) -> Identity:
    return (neighbor.port_id.value, neighbor.system_name, bytes.fromhex(neighbor.source.replace(":", "")))


TestAnyHistory = AnyHistory.TestCase


SUBINTERFACE = frame("swp1.100", system_name="leaf-1")
PORT = frame("swp1", system_name="leaf-1")


def by_turns(table: NeighborTable, rounds: int, at: float = 0.0) -> float:
    """Every 30 s the subinterface of a switch port sends, and then the port. Return the time after."""
    for _ in range(rounds):
        table.receive("eth0", SUBINTERFACE, at, tagged=True)
        table.receive("eth0", PORT, at + 1.0)
        at += 30.0
    return at


def test_a_port_comes_before_its_subinterface_that_was_there_first():
    table = NeighborTable()
    for second in range(0, DAY, 30):
        table.receive("eth0", SUBINTERFACE, float(second), tagged=True)
    assert ports(table)[0] == ("eth0", "swp1.100", False), "it is the neighbor while it is alone"
    table.receive("eth0", PORT, DAY + 0.0)
    assert ports(table)[0][1] == "swp1.100", "one frame may be a mistake"
    table.receive("eth0", PORT, DAY + 30.0)
    assert ports(table)[0][1] == "swp1"
    by_turns(table, 3, DAY + 60.0)
    assert [(one.port_id.value, one.contender) for one in table.neighbors()] == [
        ("swp1", False),
        ("swp1.100", False),
    ], "a subinterface of the switch is no contender"
    assert find_crowded(table.neighbors()) == ()


def test_a_subinterface_is_the_neighbor_only_while_the_port_is_not_live():
    table = NeighborTable()
    now = by_turns(table, 3)
    for _ in range(5):
        table.receive("eth0", SUBINTERFACE, now, tagged=True)
        now += 30.0
    table.expire(now)
    assert ports(table)[0] == ("eth0", "swp1.100", False)
    table.receive("eth0", PORT, now)
    assert ports(table)[0] == ("eth0", "swp1", False), "it was confirmed before"


def test_a_tagged_frame_of_another_chassis_is_a_contender():
    table = NeighborTable()
    other = frame("swp9", chassis=bytes.fromhex("020000000099"), source=bytes.fromhex("020000000098"))
    for second in range(0, 120, 30):
        table.receive("eth0", PORT, float(second))
        table.receive("eth0", other, second + 1.0, tagged=True)
    assert [(one.port_id.value, one.contender) for one in table.neighbors()] == [
        ("swp1", False),
        ("swp9", True),
    ]


def test_a_neighbor_that_sends_with_and_without_a_tag_is_untagged():
    table = NeighborTable()
    table.receive("eth0", PORT, 0.0)
    for second in range(1, 60, 30):
        table.receive("eth0", PORT, float(second), tagged=True)
    speak(table, frame("swp9"), 60.0)
    assert ports(table)[0][1] == "swp1"


def test_a_tag_that_the_kernel_leaves_in_the_frame_counts_and_a_priority_tag_does_not():
    for vlans, first in (((100,), "swp1"), ((7, 100), "swp1"), ((0,), "sub")):
        table = NeighborTable()
        speak(table, build_frame(NEAREST_BRIDGE, SOURCE, encode_lldpdu(pdu("sub")), vlans), 0.0)
        speak(table, frame("swp1"), 30.0)
        assert ports(table)[0][1] == first, vlans


def test_neighbors_are_equal_if_their_values_are_equal():
    one, other = NeighborTable(), NeighborTable()
    one.receive("eth0", frame("swp1"), 0.0)
    one.receive("eth1", frame("swp2"), 0.0)
    other.receive("eth1", frame("swp2"), 50.0)
    other.receive("eth0", frame("swp1"), 70.0)
    assert one.neighbors() == other.neighbors()
    assert structs.replace(one.neighbors()[0], stale=True) != other.neighbors()[0]
