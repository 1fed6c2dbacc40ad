"""The counters by which the scheduler takes MIG devices that fit together on a GPU (``sharedCounters``). Pure.

Each slice of a GPU's memory is a counter, so two places that overlap are never allocated together. Multiprocessors and
engines are counters too: a GPU has one ``1g.10gb+me``, whatever place it gets. What others have made on a GPU, as with
``nvidia-smi``, is no longer in its counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nodeagent.dra.devices import gpu_name
from nodeagent.facts.model import Gpu, MigProfile, MigSlot

_Json = dict[str, Any]


def consumed(gpu: Gpu, slot: MigSlot, profile: MigProfile) -> list[_Json]:
    """Return the field ``consumesCounters`` of a place."""
    return [_counters("counterSet", gpu, _takes(slot, dict(profile.takes)))]


def counter_sets(places: Iterable[Gpu | None], own: Collection[MigSlot]) -> list[_Json]:
    """Return the counters of each GPU. ``places`` has the GPU of each device, ``None`` for one that is not the place of
    a MIG device. ``own`` are the slots that the agent has filled, or fills now: the scheduler knows them."""
    gpus = {gpu.uuid: gpu for gpu in places if gpu is not None}
    return [_counters("name", gpu, _left(gpu, foreign(gpu, own))) for gpu in gpus.values()]


def lacking(gpu: Gpu, slot: MigSlot, profile: MigProfile, taken: Iterable[MigSlot]) -> list[str]:
    """Return the counters of which the GPU has too few for a device in a place beside those in the ``taken`` slots."""
    left = _left(gpu, [other for other in taken if other.gpu == gpu.uuid])
    takes = _takes(slot, dict(profile.takes))
    return [name for name, number in takes.items() if number > left[name]]


def foreign(gpu: Gpu, own: Collection[MigSlot]) -> list[MigSlot]:
    """Return the GPU instances that the agent has not made."""
    return [slot for slot in gpu.mig_instances if slot not in own]


def _left(gpu: Gpu, taken: Iterable[MigSlot]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    kinds: dict[int, Mapping[str, int]] = {}
    for profile in gpu.mig_profiles:
        for slot in profile.slots:
            kinds[slot.profile] = dict(profile.takes)
            for name, number in _takes(slot, kinds[slot.profile]).items():
                numbers[name] = max(number, numbers.get(name, 0))
    gone: Counter[str] = Counter()
    for slot in taken:
        gone.update(_takes(slot, kinds.get(slot.profile, {})))
    return {name: max(0, number - gone[name]) for name, number in numbers.items()}


def _takes(slot: MigSlot, engines: Mapping[str, int]) -> dict[str, int]:
    slices = range(slot.start, slot.start + slot.size)
    return {**engines, **{f"memory-slice-{number}": 1 for number in slices}}


def _counters(key: str, gpu: Gpu, numbers: Mapping[str, int]) -> _Json:
    counters = {name: {"value": str(number)} for name, number in sorted(numbers.items())}
    return {key: gpu_name(gpu.uuid), "counters": counters}
