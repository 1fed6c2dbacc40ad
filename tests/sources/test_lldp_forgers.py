"""Forgers on the wire beside a real lldpd: who sends what, which neighbor the agent has, and which remark.

The forger has received a frame of the switch, so it can copy each part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from nodeagent.cluster.node_report import reported_neighbor
from nodeagent.lldp import link_remarks
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame, parse_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, PortId
from nodeagent.lldp.lldpdu_codec import decode, encode
from tests.sources.test_lldp_source import OFTEN, Agent, running, wire
from tests.support.namespaces import Lldpd
from tests.support.waiting import LIMIT_S

__all__ = ["wire"]
pytestmark = [pytest.mark.slow, pytest.mark.needs("root", "ip", "nsenter", "lldpd", "lldpcli")]

ELSEWHERE = bytes.fromhex("02000000ee01")
GHOST = Lldpdu(ChassisId(4, bytes.fromhex("020000000666")), PortId(5, b"p0"), 65535, system_name="ghost")


class Forger(NamedTuple):
    """``frames`` makes what it sends each 50 ms from the source MAC and the LLDPDU of the switch, ``once`` what it sends
    before. ``other``: the neighbor that the remark names beside the switch."""

    what: str
    frames: Callable[[bytes, Lldpdu], list[bytes]]
    other: str
    once: tuple[bytes, ...] = ()
    may_be_stale: bool = False


def sent(source: bytes, pdu: Lldpdu, **changes: object) -> bytes:
    return build_frame(NEAREST_BRIDGE, source, encode(replace(pdu, **changes)))


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
            forged = forger.frames(parsed.source, decode(switch.frame, parsed.offset))
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
