"""Metric families that a function computes. Those that samples feed are rows of ``measurements/table.py``. Pure.

* ``fact_family``: computed from the snapshot. Rendered when the ``FactIndex`` changes, and kept.
* ``live_family``: the agent's own numbers. Computed at each scrape, so these are few.

Pods appear only in ``nodeagent_device_pod_info``, ``nodeagent_device_pod_devices`` and the families
``nodeagent_gpu_pod_…``, descriptions only in ``_info`` families; queries join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from nodeagent.measurements.family import Family, FamilyType
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import Series, lines_of

Shown = TypeVar("Shown")


class ComputedFamilies(Generic[Shown]):
    """Families with the functions that compute their series from ``Shown``, in the order of the page."""

    def __init__(self) -> None:
        self._declared: list[tuple[Family, Callable[[Shown], Iterable[Series]]]] = []

    def family(
        self,
        noun: str,
        labels: str = "",
        *,
        help: str,  # noqa: A002 - the format's own word
        use: str,
        source: str = "",
        peers: str = "",
        type: FamilyType | None = None,  # noqa: A002 - the format's own word
    ) -> Callable[[Callable[[Shown], Iterable[Series]]], Callable[[Shown], Iterable[Series]]]:
        """Declare a family; the decorated function yields its series. Only counters end in ``_total``.

        For a histogram it yields each bucket with the label ``le`` last, then ``sum`` and ``count`` in that place.
        """
        family = Family(
            f"nodeagent_{noun}",
            type or ("counter" if noun.endswith("_total") else "gauge"),
            tuple(filter(None, labels.split(","))),
            help,
            use,
            computed_from=source,
            peers=peers,
        )

        def declare(read: Callable[[Shown], Iterable[Series]]) -> Callable[[Shown], Iterable[Series]]:
            self._declared.append((family, read))
            return read

        return declare

    def families(self) -> tuple[Family, ...]:
        return tuple(family for family, _read in self._declared)

    def series(self, shown: Shown) -> Iterator[tuple[Family, Iterable[Series]]]:
        """Each family with its series."""
        for family, read in self._declared:
            yield family, read(shown)

    def lines(self, shown: Shown, series_max: int) -> Iterator[tuple[Family, str, int]]:
        """The lines of each family, which may be empty, and how many series were left out."""
        for family, series in self.series(shown):
            yield family, *lines_of(family, series, series_max)


FACT_FAMILIES = ComputedFamilies[FactIndex]()
LIVE_FAMILIES = ComputedFamilies[ScrapeInput]()
fact_family, live_family = FACT_FAMILIES.family, LIVE_FAMILIES.family
