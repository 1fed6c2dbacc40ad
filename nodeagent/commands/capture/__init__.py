"""A machine taken along."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nodeagent.commands.options import GOOD, USAGE, Add, log_to_stderr, seconds


def add(add: Add) -> None:
    parser = add(
        "capture",
        _capture,
        "record what the agent reads of this node, to be replayed with --root",
        "Writes the parts of /sys, /proc and /dev that the agent reads, and what the GPU driver says, below PLACE.\n"
        "`nodeagent scan --root PLACE` then shows this machine anywhere: a bug report becomes a fixture.\n"
        "With --samples PLACE is a file: what NICs and GPUs count and measure for so long, one JSON object on each\n"
        "line, for `nodeagent health replay`. Ended early it is good as far as it goes.",
    )
    parser.add_argument(
        "place", type=Path, metavar="PLACE", help="a folder that is empty or not there yet, or a new file"
    )
    parser.add_argument("--samples", type=seconds, metavar="SECONDS", help="record samples for so long")
    parser.add_argument(
        "--scramble",
        action="store_true",
        help="replace serial numbers, MAC addresses and GPU UUIDs, consistently",
    )


def _capture(options: argparse.Namespace) -> int:
    from nodeagent.commands.capture import machine

    log_to_stderr("warning")
    if options.samples is None:
        print(machine.capture(options.root, options.place, scramble=options.scramble))
        return GOOD
    if options.scramble:
        print(
            "nodeagent: --scramble is for a machine, and samples name none but its devices", file=sys.stderr
        )
        return USAGE
    from nodeagent.commands.capture.recorder import record

    print(record(options.root, options.place, options.samples))
    return GOOD
