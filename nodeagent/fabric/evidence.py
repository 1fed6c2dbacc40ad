"""Reports → wirings → switches → leaf groups → votes, each kept and brought up to date by what has changed.

The law of this file: whatever order the changes come in, the state is the one that the reports alone give
(and, where they do not tell, what was published and recorded). Nothing here knows of time, or of where a node
is published to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from nodeagent.fabric.groups import Graph, Group, vote
from nodeagent.fabric.reports import Report
from nodeagent.fabric.rules import Rules
from nodeagent.fabric.settle import Placement
from nodeagent.fabric.switches import Directory
from nodeagent.fabric.wiring import Wiring


@dataclass(slots=True)
class Change:
    """What is different since the last time: nodes that report otherwise, wirings that vote otherwise, groups
    whose voters are others, switches with other links.
    """

    nodes: set[str] = field(default_factory=set)
    wirings: set[Wiring] = field(default_factory=set)
    groups: set[Group] = field(default_factory=set)
    gone: set[Group] = field(default_factory=set)
    leaves: set[str] = field(default_factory=set)


class Evidence:
    """What the believed reports say, summed up."""

    def __init__(self, rules: Rules, homes: Placement) -> None:
        """``homes`` is where switches are published."""
        self._homes = homes
        self._generic = rules.generic_names
        self._told = {group.name: group.switches for group in rules.topology.groups}
        self._static = {leaf: name for name, leaves in self._told.items() for leaf in leaves}
        self._wirings: dict[int, Wiring] = {}
        self._of: dict[str, Wiring] = {}
        self.directory = Directory(self._generic, homes.placed)
        self.rewind()

    def rewind(self) -> None:
        """Forget all that is derived. Which nodes are cabled alike, and what is recorded, is not."""
        self.directory.rewind()
        self.graph = Graph(self._homes.apart, self._told)
        self._leaves: dict[str, dict[Wiring, None]] = {}
        self._dirty: set[Wiring] = set()
        self._ports: set[Wiring] = set()
        self._equal: set[Wiring] = set()
        self.hard: set[Wiring] = set()
        """Those that speak for several groups, or are silent on a link."""
        self._retouched: set[str] = set()
        self._change = Change()
        for wiring in self._wirings.values():
            wiring.forget()
            self._dirty.add(wiring)

    def _announce(self, wiring: Wiring) -> None:
        for slot in wiring.shape:
            if slot.heard is not None:
                self.directory.add(slot.heard, wiring)

    def put(self, node: str, report: Report | None) -> None:
        """The report of a node that counts; ``None``: none does."""
        before = self._of.get(node)
        old = None if before is None else before.nodes[node]
        if report is None:
            if before is not None:
                self._leave(node, before)
                del self._of[node]
            return
        if old is not None and before is not None and old.shape == report.shape:
            if not old.same(report):
                before.nodes[node] = report
                self._change.nodes.add(node)
                self._ports.add(before)
            return
        if before is not None:
            self._leave(node, before)
        # By identity: equal shapes are one object, and a hash of one costs more than all the rest here.
        wiring = self._wirings.get(id(report.shape))
        if wiring is None:
            wiring = self._wirings[id(report.shape)] = Wiring(report.shape)
            self._announce(wiring)
        wiring.nodes[node] = report
        self._of[node] = wiring
        self._change.nodes.add(node)
        self._dirty.add(wiring)

    def retouch(self, leaves: Iterable[str]) -> None:
        """Where switches are published has changed, which decides ties."""
        self._retouched.update(leaves)

    def static_leaves(self, group: str) -> tuple[str, ...]:
        """The switches of a group of the topology file."""
        return self._told[group]

    def wiring(self, node: str) -> Wiring | None:
        return self._of.get(node)

    def wirings(self, leaf: str) -> Collection[Wiring]:
        """The wirings with a link to a switch."""
        return self._leaves.get(leaf, ())

    def everything(self) -> Iterator[Wiring]:
        return iter(self._wirings.values())

    def leaves(self) -> Iterator[str]:
        return iter(self._leaves)

    def sift(self) -> Change:
        """Work off the changes since the last call."""
        change, self._change = self._change, Change()
        touched = {leaf for leaf in self._retouched if leaf in self.graph}
        self._retouched = set()
        for wiring in list(self._dirty):
            if not wiring.nodes:
                self._dirty.discard(wiring)
                self._ports.discard(wiring)
                self._dissolve(wiring, change, touched)
        for wiring in self._ports | self._dirty:
            # Ports that two nodes claim and names with two chassis are looked at again.
            for slot in wiring.shape:
                if slot.heard is not None:
                    self.directory.touch(slot.heard)
            change.leaves.update(wiring.leaves)
        self._ports = set()
        moved = {wiring for heard in self.directory.resolve() for wiring in self.directory.wirings(heard)}
        for wiring in self._dirty | moved:
            self._count(wiring, change, touched)
        self._dirty = set()
        change.leaves |= touched
        gone, new = self.graph.regroup(touched)
        change.gone.update(gone)
        change.groups.update(new)
        revote = set(change.wirings)
        for group in (*gone, *new):
            group.static = self._static.get(group.leaves[0], "")
            for leaf in group.leaves:
                revote.update(self._leaves.get(leaf, ()))
        # Of equal groups the heavier one wins, and weights change without the groups.
        revote.update(wiring for wiring in self._equal if not self._near(wiring).isdisjoint(touched))
        for wiring in revote:
            self._vote(wiring, change)
        change.groups -= change.gone
        return change

    def _near(self, wiring: Wiring) -> set[str]:
        """All switches of the groups that it votes for."""
        return {leaf for group in wiring.votes for leaf in group.leaves}

    def _leave(self, node: str, wiring: Wiring) -> None:
        del wiring.nodes[node]
        self._change.nodes.add(node)
        self._dirty.add(wiring)

    def _dissolve(self, wiring: Wiring, change: Change, touched: set[str]) -> None:
        del self._wirings[id(wiring.shape)]
        for heard in {slot.heard for slot in wiring.shape}:
            if heard is not None:
                self.directory.drop(heard, wiring)
        self._unlink(wiring, touched)
        self._equal.discard(wiring)
        self.hard.discard(wiring)
        if wiring.best is not None:
            wiring.best.voters.discard(wiring)
            change.groups.add(wiring.best)
            wiring.best = None

    def _count(self, wiring: Wiring, change: Change, touched: set[str]) -> None:
        keys = self.directory.keys
        now = tuple("" if slot.heard is None else keys[slot.heard] for slot in wiring.shape)
        if now != wiring.keys:
            self._unlink(wiring, touched)
            wiring.keys = now
            wiring.leaves = tuple(sorted(set(now) - {""}))
            for leaf in wiring.leaves:
                self._leaves.setdefault(leaf, {})[wiring] = None
            change.wirings.add(wiring)
        by = len(wiring.nodes) - wiring.counted
        if by:
            self.graph.weigh(wiring.leaves, by)
            wiring.counted += by
            touched.update(wiring.leaves)
        if wiring.best is not None:
            change.groups.add(wiring.best)

    def _unlink(self, wiring: Wiring, touched: set[str]) -> None:
        if wiring.counted:
            self.graph.weigh(wiring.leaves, -wiring.counted)
            wiring.counted = 0
        touched.update(wiring.leaves)
        for leaf in wiring.leaves:
            wirings = self._leaves[leaf]
            del wirings[wiring]
            if not wirings:
                del self._leaves[leaf]

    def _vote(self, wiring: Wiring, change: Change) -> None:
        votes, best, equal = vote(wiring.keys, self.graph.of.get, self.graph.weight)
        (self._equal.add if equal else self._equal.discard)(wiring)
        (self.hard.discard if len(votes) == 1 and "" not in wiring.keys else self.hard.add)(wiring)
        if votes == wiring.votes and best is wiring.best:
            return
        change.wirings.add(wiring)
        if wiring.best is not best:
            if wiring.best is not None:
                wiring.best.voters.discard(wiring)
                change.groups.add(wiring.best)
            if best is not None:
                best.voters.add(wiring)
                change.groups.add(best)
        wiring.votes, wiring.best = votes, best
