"""Check whether LLDP frames of the switches arrive, by receiving for ``--wait`` seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from nodeagent.agent_config import Config
from nodeagent.base.supervise import beside
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import Function, Neighbor, Remark
from nodeagent.host.netlink.kernel_events import LinkEvents, NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.packet import PacketError
from nodeagent.lldp import link_remarks as odd
from nodeagent.lldp.link_remarks import LinkSide, missing_frames_reason
from nodeagent.lldp.lldpd_json import LldpdError
from nodeagent.sources import lldp_source
from nodeagent.sources.link_selection import select
from nodeagent.sources.machine_access import has_netdevs
from nodeagent.sources.pci_source import scan

TOPIC = Topic(
    "lldp",
    "LLDP",
    {
        "lldp_off": FACT,
        "lldp_heard": FACT,
        "lldp_no_link": FACT,
        "lldp_not_listened": Advice(
            "A switch sends LLDP every 30 s, so this check needs time.",
            "nodeagent doctor --wait 35, or `nodeagent neighbors`",
        ),
        "lldp_unheard": Advice(
            "Only LLDP shows which switch port a link is connected to: without it the topology is unknown.",
            "enable LLDP on the switch port; check whether the NIC's firmware consumes the frames",
        ),
        "lldp_deaf": Advice(
            "Without a socket for LLDP no switch is known.",
            "add CAP_NET_RAW and hostNetwork: true; or run lldpd on the host and set lldp.source: lldpd",
        ),
        "lldp_no_carrier": Advice(
            "A link without carrier receives nothing, and its VFs are Unhealthy.",
            "connect the cable, or check `ethtool NETDEV`; exclude an unused port with `links.select`",
        ),
        "lldp_odd": Advice(
            "The LLDP data of switch and host contradict each other.",
            "correct the wrong side; `nodeagent neighbors` shows both",
        ),
        "lldp_two_speakers": Advice(
            "Two LLDP agents on one port appear to the switch as two neighbors, and DCBX may reject both.",
            "set lldp.transmit: false, or stop lldpd on the host",
        ),
    },
)

LLDPD_SOCKETS = ("/run/lldpd.socket", "/run/lldpd/lldpd.socket", "/var/run/lldpd.socket")
INTERVAL_S = 30.0
"""msgTxInterval of 802.1AB: a shorter wait proves nothing."""


@dataclass(frozen=True, slots=True)
class LldpFacts:
    """``up`` and ``down``: links with and without carrier; ``up`` is ``None`` where the links were not read.
    ``waited_s``: how long LLDP was received; 0: not at all.
    """

    up: tuple[LinkSide, ...] | None = None
    down: tuple[str, ...] = ()
    waited_s: float = 0.0
    neighbors: tuple[Neighbor, ...] = ()
    remarks: tuple[Remark, ...] = ()
    error: str | None = None
    lldpd: bool = False


async def read(target: Target) -> LldpFacts:
    config, tree = target.config, target.tree
    wanted = config.links.select
    if config.lldp.source == "none" or not has_netdevs(tree, wanted):
        return LldpFacts()
    functions = scan(tree).functions
    try:
        with Netdevs() as netdevs:
            links = select(wanted, netdevs.read(), functions)
    except NetlinkError as error:
        return LldpFacts(error=str(error))
    facts = LldpFacts(
        up=tuple(
            LinkSide(
                link.name, link.pci_address, link.driver, link.function.device if link.function else None
            )
            for link in links
            if link.netdev.carrier
        ),
        down=tuple(link.name for link in links if not link.netdev.carrier),
        lldpd=any(tree.exists(path) for path in LLDPD_SOCKETS),
    )
    if target.wait_s <= 0 or not facts.up:
        return facts
    return await _receive(target, facts, functions)


async def _receive(target: Target, facts: LldpFacts, functions: tuple[Function, ...]) -> LldpFacts:
    """Receive until every link with carrier has a neighbor, or for ``wait_s``."""
    published: tuple[tuple[Neighbor, ...], tuple[Remark, ...]] = ((), ())
    links = {side.link for side in facts.up or ()}
    complete = asyncio.Event()
    # A shutdown frame would remove the agent's own announcement at the switches.
    settings = structs.replace(target.config.lldp, transmit=False)

    def publish(neighbors: tuple[Neighbor, ...], remarks: tuple[Remark, ...]) -> None:
        nonlocal published
        published = neighbors, remarks
        if links <= {neighbor.link for neighbor in neighbors}:
            complete.set()

    async def watch() -> None:
        with LinkEvents() as events:
            await lldp_source.watch(
                settings, target.config.links.select, lambda: functions, [events], publish
            )

    failure = None
    try:
        async with beside(watch(), complete.wait(), target.wait_s):
            pass
    except (PacketError, LldpdError, NetlinkError, OSError) as error:
        failure = str(error)
    neighbors, remarks = published
    return replace(facts, waited_s=target.wait_s, neighbors=neighbors, remarks=remarks, error=failure)


def findings(facts: LldpFacts, config: Config) -> Iterator[Finding]:
    if config.lldp.source == "none":
        yield TOPIC.ok("lldp_off", "lldp.source is none: LLDP is not received")
        return
    if config.lldp.transmit and facts.lldpd and config.lldp.source == "socket":
        yield TOPIC.warn("lldp_two_speakers", "lldp.transmit is on and lldpd runs on this host")
    if facts.error is not None:
        yield TOPIC.fix("lldp_deaf", facts.error)
        return
    if facts.up is None:
        return
    if facts.down:
        yield TOPIC.note("lldp_no_carrier", f"no carrier on {shortened(facts.down)}")
    if not facts.up:
        yield TOPIC.ok("lldp_no_link", "no link has carrier")
    elif not facts.waited_s:
        yield TOPIC.note(
            "lldp_not_listened", f"{count(len(facts.up), 'link')} with carrier; LLDP was not received"
        )
    else:
        yield from _heard(facts)
    for remark in facts.remarks:
        if remark.key != odd.NO_NEIGHBOR:
            yield TOPIC.warn("lldp_odd", f"{remark.link}: {remark.detail}")


def _heard(facts: LldpFacts) -> Iterator[Finding]:
    up = facts.up or ()
    live = {neighbor.link: neighbor for neighbor in facts.neighbors if not neighbor.stale}
    unheard = [near for near in up if near.link not in live]
    if len(unheard) < len(up):
        switches = sorted({neighbor.system_name or neighbor.chassis_id.value for neighbor in live.values()})
        yield TOPIC.ok(
            "lldp_heard",
            f"{len(up) - len(unheard)} of {len(up)} links receive LLDP from {shortened(switches)}",
        )
    by_reason: dict[str, list[str]] = {}
    for near in unheard:
        by_reason.setdefault(
            missing_frames_reason(replace(near, link="NETDEV", pci_address="ADDRESS")), []
        ).append(near.link)
    for reason, links in by_reason.items():
        what = f"{shortened(links)} received no LLDP in {facts.waited_s:g} s"
        if facts.waited_s < INTERVAL_S:
            yield TOPIC.note("lldp_unheard", f"{what}, less than the send interval", "wait longer: --wait 35")
        else:
            yield TOPIC.warn("lldp_unheard", what, reason)
