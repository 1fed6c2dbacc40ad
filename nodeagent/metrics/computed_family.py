"""Metric families that a function computes. Those that samples feed are rows of ``measurements/table.py``. Pure.

* ``fact_family``: computed from the snapshot. Rendered when ``NodeFacts`` changes, and kept.
* ``live_family``: the agent's own numbers. Computed at each scrape, so these are few.

Pods appear only in ``nodeagent_device_pod_info``, descriptions only in ``_info`` families; queries join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodeagent.measurements.family import Family, FamilyType
from nodeagent.metrics.scrape_input import NodeFacts, ScrapeInput

Series = tuple[tuple[str, ...], float]
"""The label values, in the family's order, and the number."""
ReadFacts = Callable[[NodeFacts], Iterable[Series]]
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
    family = _family(noun, labels, None, help, source, use, peers)

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
    family = _family(noun, labels, type, help, source, use, peers)

    def declare(read: ReadInput) -> ReadInput:
        LIVE_FAMILIES.append((family, read))
        return read

    return declare


def _family(
    noun: str, labels: str, type_: FamilyType | None, meaning: str, source: str, use: str, peers: str
) -> Family:
    """Counters, and only counters, end in ``_total``."""
    type_ = type_ or ("counter" if noun.endswith("_total") else "gauge")
    return Family(
        f"nodeagent_{noun}", type_, tuple(filter(None, labels.split(","))), meaning, source, use, peers
    )
