"""The troubles of a fabric: links with a fault, wrong cables, refused reports; what concerns most pods first.

Links that went down within ``TOGETHER_S`` have one cause, so they are one trouble: several links of one switch, or of
one node. An anomaly of a link that has a fault joins it. The verb ``trouble`` and the fabric map show this list.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from nodeagent.fabric.link_faults import FAULTS_MAX, LinkFault
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.reports import shown
from nodeagent.facts.remedies import remedy_for

DOWN = frozenset(("down", "missing"))
TOGETHER_S = 2.0
"""Times of reports are whole seconds: links that lost their switch within one second may differ by two."""
TOGETHER_MIN = 3
"""The fewest links of one switch or node with one cause; two may be a coincidence, or one cable with two lanes."""
NAMES_MAX = 8
_OF_ANOMALIES = "docs/topology.md#anomalies"
_CABLES = frozenset((AnomalyKind.MISCABLED, AnomalyKind.FOREIGN_LEAF, AnomalyKind.RAIL_SWAP))


class FabricTrouble(NamedTuple):
    """A fault with its place, its start (Unix time), its reasons, the pods that hold its links, and the remedy."""

    what: str
    where: str
    since: float | None
    links: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    details: tuple[str, ...]
    pods: tuple[str, ...]
    remedy: str


def troubles(plan: Plan, to_unix: float = 0.0) -> list[FabricTrouble]:
    """Everything that is wrong in the reports and in their tree, what concerns most pods and links first.

    ``to_unix`` makes Unix time of the planner's clock.
    """
    outcome = plan.outcome
    faults = [fault for of_node in plan.levels.faults.values() for fault in of_node]
    cables: dict[tuple[str, str], list[Anomaly]] = {}
    for anomaly in outcome.anomalies:
        cables.setdefault((anomaly.node, anomaly.link), []).append(anomaly)
    found: list[FabricTrouble] = []
    together: set[tuple[str, str]] = set()
    cut_off: set[str] = set()
    for of_switch, one_cause in _one_cause(faults):
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
        found.append(_of_anomaly(anomaly, None if seen is None else to_unix + seen))
    found += (
        FabricTrouble(
            "not placed",
            unplaced.node,
            None,
            (),
            (),
            (unplaced.reason,),
            (),
            f"nodeagent explain {unplaced.node}",
        )
        for unplaced in outcome.unplaced
        if unplaced.node not in cut_off
    )
    if plan.levels.more_faults:
        found.append(_more(plan.levels.more_faults))
    return sorted(found, key=lambda one: (-len(one.pods), -len(one.links), -(one.since or 0.0), one.where))


def _one_cause(faults: Sequence[LinkFault]) -> Iterator[tuple[bool, list[LinkFault]]]:
    """The links of one switch, then those of one node, that went down together; whether it is a switch."""
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
            for same in _bursts(group):
                if len({(fault.node if of_switch else fault.link) for fault in same}) >= TOGETHER_MIN:
                    yield of_switch, same
                    taken.update((fault.node, fault.link) for fault in same)


def _bursts(faults: Iterable[LinkFault]) -> Iterator[list[LinkFault]]:
    """``faults`` in the order of their times, divided where more than ``TOGETHER_S`` passed since the first."""
    burst: list[LinkFault] = []
    for fault in faults:
        if burst and (fault.since or 0.0) - (burst[0].since or 0.0) > TOGETHER_S:
            yield burst
            burst = []
        burst.append(fault)
    if burst:
        yield burst


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
    texts = (*fault.details, *(f"{anomaly.kind}: {anomaly.message}" for anomaly in anomalies))
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


def _of_anomaly(anomaly: Anomaly, since: float | None) -> FabricTrouble:
    where = " ".join(filter(None, (anomaly.node, anomaly.link))) or anomaly.switch
    links = ((anomaly.node, anomaly.link),) if anomaly.link else ()
    remedy = "move the cable to the switch in the message" if anomaly.kind in _CABLES else _OF_ANOMALIES
    kind = anomaly.kind.value
    return FabricTrouble(kind, where, since, links, (kind,), (anomaly.message,), (), remedy)


def _more(nodes: int) -> FabricTrouble:
    what = f"links of {nodes} more nodes have a fault: {FAULTS_MAX} faults are kept with their reasons"
    return FabricTrouble(what, "the fabric", None, (), (), (), (), "mend what is listed; the rest follows")


def few(texts: Sequence[str]) -> list[str]:
    """The first ``NAMES_MAX``, and how many more there are."""
    if len(texts) <= NAMES_MAX:
        return [*texts]
    return [*texts[:NAMES_MAX], f"and {len(texts) - NAMES_MAX} more"]
