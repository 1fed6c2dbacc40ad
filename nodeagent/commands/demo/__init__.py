"""The show."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nodeagent.commands.options import GOOD, USAGE, Add


def add(add: Add) -> None:
    parser = add(
        "demo",
        _demo,
        "a simulated machine, a stand-in kubelet and the real agent between them; or a whole fabric",
        "Nothing of this machine is touched: the simulated one lies in a temporary folder. The kubelet is a\n"
        "stand-in that behaves as the real one does, its races included.\n\n"
        "With --nodes, a fabric instead: simulated nodes and switches, a stand-in API server, and the real\n"
        "controller, which makes HyperNodes and labels of what the nodes report.",
    )
    parser.add_argument(
        "--nodes", type=int, metavar="COUNT", help="show a fabric of so many nodes, in scalable units of 32"
    )
    parser.add_argument(
        "--machine", default="dgx-h100", metavar="NAME|FILE", help="a model (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="end after the show instead of staying up")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write the simulated machine's files below DIR and end, for `--root DIR` of the other verbs",
    )
    parser.add_argument(
        "--no-rdma",
        action="store_true",
        help="with --write: NICs without RDMA, so that a real kubelet gives pods no node of /dev that is not there",
    )


def _demo(options: argparse.Namespace) -> int:
    from nodeagent.commands.demo import shows

    if options.write is not None and options.nodes is not None:
        print(
            "nodeagent: --write writes one machine and --nodes shows many: give one of the two",
            file=sys.stderr,
        )
        return USAGE
    if options.write is not None:
        print(shows.write(options.machine, options.write, rdma=not options.no_rdma))
        return GOOD
    return shows.main(options.machine, once=options.once, nodes=options.nodes)
