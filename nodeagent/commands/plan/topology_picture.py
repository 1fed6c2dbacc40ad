"""Draw the fabric: a tree for a terminal, dot, mermaid, JSON, or a file for Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from nodeagent.commands.plan.folded_tree import fold
from nodeagent.commands.plan.preview import Preview
from nodeagent.commands.plan.slurm import topology_conf
from nodeagent.fabric.hypernode import DERIVED_FROM, LEAF, NVLINK_DOMAIN, HyperNode, tier_name
from nodeagent.fabric.reports import shown

AnomalyKinds = dict[tuple[str, str], str]
"""By node and link."""


def draw(preview: Preview, form: str, *, whole: bool = False) -> str:
    """The picture in a form of ``FORMS``. ``whole``: the tree with a line for each node."""
    if form == "slurm":
        return topology_conf(preview)
    renderers: dict[str, Callable[[dict[str, Any]], str]] = {
        "tree": lambda document: "\n".join(_tree(document) if whole else fold(_tree(document))),
        "dot": _dot,
        "mermaid": _mermaid,
        "json": lambda document: json.dumps(document, indent=2),
    }
    return renderers[form](_document(preview))


def _document(preview: Preview) -> dict[str, Any]:
    outcome, wanted = preview.outcome, preview.wanted
    kinds = {(anomaly.node, anomaly.link): str(anomaly.kind) for anomaly in outcome.anomalies}
    parent = preview.plan.parent
    roots = [hypernode for hypernode in wanted.values() if hypernode.name not in parent]
    roots.sort(key=lambda hypernode: (-hypernode.tier, hypernode.name))
    return {
        "fabric": preview.plan.rules.fabric,
        "hypernodes": [_branch(preview, root, wanted, kinds) for root in roots],
        "unplaced": [{"node": unplaced.node, "reason": unplaced.reason} for unplaced in outcome.unplaced],
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
        branch["switches"] = list(hypernode.switches)
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
            "switch": pattern.keys[i] or None,
            "port": shown(report.ports[i]) or None,
            "stale": bool(report.stale >> i & 1),
            "anomaly": kinds.get((node, link)),
        }


def _tree(document: dict[str, Any]) -> list[str]:
    lines = [f"fabric {document['fabric']}"]
    lines += _below(document["hypernodes"], "")
    for unplaced in document["unplaced"]:
        lines.append(f"unplaced: {shown(unplaced['node']) or '(no name)'}: {unplaced['reason']}")
    return lines


def _below(branches: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for i, branch in enumerate(branches):
        last = i == len(branches) - 1
        head, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if "tier" in branch:
            about = (
                ", ".join(branch.get("switches", ()))
                or branch.get("derivedFrom")
                or branch.get("domain")
                or ""
            )
            yield f"{indent}{head}{branch['name']} ({branch['tierName']}){': ' + about if about else ''}"
        else:
            yield f"{indent}{head}{branch['name']}{_remarks(branch)}"
        yield from _below([*branch.get("members", ()), *branch.get("nodes", ())], indent + rest)


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


def _dot(document: dict[str, Any]) -> str:
    lines = ["graph fabric {", "  rankdir=TB;", "  node [shape=box];"]
    for branch in document["hypernodes"]:
        lines += _cluster(branch, "  ")
    lines += (
        f"  {switch} -- {node} [label={label}];" for switch, node, label in _edges(document, _dot_string)
    )
    return "\n".join([*lines, "}"])


def _cluster(branch: dict[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}subgraph {_dot_string('cluster ' + branch['name'])} {{"
    yield f"{indent}  label={_dot_string(branch['name'] + ' (' + branch['tierName'] + ')')};"
    for member in branch.get("members", ()):
        yield from _cluster(member, indent + "  ")
    for switch in branch.get("switches", ()):
        yield f"{indent}  {_dot_string('switch ' + switch)} [label={_dot_string(switch)}, shape=ellipse];"
    for node in branch.get("nodes", ()):
        yield f"{indent}  {_dot_string('node ' + node['name'])} [label={_dot_string(node['name'])}];"
    yield f"{indent}}}"


def _edges(document: dict[str, Any], quote: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
    todo = [*document["hypernodes"]]
    while todo:
        branch = todo.pop(0)
        todo += branch.get("members", ())
        for node in branch.get("nodes", ()):
            for link in node["links"]:
                if link["switch"]:
                    ends = quote(f"switch {link['switch']}"), quote(f"node {node['name']}")
                    yield (*ends, quote(f"{link['link']} {link['port'] or ''}".strip()))


def _mermaid(document: dict[str, Any]) -> str:
    names: dict[str, str] = {}

    def identity(text: str) -> str:
        return names.setdefault(text, f"n{len(names)}")

    lines = ["flowchart TB"]
    for branch in document["hypernodes"]:
        lines += _subgraph(branch, "  ", identity)
    for switch, node, label in _edges(document, str):
        for end in (switch, node):
            if end not in names:
                lines.append(f"  {identity(end)}{_mermaid_label(end.partition(' ')[2], '([', '])')}")
        lines.append(f"  {identity(switch)} ---|{_mermaid_label(label)}| {identity(node)}")
    return "\n".join(lines)


def _subgraph(branch: dict[str, Any], indent: str, identity: Callable[[str], str]) -> Iterator[str]:
    title = _mermaid_label(f"{branch['name']} ({branch['tierName']})", "[", "]")
    yield f"{indent}subgraph {identity('group ' + branch['name'])}{title}"
    for member in branch.get("members", ()):
        yield from _subgraph(member, indent + "  ", identity)
    for switch in branch.get("switches", ()):
        yield f"{indent}  {identity('switch ' + switch)}{_mermaid_label(switch, '([', '])')}"
    for node in branch.get("nodes", ()):
        yield f"{indent}  {identity('node ' + node['name'])}{_mermaid_label(node['name'], '[', ']')}"
    yield f"{indent}end"


def _mermaid_label(text: str, left: str = "", right: str = "") -> str:
    safe = "".join(char if char.isalnum() or char in " ._:/()-=" else f"#{ord(char)};" for char in text)
    return f'{left}"{safe}"{right}'


def _dot_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
