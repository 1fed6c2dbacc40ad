"""Prometheus' text format 0.0.4 and OpenMetrics 1.0.0: content types, labels, series and headers. Pure.

Text from the wire or from hardware is made one printable line, cut and escaped. No series appears twice, even if
cutting makes two texts equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

from nodeagent.lldp.escaping import printable
from nodeagent.measurements.family import Family

Series = tuple[tuple[str, ...], float]
"""The label values, in the family's order, and the number."""

PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version={}; charset=utf-8"
OPENMETRICS_VERSIONS = ("1.0.0", "0.0.1")

LABEL_TEXT_MAX = 128
"""Characters of a label's value. An LLDP system name may have 255, but 128 are enough to identify a switch."""

_PARAMETER = re.compile(r"""\s*([^\s;=]+)\s*=\s*"?([^\s;"]*)"?\s*""")


def negotiate(accept: str) -> str:
    """The content type for an Accept header: OpenMetrics if its weight is at least that of text."""
    wanted: dict[str, float] = {}
    for choice in accept.split(","):
        media, *rest = choice.split(";")
        matches = [match for text in rest if (match := _PARAMETER.fullmatch(text))]
        parameters = {match[1].lower(): match[2] for match in matches}
        weight = _weight(parameters.get("q", "1"))
        version = parameters.get("version", "1.0.0")
        kind = media.strip().lower()
        if kind == "application/openmetrics-text" and version in OPENMETRICS_VERSIONS:
            wanted[version] = max(weight, wanted.get(version, 0))
        elif kind in ("text/plain", "text/*", "*/*"):
            wanted["plain"] = max(weight, wanted.get("plain", 0))
    best = max((v for v in OPENMETRICS_VERSIONS if v in wanted), key=wanted.__getitem__, default=None)
    if best is None or wanted[best] <= 0 or wanted[best] < wanted.get("plain", 0):
        return PLAIN_TYPE
    return OPENMETRICS.format(best)


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0


@lru_cache(maxsize=8192)
def label(text: str) -> str:
    """A label's value between the quotes."""
    text = text[: LABEL_TEXT_MAX + 1]
    if not text.isprintable():
        text = printable(text)
    if len(text) > LABEL_TEXT_MAX:
        text = text[: LABEL_TEXT_MAX - 1] + "…"
    return text.replace("\\", "\\\\").replace('"', '\\"')


def series(family: Family, values: Sequence[str]) -> str:
    """``name{label="value"}``; for a histogram its bucket, sum or count."""
    name, names = family.name, family.labels
    if family.type == "histogram":
        if values[-1] in ("sum", "count"):
            name, names, values = f"{name}_{values[-1]}", names[:-1], values[:-1]
        else:
            name = f"{name}_bucket"
    pairs = ",".join(f'{key}="{label(value)}"' for key, value in zip(names, values, strict=True))
    return f"{name}{{{pairs}}}" if pairs else name


@cache
def header(family: Family, openmetrics: bool) -> str:
    name = family.base if openmetrics else family.name
    unit = f"# UNIT {name} {family.unit}\n" if openmetrics and family.unit else ""
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n{unit}"
