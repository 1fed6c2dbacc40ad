"""The agent's own metrics: low cardinality, kept by ``prometheus_client``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodeagent import __version__, supervise
from nodeagent.inventory import Inventory

# Measured answers lie between 0.2 ms and some ten milliseconds at 80,000 ids.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)


class Call:
    """One RPC under way."""

    def __init__(self) -> None:
        self.result = "OK"

    def refused(self, code: str) -> None:
        self.result = code


class Measure:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "nodeagent_rpc_duration_seconds",
            "Time to answer a call of the kubelet.",
            ["resource", "method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._calls = Counter(
            "nodeagent_rpcs",
            "Calls of the kubelet by gRPC result.",
            ["resource", "method", "result"],
            registry=self.registry,
        )
        self.registrations = Counter(
            "nodeagent_kubelet_registrations",
            "Registrations with the kubelet by result.",
            ["resource", "result"],
            registry=self.registry,
        )
        Gauge(
            "nodeagent_build_info", "The version of the agent; always 1.", ["version"], registry=self.registry
        ).labels(__version__).set(1)

    @contextmanager
    def call(self, resource: str, method: str) -> Iterator[Call]:
        call = Call()
        began = time.perf_counter()
        try:
            yield call
        finally:
            self._seconds.labels(resource, method).observe(time.perf_counter() - began)
            self._calls.labels(resource, method, call.result).inc()


@dataclass(frozen=True, slots=True)
class Status:
    """How one resource stands with the kubelet; ``reason`` says why it is not registered."""

    resource: str
    registered: bool
    reason: str
    healthy: int
    devices: int
    streams: int


class Levels(Collector):
    """Metrics that are read off the agent's state at each scrape and kept nowhere."""

    def __init__(
        self,
        inventory: Inventory,
        statuses: Callable[[], Iterable[Status]],
        xids: Mapping[tuple[str, int], int],
        stuck_threads: Callable[[], int],
    ) -> None:
        """``xids`` are counted by GPU and number."""
        self._inventory = inventory
        self._statuses = statuses
        self._xids = xids
        self._stuck_threads = stuck_threads

    def collect(self) -> Iterator[Metric]:
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
        restarts = CounterMetricFamily(
            "nodeagent_task_restarts",
            "Parts of the agent that failed and were started again.",
            labels=["task"],
        )
        for task, count in sorted(supervise.restarts.items()):
            restarts.add_metric([task], count)
        xids = CounterMetricFamily(
            "nodeagent_gpu_xids", "XIDs that the GPUs reported, ignored ones too.", labels=["gpu", "xid"]
        )
        for (gpu, number), count in sorted(self._xids.items()):
            xids.add_metric([gpu, str(number)], count)
        stuck = GaugeMetricFamily(
            "nodeagent_gpu_driver_stuck_threads",
            "Threads that hang in the GPU driver.",
            value=self._stuck_threads(),
        )
        yield from (registered, devices, silent, restarts, xids, stuck)
