"""Metric families that a function computes. Those that samples feed are rows of ``measurements/table.py``. Pure.

* ``fact_metrics`` are computed from the snapshot, and kept until the facts change.
* ``agent_metrics`` are the agent's own numbers. They are computed at each scrape, so these are few.

Pods appear only in ``nodeagent_device_pod_info``, ``nodeagent_device_pod_devices`` and the families
``nodeagent_gpu_pod_…``, descriptions only in ``_info`` families; queries join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from nodeagent.measurements.family import Family, FamilyType
from nodeagent.metrics.text_format import Series, series

Shown = TypeVar("Shown")


class ComputedFamily(msgspec.Struct, Generic[Shown], frozen=True):
    """A family and the function that computes its series from ``Shown``."""

    family: Family
    series_of: Callable[[Shown], Iterable[Series]]

    def lines(self, shown: Shown) -> dict[str, str]:
        """The lines by the text of their series. Of equal texts the first counts."""
        lines: dict[str, str] = {}
        for values, number in self.series_of(shown):
            text = series(self.family, values)
            lines.setdefault(text, f"{text} {+number}\n")  # plus makes a number of a bool
        return lines


def computed(
    noun: str,
    labels: str,
    help_: str,
    series_of: Callable[[Shown], Iterable[Series]],
    *,
    histogram: bool = False,
) -> ComputedFamily[Shown]:
    """A row of a table of families. Only counters end in ``_total``.

    A histogram has ``le`` as last label, and in its place ``sum`` and ``count``.
    """
    kind: FamilyType = "histogram" if histogram else "counter" if noun.endswith("_total") else "gauge"
    names = tuple(labels.split(",")) if labels else ()
    return ComputedFamily(Family(f"nodeagent_{noun}", kind, names, help_), series_of)


def single(number: float | None) -> Iterable[Series]:
    """The series of a family without labels; none without a number."""
    return () if number is None else (((), number),)


def by_key(counts: Mapping[str, float]) -> Iterable[Series]:
    """A series for each key, in their order."""
    return (((key,), count) for key, count in sorted(counts.items()))
