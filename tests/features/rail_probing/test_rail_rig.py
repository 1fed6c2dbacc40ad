"""Every fault of a rail on real sockets: two leaves of eight hosts and four spines (tests/support/rail_rig.py)."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from ipaddress import ip_interface
from pathlib import Path

import pytest
import pytest_asyncio

from nodeagent.fabric.rail_partners import (
    AnsweredPartner,
    ProbedPartner,
    RailList,
    RailPartners,
    RailPartnersSpec,
)
from nodeagent.features.rail_probing.probe_packet import ANSWER, REQUEST, ProbePacket
from nodeagent.features.rail_probing.rail_probes import TICK_S, checks
from nodeagent.features.rail_probing.rail_watch import rail_sample, rail_view
from nodeagent_lab.sim.netns import Netns, veth
from tests.support.rail_rig import RailRig, address, packets_pass, probes_in, rail_link, set_kernel

pytestmark = [pytest.mark.needs("root", "ip", "iptables"), pytest.mark.slow]


@pytest.fixture(scope="module")
def wired() -> Iterator[RailRig]:
    with RailRig() as rig:
        yield rig


@pytest_asyncio.fixture
async def rig(wired: RailRig) -> AsyncIterator[RailRig]:
    await wired.start()
    try:
        yield wired
    finally:
        await wired.stop()


def about(lossy: dict[tuple[str, str], int], node: str) -> set[str]:
    """The other ends of the lossy legs of this node."""
    return {end for pair in lossy for end in pair if node in pair and end != node}


async def lossy_with(rig: RailRig, node: str, seconds: float) -> dict[tuple[str, str], int]:
    """The lossy legs, when two partners of this node have one. How soon that is with losses by chance, the simulated
    halls show (test_rail_hall.py)."""
    for _ in range(round(seconds / 15)):
        await rig.pass_s(15)
        if len(about(lossy := rig.lossy(), node)) >= 2:
            return lossy
    pytest.fail(f"two partners should see the loss: {rig.lossy()}")


async def test_a_healthy_hall_has_nothing_to_report(rig: RailRig) -> None:
    await rig.pass_s(120)
    assert rig.lossy() == rig.lossy(large=True) == {}
    checks = [rig.found(*key) for key in rig.probes]
    assert {check.checked for check in checks} == {"yes"}
    assert rig.found(0, 3).addresses == ("10.1.3.1/31",)
    await rig.pass_s(60)
    assert [rig.found(*key) for key in rig.probes] == checks, "equal facts are no write"
    rail = rig.probes[0, 0].rails["nic0"]
    assert rail.sent["leaf"] > 2 * rail.sent["across"] * 0.9 > 100
    assert sum(rail.lost.values()) == 0
    assert sum(rail.rtt_counts) > 200


@pytest.mark.parametrize("rule", ["FORWARD -o h2 -j DROP", "FORWARD -i h2 -j DROP"])
async def test_a_link_dead_one_way_is_dead_within_30_seconds(rig: RailRig, rule: str) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], rule)
    await rig.pass_s(30)
    lossy = rig.lossy()
    assert set(lossy.values()) == {100}
    assert all("n0-2" in pair for pair in lossy), "legs of other links are good"
    assert len(about(lossy, "n0-2")) == 5, "all partners say so"
    rig.repair()
    await rig.pass_s(30)
    assert rig.lossy() == {}


async def test_ten_percent_of_loss_is_found_and_forgotten(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], "FORWARD -o h2 -m statistic --mode random --probability 0.1 -j DROP")
    lossy = await lossy_with(rig, "n0-2", 300)
    assert all("n0-2" in pair for pair in lossy)
    rig.repair()
    await rig.pass_s(900)
    assert rig.lossy() == {}


@pytest.mark.parametrize(("way", "own", "far"), [("-o", "back", "there"), ("-i", "there", "back")])
async def test_the_way_of_the_loss_is_known_at_both_ends(rig: RailRig, way: str, own: str, far: str) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], f"FORWARD {way} h2 -m statistic --mode random --probability 0.3 -j DROP")
    await rig.pass_s(120)
    for key, wanted in (((0, 2), own), ((0, 1), far)):
        view = rail_view(rig.probes[key].rails["nic0"], rig.now)
        lossy = [one for one in view.partners if one.level and not one.large]
        assert all("n0-2" in (one.node, f"n{key[0]}-{key[1]}") for one in lossy)
        found = {one.direction for one in lossy}
        assert found == {wanted}, view
    sample = rail_sample(rig.probes[0, 2].rails["nic0"], 5.0, 1e9)
    assert sample.values["rail_lossy_way"] == (1.0 if own == "there" else -1.0)
    rig.repair()


async def test_one_percent_of_loss_is_found(rig: RailRig) -> None:
    rig.fault(rig.leaves[0], "FORWARD -i h2 -m statistic --mode nth --every 100 --packet 0 -j DROP")
    rig.fault(rig.leaves[0], "FORWARD -o h2 -m statistic --mode random --probability 0.01 -j DROP")
    lossy = await lossy_with(rig, "n0-2", 1800)
    assert all("n0-2" in pair for pair in lossy)
    assert set(lossy.values()) <= {1, 10}


async def test_a_dead_leaf_is_on_the_legs_across_and_within(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[1], "FORWARD -j DROP")
    await rig.pass_s(30)
    lossy = rig.lossy()
    assert set(lossy.values()) == {100}
    assert all(pair[0].startswith("n1") or pair[1].startswith("n1") for pair in lossy)
    assert len(lossy) == 8 * 2 + 8 * 2, "each leg within the leaf, and those across from both sides"


async def test_one_dead_spine_of_four_is_a_part_of_the_legs_across(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.fault(rig.spines[1], "FORWARD -j DROP")
    await rig.pass_s(75)
    lossy = rig.lossy()
    assert lossy
    assert all(one[1] != other[1] for one, other in lossy), "no leg within a leaf"
    assert 10 in lossy.values() or 50 in lossy.values()
    assert 100 not in lossy.values()


async def test_a_hole_for_large_packets_is_no_loss_of_small_ones(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], "FORWARD -o h2 -m length --length 1400:65535 -j DROP")
    await rig.pass_s(90)
    assert rig.lossy() == {}
    large = rig.lossy(large=True)
    assert all("n0-2" in pair for pair in large)
    assert len(about(large, "n0-2")) >= 4
    rig.repair()
    await rig.pass_s(90)
    assert rig.lossy(large=True) == {}, "no path MTU is cached"


async def test_an_absent_agent_is_no_loss(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.probes.pop((0, 2)).close()
    await rig.pass_s(90)
    assert rig.lossy() == {}, "port unreachable proves the way"


async def test_a_process_that_stops_for_three_seconds_loses_nothing(rig: RailRig) -> None:
    await rig.pass_s(30)
    for _ in range(4):
        await rig.stop_process((0, 2), 3)
        await rig.pass_s(20)
    assert rig.lossy() == {}
    assert sum(rig.probes[0, 1].rails["nic0"].lost.values()) == 0


async def test_a_node_that_starts_beside_a_dead_link_finds_it(rig: RailRig) -> None:
    rig.fault(rig.leaves[0], "FORWARD -o h2 -j DROP")
    await rig.pass_s(300)
    assert len(about(rig.lossy(), "n0-2")) == 5
    assert set(rig.lossy().values()) == {100}


async def test_an_answer_without_the_session_counts_for_nothing(rig: RailRig) -> None:
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], "FORWARD -o h2 -p udp --sport 18514 -j DROP")
    probes, liar = rig.probes[0, 2], rig.probes[0, 3].rails["nic0"]
    for _ in range(30):
        await rig.pass_s(1)
        forged = ProbePacket(ANSWER, probes._session ^ 1, probes._sequence)
        for (_, offset), opened in liar.sockets.items():
            if offset == 0:
                opened.send(forged.encode(), "10.1.2.1", 18515)
        await packets_pass()
    assert {leg.level for leg in rig.found(0, 2).legs} == {100}


def checksum(raw: bytes) -> int:
    total = sum(struct.unpack(f"!{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def unreachable(source: str, port: int, to: str, packet: ProbePacket) -> bytes:
    """ICMP's port unreachable about a probe."""
    probe = packet.encode()
    udp = struct.pack("!HHHH", port, 18514, 8 + len(probe), 0) + probe
    ends = socket.inet_aton(source) + socket.inet_aton(to)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + ends
    quoted = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + udp
    icmp = struct.pack("!BBHI", 3, 3, 0, 0) + quoted
    return icmp[:2] + struct.pack("!H", checksum(icmp)) + icmp[4:]


async def test_a_forged_port_unreachable_excuses_no_dead_leg(rig: RailRig) -> None:
    """One such message a second hid a dead leg: anybody can send it, and nobody else knows the session."""
    await rig.pass_s(30)
    rig.fault(rig.leaves[0], "FORWARD -o h2 -p udp --sport 18514 -j DROP")
    probes = rig.probes[0, 2]
    (rail,) = probes.rails.values()
    with rig.hosts[1, 7].entered():
        stranger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with stranger:
        for _ in range(40):
            await rig.pass_s(1)
            forged = ProbePacket(REQUEST, probes._session ^ 1, probes._sequence)
            for leg in rail.legs.values():
                for offset in range(leg.partner.ports):
                    message = unreachable("10.1.2.1", 18515 + offset, leg.partner.address, forged)
                    stranger.sendto(message, ("10.1.2.1", 0))
            await packets_pass()
    assert {leg.level for leg in rig.found(0, 2).legs} == {100}


def without_ticket(rig: RailRig) -> set[tuple[int, int]]:
    """The hosts with a leg that shows no ticket, or not that of its partner's agent."""
    caps = {address(*key): probes.rails["nic0"].answer_caps for key, probes in rig.probes.items()}
    return {
        key
        for key, probes in rig.probes.items()
        for leg in probes.rails["nic0"].legs.values()
        if leg.ticket != caps[leg.partner.address].ticket(address(*key), probes._session)
    }


async def test_probes_show_a_ticket_of_the_partners_agent_and_get_another_when_either_starts_again(
    rig: RailRig,
) -> None:
    await rig.pass_s(30)
    assert without_ticket(rig) == set()
    await rig.start_one((0, 2))
    assert (0, 2) in without_ticket(rig)
    await rig.pass_s(70)  # what has not answered a process yet is probed once a minute
    assert without_ticket(rig) == set()
    assert rig.lossy() == {}


async def test_a_flood_with_the_address_of_a_partner_makes_nobody_dead(rig: RailRig) -> None:
    """A host of the rail with the right to send raw packets: its packets came before those of all partners."""
    await rig.pass_s(30)
    with rig.hosts[0, 2].entered():  # its own partners list this address
        flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        flood.bind(("10.1.2.1", 40000))
    with flood:
        for step in range(240):
            for number in range(100):
                flood.sendto(ProbePacket(REQUEST, 1 << 63, number).encode(), ("10.1.3.1", 18514))
            await rig.pass_s(0.5)
            assert rig.lossy() == {}, step


async def test_a_forged_list_makes_no_weapon(rig: RailRig) -> None:
    victim = rig.hosts[1, 7]
    rig.probes.pop((1, 7)).close()
    set_kernel(victim, "net/ipv4/icmp_ratelimit", "1000000")  # a victim that says nothing
    aimed = [
        ProbedPartner(node="v", nic=f"nic{i}", address=to, ports=16, per_second=2.0)
        for i, to in enumerate(
            ["10.2.7.1", "224.0.0.1", "8.8.8.8", "127.0.0.1", "255.255.255.255", "10.1.0.1"]
        )
    ]
    lists = RailPartners(spec=RailPartnersSpec(rails=(RailList(rail="nic0", probe=tuple(aimed)),)))
    with victim.entered():
        counted = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        counted.setblocking(False)
    for probes in rig.probes.values():
        probes.take_partners(lists)
        await probes.arrange()
    sources: list[str] = []
    for _ in range(150):
        await rig.pass_s(1)
        with suppress(BlockingIOError):
            while True:
                frame, (_, _, kind, *_) = counted.recvfrom(2048)
                if kind != socket.PACKET_OUTGOING and frame[23] == socket.IPPROTO_UDP:
                    sources.append(socket.inet_ntoa(frame[26:30]))
    counted.close()
    assert len(set(sources)) == 15
    assert max(sources.count(one) for one in sources) <= 3, "one a minute"
    assert rig.found(0, 0).checked == "yes"
    assert {leg.partner.address for leg in rig.probes[0, 1].rails["nic0"].legs.values()} == {
        "10.2.7.1",
        "10.1.0.1",
    }, "in the configured networks only"


async def test_an_address_that_is_not_listed_gets_no_answer(rig: RailRig) -> None:
    rig.probes[0, 2].take_partners(RailPartners())
    await rig.probes[0, 2].arrange()
    assert rig.found(0, 2).checked == "no-partner"
    rig.probes[0, 2].take_partners(None)
    await rig.probes[0, 2].arrange()
    assert rig.found(0, 2).checked == "no-list"
    await rig.pass_s(60)
    assert rig.lossy() == {}, "it has no socket, and port unreachable says so"


@pytest.mark.parametrize("family", [4, 6])
async def test_a_second_nic_in_the_subnet_does_not_answer_for_the_dead_one(family: int) -> None:
    with Netns() as left, Netns() as right, Netns() as switch:
        switch.ip("link add br0 type bridge\nlink set br0 up")
        for ns, netdev, port in ((left, "rail0", "l0"), (right, "rail0", "r0"), (right, "rail1", "r1")):
            set_kernel(ns, "net/ipv6/conf/default/accept_dad", "0")
            veth(ns, netdev, switch, port)
            switch.ip(f"link set {port} up master br0")
            ns.ip(f"link set {netdev} up")
        own = {
            (left, "rail0"): ("10.0.0.1/24", "fe80::1/64"),
            (right, "rail0"): ("10.0.0.2/24", "fe80::2/64"),
            (right, "rail1"): ("10.0.0.3/24", "fe80::3/64"),
        }
        for (ns, netdev), addresses in own.items():
            for one in addresses:
                ns.ip(f"addr add {one} dev {netdev}")
        # So that the kernel gives the address of the dead NIC up within the test.
        with left.entered():
            neighbors = Path(f"/proc/sys/net/ipv{family}/neigh/rail0")
            for name, value in (
                ("base_reachable_time_ms", 10),
                ("delay_first_probe_time", 0),
                ("retrans_time_ms", 5),
            ):
                (neighbors / name).write_text(str(value))
        with right.entered():  # as the doctor demands where rails share a subnet
            Path("/proc/sys/net/ipv4/conf/all/arp_ignore").write_text("1")
        now = [0.0]
        made = {}
        at = 0 if family == 4 else 1
        for ns, netdevs in ((left, ["rail0"]), (right, ["rail0", "rail1"])):
            with ns.entered():
                links = [
                    rail_link(netdev, (ip_interface(own[ns, netdev][at]),), f"nic{i}")
                    for i, netdev in enumerate(netdevs)
                ]
            made[ns] = probes_in(ns, links, lambda: now[0], ())
        here, *there = [addresses[at].partition("/")[0] for addresses in own.values()]
        probe = tuple(
            ProbedPartner(node="r", nic=f"nic{i}", address=to, per_second=0.5) for i, to in enumerate(there)
        )
        answer = (AnsweredPartner(node="l", nic="nic0", address=here),)
        made[left].take_partners(
            RailPartners(spec=RailPartnersSpec(rails=(RailList(rail="nic0", probe=probe),)))
        )
        rails = tuple(RailList(rail=f"nic{i}", answer=answer) for i in range(2))
        made[right].take_partners(RailPartners(spec=RailPartnersSpec(rails=rails)))

        async def pass_s(seconds: float) -> None:
            for _ in range(round(seconds / TICK_S)):
                now[0] += TICK_S
                made[left].tick()
                await packets_pass()
                if now[0] % 5 == 0:
                    made[left].evaluate()

        try:
            for probes in made.values():
                await probes.arrange()
            await pass_s(70)
            (found,) = checks(made[left], now[0], now[0])
            assert (found.checked, found.legs) == ("yes", ())
            switch.ip("link set r1 nomaster")
            await pass_s(40)
            (found,) = checks(made[left], now[0], now[0])
            assert [(leg.nic, leg.level) for leg in found.legs] == [("nic1", 100)]
        finally:
            for probes in made.values():
                probes.close()
