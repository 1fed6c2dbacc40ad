"""Neighbors on real links: veth pairs in namespaces, with real lldpds as switches.

No test sleeps for an event: each step waits until the facts show it. lldpd sends changes at once and repeats
every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from nodeagent.facts.model import Neighbor, Remark
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.lldp import link_remarks
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, PortId
from nodeagent.lldp.lldpdu_codec import encode
from nodeagent.lldp.neighbor_table import CONFIRMING
from nodeagent.sources.lldp_receiver import PUBLISH_GAP_S, LldpReceiver
from nodeagent.sources.lldp_sender import NodeAnnouncement
from nodeagent.sources.lldp_source import run_receiver
from nodeagent.sources.source_settings import LinkSelect
from tests.support.namespaces import Lldpd, Netns, veth
from tests.support.waiting import LIMIT_S, until

pytestmark = pytest.mark.needs("root", "ip", "nsenter")
needs_lldpd = pytest.mark.needs("lldpd", "lldpcli")

OFTEN = ("configure lldp tx-interval 1",)
BRIEF = (*OFTEN, "configure lldp tx-hold 2")  # TTL 2


class Agent:
    """Records the published neighbors and remarks, and counts the publications."""

    def __init__(self) -> None:
        self.neighbors: tuple[Neighbor, ...] = ()
        self.remarks: tuple[Remark, ...] = ()
        self.publications = 0
        self.firsts: list[tuple[str | None, bool]] = []
        """Of each publication, the first neighbor: system name and stale."""
        self.contested = False
        """Some publication had a contender."""
        self.receiver: LldpReceiver
        self._changed = asyncio.Event()

    def publish(self, neighbors: tuple[Neighbor, ...], remarks: tuple[Remark, ...]) -> None:
        self.neighbors, self.remarks = neighbors, remarks
        self.publications += 1
        self.firsts += [(n.system_name, n.stale) for n in neighbors[:1]]
        self.contested = self.contested or any(n.contender for n in neighbors)
        self._changed.set()

    async def until(self, true: Callable[[], object], timeout_s: float = 20) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"still {self.neighbors} {self.remarks}") from None

    async def shows(self, *expected: tuple[str, str | None, bool], timeout_s: float = 20) -> None:
        """Until these are the neighbors: link, system name, stale."""
        await self.until(
            lambda: tuple((n.link, n.system_name, n.stale) for n in self.neighbors) == expected, timeout_s
        )


@contextlib.asynccontextmanager
async def running(
    ns: Netns,
    *netdevs: str,
    names: tuple[str, ...] = (),
    announcement: NodeAnnouncement | None = None,
    **times_s: float,
):
    """Run the receiver in a namespace. This thread and the threads that it starts are in the namespace too."""
    agent = Agent()
    with ns.entered(), LinkEvents() as events:
        agent.receiver = LldpReceiver(agent.publish, names=names, announcement=announcement, **times_s)
        working = asyncio.create_task(
            run_receiver(agent.receiver, LinkSelect(netdevs=netdevs), tuple, [events])
        )
        try:
            yield agent
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


@pytest.fixture
def wire() -> Iterator[tuple[Netns, Netns]]:
    with Netns() as near, Netns() as far:
        veth(near, "swp1", far, "b0")
        yield near, far


def announce(
    system_name: str, port: str = "swp1", chassis: bytes = b"\x02\0\0\0\0\1", ttl: int = 120, **fields
) -> bytes:
    pdu = Lldpdu(ChassisId(4, chassis), PortId(5, port.encode()), ttl, system_name=system_name, **fields)
    return build_frame(NEAREST_BRIDGE, chassis, encode(pdu))


# --- a real lldpd -------------------------------------------------------------------------------------------


@needs_lldpd
async def test_a_switch_is_discovered_with_all_its_values(wire):
    near, far = wire
    far.ip("addr add 192.0.2.17/32 dev b0")
    settings = (
        *OFTEN,
        "configure lldp portidsubtype local Ethernet17/1",
        "configure lldp portdescription 'node-7 rail 0'",
        "configure system description 'a switch'",
        "configure system ip management pattern 192.0.2.17",
    )
    with Lldpd(far, "leaf-1", settings=settings):
        async with running(near, "swp*") as agent:
            await agent.until(
                lambda: (
                    agent.neighbors
                    and agent.neighbors[0].port_description
                    and agent.neighbors[0].system_name == "leaf-1"
                )
            )
            one = agent.neighbors[0]
            assert one.link == "swp1"
            assert one.chassis_id.subtype == "mac"
            assert (one.port_id.subtype, one.port_id.value) == ("local", "Ethernet17/1")
            assert one.port_description == "node-7 rail 0"
            assert one.system_description == "a switch"
            assert one.management_addresses == ("192.0.2.17",)
            assert not one.stale


@pytest.mark.slow
@needs_lldpd
async def test_a_renamed_switch_is_the_neighbor_within_its_ttl_and_no_contender(wire):
    near, far = wire
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with running(near, "swp*") as agent:
            await agent.shows(("swp1", "leaf-1", False))
            agent.firsts.clear()
            switch.say("configure", "system", "hostname", "leaf-one")
            await agent.shows(("swp1", "leaf-one", False))
            assert list(dict.fromkeys(agent.firsts)) == [("leaf-1", False), ("leaf-one", False)]
            assert not agent.contested


@pytest.mark.slow
@needs_lldpd
async def test_a_moved_cable_shows_only_the_new_port(wire):
    near, far = wire
    with Netns() as other, Lldpd(far, "leaf-1", settings=BRIEF):
        async with running(near, "swp*") as agent:
            await agent.shows(("swp1", "leaf-1", False))
            old = agent.neighbors[0]
            far.ip(f"link set b0 netns {other.path}")
            await agent.shows(("swp1", "leaf-1", True))
            with Lldpd(other, "leaf-2", settings=OFTEN):
                other.ip("link set b0 up")
                await agent.shows(("swp1", "leaf-2", False))
            assert agent.neighbors[0].link == old.link


@pytest.mark.slow
@needs_lldpd
async def test_a_port_whose_id_changes_replaces_itself(wire):
    near, far = wire
    settings = (*BRIEF, "configure lldp portidsubtype local booting")
    with Lldpd(far, "sonic", settings=settings) as switch:
        async with running(near, "swp*") as agent:
            await agent.until(lambda: [n.port_id.value for n in agent.neighbors] == ["booting"])
            switch.say("configure", "lldp", "portidsubtype", "local", "etp1a")
            await agent.until(lambda: [n.port_id.value for n in agent.neighbors] == ["etp1a"])
            assert not agent.remarks


@pytest.mark.slow
@needs_lldpd
async def test_a_switch_that_shuts_down_is_stale_at_once(wire):
    near, far = wire
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with running(near, "swp*") as agent:
            await agent.shows(("swp1", "leaf-1", False))
            assert agent.receiver.entries("swp1")[0].pdu.ttl == 4
            switch.stop()
            await agent.shows(("swp1", "leaf-1", True))
            assert agent.receiver.counts("swp1")["shutdown"] >= 1


@pytest.mark.slow
@needs_lldpd
async def test_a_switch_that_fails_is_stale_after_its_ttl_and_live_when_it_is_back(wire):
    near, far = wire
    async with running(near, "swp*") as agent:
        with Lldpd(far, "leaf-1", settings=BRIEF) as switch:
            await agent.shows(("swp1", "leaf-1", False))
            await agent.until(lambda: agent.receiver.entries("swp1")[0].pdu.ttl == 2)
            switch.kill()
        received_at = agent.receiver.entries("swp1")[0].last_received
        await agent.shows(("swp1", "leaf-1", True))
        waited = asyncio.get_running_loop().time() - received_at
        assert 2.0 <= waited < 3.0
        with Lldpd(far, "leaf-1", settings=BRIEF):
            await agent.shows(("swp1", "leaf-1", False))


def forged(count: int = 40) -> list[bytes]:
    """Frames of as many switches, with the longest TTL."""
    return [announce(f"evil-{n}", f"p{n}", bytes((2, 0, 0, 0, 1, n)), ttl=65535) for n in range(count)]


@pytest.mark.slow
@needs_lldpd
async def test_forged_frames_never_take_the_place_of_a_switch_for_longer_than_it_is_away(wire):
    near, far = wire
    async with running(near, "swp*") as agent:
        with far.raw("b0") as forger:
            with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
                await agent.until(lambda: agent.neighbors and agent.neighbors[0].confirmed)
                await agent.shows(("swp1", "leaf-1", False))
                frames = agent.receiver.entries("swp1")[0].frames
                agent.firsts.clear()
                for frame in forged(20) * 2:
                    forger.send(frame)
                await agent.until(lambda: any(f.key == link_remarks.CROWDED for f in agent.remarks))
                async with asyncio.timeout(LIMIT_S):
                    while agent.receiver.entries("swp1")[0].frames < frames + 4:
                        for frame in forged():
                            forger.send(frame)
                        await asyncio.sleep(0.05)  # paces the flood; nothing is awaited with it
                assert set(agent.firsts) == {("leaf-1", False)}
                assert len(agent.neighbors) > 2
                switch.kill()
            # The switch boots: the TTL of its last frame ends, and only forged frames come in.
            await agent.until(lambda: agent.neighbors[0].system_name != "leaf-1")
            assert agent.neighbors[0].confirmed
            with Lldpd(far, "leaf-1", settings=OFTEN):
                await agent.until(lambda: agent.neighbors[0].system_name == "leaf-1")
                first = agent.receiver.entries("swp1")[0]
                assert not first.neighbor.stale
                assert first.frames - CONFIRMING <= 2, "its first frames make it the neighbor again"


@pytest.mark.slow
@needs_lldpd
async def test_a_new_switch_on_a_link_full_of_forged_neighbors_is_received_and_remains(wire):
    near, far = wire
    async with running(near, "swp*", ttl_max_s=5.0) as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as forger:
            for frame in (*forged(20), *forged()):
                forger.send(frame)
            await agent.until(lambda: len(agent.neighbors) > 2)
            with Lldpd(far, "leaf-1", settings=OFTEN):
                await agent.until(lambda: "leaf-1" in {n.system_name for n in agent.neighbors if n.confirmed})
                (entry,) = (e for e in agent.receiver.entries("swp1") if e.neighbor.system_name == "leaf-1")
                await agent.shows(("swp1", "leaf-1", False))
                assert agent.receiver.entries("swp1") == (entry,), "it has never left"


@pytest.mark.slow
@needs_lldpd
async def test_33_links_have_neighbors_at_the_same_time():
    with Netns() as near, Netns() as far:
        for number in range(33):
            veth(near, f"swp{number}", far, f"b{number}")
        with Lldpd(far, "leaf-1", settings=OFTEN):
            async with running(near, "swp*") as agent:
                links = {f"swp{number}" for number in range(33)}
                await agent.until(lambda: {n.link for n in agent.neighbors} == links, 40)
                await agent.until(lambda: {n.system_name for n in agent.neighbors} == {"leaf-1"})
                assert len({n.port_id for n in agent.neighbors}) == 33
                assert not agent.remarks


@needs_lldpd
async def test_two_switches_behind_one_bridge_are_two_neighbors_and_a_remark():
    with Netns() as near, Netns() as between, Netns() as one, Netns() as two:
        veth(near, "swp1", between, "port0")
        veth(one, "b0", between, "port1")
        veth(two, "b0", between, "port2")
        between.ip("""link add br0 type bridge group_fwd_mask 0x4000
                      link set br0 up
                      link set port0 master br0
                      link set port1 master br0
                      link set port2 master br0""")
        with Lldpd(one, "leaf-1", settings=OFTEN), Lldpd(two, "leaf-2", settings=OFTEN):
            async with running(near, "swp*") as agent:
                await agent.until(lambda: {n.system_name for n in agent.neighbors} == {"leaf-1", "leaf-2"})
                await agent.until(
                    lambda: [(f.link, f.key) for f in agent.remarks] == [("swp1", link_remarks.CROWDED)]
                )
                assert "leaf-1" in agent.remarks[0].detail
                assert "leaf-2" in agent.remarks[0].detail


@needs_lldpd
async def test_the_sender_announces_the_node_and_sends_a_shutdown_frame(wire):
    near, far = wire
    own = NodeAnnouncement("node-7", "nodeagent", ("192.0.2.7", "2001:db8::7"))
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with running(near, "swp*", announcement=own, names=("node-7",)) as agent:
            await agent.shows(("swp1", "leaf-1", False))
            output = await shown(switch, "node-7")
            assert "ifname swp1" in output
            assert "TTL:          120" in output
            assert "192.0.2.7" in output
            assert "2001:db8::7" in output
            assert "Station, on" in output
        assert "node-7" not in switch.say("show", "neighbors", "details")


async def shown(switch: Lldpd, text: str) -> str:
    """The output of lldpcli once it contains the text; lldpcli has no event to wait for, so it is polled."""
    async with asyncio.timeout(20):
        while text not in (output := await asyncio.to_thread(switch.say, "show", "neighbors", "details")):
            await asyncio.sleep(0.05)
    return output


# --- netdevs that come and go ---------------------------------------------------------------------------


async def test_link_down_nic_moved_and_nic_returned(wire):
    near, far = wire
    with Netns() as pod:
        async with running(near, "swp*") as agent:
            with far.raw("b0") as switch:
                await has_socket(agent, "swp1")
                switch.send(announce("leaf-1"))
                await agent.shows(("swp1", "leaf-1", False))

                far.ip("link set b0 down")
                await agent.shows(("swp1", "leaf-1", True))
                far.ip("link set b0 up")
                switch_again = far.raw("b0")
                switch_again.send(announce("leaf-1"))
                switch_again.close()
                await agent.shows(("swp1", "leaf-1", False))

                near.ip(f"link set swp1 netns {pod.path}")
                await agent.shows(("swp1", "leaf-1", True))
                assert agent.receiver.links["swp1"].socket is None

                pod.ip(f"link set swp1 netns {near.path}")
                near.ip("link set swp1 up")
                await has_socket(agent, "swp1")
                with far.raw("b0") as back:
                    back.send(announce("leaf-1"))
                    await agent.shows(("swp1", "leaf-1", False))


async def has_socket(agent: Agent, link: str) -> None:
    """Wait until a socket is bound to the link. No fact shows sockets."""

    def bound() -> bool:
        found = agent.receiver.links.get(link)
        return found is not None and found.socket is not None and found.socket.bound

    await until(bound)


async def test_a_renamed_link_keeps_its_neighbor_and_two_links_may_swap_names(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp2")
        with far.raw("b0") as one, far.raw("b1") as two:
            one.send(announce("leaf-1", "swp1"))
            two.send(announce("leaf-2", "swp2"))
            await agent.shows(("swp1", "leaf-1", False), ("swp2", "leaf-2", False))
            near.ip("""link set swp1 down
                       link set swp2 down
                       link set swp1 name away
                       link set swp2 name swp1
                       link set away name swp2
                       link set swp1 up
                       link set swp2 up""")
            await agent.until(lambda: [n.system_name for n in agent.neighbors] == ["leaf-2", "leaf-1"])
            one.send(announce("leaf-1", "swp1"))
            two.send(announce("leaf-2", "swp2"))
            await agent.shows(("swp1", "leaf-2", False), ("swp2", "leaf-1", False))


async def test_a_link_receives_while_it_is_a_port_of_a_bridge_and_afterwards(wire):
    near, far = wire
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1"))
            await agent.shows(("swp1", "leaf-1", False))
            near.ip("""link add br0 type bridge group_fwd_mask 0x4000
                       link set br0 up
                       link set swp1 master br0""")
            for enslaved in (True, False):
                await until(lambda wanted=enslaved: agent.receiver.links["swp1"].enslaved == wanted)
                switch.send(announce("leaf-1", port_description=str(enslaved)))
                await agent.until(lambda wanted=str(enslaved): agent.neighbors[0].port_description == wanted)
                near.ip("link set swp1 nomaster")


@pytest.mark.parametrize("enslaved", [False, True])
async def test_a_switch_whose_frames_have_two_vlan_tags_is_the_neighbor(wire, enslaved):
    near, far = wire
    if enslaved:
        near.ip("""link add br0 type bridge
                   link set swp1 master br0""")
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        frame = announce("leaf-1")
        with far.raw("b0") as switch:
            switch.send(frame[:12] + b"\x88\xa8\0\7\x81\0\0\x64" + frame[12:])
            await agent.shows(("swp1", "leaf-1", False))
            assert agent.receiver.entries("swp1")[0].frames == 1, "it is received once"


async def test_a_netdev_added_later_receives_only_if_it_is_selected(wire):
    near, far = wire
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        veth(near, "eno1", far, "b1")
        veth(near, "swp9", far, "b9")
        await has_socket(agent, "swp9")
        with far.raw("b1") as other, far.raw("b9") as switch:
            other.send(announce("office"))
            switch.send(announce("leaf-9"))
            await agent.shows(("swp9", "leaf-9", False))


async def test_a_new_netdev_with_an_old_ifindex_does_not_get_the_old_neighbor(wire):
    near, far = wire
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        index = near.ifindex("swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1"))
            await agent.shows(("swp1", "leaf-1", False))
        near.ip(f"""link del swp1
                    link add swp2 index {index} type veth peer name b2 netns {far.path}
                    link set swp2 up""")
        far.ip("link set b2 up")
        await has_socket(agent, "swp2")
        with far.raw("b2") as switch:
            switch.send(announce("leaf-2", chassis=b"\x02\0\0\0\0\2"))
            await agent.shows(("swp1", "leaf-1", True), ("swp2", "leaf-2", False))


# --- remarks ------------------------------------------------------------------------------------------


async def test_the_nodes_own_frames_are_not_a_neighbor(wire):
    near, far = wire
    near.ip("link set swp1 address 02:00:00:00:00:77")
    async with running(near, "swp*", names=("node-7",)) as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("us", chassis=bytes.fromhex("020000000077")))
            switch.send(announce("node-7"))
            await agent.shows(("swp1", "node-7", False))  # a switch may have the name of a node
        assert agent.receiver.counts("swp1")["own"] == 1


async def test_a_frame_size_below_our_mtu_is_a_remark_until_it_is_corrected(wire):
    near, far = wire
    near.ip("link set swp1 mtu 9000")
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1", maximum_frame_size=1518))
            await agent.until(lambda: [f.key for f in agent.remarks] == [link_remarks.FRAME_SIZE])
            assert (
                agent.remarks[0].detail
                == "MTU 9000 here, but leaf-1 swp1 takes frames of at most 1518 octets"
            )
            near.ip("link set swp1 mtu 1500")
            await agent.until(lambda: not agent.remarks)


async def test_a_link_with_carrier_and_no_lldp_is_a_remark_until_a_frame_arrives(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    far.ip("link set b1 down")
    async with running(near, "swp*", no_neighbor_after_s=0.3) as agent:
        await agent.until(
            lambda: [(f.link, f.key) for f in agent.remarks] == [("swp1", link_remarks.NO_NEIGHBOR)]
        )
        far.ip("link set b1 up")
        await agent.until(lambda: [f.link for f in agent.remarks] == ["swp1", "swp2"])
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1", ttl=1))
            await agent.until(lambda: [f.link for f in agent.remarks] == ["swp2"])
            await agent.shows(("swp1", "leaf-1", True))
            await agent.until(lambda: [f.link for f in agent.remarks] == ["swp1", "swp2"])


async def test_a_link_with_malformed_frames_has_a_remark_with_the_reason(wire):
    near, far = wire
    async with running(near, "swp*", no_neighbor_after_s=0.3) as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1")[:14] + bytes(46))
            await agent.until(lambda: "are malformed (" in "".join(f.detail for f in agent.remarks))


async def test_a_neighbor_with_a_mac_of_this_node_is_removed(wire):
    """A VF that is made later has the MAC of a received frame."""
    near, far = wire
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("us", chassis=b"\x02\0\0\0\0\x99"))
            await agent.shows(("swp1", "us", False))
            near.ip("link add vf0 address 02:00:00:00:00:99 type bridge")
            await agent.shows()


async def test_a_link_with_only_own_frames_has_a_remark_while_they_arrive(wire):
    near, far = wire
    async with running(near, "swp*", names=("node-7",), no_neighbor_after_s=0.5) as agent:
        await has_socket(agent, "swp1")
        with far.raw("b0") as switch:
            ours = Lldpdu(ChassisId(7, b"node-7"), PortId(5, b"swp1"), 120, system_name="node-7")
            frame = build_frame(NEAREST_BRIDGE, b"\2\0\0\0\0\1", encode(ours))

            async def send_often() -> None:
                while True:
                    switch.send(frame)
                    await asyncio.sleep(0.1)

            for _ in range(2):
                sending = asyncio.create_task(send_often())
                await agent.until(lambda: [f.key for f in agent.remarks] == [link_remarks.OWN_FRAMES])
                sending.cancel()
                await agent.until(lambda: [f.key for f in agent.remarks] == [link_remarks.NO_NEIGHBOR])


@needs_lldpd
async def test_a_renamed_link_sends_a_shutdown_frame_for_its_old_name(wire):
    near, far = wire
    own = NodeAnnouncement("node-7", "nodeagent", ())
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with running(near, "swp*", announcement=own) as agent:
            await agent.shows(("swp1", "leaf-1", False))
            assert "ifname swp1" in await shown(switch, "node-7")
            near.ip("link set swp1 name swp7")  # up as it is, which Linux allows since 6.2
            assert "ifname swp1" not in await shown(switch, "ifname swp7")


async def test_one_port_received_on_two_links_is_a_remark_on_both(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp2")
        with far.raw("b0") as one, far.raw("b1") as two:
            one.send(announce("leaf-1"))
            two.send(announce("leaf-1"))
            both = [("swp1", link_remarks.DUPLICATE), ("swp2", link_remarks.DUPLICATE)]
            await agent.until(lambda: [(f.link, f.key) for f in agent.remarks] == both)


async def test_a_flooded_link_does_not_delay_the_other_links_and_the_loop(wire):
    """Different frames, valid and malformed, at full speed."""
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with running(near, "swp*") as agent:
        await has_socket(agent, "swp2")
        with far.raw("b0") as hostile, far.raw("b1") as switch:
            lags = []
            for number in range(20):
                for other in range(250):
                    hostile.send(
                        announce(f"evil-{number}-{other}", f"p{other}", bytes((2, 0, 0, 0, number, other)))
                    )
                    hostile.send(build_frame(NEAREST_BRIDGE, b"\x02" * 6, bytes((other,)) * 200))
                began = time.monotonic()
                switch.send(announce(f"leaf-{number}"))
                await agent.until(
                    lambda name=f"leaf-{number}": name in {n.system_name for n in agent.neighbors}
                )
                lags.append(time.monotonic() - began)
        assert max(lags) < 0.5
        assert len([e for e in agent.receiver.table.entries() if e.neighbor.link == "swp1"]) == 32
        assert agent.publications < 20 + (sum(lags) + 20) / PUBLISH_GAP_S
        assert link_remarks.FLOODED in {f.key for f in agent.remarks if f.link == "swp1"}
        counts = agent.receiver.counts("swp1")
        assert counts["flooded"] > 0
        assert sum(counts.values()) <= 10_000
