"""The device list of one resource: every device that was ever offered, as the bytes of ListAndWatch. Pure.

An ID that was offered once stays on the list. Each message replaces the kubelet's whole list, and the kubelet
dereferences an allocated ID after Allocate returns: if the ID is gone, it panics (kubernetes/kubernetes#95041). A
device that is no longer found is therefore Unhealthy, and Healthy again when it is back. Only a device that was
removed on purpose leaves the list, after no pod has held it for a minute (``removed_devices``). An equal list is the
same bytes object, and is not sent again: the kubelet rewrites its checkpoint at every message.

The message is joined from segments, one for each ``Devices``. A segment is kept, because a change of health
concerns one GPU and encoding 80,000 IDs takes a hundred times as long as joining eight segments.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Health, Reason, State

PLUGIN_API_VERSION = "v1beta1"
PLUGIN_OPTIONS = b"\x10\x01"
"""DevicePluginOptions with get_preferred_allocation_available alone."""

MISSING_DEVICE = Health(
    State.DOWN, (Reason("device_missing", "the device is no longer found on this node"),), allocatable=False
)


class DeviceList:
    """``message`` is the current ListAndWatchResponse, ``revision`` counts its changes, ``left`` are the IDs that have
    left the list."""

    def __init__(self) -> None:
        self.devices: tuple[Devices, ...] = ()
        self.message = b""
        self.revision = 0
        self.left: frozenset[str] = frozenset()
        self.made_of: object = None
        """Facts that the owner made the list of: while they are equal, so is the list."""
        self._known: dict[str, Devices] = {}
        self._offered: tuple[Devices, ...] = ()
        self._missing: tuple[Devices, ...] = ()
        self._segments: dict[tuple[int, tuple[int, ...], bool], tuple[tuple[str, ...], bytes]] = {}

    def update(
        self, devices: tuple[Devices, ...], held: Iterable[str] = (), removed: frozenset[str] = frozenset()
    ) -> bool:
        """Take the devices that are offered now. Return whether the message has changed.

        ``held`` are the IDs that pods hold. An ID that this process never offered is listed as Unhealthy: the
        agent was restarted after its device went. ``removed`` are the VFs, GPUs and MIG devices whose IDs leave the
        list unless they are offered or held.
        """
        held = frozenset(held)
        unknown = sorted(held - self._known.keys())
        leaving: set[str] = set()
        if removed:
            leaving = {id_ for id_ in self._known if id_.partition("::")[0] in removed} - held
            leaving -= {id_ for entry in devices for id_ in entry.ids}
        if self.revision and devices == self._offered and not unknown and not leaving:
            return False
        for id_ in leaving:
            del self._known[id_]
        self.left |= leaving
        if unknown or leaving or not _same_ids(devices, self._offered):
            self._known.update((id_, Devices("", (id_,), (), MISSING_DEVICE)) for id_ in unknown)
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

    def first_missing(self, ids: Iterable[str]) -> str | None:
        """Return the first of these IDs whose device is no longer found. If none is missing, look nothing up."""
        missing = {id_ for entry in self._missing for id_ in entry.ids}
        return next((id_ for id_ in ids if id_ in missing), None) if missing else None

    def counts(self) -> tuple[int, int]:
        """Return the number of Healthy devices and of all devices on the list."""
        healthy = sum(len(entry.ids) for entry in self.devices if entry.health.allocatable)
        return healthy, sum(len(entry.ids) for entry in self.devices)

    def _find_missing(self, devices: tuple[Devices, ...]) -> tuple[Devices, ...]:
        """Return the known IDs that are not offered now, by parent, each with the NUMA nodes it had."""
        if sum(len(entry.ids) for entry in devices) == len(self._known):
            return ()
        offered = {id_ for entry in devices for id_ in entry.ids}
        lost: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for id_, entry in self._known.items():
            if id_ not in offered:
                lost.setdefault((entry.parent, entry.numa_nodes), []).append(id_)
        missing = tuple(
            Devices(parent, tuple(ids), numa, MISSING_DEVICE) for (parent, numa), ids in lost.items()
        )
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
        segment = encode_devices(entry)
        # The tuple is kept beside its bytes: while it lives, no other tuple has its id().
        self._segments[key] = (entry.ids, segment)
        return segment


def _same_ids(a: tuple[Devices, ...], b: tuple[Devices, ...]) -> bool:
    return len(a) == len(b) and all(x.ids is y.ids or x.ids == y.ids for x, y in zip(a, b, strict=True))


def encode_devices(entry: Devices) -> bytes:
    """Encode ``Devices`` as repeated field 1 of ListAndWatchResponse (v1beta1): Device{ID 1, health 2, topology 3}.

    Without protobuf, whose import would delay registration; the tests compare the bytes with protobuf's.
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
    """Encode RegisterRequest (v1beta1): version 1, endpoint 2, resource_name 3, options 4."""
    fields = (PLUGIN_API_VERSION.encode(), endpoint.encode(), resource.encode(), PLUGIN_OPTIONS)
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
