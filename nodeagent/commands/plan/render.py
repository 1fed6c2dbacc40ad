"""Render a plan: JSON for programs, YAML for kubectl, a diff, or a table. Equal plans give equal bytes."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodeagent.base.plain_text import one_line
from nodeagent.console.terminal import PLAIN, Screen, remarks, section
from nodeagent.fabric.hypernode import DERIVED_FROM, NVLINK_DOMAIN, HyperNode, render
from nodeagent.fabric.outcome import Overlap, PlanOutcome
from nodeagent.fabric.switch_keys import plain

# Text that every YAML parser reads as a string without quotes.
_PLAIN = re.compile(r"[a-z][a-z0-9/-]*(\.[a-z0-9/-]+)*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_SHOWN = 40


def document(outcome: PlanOutcome) -> dict[str, Any]:
    return {
        "hypernodes": [render(hypernode) for hypernode in outcome.hypernodes],
        "labels": {node: dict(sorted(labels.items())) for node, labels in sorted(outcome.labels.items())},
        "anomalies": [
            {
                "kind": str(anomaly.kind),
                "node": anomaly.node or None,
                "link": anomaly.link or None,
                "switch": anomaly.switch or None,
                "message": anomaly.message,
            }
            for anomaly in outcome.anomalies
        ],
        "unplaced": [{"node": unplaced.node, "reason": unplaced.reason} for unplaced in outcome.unplaced],
        "writes": [{"verb": write.verb, "object": render(write.object)} for write in outcome.writes],
    }


def as_yaml(hypernodes: Iterable[HyperNode]) -> str:
    return "---\n".join("".join(f"{line}\n" for line in lines(hypernode)) for hypernode in hypernodes)


def lines(hypernode: HyperNode) -> Iterator[str]:
    """One object as YAML, with one member per line."""
    manifest = render(hypernode)
    yield f"apiVersion: {manifest['apiVersion']}"
    yield f"kind: {manifest['kind']}"
    yield "metadata:"
    yield f"  name: {_scalar(hypernode.name)}"
    for key in ("labels", "annotations"):
        if manifest["metadata"].get(key):
            yield f"  {key}:"
            yield from (f"    {name}: {_scalar(text)}" for name, text in manifest["metadata"][key].items())
    yield "spec:"
    yield f"  tier: {hypernode.tier}"
    yield f"  tierName: {_scalar(hypernode.tier_name)}"
    yield "  members:"
    for kind, names in (("Node", hypernode.nodes), ("HyperNode", hypernode.children)):
        for name in names:
            yield f"  - {{type: {kind}, selector: {{exactMatch: {{name: {_scalar(name)}}}}}}}"


def as_diff(published: Mapping[str, HyperNode], outcome: PlanOutcome) -> str:
    """The changes of each object, in the format of ``diff -u``."""
    wanted = {hypernode.name: hypernode for hypernode in outcome.hypernodes}
    out: list[str] = []
    names = sorted(wanted.keys() | {name for name, hypernode in published.items() if hypernode.ours})
    for name in names:
        old, new = published.get(name), wanted.get(name)
        if old is not None and new is not None and old.same(new):
            continue
        before = [] if old is None else [*lines(old)]
        after = [] if new is None else [*lines(new)]
        out += difflib.unified_diff(
            before,
            after,
            f"published/{name}" if old is not None else "/dev/null",
            f"planned/{name}" if new is not None else "/dev/null",
            lineterm="",
        )
    return "".join(f"{line}\n" for line in out)


def as_table(outcome: PlanOutcome, on: Screen = PLAIN) -> str:
    kinds = Counter(str(anomaly.kind) for anomaly in outcome.anomalies)
    parts = [
        section(
            "HyperNodes",
            ("TIER", "NAME", "MEMBERS", "SWITCHES"),
            [
                (
                    f"{hypernode.tier} {hypernode.tier_name}",
                    hypernode.name,
                    str(len(hypernode.nodes) + len(hypernode.children)),
                    _some(map(plain, hypernode.switches))
                    or hypernode.note(DERIVED_FROM)
                    or hypernode.note(NVLINK_DOMAIN),
                )
                for hypernode in outcome.hypernodes
            ],
            on,
        ),
        remarks(
            f"Anomalies: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}",
            [f"{anomaly.kind}: {anomaly.message}" for anomaly in outcome.anomalies],
            on,
        ),
        remarks(
            "Unplaced",
            [f"{unplaced.node or '(no name)'}: {unplaced.reason}" for unplaced in outcome.unplaced],
            on,
        ),
        remarks("Not written", list(map(overlap_sentence, outcome.overlaps)), on),
    ]
    if outcome.writes:
        rows = [
            (str(i), write.verb, write.object.name, write.reason) for i, write in enumerate(outcome.writes, 1)
        ]
        parts.append(section("Writes, in this order", ("", "VERB", "HYPERNODE", "WHY"), rows, on))
    else:
        parts.append("Nothing to write.\n")
    return "\n".join(part for part in parts if part)


def overlap_sentence(overlap: Overlap) -> str:
    return (
        f"the HyperNode {overlap.name} (source {overlap.source or 'unknown'}) holds {len(overlap.members)} of our "
        f"members ({_some(overlap.members)}): delete it, or set foreign: yield to leave them to its owner"
    )


def _some(names: Iterable[str]) -> str:
    listed = [*names]
    text = ", ".join(listed)
    if len(text) <= _SHOWN or len(listed) < 3:
        return one_line(text)
    return one_line(f"{listed[0]} … {listed[-1]} ({len(listed)})")


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text not in _WORDS else json.dumps(text)
