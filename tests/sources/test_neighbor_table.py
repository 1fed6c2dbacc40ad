"""The neighbors of real links: veth pairs in namespaces, with real lldpds as the switches.

Nothing here sleeps for an event: each step waits until the facts show it. lldpd says what is new at once
and repeats it every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.lldp import link_remarks
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.tlv import encode
from nodeagent.lldp.values import ChassisId, Lldpdu, PortId
from nodeagent.model import Finding, Neighbor
from nodeagent.sources.lldp_receiver import GAP_S, Ear
from nodeagent.sources.lldp_sender import Announcement
from nodeagent.sources.neighbor_table import watch
from nodeagent.sources.source_settings import LinkSelect
from tests.support.namespaces import Lldpd, Netns, veth

pytestmark = pytest.mark.needs("root", "ip", "nsenter")
needs_lldpd = pytest.mark.needs("lldpd", "lldpcli")

OFTEN = ("configure lldp tx-interval 1",)
BRIEF = (*OFTEN, "configure lldp tx-hold 2")  # TTL 2


class Agent:
    """What the rest of the agent is told, and how often."""

    def __init__(self) -> None:
        self.neighbors: tuple[Neighbor, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        self.told = 0
        self.ear: Ear
        self._changed = asyncio.Event()

    def state(self, neighbors: tuple[Neighbor, ...], found: tuple[Finding, ...]) -> None:
        self.neighbors, self.findings = neighbors, found
        self.told += 1
        self._changed.set()

    async def until(self, true: Callable[[], object], timeout_s: float = 20) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"still {self.neighbors} {self.findings}") from None

    async def sees(self, *expected: tuple[str, str | None, bool], timeout_s: float = 20) -> None:
        """Until these are the neighbors: link, system name, stale."""
        await self.until(
            lambda: tuple((n.link, n.system_name, n.stale) for n in self.neighbors) == expected, timeout_s
        )


@contextlib.asynccontextmanager
async def agent(
    ns: Netns,
    *netdevs: str,
    names: tuple[str, ...] = (),
    announcement: Announcement | None = None,
    silent_after_s: float = link_remarks.SILENT_AFTER_S,
):
    """The source at work in a namespace. This thread is in it meanwhile, and so are the threads it starts."""
    told = Agent()
    with ns.entered(), LinkEvents() as events:
        told.ear = Ear(told.state, names=names, announcement=announcement, silent_after_s=silent_after_s)
        working = asyncio.create_task(watch(told.ear, LinkSelect(netdevs=netdevs), tuple, [events]))
        try:
            yield told
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
async def test_a_switch_is_discovered_with_all_it_says(wire):
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
        async with agent(near, "swp*") as told:
            await told.until(
                lambda: (
                    told.neighbors
                    and told.neighbors[0].port_description
                    and told.neighbors[0].system_name == "leaf-1"
                )
            )
            one = told.neighbors[0]
            assert one.link == "swp1"
            assert one.chassis_id.subtype == "mac"
            assert (one.port_id.subtype, one.port_id.value) == ("local", "Ethernet17/1")
            assert one.port_description == "node-7 rail 0"
            assert one.system_description == "a switch"
            assert one.management_addresses == ("192.0.2.17",)
            assert not one.stale


@needs_lldpd
async def test_a_change_of_system_name_is_one_change_of_one_neighbor(wire):
    near, far = wire
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with agent(near, "swp*") as told:
            await told.sees(("swp1", "leaf-1", False))
            told_before = told.told
            switch.say("configure", "system", "hostname", "leaf-one")
            await told.sees(("swp1", "leaf-one", False))
            assert told.told == told_before + 1


@needs_lldpd
async def test_a_cable_that_is_moved_to_another_port_shows_the_new_port_alone(wire):
    near, far = wire
    with Netns() as other, Lldpd(far, "leaf-1", settings=BRIEF):
        async with agent(near, "swp*") as told:
            await told.sees(("swp1", "leaf-1", False))
            old = told.neighbors[0]
            far.ip(f"link set b0 netns {other.path}")
            await told.sees(("swp1", "leaf-1", True))
            with Lldpd(other, "leaf-2", settings=OFTEN):
                other.ip("link set b0 up")
                await told.sees(("swp1", "leaf-2", False))
            assert told.neighbors[0].link == old.link


@needs_lldpd
async def test_a_port_whose_id_changes_replaces_itself(wire):
    near, far = wire
    settings = (*BRIEF, "configure lldp portidsubtype local booting")
    with Lldpd(far, "sonic", settings=settings) as switch:
        async with agent(near, "swp*") as told:
            await told.until(lambda: [n.port_id.value for n in told.neighbors] == ["booting"])
            switch.say("configure", "lldp", "portidsubtype", "local", "etp1a")
            await told.until(lambda: [n.port_id.value for n in told.neighbors] == ["etp1a"])
            assert not told.findings


@needs_lldpd
async def test_a_switch_that_shuts_down_is_gone_at_once(wire):
    near, far = wire
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with agent(near, "swp*") as told:
            await told.sees(("swp1", "leaf-1", False))
            assert told.ear.entries("swp1")[0].pdu.ttl == 4
            switch.stop()
            await told.sees()
            assert told.ear.counts("swp1")["shutdown"] >= 1


@needs_lldpd
async def test_a_switch_that_dies_is_stale_when_its_ttl_has_passed_and_live_when_it_is_back(wire):
    near, far = wire
    async with agent(near, "swp*") as told:
        with Lldpd(far, "leaf-1", settings=BRIEF) as switch:
            await told.sees(("swp1", "leaf-1", False))
            await told.until(lambda: told.ear.entries("swp1")[0].pdu.ttl == 2)
            switch.kill()
        heard_at = told.ear.entries("swp1")[0].last_heard
        await told.sees(("swp1", "leaf-1", True))
        waited = asyncio.get_running_loop().time() - heard_at
        assert 2.0 <= waited < 3.0
        with Lldpd(far, "leaf-1", settings=BRIEF):
            await told.sees(("swp1", "leaf-1", False))


@needs_lldpd
async def test_33_links_are_heard_at_once():
    with Netns() as near, Netns() as far:
        for number in range(33):
            veth(near, f"swp{number}", far, f"b{number}")
        with Lldpd(far, "leaf-1", settings=OFTEN):
            async with agent(near, "swp*") as told:
                links = {f"swp{number}" for number in range(33)}
                await told.until(lambda: {n.link for n in told.neighbors} == links, 40)
                await told.until(lambda: {n.system_name for n in told.neighbors} == {"leaf-1"})
                assert len({n.port_id for n in told.neighbors}) == 33
                assert not told.findings


@needs_lldpd
async def test_two_switches_behind_one_bridge_are_two_neighbors_and_a_finding():
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
            async with agent(near, "swp*") as told:
                await told.until(lambda: {n.system_name for n in told.neighbors} == {"leaf-1", "leaf-2"})
                await told.until(
                    lambda: [(f.link, f.key) for f in told.findings] == [("swp1", link_remarks.CROWDED)]
                )
                assert "leaf-1" in told.findings[0].detail
                assert "leaf-2" in told.findings[0].detail


@needs_lldpd
async def test_whoever_is_asked_to_announces_the_node_and_takes_leave(wire):
    near, far = wire
    says = Announcement("node-7", "nodeagent", ("192.0.2.7", "2001:db8::7"))
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with agent(near, "swp*", announcement=says, names=("node-7",)) as told:
            await told.sees(("swp1", "leaf-1", False))
            shown = await shows(switch, "node-7")
            assert "ifname swp1" in shown
            assert "TTL:          120" in shown
            assert "192.0.2.7" in shown
            assert "2001:db8::7" in shown
            assert "Station, on" in shown
        assert "node-7" not in switch.say("show", "neighbors", "details")


async def shows(switch: Lldpd, text: str) -> str:
    """What lldpd knows, once this is among it: it has no facts to wait for, so it is asked."""
    async with asyncio.timeout(20):
        while text not in (shown := await asyncio.to_thread(switch.say, "show", "neighbors", "details")):
            await asyncio.sleep(0.05)
    return shown


# --- netdevs that come and go ---------------------------------------------------------------------------


async def test_link_down_nic_moved_and_nic_returned(wire):
    near, far = wire
    with Netns() as pod:
        async with agent(near, "swp*") as told:
            with far.raw("b0") as switch:
                await listening(told, "swp1")
                switch.send(announce("leaf-1"))
                await told.sees(("swp1", "leaf-1", False))

                far.ip("link set b0 down")
                await told.sees(("swp1", "leaf-1", True))
                far.ip("link set b0 up")
                switch_again = far.raw("b0")
                switch_again.send(announce("leaf-1"))
                switch_again.close()
                await told.sees(("swp1", "leaf-1", False))

                near.ip(f"link set swp1 netns {pod.path}")
                await told.sees(("swp1", "leaf-1", True))
                assert told.ear.lines["swp1"].receiver is None

                pod.ip(f"link set swp1 netns {near.path}")
                near.ip("link set swp1 up")
                await listening(told, "swp1")
                with far.raw("b0") as back:
                    back.send(announce("leaf-1"))
                    await told.sees(("swp1", "leaf-1", False))


async def listening(told: Agent, link: str) -> None:
    """Until a socket is bound to the link. Sockets are no facts: this one thing is polled."""
    async with asyncio.timeout(10):
        while not (line := told.ear.lines.get(link)) or line.receiver is None or not line.receiver.bound:
            await asyncio.sleep(0.01)


async def test_a_rename_takes_the_neighbor_along_and_two_names_may_be_swapped(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with agent(near, "swp*") as told:
        await listening(told, "swp2")
        with far.raw("b0") as one, far.raw("b1") as two:
            one.send(announce("leaf-1", "swp1"))
            two.send(announce("leaf-2", "swp2"))
            await told.sees(("swp1", "leaf-1", False), ("swp2", "leaf-2", False))
            near.ip("""link set swp1 down
                       link set swp2 down
                       link set swp1 name away
                       link set swp2 name swp1
                       link set away name swp2
                       link set swp1 up
                       link set swp2 up""")
            await told.until(lambda: [n.system_name for n in told.neighbors] == ["leaf-2", "leaf-1"])
            one.send(announce("leaf-1", "swp1"))
            two.send(announce("leaf-2", "swp2"))
            await told.sees(("swp1", "leaf-2", False), ("swp2", "leaf-1", False))


async def test_a_link_that_becomes_a_port_of_a_bridge_is_heard_on_and_so_it_is_when_it_leaves(wire):
    near, far = wire
    async with agent(near, "swp*") as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1"))
            await told.sees(("swp1", "leaf-1", False))
            near.ip("""link add br0 type bridge group_fwd_mask 0x4000
                       link set br0 up
                       link set swp1 master br0""")
            for enslaved in (True, False):
                async with asyncio.timeout(10):
                    while told.ear.lines["swp1"].enslaved != enslaved:
                        await asyncio.sleep(0.01)
                switch.send(announce(f"leaf-{enslaved}"))
                await told.sees(("swp1", f"leaf-{enslaved}", False))
                near.ip("link set swp1 nomaster")


async def test_a_netdev_plugged_in_later_is_heard_and_one_of_another_name_is_not(wire):
    near, far = wire
    async with agent(near, "swp*") as told:
        await listening(told, "swp1")
        veth(near, "eno1", far, "b1")
        veth(near, "swp9", far, "b9")
        await listening(told, "swp9")
        with far.raw("b1") as other, far.raw("b9") as switch:
            other.send(announce("office"))
            switch.send(announce("leaf-9"))
            await told.sees(("swp9", "leaf-9", False))


async def test_a_later_netdev_with_the_same_ifindex_has_no_neighbor_of_the_old_ones(wire):
    near, far = wire
    async with agent(near, "swp*") as told:
        await listening(told, "swp1")
        index = near.ifindex("swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1"))
            await told.sees(("swp1", "leaf-1", False))
        near.ip(f"""link del swp1
                    link add swp2 index {index} type veth peer name b2 netns {far.path}
                    link set swp2 up""")
        far.ip("link set b2 up")
        await listening(told, "swp2")
        with far.raw("b2") as switch:
            switch.send(announce("leaf-2", chassis=b"\x02\0\0\0\0\2"))
            await told.sees(("swp1", "leaf-1", True), ("swp2", "leaf-2", False))


# --- judgments ------------------------------------------------------------------------------------------


async def test_what_we_say_ourselves_is_no_neighbor(wire):
    near, far = wire
    async with agent(near, "swp*", names=("node-7",)) as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("node-7"))
            switch.send(announce("leaf-1"))
            await told.sees(("swp1", "leaf-1", False))
        assert told.ear.counts("swp1")["own"] == 1


async def test_a_switch_port_with_smaller_frames_than_our_mtu_is_a_finding_until_it_is_set_right(wire):
    near, far = wire
    near.ip("link set swp1 mtu 9000")
    async with agent(near, "swp*") as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1", maximum_frame_size=1518))
            await told.until(lambda: [f.key for f in told.findings] == [link_remarks.FRAME_SIZE])
            assert told.findings[0].detail == "MTU 9000 here, frames of at most 1518 octets at leaf-1 swp1"
            near.ip("link set swp1 mtu 1500")
            await told.until(lambda: not told.findings)


async def test_a_link_with_carrier_that_hears_nothing_is_a_finding_until_somebody_speaks(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    far.ip("link set b1 down")
    async with agent(near, "swp*", silent_after_s=0.3) as told:
        await told.until(lambda: [(f.link, f.key) for f in told.findings] == [("swp1", link_remarks.SILENT)])
        far.ip("link set b1 up")
        await told.until(lambda: [f.link for f in told.findings] == ["swp1", "swp2"])
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1", ttl=1))
            await told.until(lambda: [f.link for f in told.findings] == ["swp2"])
            await told.sees(("swp1", "leaf-1", True))
            await told.until(lambda: [f.link for f in told.findings] == ["swp1", "swp2"])


async def test_a_link_that_hears_what_is_no_lldp_says_why(wire):
    near, far = wire
    async with agent(near, "swp*", silent_after_s=0.3) as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("leaf-1")[:14] + bytes(46))
            await told.until(lambda: "are none (" in "".join(f.detail for f in told.findings))


async def test_a_neighbor_that_turns_out_to_be_us_goes(wire):
    """A VF that is made later has the MAC that was heard before."""
    near, far = wire
    async with agent(near, "swp*") as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("us", chassis=b"\x02\0\0\0\0\x99"))
            await told.sees(("swp1", "us", False))
            near.ip("link add vf0 address 02:00:00:00:00:99 type bridge")
            await told.sees()


async def test_a_link_that_hears_only_ourselves_says_so_as_long_as_it_does(wire):
    near, far = wire
    async with agent(near, "swp*", names=("node-7",), silent_after_s=0.5) as told:
        await listening(told, "swp1")
        with far.raw("b0") as switch:
            switch.send(announce("node-7"))
            await told.until(lambda: [f.key for f in told.findings] == [link_remarks.OWN_FRAMES])
            await told.until(lambda: [f.key for f in told.findings] == [link_remarks.SILENT])
            switch.send(announce("node-7"))
            await told.until(lambda: [f.key for f in told.findings] == [link_remarks.OWN_FRAMES])


@needs_lldpd
async def test_a_link_that_is_renamed_takes_leave_under_its_old_name(wire):
    near, far = wire
    says = Announcement("node-7", "nodeagent", ())
    with Lldpd(far, "leaf-1", settings=OFTEN) as switch:
        async with agent(near, "swp*", announcement=says) as told:
            await told.sees(("swp1", "leaf-1", False))
            assert "ifname swp1" in await shows(switch, "node-7")
            near.ip("link set swp1 name swp7")  # up as it is, which Linux allows since 6.2
            assert "ifname swp1" not in await shows(switch, "ifname swp7")


async def test_one_port_heard_on_two_links_is_a_finding_of_both(wire):
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with agent(near, "swp*") as told:
        await listening(told, "swp2")
        with far.raw("b0") as one, far.raw("b1") as two:
            one.send(announce("leaf-1"))
            two.send(announce("leaf-1"))
            both = [("swp1", link_remarks.DUPLICATE), ("swp2", link_remarks.DUPLICATE)]
            await told.until(lambda: [(f.link, f.key) for f in told.findings] == both)


async def test_a_hostile_link_costs_little_and_the_others_and_the_loop_go_on(wire):
    """Frames that each differ, well formed or not, as fast as one sender can; bench_lldp_wire has 10 s of it."""
    near, far = wire
    veth(near, "swp2", far, "b1")
    async with agent(near, "swp*") as told:
        await listening(told, "swp2")
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
                await told.until(
                    lambda name=f"leaf-{number}": name in {n.system_name for n in told.neighbors}
                )
                lags.append(time.monotonic() - began)
        assert max(lags) < 0.5
        assert sum(n.link == "swp1" for n in told.neighbors) == 32
        assert told.told < 20 + (sum(lags) + 20) / GAP_S
        assert link_remarks.FLOODED in {f.key for f in told.findings if f.link == "swp1"}
        counts = told.ear.counts("swp1")
        assert counts["flooded"] > 0
        assert sum(counts.values()) <= 10_000
