"""How a metric family is declared: one table row, or one decorated function. Pure.

The law of this room: every family is declared once, here its scrape, its line in ``docs/metrics.md`` and the
checks of the tests come from. Three ways to get a value, by how often it changes:

* ``row``: numbers of the latest samples, by their names in ``health/samples.py``. What is said of it, its type
  and its source follow from there. Rendered from a template that is compiled once.
* ``described``: facts, which change with the snapshot. Rendered when the ``Scene`` changes, and kept.
* ``live``: the agent's own numbers, read at each scrape. Few.

Names are ``nodeagent_<noun>_<unit|total>``; labels are words of closed sets or names of this node's hardware;
pods stand in ``nodeagent_device_pod_info`` alone, descriptions in the ``_info`` families alone, to be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from nodeagent.health.samples import DATA, Datum, Source
from nodeagent.metrics.scrape_input import Scene, View

Type = Literal["gauge", "counter", "histogram"]
Series = tuple[tuple[str, ...], float]
"""The values of the labels, in the family's order, and the number."""

SCOPES = ("device", "rdma_device", "pci_address", "pf", "gpu")
"""The first label of a sample-fed family says whom it is about, and which labels name it."""
_SCOPE_LABELS = {"rdma_device": ("rdma_device", "port"), "pf": ("pf", "vf", "pci_address")}
_UNITS = {
    "bytes": "bytes",
    "seconds": "seconds",
    "celsius": "celsius",
    "volts": "volts",
    "watts": "watts",
    "amperes": "amperes",
    "ratio": "ratio",
}

JUDGED: dict[str, Datum] = {
    "since_unix": Datum(Source.LINK, "when the state changed"),
    "flap_penalty": Datum(Source.LINK, "flap damping"),
    "expected_speed_mbps": Datum(Source.LINK, "what speed_reduced compared with"),
    "pre_fec_ber": Datum(Source.LINK, "what pre_fec_ber compared"),
    "post_fec_errors": Datum(Source.LINK, "what post_fec_errors compared"),
    "rule_value": Datum(Source.LINK, "what each rule compared", per="rule"),
    "gpu_since_unix": Datum(Source.GPU, "when the state changed"),
    "gpu_rule_value": Datum(Source.GPU, "what each rule compared", per="rule"),
}
"""What the rules hand in of each link and GPU: shown like samples, because it changes as often."""


def datum_of(name: str) -> Datum | None:
    """What ``name`` or ``name/key`` stands for, where it has a key just when it should."""
    head, slash, _ = name.partition("/")
    datum = JUDGED.get(head) or DATA.get(head)
    return datum if datum is not None and bool(slash) == (datum.per is not None) else None


@dataclass(frozen=True, slots=True)
class Feed:
    """One datum of the vocabulary: a series for each device, with its own fixed label values at the end."""

    datum: str
    fixed: tuple[str, ...] = ()
    scale: float = 1


@dataclass(frozen=True, slots=True)
class Family:
    """``name`` as it stands in a query, with ``_total`` for counters. ``peers``: other exporters' names for it."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    source: str
    use: str
    peers: str = ""
    feeds: tuple[Feed, ...] = ()
    described: Callable[[Scene], Iterable[Series]] | None = None
    live: Callable[[View], Iterable[Series]] | None = None

    @property
    def base(self) -> str:
        """The name of the family in OpenMetrics, where ``_total`` belongs to the sample."""
        return self.name.removesuffix("_total") if self.type == "counter" else self.name

    @property
    def unit(self) -> str | None:
        """The unit that the name ends in, as OpenMetrics wants it."""
        return _UNITS.get(self.base.rpartition("_")[2])

    @property
    def scope(self) -> tuple[str, ...]:
        """The labels that say whom a sample-fed series is about."""
        return _SCOPE_LABELS.get(self.labels[0], self.labels[:1])


CATALOG: dict[str, Family] = {}
"""By name, in the order of their declaration, which is that of the pages made from it."""


def _declare(family: Family) -> Family:
    if family.name in CATALOG:
        raise ValueError(f"{family.name} is declared twice")
    if (family.type == "counter") != family.name.endswith("_total"):
        raise ValueError(f"{family.name}: counters, and they alone, end in _total")
    CATALOG[family.name] = family
    return family


def row(
    noun: str,
    labels: str,
    *feeds: str | tuple[str, ...],
    help: str,  # noqa: A002 - the format's own word
    use: str,
    peers: str = "",
    scale: float = 1,
) -> Family:
    """A family fed by samples: ``feeds`` are names of the vocabulary, each with its fixed label values."""
    made = tuple(
        Feed(feed, (), scale) if isinstance(feed, str) else Feed(feed[0], feed[1:], scale) for feed in feeds
    )
    data = [JUDGED.get(feed.datum) or DATA[feed.datum] for feed in made]
    sources = (
        f"{'the rules' if feed.datum in JUDGED else datum.source}: {datum.meaning}"
        for feed, datum in zip(made, data, strict=True)
    )
    counts = {datum.counter for datum in data}
    name = f"nodeagent_{noun}"
    if len(counts) != 1:
        raise ValueError(f"{name} mixes counters and levels")
    family = Family(
        name=name,
        type="counter" if counts == {True} else "gauge",
        labels=tuple(labels.split(",")),
        help=help,
        source="; ".join(dict.fromkeys(sources)),
        use=use,
        peers=peers,
        feeds=made,
    )
    for feed, datum in zip(made, data, strict=True):
        named = len(family.scope) + (datum.per is not None and family.scope[0] != "pf") + len(feed.fixed)
        if family.labels[0] not in SCOPES or named != len(family.labels):
            raise ValueError(f"{name}: {feed.datum} does not give its {len(family.labels)} labels")
    return _declare(family)


def described(
    noun: str,
    labels: str = "",
    *,
    help: str,  # noqa: A002 - the format's own word
    source: str,
    use: str,
    peers: str = "",
) -> Callable[[Callable[[Scene], Iterable[Series]]], Family]:
    """A family of facts: the function yields label values and number for each series."""

    def declare(read: Callable[[Scene], Iterable[Series]]) -> Family:
        type_: Type = "counter" if noun.endswith("_total") else "gauge"
        return _declare(
            Family(
                f"nodeagent_{noun}",
                type_,
                tuple(filter(None, labels.split(","))),
                help,
                source,
                use,
                peers,
                described=read,
            )
        )

    return declare


def live(
    noun: str,
    labels: str = "",
    *,
    help: str,  # noqa: A002 - the format's own word
    source: str,
    use: str,
    peers: str = "",
    type: Type | None = None,  # noqa: A002 - the format's own word
) -> Callable[[Callable[[View], Iterable[Series]]], Family]:
    """A family read at each scrape. Of a histogram the function yields each bucket's label values with ``le``
    at the end, then one series with ``sum`` and one with ``count`` in its place."""

    def declare(read: Callable[[View], Iterable[Series]]) -> Family:
        return _declare(
            Family(
                f"nodeagent_{noun}",
                type or ("counter" if noun.endswith("_total") else "gauge"),
                tuple(filter(None, labels.split(","))),
                help,
                source,
                use,
                peers,
                live=read,
            )
        )

    return declare
