"""The objects of leaf groups: their nodes, their NVLink domains, and their annotations.

Annotations gain every switch of the group that two of the nodes report; one is enough in a group of two. A switch that
left the group stays listed while a node of the object has a link without a neighbor, unless it is foreign or another
object has more nodes at it. Which object has more nodes follows from the reports and from where nodes are, and not from
what is listed: listed switches join groups, so a list that followed from the groups might go on changing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from nodeagent.fabric.anomalies import CablingCheck
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.groups import SwitchGroup
from nodeagent.fabric.hypernode import (
    ALIASES_ANNOTATION,
    BYTES_MAX,
    LEAF,
    RAILS,
    SWITCHES,
    HyperNode,
    Texts,
    labels_of,
    size_of,
    tier_name,
)
from nodeagent.fabric.naming import GroupNames
from nodeagent.fabric.nvlink_tier import NvlinkTier
from nodeagent.fabric.published import parse_aliases
from nodeagent.fabric.votes import LinkVotes

CONFIRMED_FROM = 3
"""A group of so many nodes lists a switch when two of them report it: one may say anything."""


class LeafObjects:
    """``objects`` by name; ``trimmed`` are the nodes that an object has no room for."""

    def __init__(
        self,
        rules: FabricRules,
        votes: LinkVotes,
        cabling: CablingCheck,
        names: GroupNames,
        place: Mapping[str, str],
        nvlink: NvlinkTier,
        published: Mapping[str, HyperNode],
    ) -> None:
        self._labels, self._tier = labels_of(rules.fabric, LEAF), LEAF + rules.tier_offset
        self._votes, self._cabling, self._place = votes, cabling, place
        self._renamed: dict[str, list[str]] = {}
        for current, key in votes.names.renamed.items():
            self._renamed.setdefault(key, []).append(current)
        self.objects: dict[str, HyperNode] = {}
        self.trimmed: dict[str, tuple[str, ...]] = {}
        children: dict[str, list[str]] = {}
        for domain, leaf in nvlink.parent.items():
            children.setdefault(leaf, []).append(domain)
        for name, members in sorted(_members(place).items()):
            domains = tuple(sorted(children.get(name, ())))
            old = published.get(name)
            own = members - nvlink.of.keys() if nvlink.of else members
            self.objects[name] = HyperNode(
                name=name,
                tier=self._tier,
                tier_name=tier_name(LEAF),
                nodes=self._fit(name, own, domains, old),
                children=domains,
                labels=self._labels,
                annotations=self._annotations(name, names.groups.get(name), old, members),
            )

    def _fit(
        self, name: str, members: set[str], domains: tuple[str, ...], old: HyperNode | None
    ) -> tuple[str, ...]:
        """As many nodes as fit beside the domains into an object in etcd; nodes that are published in it come first."""
        if old is not None and len(old.nodes) == len(members) and members.issuperset(old.nodes):
            return old.nodes
        nodes = tuple(sorted(members))
        if size_of((*nodes, *domains)) <= BYTES_MAX:
            return nodes
        published = members.intersection(() if old is None else old.nodes)
        room = BYTES_MAX
        kept: set[str] = set()
        for node in (*sorted(published), *sorted(members - published)):
            room -= size_of((node,), 0)
            if room < size_of(domains):
                break
            kept.add(node)
        self.trimmed[name] = tuple(sorted(members - kept))
        return tuple(sorted(kept))

    def _annotations(
        self, name: str, group: SwitchGroup | None, old: HyperNode | None, members: set[str]
    ) -> Texts:
        if group is None:
            return () if old is None else old.annotations
        listed = () if old is None else old.switches
        switches = {
            leaf
            for leaf in self._cabling.switches(group)
            if leaf in listed or self._gains(leaf, name, members)
        }
        rails = len(self._cabling.rails(switches.intersection(group.leaves)))
        if old is not None:
            lost = [leaf for leaf in listed if leaf not in switches and not self._is_elsewhere(leaf, name)]
            before = old.note(RAILS)
            fewer = before.isdecimal() and int(before) > max(rails, 1)
            if (lost or fewer) and self._has_link_without_neighbor(members):
                switches.update(lost)
                rails = max(rails, int(before)) if fewer else rails
        texts = {
            ALIASES_ANNOTATION: ",".join(self._aliases(switches, old)),
            SWITCHES: ",".join(sorted(switches)),
        }
        if rails > 1:
            texts[RAILS] = str(rails)
        return tuple(sorted((key, text) for key, text in texts.items() if text))

    def _gains(self, leaf: str, name: str, members: Collection[str]) -> bool:
        """Whether the object lists a switch of its group that it did not list. With as many nodes at the switch in
        another object it does not: a list of it would be evidence against itself."""
        if leaf in self._votes.pairs.static:
            return True
        return self._is_confirmed(leaf, members) and not (
            self._votes.pairs.homes and self._is_elsewhere(leaf, name, tie=True)
        )

    def _is_confirmed(self, leaf: str, members: Collection[str]) -> bool:
        """Two of the members report the switch. One is enough among two."""
        if len(members) < CONFIRMED_FROM:
            return True
        found = 0
        for pattern in self._votes.at(leaf):
            for node in pattern.nodes:
                if node in members:
                    found += 1
                    if found > 1:
                        return True
        return False

    def _is_elsewhere(self, leaf: str, name: str, *, tie: bool = False) -> bool:
        """The switch is foreign, or another object has more nodes at it; with ``tie`` also as many."""
        if leaf in self._cabling.foreign:
            return True
        if leaf in self._votes.pairs.static:
            group = self._votes.of.get(leaf)
            return group is not None and bool(group.voters or group.forced)
        nodes = chain.from_iterable(pattern.nodes for pattern in self._votes.at(leaf))
        counts = Counter(self._place[node] for node in nodes if node in self._place)
        own = counts.pop(name, 0)
        most = max(counts.values(), default=0)
        return most > own or (tie and most == own > 0)

    def _has_link_without_neighbor(self, members: Iterable[str]) -> bool:
        patterns = map(self._votes.pattern, members)
        return any(pattern is None or pattern.links_without_neighbor for pattern in patterns)

    def _aliases(self, switches: set[str], old: HyperNode | None) -> list[str]:
        names = self._votes.names
        pairs = {
            name: key
            for name, key in parse_aliases(old).items()
            if key in switches and not names.is_announced(name)
        }
        for key in self._renamed.keys() & switches:
            pairs.update((name, key) for name in self._renamed[key])
        return sorted(f"{name}={key}" for name, key in pairs.items())


def _members(place: Mapping[str, str]) -> dict[str, set[str]]:
    members: defaultdict[str, set[str]] = defaultdict(set)
    for node, name in place.items():
        members[name].add(node)
    return members
