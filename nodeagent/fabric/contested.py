"""Links whose announcements contradict those of other nodes: which switch port is at the other end. Pure.

LLDP is not authenticated, and a link alone does not show which of two senders is its switch. What other nodes report
decides:

* A contested link has the neighbor that has sent for longer, and its contenders. One of these is the neighbor if it
  fits the fabric and the first one does not. A switch port fits if other nodes report the switch under this name, none
  of them this port, and some of them have another switch in common with the node, or the switch is published where the
  node is. For the first one expired links of published nodes count too: it may be the first to hear a switch again.
* A chassis ID keeps the name under which most nodes report it. One node gives it no other name, and no few nodes the
  name of a switch that more nodes report with another chassis ID. Of two names that one node gives it each, it keeps
  the one that is not another switch's. A node could otherwise join two units, or leave its own. Of a switch with an ID
  for each port, a node alone reports each; its name is the one that the IDs beside it have. Where a chassis ID is a
  factory default of several switches, each with two nodes or more, names decide (``switch_names``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.published import PublishedTree
from nodeagent.fabric.reports import CompactReport, LinkSlot, Shape, SwitchAnnouncement
from nodeagent.fabric.switch_keys import full_key, short
from nodeagent.fabric.switch_names import overlap

Named = tuple[str, str]
"""A chassis ID, and a system name that it is announced with: short, and empty if there is none."""


def settle(rules: FabricRules, levels: Levels, published: PublishedTree) -> Mapping[str, CompactReport]:
    """The reports, with the neighbors that fit the fabric. The same object if nothing contradicts."""
    reports = levels.reports
    shapes = {id(report.shape): report.shape for report in reports.values()}
    generic = frozenset(name.lower() for name in rules.generic_names)
    doubtful = _of_several_names(shapes.values(), generic)
    contested = {node: report for node, report in reports.items() if report.contenders}
    if not doubtful and not contested:
        return reports
    wanted = doubtful.keys() | {
        slot.neighbor.chassis
        for report in contested.values()
        for slot in (*report.shape, *(slot for _, slot, _ in report.contenders))
        if slot.neighbor is not None
    }
    evidence = _Evidence(levels, published, generic, wanted, set().union(*doubtful.values()))
    settled = {node: evidence.fitting(node, report) for node, report in contested.items()}
    lent = {
        named: owner for chassis in doubtful for named, owner in evidence.lent(chassis, doubtful[chassis])
    }
    lending = {key for key, shape in shapes.items() if any(_named(slot, generic) in lent for slot in shape)}
    for node, report in reports.items():
        if id(report.shape) in lending or node in settled:
            settled[node] = evidence.renamed(node, settled.get(node, report), lent)
    known = {shape: shape for shape in shapes.values()}
    same = {
        node: replace(report, shape=known.setdefault(report.shape, report.shape))
        for node, report in settled.items()
    }
    return {**reports, **same}


def _of_several_names(shapes: Collection[Shape], generic: Collection[str]) -> dict[str, set[str]]:
    """The chassis IDs that are announced with several names, and these."""
    first: dict[str, SwitchAnnouncement] = {}
    names: dict[str, set[str]] = {}
    for slot in (slot for shape in shapes for slot in shape):
        neighbor = slot.neighbor
        if neighbor is not None and first.setdefault(neighbor.chassis, neighbor).name != neighbor.name:
            names[neighbor.chassis] = set()
    for slot in (slot for shape in shapes for slot in shape) if names else ():
        chassis, name = _named(slot, generic)
        if name and chassis in names:
            names[chassis].add(name)
    return {chassis: several for chassis, several in names.items() if len(several) > 1}


def _named(slot: LinkSlot, generic: Collection[str]) -> Named:
    if slot.neighbor is None:
        return ("", "")
    whole = full_key(slot.neighbor.name)
    name = short(whole)
    return (slot.neighbor.chassis, "" if whole in generic or name in generic else name)


class _Evidence:
    """The nodes that report a switch, or one of its ports, on links whose information has not expired.

    ``claims`` has published nodes with an expired link too. A port on a contested link is no evidence.
    """

    def __init__(
        self,
        levels: Levels,
        published: PublishedTree,
        generic: Collection[str],
        chassis: Collection[str],
        names: Collection[str],
    ) -> None:
        self._generic = generic
        self._placed = published.tiers[LEAF].placed
        self._switches = published.switches.placed
        self.nodes: dict[Named, set[str]] = {}
        self.claims: dict[Named, set[str]] = {}
        self.at_port: dict[Named, set[str]] = {}
        """by chassis ID and port"""
        self.ports: dict[Named, set[str]] = {}
        self.of_chassis: dict[str, set[str]] = {}
        self.of_name: dict[str, set[Named]] = {}
        self.slots: dict[Named, LinkSlot] = {}
        places: dict[int, list[tuple[int, Named]]] = {}
        for node, report in levels.reports.items():
            key = id(report.shape)
            if key not in places:
                found = [(i, _named(slot, generic)) for i, slot in enumerate(report.shape)]
                places[key] = [(i, one) for i, one in found if one[0] in chassis or one[1] in names]
                self.slots.update((one, report.shape[i]) for i, one in places[key])
            if places[key] and levels.exists(node):
                self._add(node, report, places[key])
        for named in self.claims:
            self.of_name.setdefault(named[1], set()).add(named)

    def _add(self, node: str, report: CompactReport, places: list[tuple[int, Named]]) -> None:
        for i, named in places:
            port = report.ports[i]
            if self._counts(node, report, i):
                self.claims.setdefault(named, set()).add(node)
                self.ports.setdefault(named, set()).update({port} - {""})
            if i in report.stale:
                continue
            self.nodes.setdefault(named, set()).add(node)
            self.of_chassis.setdefault(named[0], set()).add(node)
            if port and i not in report.contested:
                self.at_port.setdefault((named[0], port), set()).add(node)

    def _counts(self, node: str, report: CompactReport, i: int) -> bool:
        """An expired link identifies a switch if its node is published, and is none otherwise, as for ``votes``."""
        return i not in report.stale or node in self._placed

    def fitting(self, node: str, report: CompactReport) -> CompactReport:
        """The report with those contenders that fit the fabric in the place of neighbors that do not."""
        sure = {
            slot.neighbor.chassis
            for i, slot in enumerate(report.shape)
            if slot.neighbor is not None and i not in report.contested and i not in report.stale
        }
        place = self._placed.get(node)

        def fits(slot: LinkSlot, port: str, reported: Mapping[Named, set[str]]) -> bool:
            named = _named(slot, self._generic)
            others = reported.get(named, set()) - {node}
            near = set().union(*(self.of_chassis.get(chassis, ()) for chassis in sure - {named[0]}))
            is_here = place is not None and self._switches.get(named[1]) == place
            return (
                bool(others)
                and not self.at_port.get((named[0], port), set()) - {node}
                and (is_here or not near.isdisjoint(others))
            )

        shape, ports = list(report.shape), list(report.ports)
        for i, slot, port in reversed(report.contenders):
            if not fits(report.shape[i], report.ports[i], self.claims) and fits(slot, port, self.nodes):
                shape[i], ports[i] = slot, port
        return replace(report, shape=tuple(shape), ports=tuple(ports))

    def lent(self, chassis: str, names: set[str]) -> Iterator[tuple[Named, tuple[LinkSlot, bool]]]:
        """The names of a chassis ID that are not its own, with a link to its owner, and whether it is an anomaly."""
        claims = {name: len(found) for name in names if (found := self.claims.get((chassis, name)))}
        nodes = {name: len(self.nodes.get((chassis, name), ())) for name in claims}
        several = [name for name, count in claims.items() if count > 1]
        owner = max(several, key=lambda name: (nodes[name], name), default="")
        by_port = {name for name in claims if self._has_id_for_each_port(chassis, name, claims)}
        of_another = {
            name
            for name, count in claims.items()
            if name not in by_port and self._nodes_of_another(chassis, name) > count
        }
        fitting = by_port or claims.keys() - of_another
        if not owner and len(fitting) == 1:
            (owner,) = fitting
        one_report = len(set().union(*(self.claims[chassis, name] for name in claims))) == 1
        if not owner and of_another == claims.keys() and one_report:
            for name in claims:  # one report with the names of several others for a chassis ID that is none's
                others = (named for named in self.of_name[name] if named[0] != chassis)
                most = max(others, key=lambda named: (len(self.nodes.get(named, ())), named))
                yield (chassis, name), (self.slots[most], True)
            return
        for name, count in claims.items():
            is_other = name in of_another
            if name == owner or (
                count >= nodes.get(owner, 0)
                and owner not in by_port
                and not (is_other and claims.get(owner) == 1)
            ):
                continue
            if is_other or (count == 1 and not self._is_default(chassis, several)):
                told = is_other or self._is_default(chassis, claims)
                yield (chassis, name), (self.slots[chassis, owner], told)

    def _nodes_of_another(self, chassis: str, name: str) -> int:
        """The most nodes that report another chassis ID with this name."""
        return max(map(len, self._other_ids(chassis, name)), default=0)

    def _has_id_for_each_port(self, chassis: str, name: str, names: Collection[str]) -> bool:
        """Two nodes or more each report another chassis ID with this name, and no others report most of these. Those
        that give the chassis ID another one of these names do not count. Nor do IDs that those alone report who claim
        this one: one report makes no pattern."""
        rivals = set().union(*(self.claims[chassis, other] for other in names if other != name))
        others = [left for nodes in self._other_ids(chassis, name) if (left := nodes - rivals)]
        told = [nodes for nodes in others if not nodes <= self.claims[chassis, name]]
        each = sum(len(nodes) == 1 for nodes in told)
        return len(set().union(*others)) > 1 and len(others) > 1 and 2 * each >= len(told) > 0

    def _other_ids(self, chassis: str, name: str) -> list[set[str]]:
        """The nodes of each other chassis ID with this name."""
        return [self.nodes.get(named, set()) for named in self.of_name[name] if named[0] != chassis]

    def _is_default(self, chassis: str, names: Collection[str]) -> bool:
        return len(names) > 2 or overlap([self.ports.get((chassis, name), set()) for name in names])

    def renamed(
        self, node: str, report: CompactReport, lent: Mapping[Named, tuple[LinkSlot, bool]]
    ) -> CompactReport:
        shape, contested = list(report.shape), set(report.contested)
        for i, slot in enumerate(report.shape):
            owner = lent.get(_named(slot, self._generic))
            if owner is not None and self._counts(node, report, i):
                shape[i] = slot._replace(neighbor=owner[0].neighbor)
                if owner[1] and i not in report.stale:
                    contested.add(i)
        return replace(report, shape=tuple(shape), contested=frozenset(contested))
