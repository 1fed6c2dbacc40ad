"""The counters by which the scheduler takes MIG devices that fit together on a GPU (``sharedCounters``). Pure.

Each slice of a GPU's memory is a counter, so two places that overlap are never allocated together. Multiprocessors and
engines are counters too: a GPU has one ``1g.10gb+me``, whatever place it gets. What others have made on a GPU, as with
``nvidia-smi``, is no longer in its counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nodeagent.dra.devices import DraDevice, MigPlace, gpu_name
from nodeagent.facts.model import Gpu, MigSlot

_Json = dict[str, Any]


def consumed(place: MigPlace) -> list[_Json]:
    """Return the field ``consumesCounters`` of a device."""
    return [_counters("counterSet", place.gpu, _takes(place.slot, dict(place.profile.takes)))]


def counter_sets(devices: Iterable[DraDevice], own: Collection[MigSlot]) -> list[_Json]:
    """Return the counters of each GPU with a place among the devices. ``own`` are the slots that the agent has filled,
    or fills now: the scheduler knows them."""
    gpus = {place.gpu.uuid: place.gpu for place in devices if isinstance(place, MigPlace)}
    return [_counters("name", gpu, _left(gpu, foreign(gpu, own))) for gpu in gpus.values()]


def lacking(place: MigPlace, taken: Iterable[MigSlot]) -> list[str]:
    """Return the counters of which the GPU has too few for a device beside those in the ``taken`` slots."""
    left = _left(place.gpu, [slot for slot in taken if slot.gpu == place.gpu.uuid])
    takes = _takes(place.slot, dict(place.profile.takes))
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
