"""The last ten minutes of some values of each NIC and GPU, for the curves of the node page. Reads no clock.

A page that is opened must show what was before, so the values are recorded always, and little is recorded: a point for
each ``EVERY_S``, ``POINTS`` of them, for at most ``SERIES_MAX`` series of 16 bytes a point. That is 0.3 MiB at most and
some 70 KiB on a node with 12 NICs and 8 GPUs. The values are those that the agent has read for its rules anyway.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from nodeagent.measurements.sample import Sample

EVERY_S = 15.0
POINTS = 41
SERIES_MAX = 400


class Curve(NamedTuple):
    """``parts`` are the samples that make it: of several keys (``name/key``) the sum, or the least. ``rate``: the
    change per second is shown. ``per``: the change of another counter divides it, as for a bit error ratio."""

    name: str
    unit: str
    parts: tuple[str, ...]
    join: Literal["sum", "min"] = "sum"
    rate: bool = False
    per: str = ""


CURVES = (
    Curve("received light", "W", ("rx_power_watts",), join="min"),
    Curve("module temperature", "°C", ("module_celsius",)),
    Curve("bit error ratio before FEC", "", ("fec_corrected_bits",), rate=True, per="phy_rx_bits"),
    Curve("paused by the peer", "of the time", ("prio_rx_pause_seconds",), rate=True),
    Curve("pausing the peer", "of the time", ("prio_tx_pause_seconds",), rate=True),
    Curve("received", "B/s", ("phy_rx_bytes",), rate=True),
    Curve("sent", "B/s", ("phy_tx_bytes",), rate=True),
    Curve("temperature", "°C", ("gpu_celsius",)),
    Curve("utilization", "of the time", ("gpu_utilization",)),
    Curve("memory in use", "B", ("gpu_memory_used_bytes",)),
)
_WANTED = frozenset((*(part for curve in CURVES for part in curve.parts), *(curve.per for curve in CURVES)))


@lru_cache(256)  # the samples of one reader have the same names
def _wanted_of(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Of the names of a sample those that curves need, each with its part before the slash."""
    bases = ((name, name.partition("/")[0]) for name in names)
    return tuple((name, base) for name, base in bases if base in _WANTED)


class _Series:
    __slots__ = ("at", "values")

    def __init__(self) -> None:
        self.at = array("d")
        self.values = array("d")

    def add(self, at: float, value: float) -> None:
        if self.at and at <= self.at[-1]:
            return
        self.at.append(at)
        self.values.append(value)
        if len(self.at) > POINTS:
            del self.at[0], self.values[0]


class SampleHistory:
    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Series] = {}

    def take(self, samples: Iterable[Sample], now: float) -> None:
        """Keep a point of each curve. Times are CLOCK_BOOTTIME; series that have ended are dropped."""
        values: dict[str, dict[str, list[float]]] = {}
        newest: dict[str, float] = {}
        for sample in samples:
            newest[sample.device] = max(sample.at, newest.get(sample.device, 0.0))
            for name, base in _wanted_of(tuple(sample.values)):
                values.setdefault(sample.device, {}).setdefault(base, []).append(sample.values[name])
        for device, found in values.items():
            for name, parts in found.items():
                key = device, name
                if key not in self._series and len(self._series) >= SERIES_MAX:
                    continue
                value = min(parts) if name == "rx_power_watts" else sum(parts)
                self._series.setdefault(key, _Series()).add(newest[device], value)
        oldest = now - EVERY_S * POINTS
        self._series = {key: series for key, series in self._series.items() if series.at[-1] >= oldest}

    def curves(self, now: float, taken: float) -> Mapping[str, list[dict[str, object]]]:
        """The curves of each device: name, unit, times (Unix time; ``taken`` is ``now``) and values."""
        curves: dict[str, list[dict[str, object]]] = {}
        for curve in CURVES:
            for (device, name), series in self._series.items():
                if name != curve.parts[0]:
                    continue
                times, values = _points(curve, series, self._series.get((device, curve.per)))
                if len(values) > 1:
                    points = {"at": [round(taken - now + at, 1) for at in times], "values": values}
                    curves.setdefault(device, []).append({"name": curve.name, "unit": curve.unit, **points})
        return curves


def _points(curve: Curve, series: _Series, per: _Series | None) -> tuple[list[float], list[float]]:
    if not curve.rate:
        return list(series.at), list(series.values)
    if curve.per and per is None:
        return [], []
    divisors = None if per is None else dict(zip(per.at, per.values, strict=True))
    times, values = [], []
    for i in range(1, len(series.at)):
        change, span = series.values[i] - series.values[i - 1], series.at[i] - series.at[i - 1]
        if divisors is not None:
            before, after = divisors.get(series.at[i - 1]), divisors.get(series.at[i])
            span = 0.0 if before is None or after is None else after - before
        if change >= 0 and span > 0:  # a counter that falls was reset
            times.append(series.at[i])
            values.append(change / span)
    return times, values
