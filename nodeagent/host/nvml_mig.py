"""Read the MIG devices of a GPU by NVML.

A MIG device is a compute instance in a GPU instance. Both may be made and destroyed at any time, without a reset of the
GPU: a device that is gone between two calls is left out, and the next reading has the truth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from nodeagent.facts.model import MigDevice

_NAMED = re.compile(r" MIG (\S+)$")
_EIGHTHS = 8
"""A GPU has eight slices of memory (NVIDIA, MIG user guide, section "Partitioning")."""


def mig_devices(lib: Any, gpu: Any) -> Iterator[MigDevice]:
    """Yield the MIG devices of a GPU in MIG mode. Raises ``lib.NVMLError``. The indexes may have gaps."""
    total_mib = int(lib.nvmlDeviceGetMemoryInfo(gpu).total) >> 20
    for index in range(lib.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = _read(lib, lib.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index), total_mib)
        except lib.NVMLError as error:
            if error.value not in (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_INVALID_ARGUMENT):
                raise
            continue
        yield device


def _read(lib: Any, handle: Any, total_mib: int) -> MigDevice:
    attributes = lib.nvmlDeviceGetAttributes_v2(handle)
    named = _NAMED.search(str(lib.nvmlDeviceGetName(handle)))
    memory_mib = int(attributes.memorySizeMB)
    slices = int(attributes.gpuInstanceSliceCount), int(attributes.computeInstanceSliceCount)
    return MigDevice(
        uuid=str(lib.nvmlDeviceGetUUID(handle)),
        profile=named[1] if named else profile(*slices, memory_mib, total_mib),
        memory_mib=memory_mib,
        gpu_instance=int(lib.nvmlDeviceGetGpuInstanceId(handle)),
        compute_instance=int(lib.nvmlDeviceGetComputeInstanceId(handle)),
    )


def profile(slices: int, compute_slices: int, memory_mib: int, total_mib: int) -> str:
    """Return the name of a profile, for drivers that do not name MIG devices.

    The memory counts in eighths of the GPU, rounded up; the size of the GPU is rounded up to GiB.

    >>> [profile(1, 1, 9856, 81559), profile(3, 3, 40192, 81559), profile(7, 7, 80384, 81559)]
    ['1g.10gb', '3g.40gb', '7g.80gb']
    >>> [profile(1, 1, 4864, 40536), profile(3, 1, 19968, 40536)]
    ['1g.5gb', '1c.3g.20gb']
    """
    eighths = math.ceil(_EIGHTHS * memory_mib / total_mib)
    size = round(eighths * math.ceil(total_mib / 1024) / _EIGHTHS)
    part = "" if compute_slices == slices else f"{compute_slices}c."
    return f"{part}{slices}g.{size}gb"
