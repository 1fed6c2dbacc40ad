"""Preview a plan from files or from a cluster that is only read.

A preview writes nothing and does not wait: every move takes effect at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from nodeagent.commands.plan.objects import Objects, merged
from nodeagent.fabric import IMMEDIATE, HyperNode, Planner, PlanOutcome
from nodeagent.fabric.fabric_settings import FabricRules, HysteresisSettings
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology


class SourceError(Exception):
    """The input of the plan cannot be read. The message contains the remedy."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, the ``published`` HyperNodes that were read, and ``notes`` on the input."""

    plan: Plan
    published: dict[str, HyperNode]
    notes: tuple[str, ...]

    @property
    def outcome(self) -> PlanOutcome:
        return self.plan.outcome

    @property
    def wanted(self) -> dict[str, HyperNode]:
        return {hypernode.name: hypernode for hypernode in self.outcome.hypernodes}


def make_preview(parts: Iterable[Objects], rules: FabricRules, topology: Topology = NO_TOPOLOGY) -> Preview:
    """Plan for all objects that were read."""
    objects = merged(parts)
    planner = Planner(structs.replace(rules, hysteresis=IMMEDIATE), topology)
    published = {hypernode.name: hypernode for hypernode in objects.hypernodes}
    for hypernode in published.values():
        planner.hypernode(hypernode.name, hypernode)
    for name, labels in objects.nodes.items():
        planner.node(name, labels)
    for report in objects.reports:
        planner.report(report.metadata.name or report.node_name, report)
    for name, why in objects.refused.items():
        planner.refuse(name, why)
    plan = planner.prepare(0.0)()
    notes = [*objects.notes, *_notes(objects, plan, rules.hysteresis)]
    return Preview(plan, published, tuple(notes))


def _notes(objects: Objects, plan: Plan, times: HysteresisSettings) -> Iterable[str]:
    if not objects.reports and not objects.refused:
        yield "no NodeLinks found: the published tree stays as it is"
    moves, placed = len(plan.nodes.pending), len(plan.published.tiers[1].placed)
    if moves > max(times.hold_nodes, times.hold_share * placed):
        hold_s = times.hold_seconds
        yield f"{moves} of {placed} placed nodes would move: the controller first holds them for {hold_s:g} s"
