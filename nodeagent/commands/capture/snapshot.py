"""What is measured at the moment of a capture: ``/.nodeagent/samples.json`` of the machine that it becomes.

Without serial numbers, as everything of a capture.
"""

from __future__ import annotations

import asyncio
import threading

import msgspec

from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample
from nodeagent.model import Function
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings

_PATIENCE_S = 30.0
"""After so long those that have answered are what there is."""
_SERIALS = frozenset(("module_serial", "gpu_serial"))


def samples(tree: Tree, functions: tuple[Function, ...]) -> bytes:
    """The text of the file; for whoever has an event loop running too."""
    taken: list[Sample] = []

    async def look() -> None:
        sampler = Sampler(tree, lambda: functions, taken.extend, SamplesSettings(kernel_log=False))
        await sampler.once()
        sampler.close()

    thread = threading.Thread(target=lambda: asyncio.run(look()), name="samples", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return (
        msgspec.json.format(msgspec.json.encode([_nameless(one) for one in tuple(taken)]), indent=1) + b"\n"
    )


def _nameless(sample: Sample) -> Sample:
    if _SERIALS.isdisjoint(sample.texts):
        return sample
    texts = {name: text for name, text in sample.texts.items() if name not in _SERIALS}
    return msgspec.structs.replace(sample, texts=texts)
