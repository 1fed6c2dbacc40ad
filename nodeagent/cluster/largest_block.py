"""The label nodeagent.io/gpu-mem-largest: the largest request for GPU memory that the node can still serve. Pure.

The scheduler counts the slices of a node and not those of one GPU. A node affinity with this label (operator ``Gt``)
keeps a pod from a node that would refuse it.

Rules:

* Each write of a Node goes to all that watch Nodes, so the number is coarse: a multiple of ``step`` slices, rounded
  down, or all slices of a GPU.
* A lower number counts at once, because pods would be refused. A higher one counts after ``rise_s``, with the lowest
  value of that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from nodeagent.fabric.nodelinks import GpuMemoryLevel
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.sharing.cgroup_limits import IN_FORCE, NOT_IN_FORCE
from nodeagent.sharing.shares import HARD_LEVELS, READ_BACK_ONLY


def level_in_force(
    kinds: Iterable[DeviceKind], snapshot: Snapshot, by_claim: Iterable[DeviceKind] = ()
) -> str | None:
    """Return the enforcement of the first resource of GPU memory, those of claims last; ``None`` if there is none."""
    return next((level.enforcement for level in levels_in_force(kinds, snapshot, by_claim)), None)


def levels_in_force(
    kinds: Iterable[DeviceKind], snapshot: Snapshot, by_claim: Iterable[DeviceKind] = ()
) -> tuple[GpuMemoryLevel, ...]:
    """Return the enforcement of each resource of GPU memory, in the order of the configuration; ``by_claim`` are those
    of claims. A hard limit is in force if the driver shows it for each container that it was read of."""
    read = {limit.state for limit in snapshot.gpu_limits} & {IN_FORCE, NOT_IN_FORCE}
    levels = {kind.resource: kind.level(snapshot) for kind in kinds}
    for kind in by_claim:
        level = kind.level(snapshot)
        levels.setdefault(kind.resource, READ_BACK_ONLY if level in HARD_LEVELS else level)
    return tuple(
        GpuMemoryLevel(
            resource=resource,
            enforcement=level,
            in_force=NOT_IN_FORCE not in read if read and level in HARD_LEVELS else None,
        )
        for resource, level in levels.items()
        if level is not None
    )


class FreeBlock(msgspec.Struct, frozen=True):
    """``largest``: the most free slices of one GPU. ``whole``: the slices of the largest GPU."""

    largest: int
    whole: int

    def coarse(self, step: int) -> int:
        """Return the number for the label.

        >>> [FreeBlock(n, 79).coarse(8) for n in (79, 78, 45, 7)]
        [79, 72, 40, 0]
        """
        return self.largest if self.largest == self.whole else self.largest // step * step


def free_block(kinds: Iterable[DeviceKind], snapshot: Snapshot) -> FreeBlock | None:
    """Return the largest block of the first resource of GPU memory and of those with slices of the same size;
    ``None`` if there is none, or if holdings are unknown."""
    memory = [kind for kind in kinds if kind.level(snapshot) is not None]
    alike = [kind for kind in memory if kind.device_mib == memory[0].device_mib]
    free = [number for kind in alike for number in (kind.free(snapshot) or {}).values()]
    if not free:
        return None
    whole: Counter[tuple[str, str]] = Counter()
    for kind in alike:
        for entry in kind.devices(snapshot):
            whole[kind.resource, entry.parent] += len(entry.ids)
    return FreeBlock(max(free), max(whole.values()))


class DampedBlock:
    """The value of the label over time. ``published`` is the value that counts."""

    def __init__(self, step: int, rise_s: float) -> None:
        self.published: int | None = None
        self._step, self._rise_s = step, rise_s
        self._rising_since: float | None = None
        self._lowest = 0

    def observe(self, block: FreeBlock, now: float) -> int:
        """Return the value that counts at ``now``, seconds of a clock that never goes back."""
        value = block.coarse(self._step)
        if self.published is None or value <= self.published:
            self.published, self._rising_since = value, None
            return value
        if self._rising_since is None:
            self._rising_since, self._lowest = now, value
        self._lowest = min(self._lowest, value)
        if now - self._rising_since >= self._rise_s:
            self.published, self._rising_since = self._lowest, None
        return self.published

    def adopt(self, label: str | None) -> None:
        """Continue with the value of an earlier agent, as far as it is one."""
        if label is not None and label.isascii() and label.isdigit() and len(label) < 8:
            self.published = int(label)

    def due_s(self, now: float) -> float:
        """Seconds until a higher value may count; infinite if there is none."""
        return (
            float("inf") if self._rising_since is None else max(0.0, self._rising_since + self._rise_s - now)
        )
