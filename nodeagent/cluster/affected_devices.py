"""What the cluster is to know of this node's devices: which have a fault, and which pods hold one that failed.

Pure. VFs are their PF's here, and each pod's own device where a pod holds it; a thousand VFs of one dead port are
one sentence about the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.model import Devices, Health, Reason, Snapshot, State

FAILED = (State.DOWN, State.UNHEALTHY)
QUIET = (State.HEALTHY, State.UNKNOWN, State.UNUSED)
"""States in which nothing is known to be wrong."""

MISSING = Health(
    State.DOWN, (Reason("device_missing", "the device is gone from this node"),), allocatable=False
)

Offered = Sequence[tuple[str, Sequence[Devices]]]
"""What is offered: each resource with its devices."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A link or a GPU with its health; ``title`` is for people."""

    key: str
    title: str
    link: bool
    health: Health


@dataclass(frozen=True, slots=True)
class Hit:
    """A pod that holds devices of one parent which have failed."""

    namespace: str
    pod: str
    resource: str
    device_ids: tuple[str, ...]
    subject: Subject


def subjects(snapshot: Snapshot) -> tuple[Subject, ...]:
    """The PFs with a link to judge, then the GPUs."""
    links = [
        Subject(one.pci_address, _named(one.netdev, one.pci_address), True, one.health)
        for one in snapshot.functions
        if one.parent is None and one.health.state is not State.UNUSED
    ]
    gpus = [Subject(one.uuid, f"GPU {one.index} ({one.uuid})", False, one.health) for one in snapshot.gpus]
    return (*links, *gpus)


def hits(snapshot: Snapshot, offered: Offered) -> tuple[Hit, ...]:
    """The pods whose devices may not be handed out any more. Nothing is concluded from a source that is silent."""
    held: dict[tuple[str, str, str], set[str]] = {}
    for holding in snapshot.holdings or ():
        held.setdefault((holding.resource, holding.namespace, holding.pod), set()).update(holding.device_ids)
    by_resource = dict(offered)
    titles = {one.key: one for one in subjects(snapshot)}
    found = []
    for (resource, namespace, pod), ids in sorted(held.items()):
        devices = by_resource.get(resource)
        if devices is None:
            continue
        left = set(ids)
        for one in devices:
            mine = left.intersection(one.ids)
            left -= mine
            if mine and not one.health.allocatable and one.health.state not in QUIET:
                subject = _subject(one, titles.get(one.parent), mine)
                found.append(Hit(namespace, pod, resource, tuple(sorted(mine)), subject))
        if left and devices and not snapshot.silent:
            name = min(left)
            gone = Subject(name, name, False, MISSING)
            found.append(Hit(namespace, pod, resource, tuple(sorted(left)), gone))
    return tuple(found)


def _subject(devices: Devices, parent: Subject | None, mine: Iterable[str]) -> Subject:
    """The device in the words of what it is a part of, with the health of its own."""
    title = parent.title if parent else devices.parent
    first = min(mine)
    if parent is None or (parent.link and first != parent.key):
        title = f"VF {first} of {title}"
    return Subject(devices.parent, title, parent.link if parent else True, devices.health)


def _named(netdev: str | None, address: str) -> str:
    return f"{netdev} ({address})" if netdev else address
