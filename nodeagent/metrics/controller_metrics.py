"""The controller's metrics: few families for any size of cluster, computed at each scrape by ``prometheus_client``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
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
from nodeagent.metrics.computed_family import ComputedFamilies
from nodeagent.metrics.text_format import Series


class PlanProgress(Protocol):
    """``controller.Progress``: the last outcome, and counts since this replica started."""

    outcome: PlanOutcome | None
    plans: int
    plan_s: float
    suppressed: int


class SwitchReads(Protocol):
    """``switches.switch_poller.SwitchPoller``: readings by result, switches by state, rounds."""

    reads: Counter[str]
    states: Counter[str]
    round_s: float | None
    rounds: int


class MarkedNodes(Protocol):
    """``cluster.min_links_marks.MinLinksMarker``: writes by mark and result, marked nodes, spared nodes."""

    writes: Counter[tuple[str, str]]
    spared: int

    @property
    def counts(self) -> Mapping[str, int]: ...


class ControllerInput(msgspec.Struct, frozen=True):
    """Everything that one scrape of the controller shows. ``switches`` and ``marks`` exist if configured."""

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
    switches: SwitchReads | None = None
    marks: MarkedNodes | None = None
    startup_taints: Mapping[str, int] | None = None
    """Writes by result, if configured."""
    configuration_fault: str = ""


CONTROLLER_FAMILIES = ComputedFamilies[ControllerInput]()
_family = partial(CONTROLLER_FAMILIES.family, source="the controller")


class _Families(Collector):
    def __init__(self, shown: ControllerInput) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        for family, series in CONTROLLER_FAMILIES.series(self._shown):
            kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
            metric = kind(family.base, family.help, labels=family.labels)
            for labels, number in series:
                metric.add_metric(labels, number)
            if metric.samples:
                yield metric


def render(shown: ControllerInput, openmetrics: bool) -> tuple[bytes, str]:
    """The page and its content type. Families without series are left out."""
    registry = CollectorRegistry()
    registry.register(_Families(shown))
    if openmetrics:
        page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
        return page, OPENMETRICS_TYPE
    return generate_text(registry), CONTENT_TYPE_PLAIN_0_0_4


@_family("build_info", "version", help="The version; always 1.", use="Follow a rollout.")
def build_info(_shown: ControllerInput) -> Iterator[Series]:
    yield (__version__,), 1


@_family(
    "controller_leader",
    help="1 in the replica that leads.",
    use="The sum must be 1; it is 0 for some seconds when the leader changes.",
)
def controller_leader(shown: ControllerInput) -> Iterator[Series]:
    yield (), shown.leading


@_family(
    "configuration_in_force",
    help="1 while the content of the configuration file is in force, 0 while the file is refused or unreadable.",
    use="0: the running configuration stays; /readyz and the log have the fault.",
)
def configuration_in_force(shown: ControllerInput) -> Iterator[Series]:
    yield (), not shown.configuration_fault


@_family("fabric_plans_total", help="Plans made by this replica.", use="Grows with every change of a report.")
def fabric_plans(shown: ControllerInput) -> Iterator[Series]:
    yield (), shown.progress.plans


@_family(
    "fabric_suppressed_writes_total",
    help="HyperNodes that a plan did not change.",
    use="Compare with nodeagent_controller_writes_total.",
)
def fabric_suppressed_writes(shown: ControllerInput) -> Iterator[Series]:
    yield (), shown.progress.suppressed


@_family(
    "fabric_plan_duration_seconds",
    help="Computing time of the last plan.",
    use="Some milliseconds per thousand nodes.",
)
def fabric_plan_duration(shown: ControllerInput) -> Iterator[Series]:
    yield (), shown.progress.plan_s


@_family(
    "fabric_nodes",
    "state",
    help="Nodes by the result for their report.",
    use="unplaced: nodeagent explain NODE prints the reason.",
)
def fabric_nodes(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is not None:
        yield ("placed",), outcome.placed
        yield ("unplaced",), len(outcome.unplaced)
        yield ("waiting",), outcome.waiting
        yield ("below_min_links",), len(outcome.below_min_links)


@_family("fabric_hypernodes", "tier", help="HyperNodes by tier.", use="Changes only when cabling changes.")
def fabric_hypernodes(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is not None:
        tiers = Counter(str(hypernode.tier) for hypernode in outcome.hypernodes)
        for tier, count in sorted(tiers.items()):
            yield (tier,), count


@_family(
    "fabric_anomalies",
    "kind",
    help="Current anomalies of the fabric by kind.",
    use="The controller's Events name the nodes and switches.",
)
def fabric_anomalies(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is not None:
        kinds = Counter(anomaly.kind for anomaly in outcome.anomalies)
        for kind in AnomalyKind:
            yield (kind.value,), kinds[kind]


@_family(
    "fabric_breaker_open",
    help="1 while a plan would move too many nodes at once and nothing is written.",
    use="1: find the cause before nodes move; the log and the Events give the numbers and the end of the hold.",
)
def fabric_breaker_open(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is not None:
        yield (), outcome.breaker is not None


@_family(
    "fabric_foreign_hypernodes",
    help="HyperNodes of other owners that contain nodes of this fabric.",
    use="Above 0: two controllers manage the same nodes.",
)
def fabric_foreign_hypernodes(shown: ControllerInput) -> Iterator[Series]:
    if (outcome := shown.progress.outcome) is not None:
        yield (), len(outcome.overlaps)


@_family("watch_objects", "resource", help="Objects in the mirror of a resource.", use="The cluster's size.")
def watch_objects(shown: ControllerInput) -> Iterator[Series]:
    for resource, mirror in shown.mirrors.items():
        yield (resource,), len(mirror.objects)


@_family(
    "watch_age_seconds",
    "resource",
    help="Time since the API server last answered for a resource.",
    use="Above some minutes: the API server does not answer, and the fabric is not updated.",
)
def watch_age(shown: ControllerInput) -> Iterator[Series]:
    for resource, mirror in shown.mirrors.items():
        if mirror.age_s is not None:
            yield (resource,), mirror.age_s


@_family(
    "watch_lists_total",
    "resource,cause",
    help="Full lists of a resource by their cause.",
    use="Many: watches break; a list of all reports costs the API server most.",
)
def watch_lists(shown: ControllerInput) -> Iterator[Series]:
    for resource, mirror in shown.mirrors.items():
        for cause, count in sorted(mirror.restarts.items()):
            yield (resource, cause), count


@_family(
    "controller_writes_total",
    "verb,object,result",
    help="Writes to the API server.",
    use="Any result but ok: the log has the reason.",
)
def controller_writes(shown: ControllerInput) -> Iterator[Series]:
    for (verb, result), count in sorted(shown.hypernode_writes.items()):
        yield (verb, "hypernode", result), count
    for result, count in sorted(shown.label_writes.items()):
        yield ("patch", "node", result), count
    if shown.marks is not None:
        for (mark, result), count in sorted(shown.marks.writes.items()):
            yield ("apply" if mark == "condition" else "patch", f"node-{mark}", result), count
    for result, count in sorted((shown.startup_taints or {}).items()):
        yield ("patch", "node-startup-taint", result), count


@_family(
    "fabric_marked_nodes",
    "mark",
    help="Nodes marked for having too few links up.",
    use="Each needs a repair; absent unless marks are configured.",
)
def fabric_marked_nodes(shown: ControllerInput) -> Iterator[Series]:
    if shown.marks is not None:
        for mark, count in shown.marks.counts.items():
            yield (mark,), count


@_family(
    "fabric_spared_nodes",
    help="Nodes with too few links that are not tainted, because too many would be.",
    use="Above 0: a fault of the fabric rather than of nodes.",
)
def fabric_spared_nodes(shown: ControllerInput) -> Iterator[Series]:
    if shown.marks is not None:
        yield (), shown.marks.spared


@_family(
    "switch_reads_total",
    "result",
    help="Readings of a switch's LLDP neighbors.",
    use="Any result but ok: the log names the switch.",
)
def switch_reads(shown: ControllerInput) -> Iterator[Series]:
    if shown.switches is not None:
        for result, count in sorted(shown.switches.reads.items()):
            yield (result,), count


@_family(
    "switches",
    "state",
    help="Switches by the result of their last reading.",
    use="silent: check address, credentials and access lists.",
)
def switches(shown: ControllerInput) -> Iterator[Series]:
    if shown.switches is not None:
        for state in ("read", "silent", "no-address"):
            yield (state,), shown.switches.states[state]


@_family(
    "switch_rounds_total", help="Rounds of readings of all switches.", use="Grows at the configured rate."
)
def switch_rounds(shown: ControllerInput) -> Iterator[Series]:
    if shown.switches is not None:
        yield (), shown.switches.rounds


@_family(
    "switch_round_duration_seconds",
    help="Duration of the last round.",
    use="Near the configured interval: switches answer slowly.",
)
def switch_round_duration(shown: ControllerInput) -> Iterator[Series]:
    if shown.switches is not None and shown.switches.round_s is not None:
        yield (), shown.switches.round_s


@_family(
    "task_restarts_total",
    "task",
    help="Tasks of the controller that failed and were restarted.",
    use="Rising: the log has the reason of each restart.",
)
def task_restarts(shown: ControllerInput) -> Iterator[Series]:
    for task, count in sorted(shown.restarts.items()):
        yield (task,), count
