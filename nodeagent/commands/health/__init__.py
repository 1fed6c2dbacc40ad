"""`nodeagent health`: the health of the devices, the rules, and a replay of recorded samples."""

from __future__ import annotations

import argparse
import asyncio
import sys

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import (
    USAGE,
    Add,
    agent_option,
    config_option,
    json_option,
    load_config,
    watch_option,
)


def add(add: Add) -> None:
    parser = add(
        "health",
        _health,
        "show the health of each device, with values, thresholds, durations and what would clear a fault",
        "  nodeagent health               every NIC and GPU, from the agent that runs here\n"
        "  nodeagent health --html        the page of this node as one HTML file\n"
        "  nodeagent health --html replay FILE   the same from recorded samples: the health at their end, and curves\n"
        "  nodeagent health DEVICE        one device with every rule: nic7, netdev, RDMA, PCI address, GPU0, UUID\n"
        "  nodeagent health rules         the rules in force, with --config those of that file\n"
        "  nodeagent health replay FILE   every change of health that the rules make on recorded samples\n\n"
        "The agent that serves the machine below --root answers, wherever the command runs. If there is none, the\n"
        "command reads the machine for two seconds. A line on stderr shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--html", action="store_true", help="print the node page as one HTML file, to attach to a ticket"
    )
    watch_option(parser, "print again (on a terminal arrows and space scroll, / filters, q ends)", 1.0)
    agent_option(parser)
    parser.add_argument(
        "--problem",
        choices=("links", "gpus"),
        help="print one line for Node Problem Detector; the exit code is 0 without a problem, 1 with one, and 2 if\n"
        "the agent does not answer",
    )
    parser.add_argument("target", nargs="*", metavar="DEVICE | rules | replay FILE", help="see above")


def _health(options: argparse.Namespace) -> int:
    from nodeagent.commands.health import device_health, node_documents, replay

    config = load_config(options.config)
    log_to_stderr(options.log_level or "warning")
    match options.target:
        case [] if options.html:
            return node_documents.show_node_document(config, options)
        case [] if options.problem:
            return device_health.show_problem(config, options)
        case []:
            return asyncio.run(device_health.show_health(config, options, None))
        case ["rules"]:
            return device_health.show_rules(config, options)
        case ["replay", file] if options.html:
            return node_documents.show_recording(config, file)
        case ["replay", file]:
            return replay.show_replay(config, options, file)
        case [device] if device != "replay":
            return asyncio.run(device_health.show_health(config, options, device))
    print(
        "nodeagent: health takes one DEVICE, `rules`, or `replay FILE`; see nodeagent health --help",
        file=sys.stderr,
    )
    return USAGE
