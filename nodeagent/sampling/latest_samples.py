"""The newest sample of each device from each reader, as metrics and health rules use it.

Two readers may know one counter. Then one of them states it and the other leaves it out, so that the counter does
not jump between two values. The preferred reader wins as soon as it has stated the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from nodeagent.measurements.sample import Sample, Source

PREFERRED: dict[str, tuple[Source, Source]] = {
    "crc_errors": (Source.DRIVER, Source.LINK),
    "fec_corrected_bits": (Source.FEC, Source.DRIVER),
}
"""By name: the preferred reader, and the reader that states the counter if the first cannot."""

_SECOND_CHOICE = {
    source: tuple((name, first) for name, (first, second) in PREFERRED.items() if second is source)
    for source in {second for _, second in PREFERRED.values()}
}
"""By reader: the names for which another reader is preferred, with that reader."""


def _without_duplicates(
    sample: Sample,
    second_choice: tuple[tuple[str, Source], ...],
    device_samples: dict[Source, Sample],
    attempted: Callable[[Source], bool],
) -> Sample:
    values = sample.values
    for name, preferred in second_choice:
        if name in values:
            other = device_samples.get(preferred)
            if not attempted(preferred) or (other is not None and name in other.values):
                values = {key: value for key, value in values.items() if key != name}
    return sample if values is sample.values else msgspec.structs.replace(sample, values=values)


class LatestSamples:
    """Belongs to one thread. Times are CLOCK_BOOTTIME, as in the samples."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[Source, Sample]] = {}

    def take(self, samples: Sequence[Sample], attempted: Callable[[Source], bool]) -> tuple[Sample, ...]:
        """Keep the samples and return them without duplicate counters.

        ``attempted``: whether a reader has finished a reading, or never runs. Until the preferred reader has, no
        other reader states its counters.
        """
        taken = []
        for sample in samples:
            device_samples = self._samples.setdefault(sample.device, {})
            kept = sample
            if second_choice := _SECOND_CHOICE.get(sample.source):
                kept = _without_duplicates(sample, second_choice, device_samples, attempted)
            device_samples[sample.source] = kept
            taken.append(kept)
        return tuple(taken)

    def keep(self, devices: Iterable[str]) -> None:
        """Forget all other devices."""
        kept = set(devices)
        for device in [device for device in self._samples if device not in kept]:
            del self._samples[device]

    def devices(self) -> tuple[str, ...]:
        return tuple(sorted(self._samples))

    def samples(self, device: str) -> Iterator[Sample]:
        """One per reader."""
        yield from self._samples.get(device, {}).values()

    def sample(self, device: str, source: Source) -> Sample | None:
        return self._samples.get(device, {}).get(source)

    def values(self, device: str) -> dict[str, float]:
        """All values of a device, by name."""
        values: dict[str, float] = {}
        for sample in self.samples(device):
            values.update(sample.values)
        return values

    def texts(self, device: str) -> dict[str, str]:
        texts: dict[str, str] = {}
        for sample in self.samples(device):
            texts.update(sample.texts)
        return texts

    def at(self, device: str, source: Source) -> float | None:
        """Time of the reader's last sample of the device."""
        sample = self.sample(device, source)
        return sample.at if sample is not None else None
