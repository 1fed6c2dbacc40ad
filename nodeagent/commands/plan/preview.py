"""A plan without a cluster, or of one that is only read: what the fabric makes of reports, and why.

Nothing is written and nothing is waited for: every move is shown as if its report had stood for its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.commands.plan.objects import Objects, merged
from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.controller_config import FabricConfig, load_fabric, rules_of
from nodeagent.fabric import IMMEDIATE, HyperNode, Outcome, Planner, Rules
from nodeagent.fabric.rules import Hysteresis
from nodeagent.fabric.topology_file import load_topology


class SourceError(Exception):
    """What should be planned cannot be read; the message says what to give."""


@dataclass(frozen=True, slots=True)
class Look:
    """``published`` are the HyperNodes that were read, ``notes`` what somebody should know besides."""

    planner: Planner
    outcome: Outcome
    published: dict[str, HyperNode]
    notes: tuple[str, ...]


def load(file: Path | None) -> tuple[FabricConfig, Rules]:
    """The controller's file and the topology file that it names. Raises ``ConfigError``."""
    if file is None:
        return FabricConfig(), Rules()
    config = load_fabric(_text(file), name=str(file))
    if config.topology is None:
        return config, rules_of(config)
    path = file.parent / config.topology
    return config, rules_of(config, load_topology(_text(path), name=str(path)))


def look(parts: Iterable[Objects], rules: Rules) -> Look:
    """The plan for all that was read."""
    objects = merged(parts)
    planner = Planner(replace(rules, hysteresis=IMMEDIATE))
    published = {one.name: one for one in objects.hypernodes}
    for hypernode in published.values():
        planner.hypernode(hypernode.name, hypernode)
    for name, labels in objects.nodes.items():
        planner.node(name, labels)
    for report in objects.reports:
        planner.report(report.metadata.name or report.node_name, report)
    for name, why in objects.refused.items():
        planner.refuse(name, why)
    outcome = planner.plan(0.0)
    notes = [*objects.notes, *_notes(objects, planner, rules.hysteresis)]
    return Look(planner, outcome, published, tuple(notes))


def _notes(objects: Objects, planner: Planner, times: Hysteresis) -> Iterable[str]:
    if not objects.reports and not objects.refused:
        yield "no NodeLinks were found: the published tree stays as it is"
    moves, placed = len(planner.seating.pending), len(planner.seating.placed)
    if moves > max(times.least_nodes, times.share * placed):
        yield f"{moves} of {placed} placed nodes would move: the controller holds that for {times.hold_s:g} s first"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), [ConfigFault("", None, None, why)]) from error
