"""Render the agent's metrics page. Pure.

* The series of a number (its family and labels) and the lines of the facts are kept until the facts change.
* A family has at most ``series_max`` series; the page counts the rest.
* The page comes in pieces, so that other tasks of the event loop can run between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

from msgspec.structs import replace

from nodeagent.measurements.family import Family, Measurement
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import SAMPLED
from nodeagent.metrics.agent_metrics import AGENT_FAMILIES
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.fact_metrics import FACT_FAMILIES
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import header, series

PIECE = 1000
"""Lines rendered before other tasks may run: about half a millisecond."""
EXPOSITION_KEPT_MAX = 10_000
"""Series of one device that are kept; names with a key, such as a container, come and go."""
_FRESH_S = 900.0
"""Older samples are not shown; the slowest reader runs every 60 s."""

_FED: dict[str, tuple[Family, Measurement]] = {
    measurement.name: (family, measurement) for family in SAMPLED for measurement in family.measurements
}
"""The family of each sample name."""
_OWN_FAMILY = ("expected_speed_mbps", "pre_fec_ber", "post_fec_errors")
"""Figures of a link that have a family of their own, and no second series as a value of a rule."""

_Shown = tuple[str, str, float]
"""Of a number: the name of its family, the text of its series, and the factor of its value."""
_Block = tuple[Family, str, int]
"""A family, the lines of its series, and how many series were left out."""


class Exposition:
    """Renders one page at a time, and keeps for the next one what depends on the facts alone."""

    def __init__(
        self,
        series_max: int,
        left_out: Container[str] = (),
        further: Iterable[ComputedFamily[ScrapeInput]] = (),
    ) -> None:
        """``left_out``: names of measurements that are not exported. ``further`` families are computed at each scrape,
        as those of the agent."""
        self._series_max, self._left_out = series_max, left_out
        self._live = (*AGENT_FAMILIES, *further)
        self._facts: FactIndex | None = None
        self._shown: dict[str, dict[str, _Shown | tuple[()]]] = {}
        self._fact_blocks: list[_Block] = []
        self.dropped: Counter[str] = Counter()
        """Series left out, by family, since the agent started."""

    def pieces(self, shown: ScrapeInput, openmetrics: bool, now: float | None = None) -> Iterator[str]:
        """The page in pieces; after an empty piece other tasks may run too. ``now`` is CLOCK_BOOTTIME."""
        fresh = (sample for sample in shown.samples if now is None or now - sample.at <= _FRESH_S)
        samples = (*map(_without_zero_errors, fresh), *_figure_samples(shown))
        facts, known, blocks = FactIndex(replace(shown, samples=samples)), self._shown, self._fact_blocks
        if self._facts is None or not facts.equals(self._facts):
            known, blocks = {}, []
            for one in FACT_FAMILIES:
                blocks.append(self._block(one.family, one.lines(facts)))
                yield ""
        lines: dict[str, dict[str, str]] = {family.name: {} for family in SAMPLED}
        waiting = 0
        for sample in samples:
            new = self._collect(sample, facts, known.setdefault(sample.device, {}), lines)
            waiting += len(sample.values)
            if new or waiting >= PIECE:
                yield ""
                waiting = 0
        self._facts, self._shown, self._fact_blocks = facts, known, blocks
        sampled = (self._block(family, lines[family.name]) for family in SAMPLED)
        live_input = replace(shown, facts=facts, dropped=self.dropped)
        live = (self._block(one.family, one.lines(live_input)) for one in self._live)
        piece: list[str] = []
        waiting = 0
        for family, text, dropped in chain(sampled, blocks, live):
            if dropped:
                self.dropped[family.name] += dropped
            if text:
                piece += (header(family, openmetrics), text)
                waiting += text.count("\n")
            if waiting >= PIECE:
                yield "".join(piece)
                piece, waiting = [], 0
        yield "".join(piece)
        if openmetrics:
            yield "# EOF\n"

    def _block(self, family: Family, lines: dict[str, str]) -> _Block:
        """``lines`` by the text of their series."""
        kept = islice(lines.values(), self._series_max)
        return family, "".join(kept), max(0, len(lines) - self._series_max)

    def _collect(
        self,
        sample: Sample,
        facts: FactIndex,
        known: dict[str, _Shown | tuple[()]],
        lines: dict[str, dict[str, str]],
    ) -> bool:
        """Add the lines of a sample by family and series. ``known`` has the series of its device, by name.

        Returns whether a series was not known.
        """
        before = len(known)
        if before > EXPOSITION_KEPT_MAX:
            known.clear()
        for name, value in sample.values.items():
            number = known.get(name)
            if number is None:
                known[name] = number = self._shown_as(facts, sample.device, name)
            if number:
                family, text, scale = number
                lines[family][text] = f"{text} {value * scale}\n"
        return len(known) != before

    def _shown_as(self, facts: FactIndex, device: str, name: str) -> _Shown | tuple[()]:
        """Empty if the page does not show the number, or its device is no part of the node."""
        head, slash, key = name.partition("/")
        fed = _FED.get(head)
        if fed is None or head in self._left_out or not facts.has(device):
            return ()
        family, measurement = fed
        owner = _owner(family.labels[0], facts, device, key)
        if owner is None or bool(slash) != (measurement.per is not None):
            return ()
        keys = (key,) if slash and family.labels[0] != "pf" else ()
        return family.name, series(family, (*owner, *keys, *measurement.labels)), measurement.scale


def _owner(scope: str, facts: FactIndex, device: str, key: str) -> tuple[str, ...] | None:
    """The labels that identify the subject of a series; ``None`` for a VF that is gone, or without RDMA device."""
    match scope:
        case "pf":
            vf = facts.vfs.get((device, int(key))) if key.isdecimal() else None
            return None if vf is None else (facts.link_name(device), str(vf.vf_index), vf.pci_address)
        case "rdma_device":
            name = facts.rdma_name(device)
            return (name, "1") if name else None
        case "pci_address":
            gpu = facts.gpus.get(device)
            return (gpu.pci_address if gpu is not None else device,)
        case "gpu":
            return (facts.gpu_name(device),)
        case _:
            return (facts.link_name(device),)


def _without_zero_errors(sample: Sample) -> Sample:
    """Without PCIe errors that never occurred: those would be forty zeros per device."""
    if sample.source is not Source.PCIE:
        return sample
    values = {name: value for name, value in sample.values.items() if value or not name.startswith("aer_")}
    return replace(sample, values=values)


def _figure_samples(shown: ScrapeInput) -> Iterator[Sample]:
    """The health figures of each link and GPU as samples, by the names of ``FIGURE_ROWS``."""
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
