"""Whether the switches are heard: by listening for a while, where that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.target import Subject
from nodeagent.host.netlink.kernel_events import LinkEvents, NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.packet import PacketError
from nodeagent.lldp import link_remarks as odd
from nodeagent.lldp.link_remarks import LinkSide, silence_reason
from nodeagent.lldp.lldpd_json import LldpdError
from nodeagent.model import Function, Neighbor, Remark
from nodeagent.sources import lldp_source
from nodeagent.sources.link_selection import select
from nodeagent.sources.pci_source import scan

TOPIC = Topic(
    "lldp",
    "LLDP",
    {
        "lldp_off": FACT,
        "lldp_heard": FACT,
        "lldp_no_link": FACT,
        "lldp_not_listened": Entry(
            "A switch speaks every 30 s; nobody can say anything of it sooner.",
            "nodeagent doctor --wait 35, or `nodeagent neighbors`",
        ),
        "lldp_unheard": Entry(
            "Which switch port a link is plugged into is learnt by LLDP alone: without it no topology is known.",
            "switch LLDP on at the switch port; look for firmware that takes the frames",
        ),
        "lldp_deaf": Entry(
            "Without a socket for LLDP no switch is known.",
            "CAP_NET_RAW and hostNetwork: true; or an lldpd on the host, and lldp.source: lldpd",
        ),
        "lldp_no_carrier": Entry(
            "A link without carrier hears nobody, and its VFs are Unhealthy.",
            "plug it in, or look at `ethtool NETDEV`; leave a port that is not used out by `links.select`",
        ),
        "lldp_odd": Entry(
            "What switch and host say of one link does not fit together.",
            "mend the side that is wrong; `nodeagent neighbors` shows both",
        ),
        "lldp_two_speakers": Entry(
            "Two LLDP agents of one host on a port are two neighbors to the switch, and DCBX may refuse both.",
            "set lldp.transmit: false, or stop the host's lldpd",
        ),
    },
)

LLDPD_SOCKETS = ("/run/lldpd.socket", "/run/lldpd/lldpd.socket", "/var/run/lldpd.socket")
INTERVAL_S = 30.0
"""msgTxInterval of 802.1AB: a wait that is shorter proves nothing."""


@dataclass(frozen=True, slots=True)
class Lldp:
    """``up`` and ``down`` are the links with and without carrier, ``None`` where nobody looked. ``waited_s`` is 0
    where nobody listened.
    """

    up: tuple[LinkSide, ...] | None = None
    down: tuple[str, ...] = ()
    waited_s: float = 0.0
    neighbors: tuple[Neighbor, ...] = ()
    remarks: tuple[Remark, ...] = ()
    trouble: str | None = None
    lldpd: bool = False


async def look(subject: Subject) -> Lldp:
    config, tree = subject.config, subject.tree
    if not discovery.receives_lldp(config, tree):
        return Lldp()
    functions = scan(tree).functions
    wanted = config.links.select
    try:
        with Netdevs() as netdevs:
            links = select(wanted, netdevs.read(), functions)
    except NetlinkError as error:
        return Lldp(trouble=str(error))
    seen = Lldp(
        up=tuple(
            LinkSide(one.name, one.pci_address, one.driver, one.function.device if one.function else None)
            for one in links
            if one.netdev.carrier
        ),
        down=tuple(one.name for one in links if not one.netdev.carrier),
        lldpd=any(tree.exists(path) for path in LLDPD_SOCKETS),
    )
    if subject.wait_s <= 0 or not seen.up:
        return seen
    return await _listen(subject, seen, functions)


async def _listen(subject: Subject, seen: Lldp, functions: tuple[Function, ...]) -> Lldp:
    """Until every link with carrier was heard, or for as long as was asked for."""
    heard: tuple[tuple[Neighbor, ...], tuple[Remark, ...]] = ((), ())
    names = {near.link for near in seen.up or ()}
    everybody = asyncio.Event()
    # A farewell of ours would be believed by the switches.
    settings = replace(subject.config.lldp, transmit=False)

    def state(neighbors: tuple[Neighbor, ...], remarks: tuple[Remark, ...]) -> None:
        nonlocal heard
        heard = neighbors, remarks
        if names <= {one.link for one in neighbors}:
            everybody.set()

    async def listen() -> None:
        with LinkEvents() as events:
            await lldp_source.watch(settings, subject.config.links.select, lambda: functions, [events], state)

    listening, waiting = asyncio.create_task(listen()), asyncio.create_task(everybody.wait())
    trouble = None
    try:
        both = (listening, waiting)
        await asyncio.wait(both, timeout=subject.wait_s, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            await listening
    except (PacketError, LldpdError, NetlinkError, OSError) as error:
        trouble = str(error)
    finally:
        for task in (listening, waiting):
            task.cancel()
        await asyncio.gather(listening, waiting, return_exceptions=True)
    return replace(seen, waited_s=subject.wait_s, neighbors=heard[0], remarks=heard[1], trouble=trouble)


def judge(seen: Lldp, config: Config) -> Iterator[Finding]:
    if config.lldp.source == "none":
        yield TOPIC.ok("lldp_off", "lldp.source is none: switches are not listened to")
        return
    if config.lldp.transmit and seen.lldpd and config.lldp.source == "socket":
        yield TOPIC.warn("lldp_two_speakers", "lldp.transmit is on and an lldpd runs on this host")
    if seen.trouble is not None:
        yield TOPIC.fix("lldp_deaf", seen.trouble)
        return
    if seen.up is None:
        return
    if seen.down:
        yield TOPIC.note("lldp_no_carrier", f"no carrier on {some(seen.down)}")
    if not seen.up:
        yield TOPIC.ok("lldp_no_link", "no link has carrier")
    elif not seen.waited_s:
        yield TOPIC.note("lldp_not_listened", f"{count(len(seen.up), 'link')} with carrier, nobody listened")
    else:
        yield from _heard(seen)
    for one in seen.remarks:
        if one.key != odd.SILENT:
            yield TOPIC.warn("lldp_odd", f"{one.link}: {one.detail}")


def _heard(seen: Lldp) -> Iterator[Finding]:
    up = seen.up or ()
    live = {one.link: one for one in seen.neighbors if not one.stale}
    unheard = [near for near in up if near.link not in live]
    if len(unheard) < len(up):
        switches = sorted({one.system_name or one.chassis_id.value for one in live.values()})
        yield TOPIC.ok("lldp_heard", f"{len(up) - len(unheard)} of {len(up)} links hear {some(switches)}")
    by_reason: dict[str, list[str]] = {}
    for near in unheard:
        by_reason.setdefault(silence_reason(replace(near, link="NETDEV", pci_address="ADDRESS")), []).append(
            near.link
        )
    for reason, links in by_reason.items():
        what = f"{some(links)} heard nobody in {seen.waited_s:g} s"
        if seen.waited_s < INTERVAL_S:
            yield TOPIC.note("lldp_unheard", f"{what}, which says little", "listen for longer: --wait 35")
        else:
            yield TOPIC.warn("lldp_unheard", what, reason)
