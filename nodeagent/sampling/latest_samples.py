"""The newest sample of each device from each source: what the metrics show and the rules judge.

One value, one source: where two can state the same name, the better one does from the moment that it has, and
the other's is left out. Otherwise a counter would jump between two opinions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from nodeagent.measurements.sample import Sample, Source

BETTER: dict[str, tuple[Source, Source]] = {
    "crc_errors": (Source.DRIVER, Source.LINK),
    "fec_corrected_bits": (Source.FEC, Source.DRIVER),
}
"""By name, the source that is believed and the one that is when the first has none."""

_CONTESTED = {
    source: tuple((name, better) for name, (better, other) in BETTER.items() if other is source)
    for source in {other for _, other in BETTER.values()}
}


def _settled(
    sample: Sample,
    contested: tuple[tuple[str, Source], ...],
    mine: dict[Source, Sample],
    spoken: Callable[[Source], bool],
) -> Sample:
    values = sample.values
    for name, better in contested:
        if name in values:
            rival = mine.get(better)
            if not spoken(better) or (rival is not None and name in rival.values):
                values = {other: value for other, value in values.items() if other != name}
    return sample if values is sample.values else msgspec.structs.replace(sample, values=values)


class Latest:
    """Belongs to one thread. Times are CLOCK_BOOTTIME, as in the samples."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[Source, Sample]] = {}

    def take(self, samples: Sequence[Sample], spoken: Callable[[Source], bool]) -> tuple[Sample, ...]:
        """Remember them; answers them as they are to be told on.

        ``spoken``: whether a source has had its first word (or never will): until then nobody speaks for it.
        """
        told = []
        for sample in samples:
            mine = self._samples.setdefault(sample.device, {})
            contested = _CONTESTED.get(sample.source)
            settled = _settled(sample, contested, mine, spoken) if contested else sample
            mine[sample.source] = settled
            told.append(settled)
        return tuple(told)

    def keep(self, devices: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(devices)
        for device in [device for device in self._samples if device not in kept]:
            del self._samples[device]

    def devices(self) -> tuple[str, ...]:
        return tuple(sorted(self._samples))

    def samples(self, device: str) -> Iterator[Sample]:
        """One for each source that has spoken of the device."""
        yield from self._samples.get(device, {}).values()

    def sample(self, device: str, source: Source) -> Sample | None:
        return self._samples.get(device, {}).get(source)

    def values(self, device: str) -> dict[str, float]:
        """All values that are known of a device, by name."""
        found: dict[str, float] = {}
        for sample in self.samples(device):
            found.update(sample.values)
        return found

    def texts(self, device: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for sample in self.samples(device):
            found.update(sample.texts)
        return found

    def at(self, device: str, source: Source) -> float | None:
        """When the source last spoke of the device."""
        sample = self.sample(device, source)
        return sample.at if sample is not None else None
