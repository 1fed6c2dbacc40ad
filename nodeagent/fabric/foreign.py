"""HyperNodes of other owners: which of our nodes they hold. They are read and never written.

A pattern that could take very long to match, and a selector for a node whose labels are not known, count as a match:
an overlap reported in error costs a look, an overlap not reported costs jobs.
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


class ForeignHyperNodes:
    """Finds the foreign HyperNodes that hold a node or have one of our HyperNodes as a member."""

    def __init__(self, objects: Mapping[str, HyperNode]) -> None:
        self._objects = objects
        self._nodes: dict[str, list[str]] = {}
        self._children: dict[str, list[str]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
        self._selectors: dict[str, tuple[dict[str, object], ...]] = {}
        for name, hypernode in sorted(objects.items()):
            for node in hypernode.nodes:
                self._nodes.setdefault(node, []).append(name)
            for child in hypernode.children:
                self._children.setdefault(child, []).append(name)
            if hypernode.patterns:
                self._patterns[name] = tuple(map(_compiled, hypernode.patterns))
            if hypernode.selectors:
                self._selectors[name] = tuple(json.loads(selector) for selector in hypernode.selectors)

    def __bool__(self) -> bool:
        return bool(self._objects)

    @property
    def selects(self) -> bool:
        """Some of them select nodes by a pattern or by labels."""
        return bool(self._patterns or self._selectors)

    @property
    def listed(self) -> Set[str]:
        """The nodes that some of them list by name."""
        return self._nodes.keys()

    def holders(self, node: str, labels: Mapping[str, str] | None) -> list[str]:
        """The names of all that hold a node. ``labels`` are the node's, ``None`` if they are not known."""
        holders = set(self._nodes.get(node, ()))
        for name, patterns in self._patterns.items():
            if any(pattern.search(node) for pattern in patterns):
                holders.add(name)
        for name, selectors in self._selectors.items():
            if any(_selects(selector, labels) for selector in selectors):
                holders.add(name)
        return sorted(holders)

    def parents(self, child: str) -> list[str]:
        return self._children.get(child, [])

    def overlaps(
        self, nodes: Iterable[str], children: Iterable[str], labels: Mapping[str, Mapping[str, str]] | None
    ) -> tuple[Overlap, ...]:
        """The foreign HyperNodes that hold some of these nodes, or some of these children of nodeagent's HyperNodes."""
        held: dict[str, list[str]] = {}
        for node in nodes if self.selects else (node for node in nodes if node in self._nodes):
            for name in self.holders(node, None if labels is None else labels.get(node)):
                held.setdefault(name, []).append(node)
        for child in children:
            for name in self.parents(child):
                held.setdefault(name, []).append(child)
        return tuple(
            Overlap(name, self._objects[name].source, tuple(sorted(members)))
            for name, members in sorted(held.items())
        )


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > _PATTERN_MAX or _COSTLY.search(pattern):
        return _EVERY
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return _EVERY


def _selects(selector: dict[str, object], labels: Mapping[str, str] | None) -> bool:
    """As in Kubernetes, all requirements must hold; as in Volcano, an empty selector selects nothing."""
    pairs, expressions = _pairs(selector), list(_expressions(selector))
    if not pairs and not expressions:
        return False
    if labels is None:
        return True
    return all(labels.get(key) == value for key, value in pairs.items()) and all(
        _holds(expression, labels) for expression in expressions
    )


def _holds(expression: dict[str, object], labels: Mapping[str, str]) -> bool:
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
    for expression in listed if isinstance(listed, list) else ():
        if isinstance(expression, dict):
            yield expression
