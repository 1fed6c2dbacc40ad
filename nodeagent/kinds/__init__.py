"""The kinds of device a node offers, one file each, and what all of them share.

The law of this room: pure functions of one snapshot. A kind remembers nothing, reads no clock and no file,
and knows no other kind. It states what is there now (``devices``), which of the free ones suit a request
best (``prefer``) and what a container gets (``allocate``). That an id once offered is never taken back is
the business of whoever speaks to the kubelet.

``available`` is the kubelet's word of what is free, and it is newer than ``Snapshot.holdings``: podresources
may go on naming a pod that has ended. So a device of our own that the kubelet calls free is free. Holdings
tell what the kubelet's list cannot: that another resource holds the same hardware.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Protocol

from nodeagent.affinity import affinity
from nodeagent.model import Allocation, Devices, Function, Gpu, Health, Holding, Snapshot

_SHOWN_MAX = 63  # characters: the longest device id that the kubelet's own documentation allows
_NAMED_MAX = 3


class DeviceKind(Protocol):
    """A kind of device: pure answers from a snapshot."""

    @property
    def resource(self) -> str: ...

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]: ...

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
    ) -> list[str]: ...

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation: ...


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A request that is not granted, in one short sentence for the person who asked.

    ``invalid`` parts a request that could never be right (INVALID_ARGUMENT) from one that this node
    cannot serve at present (FAILED_PRECONDITION).
    """

    def __init__(self, message: str, *, invalid: bool) -> None:
        super().__init__(message)
        self.invalid = invalid


def asked(resource: str, ids: Sequence[str]) -> frozenset[str]:
    """The ids of a request: at least one, none of them twice."""
    if not ids:
        raise Refused(f"{resource}: the request names no device", invalid=True)
    return _distinct(resource, ids)


def preference(
    resource: str, available: Iterable[str], must_include: Sequence[str], size: int
) -> tuple[frozenset[str], frozenset[str]]:
    """What may be chosen from and what must be chosen, once the question is known to make sense."""
    if size < 1:
        raise Refused(f"{resource}: {size} devices cannot be asked for", invalid=True)
    free, must = frozenset(available), _distinct(resource, must_include)
    if len(must) > size:
        raise Refused(f"{resource}: {len(must)} devices must be among {size}", invalid=True)
    if not must <= free:
        raise Refused(f"{resource}: {named(must - free)} must be chosen but is not available", invalid=True)
    return free, must


def unknown(resource: str, ids: Iterable[str]) -> Refused:
    return Refused(f"{resource} has no device {named(ids)}", invalid=True)


def unhealthy(resource: str, name: str, health: Health) -> Refused:
    why = f": {shown(health.reasons[0].detail)}" if health.reasons else ""
    return Refused(f"{resource}: {shown(name)} is {health.state}{why}", invalid=False)


def held_by(resource: str, name: str, holding: Holding) -> Refused:
    by = f"{shown(holding.namespace)}/{shown(holding.pod)} through {shown(holding.resource)}"
    return Refused(f"{resource}: {shown(name)} is held by {by}", invalid=False)


def named(ids: Iterable[str]) -> str:
    """The first few ids, however many and whatever they hold: the kubelet's peer may send anything."""
    names = tuple(ids)
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(shown(name) for name in nsmallest(_NAMED_MAX, names)) + more


def shown(text: str) -> str:
    """Printable and short."""
    plain = ascii(text[:_SHOWN_MAX])[1:-1]
    return plain if len(plain) <= _SHOWN_MAX and len(text) <= _SHOWN_MAX else plain[: _SHOWN_MAX - 1] + "…"


def distance(thing: Gpu | Function, near: Sequence[Function]) -> tuple[int, int]:
    """How far it is from the functions, for sorting: those on another NUMA node, then the PCIe hops."""
    strangers = sum(thing.numa_node is None or thing.numa_node != other.numa_node for other in near)
    hops = sum(affinity(thing.pci_path, thing.numa_node, it.pci_path, it.numa_node) for it in near)
    return strangers, hops


def _distinct(resource: str, ids: Sequence[str]) -> frozenset[str]:
    names = frozenset(ids)
    if len(names) != len(ids):
        twice = [name for name, times in Counter(ids).items() if times > 1]
        raise Refused(f"{resource}: {named(twice)} is named more than once", invalid=True)
    return names
