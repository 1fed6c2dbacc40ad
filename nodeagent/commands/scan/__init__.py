"""The verb `scan`: show this machine and the devices that would be offered."""

from __future__ import annotations

import argparse
import asyncio

from nodeagent.commands.options import (
    GOOD,
    Add,
    config_option,
    json_option,
    load,
    log_to_stderr,
    seconds,
    terminal_width,
)


def add(add: Add) -> None:
    parser = add(
        "scan",
        _scan,
        "show this machine: GPUs, NICs and VFs, and the devices that would be offered",
        "Needs no cluster. Health is shown with its reasons. The GPU-NIC table shows their PCIe distance in the terms\n"
        "of `nvidia-smi topo -m`: PIX (one PCIe switch), PXB (several), PHB (host bridge), NODE (same NUMA node),\n"
        "SYS (across NUMA nodes).",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--watch", action="store_true", help="print at every change, until interrupted")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="receive LLDP for this long, or until every link has a neighbor (default: 0; a switch sends every 30 s)",
    )


def _scan(options: argparse.Namespace) -> int:
    from nodeagent.commands.scan import listing

    config = load(options.config)
    log_to_stderr("warning")

    def render(view: listing.MachineView) -> str:
        return listing.as_json(view) if options.json else listing.as_table(view, terminal_width())

    if not options.watch:
        print(render(asyncio.run(listing.scan_once(config, options.root, options.wait))))
        return GOOD

    async def watch() -> None:
        async for view in listing.watch(config, options.root):
            print(render(view), flush=True)

    asyncio.run(watch())
    return GOOD
