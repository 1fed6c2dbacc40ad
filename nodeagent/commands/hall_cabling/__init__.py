"""The verb cabling: every link of the hall, compared with a cabling plan or with the derived tree."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodeagent.base.plain_text import one_line
from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import FAILED, GOOD, Add, json_option, seconds
from nodeagent.commands.plan import source_options
from nodeagent.commands.terminal import columns, screen

if TYPE_CHECKING:
    from nodeagent.commands.hall_cabling.hall_report import CheckedLink

WATCH_MIN_S = 1.0
FORMULA_STARTS = ("=", "+", "-", "@")
"""Of a cell, in spreadsheets: OWASP, CSV Injection."""


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
    log_to_stderr("warning")
    links = _check(options)
    if options.json:
        print(
            json.dumps(
                [{**link._asdict(), "state": str(link.state)} for link in _listed(options, links)], indent=2
            )
        )
    elif options.csv:
        from nodeagent.commands.hall_cabling.hall_report import CheckedLink

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(CheckedLink._fields)
        writer.writerows([map(_cell, link) for link in _listed(options, links)])
    else:
        _print_table(options, links)
    while options.watch is not None:
        time.sleep(max(options.watch, WATCH_MIN_S))
        links = _print_changes(options, links)
    if not links:
        print("nodeagent: no link was compared", file=sys.stderr)
    return GOOD if links and all(link.state == "planned" for link in links) else FAILED


def _cell(text: str) -> str:
    """One line, and no formula: a spreadsheet would compute the name of a switch that starts with ``=``."""
    text = one_line(text)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _print_changes(options: argparse.Namespace, links: list[CheckedLink]) -> list[CheckedLink]:
    """Check again, and print the links that differ. An input that cannot be read now is a line on stderr."""
    from nodeagent.commands.plan.preview import SourceError
    from nodeagent.commands.user_files import UserFileError
    from nodeagent.config.faults import ConfigError
    from nodeagent.kube.client import ApiError

    try:
        changed = _check(options)
    except (ApiError, ConfigError, SourceError, UserFileError, OSError) as error:
        print(one_line(f"nodeagent: {error}"), file=sys.stderr, flush=True)
        return links
    before = {(link.node, link.link): link for link in links}
    for link in changed:
        if before.pop((link.node, link.link), None) != link:
            print(_sentence(link), flush=True)
    for node, name in before:
        print(one_line(f"{node} {name}: no longer reported"), flush=True)
    return changed


def _check(options: argparse.Namespace) -> list[CheckedLink]:
    from nodeagent.commands.hall_cabling import hall_report, planned_cables
    from nodeagent.commands.plan.preview import read_preview

    preview = read_preview(options, whole_reports=True)
    reports = [*preview.reports.values()]
    nodes = {report.node_name for report in reports} | preview.nodes
    links = {
        name
        for report in reports
        for link in report.links
        for name in (link.name, link.netdev, link.pci_address)
        if name
    }
    planned = None if options.plan is None else planned_cables.read(options.plan, nodes, links)
    if planned is not None:
        _print_not_compared(planned.left_out, hall_report.links_beside_plan(reports, planned))
    return hall_report.check_hall(reports, preview, planned)


def _print_not_compared(cables: int, links: list[tuple[str, str]]) -> None:
    if cables:
        print(
            f"nodeagent: cables of the plan that lead to no node of the cluster, left out: {cables}",
            file=sys.stderr,
        )
    if links:
        node, link = links[0]
        example = one_line(
            f"nodeagent: links that are not in the plan, left out: {len(links)}, such as {link} of {node}"
        )
        print(example, file=sys.stderr)


def _listed(options: argparse.Namespace, links: list[CheckedLink]) -> list[CheckedLink]:
    return [link for link in links if options.all or link.state != "planned"]


def _print_table(options: argparse.Namespace, links: list[CheckedLink]) -> None:
    """The links to work on, and the sums by rail, by rack where the plan names them, and by leaf group."""
    has_racks = any(link.rack for link in links)
    rows = [
        (
            str(link.state), *([link.rack] if has_racks else []), link.node, link.rail, link.link,
            f"{link.switch} {link.port}".strip(), f"{link.to_switch} {link.to_port}".strip(), link.note,
        )
        for link in _listed(options, links)
    ]  # fmt: skip
    heads = ("STATE", *(["RACK"] if has_racks else []), "NODE", "RAIL", "LINK", "IS AT", "BELONGS TO", "NOTE")
    parts = ["\n".join(columns(heads, rows, screen(), optional=("RAIL",)))] if rows else []
    parts.append(_sums("RAIL", links, lambda link: link.rail or "no rail"))
    if has_racks:
        parts.append(_sums("RACK", links, lambda link: link.rack or "no rack"))
    parts.append(_sums("LEAF GROUP", links, lambda link: link.group or "no leaf group"))
    print("\n\n".join(parts), flush=True)


def _sums(head: str, links: list[CheckedLink], of: Callable[[CheckedLink], str]) -> str:
    from nodeagent.commands.hall_cabling.hall_report import CableState, count_states

    counts = [
        (name, *(str(states[state]) for state in CableState))
        for name, states in count_states(links, of).items()
    ]
    heads = (head, *(state.upper() for state in CableState))
    return "\n".join(columns(heads, counts, screen(), optional=(CableState.PLANNED.upper(),)))


def _sentence(link: CheckedLink) -> str:
    at = f" at {link.switch} {link.port}".rstrip() if link.switch else ""
    to = (
        f", belongs to {link.to_switch} {link.to_port}".rstrip()
        if link.to_switch and link.state != "planned"
        else ""
    )
    note = f" ({link.note})" if link.note else ""
    return one_line(f"{link.node} {link.link}: {link.state}{at}{to}{note}")
