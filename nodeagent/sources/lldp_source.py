"""LLDP as it is configured: heard on our own sockets, or asked of an lldpd that runs here already."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from nodeagent import __version__
from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.link_selection import LinkSelect
from nodeagent.model import Function
from nodeagent.sources import lldpd_client, neighbor_table
from nodeagent.sources.lldp_receiver import Dcb, Ear, Stated
from nodeagent.sources.lldp_sender import Announcement, management_addresses
from nodeagent.sources.pci import Hint


@dataclass(frozen=True, slots=True)
class LldpSettings:
    """``command`` is how lldpd is asked. ``transmit`` announces the node as ``system_name`` (the host's own name
    where it is ``None``) with ``addresses`` (those that it goes out by, where there are none).
    """

    source: Literal["socket", "lldpd"] = "socket"
    command: tuple[str, ...] = lldpd_client.COMMAND
    transmit: bool = False
    system_name: str | None = None
    addresses: tuple[str, ...] = ()


def announcement(settings: LldpSettings) -> Announcement | None:
    if not settings.transmit:
        return None
    return Announcement(
        system_name=settings.system_name or socket.gethostname(),
        system_description=f"nodeagent {__version__}",
        management_addresses=settings.addresses or management_addresses(),
    )


async def watch(
    settings: LldpSettings,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    hints: Iterable[Hint],
    state: Stated,
    hearing: Callable[[Ear], object] = lambda _ear: None,
) -> None:
    """State neighbors and findings until cancelled; on the way out the switches that we spoke to are told.

    Raises ``PacketError``, ``LldpdError`` or ``NetlinkError``: the source cannot speak then, and its facts
    stand.
    """
    if settings.source == "lldpd":
        await lldpd_client.watch(wanted, functions, state, settings.command)
        return
    names = {socket.gethostname(), settings.system_name or ""} - {""}
    ear = Ear(state, names=names, announcement=announcement(settings))
    hearing(ear)
    with DcbSocket() as ours:

        def dcb(netdev: str) -> Dcb:
            pfc, ets = ours.read(netdev)
            return Dcb(pfc, ets)

        await neighbor_table.watch(ear, wanted, functions, hints, dcb=dcb)
