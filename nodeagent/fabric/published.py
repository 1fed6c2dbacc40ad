"""The published tree as lookups: the object of each node, switch and child, and the switch names on record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise, takewhile

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.hypernode import ALIASES, TIER_NAMES, HyperNode, Texts
from nodeagent.fabric.inputs import KnownLabels
from nodeagent.fabric.switch_keys import short

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class PublishedMembers:
    """``placed`` is the object of each member, the first by name where several list it; ``size`` counts members."""

    def __init__(self, objects: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        self.placed: dict[str, str] = {}
        self.size: dict[str, int] = {}
        self._several: dict[str, set[str]] = {}
        for name, members in sorted(objects):
            if not members:
                continue
            self.size[name] = len(members)
            if self.placed.keys().isdisjoint(members):
                self.placed.update(dict.fromkeys(members, name))
                continue
            for member in members:
                first = self.placed.setdefault(member, name)
                if first != name:
                    self._several.setdefault(member, {first}).add(name)

    def apart(self, member: str, other: str) -> bool:
        """Both members are published, but no object lists both."""
        first, second = self.placed.get(member), self.placed.get(other)
        if first is None or second is None or first == second:
            return False
        return self._several.get(member, {first}).isdisjoint(self._several.get(other, {second}))


class PublishedTree:
    """Our HyperNodes as the API server has them.

    ``tiers`` are the members of each tier, ``switches`` the leaf switches that tier-1 objects list, and ``aliases``
    maps a switch's current name to the key under which it was published.
    """

    def __init__(self, objects: Mapping[str, HyperNode]) -> None:
        leaves = [leaf for _, leaf in sorted(objects.items()) if leaf.tier == 1]
        self.objects = objects
        self.tiers = {1: PublishedMembers((leaf.name, leaf.nodes) for leaf in leaves)}
        for tier in range(2, len(TIER_NAMES) + 1):
            uppers = [upper for upper in objects.values() if upper.tier == tier]
            self.tiers[tier] = PublishedMembers((upper.name, upper.children) for upper in uppers)
        self.switches = PublishedMembers((leaf.name, leaf.switches) for leaf in leaves)
        self.aliases: dict[str, str] = {}
        for leaf in leaves:
            self.aliases.update(parse_aliases(leaf))


def tree_of_labels(nodes: Mapping[str, KnownLabels], rules: FabricRules) -> dict[str, HyperNode]:
    """The tree that the labels of the Nodes describe, without switches: the memory where no HyperNode exists."""
    keys = [keys[0] for tier in range(1, len(TIER_NAMES) + 1) if (keys := rules.labels_of_tier(tier))]
    members: dict[tuple[str, ...], list[str]] = {}
    chains: dict[Texts, tuple[str, ...]] = {}
    for node, labels in nodes.items():
        if (chain := chains.get(labels.ours)) is None:
            named = dict(labels.ours)
            chain = chains[labels.ours] = tuple(
                takewhile(_NAME.fullmatch, (named.get(key, "") for key in keys))
            )
        if chain:
            members.setdefault(chain, []).append(node)
    below: dict[tuple[int, str], set[str]] = {}
    for chain, names in members.items():
        below.setdefault((1, chain[0]), set()).update(names)
        for tier, (child, name) in enumerate(pairwise(chain), 2):
            below.setdefault((tier, name), set()).add(child)
    tree: dict[str, HyperNode] = {}
    for (tier, name), found in sorted(below.items()):
        listed = tuple(sorted(found))
        nodes_of, children = (listed, ()) if tier == 1 else ((), listed)
        tree.setdefault(name, HyperNode(name=name, tier=tier, nodes=nodes_of, children=children))
    return tree


def parse_aliases(hypernode: HyperNode | None) -> dict[str, str]:
    """Current switch name → key, from an object's annotation."""
    text = "" if hypernode is None else hypernode.note(ALIASES)
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {short(name): key for name, _, key in pairs if name and key}
