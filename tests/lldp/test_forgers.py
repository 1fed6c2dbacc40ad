"""Senders on the link of a switch, and which neighbor the node reports: forgers, and the rightful changes that look
like one. A switch sends every 30 s with a TTL of 120 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest

from nodeagent.cluster.node_report import reported_neighbor
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, PortId
from nodeagent.lldp.lldpdu_codec import encode_lldpdu
from nodeagent.lldp.neighbor_table import NeighborTable, OwnIdentity

HOUR = 3600.0
SWITCH_MAC, ELSEWHERE, NODE_MAC = (
    bytes.fromhex(mac) for mac in ("1c34da1c5801", "02000000ee01", "b83fd2000001")
)


class Sent(NamedTuple):
    """Frames at ``first`` and then every ``gap`` seconds, the last before ``end``."""

    first: float
    end: float
    gap: float = 30.0
    name: str | None = "leaf-1"
    port: str = "swp1"
    chassis: str = "1c34da1c5800"
    source: bytes = SWITCH_MAC
    ttl: int = 120

    def frames(self) -> Iterable[tuple[float, bytes]]:
        ids = ChassisId(4, bytes.fromhex(self.chassis)), PortId(5, self.port.encode())
        frame = build_frame(
            NEAREST_BRIDGE, self.source, encode_lldpdu(Lldpdu(*ids, self.ttl, system_name=self.name))
        )
        at = self.first
        while at < self.end:
            yield at, frame
            at += self.gap


class Row(NamedTuple):
    """``name``, ``port`` and ``stale`` are reported at ``at``. ``contested``: the report says so then. Rightful changes
    never say so."""

    what: str
    sent: tuple[Sent, ...]
    at: float
    name: str = "leaf-1"
    port: str = "swp1"
    stale: bool = False


SWITCH = Sent(0.0, 3 * HOUR)
GHOST = Sent(HOUR + 1, HOUR + 1.2, 0.1, "ghost", "p0", "020000000666", ELSEWHERE, 65535)
FORGED_FROM = HOUR + 2
LATER = 2 * HOUR

FORGERS = (
    Row(
        "another name each second, from elsewhere",
        (SWITCH, Sent(FORGED_FROM, LATER, 1.0, "evil", source=ELSEWHERE)),
        LATER,
    ),
    Row(
        "another name each second, from the MAC of the switch",
        (SWITCH, Sent(FORGED_FROM, LATER, 1.0, "evil")),
        LATER,
    ),
    Row(
        "names that alternate",
        (SWITCH, *(Sent(FORGED_FROM + n, LATER, 3.0, f"evil-{n}") for n in range(3))),
        LATER,
    ),
    Row(
        "the name of the switch, from elsewhere",
        (SWITCH, Sent(FORGED_FROM, LATER, 1.0, source=ELSEWHERE, ttl=65535)),
        LATER,
    ),
    Row("a ghost of two frames", (SWITCH, GHOST), HOUR + 500),
    Row("another port of the switch", (SWITCH, Sent(FORGED_FROM, LATER, 1.0, port="swp9")), LATER),
    Row(
        "a ghost, and shutdowns from elsewhere",
        (SWITCH, GHOST, Sent(FORGED_FROM, LATER, 0.5, ttl=0, source=ELSEWHERE)),
        HOUR + 500,
    ),
    Row(
        "a ghost, and shutdowns from the MAC of the switch",
        (SWITCH, GHOST, Sent(FORGED_FROM, LATER, 0.5, ttl=0)),
        HOUR + 500,
    ),
    Row(
        "a ghost, and a shutdown from the MAC of the switch: until its next frame it is stale",
        (SWITCH, GHOST, Sent(HOUR + 31, LATER, 0.5, ttl=0)),
        HOUR + 59,
        stale=True,
    ),
    Row(
        "a ghost, and a TTL of one second in the frame of the switch",
        (SWITCH, GHOST, Sent(FORGED_FROM, LATER, 5.0, ttl=1)),
        HOUR + 59,
    ),
    Row(
        "frames before those of the switch are decided by the controller",
        (Sent(0.0, LATER, 1.0, "evil", "p0", "020000000666", ELSEWHERE), SWITCH._replace(first=HOUR)),
        LATER,
        "evil",
        "p0",
    ),
    Row(
        "an hour without the switch, which was there for an hour: it is back with its first frame",
        (
            Sent(0.0, HOUR),
            Sent(HOUR, 3 * HOUR, 1.0, "evil", "p0", "020000000666", ELSEWHERE),
            Sent(LATER, 3 * HOUR),
        ),
        LATER + 31.0,
    ),
    Row(
        "an hour without the switch, which was there for five minutes: it is back after ten",
        (
            Sent(0.0, 300.0),
            Sent(300.0, 3 * HOUR, 1.0, "evil", source=ELSEWHERE),
            Sent(HOUR, 3 * HOUR),
        ),
        HOUR + 600.0,
    ),
)

RIGHTFUL = (
    Row(
        "a renamed switch, within its TTL",
        (Sent(0.0, HOUR), Sent(HOUR, LATER, name="leaf-one")),
        HOUR + 91,
        "leaf-one",
    ),
    Row(
        "a renamed switch that sends fast",
        (Sent(0.0, HOUR), Sent(HOUR - 1, HOUR + 3, 1.0, "leaf-one"), Sent(HOUR + 30, LATER, name="leaf-one")),
        HOUR + 121,
        "leaf-one",
    ),
    Row(
        "a switch that is renamed soon after its start",
        (Sent(0.0, 4.0, 1.0, "localhost"), Sent(5.0, LATER)),
        70.0,
    ),
    Row(
        "a fail-over soon after the start, with one late frame from the old MAC",
        (Sent(0.0, 4.0, 1.0, source=ELSEWHERE), Sent(5.0, LATER), Sent(6.0, 7.0, source=ELSEWHERE)),
        70.0,
    ),
    Row(
        "a replaced switch on the same port",
        (
            Sent(0.0, HOUR),
            Sent(HOUR + 600, LATER, chassis="1c34da990000", source=bytes.fromhex("1c34da990001")),
        ),
        HOUR + 631,
    ),
    Row(
        "another line card or MLAG peer after a fail-over",
        (Sent(0.0, HOUR), Sent(HOUR + 1, LATER, source=bytes.fromhex("1c34da1c5901"))),
        HOUR + 100,
    ),
    Row(
        "a cable to another port of the switch",
        (Sent(0.0, HOUR), Sent(HOUR, LATER, port="swp2")),
        HOUR + 91,
        port="swp2",
    ),
    Row(
        "a port that is renamed at the start, with a shutdown frame",
        (Sent(0.0, 90.0, port="Ethernet0"), Sent(91.0, 92.0, port="Ethernet0", ttl=0), Sent(92.0, LATER)),
        200.0,
    ),
    Row(
        "a switch whose LLDP restarts",
        (Sent(0.0, HOUR), Sent(HOUR - 1, HOUR, ttl=0), Sent(HOUR + 5, LATER)),
        HOUR + 6,
    ),
    Row("a switch that shuts down", (Sent(0.0, HOUR), Sent(HOUR - 1, HOUR, ttl=0)), HOUR + 5, stale=True),
    Row(
        "the lldpd of this host on the same segment",
        (SWITCH, Sent(3.0, LATER, 1.0, "node-1", source=NODE_MAC)),
        LATER,
    ),
    Row(
        "the firmware of this node's NIC",
        (SWITCH, Sent(3.0, LATER, 16.0, None, "b83fd2000001", "b83fd2000001", ELSEWHERE)),
        LATER,
    ),
)


def played(row: Row) -> tuple[NeighborTable, list[bool]]:
    """The table after these frames, and at each frame whether the report was contested."""
    table, last, contested = (
        NeighborTable(OwnIdentity(frozenset({NODE_MAC}), frozenset({"node-1"}))),
        None,
        [],
    )
    for at, frame in sorted(pair for sent in row.sent for pair in sent.frames()):
        if at > row.at:
            break
        table.expire(at)
        table.receive("eth0", frame, at)
        last = reported_neighbor(list(table.neighbors()), last, patient=False)
        contested.append(last is not None and last.contested)
    table.expire(row.at)
    return table, contested


@pytest.mark.parametrize("row", FORGERS + RIGHTFUL, ids=lambda row: row.what)
def test_the_switch_is_the_neighbor(row: Row) -> None:
    table, contested = played(row)
    first = table.neighbors()[0]
    reported = reported_neighbor(list(table.neighbors()), None, patient=False)
    assert (first.system_name, first.port_id.value, first.stale) == (row.name, row.port, row.stale)
    assert (first.contender, reported.contested) == (False, row in FORGERS)
    if row in RIGHTFUL:
        assert not any(contested)
