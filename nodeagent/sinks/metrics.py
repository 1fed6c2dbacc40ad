"""``/metrics``: everything is read off the agent's state at each scrape, nothing is kept here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from nodeagent import __version__, supervise
from nodeagent.inventory import Inventory
from nodeagent.sinks.measure import Measure, Status
from nodeagent.sinks.web import Page

OPENMETRICS = "application/openmetrics-text"


def page(collector: Collector, accept: str) -> Page:
    """The answer to a scrape, in the format that the Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(collector)
    if OPENMETRICS in accept:
        body = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return Page(200, body, openmetrics.CONTENT_TYPE_LATEST)
    return Page(200, exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4)


class Metrics(Collector):
    """``xids`` are counted by GPU and number; ``stuck_threads`` are those that hang in the GPU driver."""

    def __init__(
        self,
        inventory: Inventory,
        measure: Measure,
        statuses: Callable[[], Iterable[Status]],
        xids: Mapping[tuple[str, int], int],
        stuck_threads: Callable[[], int],
    ) -> None:
        self._inventory = inventory
        self._measure = measure
        self._statuses = statuses
        self._xids = xids
        self._stuck_threads = stuck_threads

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "nodeagent_build_info", "The version of the agent; always 1.", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        yield from self._calls()
        yield from self._levels()

    def _calls(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily(
            "nodeagent_rpc_duration_seconds",
            "Time to answer a call of the kubelet.",
            labels=["resource", "method"],
        )
        for labels, durations in sorted(self._measure.durations.items()):
            seconds.add_metric(labels, durations.buckets(), durations.sum_s)
        yield seconds
        yield _counter(
            "nodeagent_rpcs",
            "Calls of the kubelet by gRPC result.",
            ["resource", "method", "result"],
            self._measure.calls.items(),
        )
        yield _counter(
            "nodeagent_kubelet_registrations",
            "Registrations with the kubelet by result.",
            ["resource", "result"],
            self._measure.registrations.items(),
        )

    def _levels(self) -> Iterator[Metric]:
        registered = GaugeMetricFamily(
            "nodeagent_resource_registered", "1 while the kubelet has the resource.", labels=["resource"]
        )
        devices = GaugeMetricFamily(
            "nodeagent_resource_devices", "Devices as the kubelet was told.", labels=["resource", "health"]
        )
        for status in self._statuses():
            registered.add_metric([status.resource], float(status.registered))
            devices.add_metric([status.resource, "healthy"], status.healthy)
            devices.add_metric([status.resource, "unhealthy"], status.devices - status.healthy)
        silent = GaugeMetricFamily(
            "nodeagent_source_silent", "1 while a source of facts cannot speak.", labels=["source"]
        )
        for entry in self._inventory.snapshot.silent:
            silent.add_metric([entry.source], 1)
        restarts = _counter(
            "nodeagent_task_restarts",
            "Parts of the agent that failed and were started again.",
            ["task"],
            [((task,), count) for task, count in supervise.restarts.items()],
        )
        xids = _counter(
            "nodeagent_gpu_xids",
            "XIDs that the GPUs reported, ignored ones too.",
            ["gpu", "xid"],
            [((gpu, str(number)), count) for (gpu, number), count in self._xids.items()],
        )
        stuck = GaugeMetricFamily(
            "nodeagent_gpu_driver_stuck_threads",
            "Threads that hang in the GPU driver.",
            value=self._stuck_threads(),
        )
        yield from (registered, devices, silent, restarts, xids, stuck)


def _counter(
    name: str, text: str, labels: list[str], counts: Iterable[tuple[tuple[str, ...], int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in sorted(counts):
        family.add_metric(values, count)
    return family
