"""The catalog as text: Prometheus' text format 0.0.4 and OpenMetrics 1.0.0. Pure.

The law of this file:

* What changes seldom is rendered seldom. The sample-fed families are compiled to a template, with one ``%s`` for
  each number, and the facts to plain text; both stand until the facts, or the names in the samples, change.
* Everything that comes from the wire or from hardware is made one printable line, cut and escaped. No series
  stands twice, whatever two texts are cut to, and no family has more than ``series_max`` series: the rest is
  counted.
* Text is made in pieces, so that whoever waits for the loop need not wait for the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter

from nodeagent.health.samples import Sample, Source
from nodeagent.lldp.escaping import printable
from nodeagent.metrics.catalog import CATALOG, Family, Feed
from nodeagent.metrics.family import Series, datum_of
from nodeagent.metrics.scrape_input import Scene, View

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version={}; charset=utf-8"
OPENMETRICS_VERSIONS = ("1.0.0", "0.0.1")

TEXT_MAX = 128
"""Characters of a label's value; a system name of LLDP has up to 255, and says what it says in fewer."""
PIECE = 1000
"""Samples rendered between two breaths of the loop: about half a millisecond."""
FRESH_S = 900.0
"""What nobody has measured for so long is no longer shown; the slowest collector looks every 60 s."""

_PARAMETER = re.compile(r"""\s*([^\s;=]+)\s*=\s*"?([^\s;"]*)"?\s*""")


def negotiate(accept: str) -> str:
    """The content type for an Accept header: OpenMetrics where it is wanted at least as much as text."""
    wanted: dict[str, float] = {}
    for one in accept.split(","):
        media, *rest = one.split(";")
        found = [match for text in rest if (match := _PARAMETER.fullmatch(text))]
        parameters = {match[1].lower(): match[2] for match in found}
        weight = _weight(parameters.get("q", "1"))
        version = parameters.get("version", "1.0.0")
        kind = media.strip().lower()
        if kind == "application/openmetrics-text" and version in OPENMETRICS_VERSIONS:
            wanted[version] = max(weight, wanted.get(version, 0))
        elif kind in ("text/plain", "text/*", "*/*"):
            wanted["plain"] = max(weight, wanted.get("plain", 0))
    best = max((v for v in OPENMETRICS_VERSIONS if v in wanted), key=wanted.__getitem__, default=None)
    if best is None or wanted[best] <= 0 or wanted[best] < wanted.get("plain", 0):
        return PLAIN
    return OPENMETRICS.format(best)


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0


@lru_cache(maxsize=8192)
def label(text: str) -> str:
    """A label's value as it stands between the quotes."""
    text = text[: TEXT_MAX + 1]
    if not text.isprintable():
        text = printable(text)
    if len(text) > TEXT_MAX:
        text = text[: TEXT_MAX - 1] + "…"
    return text.replace("\\", "\\\\").replace('"', '\\"')


def series(family: Family, values: Sequence[str]) -> str:
    """``name{label="value"}``, and of a histogram its bucket, sum or count."""
    name, names = family.name, family.labels
    if family.type == "histogram":
        if values[-1] in ("sum", "count"):
            name, names, values = f"{name}_{values[-1]}", names[:-1], values[:-1]
        else:
            name = f"{name}_bucket"
    pairs = ",".join(f'{key}="{label(value)}"' for key, value in zip(names, values, strict=True))
    return f"{name}{{{pairs}}}" if pairs else name


def header(family: Family, openmetrics: bool) -> str:
    name = family.base if openmetrics else family.name
    unit = f"# UNIT {name} {family.unit}\n" if openmetrics and family.unit else ""
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n{unit}"


@dataclass(slots=True)
class _Slot:
    """A series of a sample-fed family: the place of its number, and what it is multiplied with."""

    index: int
    scale: float


_Shape = tuple[str, Source, tuple[str, ...], dict[str, str]]
_Block = tuple[Family, str]
_Stated = tuple[Sample, dict[str, float]]
"""A sample and what of its values is shown."""


class _Layout:
    """Everything of a scrape but its numbers. ``breaths`` compiles it and yields between two parts."""

    def __init__(self, view: View, samples: Sequence[_Stated], series_max: int) -> None:
        self.scene = Scene(replace(view, samples=tuple(sample for sample, _values in samples)))
        self.snapshot = view.snapshot
        self.stock = view.stock
        self.rails = view.rails
        self.dropped: Counter[str] = Counter()
        self._shapes: list[_Shape] = [
            (one.device, one.source, tuple(values), one.texts) for one, values in samples
        ]
        self._series_max = series_max
        self._templates: list[tuple[list[_Block], int, int]] = []
        self._facts: list[_Block] = []
        self._pick: Callable[[list[float]], tuple[float, ...]] = lambda _flat: ()
        self._scales: list[tuple[int, float]] = []
        self._texts: dict[bool, tuple[list[tuple[str, int, int]], str]] = {}

    def fits(self, view: View, samples: Sequence[_Stated]) -> bool:
        return (
            view.snapshot is self.snapshot
            and view.stock == self.stock
            and view.rails == self.rails
            and len(samples) == len(self._shapes)
            and all(
                tuple(values) == names
                and one.device == device
                and one.source is source
                and one.texts == texts
                for (one, values), (device, source, names, texts) in zip(samples, self._shapes, strict=True)
            )
        )

    def breaths(self) -> Iterator[None]:
        """Compile: where each number goes, family by family."""
        slots: dict[str, dict[str, _Slot]] = {}
        index = 0
        for device, _source, names, _texts in self._shapes:
            there = self.scene.there(device)
            for name in names:
                head, slash, key = name.partition("/")
                for family, feed in _FED.get(head, ()) if there and datum_of(name) else ():
                    if (values := self._labels(family, feed, device, key if slash else None)) is not None:
                        slots.setdefault(family.name, {})[series(family, values)] = _Slot(index, feed.scale)
                index += 1
            yield
        self._place(slots)
        yield
        for family in CATALOG.values():
            if family.described is not None:
                if lines := self._lines(family, family.described(self.scene)):
                    self._facts.append((family, lines))
                yield

    def pieces(self, samples: Iterable[_Stated], openmetrics: bool) -> Iterator[str]:
        """The numbers into the template, then the facts."""
        if openmetrics not in self._texts:
            self._texts[openmetrics] = (
                [(_joined(blocks, openmetrics), a, b) for blocks, a, b in self._templates],
                "".join(header(family, openmetrics) + lines for family, lines in self._facts),
            )
        templates, facts = self._texts[openmetrics]
        flat: list[float] = []
        for _sample, values in samples:
            flat += values.values()
        numbers = list(self._pick(flat))
        for place, scale in self._scales:
            numbers[place] *= scale
        for template, first, last in templates:
            yield template % tuple(numbers[first:last])
        yield facts

    def _labels(self, family: Family, feed: Feed, device: str, key: str | None) -> tuple[str, ...] | None:
        """``None`` where the series has nobody to belong to: a VF that has gone, no RDMA device."""
        scene = self.scene
        scope = family.labels[0]
        if scope == "pf":
            vf = scene.vfs.get((device, int(key))) if key and key.isdecimal() else None
            return None if vf is None else (scene.link_name(device), str(vf.vf_index), vf.pci_address)
        if scope == "rdma_device":
            name = scene.rdma_name(device)
            whom: tuple[str, ...] | None = (name, "1") if name else None
        elif scope == "pci_address":
            gpu = scene.gpus.get(device)
            whom = (gpu.pci_address if gpu is not None else device,)
        elif scope == "gpu":
            whom = (scene.gpu_name(device),)
        else:
            whom = (scene.link_name(device),)
        return None if whom is None else (*whom, *(() if key is None else (key,)), *feed.fixed)

    def _place(self, slots: dict[str, dict[str, _Slot]]) -> None:
        order: list[int] = []
        blocks: list[_Block] = []
        first = 0
        for family in CATALOG.values():
            found = slots.get(family.name)
            if not found:
                continue
            kept = list(found.items())[: self._series_max]
            self.dropped[family.name] += len(found) - len(kept)
            for _text, slot in kept:
                if slot.scale != 1:
                    self._scales.append((len(order), slot.scale))
                order.append(slot.index)
            blocks.append((family, "".join(f"{text.replace('%', '%%')} %s\n" for text, _slot in kept)))
            if len(order) - first >= PIECE:
                self._templates.append((blocks, first, len(order)))
                blocks, first = [], len(order)
        if blocks:
            self._templates.append((blocks, first, len(order)))
        if len(order) == 1:
            self._pick = lambda flat: (flat[order[0]],)
        elif order:
            self._pick = itemgetter(*order)

    def _lines(self, family: Family, found: Iterable[Series]) -> str:
        lines, dropped = lines_of(family, found, self._series_max)
        self.dropped[family.name] += dropped
        return lines


def lines_of(family: Family, found: Iterable[Series], series_max: int) -> tuple[str, int]:
    """The lines of a family and how many were left out. The first of equal series stands."""
    lines: dict[str, float] = {}
    dropped: set[str] = set()
    for values, number in found:
        text = series(family, values)
        if text in lines:
            continue
        if len(lines) >= series_max:
            dropped.add(text)
            continue
        lines[text] = number
    return "".join(f"{text} {_number(number)}\n" for text, number in lines.items()), len(dropped)


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _joined(blocks: Iterable[_Block], openmetrics: bool) -> str:
    return "".join(f"{header(family, openmetrics).replace('%', '%%')}{lines}" for family, lines in blocks)


def _shown(sample: Sample) -> dict[str, float]:
    """Errors of PCIe that never came are forty zeros for each device."""
    if sample.source is not Source.PCIE:
        return sample.values
    return {name: value for name, value in sample.values.items() if value or not name.startswith("aer_")}


def _judged(view: View) -> Iterator[Sample]:
    """What the rules say of each link and GPU, as samples."""
    for device, judged in view.judged.items():
        gpu = device.startswith("GPU-")
        head, since = ("gpu_rule_value", "gpu_since_unix") if gpu else ("rule_value", "since_unix")
        values = {f"{head}/{rule}": value for rule, value in judged.values.items()}
        if judged.since is not None:
            values[since] = round(view.boot_unix + judged.since, 3)
        if not gpu:
            if judged.penalty is not None:
                values["flap_penalty"] = round(judged.penalty, 1)
            if judged.expected_mbps is not None:
                values["expected_speed_mbps"] = judged.expected_mbps
            values.update((rule, judged.values[rule]) for rule in _RATIOS if rule in judged.values)
        yield Sample(0.0, device, Source.GPU if gpu else Source.LINK, values)


_RATIOS = ("pre_fec_ber", "post_fec_errors")

_FED: dict[str, list[tuple[Family, Feed]]] = {}
for _family in CATALOG.values():
    for _feed in _family.feeds:
        _FED.setdefault(_feed.datum, []).append((_family, _feed))


class Exposition:
    """Renders one view after the other. One at a time: what is compiled is shared."""

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._layout: _Layout | None = None
        self.dropped: Counter[str] = Counter()
        """Series left out, by family, since the agent began."""

    def pieces(self, view: View, openmetrics: bool, now: float | None = None) -> Iterator[str]:
        """The page, piece by piece; an empty piece is a moment to breathe. ``now`` is CLOCK_BOOTTIME."""
        fresh = (one for one in view.samples if now is None or now - one.at <= FRESH_S)
        samples = [(one, _shown(one)) for one in (*fresh, *_judged(view))]
        layout = self._layout
        if layout is None or not layout.fits(view, samples):
            layout = _Layout(view, samples, self._series_max)
            for _ in layout.breaths():
                yield ""
            self._layout = layout
        yield from layout.pieces(samples, openmetrics)
        for family, count in layout.dropped.items():
            if count:
                self.dropped[family] += count
        yield self._live(replace(view, scene=layout.scene, dropped=self.dropped), openmetrics)
        if openmetrics:
            yield "# EOF\n"

    def _live(self, view: View, openmetrics: bool) -> str:
        parts = []
        for family in CATALOG.values():
            if family.live is not None:
                lines, dropped = lines_of(family, family.live(view), self._series_max)
                if dropped:
                    self.dropped[family.name] += dropped
                if lines:
                    parts.append(header(family, openmetrics) + lines)
        return "".join(parts)
