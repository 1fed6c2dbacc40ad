"""The LLDP source: receive frames on packet sockets of the agent, or read the neighbors from a running lldpd.

The netdevs are read at start, after every hint and at intervals. Calls that may wait for the kernel run in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nodeagent import __version__
from nodeagent.base.bounded_calls import BoundedCalls, in_thread
from nodeagent.base.stored_file import StoredFile
from nodeagent.base.supervise import either
from nodeagent.facts.model import Function, Link
from nodeagent.host.netlink.dcb import UNKNOWN_DCB, DcbSettings, DcbSocket
from nodeagent.host.netlink.netdevs import Netdev, Netdevs
from nodeagent.host.packet import PacketError, QinqSocket, open_qinq_socket, open_socket
from nodeagent.sources import lldpd_client, remembered_neighbors
from nodeagent.sources.link_selection import SelectedLink, select
from nodeagent.sources.lldp_receiver import LldpReceiver, OpenResult, Publish
from nodeagent.sources.lldp_sender import NodeAnnouncement, management_addresses
from nodeagent.sources.scan_hints import ScanHint, forward
from nodeagent.sources.source_settings import LinkSelect, LldpSettings

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


async def watch(
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
        await lldpd_client.watch(
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
        stored = StoredFile(state_folder, remembered_neighbors.FORM)
        found = await in_thread(stored.read) or ()
        remembered_neighbors.restore(receiver.table, found)
        await either(work, remembered_neighbors.keep(receiver.table, stored, found))


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
