"""The last ten minutes of some values of each NIC and GPU, for the curves of the node page. Reads no clock.

A page that is opened must show what was before, so the values are recorded always, and little is recorded: a point for
each ``SAMPLE_EVERY_S``, ``POINTS`` of them, for at most ``HISTORY_SERIES_MAX`` series of 16 bytes a point. That is 0.3
MiB at most and some 70 KiB on a node with 12 NICs and 8 GPUs. The values are those that the agent has read for its
rules anyway.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from nodeagent.measurements.sample import Sample

SAMPLE_EVERY_S = 15.0
POINTS = 41
HISTORY_SERIES_MAX = 400


class Curve(NamedTuple):
    """``sample`` is the name of the samples that make it: of several keys (``name/key``) the sum, of lanes of
    light the least. ``rate``: the change per second is shown. ``per``: the bits of the line divide it, as for a bit
    error ratio: the change of this counter, and at least its speed by the time, as in the rule ``pre_fec_ber``. Many
    drivers count no such bits."""

    name: str
    unit: str
    sample: str
    rate: bool = False
    per: str = ""


CURVES = (
    Curve("received light", "W", "rx_power_watts"),
    Curve("module temperature", "°C", "module_celsius"),
    Curve("bit error ratio before FEC", "", "fec_corrected_bits", rate=True, per="phy_rx_bits"),
    Curve("paused by the peer", "of the time", "prio_rx_pause_seconds", rate=True),
    Curve("pausing the peer", "of the time", "prio_tx_pause_seconds", rate=True),
    Curve("received", "B/s", "phy_rx_bytes", rate=True),
    Curve("sent", "B/s", "phy_tx_bytes", rate=True),
    Curve("temperature", "°C", "gpu_celsius"),
    Curve("utilization", "of the time", "gpu_utilization"),
    Curve("memory in use", "B", "gpu_memory_used_bytes"),
)
_SPEED = "speed_mbps"
_WANTED = frozenset((*(curve.sample for curve in CURVES), *(curve.per for curve in CURVES), _SPEED))


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
                if key not in self._series and len(self._series) >= HISTORY_SERIES_MAX:
                    continue
                value = min(parts) if name == "rx_power_watts" else sum(parts)
                self._series.setdefault(key, _Series()).add(newest[device], value)
        oldest = now - SAMPLE_EVERY_S * POINTS
        self._series = {key: series for key, series in self._series.items() if series.at[-1] >= oldest}

    def curves(self, now: float, taken: float) -> Mapping[str, list[dict[str, object]]]:
        """The curves of each device: name, unit, times (Unix time; ``taken`` is ``now``) and values."""
        curves: dict[str, list[dict[str, object]]] = {}
        for curve in CURVES:
            for (device, name), series in self._series.items():
                if name != curve.sample:
                    continue
                bits = self._line_bits(device, curve.per, series) if curve.per else None
                times, values = _points(curve, series, bits)
                if len(values) > 1:
                    points = {"at": [round(taken - now + at, 1) for at in times], "values": values}
                    curves.setdefault(device, []).append({"name": curve.name, "unit": curve.unit, **points})
        return curves

    def _line_bits(self, device: str, counter: str, series: _Series) -> list[float]:
        """The bits of the line between two points of ``series``; 0: unknown."""
        counted, speeds = self._at(device, counter), self._at(device, _SPEED)
        bits = []
        for before, after in pairwise(series.at):
            known = before in counted and after in counted
            least = 1e6 * speeds.get(after, 0.0) * (after - before)
            bits.append(max(counted[after] - counted[before] if known else 0.0, least))
        return bits

    def _at(self, device: str, name: str) -> dict[float, float]:
        found = self._series.get((device, name))
        return {} if found is None else dict(zip(found.at, found.values, strict=True))


def _points(curve: Curve, series: _Series, divisors: list[float] | None) -> tuple[list[float], list[float]]:
    if not curve.rate:
        return list(series.at), list(series.values)
    times, values = [], []
    for i in range(1, len(series.at)):
        change, span = series.values[i] - series.values[i - 1], series.at[i] - series.at[i - 1]
        if divisors is not None:
            span = divisors[i - 1]
        if change >= 0 and span > 0:  # a counter that falls was reset
            times.append(series.at[i])
            values.append(change / span)
    return times, values
