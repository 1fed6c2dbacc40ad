"""The roll of one resource: every device that was ever offered, as the bytes of a ListAndWatch answer. Pure.

The law: an id that was once offered is never struck off while the agent lives. The kubelet dereferences
an allocated id after Allocate returns and dies where it is gone (kubernetes/kubernetes#95041), and each
message replaces all it knew. A device that is no longer there is Unhealthy, and Healthy again when it is
back. An equal roll gives the same bytes object, so that nobody is told a thing twice: the kubelet rewrites
its checkpoint at every message.

The answer is joined from segments, one for each ``Devices`` and kept while it lives, because a change of
health touches one GPU and encoding 80,000 ids takes a hundred times as long as joining eight segments.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.model import Devices, Health, Reason, State

API_VERSION = "v1beta1"
OPTIONS = b"\x10\x01"
"""DevicePluginOptions: get_preferred_allocation_available, and nothing else."""

MISSING = Health(
    State.DOWN, (Reason("device_missing", "the device is no longer found on this node"),), allocatable=False
)


class Roll:
    """``message`` is the current ListAndWatchResponse, ``revision`` counts its changes."""

    def __init__(self) -> None:
        self.devices: tuple[Devices, ...] = ()
        self.message = b""
        self.revision = 0
        self._known: dict[str, Devices] = {}
        self._offered: tuple[Devices, ...] = ()
        self._missing: tuple[Devices, ...] = ()
        self._segments: dict[tuple[int, tuple[int, ...], bool], tuple[tuple[str, ...], bytes]] = {}

    def state(self, devices: tuple[Devices, ...], held: Iterable[str] = ()) -> bool:
        """What is offered now. ``held`` are ids that the kubelet says are in use: those the agent has
        never seen (it was restarted after the device went) are on the roll too, Unhealthy.

        True when the kubelet must be told.
        """
        strangers = sorted({id_ for id_ in held if id_ not in self._known})
        if self.revision and devices == self._offered and not strangers:
            return False
        if strangers or not _same_ids(devices, self._offered):
            self._known.update((id_, Devices("", (id_,), (), MISSING)) for id_ in strangers)
            for entry in devices:
                self._known.update(dict.fromkeys(entry.ids, entry))
            self._missing = self._find_missing(devices)
        else:
            for entry, before in zip(devices, self._offered, strict=True):
                if (entry.parent, entry.numa_nodes) != (before.parent, before.numa_nodes):
                    self._known.update(dict.fromkeys(entry.ids, entry))
        self._offered = devices
        self.devices = (*devices, *self._missing)
        message = b"".join(self._segment(entry) for entry in self.devices)
        if message == self.message and self.revision:
            return False
        self.message = message
        self.revision += 1
        return True

    def missing(self, ids: Iterable[str]) -> str | None:
        """The first of these ids that is no longer found; as a rule nothing is, and nothing is looked up."""
        gone = {id_ for entry in self._missing for id_ in entry.ids}
        return next((id_ for id_ in ids if id_ in gone), None) if gone else None

    def count(self) -> tuple[int, int]:
        """(devices that are Healthy, all devices) as the kubelet was told."""
        healthy = sum(len(entry.ids) for entry in self.devices if entry.health.allocatable)
        return healthy, sum(len(entry.ids) for entry in self.devices)

    def _find_missing(self, devices: tuple[Devices, ...]) -> tuple[Devices, ...]:
        """Known ids that nobody offers now, by parent, each with the NUMA nodes it had."""
        if sum(len(entry.ids) for entry in devices) == len(self._known):
            return ()
        offered = {id_ for entry in devices for id_ in entry.ids}
        lost: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for id_, entry in self._known.items():
            if id_ not in offered:
                lost.setdefault((entry.parent, entry.numa_nodes), []).append(id_)
        missing = tuple(Devices(parent, tuple(ids), numa, MISSING) for (parent, numa), ids in lost.items())
        for entry in missing:
            self._known.update(dict.fromkeys(entry.ids, entry))
        return missing

    def _segment(self, entry: Devices) -> bytes:
        key = (id(entry.ids), entry.numa_nodes, entry.health.allocatable)
        kept = self._segments.get(key)
        if kept is not None and kept[0] is entry.ids:
            return kept[1]
        if len(self._segments) > 4 * len(self.devices) + 64:
            self._segments.clear()
        segment = encode(entry)
        # The tuple is kept beside its bytes, so that its id() cannot come to mean another tuple.
        self._segments[key] = (entry.ids, segment)
        return segment


def _same_ids(a: tuple[Devices, ...], b: tuple[Devices, ...]) -> bool:
    return len(a) == len(b) and all(x.ids is y.ids or x.ids == y.ids for x, y in zip(a, b, strict=True))


def encode(entry: Devices) -> bytes:
    """``Devices`` as repeated field 1 of ListAndWatchResponse (v1beta1): Device{ID 1, health 2, topology 3}.

    Written by hand because it is the same few bytes around each id; tested against protobuf itself.
    """
    health = b"Healthy" if entry.health.allocatable else b"Unhealthy"
    tail = b"\x12" + _varint(len(health)) + health
    if entry.numa_nodes:
        nodes = b"".join(
            b"\x0a" + _varint(len(node)) + node
            for node in ((b"\x08" + _varint(number) if number else b"") for number in entry.numa_nodes)
        )
        tail += b"\x1a" + _varint(len(nodes)) + nodes
    out = bytearray()
    for id_ in entry.ids:
        name = id_.encode()
        device = b"\x0a" + _varint(len(name)) + name + tail
        out += b"\x0a" + _varint(len(device)) + device
    return bytes(out)


def register_request(endpoint: str, resource: str) -> bytes:
    """RegisterRequest (v1beta1): version 1, endpoint 2, resource_name 3, options 4."""
    fields = (API_VERSION.encode(), endpoint.encode(), resource.encode(), OPTIONS)
    return b"".join(
        bytes([number << 3 | 2]) + _varint(len(field)) + field for number, field in enumerate(fields, 1)
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
