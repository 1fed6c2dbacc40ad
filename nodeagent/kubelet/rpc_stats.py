"""Counts and durations of the kubelet's calls and of registrations. The metrics read them at each scrape."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import msgspec

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)
"""Seconds. Answers were measured from 0.2 ms to some ten milliseconds, the longest with 80,000 IDs."""


class RpcCall:
    """One call of the kubelet in progress."""

    def __init__(self) -> None:
        self.result = "OK"

    def refused(self, code: str) -> None:
        self.result = code


class Durations:
    """A histogram. ``counts`` has one entry more than ``BUCKETS``, for longer calls."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, as Prometheus expects them."""
        names = [*map(str, BUCKETS), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class RpcStats:
    def __init__(self) -> None:
        self.durations: defaultdict[str, Durations] = defaultdict(Durations)
        """By method. The resource is no label: it would multiply the eleven series of a histogram."""
        self.calls: Counter[tuple[str, str, str]] = Counter()
        """By resource, method and result."""
        self.registrations: Counter[tuple[str, str]] = Counter()
        """By resource and result."""

    @contextmanager
    def call(self, resource: str, method: str) -> Iterator[RpcCall]:
        """Count a call, and measure it. One that ends with an error is counted as gRPC answers it, ``UNKNOWN``."""
        call, result = RpcCall(), "UNKNOWN"
        began = time.perf_counter()
        try:
            yield call
            result = call.result
        finally:
            self.durations[method].add(time.perf_counter() - began)
            self.calls[resource, method, result] += 1


class ResourceStatus(msgspec.Struct, frozen=True):
    """How one resource stands with the kubelet. ``reason``: why it is not registered. ``taken``: another plugin is."""

    resource: str
    registered: bool
    reason: str
    healthy: int
    devices: int
    streams: int
    taken: bool = False
