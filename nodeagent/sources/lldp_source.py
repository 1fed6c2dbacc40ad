"""The LLDP source: receive frames on packet sockets of the agent, or read the neighbors from a running lldpd.

The netdevs are read at start, after every hint and at intervals. Calls that may wait for the kernel run in
threads.

The time for which each neighbor of a link has sent is kept over restarts of the agent. Without it every sender would
start again at zero, and the first frame after a restart might be a forged one. The file is written when a link has
another neighbor, or when the time of one has doubled: a few dozen times in a year.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nodeagent import __version__
from nodeagent.base.bounded_calls import BoundedCalls, in_thread
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.base.supervise import either
from nodeagent.facts.model import Function, Link
from nodeagent.host.netlink.dcb import UNKNOWN_DCB, DcbSettings, DcbSocket
from nodeagent.host.netlink.netdevs import Netdev, Netdevs
from nodeagent.host.packet import PacketError, QinqSocket, open_qinq_socket, open_socket
from nodeagent.lldp.lldpdu import CHASSIS_WORDS, PORT_WORDS, ChassisId, PortId
from nodeagent.lldp.neighbor_table import PAST_MAX, SENIOR_S, NeighborTable, PastTime, Sender
from nodeagent.sources import lldpd_client
from nodeagent.sources.link_selection import SelectedLink, select
from nodeagent.sources.lldp_receiver import LldpReceiver, OpenResult, Publish
from nodeagent.sources.lldp_sender import NodeAnnouncement, management_addresses
from nodeagent.sources.scan_hints import ScanHint, forward
from nodeagent.sources.source_settings import LinkSelect, LldpSettings

log = logging.getLogger(__name__)

SCAN_GAP_S = 0.1


def announcement(settings: LldpSettings, system_name: str | None) -> NodeAnnouncement | None:
    """The announcement to send, if any. ``system_name`` defaults to the host's name."""
    if not settings.transmit:
        return None
    return NodeAnnouncement(
        system_name=system_name or socket.gethostname(),
        system_description=f"nodeagent {__version__}",
        management_addresses=management_addresses(),
    )


async def watch_lldp(
    settings: LldpSettings,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    hints: Iterable[ScanHint],
    publish: Publish,
    on_receiver: Callable[[LldpReceiver], object] = lambda _receiver: None,
    system_name: str | None = None,
    on_links: Callable[[tuple[SelectedLink, ...]], object] = lambda _links: None,
    state_folder: Path | None = None,
    recorded_links: Callable[[], tuple[Link, ...]] | None = None,
) -> None:
    """Publish neighbors and remarks until cancelled; then send shutdown frames if ``transmit`` is on.

    ``state_folder`` keeps for how long each neighbor has sent. ``recorded_links`` are those of a captured or simulated
    machine, for lldpd. Raises ``PacketError``, ``LldpdError`` or
    ``NetlinkError`` if the source cannot work; its facts stay.
    """
    if settings.source == "lldpd":
        await lldpd_client.watch_lldpd(
            wanted, functions, publish, settings.command, on_links=on_links, recorded_links=recorded_links
        )
        return
    names = {socket.gethostname(), system_name or ""} - {""}
    receiver = LldpReceiver(
        publish,
        names=names,
        announcement=announcement(settings, system_name),
        ttl_max_s=settings.ttl_max_seconds,
    )
    on_receiver(receiver)
    with DcbSocket() as dcb:
        work = run_receiver(receiver, wanted, functions, hints, dcb=dcb.read)
        if state_folder is None:
            await work
            return
        stored = StoredFile(state_folder, NEIGHBORS_FORM)
        found = await in_thread(stored.read) or ()
        restore(receiver.table, found, asyncio.get_running_loop().time())
        await either(work, keep_neighbors(receiver.table, stored, found))


async def run_receiver(
    receiver: LldpReceiver,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    hints: Iterable[ScanHint],
    interval_s: float = 30.0,
    dcb: Callable[[str], DcbSettings] = lambda _netdev: UNKNOWN_DCB,
) -> None:
    """Update the receiver's links now, after each hint and every ``interval_s``, until cancelled; then close it.

    ``functions`` returns the last known PCI functions; their change should be one of the hints. ``dcb`` is called
    in a thread. Raises the errors of ``Netdevs``, the hints and ``update_links``.
    """
    try:
        with Netdevs() as netdevs:
            async with asyncio.TaskGroup() as group:
                for hint in hints:
                    group.create_task(forward(hint, receiver.rescan))
                await _follow_netdevs(receiver, wanted, functions, netdevs, interval_s, dcb)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        receiver.close()


async def _follow_netdevs(
    receiver: LldpReceiver,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    netdevs: Netdevs,
    interval_s: float,
    dcb: Callable[[str], DcbSettings],
) -> None:
    dcb_settings: dict[str, DcbSettings] = {}
    now = asyncio.get_running_loop().time
    dcb_read_at = now()

    def scan(known: tuple[Function, ...]) -> tuple[tuple[Netdev, ...], tuple[SelectedLink, ...]]:
        listed = netdevs.read()
        links = select(wanted, listed, known)
        for link in links:
            if link.name not in dcb_settings:
                dcb_settings[link.name] = dcb(link.name)
        return listed, links

    reads = BoundedCalls("lldp", lldpd_client.NETLINK_S)
    with contextlib.closing(QinqSocket(await reads.run(open_qinq_socket), receiver.receive_tagged)):
        while True:
            receiver.rescan.clear()
            known = functions()
            if now() - dcb_read_at >= interval_s:
                dcb_settings.clear()  # not at every hint: drivers ask their firmware
                dcb_read_at = now()
            listed, links = await reads.run(scan, known)
            opened = await _open_sockets(reads, receiver.netdevs_to_open(links))
            try:
                receiver.update_links(links, listed, known, opened, dcb_settings)
            finally:
                _close_sockets(opened)
            await asyncio.sleep(SCAN_GAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await receiver.rescan.wait()


async def _open_sockets(reads: BoundedCalls, netdevs: Iterable[Netdev]) -> dict[int, OpenResult]:
    """A socket or an error for each netdev. Raises ``PacketError`` if no netdev can have one."""

    def work() -> dict[int, OpenResult]:
        opened: dict[int, OpenResult] = {}
        for netdev in netdevs:
            try:
                opened[netdev.ifindex] = open_socket(netdev.ifindex, enslaved=netdev.enslaved)
            except PacketError as error:
                if error.forbidden:
                    raise
                opened[netdev.ifindex] = error
        return opened

    working = asyncio.ensure_future(reads.run(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_close_result)
        raise


def _close_result(done: asyncio.Future[dict[int, OpenResult]]) -> None:
    if not done.cancelled() and done.exception() is None:
        _close_sockets(done.result())


def _close_sockets(opened: Mapping[int, OpenResult]) -> None:
    for result in opened.values():
        if isinstance(result, socket.socket):
            result.close()


# --- kept over restarts ---------------------------------------------------------------------------------

CHECK_S = 60.0
"""Between two comparisons with the file."""


class RememberedNeighbor(msgspec.Struct, frozen=True):
    """A neighbor of a link: its IDs and source MAC in hexadecimal, and the times of ``NeighborEntry`` in seconds.

    The first of a link is the link's neighbor. ``source`` is empty in the file of an earlier version.
    """

    link: str
    chassis_subtype: int
    chassis: str
    port_subtype: int
    port: str
    live_s: float
    pause_s: float
    source: str = ""
    name: str | None = None
    place: int = 0


Remembered = tuple[RememberedNeighbor, ...]


NEIGHBORS_FORM = StoredForm(
    name="neighbors.json",
    type=Remembered,
    content="LLDP neighbors",
    loss="another sender on a link may be taken for its switch",
)


def restore(table: NeighborTable, remembered: Iterable[RememberedNeighbor], now: float) -> None:
    """Give the table the times of an earlier agent. A record that cannot be true is ignored with a log line."""
    by_link: dict[str, dict[Sender, PastTime]] = {}
    for each in remembered:
        try:
            sender = Sender(
                ChassisId(each.chassis_subtype, bytes.fromhex(each.chassis)),
                PortId(each.port_subtype, bytes.fromhex(each.port)),
                bytes.fromhex(each.source),
                each.name,
            )
        except ValueError:
            sender = None
        known = each.chassis_subtype in CHASSIS_WORDS and each.port_subtype in PORT_WORDS
        past = by_link.setdefault(each.link, {})
        negative = min(each.live_s, each.pause_s, each.place) < 0
        if sender is None or not known or negative or len(past) >= PAST_MAX:
            log.warning("A remembered neighbor cannot be true and is ignored. file=%s", NEIGHBORS_FORM.name)
            continue
        past[sender] = PastTime(min(each.live_s, SENIOR_S), each.pause_s, each.place or len(past) + 1, now)
    for link, past in by_link.items():
        table.remember(link, past)


def remembered(table: NeighborTable) -> Remembered:
    """The neighbors of all links, those of a link by their time."""
    return tuple(
        RememberedNeighbor(
            link,
            sender.chassis.subtype,
            sender.chassis.raw.hex(),
            sender.port.subtype,
            sender.port.raw.hex(),
            round(time.live_s, 1),
            round(time.pause_s, 1),
            sender.source.hex(),
            sender.name,
            time.place,
        )
        for link, times in sorted(table.times().items())
        for sender, time in list(times.items())[:PAST_MAX]
    )


def has_news(stored: Remembered, now: Remembered) -> bool:
    """Whether a link has another neighbor than in the file, or one has sent for twice as long."""
    before, after = _firsts(stored), _firsts(now)
    return before.keys() != after.keys() or any(after[key] > 2 * before[key] for key in after)


def _firsts(neighbors: Remembered) -> dict[RememberedNeighbor, float]:
    firsts = {each.link: each for each in reversed(neighbors)}
    return {replace(each, live_s=0.0, pause_s=0.0): each.live_s for each in firsts.values()}


async def keep_neighbors(table: NeighborTable, stored: StoredFile[Remembered], written: Remembered) -> None:
    """Write the file when it is outdated, until cancelled. ``written`` is its content."""
    while True:
        await asyncio.sleep(CHECK_S)
        now = remembered(table)
        if has_news(written, now) and await stored.save(now):
            written = now
