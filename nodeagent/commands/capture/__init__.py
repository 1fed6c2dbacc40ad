"""``nodeagent capture``: record a machine, or its samples."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import FAILED, GOOD, USAGE, Add, seconds
from nodeagent.console.terminal import tell


def add(add: Add) -> None:
    parser = add(
        "capture",
        _capture,
        "record everything that the agent reads of this node, for --root elsewhere",
        "Writes the parts of /sys, /proc and /dev that the agent reads, and the answers of the GPU driver, below\n"
        "PLACE. `nodeagent scan --root PLACE` then shows this machine anywhere, for example from a bug report.\n"
        "With --samples, PLACE is a file: it gets the samples of NICs and GPUs, one JSON object per line, for\n"
        "`nodeagent health replay`. An interrupted recording is valid up to its end.",
    )
    parser.add_argument("place", type=Path, metavar="PLACE", help="an empty or new folder, or a new file")
    parser.add_argument("--samples", type=seconds, metavar="SECONDS", help="record samples for this time")
    parser.add_argument(
        "--scramble",
        action="store_true",
        help="replace MAC and IP addresses, GUIDs, GIDs, UUIDs, serial numbers and the host's name, consistently",
    )


def _capture(options: argparse.Namespace) -> int:
    log_to_stderr(options.log_level or "warning")
    if options.samples is None:
        from nodeagent.commands.capture.machine_capture import capture

        return GOOD if tell(capture(options.root, options.place, scramble=options.scramble)) else FAILED
    if options.scramble:
        print(
            "nodeagent: --scramble applies to machines; a recording of samples has MAC addresses and UUIDs",
            file=sys.stderr,
        )
        return USAGE
    from nodeagent.commands.capture.sample_recorder import record

    return GOOD if tell(record(options.root, options.place, options.samples)) else FAILED
