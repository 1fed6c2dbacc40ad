"""Probe the rails of this node by the list in its RailPartners, and publish what the probes say.

Nothing here withdraws a device.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.partner_list import follow_partners
from nodeagent.fabric.nodelinks import CHECKABLE, NodeLinks, ReportError, convert_nodelinks
from nodeagent.fabric.rail_partners import RailPartners
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Link
from nodeagent.features.rail_probing.check_guests import GUESTS_MAX
from nodeagent.features.rail_probing.loss_direction import direction
from nodeagent.features.rail_probing.probe_caps import SENT_PER_S
from nodeagent.features.rail_probing.rail_burst import RailBurst
from nodeagent.features.rail_probing.rail_probes import (
    RTT_BOUNDS_US,
    ProbedLeg,
    ProbedRail,
    RailLink,
    RailProbes,
    checks,
)
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_views import (
    BurstRail,
    BurstResult,
    PartnerView,
    RailListing,
    RailView,
)
from nodeagent.host.clock import boottime
from nodeagent.host.netlink.addresses import Addresses
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS
from nodeagent.measurements.sample import Sample, Source

log = logging.getLogger(__name__)

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""The names that a Node can have, a DNS subdomain; nobody is asked about others."""
_NETLINK_S = 2.0


class RailWatch:
    """The probes of one node. ``rails`` returns the rail of each PF, by PCI address."""

    def __init__(
        self,
        settings: RailsSettings,
        inventory: Inventory,
        rails: Callable[[], Mapping[str, int]],
        take_samples: Callable[[Iterable[Sample]], object] = lambda _samples: None,
    ) -> None:
        self._settings, self._inventory, self._rails = settings, inventory, rails
        self._take_samples = take_samples
        self._samples: tuple[Sample, ...] = ()
        self._netlink = BoundedCalls("rails", _NETLINK_S)
        self._probes: RailProbes | None = None
        self._known: tuple[RailLink, ...] = ()
        self._reports: Callable[[str], Awaitable[NodeLinks]] | None = None
        self._node = ""
        self._checking = False

    async def run(
        self, client: ApiClient, node: str, namespace: str = "", delivery: Delivery | None = None
    ) -> None:
        """Probe until cancelled. ``namespace`` is that of the NodeLinks."""

        async def report(name: str) -> NodeLinks:
            return convert_nodelinks(await client.get(NODELINKS, name, namespace=namespace))

        async def take(partners: RailPartners | None) -> None:
            probes.take_partners(partners)

        self._reports, self._node = report, node
        self._probes = probes = RailProbes(
            self._settings, self._links, self._publish, read_addresses=self._addresses
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_partners(client, node, take, delivery))
            group.create_task(probes.run())

    async def _links(self) -> Sequence[RailLink]:
        snapshot = self._inventory.snapshot
        try:
            self._known = await self._netlink.run(read_rail_links, snapshot.links, self._rails())
        except (NetlinkError, Unanswered):
            log.debug("The addresses of the rails cannot be read; the last ones stay")
        return self._known

    def _publish(self, probes: RailProbes) -> None:
        now, unix = asyncio.get_running_loop().time(), time.time()
        found = checks(probes, now, unix)
        self._inventory.publish("rails", rail_checks=found)
        at = boottime()
        self._samples = tuple(rail_sample(rail, at, unix - now) for rail in probes.rails.values())
        self._take_samples(self._samples)

    async def _addresses(self, node: str) -> frozenset[str] | None:
        """The addresses of a node's rails, by its own report: none without one, ``None`` if it cannot be read now."""
        if self._reports is None or NODE_NAME.fullmatch(node) is None:
            return frozenset()
        try:
            links = (await self._reports(node)).links
        except ReportError as error:
            log.info("A check of the rails is not answered. node=%r reason=%r", node, str(error))
            return frozenset()
        except ApiError as error:
            if error.missing:  # anybody can make up names
                return frozenset()
            log.info("A check of the rails is not answered. node=%r reason=%r", node, str(error))
            return None
        return frozenset(one.partition("/")[0] for link in links for one in link.addresses)

    async def check(self, node: str, to: str, seconds: float) -> BurstResult:
        """Send a burst over all rails of this node to those of another, for ``nodeagent rails check``."""
        if self._probes is None or self._reports is None:
            return BurstResult(to, "this agent does not probe: set rails.probe, and give it an API server")
        if node != self._node or to == node:
            return BurstResult(to, f"this is node {self._node}: name it first, and another one second")
        if self._checking:
            return BurstResult(to, "another check runs on this node; try again in 20 s")
        self._checking = True
        try:
            report = await self._reports(to)
            addresses = {link.name: link.addresses for link in report.links}
            links = [rail.link for rail in self._probes.rails.values()]
            burst = RailBurst(self._settings, node, links, addresses)
            rails = await burst.run(seconds)
        except ApiError as error:
            why = f"no node {to} reports its links; see kubectl get nodelinks -A"
            return BurstResult(to, why if error.missing else str(error))
        except ReportError as error:
            return BurstResult(to, f"the report of {to} cannot be read: {error}")
        finally:
            self._checking = False
        return BurstResult(to, "" if burst.answered else _unanswered(to, report, rails), rails)

    def samples(self) -> tuple[Sample, ...]:
        """The latest counts of each rail, for metrics and rules."""
        return self._samples

    def listing(self) -> RailListing:
        """The rails with their partners, for ``nodeagent rails``."""
        if self._probes is None:
            return RailListing(self._settings.probe)
        now = asyncio.get_running_loop().time()
        return rail_listing(tuple(self._probes.rails.values()), now)


def _unanswered(to: str, report: NodeLinks, rails: Sequence[BurstRail]) -> str:
    """Why no rail of a check was answered."""
    if not any(rail.address for rail in rails):
        return f"no rail of this node has a counterpart on {to}; see the table"
    if any(rail.why == "refused" for rail in rails):
        return f"the network works, and no agent on {to} answers there: it needs rails.probe and a list of partners"
    if not any(link.rail_checked for link in report.links):
        return f"the agent on {to} does not probe: set rails.probe there"
    return (
        f"no rail of {to} answers: all are dead, or its agent is busy with {GUESTS_MAX} other checks or cannot read "
        "the report of this node; try again, and read its log"
    )


_WAYS = {"there": 1.0, "": 0.0, "back": -1.0}


def rail_sample(rail: ProbedRail, at: float, unix_at_zero: float) -> Sample:
    """The counts of one rail; ``unix_at_zero`` is the time at which the clock of its legs began. The nodes with a lossy
    leg count, not the legs: a link is blamed on the word of two."""
    legs = rail.legs.values()
    lossy = [leg for leg in legs if leg.small.level]
    large = {leg.partner.node for leg in legs if leg.large.level and not leg.small.level}
    now_hours = [leg.small.long(leg.small.counted_at) for leg in lossy]
    sent = sum(hour.sent for hour in now_hours)
    values = {
        "rail_checkable": float(not rail.fault),
        "rail_partners": float(
            len({leg.partner.node for leg in legs if not leg.small.absent(leg.small.counted_at)})
        ),
        "rail_lossy_small": float(len({leg.partner.node for leg in lossy})),
        "rail_lossy_large": float(len(large)),
        "rail_loss": sum(hour.lost for hour in now_hours) / sent if sent else 0.0,
    }
    if lossy:
        way = direction(*(sum(lost) for lost in zip(*(leg.direction.losses for leg in lossy), strict=True)))
        values |= {
            "rail_lossy_packets": float(sent),
            "rail_lossy_partners": float(len({(leg.partner.node, leg.partner.nic) for leg in lossy})),
            "rail_lossy_way": _WAYS[way],
            "rail_lossy_since": min(leg.small.since for leg in lossy) + unix_at_zero,
        }
    for bound, count in zip((*RTT_BOUNDS_US, None), accumulate(rail.rtt_counts), strict=True):
        values[f"rail_rtt/{'+Inf' if bound is None else f'{bound / 1e6:g}'}"] = float(count)
    values["rail_rtt/sum"] = rail.rtt_sum_us / 1e6
    for scope, count in rail.sent.items():
        values[f"rail_probes/{scope}"] = float(count)
        values[f"rail_probes_lost/{scope}"] = float(rail.lost.get(scope, 0))
    return Sample(at, rail.link.pci_address, Source.RAILS, values)


def rail_listing(rails: Sequence[ProbedRail], now: float) -> RailListing:
    """The rails for people, and what they would send where the cap of the node cuts it."""
    due = sum(leg.partner.per_second for rail in rails for leg in rail.legs.values())
    cut = (round(due, 1), SENT_PER_S) if due > SENT_PER_S else (0.0, 0.0)
    return RailListing(True, tuple(rail_view(rail, now) for rail in rails), *cut)


def rail_view(rail: ProbedRail, now: float) -> RailView:
    """One rail for people, by its probes."""
    addresses = tuple(str(one) for one in rail.link.addresses)
    partners = tuple(_partner_view(leg, now) for leg in rail.legs.values())
    return RailView(rail.link.name, rail.link.netdev, rail.fault or CHECKABLE, addresses, partners)


def _partner_view(leg: ProbedLeg, now: float) -> PartnerView:
    large = not leg.small.level and leg.large.level > 0
    hour = leg.windows(large=large).long(now)
    return PartnerView(
        *(leg.partner.node, leg.partner.nic, leg.partner.address, leg.partner.scope),
        sent=hour.sent,
        lost=hour.lost,
        level=leg.windows(large=large).level,
        large=large,
        absent=leg.small.absent(now),
        rtt_us=None if leg.rtt_us is None else round(leg.rtt_us, 1),
        answered_s=None if leg.answered_at is None else round(now - leg.answered_at, 1),
        direction=direction(*leg.direction.losses) if leg.small.level else "",
    )


def read_rail_links(links: Sequence[Link], rails: Mapping[str, int]) -> tuple[RailLink, ...]:
    """The rails of this network namespace with their addresses, in the order of their numbers. Raises
    ``NetlinkError``."""
    with Netdevs() as netdevs, Addresses() as addresses:
        found = {netdev.name: netdev for netdev in netdevs.read()}
        of = addresses.read()
    names, by_pf = nic_names(rails), {link.pci_address: link for link in links}

    def of_rail() -> Iterator[RailLink]:
        for pci_address in sorted(rails, key=lambda address: rails[address]):
            name, link = names[pci_address], by_pf.get(pci_address)
            netdev = found.get(link.netdev) if link is not None else None
            if link is None or netdev is None:
                yield RailLink(name, pci_address, link.netdev if link else "", 0, 0, (), "no-netdev")
                continue
            own = of.get(netdev.ifindex, ())
            fault = next(
                (
                    word
                    for word, bad in (
                        ("default-route", link.default_route),
                        ("bond", netdev.enslaved),
                        ("down", not netdev.carrier),
                        ("no-address", not own),
                    )
                    if bad
                ),
                "",
            )
            usable = () if fault in ("default-route", "bond") else own
            yield RailLink(name, pci_address, netdev.name, netdev.ifindex, netdev.mtu or 1500, usable, fault)

    return tuple(of_rail())
