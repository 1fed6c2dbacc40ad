"""Preview a plan from files or from a cluster that is only read.

A preview writes nothing and does not wait: every move takes effect at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from nodeagent.commands.plan.objects import Objects
from nodeagent.fabric import IMMEDIATE, HyperNode, Planner, PlanOutcome
from nodeagent.fabric.fabric_settings import FabricRules, HysteresisSettings
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.nodelinks import NodeLinks
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
    reports: Mapping[str, NodeLinks] | None = None
    """The reports as the planner takes them, if ``Objects.reports`` was a dict."""

    @property
    def outcome(self) -> PlanOutcome:
        return self.plan.outcome

    @property
    def wanted(self) -> dict[str, HyperNode]:
        return {hypernode.name: hypernode for hypernode in self.outcome.hypernodes}


def make_objects(rules: FabricRules, topology: Topology = NO_TOPOLOGY) -> Objects:
    """No objects yet; they are read for a plan with these rules, without waiting."""
    return Objects(Planner(structs.replace(rules, hysteresis=IMMEDIATE), topology))


def make_preview(objects: Objects, rules: FabricRules) -> Preview:
    """Plan for all objects that were read."""
    objects.complete()
    plan = objects.planner.prepare(0.0)()
    notes = [*objects.notes, *_notes(plan, rules.hysteresis)]
    return Preview(plan, objects.hypernodes, tuple(notes), objects.reports)


def _notes(plan: Plan, times: HysteresisSettings) -> Iterable[str]:
    if not plan.levels.reports and not plan.levels.refused:
        yield "no NodeLinks found: the published tree stays as it is"
    moves, placed = len(plan.nodes.pending), len(plan.published.tiers[LEAF].placed)
    if moves > max(times.hold_nodes, times.hold_share * placed):
        hold_s = times.hold_seconds
        yield f"{moves} of {placed} placed nodes would move: the controller first holds them for {hold_s:g} s"
