"""The arithmetic of the Topology Manager: hints of the device manager, merged under a policy. Pure.

A mask is an integer with a bit for each NUMA node. The other hint providers (CPU, memory) give no hint, as under their
policy ``none``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]
Scope = Literal["container", "pod"]


@dataclass(frozen=True, slots=True)
class NumaHint:
    """A possible affinity. ``mask`` is ``None`` for any; ``preferred``: no narrower affinity is possible."""

    mask: int | None
    preferred: bool


# A resource without NUMA nodes needs no affinity; one without enough devices has no preferred hint.
INDIFFERENT = (NumaHint(None, True),)
IMPOSSIBLE = (NumaHint(None, False),)


def mask_of(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        if node >= 0:
            mask |= 1 << node
    return mask


def hints(
    *,
    numa_nodes: Sequence[int],
    listed: Counter[tuple[int, ...]],
    available: Counter[tuple[int, ...]],
    reusable: Counter[tuple[int, ...]],
    request: int,
) -> tuple[NumaHint, ...]:
    """Return all affinities with ``request`` devices; the devices are counted by their NUMA nodes.

    Preferred are those as narrow as the narrowest affinity that has enough devices, free or not. Every reusable device
    with a NUMA node must be in the mask, because it is taken first.
    """
    bearing = {node for nodes in listed for node in nodes}
    candidates = [node for node in numa_nodes if node in bearing]
    narrowest = len(numa_nodes)
    found: list[int] = []
    for size in range(1, len(candidates) + 1):
        for nodes in combinations(candidates, size):
            mask = mask_of(nodes)
            if _inside(listed, mask) >= request:
                narrowest = min(narrowest, size)
            placed = [key for key in reusable if key]
            if all(mask_of(key) & mask for key in placed):
                matching = _inside(available, mask) + sum(reusable[key] for key in placed)
                if matching >= request:
                    found.append(mask)
    return tuple(NumaHint(mask, mask.bit_count() == narrowest) for mask in found)


def _inside(counted: Counter[tuple[int, ...]], mask: int) -> int:
    return sum(number for nodes, number in counted.items() if mask_of(nodes) & mask)


def merge(policy: Policy, numa_nodes: Sequence[int], given: Sequence[tuple[NumaHint, ...]]) -> NumaHint:
    """Return the best of all combinations of one hint for each resource.

    Preferred ones come first, then narrow ones. Among those not preferred, the best is the nearest to the widest of the
    resources' narrowest hints, and preferably not wider.
    """
    everywhere = mask_of(numa_nodes)
    if policy == "single-numa-node":
        given = [
            tuple(h for h in some if h.preferred and (h.mask is None or h.mask.bit_count() == 1))
            for some in given
        ]
    reached = {(everywhere, True)}
    for some in given:
        reached = {
            (mask & (everywhere if hint.mask is None else hint.mask), good and hint.preferred)
            for mask, good in reached
            for hint in some
        }
    target = max(
        (min(h.mask.bit_count() for h in some if h.mask is not None) for some in given if _masked(some)),
        default=0,
    )

    def rank(candidate: tuple[int, bool]) -> tuple[int, int, int, int]:
        mask, good = candidate
        width = mask.bit_count()
        if good:
            return (0, 0, width, mask)
        if width > target:
            return (1, 1, width, mask)
        return (1, 0, target - width, mask)

    mask, good = min((c for c in reached if c[0]), key=rank, default=(everywhere, False))
    if policy == "single-numa-node" and mask == everywhere:
        return NumaHint(None, good)
    return NumaHint(mask, good)


def _masked(some: tuple[NumaHint, ...]) -> bool:
    return any(hint.mask is not None for hint in some)


def admits(policy: Policy, best: NumaHint) -> bool:
    return policy in ("none", "best-effort") or best.preferred
