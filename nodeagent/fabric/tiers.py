"""The tiers above the leaves: the same rule again, with groups for nodes and uplinks for links.

What is known of uplinks, in the order in which it is trusted: the static topology, what switches hear above
them, a pattern on the names of leaf switches, and at last the assertion that everything is one.

The law of this file: a tier that puts together nothing is left out, for each tier costs the scheduler a copy of
everything. A group whose uplinks are not known stays where it is published, as long as what put it there was
something that is heard; what was told is gone when it is told no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.fabric.groups import Graph, Group, vote
from nodeagent.fabric.hypernode import DERIVED_FROM, TIER_NAMES, HyperNode, labels_of, tier_name
from nodeagent.fabric.names import match, name_of
from nodeagent.fabric.rules import Rules
from nodeagent.fabric.settle import Seating

Taken = Callable[[str], bool]
FILE, HEARD, PATTERN, ASSERTED = "topology-file", "spine-lldp", "name-pattern", "assume-full-bisection"


@dataclass(frozen=True, slots=True)
class Item:
    """A HyperNode that may get a parent: its own switches, and the leaf switches below it."""

    switches: frozenset[str]
    leaves: frozenset[str]


class Uplinks:
    """What is known of what is above each switch."""

    def __init__(self, rules: Rules) -> None:
        self._file = rules.topology.uplinks
        self._patterns = tuple(re.compile(one) for one in rules.name_patterns)
        self._found: dict[tuple[int, str], str | None] = {}
        self.heard: Mapping[str, tuple[str, ...]] = {}

    def above(self, item: Item, tier: int, below: frozenset[str]) -> tuple[frozenset[str], str]:
        """The switches (or names that stand for them) above an item, and how that is known.

        ``below`` are all switches of the same tier or a lower one: a peer link leads nowhere up.
        """
        for source, known in ((FILE, self._file), (HEARD, self.heard)):
            found = {up for switch in item.switches for up in known.get(switch, ())} - below
            if found:
                return frozenset(found), source
        named = {name for leaf in item.leaves if (name := self._named(tier, leaf)) is not None}
        return frozenset(named), PATTERN

    def _named(self, tier: int, leaf: str) -> str | None:
        key = (tier, leaf)
        if key not in self._found:
            self._found[key] = None
            for pattern in self._patterns:
                found = pattern.search(leaf)
                group = f"tier{tier}"
                if found is not None and group in pattern.groupindex and found[group]:
                    self._found[key] = found[group]
                    break
        return self._found[key]


class Tower:
    """Tiers 2 and 3. ``wanted`` are their objects, ``parent`` of each HyperNode below."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.uplinks = Uplinks(rules)
        self.seatings = {tier: Seating(rules.hysteresis) for tier in range(2, len(TIER_NAMES) + 1)}
        self.wanted: dict[str, HyperNode] = {}
        self.parent: dict[str, str] = {}

    def publish(self, name: str, old: HyperNode | None, new: HyperNode | None) -> None:
        """An object of ours above tier 1, before and now."""
        for tier, seating in self.seatings.items():
            before = old.children if old is not None and old.tier == tier else ()
            after = new.children if new is not None and new.tier == tier else ()
            if before or after:
                seating.publish(name, before, after)

    def build(
        self,
        leaves: Mapping[str, frozenset[str]],
        published: Mapping[str, HyperNode],
        taken: Taken,
        now: float,
    ) -> None:
        """``leaves`` are the tier-1 HyperNodes with their switches; ``published`` all objects of ours."""
        self.wanted = {}
        self.parent = {}
        items = {name: Item(switches, switches) for name, switches in leaves.items()}
        below = frozenset(switch for item in items.values() for switch in item.switches)
        tier, quiet = 2, False
        for known in range(2, len(TIER_NAMES) + 1):
            groups = self._groups(items, known, below)
            asserted = False
            level = _Level(self._rules.fabric, tier, self.seatings[tier], published, taken)
            quiet = quiet or (not groups and level.stands(items))
            if not groups and not quiet and self._rules.assume_full_bisection and len(items) > 1:
                groups, asserted = [_Upper(frozenset(), frozenset(items), ASSERTED)], True
            if not level.tells(items, groups):
                items = _through(items, groups)
                continue
            above = _invert(level.seat(items, groups, asserted, now))
            if all(len(children) < 2 for children in above.values()):
                self._drop(tier)
                items = _through(items, groups)
                continue
            items = self._raise(items, above, level, tier)
            below |= frozenset(switch for item in items.values() for switch in item.switches)
            tier += 1
            if asserted or len(items) < 2:
                break
        for unused in range(tier, len(TIER_NAMES) + 1):
            self._drop(unused)

    def next_at(self, now: float) -> float | None:
        ends = (seating.next_at(now) for seating in self.seatings.values())
        return min((end for end in ends if end is not None), default=None)

    def _groups(self, items: Mapping[str, Item], tier: int, below: frozenset[str]) -> list[_Upper]:
        """What the uplinks say: which of the items belong together."""
        ups = {name: self.uplinks.above(item, tier, below) for name, item in items.items()}
        graph = Graph(_never)
        for up, _ in ups.values():
            if up:
                graph.weigh(tuple(sorted(up)), 1)
        graph.regroup({switch for up, _ in ups.values() for switch in up})
        found: dict[Group, list[str]] = {}
        for name, (up, _) in ups.items():
            _, best, _ = vote(up, graph.of.get, graph.weight)
            if best is not None:
                found.setdefault(best, []).append(name)
        rank = (FILE, HEARD, PATTERN)
        return [
            _Upper(
                frozenset(group.leaves),
                frozenset(members),
                min((ups[name][1] for name in members), key=rank.index),
            )
            for group, members in found.items()
        ]

    def _raise(
        self, items: dict[str, Item], above: Mapping[str, list[str]], level: _Level, tier: int
    ) -> dict[str, Item]:
        """The objects of a tier; whoever has no parent goes on with them."""
        raised = {name: item for name, item in items.items() if name not in level.seating.seat}
        for name, children in above.items():
            self.parent.update(dict.fromkeys(children, name))
            self.wanted[name] = HyperNode(
                name=name,
                tier=tier,
                tier_name=tier_name(tier),
                children=tuple(sorted(children)),
                labels=labels_of(self._rules.fabric, tier),
                annotations=((DERIVED_FROM, level.source(name)),),
            )
            raised[name] = Item(
                level.switches(name), frozenset().union(*(items[child].leaves for child in children))
            )
        return raised

    def _drop(self, tier: int) -> None:
        seating = self.seatings[tier]
        for child in list(seating.seat):
            seating.bar(child)


@dataclass(frozen=True, slots=True)
class _Upper:
    """A group of a tier as the evidence has it."""

    switches: frozenset[str]
    members: frozenset[str]
    source: str

    @property
    def anchor(self) -> str:
        return min(self.switches, default="")


class _Level:
    """One tier while it is built: names for its groups, seats for its children."""

    def __init__(
        self,
        fabric: str,
        tier: int,
        seating: Seating,
        published: Mapping[str, HyperNode],
        taken: Taken,
    ) -> None:
        self.seating = seating
        self._fabric = fabric
        self._tier = tier
        self._published = published
        self._taken = taken
        self._group: dict[str, _Upper] = {}

    def tells(self, items: Mapping[str, Item], groups: list[_Upper]) -> bool:
        """This tier puts something together, or has, and what it has heard has fallen silent."""
        spoken = frozenset().union(*(group.members for group in groups))
        return any(len(group.members) > 1 for group in groups) or any(
            item not in spoken and self._stands(item) for item in items
        )

    def stands(self, items: Mapping[str, Item]) -> bool:
        """Something that was heard has put some of them together, and is silent now: no reason to assert."""
        return any(map(self._stands, items))

    def source(self, name: str) -> str:
        if name in self._group:
            return self._group[name].source
        return self._published[name].note(DERIVED_FROM)

    def switches(self, name: str) -> frozenset[str]:
        return self._group[name].switches if name in self._group else frozenset()

    def seat(
        self, items: Mapping[str, Item], groups: list[_Upper], asserted: bool, now: float
    ) -> Mapping[str, str]:
        """The parent of each item that has one."""
        seating = self.seating
        claims = {group: self._claims(group) for group in groups}
        matched = match(claims, lambda group: group.anchor or min(group.members))
        wishes: dict[str, str] = {}
        for group in sorted(groups, key=lambda group: (group.anchor, min(group.members))):
            anchor = self._fabric if len(groups) == 1 else group.anchor
            called = matched.get(group) or name_of(self._fabric, self._tier, anchor, self._is_taken)
            self._group[called] = group
            wishes.update(dict.fromkeys(group.members, called))
        for item in [*seating.seat, *seating.placed]:
            if item not in items:
                seating.bar(item)
        for item in items:
            name = wishes.get(item)
            if name is None and not self._stands(item):
                seating.bar(item)
            else:
                # What is asserted is no evidence to be waited for.
                seating.wish(item, name, now)
                if asserted and name is not None and item in seating.pending:
                    seating.pending[item] = (name, float("-inf"))
        seating.settle(now)
        return seating.seat

    def _claims(self, group: _Upper) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for member in group.members:
            if (name := self.seating.placed.get(member)) is not None:
                found[name] = (found.get(name, (0, 0))[0] + 1, 0)
        return found

    def _stands(self, item: str) -> bool:
        """Nothing is known of its uplinks, and it stays where something heard has put it."""
        here = self.seating.placed.get(item)
        return here is not None and self._published[here].note(DERIVED_FROM) == HEARD

    def _is_taken(self, name: str) -> bool:
        return self._taken(name) or name in self._group


def _never(_one: str, _other: str) -> bool:
    """Of switches above the leaves nothing is published that could decide."""
    return False


def _invert(seats: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item, name in seats.items():
        found.setdefault(name, []).append(item)
    return found


def _through(items: Mapping[str, Item], groups: list[_Upper]) -> dict[str, Item]:
    """A tier that puts nothing together is left out: its switches are those of the items themselves."""
    above = {member: group.switches for group in groups for member in group.members}
    return {name: Item(above.get(name, item.switches), item.leaves) for name, item in items.items()}
