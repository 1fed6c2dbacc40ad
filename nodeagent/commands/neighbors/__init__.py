"""The verb `neighbors`: the switch port at the other end of each link."""

from __future__ import annotations

import argparse
import asyncio
import sys

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import (
    GOOD,
    Add,
    config_option,
    json_option,
    load,
    seconds,
)
from nodeagent.commands.terminal import note, screen, watching


def add(add: Add) -> None:
    parser = add(
        "neighbors",
        _neighbors,
        "show the switch port at the other end of each link, by LLDP",
        "The agent that serves the machine below --root answers at once, with the neighbors that NodeLinks and the\n"
        "metrics show. Without one, or with --listen, the command receives the frames itself, which needs\n"
        "CAP_NET_RAW, until every link with carrier has a neighbor; a switch sends every 30 s. `links.select` of the\n"
        "configuration then defines which netdevs are links. A line on stderr, and `agent` in JSON, shows which\n"
        "answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="SECONDS",
        help="wait for no longer than this for neighbors (default: 35, or 0 if the agent answers)",
    )
    parser.add_argument("--watch", action="store_true", help="print at every change, until interrupted")
    parser.add_argument(
        "--listen", action="store_true", help="ask no agent: receive the frames with own sockets"
    )


def _neighbors(options: argparse.Namespace) -> int:
    from nodeagent.commands.neighbors import neighbor_listing
    from nodeagent.commands.neighbors.ib_neighbors import with_infiniband
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.machine_access import is_recorded
    from nodeagent.sources.neighbor_view import NeighborListing

    config = load(options.config)
    log_to_stderr(options.log_level or "warning")
    found, source = (None, "") if options.listen else neighbor_listing.fetch(config, options.root)
    if found is not None:
        sentence = f"the agent at {source} answers"
    elif options.listen:
        sentence = "the command receives the frames itself and asks no agent"
    else:
        sentence = f"no agent runs here ({source}); the command receives the frames itself"
    if found is None or not options.json:
        note(sentence)

    def text(listing: NeighborListing) -> str:
        place = None if found is None else source
        as_json, as_table = neighbor_listing.as_json, neighbor_listing.as_table
        return as_json(listing, place) if options.json else as_table(listing, screen())

    async def run() -> None:
        wanted, settings = config.links.select, config.lldp
        if options.watch:
            listings = (
                neighbor_listing.watch(wanted, settings, options.root)
                if found is None
                else neighbor_listing.watch_agent(found, config, options.root)
            )
            with watching(in_place=not options.json) as show:
                async for listing in listings:
                    show(text(listing))
        elif found is not None:
            wait_s = options.wait or 0.0
            print(text(await neighbor_listing.wait_for_agent(found, config, options.root, wait_s)))
        else:
            wait_s = neighbor_listing.WAIT_S if options.wait is None else options.wait
            received = NeighborListing((), ())
            # The links of a recorded machine are not netdevs of this host.
            is_copy = is_recorded(Tree(options.root)) and not wanted.netdevs
            if not is_copy:
                received = await neighbor_listing.read_once(
                    wanted,
                    settings,
                    options.root,
                    wait_s,
                    lambda line: print(line, file=sys.stderr, flush=True),
                )
            listing = await with_infiniband(received, config.infiniband, options.root)
            if is_copy and not listing.rows and not options.json:
                print(
                    f"{options.root} is a copy of a machine, and frames arrive only at the machine itself: run the "
                    "verb there, or `nodeagent decode FILE` with frames that tcpdump has recorded."
                )
            else:
                print(text(listing))

    asyncio.run(run())
    return GOOD
