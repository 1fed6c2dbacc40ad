"""Cabling anomalies, by node and by switch.

* The rail of a switch is the rail of at least three of four of its links. Without such a majority the switch has no
  rail.
* A link is compared with the group that its node's links vote for, wherever the node is published.
* A link whose LLDP information has expired names no cable, and its rail is not missing.

docs/topology.md describes each kind of anomaly and what to do about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeagent.fabric.desired_places import group_of
from nodeagent.fabric.groups import CablingPattern, SwitchGroup
from nodeagent.fabric.naming import GroupNames
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import CompactReport, shown
from nodeagent.fabric.votes import LinkVotes

LinkPlace = tuple[CablingPattern, int]
"""A pattern, and the position of a link in its shape."""


class CablingCheck:
    """``rail`` is the rail of each switch that has one. ``adopted`` is the group of each switch whose own group has
    no nodes. ``anomalies`` are those of nodes, links and groups.
    """

    def __init__(self, votes: LinkVotes, names: GroupNames, placed: Mapping[str, str]) -> None:
        self._votes = votes
        self.rail: dict[str, str] = {}
        self.adopted: dict[str, SwitchGroup] = {}
        self._adoptees: dict[SwitchGroup, set[str]] = {}
        self._rails: dict[SwitchGroup, frozenset[str]] = {}
        self.anomalies: list[Anomaly] = []
        self._check_switches()
        for pattern in votes.patterns:
            self._check_pattern(pattern, names, placed)
        for group in votes.groups:
            self.anomalies += self._undecidable(group)

    def home(self, leaf: str) -> SwitchGroup | None:
        """The group that a switch counts for."""
        return self.adopted.get(leaf) or self._votes.graph.of.get(leaf)

    def switches(self, group: SwitchGroup) -> set[str]:
        """The switches of a group, including those that it has adopted."""
        return self._adoptees.get(group, set()).union(group.leaves)

    def rails(self, group: SwitchGroup) -> frozenset[str]:
        """The known rails of a group's switches."""
        if (rails := self._rails.get(group)) is None:
            rails = frozenset([self.rail[leaf] for leaf in group.leaves if leaf in self.rail])
            self._rails[group] = rails
        return rails

    def _check_switches(self) -> None:
        of = self._votes.graph.of
        columns: dict[CablingPattern, list[tuple[str, ...]]] = {}
        for pattern in self._votes.patterns:
            columns[pattern] = list(zip(*[report.ports for report in pattern.nodes.values()], strict=True))
        for leaf, group in of.items():
            places = self._places(leaf)
            if (rail := _rail(places)) is not None:
                self.rail[leaf] = rail
            if not group.voters and not group.forced and (home := self._adopter(leaf)) is not None:
                self.adopted[leaf] = home
                self._adoptees.setdefault(home, set()).add(leaf)
            pattern, i = places[0]
            ports = columns[pattern][i]
            for pattern, i in places[1:]:
                ports += columns[pattern][i]
            if len(set(ports)) != len(ports):
                self.anomalies += _shared_ports(leaf, places)

    def _places(self, leaf: str) -> Sequence[LinkPlace]:
        """The links to a switch."""
        patterns = self._votes.at(leaf)
        if len(patterns) == 1 and len(patterns[0].leaves) == len(patterns[0].keys):
            return [(patterns[0], patterns[0].keys.index(leaf))]
        return [(pattern, i) for pattern in patterns for i, key in enumerate(pattern.keys) if key == leaf]

    def _adopter(self, leaf: str) -> SwitchGroup | None:
        """The group of most nodes with a link to this switch."""
        weights: Counter[SwitchGroup] = Counter()
        for pattern in self._votes.at(leaf):
            if pattern.best is not None:
                weights[pattern.best] += len(pattern.nodes)
        most = max(weights.values(), default=0)
        return min(
            (group for group in weights if weights[group] == most),
            key=lambda group: group.anchor,
            default=None,
        )

    def _check_pattern(self, pattern: CablingPattern, names: GroupNames, placed: Mapping[str, str]) -> None:
        best = pattern.best
        if best is None:
            return
        regular = self._is_regular(pattern, best)
        for node, report in pattern.nodes.items():
            if not regular or report.miscabled:
                group = group_of(node, pattern, placed, names) or best
                self.anomalies += self._of_node(node, report, pattern, group)

    def _is_regular(self, pattern: CablingPattern, group: SwitchGroup) -> bool:
        """All links go to the switch of their rail in this group, and every rail of the group has a link."""
        rail = self.rail
        for key, slot in zip(pattern.keys, pattern.shape, strict=True):
            if not key or self.home(key) is not group or rail.get(key, slot.rail) != slot.rail:
                return False
        return self.rails(group) <= {rail.get(key) for key in pattern.keys}

    def _of_node(
        self, node: str, report: CompactReport, pattern: CablingPattern, group: SwitchGroup
    ) -> Iterator[Anomaly]:
        served = {self.rail[key]: key for key in group.leaves if key in self.rail}
        wrong_rails: list[tuple[str, str]] = []
        explained: set[str] = set()
        for i, slot in enumerate(pattern.shape):
            key, link = pattern.keys[i], shown(slot.link)
            home = self.home(key) if key else None
            rail = self.rail.get(key, slot.rail)
            if key and home is not None and home is not group:
                explained.add(slot.rail)
                message = (
                    f"{link} of {node} is cabled to {key}, a switch of another leaf group ({home.anchor}): move this "
                    f"cable to {served.get(slot.rail, 'a switch of its own group')}, or the node's other cables to "
                    "that group"
                )
                yield Anomaly(AnomalyKind.FOREIGN_LEAF, node, link, key, message)
            elif key and rail != slot.rail:
                wrong_rails.append((slot.rail, rail))
            elif report.miscabled >> i & 1:
                message = f"{node} itself reports {link} as miscabled, at {key or 'no switch'}"
                yield Anomaly(AnomalyKind.MISCABLED, node, link, key, message)
        yield from self._wrong_rails(node, pattern, served, wrong_rails, explained)
        if len(served) < 2:
            return
        reached = {self.rail.get(key) for key in pattern.keys if key}
        reached.update(slot.rail for i, slot in enumerate(pattern.shape) if report.stale >> i & 1)
        links = {slot.rail: slot.link for slot in pattern.shape}
        for rail in sorted(served.keys() - reached - explained):
            message = (
                f"{node} reports no link to {served[rail]}, the switch of rail {shown(rail)} in its group: check the "
                "link, its cable, and LLDP on the port"
            )
            yield Anomaly(AnomalyKind.MISSING_RAIL, node, shown(links.get(rail, "")), served[rail], message)

    def _wrong_rails(
        self,
        node: str,
        pattern: CablingPattern,
        served: Mapping[str, str],
        wrong_rails: Sequence[tuple[str, str]],
        explained: set[str],
    ) -> Iterator[Anomaly]:
        """Links to the switch of another rail. Adds their rails to ``explained``."""
        meant, actual = {rail for rail, _ in wrong_rails}, {rail for _, rail in wrong_rails}
        for i, slot in enumerate(pattern.shape):
            key, link = pattern.keys[i], shown(slot.link)
            rail = self.rail.get(key, slot.rail)
            if not key or (slot.rail, rail) not in wrong_rails or slot.rail in explained:
                continue
            explained.add(slot.rail)
            if rail in meant and slot.rail in actual:
                message = (
                    f"{link} of {node} is cabled to {key}, the switch of rail {shown(rail)}: swap it with the cable of "
                    "that rail"
                )
                yield Anomaly(AnomalyKind.RAIL_SWAP, node, link, key, message)
            else:
                should = served.get(slot.rail, "the switch of its rail")
                message = f"{link} of {node} is cabled to {key}, which serves rail {shown(rail)}: move it to {should}"
                yield Anomaly(AnomalyKind.MISCABLED, node, link, key, message)

    def _undecidable(self, group: SwitchGroup) -> Iterator[Anomaly]:
        """A group that falls into several parts, each with nodes, if exactly half is no majority."""
        if not group.tied:
            return
        parts: list[frozenset[str]] = []
        covered: set[str] = set()
        for leaf in group.leaves:
            if leaf not in covered:
                parts.append(frozenset(self._votes.graph.reach(leaf, strictly=True)[0]))
                covered |= parts[-1]
        inhabited = sorted(min(part) for part in parts if _has_nodes(part, group.voters))
        if len(inhabited) > 1:
            message = (
                f"the switches around {' and '.join(inhabited[:3])} may be one group or {len(inhabited)}: too few "
                "nodes are cabled to decide; define the groups in the topology file"
            )
            yield Anomaly(AnomalyKind.UNDECIDABLE, "", "", group.anchor, message)


def _has_nodes(part: frozenset[str], voters: Iterable[CablingPattern]) -> bool:
    """The nodes of some pattern have most of their links with a neighbor in this part."""
    return any(
        2 * sum(key in part for key in pattern.keys) > len(pattern.keys) - pattern.links_without_neighbor
        for pattern in voters
    )


def _rail(places: Sequence[LinkPlace]) -> str | None:
    """The rail of at least three of four links."""
    if len(places) == 1:
        pattern, i = places[0]
        return pattern.shape[i].rail
    counts: dict[str, int] = {}
    for pattern, i in places:
        rail = pattern.shape[i].rail
        counts[rail] = counts.get(rail, 0) + len(pattern.nodes)
    rail, most = max(counts.items(), key=lambda item: item[1])
    return rail if most >= 3 * (sum(counts.values()) - most) else None


def _shared_ports(leaf: str, places: Iterable[LinkPlace]) -> Iterator[Anomaly]:
    """Switch ports that several nodes report at present."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for pattern, i in places:
        for node, report in pattern.nodes.items():
            if not report.stale >> i & 1:
                claims.setdefault(report.ports[i], []).append((node, pattern.shape[i].link))
    for port, claimants in sorted(claims.items()):
        nodes = sorted({node for node, _ in claimants})
        if len(nodes) < 2:
            continue
        for node, link in sorted(claimants):
            others = ", ".join(other for other in nodes if other != node)
            message = (
                f"{node} and {shown(others)} report the same port {shown(port)} of {leaf}: a device between them "
                "forwards LLDP, or two switches share a name"
            )
            yield Anomaly(AnomalyKind.SHARED_PORT, node, shown(link), leaf, message)
