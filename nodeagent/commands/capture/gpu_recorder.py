"""The GPUs of a recording: what the driver says of them, as samples, with nothing left out that rules go by.

The agent's own session with the driver is listened to (``sources/gpu_source.py``). Three kinds of samples come of it:
what was measured; at each reading what the driver said of every GPU (``gpu_lost``, ``gpu_mig`` and texts); and at
each event what was heard so far (``gpu_xids``). A driver that is silent gives none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.health.gpu_state import GpuState
from nodeagent.health.recording import Subject
from nodeagent.host.gpu_driver import GpuEvent
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Gpu
from nodeagent.sources import gpu_source
from nodeagent.sources.gpu_health_service import Ledger
from nodeagent.sources.nvml_session import Reading, boottime
from nodeagent.supervise import keep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

State = Callable[[tuple[Sample, ...]], object]

FIRST_WORD_S = 15.0
"""For the first reading. A driver that hangs is given up after ten; what it says later is of no device that the
header names."""


class Hearing(Ledger):
    """A ledger that passes on all that it hears. ``spoken`` is set at the first word, also that there is none."""

    def __init__(self, state: State) -> None:
        super().__init__(discovery.gpu_terms(Config().gpu, Config().health.guard))
        self._pass_on = state
        self._last: dict[str, float] = {}
        self.spoken = asyncio.Event()
        self.why: str | None = None
        self.found: tuple[Gpu, ...] = ()
        self.tell(self._find, self._write)

    def hear_reading(self, news: Reading) -> None:
        super().hear_reading(news)
        self.why = None
        at = boottime()
        self._write(tuple(_reading(at, gpu) for gpu in self.judge.gpus.values()))
        self.spoken.set()

    def hear_event(self, event: GpuEvent) -> None:
        super().hear_event(event)
        if event.uuid is not None and (event.xid is not None or event.unavailable):
            values = {
                f"gpu_xids/{xid}": float(n) for (uuid, xid), n in self.xids.items() if uuid == event.uuid
            }
            values |= {"gpu_unavailable": 1.0} if event.unavailable else {}
            self._write((Sample(boottime(), event.uuid, Source.GPU, values),))

    def find_absent(self, why: str, again_s: float) -> None:
        super().find_absent(why, again_s)
        self.spoken.set()

    def fall_silent(self, why: str) -> None:
        super().fall_silent(why)
        self.why = why
        self.spoken.set()

    def _find(self, found: tuple[Gpu, ...]) -> None:
        self.found = found

    def _write(self, samples: tuple[Sample, ...]) -> None:
        """Vitals are of when their reading began, and are told when it has ended: times of a GPU go forward."""
        told = []
        for one in samples:
            at = self._last[one.device] = max(one.at, self._last.get(one.device, one.at))
            told.append(one if at == one.at else msgspec.structs.replace(one, at=at))
        self._pass_on(tuple(told))


@asynccontextmanager
async def listening(tree: Tree, state: State, pace: gpu_source.Pace | None = None) -> AsyncIterator[Hearing]:
    """Entered when the driver has spoken, or after ``FIRST_WORD_S``."""
    hearing = Hearing(state)

    async def watch() -> None:
        await gpu_source.watch(
            lambda: discovery.driver(tree, Config().gpu), tree, hearing, lambda _why: None, pace=pace
        )

    task = asyncio.create_task(keep("gpus", watch))
    first = asyncio.create_task(hearing.spoken.wait())
    try:
        await asyncio.wait((task, first), timeout=FIRST_WORD_S, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.spoken.is_set():
            hearing.why = f"the GPU driver has not answered within {FIRST_WORD_S:g} s"
        yield hearing
    finally:
        task.cancel()
        first.cancel()
        await asyncio.wait((task, first))


def subjects(hearing: Hearing) -> Iterator[Subject]:
    """For the header."""
    places = {gpu.uuid: (gpu.numa_node, gpu.pci_path) for gpu in hearing.found}
    for uuid, gpu in hearing.judge.gpus.items():
        numa_node, path = places.get(uuid, (None, ()))
        yield Subject(uuid, "gpu", index=gpu.index, numa_node=numa_node, path=path)


def _reading(at: float, gpu: GpuState) -> Sample:
    reading = gpu.reading
    texts = {"gpu_recovery_action": reading.recovery_action, "gpu_fault": reading.fault}
    return Sample(
        at,
        gpu.uuid,
        Source.GPU,
        {"gpu_lost": float(gpu.lost), "gpu_mig": float(reading.mig)},
        {name: text for name, text in texts.items() if text is not None},
    )
