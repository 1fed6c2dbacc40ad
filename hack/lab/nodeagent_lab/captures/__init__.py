"""The verb `decode`: the LLDP frames of a capture file."""

from __future__ import annotations

import argparse

from nodeagent.console.options import GOOD, Add, json_option


def add(add: Add) -> None:
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
    from nodeagent.console import user_files
    from nodeagent.console.user_files import UserFileError
    from nodeagent_lab.captures.describe import lines
    from nodeagent_lab.captures.pcap import PcapError

    expected = "a pcap or pcapng file, as `tcpdump -w FILE` writes it"
    try:
        with user_files.opened(options.file, expected) as file:
            for line in lines(file.read, options.json):
                print(line, flush=True)
    except PcapError as error:
        raise UserFileError(user_files.name_of(options.file), str(error), expected) from error
    return GOOD
