"""Compare every link of a hall with a cabling plan, or with the tree that the planner derives from the reports.

The state of a link is the first that applies: *missing* (no carrier, or no NIC), *no-lldp* (a carrier and no current
neighbor), *elsewhere*, *slow* (less than the usual speed of its rail), *planned*. A link that is not in the plan is
not compared; without a plan, neither is one that its node reports as unused. A node without a report that counts is
*missing* as a whole.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from nodeagent.base.plain_text import one_line
from nodeagent.commands.plan import planned_cables
from nodeagent.commands.plan.controller_settings import CABLING_PLAN
from nodeagent.commands.plan.planned_cables import CablingPlan
from nodeagent.commands.plan.port_order import NodePort, deviations
from nodeagent.commands.plan.preview import Preview, SourceError, read_preview
from nodeagent.config.file_errors import ConfigError
from nodeagent.console.json_document import camel
from nodeagent.console.options import FAILED, GOOD, USAGE
from nodeagent.console.terminal import columns, screen
from nodeagent.console.user_files import UserFileError, source_name
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.nodelinks import NOT_UP, LinkNeighbor, NodeLink, NodeLinks
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import shown
from nodeagent.fabric.switch_keys import plain
from nodeagent.health.cabling import Port, same_port, same_switch
from nodeagent.kube.client import ApiError

WRONG_CABLES = frozenset((AnomalyKind.FOREIGN_LEAF, AnomalyKind.RAIL_SWAP, AnomalyKind.MISCABLED))
USUAL_MIN = 3
"""The fewest links of a rail from which a usual speed follows."""
NO_REPORT = "the node has no report"
_NOWHERE = Port("", "")
_WATCH_MIN_S = 1.0
FORMULA_STARTS = ("=", "+", "-", "@")
"""Of a cell, in spreadsheets: OWASP, CSV Injection."""


class CableState(StrEnum):
    """In the order in which faults are to be removed: a wrong cable may explain the other ones."""

    ELSEWHERE = "elsewhere"
    MISSING = "missing"
    NO_LLDP = "no-lldp"
    SLOW = "slow"
    PLANNED = "planned"

    @property
    def word(self) -> str:
        """The state for people: a wrong cable has one name in every list."""
        return "miscabled" if self is CableState.ELSEWHERE else self.value


class CheckedLink(NamedTuple):
    """One link. ``rack`` is empty if the plan names none. ``switch`` and ``port`` are where it is, ``to_switch`` and
    ``to_port`` where it should be."""

    state: CableState
    group: str
    rack: str
    node: str
    rail: str
    link: str
    switch: str
    port: str
    to_switch: str
    to_port: str
    note: str


_ORDER = list(CableState)


def check_hall(
    reports: Iterable[NodeLinks], preview: Preview, plan: CablingPlan | None, *, order: bool = False
) -> list[CheckedLink]:
    """All links, sorted by what to do first, then by rack, leaf group, node and rail. ``order``: compare the ports with
    the order of their leaf group."""
    levels = preview.plan.levels
    by_node = {
        report.node_name: report
        for report in reports
        if (report.metadata.name or report.node_name) not in levels.refused
    }
    usual = _usual_speeds(by_node.values())
    checked: list[CheckedLink] = []
    if plan is None:
        anomalies = _by_node(preview.outcome.anomalies)
        for node, report in by_node.items():
            checked += _against_tree(preview, node, report, anomalies.get(node, ()), usual)
        checked += _unchecked_nodes(preview, by_node, {link.node for link in checked})
    else:
        for node, report in by_node.items():
            checked += _against_plan(preview, node, report, plan.cables.get(node, {}), usual)
        for node, cables in plan.cables.items():
            if node not in by_node:
                refused = levels.refused.get(node)
                note = NO_REPORT if refused is None else f"its report {refused}"
                checked += (_missing(node, note, link, port) for link, port in cables.items())
    if order:
        checked = in_order(checked)
    racks = {} if plan is None else plan.racks
    checked = [link._replace(rack=racks.get(link.node, "")) for link in checked]
    return sorted(
        checked,
        key=lambda link: (_ORDER.index(link.state), link.rack, link.group, link.node, _rail_order(link)),
    )


def count_states(
    links: Iterable[CheckedLink], of: Callable[[CheckedLink], str]
) -> dict[str, Counter[CableState]]:
    """The number of links in each state, by the result of ``of``, in its order; numbers are ordered by value."""
    counts: dict[str, Counter[CableState]] = {}
    for link in links:
        counts.setdefault(of(link), Counter())[link.state] += 1
    return dict(sorted(counts.items(), key=lambda item: (not item[0].isdecimal(), _numbered(item[0]))))


def _numbered(text: str) -> tuple[int, str]:
    return (len(text), text) if text.isdecimal() else (0, text)


def _rail_order(link: CheckedLink) -> tuple[int, str, str]:
    return len(link.rail), link.rail, link.link


def links_beside_plan(reports: Iterable[NodeLinks], plan: CablingPlan) -> list[tuple[str, str]]:
    """Node and link of each link that is up, or has a neighbor, and that is not in the plan."""
    return [
        (report.node_name, link.name)
        for report in reports
        for link in report.links
        if (link.neighbor is not None or link.state not in NOT_UP)
        and not plan.cables.get(report.node_name, {}).keys() & {link.name, link.netdev, link.pci_address}
    ]


def in_order(links: list[CheckedLink]) -> list[CheckedLink]:
    """The same links; those that are at another port of their switch than the order of their leaf group are elsewhere.
    A line on stderr counts the groups without an order."""
    groups: dict[str, dict[NodePort, CheckedLink]] = {}
    for link in links:
        if link.group and link.port and link.state in (CableState.PLANNED, CableState.SLOW):
            groups.setdefault(link.group, {})[NodePort(link.node, link.link, link.switch, link.port)] = link
    moved: dict[tuple[str, str], CheckedLink] = {}
    without = 0
    for by_port in groups.values():
        found = deviations(by_port)
        without += found is None
        for at, right in (found or {}).items():
            note = "another port of this switch than on its other links"
            note = f"exchanged with {right.exchanged}" if right.exchanged else note
            moved[at.node, at.link] = by_port[at]._replace(
                state=CableState.ELSEWHERE, to_switch=at.switch, to_port=right.port, note=note
            )
    if without:
        print(f"nodeagent: leaf groups without an order of ports, not compared: {without}", file=sys.stderr)
    return [moved.get((link.node, link.link), link) for link in links]


def _by_node(anomalies: Iterable[Anomaly]) -> dict[str, list[Anomaly]]:
    by_node: dict[str, list[Anomaly]] = {}
    for anomaly in anomalies:
        for node in {anomaly.node, *anomaly.nodes}:
            by_node.setdefault(node, []).append(anomaly)
    return by_node


def _unchecked_nodes(
    preview: Preview, reported: Container[str], checked: Container[str]
) -> Iterator[CheckedLink]:
    """The nodes of which no link was compared: without a link in the fabric, or without a report that counts."""
    levels = preview.plan.levels
    reasons = {
        node: NO_REPORT
        for node in preview.plan.published.tiers[LEAF].placed
        if levels.exists(node) and node not in reported
    }
    reasons.update((unplaced.node, unplaced.reason) for unplaced in preview.outcome.unplaced)
    for node, reason in reasons.items():
        if node not in checked:
            yield _missing(node, reason)


def _missing(node: str, note: str, link: str = "", port: Port = _NOWHERE) -> CheckedLink:
    return CheckedLink(CableState.MISSING, "", "", node, "", link, "", "", port.switch, port.port, note)


def _against_plan(
    preview: Preview, node: str, report: NodeLinks, planned: Mapping[str, Port], usual: Mapping[str, int]
) -> Iterator[CheckedLink]:
    group = preview.plan.nodes.place.get(node, "")
    left = dict(planned)
    for link in report.links:
        name = next((name for name in (link.name, link.netdev, link.pci_address) if name in left), None)
        if name is None:
            continue
        port = left.pop(name)
        neighbor = link.neighbor
        right = neighbor is not None and _is_at(port, neighbor)
        yield _checked(group, node, link, port.switch, port.port, usual, right=right)
    for name, port in left.items():
        yield _missing(node, "the node reports no such link", name, port)._replace(group=group)


def _against_tree(
    preview: Preview, node: str, report: NodeLinks, own: Iterable[Anomaly], usual: Mapping[str, int]
) -> Iterator[CheckedLink]:
    plan = preview.plan
    pattern = plan.votes.pattern(node)
    if pattern is None:
        return
    place = plan.nodes.place.get(node, "")
    group = plan.names.groups.get(place)
    switch = {} if group is None else plan.cabling.rails_of(group, pattern).switch
    own = tuple(own)
    wrong = {anomaly.link for anomaly in own if anomaly.kind in WRONG_CABLES}
    shifted = any(anomaly.kind is AnomalyKind.RAIL_SHIFT for anomaly in own)
    links = {link.name: link for link in report.links}
    for key, slot in zip(pattern.keys, pattern.shape, strict=True):
        link, should = links[slot.link], switch.get(slot.rail, "")
        if link.state == "unused" and link.neighbor is None:
            continue
        right = bool(key) and (key == should or not (shifted or shown(slot.link) in wrong))
        yield _checked(place, node, link, plain(should), "", usual, right=right)


def _checked(
    group: str, node: str, link: NodeLink, switch: str, port: str, usual: Mapping[str, int], *, right: bool
) -> CheckedLink:
    neighbor, rail = link.neighbor, "" if link.rail is None else str(link.rail)
    at = ("", "") if neighbor is None else (neighbor.system_name or neighbor.chassis_id.value, neighbor.port)
    speed, expected = link.speed_mbps or 0, usual.get(rail or link.name, 0)
    note = ""
    if (link.state or "") in NOT_UP:
        state, note = CableState.MISSING, ", ".join(link.reasons) or link.state or ""
    elif neighbor is None or neighbor.stale:
        state, protocol = CableState.NO_LLDP, "InfiniBand" if link.link_type == "infiniband" else "LLDP"
        note = f"no {protocol} neighbor" if neighbor is None else f"its {protocol} information has expired"
    elif not right:
        state = CableState.ELSEWHERE
    elif speed < expected:
        state, note = CableState.SLOW, f"{speed} of {expected} Mbit/s"
    else:
        state = CableState.PLANNED
    return CheckedLink(state, group, "", node, rail, link.name, *at, switch, port, note)


def _is_at(port: Port, neighbor: LinkNeighbor) -> bool:
    """The neighbor is the planned port, or any port of the switch if the plan names none."""
    if not same_switch(port.switch, neighbor.system_name, neighbor.chassis_id.value):
        return False
    return not port.port or same_port(port.port, neighbor.port_id.value, neighbor.port_description)


def _usual_speeds(reports: Iterable[NodeLinks]) -> dict[str, int]:
    """The most frequent speed of each rail, of links that are up."""
    speeds: dict[str, Counter[int]] = {}
    for report in reports:
        for link in report.links:
            if link.speed_mbps:
                rail = link.name if link.rail is None else str(link.rail)
                speeds.setdefault(rail, Counter())[link.speed_mbps] += 1
    return {
        rail: max(counts, key=lambda speed: (counts[speed], speed))
        for rail, counts in speeds.items()
        if sum(counts.values()) >= USUAL_MIN
    }


# --- what the verb prints -------------------------------------------------------------------------------


def show_hall_report(options: argparse.Namespace) -> int:
    """Print the links that are not as planned, with ``--watch`` each that changes. Return the exit code."""
    origin, links = _check(options)
    if options.json:
        print(_as_json(origin, _listed(options, links)))
    elif options.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerow(CheckedLink._fields)
        _print_csv(_listed(options, links))
    else:
        _print_table(options, links)
    sys.stdout.flush()
    while options.watch is not None:
        time.sleep(max(options.watch, _WATCH_MIN_S))
        links = _print_changes(options, links)
    if not links:
        print("nodeagent: no link was compared", file=sys.stderr)
        return USAGE
    return GOOD if all(link.state == "planned" for link in links) else FAILED


def _as_json(origin: Mapping[str, Any], links: Iterable[CheckedLink]) -> str:
    made = [{**origin, **camel({**link._asdict(), "state": str(link.state)})} for link in links]
    return json.dumps(made, indent=2)


def _print_csv(links: Iterable[CheckedLink]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows([map(_cell, link) for link in links])


def _cell(text: str) -> str:
    """One line, and no formula: a spreadsheet would compute the name of a switch that starts with ``=``."""
    text = one_line(text)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _print_changes(options: argparse.Namespace, links: list[CheckedLink]) -> list[CheckedLink]:
    """Check again, and print the links that differ. An input that cannot be read now is a line on stderr."""
    try:
        origin, checked = _check(options)
    except (ApiError, ConfigError, SourceError, UserFileError, OSError) as error:
        print(one_line(f"nodeagent: {error}"), file=sys.stderr, flush=True)
        return links
    before = {(link.node, link.link): link for link in links}
    changed = [link for link in checked if before.pop((link.node, link.link), None) != link]
    gone = [one_line(f"{node} {name}: no longer reported") for node, name in before]
    if options.json and changed:
        print(_as_json(origin, changed))
    elif options.csv:
        _print_csv(changed)
    elif not options.json:
        for line in (*map(_sentence, changed), *gone):
            print(line)
    if options.json or options.csv:
        for line in gone:
            print(f"nodeagent: {line}", file=sys.stderr)
    sys.stdout.flush()
    return checked


def _check(options: argparse.Namespace) -> tuple[dict[str, Any], list[CheckedLink]]:
    """The origin of the document (``Preview.origin``), and all links."""
    preview = read_preview(options, whole_reports=True)
    reports = [*preview.reports.values()]
    nodes = {report.node_name for report in reports} | preview.nodes
    names = {
        name
        for report in reports
        for link in report.links
        for name in (link.name, link.netdev, link.pci_address)
        if name
    }
    planned = None
    if options.plan == "-" and options.source is not None:
        planned = planned_cables.planned_cables_of(*_given_plan(preview, options.source), nodes, names)
    elif options.plan is not None:
        planned = planned_cables.read_planned_cables(options.plan, nodes, names)
    if planned is not None:
        _print_not_compared(planned.left_out, links_beside_plan(reports, planned))
    links = check_hall(reports, preview, planned, order=options.order)
    return preview.origin(options.source, time.time()), links


def _given_plan(preview: Preview, source: str) -> tuple[str, str]:
    """Text and name of the cabling plan among the objects. Raises ``UserFileError``."""
    files = [(text, name) for one in preview.plans for name, text in one.data.items()]
    if len(files) != 1:
        fault = f"{len(files)} cabling plans for --plan -" if files else "no cabling plan for --plan -"
        expected = f"one ConfigMap {CABLING_PLAN} with one file: kubectl create configmap {CABLING_PLAN} "
        raise UserFileError(
            source_name(source), fault, f"{expected}--from-file=FILE --dry-run=client -o yaml"
        )
    return files[0]


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
            link.state.word, *([link.rack] if has_racks else []), link.node, link.rail, link.link,
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
    counts = [
        (name, *(str(states[state]) for state in CableState))
        for name, states in count_states(links, of).items()
    ]
    heads = (head, *(state.word.upper() for state in CableState))
    return "\n".join(columns(heads, counts, screen(), optional=(CableState.PLANNED.upper(),)))


def _sentence(link: CheckedLink) -> str:
    at = f" at {link.switch} {link.port}".rstrip() if link.switch else ""
    to = (
        f", belongs to {link.to_switch} {link.to_port}".rstrip()
        if link.to_switch and link.state != "planned"
        else ""
    )
    note = f" ({link.note})" if link.note else ""
    return one_line(f"{link.node} {link.link}: {link.state.word}{at}{to}{note}")
