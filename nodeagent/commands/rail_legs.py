"""The verb `rails`: what the probes over each rail say."""

from __future__ import annotations

import argparse

from nodeagent.commands.options import FAILED, GOOD, USAGE, Add, config_option, json_option, load

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
}
"""Why a rail cannot be checked, with the remedy."""


def add(add: Add) -> None:
    parser = add(
        "rails",
        _rails,
        "show which rails lose packets, and to which partners",
        "Asks the running agent, which probes the partners of each rail if `rails.probe` is on. A leg is the way to\n"
        "a partner's NIC and back; LOSS is that of the last hour. Exit status 1: a leg loses packets; 2: no\n"
        "agent answers. A rail that cannot be checked says why.",
    )
    config_option(parser)
    json_option(parser)


def _rails(options: argparse.Namespace) -> int:
    import msgspec

    from nodeagent.cluster.rail_watch import RailListing, RailView
    from nodeagent.commands.agent_query import AgentQueryError, ask_for
    from nodeagent.commands.json_document import document
    from nodeagent.commands.terminal import joined, note, remarks, screen, section

    decoder: msgspec.json.Decoder[RailListing] = msgspec.json.Decoder(RailListing)
    try:
        answer = ask_for(decoder, "/rails", load(options.config), options.root)
    except AgentQueryError as error:
        note(str(error))
        return USAGE
    listing, source = answer
    if listing is None:
        note(f"no agent runs here ({source}), and the agent makes the probes: start it with rails.probe")
        return USAGE
    lossy = any(partner.level for rail in listing.rails for partner in rail.partners)
    if options.json:
        print(document(listing, options.root, source))
        return FAILED if lossy else GOOD
    if not listing.probes:
        note("this agent does not probe: set rails.probe, and apply overlays/rails")

    def rows(rail: RailView) -> list[tuple[object, ...]]:
        return [
            (
                *(rail.name, partner.node, partner.nic, partner.scope, partner.sent),
                f"{100 * partner.lost / partner.sent:.3g} %" if partner.sent else None,
                f"{partner.rtt_us:.0f} µs" if partner.rtt_us is not None else None,
                f"{partner.answered_s:.0f} s" if partner.answered_s is not None else None,
                _state(partner.level, large=partner.large, absent=partner.absent),
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
            section("Partners", heads, table, on, optional=("SCOPE", "SENT", "ANSWER")),
            remarks("Cannot be checked", unchecked, on),
        )
    )
    return FAILED if lossy else GOOD


def _state(level: int, *, large: bool, absent: bool) -> str:
    if absent:
        return "no agent"
    if not level:
        return "good"
    if large:
        return "large lost"
    return "dead" if level == 100 else f"loses {level} %"
