"""The verb cabling: every link of the hall, compared with a cabling plan or with the derived tree."""

from __future__ import annotations

import argparse

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import Add, json_option, seconds
from nodeagent.commands.plan import source_options


def add(add: Add) -> None:
    parser = add(
        "cabling",
        _cabling,
        "compare every link of the hall with a cabling plan: planned, elsewhere, missing, without LLDP or slow",
        "Without --plan, links are compared with the leaf groups that the reports lead to. The result is 0 if every\n"
        "link is as planned, 1 if one is not, and 2 if the input cannot be read.",
    )
    source_options(parser)
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="the cabling plan: YAML, .csv (also NetBox's) or .dot (docs/topology.md, The cabling of a hall)",
    )
    form = parser.add_mutually_exclusive_group()
    json_option(form)  # type: ignore[arg-type]
    form.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    form.add_argument(
        "--watch",
        type=seconds,
        metavar="SECONDS",
        help="read again after this time, and print each link that changed",
    )
    parser.add_argument("--all", action="store_true", help="list links that are as planned too")


def _cabling(options: argparse.Namespace) -> int:
    from nodeagent.commands.hall_cabling import hall_report

    log_to_stderr("warning")
    return hall_report.show(options)
