"""What a scrape is rendered from: values that others keep, handed in by the composition root.

The law of this file: nothing here asks a kernel, a driver or a clock. A scrape shows what was read last and
when; it never causes a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.health.samples import Sample
from nodeagent.kubelet.rpc_stats import Measure, Status
from nodeagent.model import Function, Gpu, Health, Link, Snapshot


@dataclass(frozen=True, slots=True)
class Collector:
    """How one of the samplers does. ``succeeded_at`` is CLOCK_BOOTTIME, ``seconds`` its last look's duration."""

    name: str
    up: bool
    seconds: float | None = None
    succeeded_at: float | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rules know of one device beside its verdict, which is in the snapshot.

    ``since`` is CLOCK_BOOTTIME of the last change of state, ``transitions`` counts by (from, to), ``values`` are
    the numbers that the rules compared, by rule.
    """

    since: float | None = None
    penalty: float | None = None
    transitions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    expected_mbps: float | None = None


@dataclass(frozen=True, slots=True)
class Stock:
    """Devices of one resource below one parent (a PF's PCI address, a GPU's UUID), and how many are free:
    ``None`` before the kubelet was heard. ``each_bytes`` is the size of one, where it is memory."""

    resource: str
    parent: str
    devices: int
    allocatable: int
    free: int | None
    each_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Everything of one scrape. ``boot_unix`` is the Unix time at which CLOCK_BOOTTIME was 0."""

    snapshot: Snapshot
    samples: tuple[Sample, ...] = ()
    stock: tuple[Stock, ...] = ()
    collectors: tuple[Collector, ...] = ()
    judged: Mapping[str, Judged] = field(default_factory=dict)
    statuses: tuple[Status, ...] = ()
    measure: Measure = field(default_factory=Measure)
    restarts: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    xid_times: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """CLOCK_BOOTTIME of the last one."""
    overruns: Mapping[str, int] = field(default_factory=dict)
    heard_at: Mapping[str, float] = field(default_factory=dict)
    """CLOCK_BOOTTIME of the last LLDP frame, by netdev."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    stuck_threads: int = 0
    boot_unix: float = 0.0
    certificate: tuple[float, bool] | None = None
    """When the web's certificate ends (Unix time), and whether the last look at its files went well."""
    rails: Mapping[str, int] = field(default_factory=dict)
    """The place of a PF among those that are offered, by PCI address."""
    scene: Scene | None = None
    """Kept by whoever renders; ``names`` makes it where it is missing."""

    def names(self) -> Scene:
        return self.scene if self.scene is not None else Scene(self)


Look = Callable[[], View]


def missing(health: Health) -> bool:
    return any(reason.key == "device_missing" for reason in health.reasons)


class Scene:
    """What changes seldom: the snapshot and the texts of the samples, with the names looked up in them."""

    def __init__(self, view: View) -> None:
        self.snapshot: Snapshot = view.snapshot
        self.stock = view.stock
        self.rails = view.rails
        self.texts: dict[str, dict[str, str]] = {}
        for sample in view.samples:
            if sample.texts:
                self.texts.setdefault(sample.device, {}).update(sample.texts)
        facts = view.snapshot
        self.links: dict[str, Link] = {link.pci_address: link for link in facts.links}
        self._taken = {link.netdev for link in facts.links}
        self.functions: dict[str, Function] = {one.pci_address: one for one in facts.functions}
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in facts.gpus}
        self.present: dict[str, Function] = {
            address: one for address, one in self.functions.items() if not missing(one.health)
        }
        """The functions less those that have gone and are kept for their verdict alone."""
        self.vfs: dict[tuple[str, int], Function] = {
            (one.parent, one.vf_index): one
            for one in self.present.values()
            if one.parent is not None and one.vf_index is not None
        }

    @property
    def pfs(self) -> Iterable[Function]:
        """Those that have gone too: their verdict stands."""
        return (one for one in self.snapshot.functions if one.parent is None)

    def text(self, device: str, name: str) -> str:
        return self.texts.get(device, {}).get(name, "")

    def link_name(self, pci_address: str) -> str:
        """The netdev of a PF, as the label ``device`` has it; its PCI address where it has none here, or had one
        that is another's now."""
        if (link := self.links.get(pci_address)) is not None:
            return link.netdev
        function = self.functions.get(pci_address)
        netdev = function.netdev if function is not None else None
        return netdev if netdev and netdev not in self._taken else pci_address

    def rdma_name(self, pci_address: str) -> str:
        function = self.functions.get(pci_address)
        if function is not None and function.rdma is not None:
            return function.rdma.device
        return self.text(pci_address, "rdma_device")

    def gpu_name(self, uuid: str) -> str:
        """The index, as ``nvidia-smi`` counts; the UUID of one that is no longer known."""
        gpu = self.gpus.get(uuid)
        return str(gpu.index) if gpu is not None else uuid

    def there(self, device: str) -> bool:
        """Whether a sample's device is still part of the node. A netdev without a PCI address vouches for itself."""
        if device.startswith("GPU-"):
            return device in self.gpus
        if device.count(":") == 2:
            return device in self.present
        return True
