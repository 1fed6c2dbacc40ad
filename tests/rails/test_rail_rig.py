"""Every fault of a rail on real sockets: two leaves of eight hosts and four spines (tests/support/rail_rig.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from nodeagent.rails.probe_packet import ANSWER, ProbePacket
from tests.support.rail_rig import RailRig, packets_pass

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


async def test_a_healthy_hall_has_nothing_to_report(rig: RailRig) -> None:
    await rig.pass_s(120)
    assert rig.lossy() == rig.lossy(large=True) == {}
    checks = [rig.check(*key) for key in rig.probes]
    assert {check.checked for check in checks} == {"yes"}
    assert rig.check(0, 3).addresses == ("10.1.3.1/31",)
    await rig.pass_s(60)
    assert [rig.check(*key) for key in rig.probes] == checks, "equal facts are no write"
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
    await rig.pass_s(75)
    lossy = rig.lossy()
    assert len(about(lossy, "n0-2")) >= 2, lossy
    assert all("n0-2" in pair for pair in lossy)
    rig.repair()
    await rig.pass_s(180)
    assert rig.lossy() == {}


async def test_one_percent_of_loss_is_found_within_12_minutes(rig: RailRig) -> None:
    rig.fault(rig.leaves[0], "FORWARD -i h2 -m statistic --mode nth --every 100 --packet 0 -j DROP")
    rig.fault(rig.leaves[0], "FORWARD -o h2 -m statistic --mode random --probability 0.01 -j DROP")
    await rig.pass_s(720)
    lossy = rig.lossy()
    assert len(about(lossy, "n0-2")) >= 2, lossy
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
    assert {leg.level for leg in rig.check(0, 2).legs} == {100}
