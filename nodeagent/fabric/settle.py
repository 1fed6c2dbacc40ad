"""When a move is believed: who sits where, who would rather sit elsewhere, and since when.

The law of this file:

* Absence changes nothing: whoever is published somewhere and about whom nothing is known stays there.
* Whoever is nowhere is placed at once. Whoever is somewhere moves when the wish has stood for its time.
* When too many would move, or too many groups vanish, nobody does, until somebody had the time to look.
* Whoever has ceased to exist leaves after a grace.

One of these for each tier: of nodes in leaf groups, of groups in the tier above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from nodeagent.fabric.outcome import Breaker
from nodeagent.fabric.rules import Hysteresis


class Placement:
    """Where the published objects have everybody; of several places, the first by name."""

    def __init__(self) -> None:
        self._doubles: dict[str, set[str]] = {}
        self.placed: dict[str, str] = {}
        self.size: dict[str, int] = {}

    @property
    def single(self) -> bool:
        """Nobody is in two of them."""
        return not self._doubles

    def apart(self, one: str, other: str) -> bool:
        """Both are somewhere, and nowhere together."""
        here, there = self.placed.get(one), self.placed.get(other)
        if here is None or there is None or here == there:
            return False
        return self._doubles.get(one, {here}).isdisjoint(self._doubles.get(other, {there}))

    def where(self, items: Set[str]) -> set[str]:
        """All places of any of these."""
        found = {name for item in items if (name := self.placed.get(item)) is not None}
        return found.union(*(self._doubles[item] for item in self._doubles.keys() & items))

    def publish(self, name: str, before: Iterable[str], after: Iterable[str]) -> set[str]:
        """A published object holds others than before; whom that concerns is returned."""
        old, new = set(before), set(after)
        for item in old - new:
            others = self._doubles.get(item)
            if others is None:
                del self.placed[item]
                continue
            others.discard(name)
            self.placed[item] = min(others)
            if len(others) == 1:
                del self._doubles[item]
        for item in new - old:
            here = self.placed.get(item)
            if here is None:
                self.placed[item] = name
            else:
                others = self._doubles.setdefault(item, {here})
                others.add(name)
                self.placed[item] = min(others)
        self.size[name] = len(new)
        if not new:
            del self.size[name]
        return old ^ new


class Seating:
    """``placed`` is where the published objects have everybody, ``seat`` where they should be. ``changed``
    collects the names of groups whose members are others, ``moved`` the members, until somebody takes them.
    """

    def __init__(self, times: Hysteresis) -> None:
        self._times = times
        self._since: float | None = None
        self.published = Placement()
        self.placed = self.published.placed
        self.seat: dict[str, str] = {}
        self.members: dict[str, set[str]] = {}
        self.pending: dict[str, tuple[str, float]] = {}
        self.gone: dict[str, float] = {}
        self.changed: set[str] = set()
        self.moved: set[str] = set()
        self.breaker: Breaker | None = None

    def publish(self, name: str, before: Iterable[str], after: Iterable[str]) -> set[str]:
        """A published group has other members; whom that concerns is returned."""
        self.changed.add(name)
        return self.published.publish(name, before, after)

    def wish(self, item: str, name: str | None, now: float) -> None:
        """Where somebody who exists should be; ``None``: nothing is known."""
        self.gone.pop(item, None)
        here = self.placed.get(item)
        if name is None or name == here:
            self.pending.pop(item, None)
            self._sit(item, here)
        elif here is None:
            self.pending.pop(item, None)
            self._sit(item, name)
        elif (known := self.pending.get(item)) is None or known[0] != name:
            self.pending[item] = (name, now)

    def leave(self, item: str, now: float) -> None:
        """Somebody has ceased to exist."""
        self.pending.pop(item, None)
        if item in self.placed:
            self.gone.setdefault(item, now)
        else:
            self.gone.pop(item, None)
            self._sit(item, None)

    def bar(self, item: str) -> None:
        """Somebody may be nowhere, at once."""
        self.pending.pop(item, None)
        self.gone.pop(item, None)
        self._sit(item, None)

    def settle(self, now: float) -> None:
        """Those whose time has come sit down, unless they are too many."""
        times = self._times
        ripe: dict[str, str | None] = {
            item: name for item, (name, since) in self.pending.items() if now - since >= times.move_s
        }
        ripe.update((item, None) for item, since in self.gone.items() if now - since >= times.grace_s)
        held = self._hold(ripe, now)
        for item in (*self.pending, *self.gone):
            self._sit(item, ripe[item] if item in ripe and not held else self.placed[item])

    def next_at(self, now: float) -> float | None:
        """When time alone will change something."""
        times = self._times
        ends = [since + times.move_s for _, since in self.pending.values()]
        ends += [since + times.grace_s for since in self.gone.values()]
        if self.breaker is not None:
            ends.append(self.breaker.until)
        return min((end for end in ends if end > now), default=None)

    def _hold(self, ripe: dict[str, str | None], now: float) -> bool:
        times = self._times
        moves = len(self.pending) + len(self.gone)
        leaving = Counter(self.placed[item] for item in ripe)
        deletes = sum(count >= self.published.size[name] for name, count in leaving.items())
        too_many = moves > max(times.least_nodes, times.share * len(self.placed))
        if not too_many and deletes <= max(1, times.share * len(self.published.size)):
            self._since = self.breaker = None
            return False
        if self._since is None:
            self._since = now
        until = self._since + times.hold_s
        if now >= until:
            self.breaker = None
            return False
        self.breaker = Breaker(self._since, until, moves, len(self.placed), deletes, len(self.published.size))
        return True

    def _sit(self, item: str, name: str | None) -> None:
        here = self.seat.get(item)
        if here == name:
            return
        self.moved.add(item)
        if here is not None:
            members = self.members[here]
            members.discard(item)
            if not members:
                del self.members[here]
            self.changed.add(here)
        if name is None:
            del self.seat[item]
        else:
            self.seat[item] = name
            self.members.setdefault(name, set()).add(item)
            self.changed.add(name)
