"""One plan in one call, for a look without a memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Outcome
from nodeagent.fabric.planner import Planner
from nodeagent.fabric.rules import IMMEDIATE, Rules


def compute(
    reports: Iterable[NodeLinks],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    published: Iterable[HyperNode] = (),
    rules: Rules | None = None,
) -> Outcome:
    """One plan without waiting and without a memory."""
    planner = Planner(rules or Rules(hysteresis=IMMEDIATE))
    for hypernode in published:
        planner.hypernode(hypernode.name, hypernode)
    for name, labels in (nodes or {}).items():
        planner.node(name, labels)
    for links in reports:
        planner.report(links.metadata.name or links.node_name, links)
    return planner.plan(0.0)
