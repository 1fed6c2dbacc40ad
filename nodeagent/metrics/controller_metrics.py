"""The controller's ``/metrics``: a page read off its state at each scrape, few series for any size of cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from nodeagent import __version__, supervise
from nodeagent.fabric.outcome import Kind, Outcome
from nodeagent.web.server import Page

OPENMETRICS = "application/openmetrics-text"


class Shown(Protocol):
    """``controller.Progress``."""

    outcome: Outcome | None
    plans: int
    plan_s: float
    suppressed: int


class Asked(Protocol):
    """``sources.switches.Switches``."""

    reads: Counter[str]
    states: Counter[str]
    round_s: float | None
    rounds: int


class Marked(Protocol):
    """``cluster.min_links_marks.MinLinksMarker``."""

    writes: Counter[tuple[str, str]]
    spared: int

    @property
    def counts(self) -> Mapping[str, int]: ...


def page(collector: Collector, accept: str) -> Page:
    registry = CollectorRegistry()
    registry.register(collector)
    if OPENMETRICS in accept:
        body = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return Page(200, body, openmetrics.CONTENT_TYPE_LATEST)
    return Page(200, exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4)


class FabricMetrics(Collector):
    """``parts`` are the reflectors by resource, ``tree`` counts writes by verb and result, ``labels`` by result.

    ``switches`` and ``marks`` are there where the configuration asks for them.
    """

    def __init__(
        self,
        shown: Shown,
        parts: Mapping[str, Any],
        tree: Counter[tuple[str, str]],
        labels: Counter[str],
        *,
        leading: bool,
        switches: Asked | None = None,
        marks: Marked | None = None,
    ) -> None:
        self._switches, self._marks = switches, marks
        self._shown, self._parts, self._leading = shown, parts, leading
        self._tree, self._labels = tree, labels

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("nodeagent_build_info", "The version; always 1.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield _gauge("nodeagent_controller_leader", "1 in the replica that leads.", float(self._leading))
        yield from self._plan()
        yield from self._copies()
        writes = CounterMetricFamily(
            "nodeagent_controller_writes", "Writes to the API server.", labels=["verb", "object", "result"]
        )
        for (verb, result), count in sorted(self._tree.items()):
            writes.add_metric([verb, "hypernode", result], count)
        for result, count in sorted(self._labels.items()):
            writes.add_metric(["patch", "node", result], count)
        if self._marks is not None:
            for (mark, result), count in sorted(self._marks.writes.items()):
                writes.add_metric(
                    ["apply" if mark == "condition" else "patch", f"node-{mark}", result], count
                )
        yield writes
        yield from self._links(self._marks)
        yield from self._uplinks(self._switches)
        yield _counter(
            "nodeagent_task_restarts",
            "Parts of the controller that failed and were started again.",
            "task",
            supervise.restarts.items(),
        )

    def _plan(self) -> Iterator[Metric]:
        shown, outcome = self._shown, self._shown.outcome
        yield CounterMetricFamily("nodeagent_fabric_plans", "Plans made by this replica.", value=shown.plans)
        yield CounterMetricFamily(
            "nodeagent_fabric_suppressed_writes",
            "HyperNodes that a plan left as they were.",
            value=shown.suppressed,
        )
        yield _gauge(
            "nodeagent_fabric_plan_duration_seconds", "The last plan's computing time.", shown.plan_s
        )
        if outcome is None:
            return
        nodes = GaugeMetricFamily(
            "nodeagent_fabric_nodes", "Nodes by what became of their report.", labels=["state"]
        )
        for state, count in (
            ("placed", outcome.placed),
            ("unplaced", len(outcome.unplaced)),
            ("waiting", outcome.waiting),
            ("below_min_links", len(outcome.below_min_links)),
        ):
            nodes.add_metric([state], count)
        yield nodes
        tiers = Counter(str(hypernode.tier) for hypernode in outcome.hypernodes)
        groups = GaugeMetricFamily("nodeagent_fabric_hypernodes", "HyperNodes by tier.", labels=["tier"])
        for tier, count in sorted(tiers.items()):
            groups.add_metric([tier], count)
        yield groups
        kinds = Counter(anomaly.kind for anomaly in outcome.anomalies)
        anomalies = GaugeMetricFamily(
            "nodeagent_fabric_anomalies", "What is odd at present.", labels=["kind"]
        )
        for kind in Kind:
            anomalies.add_metric([kind.value], kinds[kind])
        yield anomalies
        yield _gauge(
            "nodeagent_fabric_breaker_open",
            "1 while too much would move at once and nothing is written.",
            float(outcome.breaker is not None),
        )
        yield _gauge(
            "nodeagent_fabric_foreign_hypernodes",
            "HyperNodes of other owners that hold nodes of ours.",
            len(outcome.overlaps),
        )

    def _links(self, marks: Marked | None) -> Iterator[Metric]:
        if marks is None:
            return
        marked = GaugeMetricFamily(
            "nodeagent_fabric_marked_nodes", "Nodes marked for having too few links up.", labels=["mark"]
        )
        for mark, count in marks.counts.items():
            marked.add_metric([mark], count)
        yield marked
        yield _gauge(
            "nodeagent_fabric_spared_nodes",
            "Nodes with too few links that are not tainted, for too many would be.",
            marks.spared,
        )

    def _uplinks(self, asked: Asked | None) -> Iterator[Metric]:
        if asked is None:
            return
        yield _counter(
            "nodeagent_switch_reads", "Switches asked what they hear.", "result", asked.reads.items()
        )
        states = GaugeMetricFamily(
            "nodeagent_switches", "Switches by what came of asking them last.", labels=["state"]
        )
        for state in ("read", "silent", "no-address"):
            states.add_metric([state], asked.states[state])
        yield states
        yield CounterMetricFamily(
            "nodeagent_switch_rounds", "Rounds of asking all switches.", value=asked.rounds
        )
        if asked.round_s is not None:
            yield _gauge(
                "nodeagent_switch_round_duration_seconds", "How long the last round took.", asked.round_s
            )

    def _copies(self) -> Iterator[Metric]:
        objects = GaugeMetricFamily("nodeagent_watch_objects", "Objects known.", labels=["resource"])
        age = GaugeMetricFamily(
            "nodeagent_watch_age_seconds", "Since the API server was last heard on it.", labels=["resource"]
        )
        lists = CounterMetricFamily(
            "nodeagent_watch_lists", "Whole lists by what made them necessary.", labels=["resource", "cause"]
        )
        for name, part in self._parts.items():
            objects.add_metric([name], len(part.objects))
            if part.age_s is not None:
                age.add_metric([name], part.age_s)
            for cause, count in sorted(part.restarts.items()):
                lists.add_metric([name, cause], count)
        yield from (objects, age, lists)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts):
        family.add_metric([value], count)
    return family
