"""What a plan says: values only.

``TreeWrite.after`` is the whole of the safety: a write may be sent only when all the writes that it names (by
their place in ``PlanOutcome.writes``) have succeeded. Sent in order, with what depends on a failed one left out,
Volcano's tree is valid after every single write, wherever the sequence ends. Each write carries the
``resource_version`` that it was planned on (``None``: the write before it on the same object has made a new
one, use that), so that a stale planner is refused by the API server instead of believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from nodeagent.fabric.hypernode import HyperNode


class AnomalyKind(StrEnum):
    """The kinds of anomalies: a closed set, fit for a metric's label."""

    MISCABLED = "miscabled"
    RAIL_SWAP = "rail-swap"
    MISSING_RAIL = "missing-rail"
    FOREIGN_LEAF = "foreign-leaf"
    DUPLICATE_SYSTEM_NAME = "duplicate-system-name"
    REPLACED_SWITCH = "replaced-switch"
    SHARED_PORT = "shared-port"
    OVERSIZED = "oversized"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """What somebody should look at; empty where it is about no node, link or switch in particular."""

    kind: AnomalyKind
    node: str
    link: str
    switch: str
    message: str


@dataclass(frozen=True, slots=True, order=True)
class UnplacedNode:
    """A node that is in no leaf group, or a report that is not believed, and why."""

    node: str
    reason: str


Verb = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class TreeWrite:
    """One call to the API server. A ``delete`` carries the object as it was."""

    verb: Verb
    object: HyperNode
    after: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A HyperNode of another owner that holds nodes (or children) of ours."""

    name: str
    source: str | None
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Breaker:
    """So many nodes would move (or leave) or HyperNodes be deleted at once that it is held until ``until``."""

    since: float
    until: float
    moves: int
    placed: int
    deletes: int
    hypernodes: int


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """What should be, and how to get there.

    ``hypernodes`` are by tier and name, ``labels`` every placed node's. ``relabel`` is what must be
    patched on Nodes whose labels were handed in (``None`` takes a label away). ``next_at`` is when time
    alone will change the answer: plan again then, if nothing wakes you before. ``waiting`` counts moves
    that have not stood long enough. ``overlapping``: which HyperNodes of others hold something of one of ours that
    is published.
    """

    hypernodes: tuple[HyperNode, ...]
    labels: Mapping[str, Mapping[str, str]]
    relabel: Mapping[str, Mapping[str, str | None]]
    anomalies: tuple[Anomaly, ...]
    unplaced: tuple[UnplacedNode, ...]
    writes: tuple[TreeWrite, ...]
    overlaps: tuple[Overlap, ...] = ()
    overlapping: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    below_min_links: tuple[str, ...] = ()
    breaker: Breaker | None = None
    waiting: int = 0
    placed: int = 0
    next_at: float | None = None


def obstacles(outcome: PlanOutcome) -> dict[str, str]:
    """What stands in the way of the tree, for a person to decide: ``overlap/NAME`` and ``breaker``, in sentences."""
    said: dict[str, str] = {}
    for overlap in outcome.overlaps:
        members = ", ".join(overlap.members[:5]) + (", …" if len(overlap.members) > 5 else "")
        said[f"overlap/{overlap.name}"] = (
            f"HyperNode {overlap.name} of {overlap.source or 'somebody without a source label'} holds {members}, "
            "which nodeagent has placed too; remove one of the two sources, or set `foreign` to yield or own"
        )
    if (held := outcome.breaker) is not None:
        said["breaker"] = (
            f"{held.moves} of {held.placed} nodes would move and {held.deletes} of {held.hypernodes} HyperNodes be "
            "deleted at once; nothing is written until it has stood. Is a switch renamed, or a part of the "
            "cluster without reports?"
        )
    return said
