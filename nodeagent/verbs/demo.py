"""The show."""

from __future__ import annotations

import argparse

from nodeagent.verbs.common import Add


def add(add: Add) -> None:
    parser = add(
        "demo",
        _demo,
        "a simulated machine, a stand-in kubelet and the real agent between them",
        "Nothing of this machine is touched: the simulated one lies in a temporary folder. The kubelet is a\n"
        "stand-in that behaves as the real one does, its races included.",
    )
    parser.add_argument(
        "--machine", default="dgx-h100", metavar="NAME|FILE", help="a model (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="end after the show instead of staying up")


def _demo(options: argparse.Namespace) -> int:
    from nodeagent import demo

    return demo.main(options.machine, once=options.once)
