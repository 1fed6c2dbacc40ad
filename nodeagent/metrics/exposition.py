"""Render the agent's metrics page. Pure.

* Sample-fed families are compiled to a template with one ``%s`` per number, and facts to plain text. Both are kept
  until the facts, or the names in the samples, change.
* A family has at most ``series_max`` series; the page counts the rest.
* The page comes in pieces, so that other tasks of the event loop can run between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import itemgetter

from msgspec.structs import replace

from nodeagent.measurements.family import Family, Measurement
from nodeagent.measurements.sample import Sample, Source
from nodeagent.metrics.catalog import SAMPLED
from nodeagent.metrics.computed_family import FACT_FAMILIES, LIVE_FAMILIES
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import header, series

PIECE = 1000
"""Numbers rendered before other tasks may run: about half a millisecond."""
FRESH_S = 900.0
"""Older samples are not shown; the slowest reader runs every 60 s."""

_Slot = tuple[int, float]
"""Of one series: the index of its number among all values, and its factor."""
_Shape = tuple[str, Source, tuple[str, ...], dict[str, str]]
"""Device, reader, value names and texts of a sample: everything but its numbers."""
_Block = tuple[Family, str]
"""A family and the lines of its series."""


class _Layout:
    """Everything of a page but its numbers."""

    def __init__(
        self, shown: ScrapeInput, samples: Sequence[Sample], series_max: int, left_out: Container[str]
    ) -> None:
        self.facts = FactIndex(replace(shown, samples=tuple(samples)))
        self.dropped: Counter[str] = Counter()
        self._shapes: list[_Shape] = [
            (sample.device, sample.source, tuple(sample.values), sample.texts) for sample in samples
        ]
        self._series_max, self._left_out = series_max, left_out
        self._templates: list[tuple[list[_Block], int, int]] = []
        self._fact_blocks: list[_Block] = []
        self._pick: Callable[[list[float]], tuple[float, ...]] = lambda _flat: ()
        self._scales: list[tuple[int, float]] = []
        self._texts: dict[bool, tuple[list[tuple[str, int, int]], str]] = {}

    def fits(self, shown: ScrapeInput, samples: Sequence[Sample]) -> bool:
        """Whether the page for these values differs from the last one in its numbers alone."""
        facts = self.facts
        return (
            shown.snapshot is facts.snapshot
            and shown.device_counts == facts.device_counts
            and shown.rails == facts.rails
            and len(samples) == len(self._shapes)
            and all(
                tuple(sample.values) == names
                and sample.device == device
                and sample.source is source
                and sample.texts == texts
                for sample, (device, source, names, texts) in zip(samples, self._shapes, strict=True)
            )
        )

    def compile(self) -> Iterator[None]:
        """Find the place of each number, family by family. Yields where other tasks may run."""
        slots: dict[str, dict[str, _Slot]] = {}
        index = 0
        for device, _source, names, _texts in self._shapes:
            present = self.facts.has(device)
            for name in names:
                head, slash, key = name.partition("/")
                fed = _FED.get(head) if present and head not in self._left_out else None
                if fed is not None and bool(slash) == (fed[1].per is not None):
                    family, measurement = fed
                    values = self._labels(family, measurement, device, key if slash else None)
                    if values is not None:
                        family_slots = slots.setdefault(family.name, {})
                        family_slots[series(family, values)] = (index, measurement.scale)
                index += 1
            yield
        self._place(slots)
        yield
        for family, lines, dropped in FACT_FAMILIES.lines(self.facts, self._series_max):
            self.dropped[family.name] += dropped
            if lines:
                self._fact_blocks.append((family, lines))
            yield

    def pieces(self, samples: Iterable[Sample], openmetrics: bool) -> Iterator[str]:
        """The templates filled with the numbers, then the facts."""
        if openmetrics not in self._texts:
            self._texts[openmetrics] = (
                [(_joined(blocks, openmetrics), first, last) for blocks, first, last in self._templates],
                "".join(header(family, openmetrics) + lines for family, lines in self._fact_blocks),
            )
        templates, facts = self._texts[openmetrics]
        flat: list[float] = []
        for sample in samples:
            flat += sample.values.values()
        numbers = list(self._pick(flat))
        for place, scale in self._scales:
            numbers[place] *= scale
        for template, first, last in templates:
            yield template % tuple(numbers[first:last])
        yield facts

    def _labels(
        self, family: Family, measurement: Measurement, device: str, key: str | None
    ) -> tuple[str, ...] | None:
        """``None`` if the series has no owner: a VF that is gone, or no RDMA device."""
        facts = self.facts
        scope = family.labels[0]
        if scope == "pf":
            vf = facts.vfs.get((device, int(key))) if key and key.isdecimal() else None
            return None if vf is None else (facts.link_name(device), str(vf.vf_index), vf.pci_address)
        owner: tuple[str, ...]
        if scope == "rdma_device":
            if not (name := facts.rdma_name(device)):
                return None
            owner = (name, "1")
        elif scope == "pci_address":
            gpu = facts.gpus.get(device)
            owner = (gpu.pci_address if gpu is not None else device,)
        elif scope == "gpu":
            owner = (facts.gpu_name(device),)
        else:
            owner = (facts.link_name(device),)
        return (*owner, *(() if key is None else (key,)), *measurement.labels)

    def _place(self, slots: dict[str, dict[str, _Slot]]) -> None:
        """Cut the families into templates of about ``PIECE`` numbers, and note where each number comes from."""
        order: list[int] = []
        blocks: list[_Block] = []
        first = 0
        for family in SAMPLED:
            family_slots = slots.get(family.name)
            if not family_slots:
                continue
            kept = list(family_slots.items())[: self._series_max]
            self.dropped[family.name] += len(family_slots) - len(kept)
            for _text, (index, scale) in kept:
                if scale != 1:
                    self._scales.append((len(order), scale))
                order.append(index)
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


def _joined(blocks: Iterable[_Block], openmetrics: bool) -> str:
    return "".join(f"{header(family, openmetrics).replace('%', '%%')}{lines}" for family, lines in blocks)


def _without_zero_errors(sample: Sample) -> Sample:
    """Without PCIe errors that never occurred: those would be forty zeros per device."""
    if sample.source is not Source.PCIE:
        return sample
    values = {name: value for name, value in sample.values.items() if value or not name.startswith("aer_")}
    return replace(sample, values=values)


def _figure_samples(shown: ScrapeInput) -> Iterator[Sample]:
    """The health figures of each link and GPU as samples, by the names of ``health_metrics``."""
    for device, figures in shown.health_figures.items():
        gpu = device.startswith("GPU-")
        head, since = ("gpu_rule_value", "gpu_since_unix") if gpu else ("rule_value", "since_unix")
        values = {
            f"{head}/{rule}": value for rule, value in figures.values.items() if rule not in _OWN_FAMILY
        }
        if figures.since is not None:
            values[since] = round(shown.boot_unix + figures.since, 3)
        if not gpu:
            if figures.penalty is not None:
                values["flap_penalty"] = round(figures.penalty, 1)
            if figures.implausible is not None:
                values["implausible_values"] = figures.implausible
            values.update((name, figures.values[name]) for name in _OWN_FAMILY if name in figures.values)
        yield Sample(0.0, device, Source.GPU if gpu else Source.LINK, values)


_OWN_FAMILY = ("expected_speed_mbps", "pre_fec_ber", "post_fec_errors")
"""Figures of a link that have a family of their own, and no second series as a value of a rule."""

_FED: dict[str, tuple[Family, Measurement]] = {
    measurement.name: (family, measurement) for family in SAMPLED for measurement in family.measurements
}
"""The family of each sample name."""


class Exposition:
    """Renders one page at a time and keeps what it compiled for the next."""

    def __init__(self, series_max: int, left_out: Container[str] = ()) -> None:
        """``left_out``: names of measurements that are not exported."""
        self._series_max, self._left_out = series_max, left_out
        self._layout: _Layout | None = None
        self.dropped: Counter[str] = Counter()
        """Series left out, by family, since the agent started."""

    def pieces(self, shown: ScrapeInput, openmetrics: bool, now: float | None = None) -> Iterator[str]:
        """The page in pieces; after an empty piece other tasks may run too. ``now`` is CLOCK_BOOTTIME."""
        fresh = (sample for sample in shown.samples if now is None or now - sample.at <= FRESH_S)
        samples = [*map(_without_zero_errors, fresh), *_figure_samples(shown)]
        layout = self._layout
        if layout is None or not layout.fits(shown, samples):
            layout = _Layout(shown, samples, self._series_max, self._left_out)
            for _ in layout.compile():
                yield ""
            self._layout = layout
        yield from layout.pieces(samples, openmetrics)
        for name, count in layout.dropped.items():
            if count:
                self.dropped[name] += count
        live_input = replace(shown, facts=layout.facts, dropped=self.dropped)
        parts = []
        for family, lines, dropped in LIVE_FAMILIES.lines(live_input, self._series_max):
            if dropped:
                self.dropped[family.name] += dropped  # the last family shows these counts
            if lines:
                parts.append(header(family, openmetrics) + lines)
        yield "".join(parts)
        if openmetrics:
            yield "# EOF\n"
