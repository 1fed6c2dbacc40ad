"""The tiers above the leaves: the join rule again, with groups in place of nodes and uplinks in place of links.

Sources of uplinks, the most trusted first: the topology file, the file of InfiniBand cables, the LLDP neighbors of
switches, a pattern on the names of leaf switches, and the assertion that all groups are one.

* A tier that joins nothing is left out, because each tier costs the scheduler a copy of all nodes.
* A group without known uplinks stays where it is published, if uplinks from LLDP put it there, or a pattern and no
  report mentions its switches. A parent that came from configuration goes with that configuration.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.groups import SwitchGraph, SwitchGroup, best_of
from nodeagent.fabric.hypernode import DERIVED_FROM, LEAF, TIER_NAMES, HyperNode, labels_of, tier_name
from nodeagent.fabric.naming import free_name, match_names, member_claims
from nodeagent.fabric.outcome import Breaker
from nodeagent.fabric.placement import Placement, place
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.topology_file import Topology

FILE, CABLES, LLDP, PATTERN = "topology-file", "infiniband-cables", "spine-lldp", "name-pattern"
ASSERTED = "assume-full-bisection"


@dataclass(frozen=True, slots=True)
class TierItem:
    """A HyperNode that may get a parent: its own switches, and the leaf switches below it."""

    switches: frozenset[str]
    leaves: frozenset[str]


@dataclass(frozen=True, slots=True)
class _UpperGroup:
    """Items that belong together, and the switches above them."""

    switches: frozenset[str]
    members: frozenset[str]
    source: str

    @property
    def anchor(self) -> str:
        return min(self.switches, default="")


class UplinkSources:
    """The known uplinks of each switch, with their source."""

    def __init__(
        self,
        rules: FabricRules,
        topology: Topology,
        cables: Mapping[str, tuple[str, ...]],
        uplinks: Mapping[str, tuple[str, ...]],
        announced: Mapping[str, tuple[str, ...]],
    ) -> None:
        """``announced`` are the names of each leaf switch that reports mention."""
        self._announced = announced
        self._patterns = tuple(map(re.compile, rules.tiers.name_patterns))
        sources = ((FILE, topology.uplinks), (CABLES, cables), (LLDP, uplinks))
        self._by_switch = [(source, known) for source, known in sources if known]

    def above(
        self, item: TierItem, tier: int, below: frozenset[str], nodes: Callable[[str], int]
    ) -> tuple[Counter[str], str]:
        """The switches above an item (or names that stand for them), and the source.

        Each counts the nodes of the item's switches below it, since few nodes have a border switch.

        ``below`` are all switches of the same and lower tiers: a peer link is no uplink.
        """
        ups = Counter[str]()
        for source, known in self._by_switch:
            for switch in item.switches:
                for up in known.get(switch, ()):
                    if up not in below:
                        ups[up] += nodes(switch) or 1
            if ups:
                return ups, source
        for leaf in item.leaves if self._patterns else ():
            if name := self._group_name(tier, leaf):
                ups[name] += nodes(leaf) or 1
        return ups, PATTERN

    @property
    def are_known(self) -> bool:
        """Some source has uplinks."""
        return bool(self._by_switch or self._patterns)

    def of(self, switch: str) -> set[str]:
        """The switches above one, of all sources but the patterns."""
        return {up for _, known in self._by_switch for up in known.get(switch, ())}

    def below(self, switch: str) -> set[str]:
        """All switches below one, at any distance."""
        lower, found, todo = {each for _, known in self._by_switch for each in known}, set[str](), [switch]
        while todo:
            up = todo.pop()
            new = {each for each in lower - found if up in self.of(each)}
            found |= new
            todo += new
        return found

    def _group_name(self, tier: int, leaf: str) -> str:
        """Patterns match a name as it is announced, in lower case, or without its domain."""
        group = f"tier{tier}"
        for pattern in self._patterns:
            if group not in pattern.groupindex:
                continue
            for name in self._announced.get(leaf, ()):
                for form in (name, name.lower()):
                    if (match := pattern.search(form)) and match[group]:
                        return match[group].lower()
            if (match := pattern.search(leaf)) and match[group]:
                return match[group]
        return ""


class UpperTiers:
    """The tiers spine and core: ``objects`` by name, and the ``parent`` of each HyperNode below.

    ``placements`` are for the next plan, by level of uplinks. ``active`` are those of the tiers that are not left out.
    """

    def __init__(
        self,
        rules: FabricRules,
        topology: Topology,
        leaves: Mapping[str, frozenset[str]],
        cables: Mapping[str, tuple[str, ...]],
        uplinks: Mapping[str, tuple[str, ...]],
        announced: Mapping[str, tuple[str, ...]],
        published: PublishedTree,
        is_taken: Callable[[str], bool],
        before: Mapping[int, Placement],
        now: float,
        nodes: Callable[[str], int],
    ) -> None:
        """``leaves`` are the leaf groups with their switches, ``cables`` the uplinks from the file of InfiniBand.
        ``announced`` are the names of switches that reports mention. ``before`` are the last plan's ``placements``.
        ``nodes`` counts the nodes that report a switch. One alone may name a spine, which is above the others
        nevertheless, and switches below other spines, which count only in a group that has no others.
        """
        self._rules, self._published, self._is_taken, self._now = rules, published, is_taken, now
        self._nodes = nodes
        self.uplinks = UplinkSources(rules, topology, cables, uplinks, announced)
        self._announced = announced
        self._before = before
        self.objects: dict[str, HyperNode] = {}
        self.parent: dict[str, str] = {}
        self.placements: dict[int, Placement] = {}
        self.active: list[Placement] = []
        self._build({name: TierItem(switches, switches) for name, switches in leaves.items()})

    @property
    def breaker(self) -> Breaker | None:
        breakers = (placement.breaker for placement in self.active)
        return next((breaker for breaker in breakers if breaker is not None), None)

    def _build(self, items: dict[str, TierItem]) -> None:
        below = frozenset(switch for item in items.values() for switch in item.switches)
        if self.uplinks.are_known and (
            alone := frozenset(switch for switch in below if self._nodes(switch) == 1)
        ):
            below -= alone & set().union(*map(self.uplinks.of, below - alone))
            confirmed = {name: (item.switches - alone) or item.switches for name, item in items.items()}
            items = {name: TierItem(switches, switches) for name, switches in confirmed.items()}
        tier, kept = LEAF + 1, False
        known: set[str] = set()
        for level in range(LEAF + 1, len(TIER_NAMES)):
            groups = self._groups(items, level, below)
            silent = frozenset(
                name for name, item in items.items() if self._announced.keys().isdisjoint(item.leaves)
            )
            step = _Tier(self._rules, tier, self._published, self._is_taken, frozenset(known), silent)
            kept = kept or (not groups and step.keeps_any(items))
            asserted = not groups and not kept and self._rules.tiers.assume_full_bisection and len(items) > 1
            if asserted:
                groups = [_UpperGroup(frozenset(), frozenset(items), ASSERTED)]
            placement = Placement()
            if step.joins(items, groups):
                before = self._before.get(level, Placement())
                placement = step.place(items, groups, before, self._now, asserted=asserted)
                # Kept for a tier that is left out too: until that is written, its moves must not wait again.
                self.placements[level] = placement
            children = _invert(placement.place)
            if all(len(names) < 2 for names in children.values()):
                items = _pass_through(items, groups)
                known.update(*(group.members for group in groups))
                continue
            self.active.append(placement)
            items = self._raise(items, children, step, tier)
            below |= frozenset(switch for item in items.values() for switch in item.switches)
            tier += 1
            if asserted or len(items) < 2:
                break

    def _groups(self, items: Mapping[str, TierItem], tier: int, below: frozenset[str]) -> list[_UpperGroup]:
        """The items that belong together according to their uplinks."""
        ups = {name: self.uplinks.above(item, tier, below, self._nodes) for name, item in items.items()}
        graph = SwitchGraph()
        for switches, _ in ups.values():
            graph.add(tuple(sorted(switches)), 1)
        graph.form_groups()
        members: dict[SwitchGroup, list[str]] = {}
        for name, (switches, _) in ups.items():
            votes = Counter[SwitchGroup]()
            for switch, count in switches.items():
                votes[graph.of[switch]] += count
            best = best_of(votes, graph.weight)
            if best is not None:
                members.setdefault(best, []).append(name)
        trust = (FILE, CABLES, LLDP, PATTERN)
        return [
            _UpperGroup(
                frozenset(group.leaves),
                frozenset(names),
                min((ups[name][1] for name in names), key=trust.index),
            )
            for group, names in members.items()
        ]

    def _raise(
        self, items: Mapping[str, TierItem], children: Mapping[str, list[str]], step: _Tier, tier: int
    ) -> dict[str, TierItem]:
        """Make the objects of a tier. The result is the items of the next tier: these, and all without a parent."""
        placed = {child for names in children.values() for child in names}
        raised = {name: item for name, item in items.items() if name not in placed}
        for name, names in children.items():
            self.parent.update(dict.fromkeys(names, name))
            self.objects[name] = HyperNode(
                name=name,
                tier=tier + self._rules.tier_offset,
                tier_name=tier_name(tier),
                children=tuple(sorted(names)),
                labels=labels_of(self._rules.fabric, tier),
                annotations=((DERIVED_FROM, step.source(name)),),
            )
            raised[name] = TierItem(
                step.switches(name), frozenset().union(*(items[child].leaves for child in names))
            )
        return raised


class _Tier:
    """One tier while it is built: the names of its groups, and the places of its children."""

    def __init__(
        self,
        rules: FabricRules,
        tier: int,
        published: PublishedTree,
        is_taken: Callable[[str], bool],
        known: frozenset[str],
        silent: frozenset[str],
    ) -> None:
        """``known`` are items with uplinks of a lower level, which did not join them. ``silent`` are those whose leaf
        switches no report mentions."""
        self._rules, self._tier = rules, tier
        self._published = published.objects
        self._members = published.tiers[tier]
        self._is_taken, self._known, self._silent = is_taken, known, silent
        self._group: dict[str, _UpperGroup] = {}

    def joins(self, items: Mapping[str, TierItem], groups: list[_UpperGroup]) -> bool:
        """The tier joins some items, or keeps items whose uplinks are no longer reported."""
        known = frozenset[str]().union(*(group.members for group in groups))
        return any(len(group.members) > 1 for group in groups) or any(
            item not in known and self._keeps(item) for item in items
        )

    def keeps_any(self, items: Mapping[str, TierItem]) -> bool:
        """Some item was joined by LLDP, and its uplinks are not reported now. Then one group must not be asserted."""
        return any(map(self._keeps, items))

    def source(self, name: str) -> str:
        if name in self._group:
            return self._group[name].source
        return self._published[name].note(DERIVED_FROM)

    def switches(self, name: str) -> frozenset[str]:
        return self._group[name].switches if name in self._group else frozenset()

    def place(
        self,
        items: Mapping[str, TierItem],
        groups: list[_UpperGroup],
        before: Placement,
        now: float,
        *,
        asserted: bool,
    ) -> Placement:
        """Name the groups and place the items in them."""
        claims = {group: member_claims(group.members, self._members.placed) for group in groups}
        matched = match_names(claims, lambda group: group.anchor or min(group.members))
        targets: dict[str, str] = {}
        for group in sorted(groups, key=lambda group: (group.anchor, min(group.members))):
            anchor = self._rules.fabric if len(groups) == 1 else group.anchor
            name = matched.get(group) or free_name(
                self._rules.fabric,
                self._tier + self._rules.tier_offset,
                anchor,
                lambda name: self._is_taken(name) or name in self._group,
            )
            self._group[name] = group
            targets.update(dict.fromkeys(group.members, name))
        desired = {item: targets.get(item) for item in items if item in targets or self._keeps(item)}
        return place(before, self._members, desired, (), self._rules.hysteresis, now, at_once=asserted)

    def _keeps(self, item: str) -> bool:
        """The item stays where uplinks from LLDP have put it, as long as nothing else is known. So does one where
        names have put it, while its leaf switches are in no report: names with their domain are in reports alone."""
        here = self._members.placed.get(item)
        if here is None or item in self._known:
            return False
        source = self._published[here].note(DERIVED_FROM)
        named = bool(self._rules.tiers.name_patterns) and item in self._silent
        return source == LLDP or (source == PATTERN and named)


def _invert(places: Mapping[str, str]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {}
    for item, name in places.items():
        children.setdefault(name, []).append(item)
    return children


def _pass_through(items: Mapping[str, TierItem], groups: list[_UpperGroup]) -> dict[str, TierItem]:
    """Leave a tier out: the switches above an item become its own."""
    above = {member: group.switches for group in groups for member in group.members}
    return {name: TierItem(above.get(name, item.switches), item.leaves) for name, item in items.items()}
