"""The verb `rails`: what the probes over each rail say, and a check of the rails to one node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nodeagent.console.options import (
    FAILED,
    GOOD,
    USAGE,
    Add,
    common_options,
    config_option,
    json_option,
    load_config,
)

if TYPE_CHECKING:
    from nodeagent.features.rail_probing.rail_views import BurstRail, BurstResult, PartnerView, RailListing

WHY = {
    "no-list": "no list of partners yet; the controller writes RailPartners, and the agent reads it every 10 minutes",
    "no-partner": "the controller found no partner for it",
    "no-address": "its netdev has no IP address",
    "no-netdev": "it has no netdev here",
    "no-socket": "its address takes no socket; rails.port may be in use",
    "refused-address": "its partners are outside its own prefix; set rails.networks",
    "default-route": "it has the host's default route",
    "bond": "it is a port of a bond or a bridge",
    "down": "it has no carrier",
    "not-there": "the other node reports no address of a rail with this name",
    "refused": "no agent answers there on this rail, and the way works; see nodeagent rails on that node",
}
"""Why a rail cannot be checked, with the remedy."""


def add(add: Add) -> None:
    parser = add(
        "rails",
        _rails,
        "show which rails lose packets, and to which partners",
        "Asks the running agent, which probes the partners of each rail if `rails.probe` is on. A leg is the way to\n"
        "a partner's NIC and back; LOSS is that of 15 minutes. Exit status 1: a leg loses packets; 2: no\n"
        "agent answers, or it does not probe. A rail that cannot be checked says why.",
    )
    config_option(parser)
    json_option(parser)
    parts = parser.add_subparsers(title="parts", metavar="check|traffic")
    check = parts.add_parser(
        "check",
        help="send a burst over all rails of node A, this one, to node B: before a job starts",
        description="Sends 20 packets a second over each rail of node A, where it is typed, to the same rail of B;\n"
        "each tenth is of the MTU. Both agents must probe (`rails.probe`). Exit status 0: all rails are good;\n"
        "1: one is dead or loses packets; 2: one cannot be checked, and it says why. docs/rail-probes.md has\n"
        "an init container.",
        formatter_class=parser.formatter_class,
    )
    check.add_argument("node", metavar="A", help="the name of this node")
    check.add_argument("to", metavar="B", help="the name of the other node")
    check.add_argument(
        "--seconds", type=int, choices=range(1, 9), default=5, metavar="N", help="1 to 8 (default: 5)"
    )
    json_option(check, of_part=True)
    common_options(check, of_part=True)
    check.set_defaults(verb=_check)
    traffic = parts.add_parser(
        "traffic",
        help="what each pod of this node carries on each rail",
        description="Asks the running agent, which counts if `traffic.report` is on: what the VFs of each pod sent\n"
        "and received between the last two readings (samples.vfSeconds), and since when each is quiet. Exit\n"
        "status 2: no agent answers, or it does not count.",
        formatter_class=parser.formatter_class,
    )
    json_option(traffic, of_part=True)
    common_options(traffic, of_part=True)
    traffic.set_defaults(verb=_traffic)


def _traffic(options: argparse.Namespace) -> int:
    import msgspec

    from nodeagent.console.agent_query import AgentQueryError, ask_for
    from nodeagent.console.json_document import json_document
    from nodeagent.console.terminal import joined, note, screen, screen_section
    from nodeagent.fabric.traffic_figures import TrafficFigures

    decoder: msgspec.json.Decoder[TrafficFigures] = msgspec.json.Decoder(TrafficFigures)
    try:
        answer = ask_for(decoder, "/traffic", load_config(options.config), options.root)
    except AgentQueryError as error:
        note(f"{error}: it needs an agent of this version with traffic.report")
        return USAGE
    figures, source = answer
    if figures is None:
        note(f"no agent runs here ({source}), and the agent counts: start it with traffic.report")
        return USAGE
    if options.json:
        print(json_document(figures, options.root, source))
        return GOOD
    rows = [
        (
            *(f"{pod.namespace}/{pod.pod}", vf.link),
            *(_gbps(rate) if vf.measured else "not measured" for rate in (vf.sent, vf.received)),
            None if vf.quiet_s is None else f"{vf.quiet_s:.0f} s",
        )
        for pod in figures.pods
        for vf in pod.vfs
    ]
    heads = ("POD", "RAIL", "SENT", "RECEIVED", "QUIET")
    print(joined(screen_section("Traffic of pods, Gbit/s", heads, rows, screen())))
    return GOOD


def _gbps(rate: float | None) -> str | None:
    return None if rate is None else f"{rate * 8e-9:.3g}"


def _check(options: argparse.Namespace) -> int:
    from urllib.parse import quote

    import msgspec

    from nodeagent.console.agent_query import AgentQueryError, ask_for
    from nodeagent.console.json_document import json_document
    from nodeagent.console.terminal import note
    from nodeagent.features.rail_probing.rail_burst import PATIENCE_S, PROBE_LATE_S
    from nodeagent.features.rail_probing.rail_views import BurstResult

    decoder: msgspec.json.Decoder[BurstResult] = msgspec.json.Decoder(BurstResult)
    page = f"/rails/check/{quote(options.node, safe='')}/{quote(options.to, safe='')}/{options.seconds}"
    try:
        answer = ask_for(
            decoder,
            page,
            load_config(options.config),
            options.root,
            options.seconds + PATIENCE_S + PROBE_LATE_S + 5,
        )
    except AgentQueryError as error:
        note(str(error))
        return USAGE
    found, source = answer
    if found is None:
        note(f"no agent runs here ({source}), and the agent of {options.node} makes the check")
        return USAGE
    if options.json:
        print(json_document(found, options.root, source))
        return _status(found)
    if found.why:
        note(f"{options.to} cannot be checked: {found.why}")
    print(_table(found))
    return _status(found)


def _table(found: BurstResult) -> str:
    from nodeagent.console.terminal import joined, remarks, screen, screen_section

    rows = [
        (
            *(rail.name, rail.address, rail.sent + rail.large_sent, rail.lost + rail.large_lost),
            f"{rail.rtt_us:.0f} µs" if rail.rtt_us is not None else None,
            _word(rail),
        )
        for rail in found.rails
        if rail.sent or rail.why == "down"
    ]
    unchecked = [
        f"{rail.name}: {WHY.get(rail.why, rail.why)}" for rail in found.rails if rail.why not in ("", "down")
    ]
    on = screen()
    return joined(
        screen_section(f"To {found.to}", ("RAIL", "ADDRESS", "SENT", "LOST", "RTT", "STATE"), rows, on),
        remarks("Cannot be checked", unchecked, on),
    )


def _word(rail: BurstRail) -> str:
    if rail.dead:
        return "dead"
    if rail.lost:
        return "loses packets"
    return "large lost" if rail.large_lost else "good"


def _status(found: BurstResult) -> int:
    if any(rail.dead or rail.lost or rail.large_lost for rail in found.rails):
        return FAILED
    return USAGE if found.why or any(rail.why for rail in found.rails) else GOOD


def _rails(options: argparse.Namespace) -> int:
    import msgspec

    from nodeagent.console.agent_query import AgentQueryError, ask_for
    from nodeagent.console.json_document import json_document
    from nodeagent.console.terminal import joined, note, remarks, screen, screen_section
    from nodeagent.features.rail_probing.rail_views import RailListing, RailView

    decoder: msgspec.json.Decoder[RailListing] = msgspec.json.Decoder(RailListing)
    try:
        answer = ask_for(decoder, "/rails", load_config(options.config), options.root)
    except AgentQueryError as error:
        note(str(error))
        return USAGE
    listing, source = answer
    if listing is None:
        note(f"no agent runs here ({source}), and the agent makes the probes: start it with rails.probe")
        return USAGE
    lossy = any(partner.level for rail in listing.rails for partner in rail.partners)
    code = FAILED if lossy else GOOD if listing.probes else USAGE
    if options.json:
        print(json_document(listing, options.root, source))
        return code
    _notes(listing)

    def rows(rail: RailView) -> list[tuple[object, ...]]:
        return [
            (
                *(rail.name, partner.node, partner.nic, partner.scope, partner.sent),
                f"{100 * partner.lost / partner.sent:.3g} %" if partner.sent else None,
                f"{partner.rtt_us:.0f} µs" if partner.rtt_us is not None else None,
                f"{partner.answered_s:.0f} s" if partner.answered_s is not None else None,
                _state(partner),
            )
            for partner in rail.partners
        ]

    heads = ("RAIL", "PARTNER", "NIC", "SCOPE", "SENT", "LOSS", "RTT", "ANSWER", "STATE")
    table = [row for rail in listing.rails for row in rows(rail)]
    unchecked = [
        f"{rail.name} ({rail.netdev or 'no netdev'}): {WHY.get(rail.checked, rail.checked)}"
        for rail in listing.rails
        if rail.checked != "yes"
    ]
    on = screen()
    print(
        joined(
            screen_section("Partners", heads, table, on, optional=("SCOPE", "SENT", "ANSWER")),
            remarks("Cannot be checked", unchecked, on),
        )
    )
    return code


def _notes(listing: RailListing) -> None:
    from nodeagent.console.terminal import note

    if not listing.probes:
        note("this agent does not probe: set rails.probe, and add components/rails")
    if listing.due_per_s:
        note(
            f"{listing.at_most_per_s:.3g} of {listing.due_per_s:.3g} packets a second are sent, the most of one node: "
            "all rails get fewer probes, and loss is found later"
        )


def _state(partner: PartnerView) -> str:
    if partner.absent:
        return "no agent"
    if not partner.level:
        return "good" if partner.answered_s is not None else "no answer yet"
    if partner.large:
        return "large lost"
    way = f" ({partner.direction})" if partner.direction else ""
    return "dead" if partner.level == 100 else f"loses {partner.level} %{way}"
