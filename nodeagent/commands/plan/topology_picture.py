"""The fabric as a picture: a tree for a terminal, dot, mermaid, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from nodeagent.commands.plan.preview import Look
from nodeagent.fabric.hypernode import DERIVED_FROM, HyperNode
from nodeagent.fabric.reports import shown

Odd = dict[tuple[str, str], str]
FORMATS = ("tree", "dot", "mermaid", "json")


def picture(look: Look, form: str) -> str:
    draw: dict[str, Callable[[dict[str, Any]], str]] = {
        "tree": _tree,
        "dot": _dot,
        "mermaid": _mermaid,
        "json": lambda found: json.dumps(found, indent=2),
    }
    return draw[form](_document(look))


def _document(look: Look) -> dict[str, Any]:
    wanted = {one.name: one for one in look.outcome.hypernodes}
    odd = {(one.node, one.link): str(one.kind) for one in look.outcome.anomalies}
    tops = [one for one in wanted.values() if one.name not in look.planner.tower.parent]
    return {
        "fabric": look.planner.rules.fabric,
        "hypernodes": [
            _branch(look, one, wanted, odd) for one in sorted(tops, key=lambda one: (-one.tier, one.name))
        ],
        "unplaced": [{"node": one.node, "reason": one.reason} for one in look.outcome.unplaced],
    }


def _branch(look: Look, one: HyperNode, wanted: dict[str, HyperNode], odd: Odd) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name, "tier": one.tier, "tierName": one.tier_name}
    if one.children:
        found["derivedFrom"] = one.note(DERIVED_FROM) or None
        found["members"] = [
            _branch(look, wanted[child], wanted, odd) for child in one.children if child in wanted
        ]
    else:
        found["switches"] = list(one.switches)
        found["nodes"] = [{"name": node, "links": list(_links(look, node, odd))} for node in one.nodes]
    return found


def _links(look: Look, node: str, odd: Odd) -> Iterator[dict[str, Any]]:
    wiring = look.planner.evidence.wiring(node)
    if wiring is None:
        return
    report = wiring.nodes[node]
    for i, slot in enumerate(wiring.shape):
        link = shown(slot.link)
        yield {
            "link": link,
            "rail": shown(slot.rail),
            "switch": wiring.keys[i] or None,
            "port": shown(report.ports[i]) or None,
            "stale": bool(report.stale >> i & 1),
            "anomaly": odd.get((node, link)),
        }


def _tree(found: dict[str, Any]) -> str:
    lines = [f"fabric {found['fabric']}"]
    lines += _below(found["hypernodes"], "")
    for one in found["unplaced"]:
        lines.append(f"unplaced: {one['node'] or '(no name)'}: {one['reason']}")
    return "\n".join(lines)


def _below(branches: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for i, branch in enumerate(branches):
        last = i == len(branches) - 1
        head, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if "tier" in branch:
            about = ", ".join(branch.get("switches", ())) or branch.get("derivedFrom") or ""
            yield f"{indent}{head}{branch['name']} ({branch['tierName']}){': ' + about if about else ''}"
        else:
            yield f"{indent}{head}{branch['name']}{_oddly(branch)}"
        yield from _below(branch.get("members") or branch.get("nodes") or [], indent + rest)


def _oddly(node: dict[str, Any]) -> str:
    """What is not as it should be; a node that is in order is its name."""
    parts = [
        f"{link['link']} {link['anomaly'] or 'silent'}{' at ' + link['switch'] if link['switch'] else ''}"
        for link in node["links"]
        if link["anomaly"] or not link["switch"]
    ]
    if not node["links"]:
        parts.append("not reporting")
    return f"  ({', '.join(parts)})" if parts else ""


def _dot(found: dict[str, Any]) -> str:
    lines = ["graph fabric {", "  rankdir=TB;", "  node [shape=box];"]
    for branch in found["hypernodes"]:
        lines += _cluster(branch, "  ")
    lines += (f"  {one} -- {other} [label={label}];" for one, other, label in _edges(found, _dot_string))
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


def _edges(found: dict[str, Any], quote: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
    todo = [*found["hypernodes"]]
    while todo:
        branch = todo.pop(0)
        todo += branch.get("members", ())
        for node in branch.get("nodes", ()):
            for link in node["links"]:
                if link["switch"]:
                    ends = quote(f"switch {link['switch']}"), quote(f"node {node['name']}")
                    yield (*ends, quote(f"{link['link']} {link['port'] or ''}".strip()))


def _mermaid(found: dict[str, Any]) -> str:
    names: dict[str, str] = {}

    def identity(text: str) -> str:
        return names.setdefault(text, f"n{len(names)}")

    lines = ["flowchart TB"]
    for branch in found["hypernodes"]:
        lines += _subgraph(branch, "  ", identity)
    for one, other, label in _edges(found, str):
        for end in (one, other):
            if end not in names:
                lines.append(f"  {identity(end)}{_mermaid_label(end.partition(' ')[2], '([', '])')}")
        lines.append(f"  {identity(one)} ---|{_mermaid_label(label)}| {identity(other)}")
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
