"""The controller's metrics: few families for any size of cluster, computed at each scrape by ``prometheus_client``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from nodeagent import __version__
from nodeagent.fabric.outcome import AnomalyKind, PlanOutcome
from nodeagent.metrics.computed_family import ComputedFamily, by_key, computed, single
from nodeagent.metrics.text_format import Series


class PlanProgress(Protocol):
    """``topology.plans.Progress``: the last outcome, and counts since this replica started."""

    outcome: PlanOutcome | None
    plans: int
    plan_s: float
    suppressed: int


class ControllerInput(msgspec.Struct, frozen=True):
    """The core of the controller, as one scrape shows it."""

    progress: PlanProgress
    mirrors: Mapping[str, Any]
    """The reflectors, by resource."""
    hypernode_writes: Counter[tuple[str, str]]
    """By verb and result."""
    label_writes: Counter[str]
    """By result."""
    restarts: Mapping[str, int]
    """Of the controller's tasks."""
    leading: bool
    feature_writes: Iterable[Series] = ()
    """Writes of features by verb, object and result."""
    configuration_fault: str = ""
    maintenance: Mapping[tuple[str, str, str, str], float] = {}
    """When planned work ends (Unix time), by Node, link, netdev and PCI address."""
    away: Mapping[tuple[str, str, str], float] = {}
    """Since when nodes are away (Unix time), by Node, leaf group and why."""
    gpus: Mapping[tuple[str, str, str, str], float] = {}
    """Since when GPUs are in trouble (Unix time), by Node, leaf group, GPU and state."""
    odd: Mapping[str, int] = {}
    """The nodes that differ from their peers, by value; empty if no agent compares."""


FeatureFamilies = tuple[Iterable[ComputedFamily[Any]], object]
"""The families of a feature, and what they show."""


class _Families(Collector):
    def __init__(self, shown: ControllerInput, features: Iterable[FeatureFamilies]) -> None:
        self._shown = ((CONTROLLER_FAMILIES, shown), *features)

    def collect(self) -> Iterator[Metric]:
        for families, shown in self._shown:
            for computed_family in families:
                family = computed_family.family
                kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
                metric = kind(family.base, family.help, labels=family.labels)
                for labels, number in computed_family.series_of(shown):
                    metric.add_metric(labels, number)
                if metric.samples:
                    yield metric


def render_page(
    shown: ControllerInput, openmetrics: bool, features: Iterable[FeatureFamilies] = ()
) -> tuple[bytes, str]:
    """The page and its content type. Families without series are left out."""
    registry = CollectorRegistry()
    registry.register(_Families(shown, features))
    if openmetrics:
        page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
        return page, OPENMETRICS_TYPE
    return generate_text(registry), CONTENT_TYPE_PLAIN_0_0_4


def _of_outcome(
    series: Callable[[PlanOutcome], Iterable[Series]],
) -> Callable[[ControllerInput], Iterable[Series]]:
    """Series of the last outcome; none in a replica that has made no plan."""
    return lambda shown: () if shown.progress.outcome is None else series(shown.progress.outcome)


def _nodes(outcome: PlanOutcome) -> Iterator[Series]:
    yield ("placed",), outcome.placed
    yield ("unplaced",), len(outcome.unplaced)
    yield ("waiting",), outcome.waiting
    yield ("below_min_links",), len(outcome.below_min_links)


def _anomalies(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is None:
        return
    planned = {(node, name) for node, link, netdev, _ in shown.maintenance for name in (link, netdev)}
    kinds = Counter(
        anomaly.kind
        for anomaly in outcome.anomalies
        if planned.isdisjoint({(anomaly.node, ""), (anomaly.node, anomaly.link)})
    )
    for kind in AnomalyKind:
        yield (kind.value,), kinds[kind]


def _watch_age(shown: ControllerInput) -> Iterator[Series]:
    for resource, mirror in shown.mirrors.items():
        if mirror.age_s is not None:
            yield (resource,), mirror.age_s


def _watch_lists(shown: ControllerInput) -> Iterator[Series]:
    for resource, mirror in shown.mirrors.items():
        for cause, count in sorted(mirror.restarts.items()):
            yield (resource, cause), count


def _writes(shown: ControllerInput) -> Iterator[Series]:
    for (verb, result), count in sorted(shown.hypernode_writes.items()):
        yield (verb, "hypernode", result), count
    for result, count in sorted(shown.label_writes.items()):
        yield ("patch", "node", result), count
    yield from shown.feature_writes


CONTROLLER_FAMILIES: tuple[ComputedFamily[ControllerInput], ...] = (
    computed("build_info", "version", "The version; always 1.", lambda _: [((__version__,), 1)]),
    computed("controller_leader", "", "1 in the replica that leads.", lambda shown: single(shown.leading)),
    computed("configuration_in_force", "",
        "1 while the content of the configuration file is in force, 0 while the file is refused or unreadable.",
        lambda shown: single(not shown.configuration_fault)),
    computed("fabric_plans_total", "", "Plans made by this replica.", lambda shown: single(shown.progress.plans)),
    computed("fabric_suppressed_writes_total", "", "HyperNodes that a plan did not change.",
        lambda shown: single(shown.progress.suppressed)),
    computed("fabric_plan_duration_seconds", "", "Computing time of the last plan.",
        lambda shown: single(shown.progress.plan_s)),
    computed("fabric_nodes", "state", "Nodes by the result for their report.", _of_outcome(_nodes)),
    computed("fabric_hypernodes", "tier", "HyperNodes by tier.",
        _of_outcome(lambda outcome: by_key(Counter(str(hypernode.tier) for hypernode in outcome.hypernodes)))),
    computed("fabric_anomalies", "kind", "Current anomalies of the fabric by kind, without those of planned work.",
        _anomalies),
    computed("fabric_breaker_open", "",
        "1 while a plan would move too many nodes at once and nothing is written.",
        _of_outcome(lambda outcome: single(outcome.breaker is not None))),
    computed("fabric_foreign_hypernodes", "", "HyperNodes of other owners that contain nodes of this fabric.",
        _of_outcome(lambda outcome: single(len(outcome.overlaps)))),
    computed("watch_objects", "resource", "Objects in the mirror of a resource.",
        lambda shown: (((resource,), len(mirror.objects)) for resource, mirror in shown.mirrors.items())),
    computed("watch_age_seconds", "resource", "Time since the API server last answered for a resource.", _watch_age),
    computed("watch_lists_total", "resource,cause", "Full lists of a resource by their cause.", _watch_lists),
    computed("controller_writes_total", "verb,object,result", "Writes to the API server.", _writes),
    computed("maintenance_end_timestamp_seconds", "node,link,device,pci_address",
        "When the maintenance of a link ends, or that of the whole node (no link); absent after it.",
        lambda shown: shown.maintenance.items()),
    computed("odd_nodes", "value", "Nodes whose value differs from that of their peers (peers.compare).",
        lambda shown: by_key(shown.odd)),
    computed("node_away_start_timestamp_seconds", "node,hypernode,why",
        "Since when a node with a report is away: it is not Ready, or no agent runs, so what it reported is old.",
        lambda shown: shown.away.items()),
    computed("gpu_trouble_start_timestamp_seconds", "node,hypernode,gpu,state",
        "Since when a GPU is in trouble, as the report of its node says; absent for one that is well.",
        lambda shown: shown.gpus.items()),
    computed("task_restarts_total", "task", "Tasks of the controller that failed and were restarted.",
        lambda shown: by_key(shown.restarts)),
)  # fmt: skip
"""In the order of the page; those of features follow (``nodeagent/controller_features.py``)."""
