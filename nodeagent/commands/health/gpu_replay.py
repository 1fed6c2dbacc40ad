"""Recorded samples of GPUs through the judge of the agent. Pure.

A recording contains readings, events and measured values of the driver (``gpu_recorder``), told apart by the names in a
sample. A recording of measured values alone is judged too. Between two samples time passes as it does for the agent,
which judges events again at each reading: ``step`` is called for every moment of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.health.gpu_judge import GpuJudge
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.recording import Subject
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Health

READ_S = 5.0
"""The agent's interval between readings."""


class RecordedDriver:
    """The GPUs that the header of a recording names."""

    def __init__(self, subjects: Iterable[Subject], settings: GpuSettings, guard: GuardSettings) -> None:
        self._index = {
            subject.device: number if subject.index is None else subject.index
            for number, subject in enumerate(subjects)
        }
        self._judge = GpuJudge(settings, guard)
        self._readings: dict[str, GpuReading] = {}
        self._xids: dict[tuple[str, int], float] = {}
        self._sampled_at: float | None = None
        self.now = 0.0

    def name(self, uuid: str) -> str:
        return f"GPU{self._index[uuid]}"

    def step(self, at: float, samples: Iterable[Sample]) -> Iterator[tuple[str, Health]]:
        """Yield the health of every GPU after the samples of one moment."""
        of_gpus = [s for s in samples if s.source is Source.GPU and s.device in self._index]
        self.now = max(self.now, at)
        events = [event for sample in of_gpus for event in self._events(sample)]
        vitals = [GpuVitals(s.device, s.values, s.texts) for s in of_gpus if _is_measured(s)]
        before = dict(self._readings)
        for sample in of_gpus:
            self._read(sample)
        if of_gpus:
            self._sampled_at = self.now
        due = self.now - max((gpu.read_at for gpu in self._judge.gpus.values()), default=0.0) >= READ_S
        # Without samples for some time the driver is silent, and a silent driver is not read: no fault ends.
        gap_s = self._judge.settings.health.gap_s
        answers = self._sampled_at is not None and self.now - self._sampled_at <= gap_s
        if not of_gpus and not (answers and due):
            return
        if due or before != self._readings or any("gpu_lost" in sample.values for sample in of_gpus):
            # First, because an event of a GPU that was never read is dropped.
            self._judge.take_readings(tuple(self._readings.values()), self.now)
        self._judge.take_events(events, self.now)
        self._judge.take_vitals(vitals, self.now)
        yield from self._judge.judge(self.now).items()

    def _read(self, sample: Sample) -> None:
        uuid = sample.device
        if "gpu_lost" in sample.values:
            self._readings[uuid] = GpuReading(
                self._index[uuid],
                uuid,
                mig=sample.values.get("gpu_mig") == 1,
                recovery_action=sample.texts.get("gpu_recovery_action"),
                lost=sample.values["gpu_lost"] == 1,
                fault=sample.texts.get("gpu_fault"),
            )
        elif uuid not in self._readings:
            self._readings[uuid] = GpuReading(self._index[uuid], uuid)

    def _events(self, sample: Sample) -> Iterator[GpuEvent]:
        """The XID counts start with the recording: a count that has grown is an event."""
        for name, count in sample.values.items():
            head, _, key = name.partition("/")
            if head == "gpu_xids" and key.isdecimal():
                counter = sample.device, int(key)
                if count > self._xids.get(counter, 0):
                    yield GpuEvent(sample.device, int(key))
                self._xids[counter] = count
        if sample.values.get("gpu_unavailable") == 1:
            yield GpuEvent(sample.device, None, unavailable=True)


def _is_measured(sample: Sample) -> bool:
    """Whether the sample contains measured values, and is neither a reading nor an event."""
    heads = {name.partition("/")[0] for name in sample.values}
    return "gpu_lost" not in heads and bool(heads - {"gpu_xids", "gpu_unavailable"})
