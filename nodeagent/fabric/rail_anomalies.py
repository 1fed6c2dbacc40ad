"""Rails that lose packets as anomalies: from a plan and the legs in its reports to words.

``RailJudge`` keeps who probes whom and the judgement before; it is given each plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from types import MappingProxyType

from nodeagent.fabric.anomaly_texts import names_of
from nodeagent.fabric.link_faults import LinkFault
from nodeagent.fabric.nodelinks import Metadata
from nodeagent.fabric.outcome import Anomaly, AnomalyKind, link_state
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.rail_choice import choose
from nodeagent.fabric.rail_partners import (
    ACROSS,
    LEAF,
    AnsweredPartner,
    ProbedPartner,
    RailList,
    RailPartners,
    RailPartnersSpec,
)
from nodeagent.fabric.rail_suspects import (
    CheckedLegs,
    ExplainedLegs,
    Leg,
    RailEnd,
    RailPlace,
    Scope,
    Suspect,
    agreed,
    suspects,
)
from nodeagent.fabric.reports import CompactReport, shown
from nodeagent.fabric.switch_keys import plain

ACROSS_PORTS = 8
"""Source ports of a leg across: with one, an uplink of 32 was found in 96 of 200 simulations, with eight in 199."""
_LINK_LOCAL = ("fe8", "fe9", "fea", "feb", "169.254.")
_NAME_MAX, _LINK_MAX = 253, 63
_DEAD = 100
_ALL_LEAST = 12
"""So many legs do not die at once by their cables."""
_POINTS = {
    "the cable or its optics": (
        "crc_errors",
        "symbol_errors",
        "link_recoveries",
        "link_symbol_errors",
        "pre_fec_ber",
        "post_fec_",
        "fec_",
        "lane_",
        "optics_",
    ),
    "the host": ("pause_", "network_paused", "host_stall", "pcie_"),
}
"""Reasons of a NIC by the part that they point to: its receiver, or what slows it down."""
_KINDS = {
    Scope.LINK: AnomalyKind.LINK_LOSS,
    Scope.LEAF: AnomalyKind.LEAF_LOSS,
    Scope.UPLINKS: AnomalyKind.UPLINK_LOSS,
    Scope.SPINE: AnomalyKind.SPINE_LOSS,
    Scope.CORE: AnomalyKind.SPINE_LOSS,
    Scope.HOST: AnomalyKind.HOST_SILENT,
}


class RailLists:
    """The lists of partners: the legs of ``choose`` whose ends have addresses that reach each other."""

    def __init__(
        self,
        legs: Iterable[Leg],
        places: Mapping[RailEnd, RailPlace],
        addresses: Mapping[RailEnd, tuple[str, ...]],
        per_second: float,
    ) -> None:
        self.places, self.addresses, self._per_second = places, addresses, per_second
        self.checked = CheckedLegs((leg for leg in legs if self.address(*leg)), places)

    def each(self) -> Iterator[RailPartners]:
        """The lists of each node, one after the other, since all of them take much memory."""
        of_node: dict[str, list[Leg]] = {}
        for leg in self.checked.legs:
            for end in leg:
                of_node.setdefault(end.node, []).append(leg)
        for node, legs in of_node.items():
            links = sorted({end.link for leg in legs for end in leg if end.node == node})
            rails = tuple(self._list(RailEnd(node, link), legs) for link in links)
            yield RailPartners(metadata=Metadata(name=node), spec=RailPartnersSpec(rails=rails))

    def _list(self, end: RailEnd, legs: Iterable[Leg]) -> RailList:
        probe, answer = [], []
        for leg in sorted(legs):
            far = leg.partner if leg.writer == end else leg.writer
            address = self.address(end, far)
            if leg.writer == end:
                near = self.places[end].leaf == self.places[far].leaf
                scope, ports = (LEAF, 1) if near else (ACROSS, ACROSS_PORTS)
                probe.append(
                    ProbedPartner(
                        node=far.node, nic=far.link, address=address, scope=scope, ports=ports,
                        per_second=self._per_second,
                    )
                )  # fmt: skip
            elif leg.partner == end:
                answer.append(AnsweredPartner(node=far.node, nic=far.link, address=address))
        return RailList(rail=end.link, probe=tuple(probe), answer=tuple(answer))

    def address(self, own: RailEnd, far: RailEnd) -> str:
        """The address of ``far`` that ``own`` reaches: of a common family, or link-local below one leaf."""
        mine, theirs = self.addresses.get(own, ()), self.addresses.get(far, ())
        families = {":" in text for text in mine if not text.startswith(_LINK_LOCAL)}
        for text in theirs:
            if not text.startswith(_LINK_LOCAL) and (":" in text) in families:
                return text
        local = [text for text in theirs if text.startswith("fe")]
        if (
            local
            and self.places[own].leaf == self.places[far].leaf
            and any(text.startswith("fe") for text in mine)
        ):
            return local[0]
        return ""


class RailJudge:
    """The lists of partners, and which places lose packets. ``across`` are the partners across until now."""

    def __init__(self, per_second: float = 0.5) -> None:
        self.across: dict[RailEnd, RailEnd] = {}
        self._per_second = per_second
        self.lists = RailLists((), {}, {}, per_second)
        self.bad = 0
        """The legs of the lists that lost packets at the last judgement."""
        self._since: dict[bool, dict[Suspect, float]] = {False: {}, True: {}}

    def plan(self, plan: Plan) -> None:
        """Make the lists for the links of a new plan, if they differ."""
        places, addresses = _places(plan)
        if places != self.lists.places or addresses != self.lists.addresses:
            legs, self.across = choose(places, self.across)
            self.lists = RailLists(legs, places, addresses, self._per_second)

    def adopt(self, plan: Plan, written: Iterable[RailPartners]) -> None:
        """Take the lists that are in force, in place of choosing: for a reader of the cluster."""
        legs = [
            Leg(RailEnd(one.metadata.name or "", rail.rail), RailEnd(partner.node, partner.nic))
            for one in written
            for rail in one.spec.rails
            for partner in rail.probe
        ]
        self.lists = RailLists(legs, *_places(plan), self._per_second)

    def judge(
        self,
        reports: Mapping[str, CompactReport],
        now: float,
        faults: Mapping[str, Sequence[LinkFault]] = MappingProxyType({}),
    ) -> tuple[Anomaly, ...]:
        """The places that lose packets, by the legs in the reports; only legs of our lists count. ``faults`` are those
        that the nodes report of their links, for the words."""
        checked = self.lists.checked
        bad: dict[bool, dict[Leg, int]] = {False: {}, True: {}}
        for node, report in reports.items():
            for i, reported in report.legs:
                leg = Leg(RailEnd(node, report.shape[i].link), RailEnd(reported.node, reported.nic))
                if leg in checked.legs:
                    bad[reported.large][leg] = reported.level
        self.bad = len(bad[False].keys() | bad[True].keys())
        found: list[Anomaly] = []
        for large, levels in bad.items():
            if len(levels) == len(checked.legs) >= _ALL_LEAST and min(levels.values()) == _DEAD:
                self._since[large] = {}
                found.append(_nothing_passes(len(levels), large=large))
                continue
            scopes = set(Scope) - {Scope.HOST} if large else Scope
            every = suspects(checked, levels, scopes)
            explained, self._since[large] = agreed(every, self._since[large], now)
            for one in explained:
                text = _mtu_text if large else _loss_text
                message = text(one, levels, checked.places, reports) + _counters(one, reports, faults)
                found.append(_anomaly(one, message, checked.places, large=large))
        return tuple(sorted(found))

    def forget_times(self) -> None:
        """Let each place be found twice again."""
        self._since = {False: {}, True: {}}


def _places(plan: Plan) -> tuple[dict[RailEnd, RailPlace], dict[RailEnd, tuple[str, ...]]]:
    """Of each link with an address and a switch. A link with a link-local address alone reaches its leaf only."""
    places: dict[RailEnd, RailPlace] = {}
    addresses: dict[RailEnd, tuple[str, ...]] = {}
    parent = plan.parent
    for node, report in plan.levels.reports.items():
        pattern = plan.votes.pattern(node) if report.addresses and len(node) <= _NAME_MAX else None
        if pattern is None:
            continue
        spine = parent.get(plan.nodes.place.get(node, ""), "")
        core = parent.get(spine, "")
        for slot, leaf, known in zip(report.shape, pattern.keys, report.addresses, strict=True):
            if known and leaf and len(slot.link) <= _LINK_MAX:
                end = RailEnd(node, slot.link)
                routed = not all(text.startswith(_LINK_LOCAL) for text in known)
                places[end] = (
                    RailPlace(slot.rail, leaf, spine, core) if routed else RailPlace(slot.rail, leaf)
                )
                addresses[end] = known
    return places, addresses


def _anomaly(
    found: ExplainedLegs, message: str, places: Mapping[RailEnd, RailPlace], *, large: bool
) -> Anomaly:
    scope, name, link = found.suspect
    kind = AnomalyKind.PATH_MTU if large else _KINDS[scope]
    if scope is Scope.LINK:
        return Anomaly(kind, name, shown(link), plain(places[RailEnd(name, link)].leaf), message)
    if scope is Scope.HOST:
        return Anomaly(kind, name, "", "", message)
    below = {end.node for leg in found.legs for end in leg if places[end].leaf == name}
    return Anomaly(kind, "", "", plain(name), message, tuple(sorted(below)))


def _nothing_passes(count: int, *, large: bool) -> Anomaly:
    """No leg of the hall works: that is one cause, and no cable or switch."""
    if large:
        why = "the MTU of the nodes' links is larger than that of the switches"
        return Anomaly(
            AnomalyKind.PATH_MTU,
            "",
            "",
            "",
            f"no packet of the full MTU passes any of {count} legs: most likely {why}",
        )
    why = (
        "most likely the UDP port of `rails.port` or the 24 after it are blocked, or there is no path at all"
    )
    return Anomaly(AnomalyKind.SPINE_LOSS, "", "", "", f"no probe passes any of {count} legs: {why}")


def _loss_text(
    found: ExplainedLegs,
    levels: Mapping[Leg, int],
    places: Mapping[RailEnd, RailPlace],
    reports: Mapping[str, CompactReport],
) -> str:
    scope, name, _ = found.suspect
    level = median_low(levels[leg] for leg in found.legs)
    much = "all packets" if level == 100 else f"about {level} % of the packets"
    evidence = f"{len(found.legs)} of {found.checked} legs {_partners(found)}"
    match scope:
        case Scope.LINK:
            return (
                f"{_link(found, places)} loses {much}: {evidence}; its NIC, its cable or "
                f"{_port(found, places, reports)}, which no probe tells apart"
            )
        case Scope.HOST:
            alone = all(name in (leg.writer.node, leg.partner.node) for leg in levels)
            why = (
                "it is the host and not the network, which carries the probes of others"
                if alone
                else "it is the host, or the network if the other losses have the same cause"
            )
            return f"{name} loses {much} on {_rails(found)} rails: {evidence}; {why}"
        case Scope.LEAF:
            return f"the switch {plain(name)} loses {much}: {evidence} of its links"
    paths = _paths(found)
    rivals = "".join(f", or those of {plain(rival.name)}, which the same legs pass" for rival in found.rivals)
    where = {
        Scope.UPLINKS: f"the paths of {plain(name)} to other leaf switches{rivals}",
        Scope.SPINE: f"the paths through the switches of {name}",
        Scope.CORE: "the paths through the core",
    }[scope]
    return f"about 1 of {paths} of {where} loses packets: {evidence}"


def _counters(
    found: ExplainedLegs, reports: Mapping[str, CompactReport], faults: Mapping[str, Sequence[LinkFault]]
) -> str:
    """The state that the NIC of a link reports, and where its counters point to."""
    scope, name, link = found.suspect
    if scope is not Scope.LINK:
        return ""
    said = f". The NIC reports itself as {link_state(reports[name], link)}"
    reasons = [key for fault in faults.get(name, ()) if fault.link == link for key in fault.reasons]
    places = [place for place, begins in _POINTS.items() if any(key.startswith(begins) for key in reasons)]
    if not places:
        return f"{said}: if it counts no errors, look at the port first"
    return f"{said} ({', '.join(reasons)}), which points to {' and to '.join(places)}"


def _mtu_text(
    found: ExplainedLegs,
    _levels: Mapping[Leg, int],
    places: Mapping[RailEnd, RailPlace],
    reports: Mapping[str, CompactReport],
) -> str:
    scope, name, _ = found.suspect
    if scope is Scope.LINK:
        where = f"{_link(found, places)}: its NIC or {_port(found, places, reports)}"
    else:
        where = {
            Scope.LEAF: f"the switch {plain(name)}",
            Scope.UPLINKS: f"some uplinks of {plain(name)}",
            Scope.SPINE: f"some switches of {name}",
            Scope.CORE: "some switches of the core",
        }[scope]
    return (
        f"packets of the full MTU do not pass {where}, and small ones do: {len(found.legs)} of {found.checked} legs "
        f"{_partners(found)}; compare the MTU of its ports with that of the NICs"
    )


def _partners(found: ExplainedLegs) -> str:
    nodes = sorted({end.node for leg in found.legs for end in leg} - {found.suspect.name})
    return f"to and from {len(nodes)} nodes ({names_of(nodes)})"


def _rails(found: ExplainedLegs) -> int:
    return len({end.link for leg in found.legs for end in leg if end.node == found.suspect.name})


def _link(found: ExplainedLegs, places: Mapping[RailEnd, RailPlace]) -> str:
    _, name, link = found.suspect
    rail = places[RailEnd(name, link)].rail
    return f"{shown(link)} of {name}" + (f" (rail {shown(rail)})" if rail != link else "")


def _port(
    found: ExplainedLegs, places: Mapping[RailEnd, RailPlace], reports: Mapping[str, CompactReport]
) -> str:
    """The port of the leaf switch at the other end of a link, as its node reports it."""
    _, name, link = found.suspect
    report, leaf = reports[name], plain(places[RailEnd(name, link)].leaf)
    ports = {slot.link: port for slot, port in zip(report.shape, report.ports, strict=True)}
    return f"the port {shown(ports[link])} of {leaf}" if ports.get(link) else f"its port of {leaf}"


def _paths(found: ExplainedLegs) -> int:
    """How many paths there are if one of them loses packets: a leg has a flow for each of its source ports, and each
    passes a tier twice, but the uplinks of one leaf switch once."""
    good = 1 - len(found.legs) / found.checked
    passes = ACROSS_PORTS * (1 if found.suspect.scope is Scope.UPLINKS else 2)
    return max(1, round(1 / (1 - math.pow(good, 1 / passes))))
