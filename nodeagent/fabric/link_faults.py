"""The links of a report that have a fault, with what a person asks about it: since when, why, and whose pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

from nodeagent.fabric.nodelinks import NodeLink, NodeLinks

T = TypeVar("T")
FAULTS = frozenset(("down", "missing", "degraded", "miscabled", "unhealthy", "unknown"))
"""The states of a link that are listed. An ``unused`` link is expected to be so."""
FAULTS_MAX = 20_000
"""Some 10 MiB."""


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


class NodeFaults(Generic[T]):
    """The faults of the latest reports, by node, at most ``FAULTS_MAX``; of the nodes beyond, the number. ``found`` are
    those of a report.

    A hall without power would take half a gigabyte. A node beyond the bound enters with its next report.
    """

    def __init__(self, found: Callable[[NodeLinks], Iterable[T]]) -> None:
        self.of_node: dict[str, tuple[T, ...]] = {}
        self._found = found
        self.beyond: set[str] = set()
        self._count = 0

    def take(self, node: str, report: NodeLinks | None) -> None:
        """Replace the faults of a node; ``None``: it reports nothing now."""
        self._count -= len(self.of_node.pop(node, ()))
        self.beyond.discard(node)
        found = () if report is None else tuple(self._found(report))
        if self._count + len(found) > FAULTS_MAX:
            self.beyond.add(node)
        elif found:
            self.of_node[node] = found
            self._count += len(found)


def link_faults(report: NodeLinks) -> Iterator[LinkFault]:
    """The links of a report with a fault, in its order."""
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
        switch, port = neighbor.system_name or neighbor.chassis_id.value, neighbor.port
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
