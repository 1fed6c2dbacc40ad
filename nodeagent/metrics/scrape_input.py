"""The values that one scrape renders. The agent collects them from their owners. Pure.

Nothing here reads a kernel, a driver or a clock: a scrape shows the latest readings and never causes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.base.unwritable_memory import UnwritableMemory
from nodeagent.dra.prepared_claim import ClaimFigures
from nodeagent.facts.model import Function, Gpu, Link, Snapshot
from nodeagent.health.judge import DeviceFigures
from nodeagent.kubelet.rpc_stats import ResourceStatus, RpcStats
from nodeagent.kubelet.withheld import UnwritableFile, Withheld
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample
from nodeagent.sharing.gpu_accounts import GpuAccount


class DeviceCount(msgspec.Struct, frozen=True):
    """The devices of one resource on one parent (a PF's PCI address or a GPU's UUID), and how many are free.

    ``free`` is ``None`` until the kubelet reports what pods hold. ``each_bytes`` is the size of one device of memory.
    """

    resource: str
    parent: str
    devices: int
    allocatable: int
    free: int | None
    each_bytes: int | None = None
    level: str | None = None
    """The enforcement in force for shares of memory (``kinds.enforcement``)."""


class ClusterWrites(msgspec.Struct, frozen=True):
    """The writes of one part of the agent to the API server or to NVSentinel.

    ``results`` counts ``ok``, ``refused``, ``failed`` and ``conflict``. ``reason``: why they fail at present.
    ``left_out`` are the parts of the last write that the server refused. ``removed`` counts our objects that another
    client has deleted.
    """

    part: str
    results: Mapping[str, int] = {}
    reason: str | None = None
    left_out: tuple[str, ...] = ()
    removed: int = 0


class ScrapeInput(msgspec.Struct, frozen=True):
    """Everything that one scrape shows. ``boot_unix`` is the Unix time at which CLOCK_BOOTTIME was 0."""

    snapshot: Snapshot
    samples: tuple[Sample, ...] = ()
    device_counts: tuple[DeviceCount, ...] = ()
    reader_statuses: tuple[ReaderStatus, ...] = ()
    health_figures: Mapping[str, DeviceFigures] = {}
    """By device, as samples name it."""
    statuses: tuple[ResourceStatus, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    unwritable: tuple[UnwritableFile, ...] = ()
    unwritable_state: tuple[UnwritableMemory, ...] = ()
    rpc_stats: RpcStats = msgspec.field(default_factory=RpcStats)
    restarts: Mapping[str, int] = {}
    xids: Mapping[tuple[str, int], int] = {}
    xid_times: Mapping[tuple[str, int], float] = {}
    """CLOCK_BOOTTIME of the latest XID, by GPU and XID."""
    sxids: Mapping[tuple[str, int], int] = {}
    overruns: Mapping[str, int] = {}
    last_lldp: Mapping[str, float] = {}
    """CLOCK_BOOTTIME of the latest LLDP frame, by netdev."""
    dropped: Mapping[str, int] = {}
    """Series left out since the agent started, by family."""
    configuration_fault: str = ""
    stuck_threads: int = 0
    hanging: Mapping[str, float] = {}
    """Seconds since the oldest call that hangs began its last step, by source."""
    boot_unix: float = 0.0
    certificate: tuple[float, bool] | None = None
    """Expiry of the web certificate (Unix time), and whether the last load of its files succeeded."""
    cluster_writes: tuple[ClusterWrites, ...] = ()
    rails: Mapping[str, int] = {}
    """The index of a PF among the offered PFs, by PCI address."""
    gpu_accounts: tuple[GpuAccount, ...] = ()
    """The pods on each GPU; empty while they are unknown."""
    accounting_obstacle: str | None = None
    """The reason if they are unknown."""
    claims: ClaimFigures | None = None
    """``None`` without a kind in mode dra."""
    limit_counts: Mapping[str, int] = {}
    """The shares whose limits the agent sets itself, by state; empty where it sets none."""
    limit_writes: int = 0
    mps_ends: Mapping[str, int] = {}
    """The ends of the MPS daemons, by UUID of the GPU."""
    facts: FactIndex | None = None
    """Cached by the exposition."""

    def fact_index(self) -> FactIndex:
        return self.facts if self.facts is not None else FactIndex(self)


class FactIndex:
    """The part of a scrape that seldom changes: the snapshot and the texts of samples, indexed for labels."""

    def __init__(self, shown: ScrapeInput) -> None:
        snapshot = shown.snapshot
        self.snapshot: Snapshot = snapshot
        self.device_counts = shown.device_counts
        self.rails = shown.rails
        self.texts: dict[str, dict[str, str]] = {}
        for sample in shown.samples:
            if sample.texts:
                self.texts.setdefault(sample.device, {}).update(sample.texts)
        self.links: dict[str, Link] = {link.pci_address: link for link in snapshot.links}
        self._netdevs = {link.netdev for link in snapshot.links}
        self.functions: dict[str, Function] = {
            function.pci_address: function for function in snapshot.functions
        }
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in snapshot.gpus}
        self.present: dict[str, Function] = {
            address: function for address, function in self.functions.items() if not function.missing
        }
        """The functions without the missing ones, which the snapshot keeps for their health."""
        self.vfs: dict[tuple[str, int], Function] = {
            (function.parent, function.vf_index): function
            for function in self.present.values()
            if function.parent is not None and function.vf_index is not None
        }

    def equals(self, other: FactIndex) -> bool:
        return (
            self.snapshot is other.snapshot
            and self.device_counts == other.device_counts
            and self.rails == other.rails
            and self.texts == other.texts
        )

    @property
    def pfs(self) -> Iterable[Function]:
        """All PFs, and the missing ones that have a rail, as in the report of the node."""
        return (
            function
            for function in self.snapshot.functions
            if function.parent is None and (function.pci_address in self.rails or not function.missing)
        )

    def text(self, device: str, name: str) -> str:
        return self.texts.get(device, {}).get(name, "")

    def link_name(self, pci_address: str) -> str:
        """The netdev of a PF, for the label ``device``.

        Its PCI address if it has no netdev here, or if another PF has taken over the name of its netdev.
        """
        if (link := self.links.get(pci_address)) is not None:
            return link.netdev
        function = self.functions.get(pci_address)
        netdev = function.netdev if function is not None else None
        return netdev if netdev and netdev not in self._netdevs else pci_address

    def rdma_name(self, pci_address: str) -> str:
        function = self.functions.get(pci_address)
        if function is not None and function.rdma is not None:
            return function.rdma.device
        return self.text(pci_address, "rdma_device")

    def gpu_name(self, uuid: str) -> str:
        """The index, as ``nvidia-smi`` counts; the UUID of a GPU that is no longer listed."""
        gpu = self.gpus.get(uuid)
        return str(gpu.index) if gpu is not None else uuid

    def has(self, device: str) -> bool:
        """Whether a sample's device is still part of the node; always true for a netdev without a PCI address."""
        if device.startswith("GPU-"):
            return device in self.gpus
        if device.count(":") == 2:
            return device in self.present
        return True
