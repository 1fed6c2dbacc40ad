"""The compared values of a captured machine, as its agent would report them, without those of the agent itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.commands.scan.listing import scan_machine
from nodeagent.console.user_files import UserFileError
from nodeagent.fabric.node_values import NodeValues, values_text
from nodeagent.features.peer_values.host_values import read_host
from nodeagent.features.peer_values.value_table import model_of, node_reading, read_values, texts_of
from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.recorded_samples import RecordedSamplesReader

_WHOLE = 1 << 20
"""Characters: nobody sends the values of a capture, so none is a digest."""
_EXPECTED = "a folder that `nodeagent capture` has written"


def is_capture(word: str) -> bool:
    """A name of a Node has no slash, so ``./gpu-017`` is a folder."""
    return "/" in word or word in (".", "..")


def captured_values(folder: str) -> NodeValues:
    """The values of the machine in this folder. Its NICs have the names that an agent would give them by default; where
    none would have a rail, all NICs are compared by the name of their netdev. Raises ``UserFileError``."""
    root = Path(folder)
    try:
        tree = Tree(root)
        if not tree.recorded:
            raise UserFileError(folder, "it holds no captured machine", _EXPECTED)
        view = asyncio.run(scan_machine(Config(), root))
        pfs = tuple(one for one in view.snapshot.functions if one.parent is None)
        names = dict(view.nics) or {pf.pci_address: pf.netdev or pf.pci_address for pf in pfs}
        compared = tuple(pf for pf in pfs if pf.pci_address in names)
        samples = (*RecordedSamplesReader(tree).read(compared), *_of_gpus(root))
        reading = node_reading(view.snapshot, samples, names, read_host(tree, compared), None)
    except (SysfsError, DriverError) as error:
        raise UserFileError(folder, f"it cannot be read: {error}", _EXPECTED) from error
    return NodeValues(values_text(texts_of(read_values(reading), model_of(reading)), _WHOLE))


def _of_gpus(root: Path) -> Iterator[Sample]:
    driver = RecordedGpuDriver(root)
    for gpu in driver.vitals():
        yield Sample(0.0, gpu.uuid, Source.GPU, gpu.values, gpu.texts)
