"""GPUs of known machines, and what NFD's worker makes of a file."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from nodeagent.facts.model import Gpu, MigDevice
from nodeagent.features.gpu_labels.gfd_labels import GpusOfNode, GpuTexts

MODE_3D, MODE_VGA = 0x030200, 0x030000
H100 = GpuTexts("9.0", "13.0", "yes", MODE_3D)
A100 = GpuTexts("8.0", "12.4", "yes", MODE_3D)
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""Kubernetes, apimachinery's ``labelValueFmt``."""
LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def gpu(index: int = 0, **other: Any) -> Gpu:
    values = {
        "uuid": f"GPU-{index}", "index": index, "minor": index, "name": "NVIDIA H100 80GB HBM3",
        "pci_address": f"0000:{index + 27:02x}:00.0", "memory_mib": 81559, "numa_node": 0,
    }  # fmt: skip
    return Gpu(**(values | other))


def a100(index: int = 0, **other: Any) -> Gpu:
    return gpu(index, **{"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, **other})


def mig(uuid: str, profile: str = "1g.5gb", memory_mib: int = 4864) -> MigDevice:
    takes = (("multiprocessors", 14), ("copy-engines", 1))
    return MigDevice(f"MIG-{uuid}", profile, memory_mib, 7, 0, (), takes)


def of(*gpus: Gpu, texts: GpuTexts = H100, **other: Any) -> GpusOfNode:
    """A node with these GPUs, all with one driver."""
    values = {"machine": "DGXH100", "driver": "580.95.05", "by_profile": True}
    return GpusOfNode(gpus, {one.uuid: texts for one in gpus}, **(values | other))


def labels_by_nfd(text: bytes, now: float) -> dict[str, str]:
    """The labels that NFD's worker reads of a file, as source/local/local.go of NFD 76e6cc8c has it."""
    if len(text) > 65536:
        return {}
    found, until = {}, now
    for line in map(str.strip, text.decode().split("\n")):
        if line.startswith("# +"):
            key, _, value = line[3:].partition("=")
            assert key == "expiry-time", "an unknown directive is an error in its log"
            until = datetime.strptime(value.strip(), "%Y-%m-%dT%H:%M:%S%z").timestamp()
        elif line and not line.startswith("#") and until >= now:
            key, equal, value = line.partition("=")
            found[key] = value if equal else "true"
    return found
