"""The result of a plan.

A write may be sent only after all writes in its ``after`` have succeeded; these are indices in ``PlanOutcome.writes``.
Sent in order, without the writes that depend on a failed one, Volcano's tree is valid after every single write. Each
write carries the ``resource_version`` that it was planned on, so the API server refuses a write from a stale plan.
``None``: use the version that the preceding write on the same object returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import msgspec

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.reports import STATE_LETTERS, UNKNOWN_LETTER, CompactReport

_STATES = {letter: state for state, letter in STATE_LETTERS.items()}
_SOUND = {STATE_LETTERS["healthy"], STATE_LETTERS["unused"]}


class AnomalyKind(StrEnum):
    """The kinds of anomalies: a closed set, and values of a metric label."""

    MISCABLED = "miscabled"
    RAIL_SWAP = "rail-swap"
    RAIL_SHIFT = "rail-shift"
    MISSING_RAIL = "missing-rail"
    FOREIGN_LEAF = "foreign-leaf"
    SHARED_SWITCH = "shared-switch"
    OTHER_FABRIC = "other-fabric"
    NODE_TO_NODE = "node-to-node"
    NO_LEAVES = "no-leaves"
    DUPLICATE_SYSTEM_NAME = "duplicate-system-name"
    SHARED_CHASSIS_ID = "shared-chassis-id"
    AMBIGUOUS_SWITCH = "ambiguous-switch"
    REPLACED_SWITCH = "replaced-switch"
    SHARED_PORT = "shared-port"
    CONTESTED_LINK = "contested-link"
    NVLINK_DOMAIN_MIXED = "nvlink-domain-mixed"
    NVLINK_DOMAIN_SPLIT = "nvlink-domain-split"
    SHARED_NUMBER = "shared-number"
    OVERSIZED = "oversized"
    UNDECIDABLE = "undecidable"
    LINK_LOSS = "link-loss"
    LEAF_LOSS = "leaf-loss"
    UPLINK_LOSS = "uplink-loss"
    SPINE_LOSS = "spine-loss"
    PATH_MTU = "path-mtu"
    HOST_SILENT = "host-silent"


RAIL_KINDS = frozenset(
    (
        AnomalyKind.LINK_LOSS,
        AnomalyKind.LEAF_LOSS,
        AnomalyKind.UPLINK_LOSS,
        AnomalyKind.SPINE_LOSS,
        AnomalyKind.PATH_MTU,
        AnomalyKind.HOST_SILENT,
    )
)
"""Found by probes, apart from plans."""

AnomalyPlace = tuple[AnomalyKind, str, str, str]


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """An anomaly of the cabling or of switch names. ``node``, ``link`` and ``switch`` are empty if it concerns none.

    ``nodes`` are all nodes that it concerns, if these are several. Then ``node`` is the first. ``to`` is the switch to
    which the cable belongs; empty: it is not known, or no cable is at a wrong switch.
    """

    kind: AnomalyKind
    node: str
    link: str
    switch: str
    message: str
    nodes: tuple[str, ...] = ()
    to: str = ""

    @property
    def place(self) -> AnomalyPlace:
        """Tells it apart from others; its message may change."""
        return self.kind, self.node, self.link, self.switch


@dataclass(frozen=True, slots=True, order=True)
class UnplacedNode:
    """A node without a leaf group, or with a refused report, and the reason."""

    node: str
    reason: str


Verb = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class TreeWrite:
    """One call to the API server. A ``delete`` carries the published object."""

    verb: Verb
    object: HyperNode
    after: tuple[int, ...] = ()
    reason: str = ""


class WriteRecord(msgspec.Struct, frozen=True):
    """A write to the API server that this replica has sent. ``at``: Unix time in seconds. ``result``: ``ok``, or why
    it failed."""

    at: float
    verb: str
    object: str
    reason: str
    result: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """A foreign HyperNode that holds nodes or HyperNodes which nodeagent has placed."""

    name: str
    source: str | None
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Breaker:
    """Too many nodes would move or HyperNodes be deleted at once, so nothing moves before ``until``."""

    since: float
    until: float
    moves: int
    placed: int
    deletes: int
    hypernodes: int


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The tree that should be, and the writes that lead to it.

    ``hypernodes`` are ordered by tier and name. ``labels`` are those of each placed node. ``relabel`` patches the
    labels of known Nodes; ``None`` removes a label. ``next_at`` is when time alone changes the result: plan again
    then. ``waiting`` counts moves that wait. ``overlapping`` are the foreign HyperNodes that overlap each
    published object. ``reports`` are those that it was planned from.
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
    reports: Mapping[str, CompactReport] = field(default_factory=dict)


def link_state(report: CompactReport, link: str) -> str:
    """The state of a link of the tree's fabric in a report."""
    states = {slot.link: letter for slot, letter in zip(report.shape, report.states, strict=False)}
    return state_of_letter(states.get(link, UNKNOWN_LETTER))


def state_of_letter(letter: str) -> str:
    """The state in ``CompactReport.states``."""
    return _STATES[letter]


def in_trouble(
    wanted: Mapping[str, HyperNode], reports: Mapping[str, CompactReport], name: str
) -> tuple[int, dict[str, list[str]]]:
    """The number of nodes below a HyperNode, and those with links of the fabric in trouble, by the links' state."""
    nodes, todo = set[str](), [name]
    while todo:
        if (hypernode := wanted.get(todo.pop())) is not None:
            nodes.update(hypernode.nodes)
            todo += hypernode.children
    found: dict[str, list[str]] = {}
    for node in sorted(nodes):
        report = reports.get(node)
        letters = set("" if report is None else report.states[: len(report.shape)]) - _SOUND
        states = {_STATES[letter] for letter in letters} if report is not None else {"not reported"}
        for state in states:
            found.setdefault(state, []).append(node)
    return len(nodes), found


def obstacles(outcome: PlanOutcome) -> dict[str, str]:
    """The obstacles that need a decision of the operator, as sentences: ``overlap/NAME`` and ``breaker``."""
    sentences: dict[str, str] = {}
    for overlap in outcome.overlaps:
        members = ", ".join(overlap.members[:5]) + (", …" if len(overlap.members) > 5 else "")
        sentences[f"overlap/{overlap.name}"] = (
            f"HyperNode {overlap.name} of {overlap.source or 'an owner without a source label'} holds {members}, "
            "which nodeagent places too; remove one of the two sources, or set `foreign` to yield or own"
        )
    if (held := outcome.breaker) is not None:
        sentences["breaker"] = (
            f"{held.moves} of {held.placed} nodes would move and {held.deletes} of {held.hypernodes} HyperNodes be "
            "deleted at once, so moves are held. Was a switch renamed, or are reports of a part of the cluster "
            "missing?"
        )
    return sentences
