"""When a move takes effect: where every member should be, and since when it should be elsewhere.

* Missing data changes nothing: a published member about which nothing is known stays where it is.
* A new member is placed at once. A published member moves after its new place has been the same for ``move_seconds``.
* If too many members would move or too many objects would disappear at once, nothing moves for ``hold_seconds``.
* A member that no longer exists leaves after ``grace_seconds``.

The same rules hold for nodes in leaf groups and for groups in the tiers above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.outcome import Breaker
from nodeagent.fabric.published import PublishedMembers


@dataclass(frozen=True, slots=True)
class Placement:
    """``place`` is the object in which each member should be now.

    ``pending`` are moves that wait, with their target and since when; ``gone`` are members that no longer exist, and
    since when. ``held_since`` is when too many moves were first pending, ``breaker`` is set while they are held.
    """

    place: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    gone: Mapping[str, float] = field(default_factory=dict)
    held_since: float | None = None
    breaker: Breaker | None = None

    def next_at(self, now: float, times: HysteresisSettings) -> float | None:
        """The next moment at which time alone changes something."""
        ends = [since + times.move_seconds for _, since in self.pending.values()]
        ends += [since + times.grace_seconds for since in self.gone.values()]
        if self.breaker is not None:
            ends.append(self.breaker.until)
        return min((end for end in ends if end > now), default=None)


def place(
    before: Placement,
    published: PublishedMembers,
    desired: Mapping[str, str | None],
    leaving: Iterable[str],
    times: HysteresisSettings,
    now: float,
    *,
    at_once: bool = False,
) -> Placement:
    """The placement after ``before``.

    ``desired`` is the object of each existing member, ``None`` if nothing is known of it. A member that is not in
    ``desired`` is in no object. ``leaving`` are members that no longer exist. ``at_once``: moves do not wait.
    """
    placed = published.placed
    places = {
        member: here for member, target in desired.items() if (here := placed.get(member, target)) is not None
    }
    pending: dict[str, tuple[str, float]] = {}
    for member, here in places.items():
        target = desired[member]
        if target is not here and target is not None and target != here:
            known = before.pending.get(member)
            since = known[1] if known is not None and known[0] == target else now
            pending[member] = (target, float("-inf") if at_once else since)
    gone = {member: before.gone.get(member, now) for member in leaving if member in placed}
    places.update((member, placed[member]) for member in gone)
    ripe: dict[str, str | None] = {
        member: target for member, (target, since) in pending.items() if now >= since + times.move_seconds
    }
    ripe.update((member, None) for member, since in gone.items() if now >= since + times.grace_seconds)
    held_since, breaker = _hold(before, published, len(pending) + len(gone), ripe, times, now)
    if breaker is None:
        for member, target in ripe.items():
            if target is None:
                del places[member]
            else:
                places[member] = target
    return Placement(places, pending, gone, held_since, breaker)


def _hold(
    before: Placement,
    published: PublishedMembers,
    moves: int,
    ripe: Mapping[str, str | None],
    times: HysteresisSettings,
    now: float,
) -> tuple[float | None, Breaker | None]:
    """Since when too many moves are pending, and the breaker while they are held."""
    placed, size = published.placed, published.size
    leaving = Counter(placed[member] for member in ripe)
    deletes = sum(count >= size[name] for name, count in leaving.items())
    too_many = moves > max(times.hold_nodes, times.hold_share * len(placed))
    if not too_many and deletes <= max(1, times.hold_share * len(size)):
        return None, None
    since = now if before.held_since is None else before.held_since
    until = since + times.hold_seconds
    if now >= until:
        return since, None
    return since, Breaker(since, until, moves, len(placed), deletes, len(size))
