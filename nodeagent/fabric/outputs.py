"""The outcome of a plan: objects, labels, anomalies, and how they differ from the cluster."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from nodeagent.fabric.anomalies import CablingCheck
from nodeagent.fabric.desired_places import DesiredPlaces
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.foreign import ForeignHyperNodes
from nodeagent.fabric.hypernode import BYTES_MAX, HyperNode, Texts, size_of
from nodeagent.fabric.inputs import Levels
from nodeagent.fabric.leaf_objects import LeafObjects
from nodeagent.fabric.outcome import Anomaly, AnomalyKind, Overlap, PlanOutcome, UnplacedNode
from nodeagent.fabric.placement import Placement
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
    leaves: LeafObjects,
    tiers: UpperTiers,
    now: float,
) -> PlanOutcome:
    """``nodes`` is the placement of the nodes in leaf groups."""
    wanted = {**leaves.objects, **tiers.objects}
    trimmed = {node: name for name, left_out in leaves.trimmed.items() for node in left_out}
    chains = _label_chains(rules, leaves, tiers)
    placements = (nodes, *tiers.active)
    ends = [placement.next_at(now, rules.hysteresis) for placement in placements]
    ends += [since + rules.hysteresis.settle_seconds for since in desired.waiting.values()]
    overlaps = _overlaps(rules, levels, foreign, nodes.place, tiers.parent)
    is_blocked = bool(overlaps) and rules.foreign == "refuse"
    return PlanOutcome(
        hypernodes=tuple(sorted(wanted.values(), key=lambda hypernode: (hypernode.tier, hypernode.name))),
        labels=PlacedLabels(nodes.place, chains, trimmed),
        relabel=_relabel(levels, nodes.place, chains),
        anomalies=tuple(sorted([*cabling.anomalies, *names.anomalies, *_oversized(leaves, tiers)])),
        unplaced=_unplaced(desired.unplaced, trimmed),
        writes=() if is_blocked else order(levels.own, wanted, _differing(levels.own, wanted)),
        overlaps=overlaps,
        overlapping=_overlapping(levels.own, overlaps),
        below_min_links=_below_min_links(rules, levels),
        breaker=nodes.breaker or tiers.breaker,
        waiting=sum(len(placement.pending) for placement in placements),
        placed=len(nodes.place) - len(trimmed),
        next_at=min((end for end in ends if end is not None and end > now), default=None),
    )


def _label_chains(rules: FabricRules, leaves: LeafObjects, tiers: UpperTiers) -> dict[str, Texts]:
    """The labels of the nodes of each tier-1 object: its own name, and the names of all objects above it."""

    def labels(name: str, tier: int) -> Texts:
        return tuple((key, name) for key in rules.labels_of_tier(tier))

    above: dict[str | None, Texts] = {None: ()}
    for name, upper in sorted(tiers.objects.items(), key=lambda item: -item[1].tier):
        above[name] = (*labels(name, upper.tier), *above[tiers.parent.get(name)])
    return {
        name: tuple(sorted((*labels(name, 1), *above[tiers.parent.get(name)]))) for name in leaves.objects
    }


class PlacedLabels(Mapping[str, Mapping[str, str]]):
    """The labels of each placed node, made when they are read."""

    def __init__(
        self, place: Mapping[str, str], chains: Mapping[str, Texts], trimmed: Container[str]
    ) -> None:
        self._place, self._chains, self._trimmed = place, chains, trimmed

    def __getitem__(self, node: str) -> Mapping[str, str]:
        if node in self._trimmed:
            raise KeyError(node)
        return dict(self._chains[self._place[node]])

    def __iter__(self) -> Iterator[str]:
        return (node for node in self._place if node not in self._trimmed)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _relabel(levels: Levels, place: Mapping[str, str], chains: Mapping[str, Texts]) -> dict[str, Patch]:
    """The label patch of each Node with wrong labels. Equal patches are one mapping."""
    patches: dict[tuple[Texts, Texts], Patch] = {}
    relabel: dict[str, Patch] = {}
    good: tuple[Texts, Texts] = ((), ())
    for node, labels in levels.nodes.items():
        ours, wanted = labels.ours, chains.get(place.get(node, ""), ())
        if ours is good[0] and wanted is good[1]:
            continue  # The same two objects as for the node before, nearly always.
        if ours == wanted:
            good = (ours, wanted)
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


def _unplaced(reasons: Mapping[str, str], trimmed: Mapping[str, str]) -> tuple[UnplacedNode, ...]:
    unplaced = [UnplacedNode(node, why) for node, why in reasons.items()]
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
