"""The verb `neighbors`: the switch port at the other end of each link."""

from __future__ import annotations

import argparse
import asyncio

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import (
    GOOD,
    Add,
    config_option,
    json_option,
    load_config,
    seconds,
    watch_option,
)


def add(add: Add) -> None:
    parser = add(
        "neighbors",
        _neighbors,
        "show the switch port at the other end of each link, by LLDP",
        "The agent that serves the machine below --root answers at once, with the neighbors that NodeLinks and the\n"
        "metrics show. Without one, or with --receive, the command receives the frames itself, which needs\n"
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
    watch_option(parser, "print what has changed", 1.0)
    parser.add_argument(
        "--receive", action="store_true", help="ask no agent: receive the frames with own sockets"
    )


def _neighbors(options: argparse.Namespace) -> int:
    from nodeagent.commands.neighbors import neighbor_listing

    config = load_config(options.config)
    log_to_stderr(options.log_level or "warning")
    asyncio.run(neighbor_listing.show_neighbors(config, options))
    return GOOD
