"""HyperNodes of other owners: which of our nodes they hold. They are read, and never touched.

A pattern that could take for ever to match, and a selector about labels that were not handed in, are taken to
hold every node: to say so once too often costs a look, to overlap costs jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.outcome import Overlap

_PATTERN_MAX = 256
_COSTLY = re.compile(r"[*+}?]\)[*+{?]|\(\?[^:P]|\\[1-9]")
_EVERY = re.compile("")


class Strangers:
    """The HyperNodes that are not ours."""

    def __init__(self) -> None:
        self._objects: dict[str, HyperNode] = {}
        self._nodes: dict[str, set[str]] = {}
        self._children: dict[str, set[str]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
        self._selectors: dict[str, tuple[dict[str, object], ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._objects)

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    @property
    def vague(self) -> bool:
        """Some of them hold nodes that are not named."""
        return bool(self._patterns or self._selectors)

    @property
    def named(self) -> Set[str]:
        """The nodes that some of them list by name."""
        return self._nodes.keys()

    def put(self, name: str, hypernode: HyperNode | None) -> set[str]:
        """The nodes named by it, before or now."""
        old = self._objects.pop(name, None)
        self._patterns.pop(name, None)
        self._selectors.pop(name, None)
        if old is not None:
            _unlist(self._nodes, old.nodes, name)
            _unlist(self._children, old.children, name)
        if hypernode is not None:
            self._objects[name] = hypernode
            for node in hypernode.nodes:
                self._nodes.setdefault(node, set()).add(name)
            for child in hypernode.children:
                self._children.setdefault(child, set()).add(name)
            if hypernode.patterns:
                self._patterns[name] = tuple(map(_compiled, hypernode.patterns))
            if hypernode.selectors:
                self._selectors[name] = tuple(json.loads(one) for one in hypernode.selectors)
        return {*(old.nodes if old else ()), *(hypernode.nodes if hypernode else ())}

    def label_keys(self) -> set[str]:
        """The labels that somebody selects by."""
        keys: set[str] = set()
        for selectors in self._selectors.values():
            for selector in selectors:
                keys.update(_pairs(selector))
                keys.update(str(one.get("key")) for one in _expressions(selector))
        return keys

    def holders(self, node: str, labels: Mapping[str, str] | None) -> list[str]:
        """Who holds a node; ``labels`` of the node, ``None`` where they are not known."""
        found = set(self._nodes.get(node, ()))
        for name, patterns in self._patterns.items():
            if any(pattern.search(node) for pattern in patterns):
                found.add(name)
        for name, selectors in self._selectors.items():
            if any(_selects(selector, labels) for selector in selectors):
                found.add(name)
        return sorted(found)

    def parents(self, child: str) -> list[str]:
        return sorted(self._children.get(child, ()))

    def overlaps(
        self, nodes: Iterable[str], names: Iterable[str], labels: Mapping[str, Mapping[str, str]] | None
    ) -> tuple[Overlap, ...]:
        """All that they hold of these nodes, and of these HyperNodes of ours that have a parent."""
        held: dict[str, list[str]] = {}
        asked: Iterable[str] = nodes if self.vague else (node for node in nodes if node in self._nodes)
        for node in asked:
            for name in self.holders(node, None if labels is None else labels.get(node)):
                held.setdefault(name, []).append(node)
        for child in names:
            for name in self.parents(child):
                held.setdefault(name, []).append(child)
        return tuple(
            Overlap(name, self._objects[name].source, tuple(sorted(members)))
            for name, members in sorted(held.items())
        )


def _unlist(index: dict[str, set[str]], members: Iterable[str], name: str) -> None:
    for member in members:
        holders = index[member]
        holders.discard(name)
        if not holders:
            del index[member]


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > _PATTERN_MAX or _COSTLY.search(pattern):
        return _EVERY
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return _EVERY


def _selects(selector: dict[str, object], labels: Mapping[str, str] | None) -> bool:
    """As Kubernetes does: all of it must hold, and an empty selector holds nothing here."""
    pairs, expressions = _pairs(selector), list(_expressions(selector))
    if not pairs and not expressions:
        return False
    if labels is None:
        return True
    return all(labels.get(key) == value for key, value in pairs.items()) and all(
        _meets(one, labels) for one in expressions
    )


def _meets(expression: dict[str, object], labels: Mapping[str, str]) -> bool:
    value = labels.get(str(expression.get("key")))
    listed = expression.get("values")
    values = listed if isinstance(listed, list) else []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return True


def _pairs(selector: dict[str, object]) -> dict[str, object]:
    pairs = selector.get("matchLabels")
    return pairs if isinstance(pairs, dict) else {}


def _expressions(selector: dict[str, object]) -> Iterator[dict[str, object]]:
    listed = selector.get("matchExpressions")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            yield one
