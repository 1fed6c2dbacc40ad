"""Nodes whose values differ from those of their peers, and rails whose values differ from the other rails. Pure.

* Nodes of one model are compared (``node_values.model_text``), by each value: most of them decide, if they are more
  than half. Below ``PEERS_MIN`` nodes nothing is usual. A missing value is no difference.
* A change that spreads is no difference, nor for ``ROLLOUT_S`` after its last node: while two nodes or more have
  changed to the same value, neither those that have it nor those that lack it are odd. A node that has just changed, or
  reported for the first time, is not odd for ``ROLLOUT_S`` either.
* What is known stands in the reports, with dates. So the judgement needs no memory, and a restart changes nothing.
* A value that the settings expect (``ExpectedValue``) is no vote: each node that has another is odd at once.
* A node under planned work is never odd. A node that lies is odd itself, and makes no other one so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from nodeagent.fabric.node_values import (
    VALUE_NAMES,
    NodeValues,
    ValueName,
    digest_of,
    exceptions,
    has_digest,
    is_digest,
    last_change,
    model_in,
    one_value,
)

PEERS_MIN = 4
ROLLOUT_S = 86_400.0
ROLLOUT_MIN = 2
_INSTALLED_PART = 0.1
"""So many nodes of all do not join within two days in the normal course of a cluster."""
_CLOCKS_S = 300.0
"""Clocks of nodes differ by less; a change that is farther in the future has no date."""


class OddValue(NamedTuple):
    """``nodes``, of ``peers`` that report this value, have ``value``, and the others, or most of them, ``usual``.

    ``devices``: only these devices of the nodes, which are usual themselves, differ from the others of the same node.
    ``expected``: ``usual`` is a pattern of the settings. ``peer`` is a node with the usual value, empty if there is
    none."""

    name: str
    value: str
    usual: str
    nodes: tuple[str, ...]
    peers: int
    others: int
    devices: str = ""
    expected: bool = False
    peer: str = ""

    @property
    def sentence(self) -> str:
        """
        >>> OddValue("NIC firmware", "28.39.1002", "28.43.2026", ("a", "b", "c"), 64, 61).sentence
        '3 nodes of 64 have NIC firmware 28.39.1002, the others 28.43.2026'
        """
        one = len(self.nodes) == 1
        of = f" of {self.peers}" if self.peers > len(self.nodes) else ""
        who = f"{len(self.nodes)} node{'' if one else 's'}{of}"
        if self.devices:
            return (
                f"{self.devices} of {who} {'has' if ',' not in self.devices else 'have'} {self.name} {self.value}, "
                f"the others of the same node {self.usual}"
            )
        has = f"{who} {'has' if one else 'have'} {self.name} {self.value}"
        if self.expected:
            return f"{has}, and the settings expect {self.usual}"
        rest = "the others" if self.others + len(self.nodes) == self.peers else "most"
        return f"{has}, {rest} {self.usual}"


def odd_values(
    values: Mapping[str, NodeValues],
    at: float,
    planned: Callable[[str], bool] = lambda _node: False,
    expected: Mapping[str, str] | None = None,
) -> Iterator[OddValue]:
    """The differences at this Unix time. ``planned``: whether a node is under planned work. ``expected`` are patterns
    of values (a glob) by name; ``*`` is any value, so it ends the comparison of this name."""
    for model, alike in sorted(_by_model(values).items()):
        for name in VALUE_NAMES:
            pattern = (expected or {}).get(name)
            if pattern is None and not _may_be_odd(_counts(alike, name)):
                continue
            holders = _holders(alike, name)
            peers = _Peers(name, holders, values, at, planned)
            if pattern is not None:
                yield from peers.other_than(pattern)
            elif model:
                yield from peers.odd()


_Alike = dict[str, list[str]]
"""Nodes by all of their values. Nodes that are alike are one entry, so a fleet of equal nodes costs what one costs."""


def _by_model(values: Mapping[str, NodeValues]) -> dict[str, _Alike]:
    models: dict[str, _Alike] = {}
    for node, one in values.items():
        models.setdefault(model_in(one.values), {}).setdefault(one.values, []).append(node)
    return models


def _counts(alike: _Alike, name: ValueName) -> dict[str, int]:
    """How many nodes have each value. It is taken out of the whole texts for one name at a time, so no copy of all
    values is held; a value is one whether nodes have its text or its digest."""
    found: dict[str, int] = {}
    for whole, nodes in alike.items():
        if value := one_value(whole, name):
            found[value] = found.get(value, 0) + len(nodes)
    texts = _texts(found)
    for value in [value for value in found if value in texts]:
        found[texts[value]] += found.pop(value)
    return found


def _holders(alike: _Alike, name: ValueName) -> dict[str, list[str]]:
    """The nodes with each value, which ``_counts`` counts."""
    found: dict[str, list[str]] = {}
    for whole, nodes in alike.items():
        if value := one_value(whole, name):
            found.setdefault(value, []).extend(nodes)
    texts = _texts(found)
    for value in [value for value in found if value in texts]:
        found[texts[value]] += found.pop(value)
    return found


def _texts(values: Collection[str]) -> dict[str, str]:
    """The texts of digests, where nodes have both."""
    digests = {value for value in values if is_digest(value)}
    if not digests:
        return {}
    found = {digest_of(value): value for value in values if value not in digests}
    return {digest: found[digest] for digest in digests & found.keys()}


def odd_counts(found: Iterable[OddValue]) -> dict[str, int]:
    """The number of odd nodes by the name of the value, 0 for a value that is nowhere odd."""
    nodes: dict[str, set[str]] = {name: set() for name in VALUE_NAMES}
    for odd in found:
        nodes[odd.name].update(odd.nodes)
    return {name: len(odd) for name, odd in nodes.items()}


class UsualValue(NamedTuple):
    """``nodes`` of ``peers`` have it."""

    value: str
    nodes: int
    peers: int


def usual_values(values: Mapping[str, NodeValues], model: str) -> dict[str, UsualValue]:
    """The values that more than half of the nodes of a model have, by name."""
    usual: dict[str, UsualValue] = {}
    alike = _by_model(values).get(model, {})
    for name in VALUE_NAMES:
        counts = _counts(alike, name)
        peers = sum(counts.values())
        value = max(counts, key=counts.__getitem__, default="")
        if peers >= PEERS_MIN and 2 * counts[value] > peers:
            usual[name] = UsualValue(value, counts[value], peers)
    return usual


def _may_be_odd(counts: Mapping[str, int]) -> bool:
    """Whether nodes have several values, one of them most, or devices of all nodes do. Nearly all have neither."""
    most = max(counts.values(), default=0)
    if 2 * most <= sum(counts.values()):
        return False
    return len(counts) > 1 or any(exceptions(value)[1] for value in counts)


class _Peers:
    """The nodes of one model by one of their values."""

    def __init__(
        self,
        name: ValueName,
        holders: Mapping[str, list[str]],
        values: Mapping[str, NodeValues],
        at: float,
        planned: Callable[[str], bool],
    ) -> None:
        self._name, self._holders, self._values, self._at = name, holders, values, at
        self._planned = planned
        self._count = sum(map(len, holders.values()))

    def other_than(self, pattern: str) -> Iterator[OddValue]:
        good = [value for value in self._holders if _is_expected(value, pattern)]
        peer = min((node for value in good for node in self._holders[value]), default="")
        others = sum(len(self._holders[value]) for value in good)
        for value in sorted(self._holders.keys() - good):
            if nodes := self._unplanned(self._holders[value]):
                yield OddValue(
                    self._name, value, pattern, nodes, self._count, others, expected=True, peer=peer
                )

    def odd(self) -> Iterator[OddValue]:
        usual, most = max(self._holders.items(), key=lambda entry: (len(entry[1]), entry[0]))
        base, others = exceptions(usual)
        if self._count < PEERS_MIN or 2 * len(most) <= self._count or self._spreads(usual, joined=False):
            return
        if base:
            for devices, value in others.items():
                if nodes := self._unplanned(most):
                    yield OddValue(self._name, value, base, nodes, self._count, 0, devices=devices)
        for value in sorted(self._holders.keys() - {usual}):
            if self._spreads(value, joined=True):
                continue
            nodes = self._unplanned(self._holders[value])
            if old := tuple(node for node in nodes if not self._has_just_changed(node)):
                yield OddValue(self._name, value, usual, old, self._count, len(most), peer=min(most))

    def _unplanned(self, nodes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(node for node in nodes if not self._planned(node)))

    def _is_new(self, since: float) -> bool:
        return self._at - ROLLOUT_S < since

    def _has_just_changed(self, node: str) -> bool:
        """To the value that it has, or it reported first within this time."""
        return any(self._is_new(change.since) for change in self._recent([node]))

    def _spreads(self, value: str, *, joined: bool) -> bool:
        """Whether nodes have got this value one after the other, the last of them within ``ROLLOUT_S``.

        Nodes that had no value before are no evidence alone: agents may report one more now. With ``joined`` those that
        reported first count as well. They do too where they are that many that nodes are installed anew in turn."""
        found = self._recent(self._holders[value])
        if not joined:
            joins = sum(change.kind is _Kind.JOINED for change in found)
            if joins < _INSTALLED_PART * self._count:
                found = [change for change in found if change.kind is not _Kind.JOINED]
                if all(change.kind is _Kind.NO_PAST for change in found):
                    return False
        return len(found) >= ROLLOUT_MIN and any(self._is_new(change.since) for change in found)

    def _recent(self, nodes: Iterable[str]) -> list[_Change]:
        """The last change of each of these nodes that has one within twice ``ROLLOUT_S``."""
        begin, end = self._at - 2 * ROLLOUT_S, self._at + _CLOCKS_S
        found = []
        for node in nodes:
            values = self._values[node]
            changed, since = last_change(values, self._name), values.since
            known = []
            if begin < abs(changed) <= end:
                known.append(_Change(abs(changed), _Kind.CHANGED if changed > 0 else _Kind.NO_PAST))
            if since is not None and begin < since <= end:
                known.append(_Change(since, _Kind.JOINED))
            if known:
                found.append(max(known))
        return found


class _Kind(IntEnum):
    JOINED = 0
    NO_PAST = 1
    CHANGED = 2


class _Change(NamedTuple):
    since: float
    kind: _Kind


def _is_expected(value: str, pattern: str) -> bool:
    """A digest may be anything, so it is no contradiction."""
    usual, others = exceptions(value)
    found = [text for text in (usual, *others.values()) if text and not has_digest(text)]
    return all(fnmatchcase(text, pattern) for text in found)
