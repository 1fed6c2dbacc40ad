"""List what is wrong in a fabric: links with a fault, wrong cables, refused reports; what concerns most pods first.

Links that went down within ``TOGETHER_S`` have one cause, so they are one trouble: several links of one switch, or of
one node. An anomaly of a link that has a fault joins it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.options import FAILED, GOOD
from nodeagent.commands.plan.preview import Preview, SourceError, read_preview
from nodeagent.commands.terminal import PLAIN, Screen, note, screen, watching, wrapped
from nodeagent.commands.user_files import UserFileError
from nodeagent.config.faults import ConfigError
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import shown
from nodeagent.kube.client import ApiError

FAULTS = frozenset(("down", "missing", "degraded", "miscabled", "unhealthy", "unknown"))
"""The states of a link that are listed. An ``unused`` link is expected to be so."""
DOWN = frozenset(("down", "missing"))
TOGETHER_S = 2.0
"""Times of reports are whole seconds: links that lost their switch within one second may differ by two."""
TOGETHER_MIN = 3
"""The fewest links of one switch or node with one cause; two may be a coincidence, or one cable with two lanes."""
NAMES_MAX = 8
WATCH_MIN_S = 1.0

_REMEDIES = {
    "carrier_down": "check cable, optics and the switch port",
    "admin_down": "the link is switched off on the node: ip link set LINK up",
    "device_missing": "the NIC left the PCI bus: reboot the node, then replace the NIC",
    "driver_unbound": "bind the NIC to its driver again",
    "not_answering": "the firmware of the NIC does not answer: drain the node and reboot it",
    "firmware_fatal": "the firmware of the NIC has failed: drain the node and reboot it",
    "flapping": "reseat or replace cable and optics",
    "speed_reduced": "check the optics at both ends, and the speed of the switch port",
    "optics_": "clean or replace the module",
    "pre_fec_ber": "clean or replace cable and optics",
    "post_fec": "replace cable or optics: packets are lost",
    "fec_uncorrectable": "replace cable or optics: packets are lost",
    "crc_errors": "replace cable or optics: packets are lost",
    "lane_imbalance": "clean or replace the module",
    "pcie_": "reseat the NIC, or move it to another slot",
    "pause": "the node receives too slowly: look for a stuck program, then for PCIe errors",
    "gid_missing": "set the address of the NIC again",
    "miscabled": "move the cable to the port of the cabling plan",
    "ib_": "check the subnet manager",
    "data_stale": "the agent's readings stopped: kubectl logs of its pod",
    "link_unseen": "the agent's readings stopped: kubectl logs of its pod",
}
"""By the beginning of a reason. docs/runbook.md has a section for each."""
RUNBOOK = "docs/runbook.md#reasons"
_OF_ANOMALIES = "docs/topology.md#anomalies"
_CABLES = frozenset((AnomalyKind.MISCABLED, AnomalyKind.FOREIGN_LEAF, AnomalyKind.RAIL_SWAP))


class LinkFault(NamedTuple):
    """A link with a fault. ``switch`` and ``port`` are those of its last neighbor. ``since``: Unix time."""

    node: str
    link: str
    netdev: str
    state: str
    switch: str
    port: str
    since: float | None
    reasons: tuple[str, ...]
    details: tuple[str, ...]
    pods: tuple[str, ...]


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


def troubles(preview: Preview) -> list[FabricTrouble]:
    """Everything that is wrong in the reports and in their tree, what concerns most pods and links first."""
    outcome, refused = preview.outcome, preview.plan.levels.refused
    faults = [
        fault
        for report in preview.reports.values()
        if (report.metadata.name or report.node_name) not in refused
        for fault in _faults(report)
    ]
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
    found += (_of_anomaly(anomaly) for same in cables.values() for anomaly in same)
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
    return sorted(found, key=lambda one: (-len(one.pods), -len(one.links), -(one.since or 0.0), one.where))


def _faults(report: NodeLinks) -> Iterator[LinkFault]:
    pods: dict[str, list[str]] = {}
    for holder in report.holders:
        for name in {vf.link for vf in holder.vfs}:
            pods.setdefault(name, []).append(f"{holder.namespace}/{holder.pod}")
    for link in report.links:
        if link.state in FAULTS:
            yield _fault(report.node_name, link, tuple(sorted(pods.get(link.name, ()))))


def _fault(node: str, link: NodeLink, pods: tuple[str, ...]) -> LinkFault:
    neighbor = link.neighbor
    switch, port = "", ""
    if neighbor is not None:
        switch, port = neighbor.system_name or neighbor.chassis_id.value, neighbor.port_id.value
    return LinkFault(
        node,
        link.name,
        link.netdev or "",
        link.state or "",
        switch,
        port,
        unix(link.last_transition_time),
        link.reasons,
        link.reason_details or link.reasons,
        pods,
    )


def unix(stamp: str | None) -> float | None:
    """A time as Unix time; ``None`` also for one that no clock shows in UTC, such as the last hour of the year 9999 in
    New York."""
    try:
        return None if stamp is None else datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None


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
        next((text for reason in fault.reasons if (text := remedy_of(reason))), RUNBOOK),
    )


def _of_anomaly(anomaly: Anomaly) -> FabricTrouble:
    where = " ".join(filter(None, (anomaly.node, anomaly.link))) or anomaly.switch
    links = ((anomaly.node, anomaly.link),) if anomaly.link else ()
    remedy = "move the cable to the switch in the message" if anomaly.kind in _CABLES else _OF_ANOMALIES
    kind = anomaly.kind.value
    return FabricTrouble(kind, where, None, links, (kind,), (anomaly.message,), (), remedy)


def remedy_of(reason: str) -> str | None:
    """The remedy for a reason of a link; ``None``: the runbook alone has it."""
    return next((remedy for start, remedy in _REMEDIES.items() if reason.startswith(start)), None)


# --- what the verb prints -------------------------------------------------------------------------------


def show(options: argparse.Namespace, now: Callable[[], float] = time.time) -> int:
    """Print the list once, or with ``--watch`` until it is ended. Return the exit code."""

    def look() -> tuple[str, bool]:
        preview = read_preview(options, whole_reports=True)
        found = troubles(preview)
        if options.json:
            text = json.dumps(document(preview, found, options.source or "cluster", now()), indent=2)
        else:
            text = as_text(preview, found, now(), screen())
        return text, bool(preview.reports and not found)

    return repeated(options, look)


def repeated(options: argparse.Namespace, look: Callable[[], tuple[str, bool]]) -> int:
    """Print what ``look`` returns, with ``--watch`` again and again. Its second value is whether all is well."""
    if options.watch is None:
        text, good = look()
        print(text)
        return GOOD if good else FAILED
    with watching() as paint:
        while True:
            try:
                paint(look()[0])
            except (ApiError, ConfigError, SourceError, UserFileError, OSError) as error:
                note(str(error))
            time.sleep(max(options.watch, WATCH_MIN_S))


def document(preview: Preview, found: Iterable[FabricTrouble], source: str, now: float) -> dict[str, Any]:
    """The list for programs, in an envelope that says what was read and when."""
    return {
        "time": rfc3339(now),
        "source": source,
        "nodes": len(preview.reports),
        "links": sum(len(report.links) for report in preview.reports.values()),
        "troubles": [
            {
                **one._asdict(),
                "since": None if one.since is None else rfc3339(one.since),
                "links": [{"node": node, "link": link} for node, link in one.links],
            }
            for one in found
        ],
    }


def as_text(preview: Preview, found: Sequence[FabricTrouble], now: float, on: Screen = PLAIN) -> str:
    """A block of lines for each trouble, and a last line with the counts."""
    links = sum(len(report.links) for report in preview.reports.values())
    count = f"{len(found)} {'trouble' if len(found) == 1 else 'troubles'}" if found else "No trouble"
    last = f"{count} in {len(preview.reports)} nodes with {links} links."
    return "\n".join((*blocks(found, now, on), *wrapped(last, on)))


def blocks(found: Iterable[FabricTrouble], now: float, on: Screen = PLAIN) -> Iterator[str]:
    """The lines of each trouble, and an empty one below them."""
    for one in found:
        since = "" if one.since is None else f", for {lasting(now - one.since)}"
        yield from wrapped(f"{one.where}: {one.what}{since}", on)
        for detail in few(one.details):
            yield from wrapped(detail, on, "  ")
        if one.pods:
            yield from wrapped(f"pods: {', '.join(few(one.pods))}", on, "  ")
        yield from (*wrapped(f"do: {one.remedy}", on, "  "), "")


def few(names: Sequence[str]) -> list[str]:
    """The first ``NAMES_MAX``, and how many more there are."""
    if len(names) <= NAMES_MAX:
        return [*names]
    return [*names[:NAMES_MAX], f"and {len(names) - NAMES_MAX} more"]


def lasting(seconds: float) -> str:
    """In the two largest units.

    >>> [lasting(n) for n in (7, 317, 7260, 200000)]
    ['7 s', '5 min 17 s', '2 h 1 min', '2 d 7 h']
    """
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
