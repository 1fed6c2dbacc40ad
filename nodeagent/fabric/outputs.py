"""The outcome of a plan: objects, labels, anomalies, and how they differ from the cluster."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from nodeagent.fabric.anomalies import CablingCheck
from nodeagent.fabric.desired_places import DesiredPlaces
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.foreign import ForeignHyperNodes
from nodeagent.fabric.hypernode import BYTES_MAX, LEAF, NVLINK, TIER_NAMES, HyperNode, Texts, size_of
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.leaf_objects import LeafObjects
from nodeagent.fabric.nvlink_tier import NvlinkTier
from nodeagent.fabric.outcome import Anomaly, AnomalyKind, Overlap, PlanOutcome, UnplacedNode
from nodeagent.fabric.placement import Placement
from nodeagent.fabric.switch_keys import plain
from nodeagent.fabric.switch_names import SwitchNames
from nodeagent.fabric.tiers import UpperTiers
from nodeagent.fabric.writes import order

Patch = dict[str, str | None]


def make_outcome(
    rules: FabricRules,
    levels: Levels,
    foreign: ForeignHyperNodes,
    names: SwitchNames,
    desired: DesiredPlaces,
    nodes: Placement,
    cabling: CablingCheck,
    nvlink: NvlinkTier,
    leaves: LeafObjects,
    tiers: UpperTiers,
    now: float,
) -> PlanOutcome:
    """``nodes`` is the placement of the nodes in leaf groups."""
    wanted = {**nvlink.objects, **leaves.objects, **tiers.objects}
    trimmed = {node: name for name, left_out in leaves.trimmed.items() for node in left_out}
    labels = _WantedLabels(rules, levels, nodes.place, nvlink, leaves, tiers)
    placements = (nodes, nvlink.placement, *tiers.active)
    ends = [placement.next_at(now, rules.hysteresis) for placement in placements]
    ends += [since + rules.hysteresis.settle_seconds for since in desired.waiting.values()]
    overlaps = _overlaps(
        rules,
        levels,
        foreign,
        {**nodes.place, **nvlink.of} if nvlink.of else nodes.place,
        {**nvlink.parent, **tiers.parent},
    )
    odd_cables = [*cabling.anomalies, *nvlink.anomalies, *names.anomalies]
    is_blocked = bool(overlaps) and rules.foreign == "refuse"
    return PlanOutcome(
        hypernodes=tuple(sorted(wanted.values(), key=lambda hypernode: (hypernode.tier, hypernode.name))),
        labels=_labels(nodes.place, labels),
        relabel=_relabel(levels, labels),
        anomalies=tuple(
            replace(odd, message=plain(odd.message)) if "%" in odd.message else odd
            for odd in sorted([*odd_cables, *levels.rail_anomalies, *_oversized(leaves, tiers)])
        ),
        unplaced=_unplaced(desired.unplaced, nvlink.adopted, trimmed),
        writes=() if is_blocked else order(levels.own, wanted, _differing(levels.own, wanted)),
        overlaps=overlaps,
        overlapping=_overlapping(levels.own, overlaps),
        below_min_links=_below_min_links(rules, levels),
        breaker=nodes.breaker or nvlink.placement.breaker or tiers.breaker,
        waiting=sum(len(placement.pending) for placement in placements),
        placed=len(nodes.place) - len(trimmed),
        next_at=min((end for end in ends if end is not None and end > now), default=None),
        reports=levels.reports,
    )


class _WantedLabels:
    """The labels of each node: the names of its objects, and its NVLink domain where a preset asks for it.

    A node without a report keeps the label of its domain: a missing report is no other domain.
    """

    def __init__(
        self,
        rules: FabricRules,
        levels: Levels,
        place: Mapping[str, str],
        nvlink: NvlinkTier,
        leaves: LeafObjects,
        tiers: UpperTiers,
    ) -> None:
        self._levels, self._place, self._domain = levels, place, nvlink.of
        self._domain_keys = rules.domain_keys
        self._keys = [rules.labels_of_tier(tier) for tier in range(len(TIER_NAMES))]
        above: dict[str | None, Texts] = {None: ()}
        for name, upper in sorted(tiers.objects.items(), key=lambda item: -item[1].tier):
            above[name] = (
                *self._labels(upper.tier - rules.tier_offset, name),
                *above[tiers.parent.get(name)],
            )
        self._chains = {
            name: tuple(sorted((*self._labels(LEAF, name), *above[tiers.parent.get(name)])))
            for name in leaves.objects
        }
        self._whole: dict[tuple[str, str, str], Texts] = {}
        self._is_plain = not self._domain and not self._domain_keys

    def of(self, node: str) -> Texts:
        """Equal labels are nearly always one object."""
        leaf = self._place.get(node, "")
        if self._is_plain:
            return self._chains.get(leaf, ())
        key = leaf, self._domain.get(node, ""), self._reported(node)
        if (whole := self._whole.get(key)) is None:
            _, name, domain = key
            texts = [*self._chains.get(leaf, ())]
            texts += self._labels(NVLINK, name) if name else ()
            texts += ((label, domain) for label in self._domain_keys if domain)
            whole = self._whole[key] = tuple(sorted(texts))
        return whole

    def _reported(self, node: str) -> str:
        if not self._domain_keys:
            return ""
        if (report := self._levels.reports.get(node)) is not None:
            return report.domain
        known = self._levels.nodes.get(node)
        labels = {} if known is None else dict(known.ours)
        return next((labels[key] for key in self._domain_keys if key in labels), "")

    def _labels(self, tier: int, name: str) -> Texts:
        return tuple((key, name) for key in self._keys[tier])


def _labels(place: Iterable[str], wanted: _WantedLabels) -> dict[str, Mapping[str, str]]:
    """The labels of each node of a leaf group; equal ones are one mapping. A node that its object has no room for has
    them too: labels have no limit, and they name where the node is cabled."""
    made: dict[Texts, Mapping[str, str]] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for node in place:
        texts = wanted.of(node)
        if texts not in made:
            made[texts] = dict(texts)
        labels[node] = made[texts]
    return labels


def _relabel(levels: Levels, labels_of: _WantedLabels) -> dict[str, Patch]:
    """The label patch of each Node with wrong labels. Equal patches are one mapping."""
    patches: dict[tuple[Texts, Texts], Patch] = {}
    relabel: dict[str, Patch] = {}
    for node, labels in levels.nodes.items():
        ours, wanted = labels.ours, labels_of.of(node)
        if ours == wanted:
            continue
        if (patch := patches.get((ours, wanted))) is None:
            patch = patches[ours, wanted] = _patch(ours, wanted)
        relabel[node] = patch
    return relabel


def _patch(known: Texts, wanted: Texts) -> Patch:
    """``None`` removes a label."""
    before, after = dict(known), dict(wanted)
    patch: Patch = dict.fromkeys(before.keys() - after.keys())
    patch.update((key, value) for key, value in after.items() if before.get(key) != value)
    return dict(sorted(patch.items()))


def _oversized(leaves: LeafObjects, tiers: UpperTiers) -> Iterable[Anomaly]:
    for name, nodes in leaves.trimmed.items():
        message = (
            f"{len(nodes)} nodes of {name} have no place, since an object in etcd holds about 20,000 nodes: list them "
            f"in groups of their own under `groups` of the topology file, such as {{name: {name[:50]}-2, nodes: "
            f"[{nodes[0]}, …]}}"
        )
        yield Anomaly(AnomalyKind.OVERSIZED, "", "", name, message)
    for upper in tiers.objects.values():
        if size_of(upper.children) > BYTES_MAX:
            message = f"{upper.name} has too many members for one object"
            yield Anomaly(AnomalyKind.OVERSIZED, "", "", upper.name, message)


def _unplaced(
    reasons: Mapping[str, str], adopted: Container[str], trimmed: Mapping[str, str]
) -> tuple[UnplacedNode, ...]:
    unplaced = [UnplacedNode(node, why) for node, why in reasons.items() if node not in adopted]
    unplaced += [UnplacedNode(node, f"there is no room left in {name}") for node, name in trimmed.items()]
    return tuple(sorted(unplaced))


def _differing(own: Mapping[str, HyperNode], wanted: Mapping[str, HyperNode]) -> list[str]:
    """The objects to create, update or delete."""
    differing = [name for name in own if name not in wanted]
    for name, hypernode in wanted.items():
        published = own.get(name)
        if published is None or not hypernode.same(published):
            differing.append(name)
    return differing


def _overlaps(
    rules: FabricRules,
    levels: Levels,
    foreign: ForeignHyperNodes,
    place: Mapping[str, str],
    parent: Mapping[str, str],
) -> tuple[Overlap, ...]:
    if not foreign or rules.foreign != "refuse":
        return ()
    labels = {node: dict(known.every) for node, known in levels.nodes.items()} if foreign.selects else None
    return foreign.overlaps(place, parent, labels)


def _overlapping(
    published: Mapping[str, HyperNode], overlaps: tuple[Overlap, ...]
) -> dict[str, tuple[str, ...]]:
    """The foreign HyperNodes that overlap each published HyperNode of nodeagent."""
    holders: dict[str, list[str]] = {}
    for overlap in overlaps:
        for member in overlap.members:
            holders.setdefault(member, []).append(overlap.name)
    if not holders:
        return {}
    overlapping = {
        name: {holder for member in (name, *hypernode.nodes) for holder in holders.get(member, ())}
        for name, hypernode in published.items()
    }
    return {name: tuple(sorted(names)) for name, names in sorted(overlapping.items()) if names}


def _below_min_links(rules: FabricRules, levels: Levels) -> tuple[str, ...]:
    if not rules.min_links:
        return ()
    few = (node for node, report in levels.reports.items() if report.up < rules.min_links)
    return tuple(sorted(filter(levels.exists, few)))
