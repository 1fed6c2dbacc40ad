"""Cabling anomalies, by node and by switch.

* A switch serves a rail if the rail has at least a third as many of its links as its first rail, or if no other switch
  of the group has three times as many links of the rail. So a switch may serve several rails.
* A link is compared with the group that its node's links vote for, wherever the node is published, and with the nodes
  of its node's model there.
* A switch without nodes of its own counts for the group of the nodes that have a link to it. It is foreign instead if
  another switch of that group serves their rail for more nodes.
* A link whose LLDP information has expired names no cable, and its rail is not missing. Neither is a link that the node
  reports as unused, nor a rail that a quarter of the group's nodes lacks: such a unit is not cabled yet.
* One fault is one anomaly, or one at each of its two cables: a rack whose cables are all shifted by one rail, a cable
  between two nodes, a switch that several groups share, a ring of switches.

docs/cabling.md describes each kind of anomaly and what to do about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nodeagent.fabric.anomaly_texts import (
    NAMES_MAX,
    GroupRails,
    LinkPlace,
    RailCounts,
    contested_link,
    foreign_leaf,
    foreign_switch,
    no_leaves,
    node_to_node,
    nodes_in_a_ring,
    other_fabric,
    own_switches,
    rail_order,
    rail_shift,
    rails_text,
    shared_number,
    shared_ports,
    swapped_of_two,
)
from nodeagent.fabric.desired_places import group_of
from nodeagent.fabric.groups import MAJORITY, CablingPattern, SwitchGroup
from nodeagent.fabric.naming import GroupNames
from nodeagent.fabric.node_models import NodeModels
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import CompactReport, shown
from nodeagent.fabric.switch_keys import ADDRESS, CHASSIS
from nodeagent.fabric.votes import LinkVotes

PORTS_OF_DPU = 2
"""The most links of a node to one DPU."""
ALONE_MIN = 4
"""The fewest nodes with switches of their own that are named: a hall that is being cabled has one for each unit."""


class CablingCheck:
    """``adopted`` is the group of each switch whose own group has no nodes, except for ``foreign`` switches.
    ``anomalies`` are those of nodes, links and groups.
    """

    def __init__(self, votes: LinkVotes, names: GroupNames, placed: Mapping[str, str]) -> None:
        self._votes = votes
        self._counts = votes.rails
        self.adopted: dict[str, SwitchGroup] = {}
        self.foreign: set[str] = set()
        self._listed = {node for group in votes.static_groups.values() for node in group.forced}
        self._adoptees: dict[SwitchGroup, set[str]] = {}
        self._models: dict[SwitchGroup, NodeModels] = {}
        self._rails: dict[tuple[SwitchGroup, int], GroupRails] = {}
        self._shifted: dict[tuple[GroupRails, int], list[str]] = {}
        self.anomalies: list[Anomaly] = []
        self._check_switches()
        for pattern in votes.patterns:
            self._check_pattern(pattern, names, placed)
        for (rails, steps), nodes in self._shifted.items():
            self.anomalies.append(rail_shift(sorted(nodes), steps, rails))
        for group in votes.groups:
            self.anomalies += self._undecidable(group)
            if not group.leafless:
                self.anomalies += swapped_of_two(group)
            elif not all(pattern.nodes.keys() <= self._listed for pattern in group.voters):
                self.anomalies.append(no_leaves(group))
        for leaf, pair in votes.shared.items():
            self.anomalies.append(self._shared_switch(leaf, pair))
        self.anomalies += self._node_cables()
        self.anomalies += self._own_switches()
        self.anomalies += self._contested_links()
        self.anomalies += self._outranked_nodes()
        self.anomalies += _shared_numbers(votes.patterns)

    def home(self, leaf: str) -> SwitchGroup | None:
        """The group that a switch counts for: none, if it is foreign."""
        return None if leaf in self.foreign else self.adopted.get(leaf) or self._votes.of.get(leaf)

    def switches(self, group: SwitchGroup) -> set[str]:
        """The switches of a group, including those that it has adopted."""
        return self._adoptees.get(group, set()).union(group.leaves)

    def served(self, leaf: str, counts: RailCounts | None = None) -> tuple[str, ...]:
        """The rails with at least a third as many links to this switch as its first rail."""
        links = (self._counts if counts is None else counts).get(leaf, {})
        if len(links) == 1:
            return tuple(links)
        least = max(links.values(), default=0)
        return tuple(
            sorted((rail for rail, count in links.items() if MAJORITY * count > least), key=rail_order)
        )

    def rails(self, switches: Iterable[str]) -> frozenset[str]:
        """The rails of those switches that serve one rail each."""
        served = map(self.served, switches)
        return frozenset([rails[0] for rails in served if len(rails) == 1])

    def rails_of(self, group: SwitchGroup, pattern: CablingPattern | None = None) -> GroupRails:
        """All rails of a group, as the nodes of this pattern's model use them, or those of the usual model."""
        models = self._models_of(group)
        model = models.usual if pattern is None else models.of(pattern)
        if (rails := self._rails.get((group, model))) is None:
            rails = self._count_rails(group, model, self.switches(group))
            self._rails[group, model] = rails
        return rails

    def _models_of(self, group: SwitchGroup) -> NodeModels:
        if (models := self._models.get(group)) is None:
            models = self._models[group] = NodeModels(group)
        return models

    def _count_rails(self, group: SwitchGroup, model: int, leaves: Iterable[str]) -> GroupRails:
        models = self._models_of(group)
        voters = group.voters
        counts: RailCounts = self._counts
        leaves = sorted(leaves)
        if models.several:
            voters = [pattern for pattern in voters if models.of(pattern) == model]
        if (
            models.several
            or self._votes.shared
            or any(one.best is not group for leaf in leaves for one in self._votes.at(leaf))
        ):
            counts = count_links(voters)  # cables of other groups' nodes serve no rail here
        switch: dict[str, str] = {}
        links: dict[str, int] = {}
        total = {leaf: sum(counts[leaf].values()) for leaf in leaves if leaf in counts}
        for leaf, every in total.items():
            for rail, count in counts[leaf].items():
                most = links.get(rail, 0)
                if count > most or (count == most and every < total[switch[rail]]):
                    switch[rail], links[rail] = leaf, count
        nodes = 0
        cabled: Counter[str] = Counter()
        shared: Counter[tuple[str, str]] = Counter()
        for pattern in voters:
            count = len(pattern.nodes)
            nodes += count
            for slot in pattern.cables:
                if slot.neighbor is not None:
                    cabled[slot.rail] += count
            for slot, key in zip(pattern.shape, pattern.keys, strict=True) if self._votes.shared else ():
                if key in self._votes.shared:
                    shared[slot.rail, key] += count
        for (rail, leaf), count in sorted(shared.items()):
            if count > links.get(rail, 0):
                switch[rail], links[rail] = leaf, count
        built = frozenset(rail for rail, count in cabled.items() if 4 * count >= 3 * nodes)
        return GroupRails(switch, links, built, counts, cabled)

    def _serves(self, key: str, rail: str, rails: GroupRails) -> bool:
        """A link of this rail may go to this switch."""
        if rails.switch.get(rail, key) == key:
            return True
        counts = rails.counts.get(key, {})
        count = counts.get(rail, 0)
        if count == 1 < max(counts.values(), default=0):  # one cable, in a switch that serves another rail
            right = rails.counts.get(rails.switch[rail], {})
            return rails.links[rail] == 1 and sum(counts.values()) <= sum(right.values())
        return rails.links[rail] < MAJORITY * count or rail in self.served(key, rails.counts)

    def _check_switches(self) -> None:
        of = self._votes.of
        columns: dict[CablingPattern, list[tuple[str, ...]]] = {}
        for pattern in self._votes.patterns:
            columns[pattern] = list(zip(*[report.ports for report in pattern.nodes.values()], strict=True))
        for leaf, group in of.items():
            if group.voters or group.forced:
                continue
            if self._is_foreign(leaf):
                self.foreign.add(leaf)
            elif (home := self._adopter(leaf)) is not None:
                self.adopted[leaf] = home
                self._adoptees.setdefault(home, set()).add(leaf)
        for leaf in (*of, *self._votes.shared):
            places = self._places(leaf)
            pattern, i = places[0]
            ports = columns[pattern][i]
            for pattern, i in places[1:]:
                ports += columns[pattern][i]
            if len(set(ports)) != len(ports):
                self.anomalies += shared_ports(leaf, places)

    def _places(self, leaf: str) -> Sequence[LinkPlace]:
        """The links to a switch."""
        patterns = self._votes.at(leaf)
        if len(patterns) == 1 and len(patterns[0].leaves) == len(patterns[0].keys):
            return [(patterns[0], patterns[0].keys.index(leaf))]
        return [(pattern, i) for pattern in patterns for i, key in enumerate(pattern.keys) if key == leaf]

    def _is_foreign(self, leaf: str) -> bool:
        """In each group with nodes that have a link to this switch, another one serves the rail of these links."""
        if leaf in self._votes.pairs.static:
            return False
        counts: Counter[tuple[SwitchGroup, int, str]] = Counter()
        for pattern, i in self._places(leaf):
            if (group := pattern.best) is not None:
                if group.leafless:
                    return False
                counts[group, self._models_of(group).of(pattern), pattern.shape[i].rail] += len(pattern.nodes)
        groups = {group for group, _, _ in counts}
        for (group, model, rail), count in counts.items():
            rails = self._count_rails(group, model, group.leaves)
            most = rails.links.get(rail, 0)
            if most < MAJORITY or (most <= count and len(groups) == 1):
                return False
            if 3 * most < 2 * rails.cabled[rail]:
                return False  # a rail with a switch for each rack, or for each half
        return bool(counts)

    def _adopter(self, leaf: str) -> SwitchGroup | None:
        """The group of most nodes with a link to this switch."""
        weights: Counter[SwitchGroup] = Counter()
        for pattern in self._votes.at(leaf):
            if pattern.best is not None:
                weights[pattern.best] += len(pattern.nodes)
        most = max(weights.values(), default=0)
        return min(
            (group for group in weights if weights[group] == most),
            key=lambda group: group.anchor,
            default=None,
        )

    def _check_pattern(self, pattern: CablingPattern, names: GroupNames, placed: Mapping[str, str]) -> None:
        best = pattern.best
        if best is None or best.leafless:
            return
        regular = self._is_regular(pattern, best)
        for node, report in pattern.nodes.items():
            if not regular or report.miscabled:
                group = group_of(node, pattern, placed, names) or best
                self.anomalies += self._of_node(node, report, pattern, group)

    def _is_regular(self, pattern: CablingPattern, group: SwitchGroup) -> bool:
        """Each link goes to a switch of its rail in this group, and each rail that is built has a link."""
        rails, shared, of = self.rails_of(group, pattern), self._votes.shared, self._votes.of
        switch = rails.switch
        for key, slot in zip(pattern.keys, pattern.shape, strict=True):
            if switch.get(slot.rail) == key and of.get(key) is group:
                continue
            if not key:
                if slot.rail in rails.built:
                    return False
            elif not self._serves(key, slot.rail, rails) or (
                key not in shared and self.home(key) is not group
            ):
                return False
        return rails.built.issubset([slot.rail for slot in pattern.shape])

    def _of_node(
        self, node: str, report: CompactReport, pattern: CablingPattern, group: SwitchGroup
    ) -> Iterator[Anomaly]:
        rails = self.rails_of(group, pattern)
        foreign: dict[int, SwitchGroup] = {}
        strange: list[int] = []
        wrong: list[int] = []
        miscabled: list[int] = []
        for i, slot in enumerate(pattern.shape):
            key = pattern.keys[i]
            home = self.home(key) if key else None
            if key in self.foreign:
                alone = sum(self._counts[key].values()) == 1
                (wrong if alone else strange).append(i)
            elif home is not None and home is not group:
                # Without a switch of this rail in the node's group, the two groups may share this one, except where
                # the topology file defines them.
                if slot.rail in rails.switch or home.static or slot.rail in self._usual(group, rails):
                    foreign[i] = home
            elif key and not self._serves(key, slot.rail, rails):
                wrong.append(i)
            elif i in report.miscabled:
                miscabled.append(i)
        served = {slot.rail: key for slot, key in zip(pattern.shape, pattern.keys, strict=True) if key}
        away = {pattern.keys[i] for i in (*foreign, *strange)}
        if wrong and (steps := find_shift(served, rails.order, rails.switch, away)):
            self._shifted.setdefault((rails, steps), []).append(node)
            return
        for i, home in foreign.items():
            yield foreign_leaf(node, pattern, i, home, {**self._usual(group, rails), **rails.switch})
        for i in strange:
            yield foreign_switch(node, pattern, i, rails)
        for i in miscabled:
            key, link = pattern.keys[i], shown(pattern.shape[i].link)
            message = (
                f"{node} itself reports {link} as miscabled, at {key or 'no switch'}: move this cable to the port of "
                "the node's cabling plan, which `nodeagent health` on the node names"
            )
            yield Anomaly(AnomalyKind.MISCABLED, node, link, key, message)
        yield from self._wrong_rails(node, pattern, rails, wrong)
        yield from self._missing_rails(node, report, pattern, rails)

    def _usual(self, group: SwitchGroup, rails: GroupRails) -> Mapping[str, str]:
        """The switches by rail of the group's usual model; none for nodes that have half of them, as gateways with
        rails of their own."""
        usual = self.rails_of(group).switch
        return usual if 2 * len(usual.keys() & rails.switch.keys()) > len(usual) else {}

    def _wrong_rails(
        self, node: str, pattern: CablingPattern, rails: GroupRails, wrong: Sequence[int]
    ) -> Iterator[Anomaly]:
        """Links to the switch of another rail. Two are swapped if both are right after an exchange."""
        switch = rails.switch
        swapped: dict[int, int] = {}
        for i in wrong:
            for j in wrong:
                if (
                    i < j
                    and not swapped.keys() & {i, j}
                    and pattern.keys[i] == switch.get(pattern.shape[j].rail)
                    and pattern.keys[j] == switch.get(pattern.shape[i].rail)
                ):
                    swapped[i], swapped[j] = j, i
        for i in wrong:
            slot, key = pattern.shape[i], pattern.keys[i]
            link, serves = shown(slot.link), rails_text(self.served(key), slot.rail)
            if i in swapped:
                other = pattern.shape[swapped[i]]
                message = (
                    f"{link} of {node} is cabled to {key}, the switch of rail {shown(other.rail)}: swap it with the "
                    f"cable of {shown(other.link)}"
                )
                yield Anomaly(AnomalyKind.RAIL_SWAP, node, link, key, message)
                continue
            to = switch.get(slot.rail, "")
            should = to or "the switch of its rail"
            at = f"which serves {serves}" if serves else "to which no other node is cabled"
            message = f"{link} of {node} is cabled to {key}, {at}: move it to {should}"
            yield Anomaly(AnomalyKind.MISCABLED, node, link, key, message, to=to)

    def _missing_rails(
        self, node: str, report: CompactReport, pattern: CablingPattern, rails: GroupRails
    ) -> Iterator[Anomaly]:
        places = {slot.rail: i for i, slot in enumerate(pattern.shape)}
        for rail in rails.order:
            place = places.get(rail)
            if rail not in rails.built:
                continue
            if place is not None and (report.shape[place].neighbor is not None or place in report.unused):
                continue
            message = (
                f"{node} reports no link to {rails.switch[rail]}, the switch of rail {shown(rail)} in its group: check "
                "the link, its cable, and LLDP on the port"
            )
            link = "" if place is None else shown(pattern.shape[place].link)
            yield Anomaly(AnomalyKind.MISSING_RAIL, node, link, rails.switch[rail], message)

    def _shared_switch(self, leaf: str, pair: tuple[str, str]) -> Anomaly:
        names = {
            announcement.name
            for announcement, key in self._votes.names.keys.items()
            if key == leaf and announcement.name
        }
        links = sorted({pattern.shape[i].link for pattern, i in self._places(leaf)})
        select = f"switches: [{', '.join(shown(name) for name in sorted(names))}]"
        if leaf.startswith((CHASSIS, ADDRESS)):
            select = f"links: [{', '.join(map(shown, links[:NAMES_MAX]))}]"
        message = (
            f"{leaf} serves several leaf groups, such as those of {pair[0]} and {pair[1]}: it is a switch of another "
            "fabric or of an upper tier, and its links count for no group. If it is of a storage fabric, write this "
            f"entry of `fabrics` into the controller's file: {{fabric: storage, {select}}}"
        )
        return Anomaly(AnomalyKind.SHARED_SWITCH, "", "", leaf, message)

    def _node_cables(self) -> Iterator[Anomaly]:
        """Cables between nodes, each once. Nodes with more of these than cables to switches have no leaf switch."""
        peers = self._votes.peers.of
        if not peers:
            return
        cables: dict[tuple[str, str], list[tuple[str, str]]] = {}
        without: set[str] = set()
        for pattern in self._votes.patterns:
            found = [
                (slot, peers[slot.neighbor])
                for slot in pattern.shape
                if slot.neighbor is not None and slot.neighbor in peers
            ]
            for node in pattern.nodes if found else ():
                for slot, peer in found:
                    if peer != node:
                        cables.setdefault((min(node, peer), max(node, peer)), []).append((node, slot.link))
                if len(found) > len(pattern.shape) - pattern.links_without_neighbor:
                    without.add(node)
        if len(without) > 2:
            if unlisted := sorted(without - self._listed):
                yield nodes_in_a_ring(unlisted)
        else:
            without = set()
        for (one, other), ends in sorted(cables.items()):
            if one in without or other in without:
                continue
            yield from node_to_node(one, other, ends)

    def _contested_links(self) -> Iterator[Anomaly]:
        """Links on which a second device sends beside the switch. The switch, confirmed longest, stays the neighbor."""
        for pattern in self._votes.patterns:
            for node, report in pattern.nodes.items():
                for i in sorted(report.contested) if report.contested else ():
                    others = [(slot.neighbor, port) for at, slot, port in report.contenders if at == i]
                    own = (report.shape[i].neighbor, report.ports[i])
                    same = own in others or (own[0], "") in others
                    yield contested_link(
                        node, shown(pattern.shape[i].link), pattern.keys[i], bool(others), same
                    )

    def _outranked_nodes(self) -> Iterator[Anomaly]:
        """Nodes whose links outside the tree have more bandwidth than those of the tree, once for all of them."""
        nodes = {
            node: (pattern, report)
            for pattern in self._votes.patterns
            for node, report in pattern.nodes.items()
            if report.outranking
        }
        if nodes:
            pattern, report = nodes[min(nodes)]
            yield other_fabric(sorted(nodes), [slot.link for slot in pattern.shape], report.outranking)

    def _own_switches(self) -> Iterator[Anomaly]:
        """Nodes of which each link is up, and whose switches no other node reaches: DPUs, more likely than switches."""
        alone: dict[str, str] = {}
        for pattern in self._votes.patterns:
            if (
                len(pattern.nodes) > 1
                or len(pattern.leaves) < 2
                or pattern.best is None
                or pattern.best.static
            ):
                continue
            for node, report in pattern.nodes.items():
                if node in self._listed:
                    continue
                if report.up == len(pattern.shape) and all(
                    len(self._votes.at(leaf)) == 1 and pattern.keys.count(leaf) <= PORTS_OF_DPU
                    for leaf in pattern.leaves
                ):
                    alone[node] = pattern.leaves[0]
        if len(alone) >= ALONE_MIN:
            yield own_switches(sorted(alone), alone[min(alone)])

    def _undecidable(self, group: SwitchGroup) -> Iterator[Anomaly]:
        """A group that falls into several parts, each with nodes, if exactly half is no majority."""
        if not group.tied or group.leafless:
            return
        strict = self._votes.pairs.strict_parts()
        parts = {frozenset(strict[leaf]) for leaf in group.leaves}
        inhabited = sorted(min(part) for part in parts if _has_nodes(part, group.voters))
        if len(inhabited) > 1:
            message = (
                f"the switches around {' and '.join(inhabited[:3])} may be one group or {len(inhabited)}: too few "
                "nodes are cabled to decide; define the groups in the topology file"
            )
            yield Anomaly(AnomalyKind.UNDECIDABLE, "", "", group.anchor, message)


def _shared_numbers(patterns: Iterable[CablingPattern]) -> Iterator[Anomaly]:
    """NICs of several nodes that have one number in a prefix: their VFs would have the same addresses in pods."""
    owners: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for pattern in patterns:
        for node, report in pattern.nodes.items():
            for link in report.numbered:
                if link.number:
                    owners.setdefault((link.prefix, link.number), []).append((node, link.link))
    for (prefix, number), ends in sorted(owners.items()):
        if len({node for node, _ in ends}) > 1:
            yield shared_number(prefix, number, sorted(ends))


def count_links(patterns: Iterable[CablingPattern]) -> RailCounts:
    """The links of these patterns to each switch, by rail."""
    counts: dict[str, dict[str, int]] = {}
    for pattern in patterns:
        for slot, key in zip(pattern.shape, pattern.keys, strict=True):
            if key:
                rails = counts.setdefault(key, {})
                rails[slot.rail] = rails.get(slot.rail, 0) + len(pattern.nodes)
    return counts


def _has_nodes(part: frozenset[str], voters: Iterable[CablingPattern]) -> bool:
    """The nodes of some pattern have most of their links with a neighbor in this part."""
    return any(
        2 * sum(key in part for key in pattern.keys) > len(pattern.keys) - pattern.links_without_neighbor
        for pattern in voters
    )


SHIFTED_MIN = 3
"""The fewest wrong cables that make a shift: two are a swap, or two faults."""


def find_shift(
    cabled: Mapping[str, str], order: Sequence[str], switch: Mapping[str, str], away: Collection[str]
) -> int:
    """The number of rails, positive or negative, by which all cables of a node are shifted; 0 if they are not.

    ``cabled`` is the switch of each rail of the node, ``switch`` that of each rail of its group, and ``order`` the
    rails of the group. The rails from the first wrong cable to the last one count, so that other cables, such as those
    for storage, may be right. A cable that is shifted beyond the last of these goes to the first one, to a switch in
    ``away`` (outside the group), or nowhere.
    """
    place = {rail: i for i, rail in enumerate(order)}
    own = {place[rail]: key for rail, key in cabled.items() if rail in place}
    wrong = [i for i, key in own.items() if switch[order[i]] != key]
    if len(wrong) < SHIFTED_MIN:
        return 0
    first, count = min(wrong), max(wrong) - min(wrong) + 1
    run = {i: key for i, key in own.items() if first <= i < first + count}

    def fits(i: int, steps: int) -> bool:
        target = i + steps
        known = {switch[order[target]]} if 0 <= target < len(order) else set[str]()
        if not first <= target < first + count:
            known |= {switch[order[first + (target - first) % count]], *away}
        return run[i] in known

    for size in range(1, count):
        for steps in (size, -size):
            inside = sum(first <= i + steps < first + count for i in wrong)
            if inside >= SHIFTED_MIN - 1 and all(fits(i, steps) for i in run):
                return steps
    return 0
