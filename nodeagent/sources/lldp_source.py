"""LLDP as it is configured: heard on our own sockets, or asked of an lldpd that runs here already."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from nodeagent import __version__
from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.model import Function
from nodeagent.sources import lldpd_client, neighbor_table
from nodeagent.sources.lldp_receiver import Dcb, Ear, Stated
from nodeagent.sources.lldp_sender import Announcement, management_addresses
from nodeagent.sources.scan_hints import ScanHint
from nodeagent.sources.source_settings import LinkSelect, LldpSettings


def announcement(settings: LldpSettings, system_name: str | None) -> Announcement | None:
    """Frames to send, if any. ``system_name`` defaults to the host's name."""
    if not settings.transmit:
        return None
    return Announcement(
        system_name=system_name or socket.gethostname(),
        system_description=f"nodeagent {__version__}",
        management_addresses=management_addresses(),
    )


async def watch(
    settings: LldpSettings,
    wanted: LinkSelect,
    functions: Callable[[], tuple[Function, ...]],
    hints: Iterable[ScanHint],
    state: Stated,
    hearing: Callable[[Ear], object] = lambda _ear: None,
    system_name: str | None = None,
) -> None:
    """State neighbors and findings until cancelled; on the way out the switches that we spoke to are told.

    Raises ``PacketError``, ``LldpdError`` or ``NetlinkError``: the source cannot speak then, and its facts
    stand.
    """
    if settings.source == "lldpd":
        await lldpd_client.watch(wanted, functions, state, settings.command)
        return
    names = {socket.gethostname(), system_name or ""} - {""}
    ear = Ear(state, names=names, announcement=announcement(settings, system_name))
    hearing(ear)
    with DcbSocket() as ours:

        def dcb(netdev: str) -> Dcb:
            pfc, ets = ours.read(netdev)
            return Dcb(pfc, ets)

        await neighbor_table.watch(ear, wanted, functions, hints, dcb=dcb)
