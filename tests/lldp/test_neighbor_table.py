"""The neighbor table: neighbors, their TTLs, and the bounds on a hostile link."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, ManagementAddress, Pfc, PortId
from nodeagent.lldp.lldpdu_codec import encode
from nodeagent.lldp.neighbor_table import (
    CAPACITY,
    DECODES_PER_SECOND,
    FrameOutcome,
    NeighborTable,
    OwnIdentity,
    find_crowded,
    find_duplicates,
)
from nodeagent.model import Identifier, Neighbor

SOURCE = bytes.fromhex("1c34da1c5801")
CHASSIS = bytes.fromhex("1c34da1c5800")


def pdu(port: str = "swp1", *, chassis: bytes = CHASSIS, ttl: int = 120, **rest) -> Lldpdu:
    return Lldpdu(ChassisId(4, chassis), PortId(5, port.encode()), ttl, **rest)


def frame(port: str = "swp1", *, source: bytes = SOURCE, **rest) -> bytes:
    return build_frame(NEAREST_BRIDGE, source, encode(pdu(port, **rest)))


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
        ),
    )


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


def test_a_changed_name_changes_the_fact_and_keeps_the_neighbor():
    table = NeighborTable()
    table.receive("eth0", frame(system_name="a"), 0.0)
    assert table.receive("eth0", frame(system_name="b"), 1.0) is FrameOutcome.CHANGED
    assert [one.system_name for one in table.neighbors()] == ["b"]
    assert [entry.first_received for entry in table.entries()] == [0.0]


def test_an_earlier_frame_that_returns_is_a_change():
    table = NeighborTable()
    table.receive("eth0", frame(system_name="a"), 0.0)
    table.receive("eth0", frame(system_name="b"), 1.0)
    assert table.receive("eth0", frame(system_name="a"), 2.0) is FrameOutcome.CHANGED
    assert [one.system_name for one in table.neighbors()] == ["a"]


def test_a_neighbor_marked_stale_does_not_remove_another():
    table = NeighborTable()
    table.receive("eth0", frame("swp1", ttl=5), 0.0)
    table.receive("eth0", frame("swp2", ttl=120), 0.0)
    table.mark_stale("eth0")
    table.expire(60.0)
    assert ports(table) == [("eth0", "swp1", True), ("eth0", "swp2", True)]


def test_a_shutdown_frame_removes_the_neighbor_at_once():
    table = NeighborTable()
    table.receive("eth0", frame(), 0.0)
    assert table.receive("eth0", frame(ttl=0), 1.0) is FrameOutcome.SHUTDOWN
    assert table.neighbors() == ()
    assert table.receive("eth0", frame(ttl=0), 1.0) is FrameOutcome.SHUTDOWN
    assert table.receive("eth0", frame(), 2.0) is FrameOutcome.NEW


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
    assert table.receive("eth0", frame(system_name="new"), 501.0) is FrameOutcome.CHANGED
    assert [(one.system_name, one.stale) for one in table.neighbors()] == [("new", False)]


def test_a_moved_cable_shows_the_new_port_and_removes_the_stale_one():
    table = NeighborTable()
    table.receive("eth0", frame("swp1"), 0.0)
    table.expire(130.0)
    table.receive("eth0", frame("swp2"), 131.0)
    assert ports(table) == [("eth0", "swp2", False)]


def test_a_port_renamed_at_boot_is_listed_twice_until_the_old_name_expires():
    table = NeighborTable()
    table.receive("eth0", frame("Ethernet0"), 0.0)
    table.receive("eth0", frame("Eth1/1"), 30.0)
    assert ports(table) == [("eth0", "Eth1/1", False), ("eth0", "Ethernet0", False)]
    assert find_crowded(table.neighbors()) == ()
    table.expire(120.0)
    assert ports(table) == [("eth0", "Eth1/1", False)]


def test_neighbors_marked_stale_return_one_by_one():
    table = NeighborTable()
    other = bytes.fromhex("1c34da1c6600")
    table.receive("eth0", frame("swp1"), 0.0)
    table.receive("eth0", frame("swp9", chassis=other), 0.0)
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


def test_a_full_link_refuses_and_counts_new_neighbors_and_keeps_the_known_ones():
    table = NeighborTable()
    for n in range(CAPACITY):
        assert table.receive("eth0", frame(f"p{n}"), 0.0) is FrameOutcome.NEW
    facts = table.neighbors()
    assert table.receive("eth0", frame("one too many"), 1.0) is FrameOutcome.REFUSED
    assert table.neighbors() is facts
    assert table.counts("eth0")[FrameOutcome.REFUSED] == 1
    assert table.receive("eth0", frame("p7"), 1.0) is FrameOutcome.REFRESHED
    assert table.receive("eth1", frame("another link"), 1.0) is FrameOutcome.NEW


def test_a_full_link_replaces_a_stale_neighbor():
    table = NeighborTable()
    for n in range(CAPACITY):
        table.receive("eth0", frame(f"p{n:02}"), n / 100)
    table.mark_stale("eth0")
    assert table.receive("eth0", frame("new"), 10.0) is FrameOutcome.NEW
    names = [port for _, port, _ in ports(table)]
    assert len(names) == CAPACITY
    assert "p00" not in names


@pytest.mark.parametrize(
    "reflection",
    [
        frame(source=bytes.fromhex("020000000001")),
        frame(chassis=bytes.fromhex("020000000001")),
        build_frame(
            NEAREST_BRIDGE,
            SOURCE,
            encode(Lldpdu(ChassisId(7, b"x"), PortId(3, bytes.fromhex("020000000001")), 120)),
        ),
        frame(system_name="node-1\0"),
    ],
    ids=["source", "chassis", "port", "name"],
)
def test_a_frame_with_our_own_identity_is_not_a_neighbor(reflection):
    table = NeighborTable(OwnIdentity(frozenset((bytes.fromhex("020000000001"),)), frozenset(("node-1",))))
    assert table.receive("eth0", reflection, 0.0) is FrameOutcome.OWN
    assert table.neighbors() == ()
    assert table.receive("eth0", frame(system_name="node-10"), 0.0) is FrameOutcome.NEW


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
    assert table.receive("eth0", frame("swp1", system_name="leaf-b"), 3.0) is FrameOutcome.CHANGED


def test_one_port_on_two_links_is_a_duplicate_until_one_is_stale():
    table = NeighborTable()
    for link in ("eth0", "eth1"):
        table.receive(link, frame("swp1"), 0.0)
    table.receive("eth2", frame("swp3"), 0.0)
    assert [[one.link for one in group] for group in find_duplicates(table.neighbors())] == [["eth0", "eth1"]]
    table.mark_stale("eth0")
    assert find_duplicates(table.neighbors()) == ()


def test_two_chassis_on_one_link_are_crowded():
    table = NeighborTable()
    table.receive("eth0", frame("swp1"), 0.0)
    table.receive("eth0", frame("swp1", chassis=bytes(6)), 0.0)
    table.receive("eth1", frame("swp2"), 0.0)
    assert [[one.link for one in group] for group in find_crowded(table.neighbors())] == [["eth0", "eth0"]]


@given(st.lists(st.binary(max_size=80) | st.just(frame()), max_size=20))
def test_any_frames_get_an_outcome(frames):
    table = NeighborTable()
    for n, each in enumerate(frames):
        assert table.receive("eth0", each, float(n)) in FrameOutcome


class AnyHistory(RuleBasedStateMachine):
    """Any order of frames keeps the invariants of the table."""

    @initialize()
    def begin(self):
        self.table = NeighborTable()
        self.now = 0.0
        self.last: dict[tuple[str, str], tuple[float, int]] = {}
        self.seen: tuple[int, tuple[Neighbor, ...]] = (0, ())

    @rule(
        link=st.sampled_from(["eth0", "eth1"]),
        port=st.integers(0, 40),
        ttl=st.sampled_from([0, 1, 5, 120]),
        name=st.sampled_from([None, "a", "b"]),
    )
    def hear(self, link, port, ttl, name):
        outcome = self.table.receive(link, frame(f"p{port}", ttl=ttl, system_name=name), self.now)
        if outcome in (FrameOutcome.NEW, FrameOutcome.CHANGED, FrameOutcome.REFRESHED):
            self.last[link, f"p{port}"] = (self.now, ttl)
        elif outcome is FrameOutcome.SHUTDOWN:
            self.last.pop((link, f"p{port}"), None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 130.0]))
    def wait(self, seconds):
        self.now += seconds
        self.table.expire(self.now)

    @rule(link=st.sampled_from(["eth0", "eth1"]))
    def lose_neighbor(self, link):
        self.table.mark_stale(link)

    @invariant()
    def the_facts_follow_from_what_was_heard(self):
        facts = self.table.neighbors()
        for link, group in itertools.groupby(facts, lambda one: one.link):
            members = list(group)
            assert len(members) <= CAPACITY
            past = [one for one in members if sum(self.last[link, one.port_id.value]) <= self.now]
            assert all(one.stale for one in past)
            if past:
                assert all(one.stale for one in members)
        live = {(one.link, one.port_id.value) for one in facts if not one.stale}
        assert live <= {key for key, (at, ttl) in self.last.items() if at + ttl > self.now}

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


TestAnyHistory = AnyHistory.TestCase


def test_neighbors_are_equal_if_their_values_are_equal():
    one, other = NeighborTable(), NeighborTable()
    one.receive("eth0", frame("swp1"), 0.0)
    one.receive("eth1", frame("swp2"), 0.0)
    other.receive("eth1", frame("swp2"), 50.0)
    other.receive("eth0", frame("swp1"), 70.0)
    assert one.neighbors() == other.neighbors()
    assert structs.replace(one.neighbors()[0], stale=True) != other.neighbors()[0]
