"""A metric family and the sample names that feed it. Pure.

Names are ``nodeagent_<noun>_<unit|total>``. Labels are words from closed sets or names of this node's hardware.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FamilyType = Literal["gauge", "counter", "histogram"]

FROM_RULES = "the rules"
"""The source of values that the health rules compute."""

_UNITS = frozenset(("bytes", "seconds", "celsius", "volts", "watts", "amperes", "ratio", "hertz", "joules"))


class Measurement(msgspec.Struct, frozen=True):
    """One number: its name in samples, the reader that states it, and where the reader has it from.

    ``per``: the name has a key behind a slash, one series for each (``lane``, ``priority``, ...). ``labels`` are the
    label values that distinguish it from the other numbers of its family. The metric is the value times ``scale``.
    """

    name: str
    source: str
    origin: str
    counter: bool
    per: str | None = None
    labels: tuple[str, ...] = ()
    scale: float = 1


class Family(msgspec.Struct, frozen=True, eq=False):
    """A metric family. ``name`` is the one of queries: a counter's ends in ``_total``.

    ``measurements`` feed it; without any, a function computes it.
    """

    name: str
    type: FamilyType
    labels: tuple[str, ...]
    help: str
    measurements: tuple[Measurement, ...] = ()

    @property
    def base(self) -> str:
        """The family's name in OpenMetrics, where ``_total`` belongs to the series."""
        return self.name.removesuffix("_total")

    @property
    def unit(self) -> str | None:
        """The unit at the end of the name, as OpenMetrics requires it."""
        last = self.base.rpartition("_")[2]
        return last if last in _UNITS else None


def row(
    noun: str,
    labels: str,
    source: str,
    help_: str,
    *measured: tuple[str, ...],
    per: str | None = None,
    scale: float = 1,
) -> Family:
    """A family that samples feed. ``measured``: sample name, origin, and values of the labels that are left.

    The type follows from the name: only counters end in ``_total``.
    """
    counter = noun.endswith("_total")
    return Family(
        f"nodeagent_{noun}",
        "counter" if counter else "gauge",
        tuple(labels.split(",")),
        help_,
        tuple(
            Measurement(name, source, origin, counter, per, tuple(values), scale)
            for name, origin, *values in measured
        ),
    )
