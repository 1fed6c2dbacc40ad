"""Metric families that a function computes. Those that samples feed are rows of ``measurements/table.py``. Pure.

* ``fact_family``: computed from the snapshot. Rendered when ``FactIndex`` changes, and kept.
* ``live_family``: the agent's own numbers. Computed at each scrape, so these are few.

Pods appear only in ``nodeagent_device_pod_info``, descriptions only in ``_info`` families; queries join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodeagent.measurements.family import Family, FamilyType, computed
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import Series

ReadFacts = Callable[[FactIndex], Iterable[Series]]
ReadInput = Callable[[ScrapeInput], Iterable[Series]]

FACT_FAMILIES: list[tuple[Family, ReadFacts]] = []
LIVE_FAMILIES: list[tuple[Family, ReadInput]] = []
"""In the order of their declaration, which is their order on the page."""


def fact_family(
    noun: str,
    labels: str = "",
    *,
    help: str,  # noqa: A002 - the format's own word
    source: str,
    use: str,
    peers: str = "",
) -> Callable[[ReadFacts], ReadFacts]:
    """Declare a family; the decorated function yields its series."""
    family = computed(noun, labels, help=help, source=source, use=use, peers=peers)

    def declare(read: ReadFacts) -> ReadFacts:
        FACT_FAMILIES.append((family, read))
        return read

    return declare


def live_family(
    noun: str,
    labels: str = "",
    *,
    help: str,  # noqa: A002 - the format's own word
    source: str,
    use: str,
    peers: str = "",
    type: FamilyType | None = None,  # noqa: A002 - the format's own word
) -> Callable[[ReadInput], ReadInput]:
    """Declare a family; the decorated function yields its series.

    For a histogram it yields each bucket with the label ``le`` last, then ``sum`` and ``count`` in that place.
    """
    family = computed(noun, labels, type, help=help, source=source, use=use, peers=peers)

    def declare(read: ReadInput) -> ReadInput:
        LIVE_FAMILIES.append((family, read))
        return read

    return declare
