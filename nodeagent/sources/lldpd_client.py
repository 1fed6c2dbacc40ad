"""Read the neighbors from an lldpd that runs on the host.

Two LLDP receivers on one host do not disturb each other. This source is for hosts that allow no packet socket,
or whose operators use lldpd's view. The command runs every ``INTERVAL_S`` and may reach lldpd in any way:
``[chroot, /host, lldpcli, …]``, ``[nsenter, …]``. A neighbor that lldpd no longer lists stays as stale until its
link has another neighbor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.model import Function, Link, Neighbor
from nodeagent.host.netlink.netdevs import ETHERNET, Netdev, Netdevs
from nodeagent.lldp.link_remarks import NO_NEIGHBOR_AFTER_S, LinkSide, find_remarks
from nodeagent.lldp.lldpd_json import LldpdError, keep_stale, neighbors_of
from nodeagent.sources.link_selection import SelectedLink, select
from nodeagent.sources.lldp_receiver import Publish
from nodeagent.sources.source_settings import LinkSelect

COMMAND = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
INTERVAL_S = 5.0
_TIMEOUT_S = 10.0
NETLINK_S = 5.0
"""The kernel answers in a millisecond, unless a driver holds the RTNL lock."""
_ANSWER_MAX = 16 * 1024 * 1024
_END_S = 2.0
_COMPLAINT_MAX = 64 * 1024
_REMEDY = "is lldpd running, and may this container reach its socket?"


async def read_neighbors(
    command: Sequence[str] = COMMAND, timeout_s: float = _TIMEOUT_S
) -> tuple[Neighbor, ...]:
    """Run the command once. Raises ``LldpdError``."""
    name = command[0]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise LldpdError(f"{name} cannot be run: {error.strerror}; install lldpd's client") from error
    try:
        async with asyncio.timeout(timeout_s):
            answer, complaint = await asyncio.gather(
                _all(process, process.stdout, _ANSWER_MAX), _all(process, process.stderr, _COMPLAINT_MAX)
            )
            await process.wait()
    except TimeoutError:
        raise LldpdError(f"{name} did not answer within {timeout_s:g} s: {_REMEDY}") from None
    finally:
        if process.returncode is None:
            await _end(process)
    for printed, most in ((answer, _ANSWER_MAX), (complaint, _COMPLAINT_MAX)):
        if len(printed) > most:
            raise LldpdError(f"{name} printed more than {most} bytes; check lldp.command")
    if process.returncode != 0:
        why = complaint.decode("utf-8", "backslashreplace").strip().splitlines()
        reason = why[-1] if why else "without an error message"
        raise LldpdError(f"{name} failed with exit code {process.returncode}: {reason}; {_REMEDY}")
    return neighbors_of(answer)


async def _all(process: asyncio.subprocess.Process, output: asyncio.StreamReader | None, most: int) -> bytes:
    """The whole output of the command. One that prints more than ``most`` bytes is killed, and its rest is dropped."""
    read = bytearray()
    while output is not None and (part := await output.read(64 * 1024)):
        if len(read) <= most:
            read += part
        if len(read) > most and process.returncode is None:
            process.kill()
    return bytes(read)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command. asyncio notices its end only after its output was read to the end."""
    process.kill()

    async def drop(output: asyncio.StreamReader | None) -> None:
        while output is not None and await output.read(64 * 1024):
            pass

    with suppress(TimeoutError):  # a child of the command may keep the pipes open
        async with asyncio.timeout(_END_S):
            await asyncio.gather(drop(process.stdout), drop(process.stderr))
            await process.wait()


async def watch_lldpd(
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    publish: Publish,
    command: Sequence[str] = COMMAND,
    interval_s: float = INTERVAL_S,
    timeout_s: float = _TIMEOUT_S,
    on_links: Callable[[tuple[SelectedLink, ...]], object] = lambda _links: None,
    recorded_links: Callable[[], tuple[Link, ...]] | None = None,
) -> None:
    """Publish neighbors and remarks until cancelled. Raises ``LldpdError`` and the errors of ``Netdevs``.

    ``on_links`` takes the links at each reading. ``recorded_links`` takes the place of this host's netdevs.
    """
    neighbors: tuple[Neighbor, ...] = ()
    quiet_since: dict[str, float] = {}
    now = asyncio.get_running_loop().time

    def scan(known: tuple[Function, ...]) -> tuple[tuple[Netdev, ...], tuple[SelectedLink, ...]]:
        listed = netdevs()
        return listed, select(wanted, listed, known)

    reads = BoundedCalls("lldp", NETLINK_S)
    with _netdevs(recorded_links) as netdevs:
        while True:
            answer = await read_neighbors(command, timeout_s)
            listed, links = await reads.run(scan, functions())
            on_links(links)
            names = {link.name for link in links}
            unselected = {netdev.name for netdev in listed} - names
            current = tuple(neighbor for neighbor in answer if neighbor.link in names)
            before = (neighbor for neighbor in neighbors if neighbor.link not in unselected)
            neighbors = keep_stale(before, current)
            up = {link.name for link in links if link.netdev.carrier}
            quiet = up - {neighbor.link for neighbor in current}
            quiet_since = {name: quiet_since.get(name, now()) for name in quiet}
            limit = now() - NO_NEIGHBOR_AFTER_S
            without_neighbor = {name for name, since in quiet_since.items() if since <= limit}
            sides = [side_of(link, without_neighbor=link.name in without_neighbor) for link in links]
            publish(neighbors, find_remarks(sides, neighbors))
            await asyncio.sleep(interval_s)


@contextmanager
def _netdevs(
    recorded_links: Callable[[], tuple[Link, ...]] | None,
) -> Iterator[Callable[[], tuple[Netdev, ...]]]:
    if recorded_links is not None:
        yield lambda: tuple(map(_netdev, range(1, len(links := recorded_links()) + 1), links))
        return
    with Netdevs() as live:
        yield live.read


def _netdev(ifindex: int, link: Link) -> Netdev:
    """The netdev of a link that is known from the machine's files alone."""
    return Netdev(
        ifindex=ifindex,
        name=link.netdev,
        hardware=ETHERNET,
        kind=None,
        mac=None,
        permanent_mac=None,
        mtu=link.mtu,
        admin_up=link.admin_up,
        carrier=link.carrier,
        bus="pci",
        pci_address=link.pci_address,
    )


def side_of(link: SelectedLink, *, without_neighbor: bool) -> LinkSide:
    function = link.function
    return LinkSide(
        link=link.name,
        pci_address=link.pci_address,
        driver=link.driver,
        device=function.device if function else None,
        mtu=link.netdev.mtu,
        without_neighbor=without_neighbor,
    )
