"""Tier-1 objects: who is in them, and what is written on them.

The law of this file: what is written on an object may grow by what is heard and shrinks only when nothing is
missing: a switch that nobody mentions stays listed as long as some member has a link that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.fabric.anomalies import Cabling
from nodeagent.fabric.evidence import Evidence
from nodeagent.fabric.groups import Group
from nodeagent.fabric.hypernode import (
    ALIASES,
    BYTES_MAX,
    RAILS,
    SWITCHES,
    HyperNode,
    Texts,
    labels_of,
    size_of,
    tier_name,
)
from nodeagent.fabric.names import short
from nodeagent.fabric.settle import Seating


class Leaves:
    """Makes the objects of tier 1. ``trimmed`` are the nodes for which an object has no room."""

    def __init__(self, fabric: str, evidence: Evidence, cabling: Cabling, seating: Seating) -> None:
        self._labels = labels_of(fabric, 1)
        self._evidence = evidence
        self._cabling = cabling
        self._seating = seating
        self.trimmed: dict[str, tuple[str, ...]] = {}

    def make(self, name: str, group: Group | None, old: HyperNode | None) -> HyperNode | None:
        """The object as it should be; ``None`` for one that should not be. ``old`` is the published one."""
        members = self._seating.members.get(name)
        self.trimmed.pop(name, None)
        if not members:
            return None
        nodes = self._fit(name, members, old)
        return HyperNode(
            name=name,
            tier=1,
            tier_name=tier_name(1),
            nodes=nodes,
            labels=self._labels,
            annotations=self._annotations(group, old, members),
        )

    def switches(self, group: Group) -> set[str]:
        """A group's switches, those among them that too few of its nodes are heard at."""
        return set(group.leaves) | self._cabling.adoptees.get(group, set())

    def _fit(self, name: str, members: set[str], old: HyperNode | None) -> tuple[str, ...]:
        """As many as etcd takes in one object, those first that are in it already."""
        if old is not None and len(old.nodes) == len(members) and members.issuperset(old.nodes):
            return old.nodes
        nodes = tuple(sorted(members))
        if size_of(nodes) <= BYTES_MAX:
            return nodes
        published = set(() if old is None else old.nodes) & members
        room = BYTES_MAX
        kept: set[str] = set()
        for node in (*sorted(published), *sorted(members - published)):
            room -= size_of((node,), 0)
            if room < size_of(()):
                break
            kept.add(node)
        self.trimmed[name] = tuple(sorted(members - kept))
        return tuple(sorted(kept))

    def _annotations(self, group: Group | None, old: HyperNode | None, members: set[str]) -> Texts:
        if group is None:
            return () if old is None else old.annotations
        switches = self.switches(group)
        rails = len(self._cabling.rails(group))
        if old is not None:
            lost = [
                switch for switch in old.switches if switch not in switches and not self._elsewhere(switch)
            ]
            before = old.note(RAILS)
            fewer = before.isdecimal() and int(before) > max(rails, 1)
            if (lost or fewer) and self._silent(members):
                switches.update(lost)
                rails = max(rails, int(before)) if fewer else rails
        found = {ALIASES: ",".join(self._aliases(switches, old)), SWITCHES: ",".join(sorted(switches))}
        if rails > 1:
            found[RAILS] = str(rails)
        return tuple(sorted((key, text) for key, text in found.items() if text))

    def _elsewhere(self, switch: str) -> bool:
        """It is heard, and counted to some group of today."""
        group = self._cabling.home(switch)
        return group is not None and bool(group.voters or group.forced)

    def _silent(self, members: Iterable[str]) -> bool:
        wirings = map(self._evidence.wiring, members)
        return any(wiring is None or wiring.silent for wiring in wirings)

    def _aliases(self, switches: set[str], old: HyperNode | None) -> list[str]:
        directory = self._evidence.directory
        known = parse_aliases(old)
        found = {name: key for name, key in known.items() if not directory.announced(name)}
        found.update(directory.renamed)
        return sorted(f"{name}={key}" for name, key in found.items() if key in switches)


def parse_aliases(hypernode: HyperNode | None) -> dict[str, str]:
    """Name → key, as an object remembers it."""
    text = "" if hypernode is None else hypernode.note(ALIASES)
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {short(name): key for name, _, key in pairs if name and key}


def label_chains(
    parent: Mapping[str, str],
    uppers: Mapping[str, HyperNode],
    names: Iterable[str],
    fabric: str,
    templates: tuple[str, ...],
) -> dict[str, Texts]:
    """What each tier-1 object's nodes are labeled with, by its name."""

    def labels(name: str, tier: int) -> Texts:
        return tuple((label_key(one, tier, fabric), name) for one in templates)

    above: dict[str | None, Texts] = {None: ()}
    for name, upper in sorted(uppers.items(), key=lambda one: -one[1].tier):
        above[name] = (*labels(name, upper.tier), *above[parent.get(name)])
    return {name: tuple(sorted((*labels(name, 1), *above[parent.get(name)]))) for name in names}


def label_key(template: str, tier: int, fabric: str) -> str:
    return (
        template.replace("{tierName}", tier_name(tier))
        .replace("{tier}", str(tier))
        .replace("{fabric}", fabric)
    )
