"""The verbs `neighbors` and `decode`: LLDP from the live links, and from a capture file."""

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


def add_neighbors(add: Add) -> None:
    parser = add(
        "neighbors",
        _neighbors,
        "receive LLDP and show the switch port at the other end of each link",
        "Receives until every link with carrier has a neighbor; a switch sends every 30 s. The command receives the\n"
        "frames itself, also beside an agent, and needs CAP_NET_RAW. `links.select` of the configuration defines\n"
        "which netdevs are links.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--wait", type=seconds, metavar="SECONDS", help="receive for no longer than this (default: 35)"
    )
    parser.add_argument("--watch", action="store_true", help="print at every change, until interrupted")


def _neighbors(options: argparse.Namespace) -> int:
    from nodeagent.commands.neighbors import neighbor_listing
    from nodeagent.commands.neighbors.ib_neighbors import with_infiniband
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.machine_access import is_recorded

    config = load(options.config)
    log_to_stderr(options.log_level or "warning")
    wanted, settings = config.links.select, config.lldp
    render = neighbor_listing.as_json if options.json else neighbor_listing.as_table

    async def watch() -> None:
        async for listing in neighbor_listing.watch(wanted, settings, options.root):
            print(render(listing), flush=True)

    print("nodeagent: the command receives the frames itself and asks no agent", file=sys.stderr)

    async def once() -> None:
        wait_s = neighbor_listing.WAIT_S if options.wait is None else options.wait
        listing = neighbor_listing.NeighborListing((), ())
        if not is_recorded(Tree(options.root)) or wanted.netdevs:  # its links are not netdevs of this host
            listing = await neighbor_listing.read_once(
                wanted, settings, options.root, wait_s, lambda line: print(line, file=sys.stderr, flush=True)
            )
        print(render(await with_infiniband(listing, config.infiniband, options.root)))

    asyncio.run(watch() if options.watch else once())
    return GOOD


def add_decode(add: Add) -> None:
    parser = add(
        "decode",
        _decode,
        "print the LLDP frames of a pcap or pcapng file",
        "Prints one line for each LLDP frame and skips other traffic; reads VLAN tags and Linux cooked captures. With\n"
        "--json each line is an object. The line of an invalid LLDPDU has the reason. The file may be a\n"
        "pipe: tcpdump -i ens1 -U -w - ether proto 0x88cc | nodeagent decode -",
    )
    json_option(parser)
    parser.add_argument("file", metavar="FILE", help="the capture; - reads stdin")


def _decode(options: argparse.Namespace) -> int:
    from nodeagent.commands import user_files
    from nodeagent.commands.user_files import UserFileError
    from nodeagent.lldp.describe import lines
    from nodeagent.lldp.pcap import PcapError

    expected = "a pcap or pcapng file, as `tcpdump -w FILE` writes it"
    try:
        with user_files.opened(options.file, expected) as file:
            for line in lines(file.read, options.json):
                print(line, flush=True)
    except PcapError as error:
        name = user_files.STDIN if options.file == "-" else options.file
        raise UserFileError(name, str(error), expected) from error
    return GOOD
