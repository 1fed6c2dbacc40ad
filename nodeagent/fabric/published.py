"""The published tree as lookups: the object of each node, switch and child, and the switch names on record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise, takewhile

from msgspec.structs import replace

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.hypernode import ALIASES, LEAF, NVLINK, TIER_NAMES, HyperNode, Texts, tier_name
from nodeagent.fabric.inputs import KnownLabels
from nodeagent.fabric.switch_keys import short

DOMAIN_NAME = "nodeagent-t1-nvl-"
"""The beginning of each name of an NVLink domain's object."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class PublishedMembers:
    """``placed`` is the object of each member, the first by name where several list it; ``size`` counts members."""

    def __init__(self, objects: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        self.placed: dict[str, str] = {}
        self.size: dict[str, int] = {}
        for name, members in sorted(objects):
            if not members:
                continue
            self.size[name] = len(members)
            if self.placed.keys().isdisjoint(members):
                self.placed.update(dict.fromkeys(members, name))
                continue
            for member in members:
                self.placed.setdefault(member, name)


class PublishedTree:
    """Our HyperNodes as the API server has them.

    ``tiers`` are the members of each tier: the nodes of NVLink domains and of leaf groups, and objects in those above.
    A leaf group has the nodes of its domains too. ``switches`` are the leaf switches that leaf groups list, and
    ``aliases`` maps a switch's current name to the key under which it was published.
    """

    def __init__(self, objects: Mapping[str, HyperNode], tier_offset: int = 0) -> None:
        """``tier_offset`` is Volcano's number of a tier, less the tier, for objects whose tier name was edited."""
        by_tier: dict[int, list[HyperNode]] = {tier: [] for tier in range(len(TIER_NAMES))}
        for _, published in sorted(objects.items()):
            if (tier := _tier_of(published, tier_offset)) in by_tier:
                by_tier[tier].append(published)
        leaves = by_tier[LEAF]
        self.objects = objects
        self.tiers = {NVLINK: PublishedMembers((domain.name, domain.nodes) for domain in by_tier[NVLINK])}
        domains = {domain.name: domain.nodes for domain in by_tier[NVLINK]}
        self.tiers[LEAF] = PublishedMembers((leaf.name, _nodes_below(leaf, domains)) for leaf in leaves)
        for tier in range(LEAF + 1, len(TIER_NAMES)):
            self.tiers[tier] = PublishedMembers((upper.name, upper.children) for upper in by_tier[tier])
        self.switches = PublishedMembers((leaf.name, leaf.switches) for leaf in leaves)
        self.aliases: dict[str, str] = {}
        for leaf in leaves:
            self.aliases.update(parse_aliases(leaf))


def _tier_of(published: HyperNode, tier_offset: int) -> int:
    if published.tier_name in TIER_NAMES:
        return TIER_NAMES.index(published.tier_name)
    return published.tier - tier_offset


def _nodes_below(leaf: HyperNode, domains: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if not leaf.children:
        return leaf.nodes
    return tuple({*leaf.nodes, *(node for child in leaf.children for node in domains.get(child, ()))})


class _LabelReader:
    """Reads the names of a Node's objects, from the lowest tier up, from its labels.

    The tiers had other numbers while ``tiers.nvlink`` had its other value. Then the label of tier 1 is the name of a
    leaf group, and not of a domain.
    """

    def __init__(self, rules: FabricRules) -> None:
        self._keys = [
            [(rules.labels_of_tier(tier, offset) or ("",))[0] for tier in range(len(TIER_NAMES))]
            for offset in (0, 1)
        ]

    def read(self, labels: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """The name of the NVLink domain, empty if there is none, and the names of the tiers above it."""
        without, shifted = ([labels.get(key, "") for key in keys] for keys in self._keys)
        names = without if without[LEAF] and not is_domain_name(without[LEAF]) else shifted
        domain = names[NVLINK] if is_domain_name(names[NVLINK]) else ""
        return domain, tuple(takewhile(_NAME.fullmatch, names[LEAF:]))


def is_domain_name(name: str) -> bool:
    """The name is one that was made for an NVLink domain."""
    return name.startswith(DOMAIN_NAME) and bool(_NAME.fullmatch(name))


def tree_of_labels(nodes: Mapping[str, KnownLabels], rules: FabricRules) -> dict[str, HyperNode]:
    """The tree that the labels of the Nodes describe, without switches: the memory where no HyperNode exists."""
    reader = _LabelReader(rules)
    members: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    chains: dict[Texts, tuple[str, tuple[str, ...]]] = {}
    for node, labels in nodes.items():
        if (read := chains.get(labels.ours)) is None:
            read = chains[labels.ours] = reader.read(dict(labels.ours))
        if any(read):
            members.setdefault(read, []).append(node)
    below: dict[tuple[int, str], set[str]] = {}
    for (domain, chain), names in members.items():
        if domain:
            below.setdefault((NVLINK, domain), set()).update(names)
        elif chain:
            below.setdefault((LEAF, chain[0]), set()).update(names)
        for tier, (child, name) in enumerate(pairwise(chain), LEAF + 1):
            below.setdefault((tier, name), set()).add(child)
    tree: dict[str, HyperNode] = {}
    for (tier, name), found in sorted(below.items()):
        listed = tuple(sorted(found))
        nodes_of, children = (listed, ()) if tier <= LEAF else ((), listed)
        made = HyperNode(
            name=name,
            tier=tier + rules.tier_offset,
            tier_name=tier_name(tier),
            nodes=nodes_of,
            children=children,
        )
        tree.setdefault(name, made)
    for domain, chain in members:
        if domain and chain and chain[0] != domain:
            leaf = tree.get(chain[0]) or HyperNode(
                name=chain[0], tier=LEAF + rules.tier_offset, tier_name=tier_name(LEAF)
            )
            tree[leaf.name] = replace(leaf, children=tuple(sorted({*leaf.children, domain})))
    return tree


def parse_aliases(hypernode: HyperNode | None) -> dict[str, str]:
    """Current switch name → key, from an object's annotation."""
    text = "" if hypernode is None else hypernode.note(ALIASES)
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {short(name): key for name, _, key in pairs if name and key}
