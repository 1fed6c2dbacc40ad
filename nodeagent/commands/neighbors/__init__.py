"""LLDP from the live links, and from a capture of frames."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from nodeagent.commands.options import (
    FAILED,
    GOOD,
    Add,
    config_option,
    json_option,
    load,
    log_to_stderr,
    seconds,
)


def add_neighbors(add: Add) -> None:
    parser = add(
        "neighbors",
        _neighbors,
        "listen to LLDP and say which switch port is at the other end of each link",
        "Listens until every link with carrier has been heard, a switch speaks every 30 s. Needs CAP_NET_RAW and no\n"
        "running agent. Which netdevs are links is `links.select` of the configuration.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--wait", type=seconds, metavar="SECONDS", help="listen for no longer than this (default: 35)"
    )
    parser.add_argument("--watch", action="store_true", help="print again at every change, until interrupted")


def _neighbors(options: argparse.Namespace) -> int:
    from nodeagent.commands.neighbors import live

    config = load(options.config)
    log_to_stderr("warning")
    wanted, settings = config.links.select, config.lldp
    render = live.as_json if options.json else live.as_table

    async def watch() -> None:
        async for seen in live.watch(wanted, settings, options.root):
            print(render(seen), flush=True)

    async def once() -> None:
        wait_s = live.WAIT_S if options.wait is None else options.wait
        seen = await live.once(
            wanted, settings, options.root, wait_s, lambda line: print(line, file=sys.stderr, flush=True)
        )
        print(render(seen))

    asyncio.run(watch() if options.watch else once())
    return GOOD


def add_decode(add: Add) -> None:
    parser = add(
        "decode",
        _decode,
        "print the LLDP frames of a pcap or pcapng file",
        "One line for each LLDP frame among other traffic, VLAN tags and Linux cooked captures included; with\n"
        "--json one object on each line. A frame that is no valid LLDPDU is a line that says why. The file may be a\n"
        "pipe: tcpdump -i ens1 -U -w - ether proto 0x88cc | nodeagent decode -",
    )
    json_option(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="the capture; - reads stdin")


def _decode(options: argparse.Namespace) -> int:
    from nodeagent.lldp.describe import lines
    from nodeagent.lldp.pcap import PcapError

    try:
        with sys.stdin.buffer if str(options.file) == "-" else options.file.open("rb") as file:
            for line in lines(file.read, options.json):
                print(line, flush=True)
    except PcapError as error:
        print(f"nodeagent: {options.file}: {error}", file=sys.stderr)
        return FAILED
    return GOOD
