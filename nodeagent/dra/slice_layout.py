"""The ResourceSlices of a node: which objects there are, and what to write where the stored ones differ. Pure.

Rules (Kubernetes 1.36, ``staging/src/k8s.io/api/resource/v1/types.go``):

* A pool is one kind of one node. Its devices are cut into slices of ``DEVICES_MAX``, in the order of preference of the
  scheduler. A taint never changes the number of slices.
* The scheduler uses only the slices with the highest generation of a pool, and only all of them. A change within one
  slice keeps the generation. A change of several slices, or of their number, raises it in all of them.
* The names of the slices follow from node and pool, so two writers cannot make twins.
* A slice has devices or the counters of GPUs, ``COUNTER_SETS_MAX`` at most. Those with counters come first.
* The API server sets ``timeAdded`` of a taint and writes quantities in its own form. Neither is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from nodeagent.base.quantities import quantity
from nodeagent.dra import DRIVER

Json = dict[str, Any]

DEVICES_MAX = 64
"""The limit of a slice whose devices have taints; without taints it is 128 (types.go, ResourceSliceMaxDevices…)."""
COUNTER_SETS_MAX = 8
NAME_MAX = 253
INDEX_DIGITS = 5


class WantedSlice(msgspec.Struct, frozen=True):
    """One slice as it should be, without its generation."""

    name: str
    pool: str
    devices: tuple[Json, ...]
    count: int
    """The number of slices of the pool."""
    counters: tuple[Json, ...] = ()
    """With these it has no devices, not even an empty list (validation.go, validateResourceSliceSpec)."""

    @property
    def content(self) -> Json:
        """The fields of the spec; the one that is absent is ``None``, so that a patch removes it."""
        if self.counters:
            return {"sharedCounters": list(self.counters), "devices": None}
        return {"devices": list(self.devices), "sharedCounters": None}


class AnsweredDevices(msgspec.Struct, frozen=True):
    """The devices, or counter sets, that were sent, and what the server stored of them: a server that lacks a feature
    drops fields."""

    sent: Sequence[Json]
    stored: Sequence[Json]


class SliceWrite(msgspec.Struct, frozen=True):
    """One write. ``name`` is the object's; ``spec`` is what to create or to patch."""

    verb: Literal["create", "patch", "delete"]
    name: str
    pool: str
    spec: Json = {}


def wanted_slices(
    node: str, pools: Mapping[str, Sequence[Json]], counters: Mapping[str, Sequence[Json]] = {}
) -> dict[str, WantedSlice]:
    """The slices of these pools, by name. A pool without devices has one empty slice: the driver runs. ``counters`` are
    the counter sets by pool."""
    slices = {}
    for pool, devices in pools.items():
        sets = _parts(counters.get(pool, ()), COUNTER_SETS_MAX)
        parts = _parts(devices, DEVICES_MAX) or ([] if sets else [()])
        for index, part in enumerate([*sets, *parts]):
            name, is_set = slice_name(node, pool, index), index < len(sets)
            members = ((), part) if is_set else (part, ())
            slices[name] = WantedSlice(name, pool, members[0], len(sets) + len(parts), members[1])
    return slices


def _parts(items: Sequence[Json], size: int) -> list[tuple[Json, ...]]:
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def slice_name(node: str, pool: str, index: int) -> str:
    """Names sort in the order of preference of the scheduler.

    >>> slice_name("gpu-7", "gpu-7/nic", 0)
    '00000-nodeagent.io-gpu-7-nic'
    """
    kind = pool.rpartition("/")[2]
    name = f"{index:0{INDEX_DIGITS}x}-{DRIVER}-{node}-{kind}"
    if len(name) <= NAME_MAX:
        return name
    digest = blake2b(node.encode(), digest_size=8).hexdigest()
    return f"{index:0{INDEX_DIGITS}x}-{DRIVER}-{node[: NAME_MAX - 48].rstrip('.-')}-{digest}-{kind}"


def is_ours(name: str) -> bool:
    """Whether an agent of any version has named this slice of our driver: other drivers get other names.

    >>> is_ours("00000-nodeagent.io-gpu-7-nic"), is_ours("gpu-7-nodeagent.io-x7k2p")
    (True, False)
    """
    index, _, rest = name.partition("-")
    return len(index) == INDEX_DIGITS and rest.startswith(f"{DRIVER}-")


def writes(
    node: str,
    wanted: Mapping[str, WantedSlice],
    stored: Mapping[str, Json],
    *,
    kept_pools: Sequence[str] = (),
    generations: Mapping[str, int] = {},
    answered: Mapping[str, AnsweredDevices] = {},
) -> Iterator[SliceWrite]:
    """Yield the writes that turn ``stored``, all slices of our driver on this node by name, into ``wanted``.

    Slices of ``kept_pools`` stay as they are: their devices are not known yet. ``generations`` are the last ones that
    this agent has written, for pools without any stored slice. ``answered``: see there.
    """
    for name, obj in stored.items():
        pool = pool_of(obj)
        if name not in wanted and pool not in kept_pools:
            yield SliceWrite("delete", name, pool)
    for pool in dict.fromkeys(part.pool for part in wanted.values()):
        yield from _pool_writes(
            node,
            [part for part in wanted.values() if part.pool == pool],
            {name: obj for name, obj in stored.items() if pool_of(obj) == pool},
            generations.get(pool, 0),
            answered,
        )


def _pool_writes(
    node: str,
    wanted: Sequence[WantedSlice],
    stored: Mapping[str, Json],
    last: int,
    answered: Mapping[str, AnsweredDevices],
) -> Iterator[SliceWrite]:
    highest = max([last, *(generation_of(obj) for obj in stored.values())])
    current = {name: obj for name, obj in stored.items() if generation_of(obj) == highest}
    changed = [
        part
        for part in wanted
        if part.name in stored and not _same(part, stored[part.name], answered.get(part.name))
    ]
    fits = all(
        part.name in current and _count_of(current[part.name]) == part.count
        for part in wanted
        if part.name in stored
    )
    foreign = stored.keys() - {part.name for part in wanted}
    raised = bool(foreign) or not fits or len(changed) > 1 or (bool(changed) and len(current) < len(wanted))
    generation = max(highest + raised, 1)
    for part in wanted:
        spec: Json = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": part.pool, "generation": generation, "resourceSliceCount": part.count},
        }
        if part.name not in stored:
            present = {field: value for field, value in part.content.items() if value is not None}
            yield SliceWrite("create", part.name, part.pool, spec | present)
        elif raised or part in changed:
            dated = msgspec.structs.replace(part, devices=tuple(with_times(part.devices, stored[part.name])))
            yield SliceWrite("patch", part.name, part.pool, {"pool": spec["pool"], **dated.content})


def with_times(devices: Sequence[Json], stored: Json) -> list[Json]:
    """The devices with the ``timeAdded`` of each taint that the stored slice has already, with this value or another:
    ``tolerationSeconds`` count from the first reason of a fault."""
    before = {device.get("name"): device for device in stored["spec"].get("devices") or ()}
    dated = []
    for device in devices:
        times = {
            (taint.get("key"), taint.get("effect")): {"timeAdded": taint["timeAdded"]}
            for taint in before.get(device["name"], {}).get("taints") or ()
            if "timeAdded" in taint
        }
        if taints := device.get("taints"):
            taints = [taint | times.get((taint["key"], taint["effect"]), {}) for taint in taints]
            device = {**device, "taints": taints}  # noqa: PLW2901
        dated.append(device)
    return dated


def _same(part: WantedSlice, stored: Json, answered: AnsweredDevices | None) -> bool:
    """Whether the stored slice has these devices in this order, or what the server made of them before."""
    items, wanted = members_of(stored["spec"]), part.devices or part.counters
    return _equal(wanted, items) or (
        answered is not None and _equal(wanted, answered.sent) and _equal(items, answered.stored)
    )


def members_of(spec: Json) -> Sequence[Json]:
    """The devices of a slice, or its counter sets."""
    return spec.get("devices") or spec.get("sharedCounters") or ()


def _equal(devices: Sequence[Json], others: Sequence[Json]) -> bool:
    return [comparable(device) for device in devices] == [comparable(device) for device in others]


def comparable(device: Json) -> Json:
    """The device or counter set without the times of taints, and with quantities as numbers."""
    same: Json = {**device, "capacity": _numbers(device.get("capacity") or {})}
    same["taints"] = [_taint_key(taint) for taint in device.get("taints") or ()]
    same["attributes"] = device.get("attributes") or {}
    same["consumesCounters"] = _numbers(device.get("consumesCounters") or [])
    same["counters"] = _numbers(device.get("counters") or {})
    same["allowMultipleAllocations"] = bool(device.get("allowMultipleAllocations"))
    return same


def dropped_fields(sent: Any, answered: Any, path: str = "") -> set[str]:
    """The names of the fields that were sent and that the server did not store, such as ``devices.taints``."""
    if isinstance(sent, dict):
        has = answered if isinstance(answered, dict) else {}
        lost: set[str] = set()
        for name, value in sent.items():
            # The keys of these maps are names of the driver, not fields.
            below = (
                f"{path}[*]" if path.endswith((".attributes", ".capacity")) else f"{path}.{name}".lstrip(".")
            )
            if name not in has:
                lost |= {below} if value not in ([], {}, "", None, False) else set()
            else:
                lost |= dropped_fields(value, has[name], below)
        return lost
    if isinstance(sent, list):
        has_items = answered if isinstance(answered, list) else []
        if len(has_items) != len(sent):
            return {path} if sent else set()
        return {
            lost
            for item, has_item in zip(sent, has_items, strict=True)
            for lost in dropped_fields(item, has_item, path)
        }
    return set()


def pool_of(obj: Json) -> str:
    """The name of the pool of a stored slice."""
    return str((obj["spec"].get("pool") or {}).get("name", ""))


def generation_of(obj: Json) -> int:
    return int((obj["spec"].get("pool") or {}).get("generation", 0))


def _count_of(obj: Json) -> int:
    return int((obj["spec"].get("pool") or {}).get("resourceSliceCount", 0))


def _taint_key(taint: Json) -> tuple[str, str, str]:
    return taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    number = quantity(value)
    return value if number is None else number
