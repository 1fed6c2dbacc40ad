"""One row of the table: a metric family and the sample names that feed it. Pure.

Names are ``nodeagent_<noun>_<unit|total>``. Labels are words from closed sets or names of this node's hardware.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nodeagent.measurements.sample import Source

FamilyType = Literal["gauge", "counter", "histogram"]

FROM_RULES = "the rules"
"""The source of values that the health rules compute."""

SCOPE_LABELS = {
    "device": ("device",),
    "rdma_device": ("rdma_device", "port"),
    "pci_address": ("pci_address",),
    "pf": ("pf", "vf", "pci_address"),
    "gpu": ("gpu",),
}
"""The labels that together identify the subject of a series, by the first label of the family."""
_UNITS = frozenset(("bytes", "seconds", "celsius", "volts", "watts", "amperes", "ratio"))


class Measurement(msgspec.Struct, frozen=True):
    """One number: its name in samples and what it is.

    ``per``: the name has a key behind a slash, one series for each (``lane``, ``priority``, ...). ``labels`` are the
    label values that distinguish it from the other numbers of its family. The metric is the value times ``scale``.
    """

    name: str
    source: str
    meaning: str
    counter: bool
    per: str | None = None
    labels: tuple[str, ...] = ()
    scale: float = 1


class MeasuredText(msgspec.Struct, frozen=True):
    """One text of a sample, such as a firmware version. ``family`` shows it as a label."""

    name: str
    source: Source
    meaning: str
    family: str


class Family(msgspec.Struct, frozen=True):
    """A metric family. ``name`` is the one of queries: a counter's ends in ``_total``.

    ``measurements`` feed it, or a function computes it from ``computed_from``. ``peers`` are other exporters' names for
    it, ``rules`` the health rules that read its samples.
    """

    name: str
    type: FamilyType
    labels: tuple[str, ...]
    help: str
    use: str
    computed_from: str = ""
    peers: str = ""
    rules: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()

    @property
    def base(self) -> str:
        """The family's name in OpenMetrics, where ``_total`` belongs to the series."""
        return self.name.removesuffix("_total") if self.type == "counter" else self.name

    @property
    def source(self) -> str:
        """Where the numbers come from, for the documentation."""
        meanings = (f"{measurement.source}: {measurement.meaning}" for measurement in self.measurements)
        return "; ".join(dict.fromkeys(meanings)) or self.computed_from

    @property
    def unit(self) -> str | None:
        """The unit at the end of the name, as OpenMetrics requires it."""
        last = self.base.rpartition("_")[2]
        return last if last in _UNITS else None

    @property
    def scope(self) -> tuple[str, ...]:
        """The labels that identify what a series is about."""
        return SCOPE_LABELS.get(self.labels[0], self.labels[:1])


def row(
    noun: str,
    labels: str,
    source: str,
    *measured: tuple[str, ...],
    help: str,  # noqa: A002 - the format's own word
    use: str,
    per: str | None = None,
    scale: float = 1,
    peers: str = "",
    rules: str = "",
) -> Family:
    """A family that samples feed. ``measured``: sample name, meaning, and values of the labels that are left.

    The agent runs this 124 times before it registers, so only the tests check that the rows fill their labels.
    """
    counter = noun.endswith("_total")
    return Family(
        f"nodeagent_{noun}",
        "counter" if counter else "gauge",
        tuple(labels.split(",")),
        help,
        use,
        peers=peers,
        rules=tuple(rules.split()),
        measurements=tuple(
            [
                Measurement(name, source, meaning, counter, per, tuple(values), scale)
                for name, meaning, *values in measured
            ]
        ),
    )
