"""Record the GPUs as samples, with every value that the rules use.

The recorder runs the agent's own GPU source (``sources/gpu_source.py``). It writes three kinds of samples: the measured
values; the driver's answer about each GPU at each reading (``gpu_lost``, ``gpu_mig`` and texts); and the XIDs so far at
each event (``gpu_xids``). While the driver does not answer, it writes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.health.gpu_state import GpuState
from nodeagent.health.recording import Subject
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import GpuEvent
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Gpu
from nodeagent.sources import gpu_source
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading
from nodeagent.supervise import beside, keep

Publish = Callable[[tuple[Sample, ...]], object]

FIRST_READING_S = 15.0
"""Longer than the 10 s after which the source gives up a driver that hangs. A GPU that answers later is not in the
header, so its samples would have no device."""


class GpuRecorder(GpuPublisher):
    """Passes on every reading and event. ``answered`` is set when the driver answers, or is known to be absent."""

    def __init__(self, publish: Publish) -> None:
        super().__init__(discovery.health_service(Config()))
        self._record = publish
        self._latest_at: dict[str, float] = {}
        self.answered = asyncio.Event()
        self.why: str | None = None
        """Why the driver does not answer."""
        self.offered: tuple[Gpu, ...] = ()
        self.publish_to(self._keep_offered, self._write)

    def take_reading(self, reading: DriverReading) -> None:
        super().take_reading(reading)
        self.why = None
        at = boottime()
        self._write(tuple(_reading_sample(at, gpu) for gpu in self.health.gpus.gpus.values()))
        self.answered.set()

    def take_event(self, event: GpuEvent) -> None:
        super().take_event(event)
        if event.uuid is not None and (event.xid is not None or event.unavailable):
            values = {
                f"gpu_xids/{xid}": float(count)
                for (uuid, xid), count in self.xids.items()
                if uuid == event.uuid
            }
            values |= {"gpu_unavailable": 1.0} if event.unavailable else {}
            self._write((Sample(boottime(), event.uuid, Source.GPU, values),))

    def take_absence(self, why: str, again_s: float) -> None:
        super().take_absence(why, again_s)
        self.answered.set()

    def take_silence(self, why: str) -> None:
        super().take_silence(why)
        self.why = why
        self.answered.set()

    def _keep_offered(self, gpus: tuple[Gpu, ...]) -> None:
        self.offered = gpus

    def _write(self, samples: tuple[Sample, ...]) -> None:
        """Publish with times that never go back: vitals have the time at which their reading started."""
        ordered = []
        for sample in samples:
            at = max(sample.at, self._latest_at.get(sample.device, sample.at))
            self._latest_at[sample.device] = at
            ordered.append(sample if at == sample.at else msgspec.structs.replace(sample, at=at))
        self._record(tuple(ordered))


@asynccontextmanager
async def gpu_recorder(
    tree: Tree, publish: Publish, pace: gpu_source.Pace | None = None
) -> AsyncIterator[GpuRecorder]:
    """Enters after the driver's first answer, or after ``FIRST_READING_S``."""
    recorder = GpuRecorder(publish)

    async def watch() -> None:
        await gpu_source.watch(
            lambda: discovery.driver(tree, Config().gpu), tree, recorder, lambda _why: None, pace=pace
        )

    async with beside(keep("gpus", watch), recorder.answered.wait(), FIRST_READING_S):
        if not recorder.answered.is_set():
            recorder.why = f"the GPU driver has not answered within {FIRST_READING_S:g} s"
        yield recorder


def gpu_subjects(recorder: GpuRecorder) -> Iterator[Subject]:
    """The GPUs for the header of the recording."""
    places = {gpu.uuid: (gpu.numa_node, gpu.pci_path) for gpu in recorder.offered}
    for uuid, gpu in recorder.health.gpus.gpus.items():
        numa_node, path = places.get(uuid, (None, ()))
        yield Subject(uuid, "gpu", index=gpu.index, numa_node=numa_node, path=path)


def _reading_sample(at: float, gpu: GpuState) -> Sample:
    reading = gpu.reading
    texts = {"gpu_recovery_action": reading.recovery_action, "gpu_fault": reading.fault}
    return Sample(
        at,
        gpu.uuid,
        Source.GPU,
        {"gpu_lost": float(gpu.lost), "gpu_mig": float(reading.mig)},
        {name: text for name, text in texts.items() if text is not None},
    )
