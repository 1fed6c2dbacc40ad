"""The planner: levels in, the tree and the writes that lead to it out.

The law of this file: ``plan`` works off what was told in one direction: evidence, names, seats, anomalies,
objects, labels, writes. What it answers depends on the levels, on what has been pending since when, and on
``now``; not on the order in which things were told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.fabric.anomalies import Cabling
from nodeagent.fabric.answer import Answer
from nodeagent.fabric.build import Leaves, label_chains, parse_aliases
from nodeagent.fabric.evidence import Change, Evidence
from nodeagent.fabric.groups import Group
from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.matching import Matching
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Outcome
from nodeagent.fabric.rules import Rules
from nodeagent.fabric.settle import Placement, Seating
from nodeagent.fabric.tiers import Tower
from nodeagent.fabric.told import Told
from nodeagent.fabric.uplinks import KnownSwitch, known_switches
from nodeagent.fabric.wiring import Wiring

_NOBODY: frozenset[str] = frozenset()


class Planner:
    """See the package. ``before`` hands on what a planner with other rules has been waiting for."""

    def __init__(self, rules: Rules | None = None, before: Planner | None = None) -> None:
        self.rules = rules = rules or Rules()
        self.told = Told(rules)
        self.seating = Seating(rules.hysteresis)
        self.tower = Tower(rules)
        self._homes = Placement()
        self._aliases: dict[str, dict[str, str]] = {}
        self._forced = {node: group.name for group in rules.topology.groups for node in group.nodes}
        self._static = {group.name: Group((), static=group.name) for group in rules.topology.groups}
        self._waiting: dict[str, float] = {}
        self._restless: set[str] = set()
        """Nodes whose seat must be thought about although their report is the same."""
        self._renew: set[str] = set()
        """Objects that must be made again."""
        self.answer = Answer(self.told, self.seating, self.tower)
        self.evidence = Evidence(rules, self._homes)
        self._derive()
        if before is not None:
            self.evidence.directory.record.update(before.evidence.directory.record)
            self.seating.pending.update(before.seating.pending)
            self.seating.gone.update(before.seating.gone)
            self._waiting.update(before._waiting)

    def report(self, name: str, links: NodeLinks | None) -> None:
        """A NodeLinks object, by ``metadata.name``; ``None``: it has been deleted."""
        self.told.report(name, links)

    def refuse(self, name: str, why: str) -> None:
        """A NodeLinks object that could not be decoded: ``why`` completes "its report …"."""
        self.told.refuse(name, why)

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        """A Node and its labels; ``None``: it has been deleted. Tell HyperNodes before Nodes."""
        self.told.node(name, labels)

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        """A HyperNode as the API server has it, of whichever owner; ``None``: it has been deleted."""
        self.told.hypernode(name, hypernode)

    def uplinks(self, heard: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None:
        """Which switches each switch hears above it: all that is known at present. By system name, or by the
        keys of ``switches`` and of ``fabric.uplinks``."""
        self.told.uplinks(heard, by_key=by_key)

    def switches(self) -> tuple[KnownSwitch, ...]:
        """The leaf switches that reports speak of, as of the last plan, by key."""
        return known_switches(self.evidence.directory.keys)

    def is_node(self, name: str) -> bool:
        """A node of the cluster is called so."""
        return self.told.is_node(name)

    def plan(self, now: float, *, full: bool = False) -> Outcome:
        """What should be, and the writes that lead there. ``full`` does all of it again."""
        if full:
            self._rewind()
        self._take_published()
        self._take_nodes()
        change = self.evidence.sift()
        renamed = self._name(change)
        self._seat(change, renamed, now)
        self._look(change)
        self._make(now)
        return self.answer.outcome(now, self.rules, self._waiting)

    def wants(self, node: str) -> str | None:
        """The tier-1 object that a node's report speaks for, or that it is told to be in."""
        if (static := self._forced.get(node)) is not None:
            return self.matching.names.get(self._static_group(static))
        group = self.group_of(node)
        return None if group is None else self.matching.names.get(group)

    def group_of(self, node: str) -> Group | None:
        """The leaf group that most links of a node go to; of equals, the one in which it is published.

        A link that says nothing counts for where the node is: silence must not outvote it.
        """
        wiring = self.evidence.wiring(node)
        if wiring is None or wiring.best is None:
            return None
        here = self.matching.groups.get(self.seating.placed.get(node, ""))
        if here is None or here is wiring.best:
            return wiring.best
        mine = wiring.votes.get(here, 0) + wiring.silent
        return here if mine >= wiring.votes[wiring.best] else wiring.best

    def _derive(self) -> None:
        self.matching = Matching(self.rules.fabric, self.told.taken)
        self.cabling = Cabling(self.evidence)
        self.leaves = Leaves(self.rules.fabric, self.evidence, self.cabling, self.seating)

    def _rewind(self) -> None:
        """Forget all that is derived."""
        told = self.told
        told.compact()
        self.evidence.rewind()
        self._derive()
        self._remember_aliases()
        told.upper_news = True
        self._restless.update(self.seating.placed.keys() - told.reports.keys(), told.refused, self._forced)
        if told.nodes:
            self._restless.update(told.reports.keys() - told.nodes.keys())
        self._renew.update(told.own, self.answer.leaves)
        self.answer.forget()

    def _take_published(self) -> None:
        told, self.told.own_news = self.told.own_news, []
        for name, old, new in told:
            first = old if old is not None and old.tier == 1 else None
            now = new if new is not None and new.tier == 1 else None
            if first is not None or now is not None:
                before, after = (() if one is None else one.switches for one in (first, now))
                self.evidence.retouch(self._homes.publish(name, before, after))
                before, after = (() if one is None else one.nodes for one in (first, now))
                self._restless |= self.seating.publish(name, before, after)
                aliases = parse_aliases(now)
                if aliases != self._aliases.get(name, {}):
                    self._aliases[name] = aliases
                    self._remember_aliases()
            self.tower.publish(name, old, new)
            if old is None or new is None or old.tier != 1 or new.tier != 1:
                self.told.upper_news = True
            self._renew.add(name)

    def _remember_aliases(self) -> None:
        known: dict[str, str] = {}
        for name in sorted(self._aliases):
            known.update(self._aliases[name])
        self.evidence.directory.remember(known)

    def _take_nodes(self) -> None:
        told = self.told
        for node in told.node_news:
            report = told.counts(node)
            if report is None:
                self._restless.add(node)
            self.evidence.put(node, report)
        told.node_news = set()
        self._restless |= told.strange_news
        told.strange_news = set()

    def _static_group(self, name: str) -> Group:
        """The group of the switches that are told to be together, or one without switches."""
        for switch in self.evidence.static_leaves(name):
            if (group := self.evidence.graph.of.get(switch)) is not None:
                return group
        return self._static[name]

    def _name(self, change: Change) -> set[Group]:
        """Which group is which object; the groups that are called otherwise than before."""
        dirty, gone = set(change.groups), set(change.gone)
        for node in self._restless:
            wiring = self.evidence.wiring(node)
            if wiring is not None and wiring.best is not None:
                dirty.add(wiring.best)
        for leaf in change.leaves:
            if (group := self.evidence.graph.of.get(leaf)) is not None:
                dirty.add(group)
        for told in self.rules.topology.groups:
            group = self._static_group(told.name)
            group.forced = tuple(node for node in told.nodes if self.told.exists(node))
            dirty.add(group)
            if group is not self._static[told.name]:
                gone.add(self._static[told.name])
        dirty -= gone
        changed, names = self.matching.update(dirty, gone, self.seating.placed, self._homes.placed)
        self._renew |= names
        for called in names:
            # Who is published there and speaks for several groups, or is silent, may have counted for it.
            if self.evidence.hard and (old := self.told.own.get(called)) is not None:
                wirings = map(self.evidence.wiring, old.nodes)
                pairs = zip(old.nodes, wirings, strict=True)
                self._restless.update(
                    node for node, wiring in pairs if wiring is not None and not wiring.easy
                )
        self._renew.update(name for group in dirty if (name := self.matching.names.get(group)) is not None)
        return changed

    def _seat(self, change: Change, renamed: set[Group], now: float) -> None:
        seating, names = self.seating, self.matching.names
        todo = self._restless | self._waiting.keys() | seating.pending.keys() | seating.gone.keys()
        self._restless = set()
        wirings = set(change.wirings)
        for group in renamed:
            todo.update(group.forced)
            wirings |= group.voters
        plain = not self._forced and not self.told.strangers
        for wiring in wirings:
            if not (plain and self._at_rest(wiring)):
                todo.update(wiring.nodes)
        placed, seat, troubled = seating.placed, seating.seat, self.answer.unplaced
        for node in change.nodes - todo:
            wiring_of = self.evidence.wiring(node)
            if plain and wiring_of is not None and wiring_of.best is not None and wiring_of.easy:
                # Nearly everybody: published where the report says, and nothing else is the matter.
                name = names.get(wiring_of.best)
                if placed.get(node) == name == seat.get(node) and node not in troubled:
                    continue
            todo.add(node)
        for node in todo:
            self._wish(node, now)
        seating.settle(now)
        # Where a node is published decides which of its links are odd, if they speak for several groups.
        change.nodes |= todo

    def _at_rest(self, wiring: Wiring) -> bool:
        """All nodes that are cabled so are published and seated where they report, and nobody is in trouble."""
        if wiring.best is None or not wiring.easy:
            return False
        name = self.matching.names.get(wiring.best, "")
        nodes, published = wiring.nodes.keys(), self.told.own.get(name)
        return (
            published is not None
            and nodes <= self.seating.members.get(name, _NOBODY)
            and nodes <= set(published.nodes)
            and self.seating.published.single
            and nodes.isdisjoint(self.answer.unplaced)
        )

    def _wish(self, node: str, now: float) -> None:
        seating, told, unplaced = self.seating, self.told, self.answer.unplaced
        unplaced.pop(node, None)
        since = self._waiting.pop(node, now)
        report = told.reports.get(node)
        if (why := told.refused.get(node)) is not None:
            unplaced[node] = f"its report {why}"
        if not told.exists(node):
            seating.leave(node, now)
            if report is not None or why is not None:
                unplaced[node] = "there is no Node of this name"
            return
        if told.strangers and self.rules.foreign == "yield":
            holders = told.strangers.holders(node, told.labels(node))
            if holders:
                seating.bar(node)
                unplaced[node] = f"the HyperNode {holders[0]} of another owner holds it"
                return
        name = self.wants(node)
        nowhere = node not in seating.placed
        if name is not None and nowhere and report is not None and report.unheard:
            early = node not in seating.seat and now - since < self.rules.hysteresis.settle_s
            if early and node not in self._forced:
                self._waiting[node] = since
                unplaced[node] = "waiting until its other links have been heard"
                seating.wish(node, None, now)
                return
        seating.wish(node, name, now)
        if name is None and nowhere and report is not None:
            unplaced[node] = (
                "no switch has been heard on any of its links: is LLDP enabled there?"
                if report.shape
                else f"it reports no link of the fabric {self.rules.fabric}"
            )

    def _look(self, change: Change) -> None:
        """What is odd, of what has changed."""
        answer, cabling = self.answer, self.cabling
        leaves = set(change.leaves)
        for wiring in change.wirings:
            leaves.update(wiring.leaves)
        for group in change.groups:
            # With other voters it may have switches of its own, or be counted to another group.
            leaves.update(group.leaves)
        looked = cabling.look(leaves)
        wirings, groups = set(change.wirings), set(change.groups)
        of, names = self.evidence.graph.of, self.matching.names
        near = {joined for leaf in looked if (joined := of.get(leaf)) is not None}
        for leaf in looked.union(*(group.leaves for group in near)):
            wirings.update(self.evidence.wirings(leaf))
        seen = leaves | looked
        groups.update(joined for leaf in seen if (joined := of.get(leaf)) is not None)
        lost, cabling.lost = cabling.lost, set()
        homes = groups.union(lost, (cabling.adopted[leaf] for leaf in cabling.adopted.keys() & seen))
        self._renew.update(name for home in homes if (name := names.get(home)) is not None)
        self._renew |= self._homes.where(seen)
        for node in change.nodes:
            answer.odd(node, ())
            if (here := self.seating.seat.get(node)) is not None:
                # Whether it is silent decides what may be taken off the object.
                self._renew.add(here)
            wiring_of = self.evidence.wiring(node)
            if wiring_of is not None and wiring_of not in wirings:
                self._judge(wiring_of, (node,))
        for wiring in wirings:
            self._judge(wiring, wiring.nodes)
        for group in change.gone | groups:
            answer.tied(group, () if group in change.gone else tuple(cabling.undecidable(group)))

    def _judge(self, wiring: Wiring, nodes: Iterable[str]) -> None:
        best, answer, rail = wiring.best, self.answer, self.cabling.rail
        plain = best is None
        if best is not None and self.cabling.plain(wiring, best):
            plain = self.cabling.rails(best) <= {rail.get(key) for key in wiring.keys}
        if plain and not any(wiring.nodes[node].miscabled for node in nodes):
            for node in answer.odd_nodes & wiring.nodes.keys():
                answer.odd(node, ())
            return
        for node in nodes:
            report = wiring.nodes[node]
            if best is None or (plain and not report.miscabled):
                answer.odd(node, ())
            else:
                group = self.group_of(node) or best
                answer.odd(node, tuple(self.cabling.oddities(node, report, wiring, group)))

    def _make(self, now: float) -> None:
        """The objects, of what has changed; then the tiers above, if that matters to them."""
        answer, told = self.answer, self.told
        names = self._renew | self.seating.changed
        self._renew, self.seating.changed = set(), set()
        for name in names:
            made = self.leaves.make(name, self.matching.groups.get(name), told.own.get(name))
            if answer.leaf(name, made):
                told.upper_news = True
        due = self.tower.next_at(float("-inf"))
        if told.upper_news or (due is not None and due <= now):
            told.upper_news = False
            names |= self._make_uppers(now)
        answer.compare(names)
        answer.trimmed = self.leaves.trimmed
        answer.oddities(self.evidence.directory.odd, self.cabling.shared)

    def _make_uppers(self, now: float) -> set[str]:
        told, tower, key = self.told, self.tower, self.evidence.directory.key_of
        before = set(tower.wanted)
        # A leaf hears the nodes below it too.
        heard = {name: tuple(up for up in ups if not told.is_node(up)) for name, ups in told.heard.items()}
        if not told.heard_by_key:
            heard = {key(name): tuple(map(key, ups)) for name, ups in heard.items()}
        tower.uplinks.heard = heard
        switches = {
            name: frozenset(leaf.switches)
            for name, leaf in sorted(self.answer.leaves.items())
            if self.rules.foreign == "refuse" or not told.strangers.parents(name)
        }
        tower.build(switches, told.own, told.taken, now)
        self.answer.chain(
            label_chains(
                tower.parent, tower.wanted, self.answer.leaves, self.rules.fabric, self.rules.label_keys
            )
        )
        return before | tower.wanted.keys() | {name for name, one in told.own.items() if one.tier > 1}
