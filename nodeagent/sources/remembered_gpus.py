"""The GPUs of this node, kept over restarts and reboots: a GPU that is gone stays on the kubelet's list as Unhealthy.

* A GPU is its UUID, with its index, PCI address and memory: enough to list its slices without it.
* Another GPU in the same slot takes its place. A GPU that is gone for good is forgotten by a command.
* A record that cannot be true is dropped with a log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.facts.model import Gpu
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.plausible_gpus import is_uuid, plausible_gpus, quoted
from nodeagent.sources.nvml_session import Place

log = logging.getLogger(__name__)

REMEMBERED_MAX = 64
"""Four times the GPUs of the largest node of 2026; a machine whose GPUs change their UUIDs would collect more."""


class RememberedGpu(msgspec.Struct, frozen=True):
    """One GPU, by the fields of ``model.Gpu``."""

    uuid: str
    index: int
    pci_address: str
    memory_mib: int
    minor: int | None = None
    name: str = ""
    numa_node: int | None = None
    pci_path: tuple[str, ...] = ()

    @property
    def reading(self) -> GpuReading:
        return GpuReading(self.index, self.uuid, self.minor, self.name, self.pci_address, self.memory_mib)

    @property
    def place(self) -> Place:
        return self.numa_node, self.pci_path


GPUS_FORM = StoredForm(
    name="gpus.json",
    type=tuple[RememberedGpu, ...],
    content="GPUs",
    loss="a GPU that is gone is not noticed",
)


class RememberedGpus:
    """The GPUs of the file. Belongs to one event loop."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the file of an earlier agent. Blocks. Without a folder nothing is remembered."""
        self.file = StoredFile(folder, GPUS_FORM)
        self._changed = asyncio.Event()
        found = self.file.read()
        self.was_read = found is not None
        """An earlier agent has left a file that can be read."""
        self.gpus = sound(found or ())

    def update(self, gpus: Iterable[Gpu]) -> None:
        """Keep these GPUs and no others."""
        now = tuple(msgspec.convert(gpu, RememberedGpu, from_attributes=True) for gpu in gpus)
        if now != self.gpus:
            self.gpus = now
            self._changed.set()

    async def run(self, forget: Callable[[Collection[str]], object], every_s: float) -> None:
        """Write changes until cancelled. A write that fails is tried again.

        Every ``every_s``, and before each write, look for GPUs that a command has removed from the file; ``forget``
        takes their UUIDs.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._changed.wait()
            self._changed.clear()
            if (found := await self.file.changed()) is not None:
                kept = {gpu.uuid for gpu in found}
                forget([gpu.uuid for gpu in self.gpus if gpu.uuid not in kept])
            await self.file.save(self.gpus)


def sound(gpus: Iterable[RememberedGpu]) -> tuple[RememberedGpu, ...]:
    """Return the GPUs without those that cannot be true. A hand may have changed the file."""
    kept = []
    # One by one: a lost GPU and its successor on another bus may have the same address or minor number.
    for gpu in {gpu.uuid: gpu for gpu in gpus}.values():
        (reading,) = plausible_gpus([gpu.reading])
        if reading.uuid is None or not 0 <= gpu.index < 1024:
            log.warning(
                "A remembered GPU cannot be true and is ignored. uuid=%s reason=%r",
                gpu.uuid if is_uuid(gpu.uuid) else quoted(gpu.uuid),
                reading.fault or "its index is out of range",
            )
        else:
            kept.append(gpu)
    if len(kept) > REMEMBERED_MAX:
        log.warning(
            "Too many GPUs are remembered, and the last ones are ignored; remove those that are gone with `nodeagent "
            "remembered forget`. count=%d limit=%d",
            len(kept),
            REMEMBERED_MAX,
        )
    return tuple(kept[:REMEMBERED_MAX])
