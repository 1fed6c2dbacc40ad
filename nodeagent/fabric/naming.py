"""The names of HyperNodes: which leaf group is which published object.

A HyperNode is named once, after the first switch of its group at that time. It keeps the name as long as the group can
be recognized: by the members that it shares with a published object, then by the switches, then by the name. Names
contain no index, because an index changes when groups are added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from nodeagent.fabric.groups import SwitchGroup
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.switch_keys import digest, plain

HYPERNODE_NAME_MAX = 63
_SLUG_MAX = 30
_NUMBERS = re.compile(r"[0-9]+")

G = TypeVar("G", bound=Hashable)

Claims = dict[str, tuple[int, int]]
"""By published name, how many members and how many switches a group shares with that object."""


class GroupNames:
    """``names`` is the name of each group with members, ``groups`` the group of each name."""

    def __init__(
        self,
        fabric: str,
        groups: Iterable[SwitchGroup],
        published: PublishedTree,
        is_taken: Callable[[str], bool],
        tier_offset: int = 0,
    ) -> None:
        self.names: dict[SwitchGroup, str] = {}
        self.groups: dict[str, SwitchGroup] = {}
        inhabited = {group: None for group in groups if group.voters or group.forced}
        forced = frozenset(node for group in inhabited for node in group.forced)
        matched = match_names({group: _claims(group, published, forced) for group in inhabited}, _anchor)
        for group in sorted(inhabited, key=_anchor):
            name = matched.get(group) or free_name(
                fabric,
                LEAF + tier_offset,
                _namesake(group),
                lambda name: is_taken(name) or name in self.groups,
            )
            self.names[group] = name
            self.groups[name] = group


def _namesake(group: SwitchGroup) -> str:
    """The switch that names a new object: the first one, of those whose names differ in numbers alone if these are
    most. In a hall of one unit a storage switch is in the group too."""
    stems = Counter(_NUMBERS.sub("", leaf) for leaf in group.leaves)
    stem, count = max(stems.items(), key=lambda item: item[1], default=("", 0))
    if group.static or 2 * count <= len(group.leaves):
        return group.anchor
    return next(leaf for leaf in group.leaves if _NUMBERS.sub("", leaf) == stem)


def _claims(group: SwitchGroup, published: PublishedTree, forced: frozenset[str]) -> Claims:
    """``forced`` are the nodes that the topology file places: they count for no group that their links vote for."""
    placed, homes = published.tiers[LEAF].placed, published.switches.placed
    nodes: dict[str, int] = {}
    for pattern in group.voters:
        members = pattern.nodes.keys() - forced if forced else pattern.nodes
        places = list(map(placed.get, members))
        for place in set(places):
            if place is not None:
                nodes[place] = nodes.get(place, 0) + places.count(place)
    _add(nodes, map(placed.get, group.forced))
    switches: dict[str, int] = {}
    _add(switches, map(homes.get, group.leaves))
    return {name: (nodes.get(name, 0), switches.get(name, 0)) for name in nodes.keys() | switches.keys()}


def _add(counts: dict[str, int], names: Iterable[str | None]) -> None:
    for name in names:
        if name is not None:
            counts[name] = counts.get(name, 0) + 1


def _anchor(group: SwitchGroup) -> str:
    return group.anchor


def member_claims(members: Iterable[str], placed: Mapping[str, str]) -> Claims:
    """The claims of a group of HyperNodes, which is matched by its members alone."""
    counts: dict[str, int] = {}
    _add(counts, map(placed.get, members))
    return {name: (count, 0) for name, count in counts.items()}


def free_name(fabric: str, tier: int, anchor: str, taken: Callable[[str], bool], slug: str = "") -> str:
    """A free name of at most 63 characters: ``nodeagent-t<tier>-<slug>-<digest>``. ``tier`` is Volcano's number.

    The slug is by default made of the ``anchor``, the digest always.
    """
    slug = slug or re.sub(r"[^a-z0-9]+", "-", plain(anchor).lower())[:_SLUG_MAX].strip("-") or "group"
    for salt in range(1000):
        mark = f"{fabric}|{anchor}" + (f"|{salt}" if salt else "")
        name = f"nodeagent-t{tier}-{slug}-{digest(mark)}"
        if not taken(name):
            return name
    raise AssertionError(f"all names for {slug} are taken")


def match_names(claims: Mapping[G, Mapping[str, tuple[int, int]]], order: Callable[[G], str]) -> dict[G, str]:
    """The published name of each group. ``claims[group][name]`` counts (shared members, shared switches).

    The largest claim wins first. Every group and every name is matched at most once.
    """
    ranked = [
        (-members, -switches, name, order(group), group)
        for group, names in claims.items()
        for name, (members, switches) in names.items()
        if members or switches
    ]
    ranked.sort(key=lambda claim: claim[:4])
    matched: dict[G, str] = {}
    used: set[str] = set()
    for _, _, name, _, group in ranked:
        if group not in matched and name not in used:
            matched[group] = name
            used.add(name)
    return matched
