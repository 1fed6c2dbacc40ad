"""The answer, kept together while the planner works: objects, labels, anomalies, and how they differ from what is.

Each part is put together again only when something of it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from nodeagent.fabric.groups import Group
from nodeagent.fabric.hypernode import BYTES_MAX, HyperNode, Texts, size_of
from nodeagent.fabric.outcome import Anomaly, Kind, Outcome, Overlap, Unplaced, Write
from nodeagent.fabric.rules import Rules
from nodeagent.fabric.settle import Seating
from nodeagent.fabric.switches import Oddity
from nodeagent.fabric.tiers import Tower
from nodeagent.fabric.told import Told
from nodeagent.fabric.writes import order


class Answer:
    """``leaves`` are the tier-1 objects that should be, ``unplaced`` the reasons of nodes that have no place."""

    def __init__(self, told: Told, seating: Seating, tower: Tower) -> None:
        self._told = told
        self._seating = seating
        self._tower = tower
        self._odd: dict[str, tuple[Anomaly, ...]] = {}
        self._tied: dict[Group, tuple[Anomaly, ...]] = {}
        self._switches: tuple[Anomaly, ...] = ()
        self._differs: set[str] = set()
        self._chains: dict[str, Texts] = {}
        self._mappings: dict[str, dict[str, str]] = {}
        self._relabel: set[str] = set()
        self._anomalies: tuple[Anomaly, ...] | None = None
        self._hypernodes: tuple[HyperNode, ...] | None = None
        self.leaves: dict[str, HyperNode] = {}
        self.unplaced: dict[str, str] = {}
        self.trimmed: Mapping[str, tuple[str, ...]] = {}

    def forget(self) -> None:
        self._odd = {}
        self._tied = {}
        self._anomalies = None

    @property
    def odd_nodes(self) -> Set[str]:
        """The nodes that something is odd about."""
        return self._odd.keys()

    def odd(self, node: str, found: tuple[Anomaly, ...]) -> None:
        """What is odd about a node."""
        if found != self._odd.get(node, ()):
            self._anomalies = None
            if found:
                self._odd[node] = found
            else:
                del self._odd[node]

    def tied(self, group: Group, found: tuple[Anomaly, ...]) -> None:
        """What cannot be decided about a group."""
        if found != self._tied.get(group, ()):
            self._anomalies = None
            if found:
                self._tied[group] = found
            else:
                del self._tied[group]

    def oddities(self, names: Mapping[str, Oddity], shared: Mapping[str, tuple[Anomaly, ...]]) -> None:
        """What is odd about switches, and objects that are too large."""
        found = [Anomaly(odd.kind, "", "", odd.switch, odd.message) for odd in names.values()]
        found += [anomaly for anomalies in shared.values() for anomaly in anomalies]
        for name, nodes in self.trimmed.items():
            message = (
                f"the leaf group {name} is too large for one object by {len(nodes)} nodes: say in the topology "
                "file how it is divided"
            )
            found.append(Anomaly(Kind.OVERSIZED, "", "", name, message))
        found += [
            Anomaly(Kind.OVERSIZED, "", "", upper.name, f"{upper.name} has too many members for one object")
            for upper in self._tower.wanted.values()
            if size_of(upper.children) > BYTES_MAX
        ]
        now = tuple(found)
        if now != self._switches:
            self._switches = now
            self._anomalies = None

    def leaf(self, name: str, made: HyperNode | None) -> bool:
        """A tier-1 object as it should be; true if that matters to the tiers above."""
        before = self.leaves.get(name)
        if made is None:
            self.leaves.pop(name, None)
        else:
            self.leaves[name] = made
        self._hypernodes = None
        if before is None or made is None:
            return before is not made
        return before.switches != made.switches

    def chain(self, chains: dict[str, Texts]) -> None:
        """The labels of the nodes of each tier-1 object."""
        news = self._told.label_news
        for name in self._chains.keys() | chains.keys():
            if chains.get(name) != self._chains.get(name):
                news.update(self._seating.members.get(name, ()))
        self._chains = {name: self._told.shared(chain) for name, chain in chains.items()}
        self._mappings = {name: dict(chain) for name, chain in chains.items()}
        self._hypernodes = None

    def compare(self, names: Iterable[str]) -> None:
        """Which of these objects differ from what is published."""
        own, tower = self._told.own, self._tower.wanted
        for name in names:
            wanted, published = self.leaves.get(name) or tower.get(name), own.get(name)
            differs = wanted is not published
            if wanted is not None and published is not None:
                differs = not wanted.same(published)
            if differs:
                self._differs.add(name)
            else:
                self._differs.discard(name)

    def outcome(self, now: float, rules: Rules, waiting: Mapping[str, float]) -> Outcome:
        self._label()
        overlaps = self._overlaps(rules)
        seating, tower = self._seating, self._tower
        breakers = (seating.breaker, *(one.breaker for one in tower.seatings.values()))
        ends = [seating.next_at(now), tower.next_at(now)]
        ends += [since + rules.hysteresis.settle_s for since in waiting.values()]
        if self._hypernodes is None:
            wanted = (*self.leaves.values(), *tower.wanted.values())
            self._hypernodes = tuple(sorted(wanted, key=lambda one: (one.tier, one.name)))
        trimmed = {node: name for name, nodes in self.trimmed.items() for node in nodes}
        return Outcome(
            hypernodes=self._hypernodes,
            labels=NodeLabels(seating.seat, self._mappings, trimmed),
            relabel=Patches(self._relabel, self._told, seating.seat, self._chains),
            anomalies=self._all_anomalies(),
            unplaced=self._all_unplaced(trimmed),
            writes=self._writes(overlaps, rules),
            overlaps=overlaps,
            overlapping=_overlapping(self._told.own, overlaps),
            below_min_links=tuple(sorted(node for node in self._told.poor if self._told.exists(node))),
            breaker=next((one for one in breakers if one is not None), None),
            waiting=len(seating.pending) + sum(len(one.pending) for one in tower.seatings.values()),
            placed=len(seating.seat) - len(trimmed),
            next_at=min((end for end in ends if end is not None and end > now), default=None),
        )

    def _all_anomalies(self) -> tuple[Anomaly, ...]:
        if self._anomalies is None:
            found = [
                one for part in (self._odd, self._tied) for anomalies in part.values() for one in anomalies
            ]
            self._anomalies = tuple(sorted((*found, *self._switches)))
        return self._anomalies

    def _all_unplaced(self, trimmed: Mapping[str, str]) -> tuple[Unplaced, ...]:
        found = [Unplaced(node, why) for node, why in self.unplaced.items()]
        found += [Unplaced(node, f"there is no room left in {name}") for node, name in trimmed.items()]
        return tuple(sorted(found))

    def _writes(self, overlaps: tuple[Overlap, ...], rules: Rules) -> tuple[Write, ...]:
        if not self._differs or (overlaps and rules.foreign == "refuse"):
            return ()
        return order(self._told.own, _Both(self.leaves, self._tower.wanted), self._differs)

    def _overlaps(self, rules: Rules) -> tuple[Overlap, ...]:
        strangers = self._told.strangers
        if not strangers or rules.foreign != "refuse":
            return ()
        nodes = (
            {node: dict(labels) for node, (_, labels) in self._told.nodes.items()}
            if strangers.vague
            else None
        )
        return strangers.overlaps(self._seating.seat, self._tower.parent, nodes)

    def _label(self) -> None:
        """What must be patched on Nodes whose labels are known."""
        told, seat, chains = self._told, self._seating.seat, self._chains
        news, told.label_news = told.label_news | self._seating.moved, set()
        self._seating.moved = set()
        nodes, relabel = told.nodes, self._relabel
        for node in news:
            known = nodes.get(node)
            wanted = chains.get(seat.get(node, ""), ())
            if known is None or known[0] is wanted or known[0] == wanted:
                relabel.discard(node)
            else:
                relabel.add(node)


def _overlapping(
    published: Mapping[str, HyperNode], overlaps: tuple[Overlap, ...]
) -> dict[str, tuple[str, ...]]:
    """Which of ours have to do with which of theirs."""
    holders: dict[str, list[str]] = {}
    for overlap in overlaps:
        for member in overlap.members:
            holders.setdefault(member, []).append(overlap.name)
    if not holders:
        return {}
    found = {
        name: {other for member in (name, *one.nodes) for other in holders.get(member, ())}
        for name, one in published.items()
    }
    return {name: tuple(sorted(others)) for name, others in sorted(found.items()) if others}


class NodeLabels(Mapping[str, Mapping[str, str]]):
    """The labels of all placed nodes, without a copy: it holds until the next plan."""

    def __init__(
        self, seat: Mapping[str, str], chains: Mapping[str, Mapping[str, str]], without: Mapping[str, str]
    ) -> None:
        self._seat = seat
        self._chains = chains
        self._without = without

    def __getitem__(self, node: str) -> Mapping[str, str]:
        if node in self._without:
            raise KeyError(node)
        return self._chains[self._seat[node]]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(node for node in self._seat if node not in self._without))

    def __len__(self) -> int:
        return len(self._seat) - len(self._without)


class Patches(Mapping[str, Mapping[str, str | None]]):
    """What must be patched on Nodes, made when it is asked for: it holds until the next plan."""

    def __init__(
        self, nodes: Set[str], told: Told, seat: Mapping[str, str], chains: Mapping[str, Texts]
    ) -> None:
        self._nodes = nodes
        self._told = told
        self._seat = seat
        self._chains = chains

    def __getitem__(self, node: str) -> Mapping[str, str | None]:
        if node not in self._nodes:
            raise KeyError(node)
        known = dict(self._told.nodes[node][0])
        wanted = dict(self._chains.get(self._seat.get(node, ""), ()))
        patch: dict[str, str | None] = dict.fromkeys(known.keys() - wanted.keys())
        patch.update((key, value) for key, value in wanted.items() if known.get(key) != value)
        return dict(sorted(patch.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._nodes))

    def __len__(self) -> int:
        return len(self._nodes)


class _Both(Mapping[str, HyperNode]):
    """The objects of all tiers by name."""

    def __init__(self, leaves: Mapping[str, HyperNode], uppers: Mapping[str, HyperNode]) -> None:
        self._leaves = leaves
        self._uppers = uppers

    def __getitem__(self, name: str) -> HyperNode:
        return self._leaves[name] if name in self._leaves else self._uppers[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._leaves
        yield from self._uppers

    def __len__(self) -> int:
        return len(self._leaves) + len(self._uppers)
