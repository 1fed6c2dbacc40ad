"""What a planner has been told: levels, each the last word on its object, and what of it is news.

Being told is cheap: nothing follows from it here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from nodeagent.fabric.build import label_key
from nodeagent.fabric.hypernode import TIER_NAMES, HyperNode, Texts
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.reports import Pool, Reader, RefusedError, Report
from nodeagent.fabric.rules import Rules
from nodeagent.fabric.strangers import Strangers

T = TypeVar("T", bound=Hashable)
Labels = tuple[Texts, Texts]
"""Of a Node: our own labels, and those that somebody's selector asks for; sorted."""


class Told:
    """``own`` are HyperNodes of ours. What is news stays in ``nodes_news``, ``label_news``, ``own_news`` and
    ``strange_news`` until the planner has taken it.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._pool = Pool()
        self._texts = Pool()
        self._pool_max = 4096
        self._reader = Reader(rules, self._pool)
        self._keys = frozenset(
            label_key(one, tier, rules.fabric)
            for one in rules.label_keys
            for tier in range(1, len(TIER_NAMES) + 1)
        )
        self.reports: dict[str, Report] = {}
        self.refused: dict[str, str] = {}
        self.poor: set[str] = set()
        self.nodes: dict[str, Labels] = {}
        self.own: dict[str, HyperNode] = {}
        self.strangers = Strangers()
        self.heard: dict[str, tuple[str, ...]] = {}
        self.heard_by_key = False
        self.node_news: set[str] = set()
        self.label_news: set[str] = set()
        self.own_news: list[tuple[str, HyperNode | None, HyperNode | None]] = []
        self.strange_news: set[str] = set()
        self.upper_news = True

    def report(self, name: str, links: NodeLinks | None) -> None:
        if links is None:
            self._unreported(name)
            return
        try:
            report = self._reader.read(name, links)
        except RefusedError as error:
            self.refuse(name, str(error))
            return
        self.refused.pop(name, None)
        self.reports[name] = report
        if report.up < self._rules.min_links:
            self.poor.add(name)
        else:
            self.poor.discard(name)
        self.node_news.add(name)

    def refuse(self, name: str, why: str) -> None:
        self._unreported(name)
        self.refused[name] = why

    def node(self, name: str, labels: Mapping[str, str] | None) -> None:
        known = bool(self.nodes)
        if labels is None:
            self.nodes.pop(name, None)
        else:
            ours = tuple(sorted((key, labels[key]) for key in self._keys & labels.keys()))
            asked = self.strangers.label_keys()
            others = tuple(sorted((key, labels[key]) for key in asked & labels.keys()))
            self.nodes[name] = self.shared((self.shared(ours), others))
        if known != bool(self.nodes):
            self.node_news.update(self.reports, self.refused)
            for hypernode in self.own.values():
                self.node_news.update(hypernode.nodes)
        self.node_news.add(name)
        self.label_news.add(name)

    def hypernode(self, name: str, hypernode: HyperNode | None) -> None:
        ours = hypernode if hypernode is not None and hypernode.ours else None
        strange = hypernode if ours is None else None
        if strange is not None or name in self.strangers:
            self.strange_news |= self.strangers.put(name, strange)
            if self.strangers.vague:
                self.strange_news.update(self.reports)
            self.upper_news = True
        old = self.own.get(name)
        if ours is None and old is None:
            return
        if ours is None:
            del self.own[name]
        else:
            self.own[name] = ours
            if old is not None and old.same(ours):
                return
        self.own_news.append((name, old, ours))

    def uplinks(self, heard: Mapping[str, tuple[str, ...]], *, by_key: bool) -> None:
        self.heard, self.heard_by_key = dict(heard), by_key
        self.upper_news = True

    def exists(self, node: str) -> bool:
        """As long as no Node is known every one is taken to exist: an empty list is no evidence."""
        return not self.nodes or node in self.nodes

    def is_node(self, name: str) -> bool:
        """A system name is a node's own."""
        return any(one in self.reports or one in self.nodes for one in (name, name.partition(".")[0]))

    def counts(self, node: str) -> Report | None:
        """The report of a node that is believed and exists."""
        return self.reports.get(node) if self.exists(node) else None

    def taken(self, name: str) -> bool:
        """Some HyperNode has this name."""
        return name in self.own or name in self.strangers

    def labels(self, node: str) -> Mapping[str, str] | None:
        found = self.nodes.get(node)
        return None if found is None else dict(found[1])

    def shared(self, value: T) -> T:
        """The one object of all that are equal to this."""
        return self._texts(value)

    def compact(self) -> None:
        """Forget what only past reports have said, when that is most of it."""
        if len(self._pool) > self._pool_max:
            self._pool.keep(self.reports.values())
            self._pool_max = 2 * len(self._pool) + 4096
            self._texts = Pool()

    def _unreported(self, name: str) -> None:
        self.reports.pop(name, None)
        self.refused.pop(name, None)
        self.poor.discard(name)
        self.node_news.add(name)
