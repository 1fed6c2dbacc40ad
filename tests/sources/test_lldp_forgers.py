"""Forgers on the wire beside a real lldpd: who sends what, which neighbor the agent has, and which remark.

The forger has received a frame of the switch, so it can copy each part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from nodeagent.cluster.node_report import reported_neighbor
from nodeagent.fabric.nodelinks import Metadata, NodeLink, NodeLinks
from nodeagent.lldp import link_remarks
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame, parse_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, PortId
from nodeagent.lldp.lldpdu_codec import decode_lldpdu, encode_lldpdu
from tests.sources.test_lldp_source import OFTEN, Agent, running, wire
from tests.support.fabrics import Cables, Cluster, End
from tests.support.namespaces import Lldpd, Netns, veth
from tests.support.waiting import LIMIT_S

__all__ = ["wire"]
pytestmark = [pytest.mark.slow, pytest.mark.needs("root", "ip", "nsenter", "lldpd", "lldpcli")]

ELSEWHERE = bytes.fromhex("02000000ee01")
GHOST = Lldpdu(ChassisId(4, bytes.fromhex("020000000666")), PortId(5, b"p0"), 65535, system_name="ghost")


class Forger(NamedTuple):
    """``frames`` makes what it sends each 50 ms from the source MAC and the LLDPDU of the switch, ``once`` what it
    sends before. ``other``: the neighbor that the remark names beside the switch."""

    what: str
    frames: Callable[[bytes, Lldpdu], list[bytes]]
    other: str
    once: tuple[bytes, ...] = ()
    may_be_stale: bool = False


def sent(source: bytes, pdu: Lldpdu, **changes: object) -> bytes:
    return build_frame(NEAREST_BRIDGE, source, encode_lldpdu(replace(pdu, **changes)))


def shutdown(source: bytes, pdu: Lldpdu) -> bytes:
    return sent(source, Lldpdu(pdu.chassis_id, pdu.port_id, 0))


GHOSTS = (sent(ELSEWHERE, GHOST),) * 2
FORGERS = (
    Forger(
        "another name from elsewhere", lambda _, pdu: [sent(ELSEWHERE, pdu, system_name="evil")], "evil b0"
    ),
    Forger(
        "another name from its MAC", lambda source, pdu: [sent(source, pdu, system_name="evil")], "evil b0"
    ),
    Forger(
        "names that alternate",
        lambda source, pdu: [sent(source, pdu, system_name=f"evil-{n}") for n in range(3)],
        "evil-0 b0 and others",
    ),
    Forger(
        "its name from elsewhere",
        lambda _, pdu: [sent(ELSEWHERE, pdu, ttl=65535)],
        f"leaf-1 b0 from {ELSEWHERE.hex(':')} and not from",
    ),
    Forger("shutdowns from elsewhere", lambda _, pdu: [shutdown(ELSEWHERE, pdu)], "ghost p0", GHOSTS),
    Forger("shutdowns from its MAC", lambda source, pdu: [shutdown(source, pdu)], "ghost p0", GHOSTS, True),
    Forger("its frame with a TTL of 1 s", lambda source, pdu: [sent(source, pdu, ttl=1)], "ghost p0", GHOSTS),
)


@pytest.mark.parametrize("forger", FORGERS, ids=lambda forger: forger.what)
async def test_the_switch_stays_the_neighbor_and_the_link_is_contested(wire, forger: Forger) -> None:
    near, far = wire
    settings = (*OFTEN, "configure lldp portidsubtype ifname")
    with Lldpd(far, "leaf-1", settings=settings), far.raw("b0") as port:
        async with running(near, "swp*") as agent:
            await agent.shows(("swp1", "leaf-1", False))
            await agent.until(lambda: agent.neighbors[0].confirmed)
            agent.firsts.clear()
            switch = agent.receiver.entries("swp1")[0]
            parsed = parse_frame(switch.frame)
            forged = forger.frames(parsed.source, decode_lldpdu(switch.frame, parsed.offset))
            frames = switch.frames
            for frame in forger.once:
                port.send(frame)
            async with asyncio.timeout(LIMIT_S):
                while switch.frames < frames + 5 or not contested(agent):
                    for frame in forged:
                        port.send(frame)
                    await asyncio.sleep(0.05)  # paces the forger; nothing is awaited with it
            facts = [one for one in agent.neighbors if one.link == "swp1"]
            reported = reported_neighbor(facts, None, patient=False)
    assert set(agent.firsts) - {("leaf-1", True)} == {("leaf-1", False)}
    assert agent.firsts.count(("leaf-1", True)) <= forger.may_be_stale
    assert (reported.system_name, reported.stale, reported.contested) == ("leaf-1", False, True)
    assert any(forger.other in detail for detail in contested(agent))


def contested(agent: Agent) -> list[str]:
    return [remark.detail for remark in agent.remarks if remark.key == link_remarks.CROWDED]


# --- all links of a node, through agent and controller ------------------------------------------------------

RAILS = 4
NODE = "su000-n000"


def copy_of_the_other_unit(rail: int, _switch: Lldpdu) -> list[bytes]:
    """Free ports of the switches of another unit, with their chassis IDs and names."""
    chassis = ChassisId(4, bytes((2, 0, 0, 0, 1, rail)))
    return [sent(ELSEWHERE, Lldpdu(chassis, PortId(5, b"swp60"), 120, system_name=f"su001-leaf{rail}"))]


def names_of_the_other_unit(rail: int, switch: Lldpdu) -> list[bytes]:
    return [sent(ELSEWHERE, switch, system_name=f"su001-leaf{rail}")]


Forged = Callable[[int, Lldpdu], list[bytes]]
WHOLE_NODE: tuple[Forged, ...] = (copy_of_the_other_unit, names_of_the_other_unit)


def other_nodes(chassis: list[str]) -> Cables:
    """Two units of eight nodes, without the first node; the switches of the first unit have these chassis IDs."""
    theirs = [f"02:00:00:00:01:{rail:02x}" for rail in range(RAILS)]
    return {
        f"su{unit:03}-n{n:03}": tuple(
            End(f"su{unit:03}-leaf{rail}", f"swp{n}", chassis=ids[rail]) for rail in range(RAILS)
        )
        for unit, ids in ((0, chassis), (1, theirs))
        for n in range(8)
        if (unit, n) != (0, 0)
    }


def report_of(agent: Agent, last: NodeLinks | None) -> NodeLinks:
    before = dict(enumerate(last.links)) if last else {}
    made = []
    for rail in range(RAILS):
        neighbors = [one for one in agent.neighbors if one.link == f"swp{rail}"]
        neighbor = reported_neighbor(neighbors, before[rail].neighbor if last else None, patient=False)
        made.append(
            NodeLink(name=f"rail{rail}", rail=rail, fabric="compute", state="healthy", neighbor=neighbor)
        )
    return NodeLinks(metadata=Metadata(name=NODE), node_name=NODE, links=tuple(made))


@pytest.mark.parametrize("forged", WHOLE_NODE)
@pytest.mark.parametrize("first", ["switches", "forgers"])
async def test_forgers_on_all_links_of_a_node_do_not_move_it(forged: Forged, first: str) -> None:
    with ExitStack() as stack:
        near, *far = (stack.enter_context(Netns()) for _ in range(RAILS + 1))
        for rail in range(RAILS):
            veth(near, f"swp{rail}", far[rail], "b0")
        ports = [stack.enter_context(one.raw("b0")) for one in far]

        def start() -> list[Lldpd]:
            settings = (*OFTEN, "configure lldp portidsubtype ifname")
            return [
                stack.enter_context(Lldpd(one, f"su000-leaf{n}", settings=settings))
                for n, one in enumerate(far)
            ]

        switches, cluster = start(), Cluster()
        async with running(near, "swp*") as agent:
            await agent.until(lambda: confirmed(agent) == RAILS)
            real = [decode_lldpdu(agent.receiver.entries(f"swp{rail}")[0].frame, 14) for rail in range(RAILS)]
            report = report_of(agent, None)
        cluster.hear(other_nodes([link.neighbor.chassis_id.value for link in report.links]))
        cluster.report(report)
        cluster.rest(61)
        before = cluster.tree.leaves()
        assert cluster.home(NODE) == cluster.home("su000-n001")

        async def send_until(true: Callable[[], object]) -> None:
            nonlocal report
            async with asyncio.timeout(LIMIT_S):
                while not true():
                    for rail, port in enumerate(ports):
                        for frame in forged(rail, real[rail]):
                            port.send(frame)
                    await asyncio.sleep(0.05)  # paces the forgers; nothing is awaited with it
                    report = report_of(agent, report)
                    cluster.report(report)
                    assert cluster.step(0.05) == 0

        if first == "forgers":
            for switch in switches:
                switch.stop()
        async with running(near, "swp*") as agent:
            if first == "forgers":
                await send_until(lambda: confirmed(agent) == RAILS)
                start()
            await agent.until(lambda: confirmed(agent) == RAILS)
            await send_until(lambda: sum(link.neighbor.contested for link in report.links) == RAILS)
        named = {link.neighbor.system_name for link in report.links}
        assert named == {f"su00{int(first == 'forgers')}-leaf{rail}" for rail in range(RAILS)}
        assert cluster.rest(3600) == 0
        assert cluster.tree.leaves() == before


def confirmed(agent: Agent) -> int:
    return len({one.link for one in agent.neighbors if one.confirmed})
