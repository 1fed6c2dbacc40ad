"""One look at the machine."""

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
        "look at this machine: GPUs, NICs and VFs, and what would be offered",
        "No cluster is needed. Health comes with its reasons; the GPU-NIC table says how far they are from each\n"
        "other in the words of `nvidia-smi topo -m`: PIX (one PCIe switch), PXB (several), PHB (host bridge),\n"
        "NODE (same NUMA node), SYS (across NUMA nodes).",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--watch", action="store_true", help="print again at every change, until interrupted")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="listen to LLDP for so long, or until every link was heard (default: 0; a switch speaks every 30 s)",
    )


def _scan(options: argparse.Namespace) -> int:
    from nodeagent.commands.scan import listing

    config = load(options.config)
    log_to_stderr("warning")

    def render(seen: listing.Seen) -> str:
        return listing.as_json(seen) if options.json else listing.as_table(seen, terminal_width())

    if not options.watch:
        print(render(asyncio.run(listing.once(config, options.root, options.wait))))
        return GOOD

    async def watch() -> None:
        async for seen in listing.watch(config, options.root):
            print(render(seen), flush=True)

    asyncio.run(watch())
    return GOOD
