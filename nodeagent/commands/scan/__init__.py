"""The verb `scan`: show this machine and the devices that would be offered."""

from __future__ import annotations

import argparse
import asyncio

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import Add, config_option, json_option, load_config, seconds, watch_option


def add(add: Add) -> None:
    parser = add(
        "scan",
        _scan,
        "show this machine: GPUs, NICs and VFs, and the devices that would be offered",
        "Needs no cluster. Health is shown with its reasons. The GPU-NIC table shows their PCIe distance in the terms\n"
        "of `nvidia-smi topo -m`: PIX (one PCIe switch), PXB (several), PHB (host bridge), NODE (same NUMA node),\n"
        "SYS (across NUMA nodes).\n"
        "The agent that serves the machine below --root answers, with the health that it has derived. Without one the\n"
        "command reads the machine itself. A line on stderr, and `agent` in JSON, shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    watch_option(parser, "print what has changed", 1.0)
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="receive LLDP for this long, or until every link has a neighbor (default: 0; a switch sends every 30 s)",
    )


def _scan(options: argparse.Namespace) -> int:
    from nodeagent.commands.scan import listing

    config = load_config(options.config)
    log_to_stderr(options.log_level or "warning")
    return asyncio.run(listing.show_machine(config, options))
