"""Receive LLDP for a while and show the switch port at the other end of each link, as a table or as JSON.

This needs no running agent and does not disturb one: it receives the same frames on sockets of its own. It never
sends, regardless of the settings: a switch would take its shutdown frame for the agent's. Only this verb shows ages;
they are not part of the facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import to_builtins

from nodeagent.bounded_calls import in_thread
from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.sysfs import Tree
from nodeagent.lldp.link_remarks import NO_NEIGHBOR, NO_NEIGHBOR_AFTER_S, OWN_FRAMES, find_remarks
from nodeagent.model import Function, Neighbor, Remark
from nodeagent.plain_text import columns
from nodeagent.sources import lldp_source, lldpd_client
from nodeagent.sources.link_selection import SelectedLink, select
from nodeagent.sources.lldp_receiver import LldpReceiver, ReceivingLink
from nodeagent.sources.pci_source import scan
from nodeagent.sources.source_settings import LinkSelect, LldpSettings
from nodeagent.supervise import beside

WAIT_S = 35.0
"""A little more than the 30 s between two frames of a switch."""

_WITHOUT = ("unheard", "silent")
COLUMNS = ("LINK", "PCI ADDRESS", "SWITCH", "PORT", "DESCRIPTION", "MANAGEMENT", "AGE", "STATE")


@dataclass(frozen=True, slots=True)
class AgedNeighbor:
    """A neighbor with the ages of its last and its first frame; ``None`` for neighbors of lldpd."""

    neighbor: Neighbor
    age_s: float | None = None
    known_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link. ``state`` is ``live``, ``stale``, ``unheard`` (carrier, but no frame yet), ``silent`` (no frame for
    longer than a switch waits: a remark has the reason), ``down`` (no carrier), ``away`` (the netdev is gone),
    ``deaf`` (no socket: ``error`` has the reason; InfiniBand: a remark has it) or ``unasked`` (an InfiniBand link
    that may not ask).
    """

    link: str
    pci_address: str | None
    driver: str | None
    state: str
    neighbors: tuple[AgedNeighbor, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NeighborListing:
    """All links with their neighbors. ``waited_s`` is the time limit of a reading that has ended."""

    rows: tuple[LinkRow, ...]
    remarks: tuple[Remark, ...]
    waited_s: float | None = None

    @property
    def waiting(self) -> int:
        """The number of links with carrier and no frame yet."""
        return sum(row.state in _WITHOUT for row in self.rows)


async def read_once(
    wanted: LinkSelect,
    settings: LldpSettings,
    root: Path,
    wait_s: float = WAIT_S,
    progress: Callable[[str], object] = lambda _line: None,
    no_neighbor_after_s: float = NO_NEIGHBOR_AFTER_S,
) -> NeighborListing:
    """Receive until every link with carrier has a neighbor, or for ``wait_s``.

    Raises ``PacketError``, ``LldpdError``, ``NetlinkError`` or ``SysfsError``. ``progress`` gets lines for
    stderr.
    """
    if settings.source == "lldpd":
        return await _read_lldpd(wanted, settings, _functions(root))
    async with _receiving(wanted, root, no_neighbor_after_s) as (receiver, change):
        listing = _listing(receiver)
        progress(_progress(listing, wait_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while listing.waiting:
                    await change()
                    before, listing = listing, _listing(receiver)
                    if listing.waiting != before.waiting:
                        progress(_progress(listing, None))
        return replace(_listing(receiver), waited_s=wait_s)


async def watch(wanted: LinkSelect, settings: LldpSettings, root: Path) -> AsyncIterator[NeighborListing]:
    """Yield a listing now and one at every change, until cancelled."""
    if settings.source == "lldpd":
        listing: NeighborListing | None = None
        while True:
            before, listing = listing, await _read_lldpd(wanted, settings, _functions(root))
            if listing != before:
                yield listing
            await asyncio.sleep(lldpd_client.INTERVAL_S)
    async with _receiving(wanted, root) as (receiver, change):
        while True:
            yield _listing(receiver)
            await change()


def _functions(root: Path) -> tuple[Function, ...]:
    return scan(Tree(root)).functions


@asynccontextmanager
async def _receiving(
    wanted: LinkSelect, root: Path, no_neighbor_after_s: float = NO_NEIGHBOR_AFTER_S
) -> AsyncIterator[tuple[LldpReceiver, Callable[[], Awaitable[None]]]]:
    """A receiver that has read the netdevs once, and a function that waits for the next change."""
    changed = asyncio.Event()
    # Only MACs identify the node's own frames here. With the host's name, a test switch on the same host would
    # count as the node itself, because lldpd announces the host's name.
    receiver = LldpReceiver(
        lambda _neighbors, _remarks: changed.set(), no_neighbor_after_s=no_neighbor_after_s
    )
    with LinkEvents() as events, DcbSocket() as dcb:
        work = lldp_source.run_receiver(receiver, wanted, lambda: _functions(root), [events], dcb=dcb.read)
        async with beside(work, receiver.updated.wait()) as working:
            working.add_done_callback(lambda _: changed.set())

            async def change() -> None:
                await changed.wait()
                changed.clear()
                if working.done():
                    await working

            yield receiver, change


async def _read_lldpd(
    wanted: LinkSelect, settings: LldpSettings, functions: Iterable[Function]
) -> NeighborListing:
    answer = await lldpd_client.read_neighbors(settings.command)
    with Netdevs() as netdevs:
        links = select(wanted, await in_thread(netdevs.read), functions)
    by_link: dict[str, list[AgedNeighbor]] = {}
    for neighbor in answer:
        by_link.setdefault(neighbor.link, []).append(AgedNeighbor(neighbor))
    rows = [_row(link, tuple(by_link.get(link.name, ())), None, without_neighbor=False) for link in links]
    sides = [lldpd_client.side_of(link, without_neighbor=False) for link in links]
    names = {row.link for row in rows}
    return NeighborListing(
        tuple(rows), find_remarks(sides, [neighbor for neighbor in answer if neighbor.link in names])
    )


def _listing(receiver: LldpReceiver) -> NeighborListing:
    now = asyncio.get_running_loop().time()
    without_neighbor = {remark.link for remark in receiver.remarks if remark.key in (NO_NEIGHBOR, OWN_FRAMES)}
    rows = []
    for name, link in sorted(receiver.links.items()):
        neighbors = tuple(
            AgedNeighbor(
                entry.neighbor, round(now - entry.last_received, 1), round(now - entry.first_received, 1)
            )
            for entry in receiver.entries(name)
        )
        rows.append(_row(link.selected, neighbors, link, without_neighbor=name in without_neighbor))
    return NeighborListing(tuple(rows), receiver.remarks)


def _row(
    selected: SelectedLink,
    neighbors: tuple[AgedNeighbor, ...],
    link: ReceivingLink | None,
    *,
    without_neighbor: bool,
) -> LinkRow:
    if link is not None and link.away_at is not None:
        state = "away"
    elif link is not None and link.socket is None:
        state = "deaf"
    elif any(not aged.neighbor.stale for aged in neighbors):
        state = "live"
    elif not selected.netdev.carrier:
        state = "down"
    elif neighbors:
        state = "stale"
    else:
        state = "silent" if without_neighbor else "unheard"
    error = link.error if link else None
    return LinkRow(selected.name, selected.pci_address, selected.driver, state, neighbors, error)


def _progress(listing: NeighborListing, wait_s: float | None) -> str:
    carrier = [row for row in listing.rows if row.state not in ("down", "away", "deaf")]
    known = len(carrier) - listing.waiting
    until = f"; waiting up to {wait_s:.0f} s for the others" if wait_s is not None and listing.waiting else ""
    links = f"({len(listing.rows)} links in all)"
    return f"{known} of {len(carrier)} links with carrier have a neighbor {links}{until}"


# --- for programs ---------------------------------------------------------------------------------------


def as_json(listing: NeighborListing) -> str:
    """One object on one line. Absent values are null."""
    return json.dumps(
        {
            "links": [
                {
                    "link": row.link,
                    "pci_address": row.pci_address,
                    "driver": row.driver,
                    "state": row.state,
                    "trouble": row.error,
                    "neighbors": [
                        {
                            **{
                                name: value
                                for name, value in to_builtins(aged.neighbor).items()
                                if name != "link"
                            },
                            "age_seconds": aged.age_s,
                            "known_seconds": aged.known_s,
                        }
                        for aged in row.neighbors
                    ],
                }
                for row in listing.rows
            ],
            "findings": [to_builtins(remark) for remark in listing.remarks],
            "waited_seconds": listing.waited_s,
        },
        ensure_ascii=True,
    )


# --- for people -----------------------------------------------------------------------------------------


def as_table(listing: NeighborListing) -> str:
    if not listing.rows:
        return "This machine has no link: no physical Ethernet NIC, or none that `links.select` matches."
    lines = [cells for row in listing.rows for cells in _lines(row)]
    notes = [
        f"{row.link}: no LLDP in {listing.waited_s:g} s, which proves little: a switch sends every 30 s; "
        f"--wait {NO_NEIGHBOR_AFTER_S + 1:.0f} is long enough to decide"
        for row in listing.rows
        if row.state == "unheard" and listing.waited_s is not None
    ]
    notes += [f"{row.link}: {row.error}" for row in listing.rows if row.error]
    notes += [f"{remark.link}: {remark.detail}" for remark in listing.remarks]
    return "\n".join([*columns(COLUMNS, lines), *(["", *notes] if notes else [])])


def _lines(row: LinkRow) -> Iterable[tuple[str, ...]]:
    head = (row.link, row.pci_address or "-")
    if not row.neighbors:
        yield (*head, "-", "-", "-", "-", "-", row.state)
    for aged in row.neighbors:
        neighbor = aged.neighbor
        state = row.state if row.state in ("away", "down", "deaf") else "stale" if neighbor.stale else "live"
        yield (
            *head,
            neighbor.system_name or neighbor.chassis_id.value,
            neighbor.port_id.value,
            neighbor.port_description or "-",
            ",".join(neighbor.management_addresses) or "-",
            "-" if aged.age_s is None else f"{aged.age_s:.0f}s",
            state,
        )
