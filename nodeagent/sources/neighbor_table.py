"""Who is at the other end of each link, stated for as long as the agent runs.

The netdevs are looked at now, at every hint and at intervals; the ``Ear`` hears what is said on those that are
links. Everything that may wait for the kernel is done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

from nodeagent.host.netlink.netdevs import Netdev, Netdevs
from nodeagent.host.packet import PacketError, open_on
from nodeagent.model import Function
from nodeagent.sources.link_selection import Selected, select
from nodeagent.sources.lldp_receiver import Dcb, Ear, Opened
from nodeagent.sources.scan_hints import ScanHint
from nodeagent.sources.source_settings import LinkSelect

LOOK_GAP_S = 0.1


async def watch(
    ear: Ear,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    hints: Iterable[ScanHint],
    interval_s: float = 30.0,
    dcb: Callable[[str], Dcb] = lambda _netdev: Dcb(),
) -> None:
    """Keep the ear on the links now, after each hint and every ``interval_s``, until cancelled; it is closed
    then.

    ``functions`` are the PCI functions as last known; a change of them should be among the hints. ``dcb`` is
    asked in a thread. Raises what ``Netdevs``, the hints and ``Ear.follow`` raise.
    """
    try:
        with Netdevs() as netdevs:
            async with asyncio.TaskGroup() as group:
                for hint in hints:
                    group.create_task(_listen(hint, ear.rung))
                await _watch(ear, wanted, functions, netdevs, interval_s, dcb)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        ear.close()


async def _listen(hint: ScanHint, rung: asyncio.Event) -> None:
    while True:
        await hint.wait()
        rung.set()


async def _watch(
    ear: Ear,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    netdevs: Netdevs,
    interval_s: float,
    dcb: Callable[[str], Dcb],
) -> None:
    settings: dict[str, Dcb] = {}
    now = asyncio.get_running_loop().time
    asked_at = now()

    def look(known: tuple[Function, ...]) -> tuple[tuple[Netdev, ...], tuple[Selected, ...]]:
        found = netdevs.read()
        links = select(wanted, found, known)
        for link in links:
            if link.name not in settings:
                settings[link.name] = dcb(link.name)
        return found, links

    while True:
        ear.rung.clear()
        known = functions()
        if now() - asked_at >= interval_s:
            settings.clear()  # drivers ask their firmware: not at every hint
            asked_at = now()
        found, links = await asyncio.to_thread(look, known)
        opened = await _opened(ear.needs(links))
        try:
            ear.follow(links, found, known, opened, settings)
        finally:
            _discard(opened)
        await asyncio.sleep(LOOK_GAP_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await ear.rung.wait()


async def _opened(netdevs: Iterable[Netdev]) -> dict[int, Opened]:
    """A socket on each netdev or its trouble. Raises ``PacketError`` where no netdev at all can be had."""

    def work() -> dict[int, Opened]:
        opened: dict[int, Opened] = {}
        for netdev in netdevs:
            try:
                opened[netdev.ifindex] = open_on(netdev.ifindex, enslaved=netdev.enslaved)
            except PacketError as error:
                if error.forbidden:
                    raise
                opened[netdev.ifindex] = error
        return opened

    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_discard_result)
        raise


def _discard_result(done: asyncio.Future[dict[int, Opened]]) -> None:
    if not done.cancelled() and done.exception() is None:
        _discard(done.result())


def _discard(opened: Mapping[int, Opened]) -> None:
    for one in opened.values():
        if isinstance(one, socket.socket):
            one.close()
