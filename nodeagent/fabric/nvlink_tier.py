"""The tier of NVLink domains, below the leaf groups: which nodes reach each other by NVLink.

* A domain lies inside one leaf group. If its nodes are in several, it belongs to the group with three quarters of them,
  and the others are not in it. Without such a group it is left out.
* Nodes without a leaf group go with their domain. A domain of such nodes alone has no parent.
* A node without a domain is a member of its leaf group itself: in an object of the lowest tier, a job that requires
  NVLink would run on it. A domain of one node is left out: it joins nothing.
* An object is named once, and keeps its name while half of its nodes stay together, whatever ID the domain gets.
* Moves wait until the nodes of the new domain are the same for ``move_seconds``: while a fabric is divided again, its
  nodes report their new IDs one after the other. A node that reports no domain any more leaves after ``grace_seconds``.
* A node without a report stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from nodeagent.fabric.anomaly_texts import names_of
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.hypernode import NVLINK, NVLINK_DOMAIN, HyperNode, labels_of, tier_name
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.naming import free_name, match_names
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.placement import Placement, place
from nodeagent.fabric.published import PublishedTree

_MAJORITY = 3
"""A domain belongs to a leaf group with this many times as many of its nodes as all others have."""
_LEAST = 2
"""The least number of nodes of a domain that is published."""


class NvlinkTier:
    """``objects`` by name, ``parent`` the leaf group of each, ``of`` the object of each node.

    ``adopted`` is the leaf group of nodes that their domain places. ``placement`` is for the next plan.
    """

    def __init__(
        self,
        rules: FabricRules,
        levels: Levels,
        published: PublishedTree,
        leaf: Mapping[str, str],
        free: Collection[str],
        has_other_parent: Callable[[str], bool],
        before: Placement,
        now: float,
    ) -> None:
        """``leaf`` is the leaf group of each placed node, ``free`` are nodes that no leaf group has so far.
        ``has_other_parent``: an object of another owner lists this object.
        """
        self._rules, self._levels, self._published = rules, levels, published
        self._leaf, self._free, self._has_other_parent = leaf, free, has_other_parent
        self.objects: dict[str, HyperNode] = {}
        self.parent: dict[str, str] = {}
        self.of: dict[str, str] = {}
        self.adopted: dict[str, str] = {}
        self.placement = Placement()
        self.anomalies: list[Anomaly] = []
        reported = self._read_reports()
        if rules.tiers.nvlink == "auto" and (reported or published.tiers[NVLINK].placed):
            self._place(reported, before, now)

    def _read_reports(self) -> dict[str, list[str]]:
        """The nodes of each reported domain, as far as they may be in one."""
        reported: dict[str, list[str]] = {}
        for node, report in self._levels.reports.items():
            if not report.domains or not self._levels.exists(node):
                continue
            if len(report.domains) > 1:
                self.anomalies.append(_mixed(node, report.domains))
            elif report.domain and (node in self._leaf or node in self._free):
                reported.setdefault(report.domain, []).append(node)
        return reported

    def _place(self, reported: Mapping[str, list[str]], before: Placement, now: float) -> None:
        members, levels = self._published.tiers[NVLINK], self._levels
        desired: dict[str, str | None] = {}
        unknown: Counter[str] = Counter()
        for node, here in members.placed.items():
            if levels.exists(node) and node not in levels.reports and node in self._leaf.keys() | self._free:
                desired[node] = None
                unknown[here] += 1
        names = self._name(reported, unknown)
        for domain, nodes in reported.items():
            if domain in names:
                desired.update(dict.fromkeys(nodes, names[domain]))
        leaving = [
            node
            for node in members.placed
            if node not in desired and (node in self._leaf or not levels.exists(node))
        ]
        waited = _without_changed(before, desired, members.placed)
        self.placement = place(waited, members, desired, leaving, self._rules.hysteresis, now)
        nodes_of: dict[str, list[str]] = {}
        for node, name in self.placement.place.items():
            nodes_of.setdefault(name, []).append(node)
        domain_of = {name: domain for domain, name in names.items()}
        for name, nodes in sorted(nodes_of.items()):
            self._make(name, nodes, domain_of.get(name))

    def _name(self, reported: Mapping[str, list[str]], unknown: Mapping[str, int]) -> dict[str, str]:
        """The name of each domain with at least two nodes. ``unknown`` counts the nodes without a report by object."""
        members, own = self._published.tiers[NVLINK], self._published.objects
        claims: dict[str, dict[str, tuple[int, int]]] = {}
        for domain, nodes in reported.items():
            shared = Counter(here for node in nodes if (here := members.placed.get(node)) is not None)
            claims[domain] = {
                name: (count, int(own[name].note(NVLINK_DOMAIN) == domain))
                for name, count in shared.items()
                if 2 * count >= members.size[name] or own[name].note(NVLINK_DOMAIN) == domain
            }
        matched = match_names(claims, str)
        names: dict[str, str] = {}
        taken: set[str] = set()
        for domain, nodes in sorted(reported.items()):
            name = matched.get(domain)
            if len(nodes) + unknown.get(name or "", 0) < _LEAST:
                continue
            names[domain] = name or free_name(
                self._rules.fabric,
                NVLINK + self._rules.tier_offset,
                domain,
                lambda name: self._levels.is_taken(name) or name in taken,
                "nvl",
            )
            taken.add(names[domain])
        return names

    def _make(self, name: str, nodes: list[str], domain: str | None) -> None:
        """Make the object of a domain from its nodes in one leaf group."""
        old = self._published.objects.get(name)
        domain = domain or (old.note(NVLINK_DOMAIN) if old is not None else "")
        leaves = Counter(leaf for node in nodes if (leaf := self._leaf.get(node)) is not None)
        parent: str | None = None
        if leaves:
            parent, most = max(leaves.items(), key=lambda item: (item[1], item[0]))
            rest = leaves.total() - most
            if rest:
                parent = parent if most >= _MAJORITY * rest else None
                apart = sorted(node for node in nodes if self._leaf.get(node, parent) != parent)
                self.anomalies.append(_split(domain or name, parent, leaves, apart))
            if parent is None:
                return
        inside = sorted(node for node in nodes if self._leaf.get(node, parent) == parent)
        if len(inside) < _LEAST:
            return
        self.of.update(dict.fromkeys(inside, name))
        if parent is not None:
            self.adopted.update((node, parent) for node in inside if node not in self._leaf)
            if not self._has_other_parent(name):
                self.parent[name] = parent
        self.objects[name] = HyperNode(
            name=name,
            tier=NVLINK + self._rules.tier_offset,
            tier_name=tier_name(NVLINK),
            nodes=tuple(inside),
            labels=labels_of(self._rules.fabric, NVLINK),
            annotations=((NVLINK_DOMAIN, domain),) if domain else (),
        )


def _without_changed(
    before: Placement, desired: Mapping[str, str | None], placed: Mapping[str, str]
) -> Placement:
    """The placement before, without the pending moves to objects to which other nodes move now."""
    moves: dict[str, set[str]] = {}
    for node, target in desired.items():
        if target is not None and placed.get(node, target) != target:
            moves.setdefault(target, set()).add(node)
    waited: dict[str, set[str]] = {}
    for node, (target, _) in before.pending.items():
        waited.setdefault(target, set()).add(node)
    changed = {target for target, nodes in waited.items() if moves.get(target) != nodes}
    if not changed:
        return before
    pending = {node: move for node, move in before.pending.items() if move[0] not in changed}
    return replace(before, pending=pending)


def _mixed(node: str, domains: tuple[tuple[str, tuple[int, ...]], ...]) -> Anomaly:
    parts = [f"{', '.join(map(str, gpus)) or 'some'} in {domain or 'none'}" for domain, gpus in domains[:5]]
    message = (
        f"the GPUs of {node} are in several NVLink domains (GPU {'; '.join(parts)}), so the node is in none: assign "
        "all its GPUs to one partition of the NVLink fabric, and reset those that did not join it"
    )
    return Anomaly(AnomalyKind.NVLINK_DOMAIN_MIXED, node, "", "", message)


def _split(domain: str, parent: str | None, leaves: Counter[str], apart: list[str]) -> Anomaly:
    counts = ", ".join(
        f"{count} in {leaf}" for leaf, count in sorted(leaves.items(), key=lambda item: -item[1])[:5]
    )
    if parent is None:
        why = "none has three quarters of them, so the domain is left out"
    else:
        why = f"it belongs to {parent}, and {names_of(apart)} {'is' if len(apart) == 1 else 'are'} left out of it"
    message = (
        f"the NVLink domain {domain} has nodes in several leaf groups ({counts}): {why}; correct the cables of these "
        "nodes, or list all nodes of the domain in one group of the topology file"
    )
    return Anomaly(
        AnomalyKind.NVLINK_DOMAIN_SPLIT, apart[0] if len(apart) == 1 else "", "", "", message, tuple(apart)
    )
