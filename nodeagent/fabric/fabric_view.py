"""A plan as a compact document for the fabric map: nodes with their links, the tree, and everything odd about them.

The page of the controller and ``nodeagent topology --format html`` draw the same document. Links of equal nodes are
described once, in a ``ViewShape``; a node adds one letter and one port for each link. So 1,000 nodes of eleven links
make some 80 KB of JSON, and some 10 KB of gzip.

Times are Unix time, in seconds. Text from reports is escaped to one line of printable characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from nodeagent.base.change_log import Change
from nodeagent.base.plain_text import few, one_line
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.groups import CablingPattern
from nodeagent.fabric.hypernode import DERIVED_FROM, LEAF, HyperNode, tier_name
from nodeagent.fabric.maintenance import SERIES_MAX, standing
from nodeagent.fabric.nodelinks import NodeLink, ReportedGpu, VfHolder
from nodeagent.fabric.outcome import WriteRecord, obstacles
from nodeagent.fabric.placement import Placement
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.reports import CompactReport, SwitchAnnouncement, shown
from nodeagent.fabric.switch_keys import plain
from nodeagent.fabric.troubles import (
    FabricTrouble,
    HeldOn,
    JobOf,
    held_by_none,
    of_no_job,
    troubles,
)
from nodeagent.facts.remedies import runbook_links

STALE, CONTESTED, SAYS_MISCABLED = 1, 2, 4
"""Bits of a mark: the LLDP information has expired; another neighbor sends too; the node reports it as miscabled."""

TROUBLES_SHOWN, PODS_SHOWN, LINKS_SHOWN, LEGS_SHOWN, NODES_SHOWN = 1000, 2000, 16, 400, 64
TEXT_SHOWN = 320


class FabricPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ViewShape(FabricPart, frozen=True, kw_only=True):
    """The links of some nodes, in the order of the report: names, columns (rail or fabric) and switches.

    ``own`` links come first, which are those of the tree's fabric; the column of any other link is its fabric.
    ``switches[i]`` is an index in ``FabricView.switches``, or -1.
    """

    own: int
    links: tuple[str, ...]
    columns: tuple[str, ...]
    switches: tuple[int, ...]


class ViewHyperNode(FabricPart, frozen=True, kw_only=True):
    """``parent`` is an index in ``FabricView.hypernodes``, or -1. ``source`` is the owner of a foreign one."""

    name: str
    tier: int
    tier_name: str
    parent: int = -1
    switches: tuple[str, ...] = ()
    derived_from: str = ""
    source: str | None = None
    members: int = 0


class ViewAnomaly(FabricPart, frozen=True, kw_only=True):
    kind: str
    node: str
    link: str
    switch: str
    message: str
    nodes: tuple[str, ...] = ()


class ViewTrouble(FabricPart, frozen=True, kw_only=True):
    """A ``FabricTrouble`` with at most ``LINKS_SHOWN`` of its links, as pairs of node and link, of its GPUs and
    of its jobs, and at most ``NODES_SHOWN`` of its nodes. ``pods``: how many."""

    what: str
    where: str
    since: float | None
    links: tuple[tuple[str, str], ...]
    link_count: int
    reasons: tuple[str, ...]
    details: tuple[str, ...]
    pods: int
    remedy: str
    maintenance: str = ""
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    gpus: tuple[tuple[str, str], ...] = ()


class ViewMaintenance(FabricPart, frozen=True, kw_only=True):
    """Planned work on a link, or on a whole node without ``link``, until ``end`` (Unix time)."""

    node: str
    link: str
    end: float
    text: str


class ViewAway(FabricPart, frozen=True, kw_only=True):
    """A node that is away: what in words, since when (Unix time), and what its kubelet says."""

    what: str
    since: float | None
    detail: str


class ViewLeg(FabricPart, frozen=True, kw_only=True, omit_defaults=True):
    """Two links between which probes are lost: ``level`` in percent. ``large``: packets of the full MTU alone."""

    node: str
    link: str
    to_node: str
    to_link: str
    level: int
    large: bool = False


class ViewMove(FabricPart, frozen=True, kw_only=True):
    """A node or HyperNode that waits. ``to`` is empty for one that leaves, ``here`` for a new one. ``due``: when the
    wait ends, if nothing changes; ``None`` if it has no end of its own."""

    name: str
    here: str
    to: str
    since: float
    due: float | None
    why: str


class ViewOverlap(FabricPart, frozen=True, kw_only=True):
    name: str
    source: str | None
    members: tuple[str, ...]


class ViewReport(msgspec.Struct, frozen=True):
    """The links of a node as it reports them, words for the reasons that they name, the pods with VFs, and the GPUs in
    trouble."""

    links: tuple[NodeLink, ...]
    reasons: Mapping[str, Any]
    holders: tuple[VfHolder, ...] = ()
    gpus: tuple[ReportedGpu, ...] = ()
    runbook: Mapping[str, str] = {}
    """As ``FabricView.runbook``."""


class FabricView(FabricPart, frozen=True, kw_only=True):
    """Everything that the map shows.

    ``nodes[i]`` is in ``hypernodes[groups[i]]``, and has the links of ``shapes[shapes_of[i]]`` (-1: no report, or no
    place). ``states[i]`` has a letter of ``reports.STATE_LETTERS`` for each link, ``marks[i]`` a digit with the bits
    above for each own link (empty: all are 0), and ``ports[i]`` an index in ``port_names`` for each own link, or -1.
    """

    kind: str = "fabric"
    fabric: str
    taken: float
    hypernodes: tuple[ViewHyperNode, ...]
    switches: tuple[str, ...]
    port_names: tuple[str, ...]
    shapes: tuple[ViewShape, ...]
    nodes: tuple[str, ...]
    groups: tuple[int, ...]
    shapes_of: tuple[int, ...]
    states: tuple[str, ...]
    marks: tuple[str, ...]
    ports: tuple[tuple[int, ...], ...]
    unplaced: Mapping[str, str]
    anomalies: tuple[ViewAnomaly, ...]
    troubles: tuple[ViewTrouble, ...]
    """At most ``TROUBLES_SHOWN``; the first concern most pods and links."""
    more_troubles: int
    pods: Mapping[str, tuple[int, ...]]
    """The pods in trouble: the places of their troubles in ``troubles``; at most ``PODS_SHOWN`` pods."""
    moves: tuple[ViewMove, ...]
    foreign: tuple[ViewHyperNode, ...]
    overlaps: tuple[ViewOverlap, ...]
    maintenance: tuple[ViewMaintenance, ...]
    """At most ``SERIES_MAX``; those whose time is over are left out."""
    away: Mapping[str, ViewAway]
    """The nodes that are away: their links are as last reported."""
    gpus: Mapping[str, tuple[str, ...]]
    """The GPUs in trouble of each node that is not away: each with its state, as ``GPU 3 unhealthy``."""
    legs: tuple[ViewLeg, ...]
    """At most ``LEGS_SHOWN`` of those that lose packets; the worst first."""
    more_legs: int
    obstacles: tuple[str, ...]
    waiting_writes: tuple[str, ...]
    writes: tuple[WriteRecord, ...] = ()
    changes: tuple[Change, ...] = ()
    """The newest ones, the oldest first; none in a file."""
    details: Mapping[str, ViewReport] | None = None
    """The whole reports of nodes by name, in a file; the live page asks for one at a time."""
    runbook: Mapping[str, str] = {}
    """The addresses of reasons in the runbook, if that is known."""
    node_page: str | None = None
    """The address of the page of a node, with ``{node}``."""


def fabric_view(
    plan: Plan,
    now: float,
    taken: float,
    writes: Iterable[WriteRecord] = (),
    details: Mapping[str, ViewReport] | None = None,
    changes: Iterable[Change] = (),
    *,
    held: HeldOn = held_by_none,
    job_of: JobOf = of_no_job,
    runbook: str | None = None,
    node_page: str | None = None,
) -> FabricView:
    """The document of a plan that was computed at ``now``, the planner's clock; ``taken`` is this moment in Unix
    time. ``held`` and ``job_of`` as for ``troubles``."""
    outcome, found = plan.outcome, troubles(plan, taken - now, taken, held, job_of)
    legs = _legs(plan)
    places = {hypernode.name: i for i, hypernode in enumerate(outcome.hypernodes)}
    parent = {  # the map shows domains of NVLink below no group
        child: upper.name
        for upper in outcome.hypernodes
        if upper.tier_name != tier_name(LEAF)
        for child in upper.children
    }
    rows = _Rows(plan)
    nodes = sorted({*plan.nodes.place, *plan.levels.reports, *plan.levels.refused} - {""})
    for node in nodes:
        rows.add(node)
    return FabricView(
        fabric=plan.rules.fabric,
        taken=taken,
        hypernodes=tuple(
            _hypernode(hypernode, places.get(parent.get(hypernode.name, ""), -1))
            for hypernode in outcome.hypernodes
        ),
        switches=tuple(rows.switches),
        port_names=tuple(rows.port_names),
        shapes=tuple(rows.shapes),
        nodes=tuple(map(shown, nodes)),
        groups=tuple(places.get(plan.nodes.place.get(node, ""), -1) for node in nodes),
        shapes_of=tuple(rows.shapes_of),
        states=tuple(rows.states),
        marks=tuple(rows.marks),
        ports=tuple(rows.ports),
        unplaced={shown(entry.node): entry.reason for entry in outcome.unplaced},
        anomalies=tuple(
            ViewAnomaly(
                kind=anomaly.kind.value,
                node=anomaly.node,
                link=anomaly.link,
                switch=plain(anomaly.switch),
                message=anomaly.message,
                nodes=anomaly.nodes,
            )
            for anomaly in outcome.anomalies
        ),
        troubles=tuple(map(_trouble, found[:TROUBLES_SHOWN])),
        more_troubles=max(0, len(found) - TROUBLES_SHOWN),
        pods=_pods(found[:TROUBLES_SHOWN]),
        moves=tuple(_moves(plan, taken - now)),
        foreign=tuple(_hypernode(hypernode, -1) for _, hypernode in sorted(plan.levels.foreign.items())),
        overlaps=tuple(
            ViewOverlap(name=entry.name, source=entry.source, members=entry.members)
            for entry in outcome.overlaps
        ),
        maintenance=tuple(
            ViewMaintenance(node=shown(node), link=entry.link, end=entry.end, text=entry.sentence)
            for node, entry in islice(standing(plan.levels.maintained, taken), SERIES_MAX)
        ),
        away={
            shown(node): ViewAway(what=one.word, since=one.since, detail=one.detail)
            for node, one in plan.away.items()
        },
        gpus={
            shown(node): tuple(f"{fault.gpu} {fault.state}" for fault in of_node)
            for node, of_node in plan.levels.gpu_faults.items()
            if node not in plan.levels.away
        },
        legs=tuple(legs[:LEGS_SHOWN]),
        more_legs=max(0, len(legs) - LEGS_SHOWN),
        obstacles=tuple(obstacles(outcome).values()),
        waiting_writes=tuple(f"{write.verb} {write.object.name}: {write.reason}" for write in outcome.writes),
        writes=tuple(writes),
        changes=tuple(changes),
        details=details,
        runbook=runbook_links(runbook, (key for one in found[:TROUBLES_SHOWN] for key in one.reasons)),
        node_page=node_page,
    )


class _Rows:
    """The columns of the nodes, filled one node at a time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._switch_places: dict[str, int] = {}
        self._port_places: dict[str, int] = {}
        self._shape_places: dict[tuple[int, int, int], int] = {}
        self.shapes: list[ViewShape] = []
        self.shapes_of: list[int] = []
        self.states: list[str] = []
        self.marks: list[str] = []
        self.ports: list[tuple[int, ...]] = []

    @property
    def switches(self) -> Iterable[str]:
        return self._switch_places

    @property
    def port_names(self) -> Iterable[str]:
        return self._port_places

    def add(self, node: str) -> None:
        report = self._plan.levels.reports.get(node)
        if report is None:
            self.shapes_of.append(-1)
            self.states.append("")
            self.marks.append("")
            self.ports.append(())
            return
        self.shapes_of.append(self._shape(report, self._plan.votes.pattern(node)))
        self.states.append(report.states)
        self.marks.append(_marks(report))
        places = self._port_places
        self.ports.append(
            tuple([places.setdefault(shown(port), len(places)) if port else -1 for port in report.ports])
        )

    def _shape(self, report: CompactReport, pattern: CablingPattern | None) -> int:
        key = id(report.shape), id(report.others), id(pattern)
        place = self._shape_places.get(key)
        if place is None:
            place = self._shape_places[key] = len(self.shapes)
            self.shapes.append(self._view_shape(report, pattern))
        return place

    def _view_shape(self, report: CompactReport, pattern: CablingPattern | None) -> ViewShape:
        keys: Sequence[str] = ("",) * len(report.shape) if pattern is None else pattern.keys
        switches = [
            plain(key) or ("" if slot.neighbor is None else _announced(slot.neighbor))
            for key, slot in zip(keys, report.shape, strict=True)
        ]
        switches += [other.switch for other in report.others]
        names = (*(slot.link for slot in report.shape), *(other.link for other in report.others))
        columns = (*(slot.rail for slot in report.shape), *(other.fabric for other in report.others))
        return ViewShape(
            own=len(report.shape),
            links=tuple(map(shown, names)),
            columns=tuple(map(shown, columns)),
            switches=tuple(map(self._switch, switches)),
        )

    def _switch(self, name: str) -> int:
        return self._switch_places.setdefault(shown(name), len(self._switch_places)) if name else -1


def _announced(neighbor: SwitchAnnouncement) -> str:
    return neighbor.name or neighbor.chassis.partition("=")[2]


def _marks(report: CompactReport) -> str:
    if not report.stale | report.contested | report.miscabled:
        return ""
    return "".join(
        str(
            STALE * (i in report.stale)
            + CONTESTED * (i in report.contested)
            + SAYS_MISCABLED * (i in report.miscabled)
        )
        for i in range(len(report.shape))
    )


def _hypernode(hypernode: HyperNode, parent: int) -> ViewHyperNode:
    return ViewHyperNode(
        name=shown(hypernode.name),
        tier=hypernode.tier,
        tier_name=shown(hypernode.tier_name),
        parent=parent,
        switches=tuple(shown(plain(switch)) for switch in hypernode.switches),
        derived_from=shown(hypernode.note(DERIVED_FROM)),
        source=None if hypernode.ours else shown(hypernode.source or "an owner without a source label"),
        members=len(hypernode.nodes) + len(hypernode.children),
    )


def _trouble(one: FabricTrouble) -> ViewTrouble:
    return ViewTrouble(
        what=one.what,
        where=one_line(one.where, TEXT_SHOWN),
        since=one.since,
        links=tuple((node, shown(link)) for node, link in one.links[:LINKS_SHOWN]),
        link_count=len(one.links),
        reasons=tuple(map(shown, one.reasons[:LINKS_SHOWN])),
        details=tuple(one_line(detail, TEXT_SHOWN) for detail in few(one.details)),
        pods=len(one.pods),
        remedy=one.remedy,
        maintenance=one.maintenance,
        nodes=tuple(map(shown, one.nodes[:NODES_SHOWN])),
        jobs=tuple(map(shown, one.jobs[:LINKS_SHOWN])),
        gpus=one.gpus[:LINKS_SHOWN],
    )


def _pods(found: Iterable[FabricTrouble]) -> Mapping[str, tuple[int, ...]]:
    pods: dict[str, list[int]] = {}
    for place, one in enumerate(found):
        for pod in one.pods:
            if pod in pods or len(pods) < PODS_SHOWN:
                pods.setdefault(pod, []).append(place)
    return {shown(pod): tuple(places) for pod, places in pods.items()}


def _legs(plan: Plan) -> list[ViewLeg]:
    """One for each pair of links of reports, by the worse word of its two ends."""
    reports = plan.levels.reports
    known = {(node, slot.link) for node, report in reports.items() for slot in report.shape}
    found: dict[tuple[object, ...], ViewLeg] = {}
    for node, report in reports.items():
        for i, leg in report.legs:
            own, far = (node, report.shape[i].link), (leg.node, leg.nic)
            key = (*sorted((own, far)), leg.large)
            if far in known and far[0] != node and (key not in found or found[key].level < leg.level):
                ends = (shown(text) for text in (*own, *far))
                found[key] = ViewLeg(
                    **dict(zip(("node", "link", "to_node", "to_link"), ends, strict=True)),
                    level=leg.level,
                    large=leg.large,
                )
    return sorted(found.values(), key=lambda leg: (leg.large, -leg.level, leg.node, leg.link, leg.to_node))


def _moves(plan: Plan, to_unix: float) -> Iterable[ViewMove]:
    """The moves that wait, and why. ``to_unix`` makes Unix time of the planner's clock."""
    times = plan.rules.hysteresis
    for placement in (plan.nodes, *plan.tiers.active):
        yield from _waiting_moves(placement, times, to_unix)
    for node, since in plan.memory.waiting.items():
        yield ViewMove(
            name=node,
            here="",
            to="",
            since=to_unix + since,
            due=to_unix + since + times.settle_seconds,
            why=f"it is new and waits for the LLDP neighbors of its other links, at most {times.settle_seconds:g} s",
        )


def _waiting_moves(placement: Placement, times: HysteresisSettings, to_unix: float) -> Iterable[ViewMove]:
    held = placement.breaker
    for name, (target, since) in placement.pending.items():
        if placement.place.get(name) == target or since == float("-inf"):
            continue
        why = f"its new place must stay the same for {times.move_seconds:g} s"
        yield _move(name, placement, target, since, times.move_seconds, why, to_unix)
    for name, since in placement.gone.items():
        if name in placement.place:
            why = f"no Node has this name; it leaves after {times.grace_seconds:g} s"
            yield _move(name, placement, "", since, times.grace_seconds, why, to_unix)
    if held is not None:
        yield ViewMove(
            name="all moves",
            here="",
            to="",
            since=to_unix + held.since,
            due=to_unix + held.until,
            why=f"{held.moves} of {held.placed} members would move at once; they are held, so that you can look first",
        )


def _move(
    name: str, placement: Placement, to: str, since: float, wait_s: float, why: str, to_unix: float
) -> ViewMove:
    return ViewMove(
        name=name, here=placement.place.get(name, ""), to=to, since=to_unix + since,
        due=to_unix + since + wait_s, why=why,
    )  # fmt: skip
