"""Draw the fabric: a tree for a terminal, JSON, or the fabric map as an HTML file."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from nodeagent.commands.plan.preview import Preview
from nodeagent.fabric.fabric_view import ViewReport, fabric_view
from nodeagent.fabric.hypernode import DERIVED_FROM, LEAF, NVLINK_DOMAIN, HyperNode, tier_name
from nodeagent.fabric.maintenance import standing
from nodeagent.fabric.reports import shown
from nodeagent.fabric.switch_keys import plain
from nodeagent.health.rules import rule_words
from nodeagent.web.ui_files import self_contained

AnomalyKinds = dict[tuple[str, str], str]
"""By node and link."""

_BRANCH = re.compile("[│├└─ ]*")


def draw(preview: Preview, form: str, *, whole: bool = False) -> str:
    """The picture as ``html``, or as ``tree``. ``whole``: the tree with a line for each node."""
    if form == "html":
        view = fabric_view(preview.plan, 0.0, time.time(), details=dict(_details(preview)), held=preview.held)
        return self_contained("fabric", msgspec.json.encode(view))
    made = picture_document(preview)
    return "\n".join(_tree(made, whole=True) if whole else fold(_tree(made)))


def wrap(tree: str, width: int | None) -> str:
    """The tree with lines of ``width`` columns at most, if its words allow it."""
    if width is None:
        return tree
    lines: list[str] = []
    for line in tree.splitlines():
        start = _BRANCH.match(line)
        below = (start.group() if start else "").replace("├─", "│ ").replace("└─", "  ") + " " * 5
        lines += textwrap.wrap(
            line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def picture_document(preview: Preview) -> dict[str, Any]:
    work = standing(preview.plan.levels.maintained, time.time())
    outcome, wanted = preview.outcome, preview.wanted
    kinds = {(anomaly.node, anomaly.link): str(anomaly.kind) for anomaly in outcome.anomalies}
    parent = preview.plan.parent
    roots = [hypernode for hypernode in wanted.values() if hypernode.name not in parent]
    roots.sort(key=lambda hypernode: (-hypernode.tier, hypernode.name))
    return {
        "fabric": preview.plan.rules.fabric,
        "hypernodes": [_branch(preview, root, wanted, kinds) for root in roots],
        "unplaced": [{"node": unplaced.node, "reason": unplaced.reason} for unplaced in outcome.unplaced],
        "maintenance": [
            {"node": shown(node), "link": entry.link or None, "text": entry.sentence} for node, entry in work
        ],
    }


def _branch(
    preview: Preview, hypernode: HyperNode, wanted: dict[str, HyperNode], kinds: AnomalyKinds
) -> dict[str, Any]:
    branch: dict[str, Any] = {
        "name": hypernode.name,
        "tier": hypernode.tier,
        "tierName": hypernode.tier_name,
    }
    is_leaf = hypernode.tier_name == tier_name(LEAF)
    if domain := hypernode.note(NVLINK_DOMAIN):
        branch["domain"] = domain
    elif is_leaf:
        branch["switches"] = list(map(plain, hypernode.switches))
    else:
        branch["derivedFrom"] = hypernode.note(DERIVED_FROM) or None
    if hypernode.children:
        branch["members"] = [
            _branch(preview, wanted[child], wanted, kinds) for child in hypernode.children if child in wanted
        ]
    if hypernode.nodes or is_leaf:
        branch["nodes"] = [
            {"name": node, "links": list(_links(preview, node, kinds))} for node in hypernode.nodes
        ]
    return branch


def _links(preview: Preview, node: str, kinds: AnomalyKinds) -> Iterator[dict[str, Any]]:
    pattern = preview.plan.votes.pattern(node)
    if pattern is None:
        return
    report = pattern.nodes[node]
    for i, slot in enumerate(pattern.shape):
        link = shown(slot.link)
        yield {
            "link": link,
            "rail": shown(slot.rail),
            "switch": plain(pattern.keys[i]) or None,
            "port": shown(report.ports[i]) or None,
            "stale": i in report.stale,
            "anomaly": kinds.get((node, link)),
        }


def _tree(document: dict[str, Any], *, whole: bool = False) -> list[str]:
    lines = [f"fabric {document['fabric']}"]
    lines += _below(document["hypernodes"], "", whole)
    for unplaced in document["unplaced"]:
        lines.append(f"unplaced: {shown(unplaced['node']) or '(no name)'}: {unplaced['reason']}")
    for one in document["maintenance"]:
        lines.append(f"planned: {one['node']}{' ' + one['link'] if one['link'] else ''}: {one['text']}")
    return lines


def _below(branches: list[dict[str, Any]], indent: str, whole: bool) -> Iterator[str]:
    for i, branch in enumerate(branches):
        last = i == len(branches) - 1
        head, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if "tier" in branch:
            switches = branch.get("switches", ())
            about = ", ".join(switches) or branch.get("derivedFrom") or branch.get("domain") or ""
            if len(switches) > 2 and not whole:
                about = f"{switches[0]} … {switches[-1]} ({len(switches)} switches)"
            yield f"{indent}{head}{branch['name']} ({branch['tierName']}){': ' + about if about else ''}"
        else:
            yield f"{indent}{head}{branch['name']}{_remarks(branch)}"
        yield from _below([*branch.get("members", ()), *branch.get("nodes", ())], indent + rest, whole)


def _remarks(node: dict[str, Any]) -> str:
    """The anomalies of a node, and its links without a neighbor; empty for a node without either."""
    parts = [
        f"{link['link']} {link['anomaly'] or 'no neighbor'}{' at ' + link['switch'] if link['switch'] else ''}"
        for link in node["links"]
        if link["anomaly"] or not link["switch"]
    ]
    if not node["links"]:
        parts.append("no report")
    return f"  ({', '.join(parts)})" if parts else ""


_LEAF = re.compile(r"(?P<indent>(?:│  |   )*)(?P<branch>[├└]─ )(?P<stem>\S*?)(?P<number>\d+)$")
ROW = 3
"""The least number of nodes that are folded."""


def fold(drawn: list[str]) -> list[str]:
    """Fold the lines of the drawing. Nodes with a remark keep their lines."""
    folded: list[str] = []
    row: list[re.Match[str]] = []
    for line in [*drawn, ""]:
        node = _LEAF.fullmatch(line)
        if row and not (node and _follows(row[-1], node)):
            folded += _row_lines(row)
            row = []
        if node:
            row.append(node)
        elif line:
            folded.append(line)
    return folded


def _follows(node: re.Match[str], following: re.Match[str]) -> bool:
    same = (node["indent"], node["stem"]) == (following["indent"], following["stem"])
    return same and int(following["number"]) == int(node["number"]) + 1


def _row_lines(row: list[re.Match[str]]) -> Iterator[str]:
    if len(row) < ROW:
        yield from (node[0] for node in row)
        return
    first, last = row[0], row[-1]
    yield (
        f"{first['indent']}{last['branch']}{first['stem']}{first['number']} … {last['stem']}{last['number']}"
        f"  ({len(row)} nodes)"
    )


# --- the map --------------------------------------------------------------------------------------------

WHOLE_REPORTS_MAX = 1000
"""Of a larger fabric the map has the whole reports of the nodes in trouble alone, at some 3 KB each."""


def _details(preview: Preview) -> Iterator[tuple[str, ViewReport]]:
    """The whole reports of the map, by node."""
    odd = {node for anomaly in preview.outcome.anomalies for node in (anomaly.node, *anomaly.nodes)}
    odd.update(unplaced.node for unplaced in preview.outcome.unplaced)
    for name in preview.plan.levels.reports:
        report = preview.reports[name]
        trouble = report.gpus or any(link.state not in ("healthy", "unused") for link in report.links)
        if trouble or name in odd or len(preview.reports) <= WHOLE_REPORTS_MAX:
            words = rule_words({reason for link in report.links for reason in link.reasons})
            yield name, ViewReport(report.links, words, report.holders, report.gpus)
