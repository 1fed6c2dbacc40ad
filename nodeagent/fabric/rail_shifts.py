"""Cables of a node that are all shifted by the same number of rails, as after a patch panel that is off by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

SHIFTED_MIN = 3
"""The fewest wrong cables that make a shift: two are a swap, or two faults."""


def find_shift(
    cabled: Mapping[str, str], order: Sequence[str], switch: Mapping[str, str], away: Collection[str]
) -> int:
    """The number of rails, positive or negative, by which all cables of a node are shifted; 0 if they are not.

    ``cabled`` is the switch of each rail of the node, ``switch`` that of each rail of its group, and ``order`` the
    rails of the group. The rails from the first wrong cable to the last one count, so that other cables, such as those
    for storage, may be right. A cable that is shifted beyond the last of these goes to the first one, to a switch in
    ``away`` (outside the group), or nowhere.
    """
    place = {rail: i for i, rail in enumerate(order)}
    own = {place[rail]: key for rail, key in cabled.items() if rail in place}
    wrong = [i for i, key in own.items() if switch[order[i]] != key]
    if len(wrong) < SHIFTED_MIN:
        return 0
    first, count = min(wrong), max(wrong) - min(wrong) + 1
    run = {i: key for i, key in own.items() if first <= i < first + count}

    def fits(i: int, steps: int) -> bool:
        target = i + steps
        known = {switch[order[target]]} if 0 <= target < len(order) else set[str]()
        if not first <= target < first + count:
            known |= {switch[order[first + (target - first) % count]], *away}
        return run[i] in known

    for size in range(1, count):
        for steps in (size, -size):
            inside = sum(first <= i + steps < first + count for i in wrong)
            if inside >= SHIFTED_MIN - 1 and all(fits(i, steps) for i in run):
                return steps
    return 0
