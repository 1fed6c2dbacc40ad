"""Show the switch port at the other end of each link, as a table or as JSON: from the agent, or with own sockets.

The running agent is asked first. Without one, or on request, the command receives the same frames on sockets of its own
and disturbs no agent. It never sends, regardless of the settings: a switch would take its shutdown frame for the
agent's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs, to_builtins

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.duration import duration
from nodeagent.base.supervise import beside
from nodeagent.commands.neighbors.ib_neighbors import with_infiniband
from nodeagent.console.agent_query import ask_for, follow_agent, origin, wait_for
from nodeagent.console.json_document import json_document
from nodeagent.console.running_sources import nics_of_machine
from nodeagent.console.terminal import PLAIN, Screen, columns, note, screen, watching, wrapped
from nodeagent.facts.model import Function, Snapshot
from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.sysfs import Tree
from nodeagent.lldp.link_remarks import NO_NEIGHBOR_AFTER_S, find_remarks
from nodeagent.sources import lldp_source, lldpd_client
from nodeagent.sources.link_selection import select
from nodeagent.sources.lldp_receiver import LldpReceiver
from nodeagent.sources.machine_access import has_netdevs
from nodeagent.sources.neighbor_view import (
    AgedNeighbor,
    LinkRow,
    NeighborListing,
    of_lldpd,
    of_receiver,
)
from nodeagent.sources.pci_source import scan_once
from nodeagent.sources.source_settings import LinkSelect, LldpSettings

_WAIT_S = 35.0
"""A little more than the 30 s between two frames of a switch."""

_COLUMNS = (
    "NIC",
    "LINK",
    "PCI ADDRESS",
    "SWITCH",
    "PORT",
    "DESCRIPTION",
    "MANAGEMENT",
    "AGE",
    "TTL",
    "SINCE",
    "STATE",
)
OPTIONAL = ("MANAGEMENT", "TTL", "PCI ADDRESS", "AGE", "DESCRIPTION", "SINCE")
"""Columns that a narrow terminal does without, in this order."""
_LISTING = msgspec.json.Decoder(NeighborListing)


class CopyError(Exception):
    """The root is a copy of a machine, where no frame arrives."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"{root} is a copy of a machine, and frames arrive only at the machine itself: run the verb there, or "
            "`nodeagent decode FILE` with frames that tcpdump has recorded"
        )


async def show_neighbors(config: Config, options: argparse.Namespace) -> None:
    """Print the neighbors, with ``--watch`` at every change. Raises ``CopyError``, and what ``read_once`` raises."""
    root = options.root
    fetch = partial(ask_for, _LISTING, "/neighbors", config, root)
    found, source = (None, "") if options.receive else await in_thread(fetch)
    if options.receive:
        note("the command receives the frames itself and asks no agent")
    elif found is None or not options.json:
        note(origin(found, source, "the command receives the frames itself"))
    place = None if found is None else source
    names = {} if found is not None else await in_thread(partial(_names, config, root))

    def text(listing: NeighborListing) -> str:
        listing = listing.named(names) if found is None else listing
        return neighbors_json(listing, place, root) if options.json else neighbor_table(listing, screen())

    if options.watch is not None:
        if found is None:
            if _is_copy(config, root):
                raise CopyError(root)
            listings = watch_neighbors(config.links.select, config.lldp, root)
        else:
            listings = follow_agent(
                found, fetch, lambda one, other: one.without_times() == other.without_times(), options.watch
            )
        with watching(in_place=not options.json) as show:
            async for listing in listings:
                show(text(listing))
    elif found is not None:
        print(text(await wait_for(found, fetch, options.wait or 0.0, lambda listing: listing.waiting)))
    else:
        await _show_received(config, options, text)


def _is_copy(config: Config, root: Path) -> bool:
    """Whether the links are those of a recorded machine, and no netdevs of this host."""
    return not has_netdevs(Tree(root), config.links.select)


def _names(config: Config, root: Path) -> dict[str, str]:
    facts = scan_once(Tree(root))
    return nics_of_machine(config, root, Snapshot(functions=facts.functions, links=facts.links))


async def _show_received(
    config: Config, options: argparse.Namespace, text: Callable[[NeighborListing], str]
) -> None:
    root = options.root
    is_copy = _is_copy(config, root)
    received = NeighborListing((), ())
    if not is_copy:
        wait_s = _WAIT_S if options.wait is None else options.wait
        speak = partial(print, file=sys.stderr, flush=True)
        received = await read_once(config.links.select, config.lldp, root, wait_s, speak)
    listing = await with_infiniband(received, config.infiniband, root)
    if is_copy and not listing.rows:
        raise CopyError(root)
    print(text(listing))


async def read_once(
    wanted: LinkSelect,
    settings: LldpSettings,
    root: Path,
    wait_s: float = _WAIT_S,
    progress: Callable[[str], object] = lambda _line: None,
    no_neighbor_after_s: float = NO_NEIGHBOR_AFTER_S,
) -> NeighborListing:
    """Receive until every link with carrier has a neighbor, or for ``wait_s``.

    Raises ``PacketError``, ``LldpdError``, ``NetlinkError`` or ``SysfsError``. ``progress`` gets lines for
    stderr.
    """
    if settings.source == "lldpd":
        return await _read_lldpd(wanted, settings, _functions(Tree(root)))
    async with _receiving(wanted, settings, root, no_neighbor_after_s) as (receiver, change):
        listing = of_receiver(receiver)
        progress(_progress(listing, wait_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while listing.waiting:
                    await change()
                    before, listing = listing, of_receiver(receiver)
                    if listing.waiting != before.waiting:
                        progress(_progress(listing, None))
        return structs.replace(of_receiver(receiver), waited_s=wait_s)


async def watch_neighbors(
    wanted: LinkSelect, settings: LldpSettings, root: Path
) -> AsyncIterator[NeighborListing]:
    """Yield a listing now and one at every change, until cancelled."""
    if settings.source == "lldpd":
        tree = Tree(root)
        listing: NeighborListing | None = None
        while True:
            before, listing = listing, await _read_lldpd(wanted, settings, _functions(tree))
            if listing != before:
                yield listing
            await asyncio.sleep(lldpd_client.INTERVAL_S)
    async with _receiving(wanted, settings, root) as (receiver, change):
        while True:
            yield of_receiver(receiver)
            await change()


def _functions(tree: Tree) -> tuple[Function, ...]:
    """The functions without those of which a file hangs. The tree knows these files, so only the first look waits."""
    return scan_once(tree).functions


@asynccontextmanager
async def _receiving(
    wanted: LinkSelect, settings: LldpSettings, root: Path, no_neighbor_after_s: float = NO_NEIGHBOR_AFTER_S
) -> AsyncIterator[tuple[LldpReceiver, Callable[[], Awaitable[None]]]]:
    """A receiver that has read the netdevs once, and a function that waits for the next change."""
    changed, tree = asyncio.Event(), Tree(root)
    # Only MACs identify the node's own frames here. With the host's name, a test switch on the same host would
    # count as the node itself, because lldpd announces the host's name.
    receiver = LldpReceiver(
        lambda _neighbors, _remarks: changed.set(),
        no_neighbor_after_s=no_neighbor_after_s,
        ttl_max_s=settings.ttl_max_seconds,
    )
    with LinkEvents() as events, DcbSocket() as dcb:
        work = lldp_source.run_receiver(receiver, wanted, lambda: _functions(tree), [events], dcb=dcb.read)
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
    sides = [lldpd_client.side_of(link, without_neighbor=False) for link in links]
    names = {link.name for link in links}
    selected = [neighbor for neighbor in answer if neighbor.link in names]
    return of_lldpd(links, selected, find_remarks(sides, selected))


def _progress(listing: NeighborListing, wait_s: float | None) -> str:
    carrier = [row for row in listing.rows if row.state not in ("down", "away", "deaf")]
    known = len(carrier) - listing.waiting
    until = f"; waiting up to {wait_s:.0f} s for the others" if wait_s is not None and listing.waiting else ""
    return f"{known} of {len(carrier)} links with carrier have a neighbor ({len(listing.rows)} in all){until}"


# --- for programs ---------------------------------------------------------------------------------------


def neighbors_json(listing: NeighborListing, agent: str | None = None, root: Path = Path("/")) -> str:
    """One object on one line. ``agent``: the socket of the agent that has answered, if one has. Absent values are
    null. The first neighbor of a link is the one in NodeLinks.
    """
    return json_document(
        {
            "agent": agent,
            "fault": listing.fault,
            "links": [
                {
                    "nic": row.nic,
                    "link": row.link,
                    "pci_address": row.pci_address,
                    "driver": row.driver,
                    "state": row.state,
                    "trouble": row.error,
                    "flooded": row.flooded,
                    "moved_from": row.moved_from,
                    "moved_seconds": row.moved_s,
                    "neighbors": [
                        {
                            **{
                                name: value
                                for name, value in to_builtins(aged.neighbor).items()
                                if name != "link"
                            },
                            "age_seconds": aged.age_s,
                            "known_seconds": aged.known_s,
                            "ttl_seconds": aged.ttl_s,
                            "announced_ttl_seconds": aged.announced_ttl_s,
                        }
                        for aged in row.neighbors
                    ],
                }
                for row in listing.rows
            ],
            "findings": [to_builtins(remark) for remark in listing.remarks],
            "waited_seconds": listing.waited_s,
        },
        root,
        agent,
    )


# --- for people -----------------------------------------------------------------------------------------


def neighbor_table(listing: NeighborListing, on: Screen = PLAIN) -> str:
    if not listing.rows and listing.fault is not None:
        return f"The agent receives no LLDP: {listing.fault}"
    if not listing.rows:
        return "This machine has no link: no physical Ethernet NIC, or none that `links.select` matches."
    lines = [cells for row in listing.rows for cells in _lines(row)]
    notes = [f"the agent receives no LLDP any more: {listing.fault}"] if listing.fault is not None else []
    notes += [
        f"{_label(row)}: the neighbor was {row.moved_from} until {duration(row.moved_s)} ago"
        for row in listing.rows
        if row.moved_from is not None and row.moved_s is not None
    ]
    notes += [
        f"{_label(row)}: no LLDP in {listing.waited_s:g} s, which proves little: a switch sends every 30 s; "
        f"--wait {NO_NEIGHBOR_AFTER_S + 1:.0f} is long enough to decide"
        for row in listing.rows
        if row.state == "unheard" and listing.waited_s is not None
    ]
    notes += [f"{_label(row)}: {row.error}" for row in listing.rows if row.error]
    labels = {row.link: _label(row) for row in listing.rows}
    notes += [f"{labels.get(remark.link, remark.link)}: {remark.detail}" for remark in listing.remarks]
    first = 0 if any(row.nic for row in listing.rows) else 1  # without the column of names by rail
    table = columns(_COLUMNS[first:], [cells[first:] for cells in lines], on, optional=OPTIONAL)
    sentences = [part for note in notes for part in wrapped(note, on)]
    return "\n".join([*table, *(["", *sentences] if sentences else [])])


def _label(row: LinkRow) -> str:
    return f"{row.nic} ({row.link})" if row.nic else row.link


def _lines(row: LinkRow) -> Iterable[Sequence[object]]:
    head = (row.nic, row.link, row.pci_address or None)
    flooded = ", flooded" if row.flooded else ""
    if not row.neighbors:
        yield (*head, *[None] * 7, row.state + flooded)
    for number, aged in enumerate(row.neighbors):
        neighbor = aged.neighbor
        if row.state in ("away", "down", "deaf"):
            state = row.state
        elif neighbor.stale:
            state = "stale"
        else:
            state = "live" if number == 0 or row.neighbors[0].neighbor.stale else "live beside"
        yield (
            *head,
            neighbor.system_name or neighbor.chassis_id.value,
            neighbor.port_id.value,
            neighbor.port_description or None,
            ",".join(neighbor.management_addresses) or None,
            None if aged.age_s is None else duration(aged.age_s),
            _ttl(aged),
            None if aged.known_s is None else duration(aged.known_s),
            state + flooded,
        )


def _ttl(aged: AgedNeighbor) -> str | None:
    if aged.ttl_s is None or aged.announced_ttl_s is None:
        return None
    limited = aged.ttl_s < aged.announced_ttl_s
    announced = duration(aged.announced_ttl_s)
    return f"{duration(aged.ttl_s)} of {announced}" if limited else announced
