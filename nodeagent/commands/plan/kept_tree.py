"""A plan without the controller's configuration: it takes nothing away from what is published.

The configuration may be why an object, a member or a label is there: cabling in a topology file, the assertion that all
leaves reach each other, domains of NVLink, presets of labels. So published objects stay as they are, with the members
that they gain, and nodes that are in no published object get the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec import structs

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.inputs import KnownLabels
from nodeagent.fabric.outcome import PlanOutcome
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.writes import order


def keep_published(plan: Plan) -> Plan:
    """The same plan without what would delete or release something."""
    own, outcome = plan.levels.own, plan.outcome
    tree = _kept_tree(own, outcome.hypernodes)
    differing = [name for name, one in tree.items() if name not in own or not one.same(own[name])]
    kept = replace(
        outcome,
        hypernodes=tuple(sorted(tree.values(), key=lambda one: (one.tier, one.name))),
        writes=order(own, tree, differing) if outcome.writes else (),
        labels=_kept_labels(outcome, plan.levels.nodes),
        relabel={
            node: added
            for node, patch in outcome.relabel.items()
            if (added := _added(patch, plan.levels.nodes[node]))
        },
    )
    return replace(plan, outcome=kept)


def _kept_tree(own: Mapping[str, HyperNode], wanted: Iterable[HyperNode]) -> dict[str, HyperNode]:
    """The published objects with what they gain, and new ones for members without a published parent."""
    published = {member for one in own.values() for member in (*one.nodes, *one.children)}
    tree = dict(own)
    for new in sorted(wanted, key=lambda one: one.tier):  # an empty one below is no child
        nodes = [node for node in new.nodes if node not in published]
        children = [child for child in new.children if child not in published and child in tree]
        here = own.get(new.name)
        if not nodes and not children:
            continue
        tree[new.name] = structs.replace(
            here or new,
            nodes=tuple(sorted((*(here.nodes if here else ()), *nodes))),
            children=tuple(sorted((*(here.children if here else ()), *children))),
        )
    return tree


def _kept_labels(outcome: PlanOutcome, nodes: Mapping[str, KnownLabels]) -> dict[str, Mapping[str, str]]:
    return {
        node: {**labels, **(dict(nodes[node].ours) if node in nodes else {})}
        for node, labels in outcome.labels.items()
    }


def _added(patch: Mapping[str, str | None], known: KnownLabels) -> dict[str, str | None]:
    """The labels that the Node does not have yet."""
    has = dict(known.ours)
    return {key: text for key, text in patch.items() if text is not None and key not in has}
