"""What is odd about the cabling, by node and by switch.

The law of this file: the rail of a switch is the one that at least three of four of its links belong to; where
there is no such majority nothing is said about rails. A link is judged against the group that its node is
counted in, not against where the node is published. What a kind means and what to do about it is in
docs/topology.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from nodeagent.fabric.evidence import Evidence
from nodeagent.fabric.groups import Group
from nodeagent.fabric.outcome import Anomaly, Kind
from nodeagent.fabric.reports import Report, shown
from nodeagent.fabric.wiring import Wiring

V = TypeVar("V")
Place = tuple[Wiring, int]


class Cabling:
    """What each switch is for: its rail, the group it is counted to, the ports that several nodes claim."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.rail: dict[str, str] = {}
        self.adopted: dict[str, Group] = {}
        self.adoptees: dict[Group, set[str]] = {}
        self.lost: set[Group] = set()
        """Groups that a switch is no more counted to, until somebody takes it."""
        self.shared: dict[str, tuple[Anomaly, ...]] = {}

    def look(self, leaves: Iterable[str]) -> set[str]:
        """Look at switches again; those whose rail or group is another than before."""
        changed: set[str] = set()
        columns: dict[Wiring, tuple[tuple[str, ...], ...]] = {}
        of, rails, shared, adopted = self._evidence.graph.of, self.rail, self.shared, self.adopted
        for leaf in sorted(leaves):  # neighbors in memory, mostly
            places = self._places(leaf)
            rail = places[0][0].shape[places[0][1]].rail if len(places) == 1 else _rail(places)
            if rail != rails.get(leaf):
                changed.add(leaf)
                _set(rails, leaf, rail)
            if leaf in adopted or ((group := of.get(leaf)) is not None and not group.voters):
                self._adopt(leaf, changed)
            ports: tuple[str, ...] = ()
            for wiring, i in places:
                if (column := columns.get(wiring)) is None:
                    column = tuple(zip(*[one.ports for one in wiring.nodes.values()], strict=True))
                    columns[wiring] = column
                ports = ports + column[i] if ports else column[i]
            if len(set(ports)) != len(ports) and (claims := tuple(_shared(leaf, places))):
                shared[leaf] = claims
            else:
                shared.pop(leaf, None)
        return changed

    def _places(self, leaf: str) -> list[Place]:
        """The links to a switch, by wiring and place."""
        wirings = self._evidence.wirings(leaf)
        if len(wirings) == 1:
            (wiring,) = wirings
            if len(wiring.leaves) == len(wiring.keys):
                return [(wiring, wiring.keys.index(leaf))]
        return [(wiring, i) for wiring in wirings for i, key in enumerate(wiring.keys) if key == leaf]

    def _adopt(self, leaf: str, changed: set[str]) -> None:
        before, group = self.adopted.get(leaf), self._adopter(leaf)
        if group is before:
            return
        changed.add(leaf)
        _set(self.adopted, leaf, group)
        if before is not None:
            self.lost.add(before)
            self.adoptees[before].discard(leaf)
            if not self.adoptees[before]:
                del self.adoptees[before]
        if group is not None:
            self.adoptees.setdefault(group, set()).add(leaf)

    def home(self, leaf: str) -> Group | None:
        """The group that a switch is counted to."""
        return self.adopted.get(leaf) or self._evidence.graph.of.get(leaf)

    def rails(self, group: Group) -> frozenset[str]:
        """The rails of a group's switches, as far as they are known."""
        return frozenset(self.rail[leaf] for leaf in group.leaves if leaf in self.rail)

    def _adopter(self, leaf: str) -> Group | None:
        """A switch that no group of nodes is around is counted to where most of its nodes are."""
        group = self._evidence.graph.of.get(leaf)
        if group is None or group.voters or group.forced:
            return None
        weights: Counter[Group] = Counter()
        for wiring in self._evidence.wirings(leaf):
            if wiring.best is not None:
                weights[wiring.best] += len(wiring.nodes)
        most = max(weights.values(), default=0)
        return min((one for one in weights if weights[one] == most), key=lambda one: one.anchor, default=None)

    def plain(self, wiring: Wiring, group: Group) -> bool:
        """Nothing is odd about the way in which these nodes are cabled."""
        of, adopted, rail = self._evidence.graph.of, self.adopted, self.rail
        for key, slot in zip(wiring.keys, wiring.shape, strict=True):
            if (
                not key
                or (adopted.get(key) or of.get(key)) is not group
                or rail.get(key, slot.rail) != slot.rail
            ):
                return False
        return True

    def oddities(self, node: str, report: Report, wiring: Wiring, group: Group) -> Iterator[Anomaly]:
        """Of one node, link by link."""
        served = {self.rail[key]: key for key in group.leaves if key in self.rail}
        astray: list[tuple[str, str]] = []
        excused: set[str] = set()
        for i, slot in enumerate(wiring.shape):
            key, link = wiring.keys[i], shown(slot.link)
            home = self.home(key) if key else None
            rail = self.rail.get(key, slot.rail)
            if key and home is not None and home is not group:
                excused.add(slot.rail)
                message = (
                    f"{link} of {node} goes to {key}, a switch of another group ({home.anchor}): move the cable to "
                    f"{served.get(slot.rail, 'a switch of its own group')}, or the node's other links after it"
                )
                yield Anomaly(Kind.FOREIGN_LEAF, node, link, key, message)
            elif key and rail != slot.rail:
                astray.append((slot.rail, rail))
            elif report.miscabled >> i & 1:
                message = (
                    f"{link} of {node} is reported miscabled by the node itself, at {key or 'no switch'}"
                )
                yield Anomaly(Kind.MISCABLED, node, link, key, message)
        meant, found = {rail for rail, _ in astray}, {rail for _, rail in astray}
        for i, slot in enumerate(wiring.shape):
            key, link = wiring.keys[i], shown(slot.link)
            if not key or (slot.rail, self.rail.get(key, slot.rail)) not in astray or slot.rail in excused:
                continue
            rail = self.rail[key]
            should = served.get(slot.rail, "the switch of its rail")
            excused.add(slot.rail)
            if rail in meant and slot.rail in found:
                message = f"{link} of {node} goes to {key}, the switch of rail {shown(rail)}: exchange it with that one"
                yield Anomaly(Kind.RAIL_SWAP, node, link, key, message)
            else:
                message = f"{link} of {node} goes to {key}, which serves rail {shown(rail)}: move the cable to {should}"
                yield Anomaly(Kind.MISCABLED, node, link, key, message)
        if len(served) < 2:
            return
        there = {self.rail.get(key) for key in wiring.keys if key}
        names = {slot.rail: slot.link for slot in wiring.shape}
        for rail in sorted(served.keys() - there - excused):
            message = (
                f"{node} is not heard at {served[rail]}, the switch of rail {shown(rail)} in its group: check the "
                "link, its cable, and LLDP on the port"
            )
            yield Anomaly(Kind.MISSING_RAIL, node, shown(names.get(rail, "")), served[rail], message)

    def undecidable(self, group: Group) -> Iterator[Anomaly]:
        """A group that falls into several, each with nodes, where half is not taken for a majority."""
        if not group.tied:
            return
        graph, parts, seen = self._evidence.graph, [], set[str]()
        for leaf in group.leaves:
            if leaf not in seen:
                leaves, _ = graph.reach(leaf, strictly=True)
                seen.update(leaves)
                parts.append(frozenset(leaves))
        inhabited = [
            min(part)
            for part in parts
            if any(
                sum(key in part for key in wiring.keys) * 2 > len(wiring.keys) - wiring.silent
                for wiring in group.voters
            )
        ]
        if len(inhabited) > 1:
            message = (
                f"the switches around {' and '.join(sorted(inhabited)[:3])} may be one group or {len(inhabited)}: the "
                "cables of too few nodes tell; say it in the topology file"
            )
            yield Anomaly(Kind.UNDECIDABLE, "", "", group.anchor, message)


def _rail(places: list[Place]) -> str | None:
    if len(places) == 1:
        wiring, i = places[0]
        return wiring.shape[i].rail
    counts: dict[str, int] = {}
    for wiring, i in places:
        rail = wiring.shape[i].rail
        counts[rail] = counts.get(rail, 0) + len(wiring.nodes)
    if len(counts) == 1:
        return next(iter(counts))
    most = max(counts.values(), default=0)
    # At least three to one, or the switch has no rail.
    if not counts or most < 3 * (sum(counts.values()) - most):
        return None
    return next(rail for rail, count in counts.items() if count == most)


def _shared(leaf: str, places: list[Place]) -> Iterator[Anomaly]:
    """Ports that several nodes hear at present."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for wiring, i in places:
        for node, report in wiring.nodes.items():
            if not report.stale >> i & 1:
                claims.setdefault(report.ports[i], []).append((node, wiring.shape[i].link))
    for port, claimants in sorted(claims.items()):
        nodes = sorted({node for node, _ in claimants})
        if len(nodes) < 2:
            continue
        for node, link in sorted(claimants):
            others = ", ".join(other for other in nodes if other != node)
            message = (
                f"{node} and {shown(others)} hear the same port {shown(port)} of {leaf}: something between them "
                "forwards LLDP, or two switches have one name"
            )
            yield Anomaly(Kind.SHARED_PORT, node, shown(link), leaf, message)


def _set(table: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
