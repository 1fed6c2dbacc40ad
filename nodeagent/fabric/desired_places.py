"""Where every node should be, and why a node has no place."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.foreign import ForeignHyperNodes
from nodeagent.fabric.groups import CablingPattern, SwitchGroup
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.naming import GroupNames
from nodeagent.fabric.placement import Placement
from nodeagent.fabric.reports import CompactReport
from nodeagent.fabric.votes import LinkVotes


class DesiredPlaces:
    """``desired`` and ``leaving`` are for ``place``; ``unplaced`` are the reasons of nodes without a place.

    ``waiting`` are new nodes that wait for the neighbors of their other links, and since when.
    """

    def __init__(
        self,
        rules: FabricRules,
        levels: Levels,
        votes: LinkVotes,
        names: GroupNames,
        placed: Mapping[str, str],
        foreign: ForeignHyperNodes,
        before: Placement,
        waiting: Mapping[str, float],
        now: float,
    ) -> None:
        self._rules, self._levels, self._votes, self._names = rules, levels, votes, names
        self._placed, self._foreign, self._before = placed, foreign, before
        self._waited, self._now = waiting, now
        self._forced = {node: group.name for group in levels.topology.groups for node in group.nodes}
        self.desired: dict[str, str | None] = {}
        self.leaving: list[str] = []
        self.unplaced: dict[str, str] = {}
        self.waiting: dict[str, float] = {}
        self._add_all()

    @property
    def free(self) -> frozenset[str]:
        """The nodes that no evidence places: those that wait too. Nothing keeps them from going with others."""
        return frozenset(
            node for node, place in self.desired.items() if place is None and node not in self._placed
        ).union(self.waiting)

    def _add_all(self) -> None:
        levels = self._levels
        yielding = bool(self._foreign) and self._rules.foreign == "yield"
        for pattern in self._votes.patterns:
            if pattern.unanimous and pattern.best is not None and not yielding:
                self.desired.update(dict.fromkeys(pattern.nodes, self._names.names[pattern.best]))
            else:
                for node in pattern.nodes:
                    self._add(node)
        rest = {node for node in self._placed if node not in levels.reports}
        rest.update(self._votes.unknown, levels.refused, self._forced)
        if yielding:
            rest |= self._foreign.listed - levels.reports.keys()
        for node in rest:
            self._add(node)

    def _add(self, node: str) -> None:
        levels, unplaced = self._levels, self.unplaced
        report = levels.reports.get(node)
        refused = levels.refused.get(node)
        self.desired.pop(node, None)
        if refused is not None:
            unplaced[node] = f"its report {refused}"
        if not levels.exists(node):
            self.leaving.append(node)
            if report is not None or refused is not None:
                unplaced[node] = "no Node has this name"
            return
        if self._foreign and self._rules.foreign == "yield":
            labels = levels.nodes.get(node)
            holders = self._foreign.holders(node, None if labels is None else dict(labels.every))
            if holders:
                unplaced[node] = f"the HyperNode {holders[0]} of another owner holds it"
                return
        place = self._desired_place(node)
        is_new = node not in self._placed
        if (
            place is not None
            and is_new
            and report is not None
            and report.incomplete
            and self._record_wait(node)
        ):
            unplaced[node] = "waiting for LLDP neighbors on its other links"
            return
        self.desired[node] = place
        if place is None and is_new and report is not None:
            unplaced[node] = self._why_unknown(node, report)

    def _desired_place(self, node: str) -> str | None:
        """The object that the topology file or the node's report puts a node in."""
        if (static := self._forced.get(node)) is not None:
            return self._names.names.get(self._votes.static_groups[static])
        pattern = self._votes.pattern(node)
        group = None if pattern is None else group_of(node, pattern, self._placed, self._names)
        return None if group is None else self._names.names.get(group)

    def _why_unknown(self, node: str, report: CompactReport) -> str:
        """Why a report places a new node nowhere."""
        if not report.shape:
            return f"it reports no link in the fabric {self._rules.fabric}"
        if report.stale:
            return (
                "the LLDP information of its links has expired: a current neighbor on one of them places it; are the "
                "links up, and do the switches send LLDP?"
            )
        neighbors = [slot.neighbor for slot in report.shape if slot.neighbor is not None]
        votes = self._votes
        if any(neighbor in votes.peers.of for neighbor in neighbors):
            return "its links go to other nodes: cable it to a leaf switch, or put it into a group of the topology file"
        if any(neighbor in votes.names.ambiguous for neighbor in neighbors):
            return "the switches of its links are unknown: give each switch its own name"
        if neighbors and self._votes.pattern(node) is not None:
            return (
                "its links go to switches that several leaf groups share: cable it to a leaf switch, or put it into a "
                "group of the topology file"
            )
        return "none of its links has an LLDP neighbor: is LLDP enabled on the switches?"

    def _record_wait(self, node: str) -> bool:
        """Record since when a new node waits for its other links. Return whether it still waits: at most
        ``settle_seconds``."""
        since = self._waited.get(node, self._now)
        early = node not in self._before.place and self._now < since + self._rules.hysteresis.settle_seconds
        if early and node not in self._forced:
            self.waiting[node] = since
            return True
        return False


def group_of(
    node: str, pattern: CablingPattern, placed: Mapping[str, str], names: GroupNames
) -> SwitchGroup | None:
    """The leaf group with most of a node's links; of equal groups, the one in which the node is published.

    A link without a neighbor counts for the published group: missing data must not outvote it.
    """
    best = pattern.best
    if best is None:
        return None
    here = names.groups.get(placed.get(node, ""))
    if here is None or here is best:
        return best
    mine = pattern.votes.get(here, 0) + pattern.links_without_neighbor
    return here if mine >= pattern.votes[best] else best
