"""The time for which each neighbor of a link has sent, kept over restarts of the agent.

Without it every sender would start again at zero, and the first frame after a restart might be a forged one. The file
is written when a link has another neighbor, or when the time of one has doubled: a few dozen times in a year.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.lldp.lldpdu import CHASSIS_WORDS, PORT_WORDS, ChassisId, PortId
from nodeagent.lldp.neighbor_table import PAST_MAX, Msap, NeighborTable

log = logging.getLogger(__name__)

CHECK_S = 60.0
"""Between two comparisons with the file."""


class RememberedNeighbor(msgspec.Struct, frozen=True):
    """A neighbor of a link: its IDs in hexadecimal, and the times of ``NeighborEntry`` in seconds."""

    link: str
    chassis_subtype: int
    chassis: str
    port_subtype: int
    port: str
    live_s: float
    pause_s: float


Remembered = tuple[RememberedNeighbor, ...]


FORM = StoredForm(
    name="neighbors.json",
    type=Remembered,
    content="LLDP neighbors",
    loss="another sender on a link may be taken for its switch",
)


def restore(table: NeighborTable, remembered: Iterable[RememberedNeighbor]) -> None:
    """Give the table the times of an earlier agent. A record that cannot be true is ignored with a log line."""
    by_link: dict[str, dict[Msap, tuple[float, float]]] = {}
    for each in remembered:
        try:
            ids = (
                ChassisId(each.chassis_subtype, bytes.fromhex(each.chassis)),
                PortId(each.port_subtype, bytes.fromhex(each.port)),
            )
        except ValueError:
            ids = None
        known = each.chassis_subtype in CHASSIS_WORDS and each.port_subtype in PORT_WORDS
        past = by_link.setdefault(each.link, {})
        if ids is None or not known or each.live_s < 0 or each.pause_s < 0 or len(past) >= PAST_MAX:
            log.warning("A remembered neighbor cannot be true and is ignored. file=%s", FORM.name)
            continue
        past[ids] = (each.live_s, each.pause_s)
    for link, past in by_link.items():
        table.remember(link, past)


def remembered(table: NeighborTable) -> Remembered:
    """The neighbors of all links, those of a link by their time."""
    return tuple(
        RememberedNeighbor(
            link,
            chassis.subtype,
            chassis.raw.hex(),
            port.subtype,
            port.raw.hex(),
            round(live_s, 1),
            round(pause_s, 1),
        )
        for link, times in sorted(table.times().items())
        for (chassis, port), (live_s, pause_s) in sorted(
            times.items(), key=lambda item: item[1], reverse=True
        )[:PAST_MAX]
    )


def is_outdated(stored: Remembered, now: Remembered) -> bool:
    """Whether a link has another neighbor than in the file, or one has sent for twice as long."""
    before, after = _firsts(stored), _firsts(now)
    return before.keys() != after.keys() or any(after[key] > 2 * before[key] for key in after)


def _firsts(neighbors: Remembered) -> dict[tuple[str, str, str], float]:
    firsts = {each.link: each for each in reversed(neighbors)}
    return {(each.link, each.chassis, each.port): each.live_s for each in firsts.values()}


async def keep(table: NeighborTable, stored: StoredFile[Remembered], written: Remembered) -> None:
    """Write the file when it is outdated, until cancelled. ``written`` is its content."""
    while True:
        await asyncio.sleep(CHECK_S)
        now = remembered(table)
        if is_outdated(written, now) and await stored.save(now):
            written = now
