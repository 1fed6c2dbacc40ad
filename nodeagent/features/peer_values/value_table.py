"""The table of the compared values: each with its name, and how it reads from facts, samples and the host. Pure.

A value that changes in normal operation is not in the table: the current PCIe generation of a GPU follows its load, and
the trust of a VF follows the pod that holds it. Files beyond the 64 bytes of ``config`` that the kernel gives without
CAP_SYS_ADMIN are not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from nodeagent.fabric.node_values import NODE_MODEL, VALUE_NAMES, ValueName, model_text, summary
from nodeagent.facts.model import ETHERNET, Function, Gpu, Link, Snapshot
from nodeagent.features.peer_values.host_values import HostValues
from nodeagent.host.netlink.nic_settings import NicSettings
from nodeagent.measurements.sample import Sample, Source

_WHOLE = "node"
"""The device of a value that the node has once."""
BOOT_PARAMETERS = (
    "amd_iommu", "cgroup_no_v1", "default_hugepagesz", "hugepages", "hugepagesz", "idle", "intel_idle.max_cstate",
    "intel_iommu", "intel_pstate", "iommu", "isolcpus", "mitigations", "nohz_full", "numa_balancing", "nvidia",
    "pci", "pcie_aspm", "processor.max_cstate", "rcu_nocbs", "systemd.unified_cgroup_hierarchy",
    "transparent_hugepage", "tsc",
)  # fmt: skip
"""The parameters that matter for GPUs and NICs. Others, such as the root of the file system, differ by nature."""

_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""By GT/s (PCI Express Base Specification, data rates)."""
_UNKNOWN = NicSettings()
_WORD = re.compile(r'(?:"[^"]*"?|[^\s"])+')

Values = dict[ValueName, dict[str, str]]
"""Each value by the name of its device."""


class RunningAgent(NamedTuple):
    """Its version, and a digest of its settings."""

    version: str
    settings: str


class NodeReading(NamedTuple):
    """One moment of a node. ``nics`` are the PFs with a rail, by name, and ``gpus`` those that answer. ``agent`` is
    ``None`` for a captured machine."""

    snapshot: Snapshot
    host: HostValues
    agent: RunningAgent | None
    nics: Mapping[str, Function]
    gpus: Mapping[str, Gpu]
    links: Mapping[str, Link]
    samples: Mapping[tuple[str, Source], Sample]

    def number(self, device: str, source: Source, name: str) -> float | None:
        sample = self.samples.get((device, source))
        return None if sample is None else sample.values.get(name)

    def text(self, device: str, source: Source, name: str) -> str | None:
        sample = self.samples.get((device, source))
        return None if sample is None else sample.texts.get(name)

    def set_of(self, nic: Function) -> NicSettings:
        return self.host.nics.get(nic.pci_address, _UNKNOWN)


def node_reading(
    snapshot: Snapshot,
    samples: Iterable[Sample],
    names: Mapping[str, str],
    host: HostValues,
    agent: RunningAgent | None,
) -> NodeReading:
    """``names`` are those of the NICs by PCI address; others are not compared."""
    functions = {one.pci_address: one for one in snapshot.functions if one.parent is None}
    return NodeReading(
        snapshot,
        host,
        agent,
        {
            name: functions[address]
            for address, name in sorted(names.items(), key=_place)
            if address in functions
        },
        {f"gpu{gpu.index}": gpu for gpu in snapshot.gpus if not gpu.lost},
        {link.pci_address: link for link in snapshot.links},
        {(sample.device, sample.source): sample for sample in samples},
    )


def _place(entry: tuple[str, str]) -> tuple[int, str]:
    """nic2 is before nic10."""
    return len(entry[1]), entry[1]


def read_values(reading: NodeReading) -> Values:
    """The values that are known now."""
    found: Values = {}
    for name, read in _OF_NODE.items():
        if value := read(reading):
            found[name] = {_WHOLE: value}
    for name, read_gpu in _OF_GPU.items():
        found[name] = {at: value for at, gpu in reading.gpus.items() if (value := read_gpu(reading, gpu))}
    for name, read_nic in _OF_NIC.items():
        present = {at: nic for at, nic in reading.nics.items() if not nic.missing}
        found[name] = {at: value for at, nic in present.items() if (value := read_nic(reading, nic))}
    return {name: values for name, values in found.items() if values}


def devices_here(reading: NodeReading) -> frozenset[str]:
    """The devices of this node, those that do not answer now too."""
    lost = {f"gpu{gpu.index}" for gpu in reading.snapshot.gpus}
    return frozenset((_WHOLE, *reading.nics, *lost))


def texts_of(values: Values, model: str) -> dict[str, str]:
    """The values as one text each, in the order of ``VALUE_NAMES``, behind the model."""
    return {NODE_MODEL: model, **{name: summary(values[name]) for name in VALUE_NAMES if values.get(name)}}


def model_of(reading: NodeReading) -> str:
    """The model of this node, which is compared with nodes of the same one: product, GPUs and NICs. A lost GPU or NIC
    counts."""
    gpus = Counter(gpu.name for gpu in reading.snapshot.gpus)
    nics = Counter(f"{nic.vendor}:{nic.device}" for nic in reading.nics.values())
    parts = [f"{count} x {name}" for name, count in sorted(gpus.items()) + sorted(nics.items())]
    return model_text(", ".join([reading.snapshot.product or "unknown product", *parts]))


# --- how each is read ---------------------------------------------------------------------------------------


def boot_parameters(command_line: str) -> str:
    """The parameters that matter, as the kernel reads them: a value may be in quotes, ``-`` in a name is ``_``, and
    what follows ``--`` is for the first process. They are in the order of their names, since the kernel minds only the
    order of those that are given twice.

    >>> boot_parameters("root=/dev/sda pci=realloc=off intel-iommu=on -- iommu=off")
    'intel_iommu=on pci=realloc=off'
    """
    found = []
    for word in _WORD.findall(command_line):
        if word == "--":
            break
        name, equal, value = word.replace('"', "").partition("=")
        name = name.replace("-", "_")
        if name in BOOT_PARAMETERS or name.partition(".")[0] in BOOT_PARAMETERS:
            found.append((name, f"{name}{equal}{value}"))
    return " ".join(text for _, text in sorted(found, key=itemgetter(0))) or "none"


def _switched(value: float | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _power_limit(reading: NodeReading, gpu: Gpu) -> str | None:
    watts = reading.number(gpu.uuid, Source.GPU, "gpu_power_limit_watts")
    return None if watts is None else f"{watts:.0f} W"


def _gpu_pcie(reading: NodeReading, gpu: Gpu) -> str | None:
    generation, width = (
        reading.number(gpu.uuid, Source.GPU, f"gpu_pcie_{name}") for name in ("generation_max", "width")
    )
    return None if generation is None or width is None else f"gen{generation:.0f} x{width:.0f}"


def _nvlinks(reading: NodeReading, gpu: Gpu) -> str | None:
    sample = reading.samples.get((gpu.uuid, Source.GPU))
    count = sum(name.startswith("gpu_nvlink_up/") for name in sample.values) if sample is not None else 0
    return str(count) if count else None


def _nic_pcie(reading: NodeReading, nic: Function) -> str | None:
    speed, width = (reading.number(nic.pci_address, Source.PCIE, name) for name in ("pcie_gts", "pcie_width"))
    if speed is None or width is None:
        return None
    generation = _PCIE_GENERATIONS.get(speed)
    return f"{speed:g} GT/s x{width:.0f}" if generation is None else f"gen{generation} x{width:.0f}"


def _speed(reading: NodeReading, nic: Function) -> str | None:
    link = reading.links.get(nic.pci_address)
    return None if link is None or not link.carrier or not link.speed_mbps else f"{link.speed_mbps / 1000:g}G"


def _lanes(reading: NodeReading, nic: Function) -> str | None:
    lanes = reading.number(nic.pci_address, Source.MODES, "lanes")
    return None if not lanes or _speed(reading, nic) is None else f"{lanes:.0f}"


def _fec(reading: NodeReading, nic: Function) -> str | None:
    mode = reading.text(nic.pci_address, Source.FEC, "fec_mode")
    return None if _speed(reading, nic) is None else mode


def _mtu(reading: NodeReading, nic: Function) -> str | None:
    link = reading.links.get(nic.pci_address)
    return None if link is None or link.mtu is None else str(link.mtu)


def _firmware(reading: NodeReading, nic: Function) -> str | None:
    firmware = reading.text(nic.pci_address, Source.DRIVER, "firmware")
    return firmware or reading.host.firmware.get(nic.pci_address)


def _pfc(reading: NodeReading, nic: Function) -> str | None:
    priorities = reading.set_of(nic).pfc
    return None if priorities is None else "".join(map(str, priorities)) or "none"


_OF_NODE: dict[ValueName, Callable[[NodeReading], str | None]] = {
    "GPU driver": lambda now: now.snapshot.gpu_driver,
    "kernel": lambda now: now.host.kernel,
    "boot parameters": lambda now: now.host.command_line and boot_parameters(now.host.command_line),
    "agent": lambda now: now.agent and now.agent.version,
    "agent settings": lambda now: now.agent and now.agent.settings,
}
_OF_GPU: dict[ValueName, Callable[[NodeReading, Gpu], str | None]] = {
    "GPU VBIOS": lambda now, gpu: now.text(gpu.uuid, Source.GPU, "gpu_vbios"),
    "GPU power limit": _power_limit,
    "GPU persistence": lambda now, gpu: _switched(now.number(gpu.uuid, Source.GPU, "gpu_persistence_mode")),
    "GPU ECC mode": lambda now, gpu: _switched(now.number(gpu.uuid, Source.GPU, "gpu_ecc_mode")),
    "GPU MIG mode": lambda _, gpu: _switched(float(gpu.mig)),
    "GPU PCIe": _gpu_pcie,
    "NVLinks": _nvlinks,
}
_OF_NIC: dict[ValueName, Callable[[NodeReading, Function], str | None]] = {
    "NIC driver": lambda _, nic: nic.driver,
    "NIC firmware": _firmware,
    "NIC PCIe": _nic_pcie,
    "link type": lambda _, nic: nic.link_type or ETHERNET,
    "link speed": _speed,
    "link lanes": _lanes,
    "FEC": _fec,
    "MTU": _mtu,
    "PFC": _pfc,
    "pause": lambda now, nic: now.set_of(nic).pause,
    "rings": lambda now, nic: now.set_of(nic).rings,
    "channels": lambda now, nic: now.set_of(nic).channels,
    "VFs": lambda _, nic: None if nic.num_vfs is None else str(nic.num_vfs),
    "IOMMU": lambda now, nic: now.host.iommu.get(nic.pci_address),
}
