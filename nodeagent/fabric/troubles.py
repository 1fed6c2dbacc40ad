"""The troubles of a fabric: links and GPUs with a fault, wrong cables, refused reports; what concerns most pods first.

Links that went down within ``TOGETHER_S`` have one cause, so they are one trouble: several links of one switch, or of
one node. ``CLOCKS_S`` counts for a switch of which no link is up. An anomaly of a link that has a fault joins it. The
verb ``trouble`` and the fabric map show this list.

A node that is away (``away_nodes``) is a trouble that takes the faults of its links with it: they are as last reported.
Several of one leaf group that went within ``AWAY_TOGETHER_S`` are one.

The GPUs of a node that failed together for the same reasons are one trouble. A node has at most ``GPU_TROUBLES_MAX`` of
them, and they count as one link each in the order: a report that lies changes the place of its own node alone.

Values in which nodes differ from their peers (``odd_nodes``) are troubles too.

A trouble has the pods that hold VFs of its links, or of its nodes where no link is named. An anomaly that only makes
the tree wrong has none: the traffic of no pod suffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from nodeagent.base.plain_text import few
from nodeagent.fabric.agent_pods import AGENT_PODS
from nodeagent.fabric.away_nodes import NO_AGENT, UNREACHABLE, Away, AwayNode
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.gpu_troubles import GpuFault
from nodeagent.fabric.link_faults import FAULTS_MAX, LinkFault
from nodeagent.fabric.maintenance import Maintained, under_maintenance
from nodeagent.fabric.node_lists import hostlist
from nodeagent.fabric.node_values import NodeValues
from nodeagent.fabric.odd_nodes import OddValue, odd_values
from nodeagent.fabric.outcome import Anomaly, AnomalyKind, UnplacedNode
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.reports import STATE_LETTERS, shown
from nodeagent.fabric.switch_keys import plain
from nodeagent.facts.remedies import remedy_for

T = TypeVar("T")
DOWN = frozenset(("down", "missing"))
_DOWN_LETTERS = frozenset(STATE_LETTERS[state] for state in DOWN)
TOGETHER_S = 2.0
"""Times of reports are whole seconds: links that lost their switch within one second may differ by two."""
CLOCKS_S = 300.0
"""Clocks of nodes differ by less; Kerberos refuses more."""
TOGETHER_MIN = 3
"""The fewest links of one switch or node with one cause; two may be a coincidence, or one cable with two lanes."""
AWAY_TOGETHER_S = 60.0
"""The kubelet renews its Lease each 10 s, and the controller of nodes looks each 5 s: nodes that lost their power at
once become Unknown within a quarter of a minute, or within a minute where the API server is slow."""
GPUS_TOGETHER_S = 60.0
"""An agent reads its GPUs one after the other, and writes at most each 10 s."""
GPU_TROUBLES_MAX = 16
_CABLES = frozenset((AnomalyKind.MISCABLED, AnomalyKind.FOREIGN_LEAF, AnomalyKind.RAIL_SWAP))
_TREE_ALONE = frozenset(
    (
        AnomalyKind.SHARED_SWITCH,
        AnomalyKind.OTHER_FABRIC,
        AnomalyKind.NO_LEAVES,
        AnomalyKind.DUPLICATE_SYSTEM_NAME,
        AnomalyKind.SHARED_CHASSIS_ID,
        AnomalyKind.AMBIGUOUS_SWITCH,
        AnomalyKind.REPLACED_SWITCH,
        AnomalyKind.UNDECIDABLE,
        AnomalyKind.OVERSIZED,
    )
)
"""These make a wrong tree, and no packet takes another way."""
_AGENTS = f"kubectl get pods -A -o wide -l {AGENT_PODS}"
_OWN_NAME = "give each switch a name of its own"
_REMEDIES = {
    AnomalyKind.MISCABLED: "move the cable to the port of the node's cabling plan: nodeagent health",
    AnomalyKind.FOREIGN_LEAF: "move the cable to a switch of the node's own leaf group",
    AnomalyKind.RAIL_SWAP: "exchange the two cables",
    AnomalyKind.RAIL_SHIFT: "move each cable of the node by the number of rails in the message",
    AnomalyKind.MISSING_RAIL: "check link, cable and optics, and whether the switch port sends LLDP",
    AnomalyKind.NODE_TO_NODE: "move both ends of the cable to the switches of their rails",
    AnomalyKind.SHARED_SWITCH: "write the entry of `fabrics` in the message",
    AnomalyKind.OTHER_FABRIC: "write the entries of `fabrics` in the message",
    AnomalyKind.NO_LEAVES: "list the nodes in groups of the topology file; let DPUs forward LLDP",
    AnomalyKind.SHARED_PORT: "look for a hub, or two switches with one name; or let the switch name its ports",
    AnomalyKind.CONTESTED_LINK: "remove the bridge between them, or find the forger: nodeagent neighbors",
    AnomalyKind.DUPLICATE_SYSTEM_NAME: _OWN_NAME,
    AnomalyKind.SHARED_CHASSIS_ID: "give each switch a chassis ID of its own",
    AnomalyKind.AMBIGUOUS_SWITCH: f"{_OWN_NAME}, or let it announce its management address",
    AnomalyKind.REPLACED_SWITCH: "nothing, if the switch was replaced",
    AnomalyKind.UNDECIDABLE: "list the groups in the topology file",
    AnomalyKind.NVLINK_DOMAIN_MIXED: "assign all GPUs of the node to one partition of the NVLink fabric",
    AnomalyKind.NVLINK_DOMAIN_SPLIT: "correct the cables of the nodes in the message",
    AnomalyKind.SHARED_NUMBER: "give each NIC an address of its own, and restart the pods with the addresses of both",
    AnomalyKind.LINK_LOSS: "compare the NIC's counters (nodeagent health), then change the cable, then the port",
    AnomalyKind.LEAF_LOSS: "check the switch: its drops, its buffers, its line cards",
    AnomalyKind.UPLINK_LOSS: "find the uplink with errors at the switch, and take it out of the paths",
    AnomalyKind.SPINE_LOSS: "find the switch with errors in this tier, and take it out of the paths",
    AnomalyKind.PATH_MTU: "set one MTU on all ports of the path",
    AnomalyKind.HOST_SILENT: "check the node: is it up, and does its agent run?",
    AnomalyKind.OVERSIZED: "list these nodes in groups of their own in the topology file",
}
"""One for each kind; the table of docs/cabling.md has the whole. A cable whose switch is known is moved to that."""


HeldOn = Callable[[str], Mapping[str, tuple[str, ...]]]
"""The links of each pod with VFs, by ``namespace/pod``, on a node."""
JobOf = Callable[[str], str]
"""The job of a pod, ``namespace/pod``; empty: it is of none, or not known."""


class FabricTrouble(NamedTuple):
    """A fault with its place, its start (Unix time), its reasons, the pods that hold its links, and the remedy.
    ``maintenance`` says which of it is planned work; empty: nothing. ``nodes`` are those that it concerns without a
    link, ``jobs`` the jobs of ``pods``, and ``gpus`` the GPUs, each with its node."""

    what: str
    where: str
    since: float | None
    links: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    details: tuple[str, ...]
    pods: tuple[str, ...]
    remedy: str
    maintenance: str = ""
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    gpus: tuple[tuple[str, str], ...] = ()


def held_by_none(_node: str) -> Mapping[str, tuple[str, ...]]:
    return {}


def of_no_job(_pod: str) -> str:
    return ""


def troubles(
    plan: Plan,
    to_unix: float = 0.0,
    at: float = math.inf,
    held: HeldOn = held_by_none,
    job_of: JobOf = of_no_job,
) -> list[FabricTrouble]:
    """Everything that is wrong in the reports and in their tree: first what is not planned work, then what concerns
    most pods and links.

    ``to_unix`` makes Unix time of the planner's clock. Planned work whose time is over ``at`` this Unix time is none.
    ``held`` gives the pods of troubles that are no fault of a link, ``job_of`` their jobs.
    """
    outcome, away = plan.outcome, plan.away
    faults = [fault for of_node in plan.levels.faults.values() for fault in of_node if fault.node not in away]
    cables: dict[tuple[str, str], list[Anomaly]] = {}
    for anomaly in outcome.anomalies:
        if anomaly.kind is AnomalyKind.HOST_SILENT and anomaly.node in away:
            continue
        cables.setdefault((anomaly.node, anomaly.link), []).append(anomaly)
    found: list[FabricTrouble] = [*_of_away_nodes(plan, held)]
    found += (one for node in plan.levels.gpu_faults if node not in away for one in _of_gpus(plan, node))
    together: set[tuple[str, str]] = set()
    cut_off: set[str] = set()
    for of_switch, one_cause in _one_cause(faults, _alive(plan)):
        for fault in one_cause:
            together.add((fault.node, fault.link))
            cables.pop((fault.node, shown(fault.link)), None)
        if not of_switch:
            cut_off.add(one_cause[0].node)
        found.append(_joint(one_cause, of_switch=of_switch))
    for fault in faults:
        place = (fault.node, shown(fault.link))
        if (fault.node, fault.link) not in together:
            found.append(_of_link(fault, cables.pop(place, ())))
    for anomaly in (anomaly for same in cables.values() for anomaly in same):
        seen = (plan.memory.anomalies or {}).get(anomaly.place)
        found.append(_of_anomaly(anomaly, None if seen is None else to_unix + seen, held))
    cut_off |= away.keys()
    found += (_of_unplaced(unplaced, held) for unplaced in outcome.unplaced if unplaced.node not in cut_off)
    found += _of_odd_nodes(plan, at)
    if plan.levels.more_faults:
        found.append(_more(plan.levels.more_faults))
    found = [with_jobs(_with_maintenance(one, plan.levels.maintained, at), job_of) for one in found]
    return sorted(
        found,
        key=lambda one: (
            one.maintenance.startswith("maintenance"),
            -len(one.pods),
            -(len(one.links) or bool(one.gpus)),
            -(one.since or 0.0),
            one.where,
        ),
    )


def with_jobs(one: FabricTrouble, job_of: JobOf) -> FabricTrouble:
    """The trouble with the jobs of its pods."""
    jobs = {job for pod in one.pods if (job := job_of(pod))}
    return one._replace(jobs=tuple(sorted(jobs))) if jobs else one


def _with_maintenance(one: FabricTrouble, maintained: Maintained, at: float) -> FabricTrouble:
    """A trouble of which only some links are under maintenance says how many: the others need somebody now."""
    what = "links" if one.links else "nodes"
    places = one.links or tuple((node, "") for node in one.nodes) or ((one.where, ""),)
    found = [entry for place in places if (entry := under_maintenance(maintained, *place, at)) is not None]
    if not found:
        return one
    some = f"{len(found)} of {len(places)} {what}: " if len(found) < len(places) else ""
    return one._replace(maintenance=f"{some}{found[0].sentence}")


def _alive(plan: Plan) -> set[str]:
    """The names and chassis IDs of the switches to which a link is up."""
    alive: set[str] = set()
    for report in plan.levels.reports.values():
        of_others = report.states[len(report.shape) :]
        for slot, letter in zip(report.shape, report.states, strict=False):
            if slot.neighbor is not None and letter not in _DOWN_LETTERS:
                alive |= {slot.neighbor.name, slot.neighbor.chassis.partition("=")[2]}
        for other, letter in zip(report.others, of_others, strict=False):
            if letter not in _DOWN_LETTERS:
                alive.add(other.switch)
    return alive


def _one_cause(faults: Sequence[LinkFault], alive: Container[str]) -> Iterator[tuple[bool, list[LinkFault]]]:
    """The links of one switch, then those of one node, that went down together; whether it is a switch. The times of a
    switch that is not ``alive`` may differ as the clocks of nodes do."""
    left = sorted(
        (fault for fault in faults if fault.state in DOWN and fault.since is not None),
        key=lambda fault: fault.since or 0.0,
    )
    taken: set[tuple[str, str]] = set()
    for of_switch in (True, False):
        groups: dict[Hashable, list[LinkFault]] = {}
        for fault in left:
            key = fault.switch if of_switch else fault.node
            if key and (fault.node, fault.link) not in taken:
                groups.setdefault(key, []).append(fault)
        for group in groups.values():
            is_dead = of_switch and group[0].switch not in alive
            for same in _bursts(group, CLOCKS_S if is_dead else TOGETHER_S, lambda fault: fault.since or 0.0):
                if len({(fault.node if of_switch else fault.link) for fault in same}) >= TOGETHER_MIN:
                    yield of_switch, same
                    taken.update((fault.node, fault.link) for fault in same)


def _bursts(faults: Iterable[T], within_s: float, since: Callable[[T], float]) -> Iterator[list[T]]:
    """``faults`` in the order of their times, divided where more than ``within_s`` passed since the first."""
    burst: list[T] = []
    for fault in faults:
        if burst and since(fault) - since(burst[0]) > within_s:
            yield burst
            burst = []
        burst.append(fault)
    if burst:
        yield burst


def _of_away_nodes(plan: Plan, held: HeldOn) -> Iterator[FabricTrouble]:
    """A trouble for each node that is away, or for several of one leaf group that went at once."""
    away = plan.away
    groups: dict[tuple[str, bool], list[str]] = {}
    for node in sorted(away, key=lambda node: (away[node].since or 0.0, node)):
        key = plan.nodes.place.get(node, ""), away[node].why == NO_AGENT
        groups.setdefault(key, []).append(node)
    for (group, _), nodes in groups.items():
        for same in _bursts(nodes, AWAY_TOGETHER_S, lambda node: away[node].since or 0.0):
            if group and len(same) >= TOGETHER_MIN:
                yield _away_at_once(away, group, same, held)
            else:
                yield from (_away(plan, node, away[node], held) for node in same)


def _away(plan: Plan, node: str, away: AwayNode, held: HeldOn) -> FabricTrouble:
    gpus = [f"{fault.gpu} {fault.state}" for fault in plan.levels.gpu_faults.get(node, ())]
    links = [f"{shown(fault.link)} {fault.state}" for fault in plan.levels.faults.get(node, ())]
    faults = "; ".join(few([*gpus, *links]))
    last = f"its links {'and GPUs ' if gpus else ''}are as last reported{f' ({faults})' if faults else ''}"
    if away.why == UNREACHABLE:
        remedy = (
            f"check its power, its console (BMC) and its management network: kubectl describe node {node}"
        )
    elif away.why == NO_AGENT:
        remedy = f"{_AGENTS} --field-selector spec.nodeName={node}; is the node to have one?"
    else:
        remedy = f"read what its kubelet says: kubectl describe node {node}"
    pods = tuple(sorted(held(node)))
    return FabricTrouble(
        away.word, node, away.since, (), (away.why,), (away.detail, last), pods, remedy, nodes=(node,)
    )


def _away_at_once(away: Away, group: str, nodes: Sequence[str], held: HeldOn) -> FabricTrouble:
    first = away[nodes[0]]
    what, remedy = "nodes went away", "check what they share: the power of the rack, its management switch"
    if first.why == NO_AGENT:
        what, remedy = "agents went away", f"look at the DaemonSet and its pods: {_AGENTS}"
    return FabricTrouble(
        f"{len(nodes)} {what} at once",
        group,
        first.since,
        (),
        tuple(sorted({away[node].why for node in nodes})),
        (hostlist(sorted(nodes)), first.detail, "their links are as last reported"),
        tuple(sorted({pod for node in nodes for pod in held(node)})),
        remedy,
        nodes=tuple(sorted(nodes)),
    )


def _of_gpus(plan: Plan, node: str) -> Iterator[FabricTrouble]:
    """The troubles of the GPUs of a node that is there."""
    alike: dict[tuple[str, tuple[str, ...]], list[GpuFault]] = {}
    for fault in plan.levels.gpu_faults[node]:
        alike.setdefault((fault.state, fault.reasons), []).append(fault)
    causes = [
        same
        for faults in alike.values()
        for same in _bursts(sorted(faults, key=_begin), GPUS_TOGETHER_S, _begin)
    ]
    yield from (_gpus(node, same) for same in causes[:GPU_TROUBLES_MAX])
    if more := [fault for same in causes[GPU_TROUBLES_MAX:] for fault in same]:
        yield _gpus(node, more)._replace(what=f"{len(more)} more GPUs are in trouble", where=node, details=())


def _begin(fault: GpuFault) -> float:
    return fault.since or 0.0


def _gpus(node: str, faults: Sequence[GpuFault]) -> FabricTrouble:
    first, names = faults[0], [fault.gpu for fault in faults]
    where, what, details = f"{node} {first.gpu}", first.state, first.details
    if len(faults) > 1:
        where, what = node, f"{len(faults)} GPUs are {first.state}"
        details = (", ".join(few(names)), *details)
    return FabricTrouble(
        what,
        where,
        first.since,
        (),
        first.reasons,
        details,
        tuple(sorted({pod for fault in faults for pod in fault.pods})),
        remedy_for(first.reasons, first.gpu),
        nodes=(node,),
        gpus=tuple((node, name) for name in names),
    )


def _joint(faults: Sequence[LinkFault], *, of_switch: bool) -> FabricTrouble:
    first = faults[0]
    nodes = sorted({fault.node for fault in faults})
    if of_switch:
        what, where = f"{len(faults)} links of {len(nodes)} nodes went down at once", first.switch
        remedy = f"check the switch {shown(first.switch)}: its power, its line card, or an upgrade of it"
    else:
        what, where = f"{len(faults)} links went down at once", first.node
        remedy = "check the node: a driver that was loaded again, a reset, or its network configuration"
    return FabricTrouble(
        what,
        where,
        first.since,
        tuple((fault.node, fault.link) for fault in faults),
        tuple(sorted({reason for fault in faults for reason in fault.reasons})),
        tuple(nodes) if of_switch else tuple(fault.link for fault in faults),
        tuple(sorted({pod for fault in faults for pod in fault.pods})),
        remedy,
    )


def _of_link(fault: LinkFault, anomalies: Iterable[Anomaly]) -> FabricTrouble:
    anomalies = tuple(anomalies)
    to = f" to {fault.switch} {fault.port}".rstrip() if fault.switch else ""
    also = f" ({fault.netdev})" if fault.netdev not in ("", fault.link) else ""
    texts = (*fault.details, *(anomaly.message for anomaly in anomalies))
    return FabricTrouble(
        fault.state,
        f"{fault.node} {fault.link}{also}{to}",
        fault.since,
        ((fault.node, fault.link),),
        (*fault.reasons, *(anomaly.kind.value for anomaly in anomalies)),
        texts,
        fault.pods,
        remedy_for(fault.reasons, fault.netdev or fault.link),
    )


def _of_anomaly(anomaly: Anomaly, since: float | None, held: HeldOn) -> FabricTrouble:
    where = " ".join(filter(None, (anomaly.node, anomaly.link))) or anomaly.switch
    links = ((anomaly.node, anomaly.link),) if anomaly.link else ()
    kind = anomaly.kind.value
    what = AnomalyKind.MISCABLED.value if anomaly.kind in _CABLES else kind
    remedy = f"move the cable to {shown(plain(anomaly.to))}" if anomaly.to else _REMEDIES[anomaly.kind]
    nodes, pods = _concerned(anomaly, held)
    return FabricTrouble(what, where, since, links, (kind,), (anomaly.message,), pods, remedy, nodes=nodes)


def _concerned(anomaly: Anomaly, held: HeldOn) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that it concerns without a link, and the pods that hold VFs of its link and on these nodes."""
    if anomaly.kind in _TREE_ALONE:
        return (), ()
    nodes = {anomaly.node, *anomaly.nodes} - {""}
    pods: set[str] = set()
    if anomaly.link:
        nodes.discard(anomaly.node)
        pods.update(pod for pod, links in held(anomaly.node).items() if anomaly.link in map(shown, links))
    for node in nodes:
        pods.update(held(node))
    return tuple(sorted(nodes)), tuple(sorted(pods))


def _of_unplaced(unplaced: UnplacedNode, held: HeldOn) -> FabricTrouble:
    node = unplaced.node
    pods = tuple(sorted(held(node)))
    return FabricTrouble(
        "not placed", node, None, (), (), (unplaced.reason,), pods, f"nodeagent explain {node}"
    )


def odd_of(
    rules: FabricRules, values: Mapping[str, NodeValues], maintained: Maintained, at: float
) -> Iterator[OddValue]:
    """The values of nodes that differ from those of their peers, at this Unix time."""
    expected: dict[str, str] = {one.value: one.like for one in rules.expected_values}
    return odd_values(
        values, at, lambda node: under_maintenance(maintained, node, "", at) is not None, expected
    )


def _of_odd_nodes(plan: Plan, at: float) -> Iterator[FabricTrouble]:
    """A trouble for all values in which the same nodes differ: most likely they have one cause. No pod is stopped by
    it, so it has none."""
    causes: dict[tuple[str, ...], list[OddValue]] = {}
    for odd in odd_of(plan.rules, plan.levels.values, plan.levels.maintained, at):
        causes.setdefault(odd.nodes, []).append(odd)
    for nodes, same in causes.items():
        first, peer = same[0], next((odd.peer for odd in same if odd.peer), "")
        alone = len(same) == 1
        yield FabricTrouble(
            first.sentence
            if alone
            else f"{len(nodes)} of {first.peers} nodes: {len(same)} values are not the usual ones",
            hostlist(nodes),
            None,
            (),
            (),
            () if alone else tuple(odd.sentence for odd in same),
            (),
            _remedy_of_odd(same, f"nodeagent diff {nodes[0]}{f' {peer}' if peer else ''}"),
            nodes=nodes,
        )


def _remedy_of_odd(same: Sequence[OddValue], compare: str) -> str:
    """Peers that all differ in one rail show nothing to each other."""
    if all(odd.devices for odd in same):
        names = ", ".join(odd.name for odd in same)
        return f'make the rails equal, or enter {names} with like: "*" under `expectedValues`, if it is meant'
    return compare


def _more(nodes: int) -> FabricTrouble:
    what = (
        f"links or GPUs of {nodes} more nodes have a fault: {FAULTS_MAX} of each are kept with their reasons"
    )
    return FabricTrouble(what, "the fabric", None, (), (), (), (), "mend what is listed; the rest follows")
