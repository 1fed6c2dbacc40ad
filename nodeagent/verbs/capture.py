"""A machine taken along."""

from __future__ import annotations

import argparse
from pathlib import Path

from nodeagent.verbs.common import GOOD, Add, log_to_stderr


def add(add: Add) -> None:
    parser = add(
        "capture",
        _capture,
        "record what the agent reads of this node, to be replayed with --root",
        "Writes the parts of /sys, /proc and /dev that the agent reads, and what the GPU driver says, below DIR.\n"
        "`nodeagent scan --root DIR` then shows this machine anywhere: a bug report becomes a fixture.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a folder that is empty or not there yet")
    parser.add_argument(
        "--scramble",
        action="store_true",
        help="replace serial numbers, MAC addresses and GPU UUIDs, consistently",
    )


def _capture(options: argparse.Namespace) -> int:
    from nodeagent import capture

    log_to_stderr("warning")
    print(capture.capture(options.root, options.directory, scramble=options.scramble))
    return GOOD
