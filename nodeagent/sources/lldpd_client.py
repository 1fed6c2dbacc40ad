"""The same facts from an lldpd that already runs on the host: it listens, we ask.

Two LLDP receivers on one host do not disturb each other; this one is for hosts where no packet socket may be
had, or where lldpd's view is the one that operators look at. The command is asked every ``EVERY_S`` and may
reach lldpd in any way: ``[chroot, /host, lldpcli, …]``, ``[nsenter, …]``. A neighbor that it no longer shows
is stale until its link hears another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nodeagent.host.netlink.netdevs import Netdev, Netdevs
from nodeagent.lldp.link_remarks import SILENT_AFTER_S, Near, findings
from nodeagent.lldp.lldpd_json import LldpdError, kept, neighbors_of
from nodeagent.model import Function, Neighbor
from nodeagent.sources.link_selection import Selected, select
from nodeagent.sources.lldp_receiver import Stated
from nodeagent.sources.source_settings import LinkSelect

COMMAND = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
EVERY_S = 5.0
TIMEOUT_S = 10.0
_ANSWER_MAX = 16 * 1024 * 1024
_REMEDY = "is lldpd running, and may this container reach its socket?"


async def ask(command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> tuple[Neighbor, ...]:
    """Raises ``LldpdError`` for whatever keeps lldpd from answering."""
    name = command[0]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_ANSWER_MAX,
        )
    except OSError as error:
        raise LldpdError(f"{name} cannot be run: {error.strerror}; install lldpd's client") from error
    try:
        async with asyncio.timeout(timeout_s):
            answer, complaint = await process.communicate()
    except TimeoutError:
        raise LldpdError(f"{name} gave no answer in {timeout_s:g} s: {_REMEDY}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        why = complaint.decode("utf-8", "backslashreplace").strip().splitlines()
        said = why[-1] if why else "it said nothing"
        raise LldpdError(f"{name} failed with exit code {process.returncode}: {said}; {_REMEDY}")
    return neighbors_of(answer)


async def watch(
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    state: Stated,
    command: Sequence[str] = COMMAND,
    every_s: float = EVERY_S,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """State the neighbors of the links, until cancelled. Raises ``LldpdError`` and what ``Netdevs`` raises."""
    neighbors: tuple[Neighbor, ...] = ()
    quiet_since: dict[str, float] = {}
    now = asyncio.get_running_loop().time

    def look(known: tuple[Function, ...]) -> tuple[tuple[Netdev, ...], tuple[Selected, ...]]:
        found = netdevs.read()
        return found, select(wanted, found, known)

    with Netdevs() as netdevs:
        while True:
            answer = await ask(command, timeout_s)
            found, links = await asyncio.to_thread(look, functions())
            names = {link.name for link in links}
            unselected = {netdev.name for netdev in found} - names
            heard = tuple(one for one in answer if one.link in names)
            neighbors = kept((one for one in neighbors if one.link not in unselected), heard)
            up = {link.name for link in links if link.netdev.carrier}
            silent = up - {one.link for one in heard}
            quiet_since = {name: quiet_since.get(name, now()) for name in silent}
            late = now() - SILENT_AFTER_S
            quiet = {name for name, since in quiet_since.items() if since <= late}
            state(neighbors, findings([near_of(link, quiet=link.name in quiet) for link in links], neighbors))
            await asyncio.sleep(every_s)


def near_of(link: Selected, *, quiet: bool) -> Near:
    function = link.function
    return Near(
        link=link.name,
        pci_address=link.pci_address,
        driver=link.driver,
        device=function.device if function else None,
        mtu=link.netdev.mtu,
        quiet=quiet,
    )
