"""The GPUs of a recording through their rules: the judge of the agent, handed what was recorded. Pure.

Readings, events and vitals are told apart by what a sample holds (``gpu_recorder``). A recording of vitals alone
is judged too: of such a GPU nothing but its vitals is known. Between two samples time goes by as it does for the
agent, which looks at what was announced at each reading: ``step`` is called for every moment of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.health.gpuguard import Guard
from nodeagent.health.recording import Subject
from nodeagent.health.xids import Latch, Rules, judge, verdict
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Health

READ_S = 5.0
"""As often the agent reads."""


class Gpus:
    """Those that the header names."""

    def __init__(self, subjects: Iterable[Subject], rules: Rules, guard: Guard) -> None:
        self._index = {
            one.device: number if one.index is None else one.index for number, one in enumerate(subjects)
        }
        self._rules = rules
        self._guard = guard
        self._latches: tuple[Latch, ...] = ()
        self._readings: dict[str, GpuReading] = {}
        self._xids: dict[tuple[str, int], float] = {}
        self._heard_at: float | None = None
        self.now = 0.0

    def name(self, uuid: str) -> str:
        return f"GPU{self._index[uuid]}"

    def step(self, at: float, samples: Iterable[Sample]) -> Iterator[tuple[str, Health]]:
        """Every GPU as it is judged at this moment, with the samples of it."""
        ours = [one for one in samples if one.source is Source.GPU and one.device in self._index]
        self.now = max(self.now, at)
        events = [event for one in ours for event in self._events(one)]
        vitals = [GpuVitals(one.device, one.values, one.texts) for one in ours if _measured(one)]
        before = dict(self._readings)
        for one in ours:
            self._read(one)
        if ours:
            self._heard_at = self.now
        due = self.now - max((latch.read_at for latch in self._latches), default=0.0) >= READ_S
        # A driver that says nothing is not read either: nothing ends while it is silent.
        speaks = self._heard_at is not None and self.now - self._heard_at <= self._rules.limits.gap_s
        if not ours and not (speaks and due):
            return
        read = due or before != self._readings or any("gpu_lost" in one.values for one in ours)
        if read:  # first, for nobody hears of a GPU that was never read
            everyone = tuple(self._readings.values())
            self._latches = judge(self._latches, self.now, self._rules, readings=everyone)
        self._latches = judge(self._latches, self.now, self._rules, events=events, vitals=vitals)
        healths = {latch.uuid: verdict(latch, self._rules) for latch in self._latches}
        yield from self._guard.judge(healths, self.now).items()

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
        """XIDs are counted from the beginning of the recording: what is more than before was heard since."""
        for name, count in sample.values.items():
            head, _, key = name.partition("/")
            if head == "gpu_xids" and key.isdecimal():
                known = sample.device, int(key)
                if count > self._xids.get(known, 0):
                    yield GpuEvent(sample.device, int(key))
                self._xids[known] = count
        if sample.values.get("gpu_unavailable") == 1:
            yield GpuEvent(sample.device, None, unavailable=True)


def _measured(sample: Sample) -> bool:
    """Whether these are vitals, and neither a reading nor an event."""
    heads = {name.partition("/")[0] for name in sample.values}
    return "gpu_lost" not in heads and bool(heads - {"gpu_xids", "gpu_unavailable"})
