"""`nodeagent rails check` on real sockets: what it finds, and that it makes no weapon of an agent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from nodeagent.fabric.rail_partners import RailPartners
from nodeagent.features.rail_probing.check_guests import (
    ADDRESS_AT_ONCE,
    ADDRESS_PER_S,
    GUEST_S,
    GUESTS_MAX,
    READS_PER_S,
    CheckGuests,
)
from nodeagent.features.rail_probing.probe_packet import CHECK, ProbePacket, decode_probe
from nodeagent.features.rail_probing.rail_burst import PATIENCE_S, RailBurst
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_watch import rail_sample
from tests.support.rail_rig import RailRig, address, packets_pass, set_kernel

wired_only = [pytest.mark.needs("root", "ip", "iptables"), pytest.mark.slow]


@pytest.fixture(scope="module")
def wired() -> Iterator[RailRig]:
    with RailRig() as rig:
        yield rig


@pytest_asyncio.fixture
async def rig(wired: RailRig) -> AsyncIterator[RailRig]:
    await wired.start()
    wired.read.clear()
    try:
        yield wired
    finally:
        await wired.stop()


class TestOnSockets:
    pytestmark = wired_only

    @pytest.mark.parametrize("to", [(0, 3), (0, 4), (1, 6)])
    async def test_a_good_rail_loses_nothing_whether_a_list_has_the_node_or_not(
        self, rig: RailRig, to: tuple[int, int]
    ) -> None:
        found = await rig.check((0, 2), to)
        (rail,) = found.rails
        assert found.why == rail.why == ""
        assert (rail.lost, rail.large_lost, rail.address) == (0, 0, address(*to))
        assert 80 <= rail.sent <= 95
        assert rail.large_sent in range(8, 12)
        assert rail.rtt_us is not None
        assert rig.read == ["n0-2"], "one read of the report"
        assert sum(rig.found(0, 2).legs) == 0

    async def test_a_check_shows_the_tickets_of_its_answers(self, rig: RailRig) -> None:
        """So nobody who forges its address takes its place or its budget."""
        asked = rig.probes[0, 4]
        await rig.check((0, 2), (0, 4))
        assert [*asked._guests._known] == [(address(0, 2), "n0-2")]
        answered = {shown for _, shown in asked.rails["nic0"].check_caps._of}
        assert answered == {True, False}, "the first one without"

    async def test_a_second_check_is_admitted_anew(self, rig: RailRig) -> None:
        for _ in range(2):
            (rail,) = (await rig.check((0, 2), (0, 4), 8)).rails
            assert (rail.lost, rail.large_lost) == (0, 0)
            assert rail.sent > 130
        assert rig.read == ["n0-2"] * 2

    @pytest.mark.parametrize(
        ("rule", "lost", "large_lost"),
        [
            ("FORWARD -o h4 -m statistic --mode nth --every 20 --packet 0 -j DROP", range(1, 12), range(3)),
            ("FORWARD -o h4 -m length --length 1400:65535 -j DROP", range(1), range(8, 12)),
        ],
    )
    async def test_a_loss_is_found(self, rig: RailRig, rule: str, lost: range, large_lost: range) -> None:
        rig.fault(rig.leaves[0], rule)
        (rail,) = (await rig.check((0, 2), (0, 4))).rails
        assert rail.lost in lost
        assert rail.large_lost in large_lost
        assert not rail.dead

    async def test_a_dead_link_is_silent_and_gets_two_packets_a_second(self, rig: RailRig) -> None:
        rig.fault(rig.leaves[0], "FORWARD -o h4 -j DROP")
        found = await rig.check((0, 2), (0, 4))
        assert found.why == "silent"
        assert found.rails[0].sent == 0, "what came before the first answer counts for nothing"

    async def test_an_absent_agent_is_no_loss(self, rig: RailRig) -> None:
        rig.probes.pop((0, 4)).close()
        found = await rig.check((0, 2), (0, 4))
        assert (found.why, found.rails[0].why, found.rails[0].dead) == ("silent", "refused", False)

    async def test_who_is_not_in_the_report_of_the_named_node_gets_no_answer(self, rig: RailRig) -> None:
        ns = rig.hosts[0, 2]
        rig.reports["n0-2"] = ["10.1.7.1"]
        try:
            found = await rig.check((0, 2), (0, 4))
        finally:
            rig.reports["n0-2"] = [address(0, 2)]
        assert found.why == "silent"
        assert len(rig.read) <= 15, "one read a second, four at once"
        await rig.pass_s(2)
        with ns.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown:
            unknown.sendto(ProbePacket(CHECK, 1, 1, node="none").encode(), (address(0, 4), 18514))
        await packets_pass()
        assert rig.read[-1] == "none"

    async def test_a_victim_that_says_nothing_gets_two_packets_a_second(self, rig: RailRig) -> None:
        victim = rig.hosts[1, 7]
        rig.probes.pop((1, 7)).close()
        set_kernel(victim, "net/ipv4/icmp_ratelimit", "1000000")
        with victim.entered():
            counted = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        counted.setblocking(False)
        await rig.check((0, 2), (1, 7), 8)
        got = 0
        try:
            while True:
                packet, (_, _, kind, *_) = counted.recvfrom(2048)
                got += kind != socket.PACKET_OUTGOING and packet[9] == socket.IPPROTO_UDP
        except BlockingIOError:
            pass
        finally:
            counted.close()
            set_kernel(victim, "net/ipv4/icmp_ratelimit", "0")
        assert 0 < got <= 21

    async def test_a_check_takes_nothing_from_the_listed_partners(self, rig: RailRig) -> None:
        await rig.pass_s(30)
        for _ in range(3):
            await rig.check((0, 2), (0, 4), 8)
            await rig.pass_s(10)
        assert rig.lossy() == rig.lossy(large=True) == {}

    async def test_the_counts_of_a_rail_have_what_the_evidence_needs(self, rig: RailRig) -> None:
        await rig.pass_s(30)
        began = rig.now
        rig.fault(rig.leaves[0], "FORWARD -o h2 -j DROP")
        await rig.pass_s(60)
        rail = rig.probes[0, 2].rails["nic0"]
        values = rail_sample(rail, 5.0, 1e9).values
        assert values["rail_lossy_partners"] == values["rail_lossy_small"] == 3
        assert values["rail_lossy_packets"] > 60
        assert 0 <= values["rail_lossy_since"] - 1e9 - began < 3
        assert values["rail_rtt/1e-05"] <= values["rail_rtt/0.01"] <= values["rail_rtt/+Inf"]
        assert values["rail_rtt/+Inf"] == sum(rail.rtt_counts) > 20
        rig.repair()
        good = rail_sample(rig.probes[1, 5].rails["nic0"], 5.0, 1e9).values
        assert "rail_lossy_since" not in good

    async def test_without_a_list_the_other_agent_has_no_socket_and_says_so(self, rig: RailRig) -> None:
        rig.probes[0, 4].take_partners(RailPartners())
        await rig.probes[0, 4].arrange()
        (rail,) = (await rig.check((0, 2), (0, 4))).rails
        assert rail.why == "refused"


def test_a_packet_of_a_check_keeps_its_node_and_an_answer_has_none() -> None:
    packet = ProbePacket(CHECK, 5, 7, node="gpu-1", ticket=9)
    assert decode_probe(packet.encode()) == decode_probe(packet.encode(1400)) == packet
    assert decode_probe(packet._replace(kind=1).encode()) == ProbePacket(1, 5, 7, ticket=9)
    assert len(packet.encode(1400)) == 1400


async def test_so_many_checks_at_once_and_a_late_read_of_none() -> None:
    now, reports = [0.0], {f"n{i}": [f"10.0.0.{i}"] for i in range(9)}

    async def read(node: str) -> list[str]:
        return reports.get(node, [])

    guests = CheckGuests(read, lambda: now[0])

    async def knock(number: int, session: int = 1) -> bool:
        guests.admits(f"n{number}", session, f"10.0.0.{number}")
        await asyncio.sleep(0)
        return guests.admits(f"n{number}", session, f"10.0.0.{number}")

    assert [await knock(number) for number in range(4)] == [True] * GUESTS_MAX + [False]
    assert not guests.admits("n0", 1, "10.0.0.1"), "of another node"
    assert not guests.admits("n0", 2, "10.0.0.8"), "a forged sender ends no check"
    assert await knock(0)
    now[0] = 5.0
    assert await knock(0, session=2), "the next check of the same node"
    now[0] = GUEST_S
    assert await knock(5)
    assert not guests.admits("n1", 1, "10.0.0.1"), "its time is over"
    guests.close()


def test_a_burst_to_nothing_ends_at_once() -> None:
    assert not RailBurst(RailsSettings(), "n0", [], {}).tick(5)


class Strangers:
    """Senders on the rail that stand in no report. ``reads`` are the names that the API server was asked for."""

    def __init__(self, count: int) -> None:
        self.now, self.reads, self.named = 0.0, list[tuple[float, str]](), 0
        self.forged: dict[str, list[str]] = {}
        self.addresses = [f"10.66.{i // 256}.{i % 256}" for i in range(count)]
        self.guests = CheckGuests(self._read, lambda: self.now)

    async def _read(self, node: str) -> list[str]:
        self.reads.append((self.now, node))
        return ["10.0.0.7"] if node == "honest" else self.forged.get(node, [])

    async def pass_s(self, seconds: float, honest: bool = False, forged: int | None = None) -> float | None:
        """Each sends three packets a second, each with another name. Return when the check was answered."""
        began = self.now
        for step in range(round(seconds * 6)):
            self.now = began + step / 6
            if step % 2 == 0:
                for address in self.addresses[:forged]:
                    self.named += 1
                    assert not self.guests.admits(f"invented-{self.named}", 1, address)
            if honest and step % 3 == 0 and self.guests.admits("honest", 5, "10.0.0.7"):
                assert self.guests.admits("honest", 5, "10.0.0.7", shown=True)
                return self.now - began
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.now = began + seconds
        return None


async def test_a_hundred_strangers_with_invented_names_keep_out_no_check() -> None:
    rail = Strangers(100)
    await rail.pass_s(120)
    answered = await rail.pass_s(10, honest=True)
    assert answered is not None
    assert answered <= 1.0, "the second or third knock"
    per_stranger = ADDRESS_AT_ONCE + 120 * ADDRESS_PER_S
    assert len(rail.reads) <= 100 * (per_stranger + 1)
    rail.guests.close()


async def test_a_check_is_answered_before_it_gives_up_when_a_hundred_strangers_begin_with_it() -> None:
    rail = Strangers(100)
    answered = await rail.pass_s(PATIENCE_S, honest=True)
    assert answered is not None
    rail.guests.close()


async def test_the_api_server_gets_a_bounded_number_of_reads_whatever_is_sent() -> None:
    rail = Strangers(2000)
    await rail.pass_s(30)
    for second in range(30):
        assert sum(second <= at < second + 1 for at, _ in rail.reads) <= 2 * READS_PER_S
    assert len(rail.reads) <= 31 * READS_PER_S
    rail.guests.close()


async def test_a_thousand_forged_addresses_delay_no_node_that_was_answered_before() -> None:
    """Each of them has a budget of its own, and they are more than are remembered."""
    rail = Strangers(1000)
    assert await rail.pass_s(2, honest=True, forged=0) is not None
    rail.now += GUEST_S
    await rail.pass_s(20)
    answered = await rail.pass_s(PATIENCE_S, honest=True)
    assert answered is not None
    assert answered <= 1.5
    rail.guests.close()


async def test_a_thousand_forged_addresses_do_not_keep_out_a_node_for_good() -> None:
    rail = Strangers(600)
    await rail.pass_s(10)
    for _ in range(20):
        if await rail.pass_s(PATIENCE_S, honest=True) is not None:
            break
    else:
        pytest.fail("no check in 200 s was answered")
    rail.guests.close()


async def test_who_forges_the_address_of_a_node_spends_nothing_that_its_next_check_needs() -> None:
    rail = Strangers(0)
    assert await rail.pass_s(2, honest=True) is not None
    rail.now += GUEST_S
    rail.addresses = ["10.0.0.7"]
    await rail.pass_s(60)
    assert await rail.pass_s(2, honest=True) is not None
    rail.guests.close()


@pytest.mark.parametrize("count", [GUESTS_MAX, 30])
async def test_who_forges_addresses_and_names_of_other_nodes_keeps_out_no_check(count: int) -> None:
    """He receives no answer, and has no ticket. He had all places for as long as he liked."""
    rail = Strangers(0)
    rail.forged = {f"gpu-{number}": [f"10.1.0.{number}"] for number in range(count)}

    async def forge(seconds: float, *, honest: bool = False, shown: bool = False) -> list[float]:
        answered = []
        began = rail.now
        for step in range(round(seconds * 20)):
            rail.now = began + step / 20
            for name, (sender,) in rail.forged.items():
                rail.guests.admits(name, 1 if count == GUESTS_MAX else rail.named, sender)
                rail.named += 1
            if (
                honest
                and (shown or step % 10 == 9)
                and rail.guests.admits("honest", 5, "10.0.0.7", shown=shown)
            ):
                answered.append(rail.now - began)
                if not shown:
                    break
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return answered

    await forge(60)
    (first,) = await forge(PATIENCE_S, honest=True)
    assert first <= 3.0
    assert len(await forge(8, honest=True, shown=True)) == 160, "it keeps its place"
    await forge(60)
    assert await forge(PATIENCE_S, honest=True), "the next check too"
    rail.guests.close()


async def test_who_forges_address_and_name_of_a_node_ends_no_check_of_it() -> None:
    rail = Strangers(0)
    assert await rail.pass_s(2, honest=True) is not None
    for step in range(160):
        rail.now += 1 / 20
        assert not rail.guests.admits("honest", 6 + step, "10.0.0.7")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rail.guests.admits("honest", 5, "10.0.0.7", shown=True)
    rail.guests.close()


async def test_a_guest_that_shows_no_ticket_stays_while_no_other_wants_its_place() -> None:
    """An agent of an earlier version shows none."""
    rail = Strangers(0)
    for step in range(round(GUEST_S * 2)):
        rail.now = step / 2
        answered = rail.guests.admits("honest", 5, "10.0.0.7")
        assert answered or not step
        await asyncio.sleep(0)
    rail.guests.close()


async def test_one_stranger_spends_his_budget_and_the_name_of_another_node_stays_free() -> None:
    """He names the honest node too: its report lacks him, and is not read for him again."""
    rail = Strangers(0)
    for step in range(120):
        rail.now = step / 2
        assert not rail.guests.admits("honest", 9, "10.66.0.1")
        await asyncio.sleep(0)
    assert len(rail.reads) == 1
    assert await rail.pass_s(2, honest=True) is not None
    rail.guests.close()


async def test_a_newer_name_from_one_address_replaces_the_older() -> None:
    rail = Strangers(0)
    for number in range(9):
        rail.guests.admits(f"n{number}", 1, "10.66.0.1")
    await asyncio.sleep(0)
    rail.now = 0.5
    rail.guests.admits("n9", 1, "10.66.0.1")
    await asyncio.sleep(0)
    assert [name for _, name in rail.reads] == ["n0", "n9"], "the first is read at once, then the newest"
    rail.guests.close()


async def test_a_report_that_cannot_be_read_now_is_asked_for_again() -> None:
    answers: list[list[str] | None] = [None, ["10.0.0.7"]]

    async def read(_node: str) -> list[str] | None:
        return answers.pop(0)

    now = [0.0]
    guests = CheckGuests(read, lambda: now[0])
    for step in range(3):
        now[0] = step / 2
        if guests.admits("honest", 1, "10.0.0.7"):
            break
        await asyncio.sleep(0)
    assert guests.admits("honest", 1, "10.0.0.7")
    guests.close()
