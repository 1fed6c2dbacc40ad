"""What this node offers: the configuration applied to the facts, as kinds of devices. No I/O.

One thing is remembered, for as long as this object lives: which PF has which rail, and by which netdev it is
named. A number that moved when a NIC was unplugged would give a pod another network. A PF that turns up later
takes the next free number. For the same reason a PF counts that has VFs, and one that the ``vfs`` section wants
to have some: an agent that starts while they are gone gives the same numbers.
Literal ``pciAddresses`` fix the numbers for good: the rail is then the place in that list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent import cdi
from nodeagent.agent_config import Config
from nodeagent.config.formats import index_range
from nodeagent.kinds import gpu_access
from nodeagent.kinds.device_list_size import slices_complaint
from nodeagent.kinds.gpu_memory import Slices
from nodeagent.kinds.resource_settings import GpuMemResource, GpuResource, GpuSelect, PfSelect, VfResource
from nodeagent.kinds.vf import VfPool
from nodeagent.kinds.whole_gpu import WholeGpus
from nodeagent.model import Function, Gpu, HostPaths, Link, Snapshot

FALLBACK_PREFIX = "nodeagent.io"
Kind = VfPool | Slices | WholeGpus

# What firmware says where nobody filled the field in (SMBIOS type 1), and virtual machines' own names.
_MEANINGLESS = re.compile(
    r"to be filled|default string|system product|not specified|^none$|o\.e\.m|standard pc|virtual|kvm", re.I
)
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something the configuration asks for that this machine cannot give.

    ``fatal`` at start, and for a changed configuration a reason to stay with the old one.
    """

    message: str
    fatal: bool


def prefix(config: Config, product: str | None) -> str:
    """The part of a resource name before the slash: configured, or made from the DMI product name.

    >>> prefix(Config(), "DGXH100")
    'nvidia-dgx-h100'
    >>> prefix(Config(), "PowerEdge XE9680")
    'poweredge-xe9680'
    >>> prefix(Config(), None)
    'nodeagent.io'
    """
    if config.resource_prefix != "auto":
        return config.resource_prefix
    if not product or _MEANINGLESS.search(product):
        return FALLBACK_PREFIX
    # A DGX reports "DGXH100", or "DGXA100 920-23687-2530-000" with its part number.
    if match := re.match(r"(?:NVIDIA )?([DH]GX)[ _-]?([A-Z]+\d+[A-Z]*)\b", product, re.I):
        return f"nvidia-{match[1]}-{match[2]}".lower()
    slug = re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:63].strip("-")
    return slug or FALLBACK_PREFIX


class Offer:
    """Applies one configuration to each snapshot in turn."""

    def __init__(self, config: Config, before: Offer | None = None) -> None:
        """``before`` is what this offer replaces: entries whose selection did not change keep their rails."""
        self.config = config
        self._rails: dict[tuple[str, PfSelect], dict[str, int]] = dict(before._rails) if before else {}
        self._netdevs: dict[str, str] = before._netdevs if before else {}

    def kinds(self, snapshot: Snapshot) -> tuple[Kind, ...]:
        """The resources of this node, in the order of the configuration."""
        head = prefix(self.config, snapshot.product)
        kinds: list[Kind] = []
        taken: set[str] = set()
        for entry in self.config.resources:
            if isinstance(entry, VfResource):
                kinds.extend(self._pools(entry, head, snapshot))
                continue
            uuids = frozenset(gpu.uuid for gpu in selected_gpus(entry.select, snapshot.gpus)) - taken
            taken |= uuids
            kinds.append(self._gpu_kind(entry, f"{head}/{entry.name}", uuids, snapshot.paths))
        return tuple(kinds)

    @property
    def rails(self) -> dict[str, int]:
        """The rail of each PF that is offered, by PCI address."""
        return {address: rail for rails in self._rails.values() for address, rail in rails.items()}

    def troubles(self, snapshot: Snapshot) -> tuple[Trouble, ...]:
        """What is wrong with this configuration on this machine."""
        return tuple(
            trouble
            for find in (self._offered_twice, self._too_long, self._nothing_selected)
            for trouble in find(snapshot)
        )

    def withheld(self, snapshot: Snapshot) -> dict[str, str]:
        """The resources whose list the kubelet would refuse, and why."""
        head = prefix(self.config, snapshot.product)
        return {f"{head}/{name}": complaint for name, complaint in self._complaints(snapshot)}

    def _offered_twice(self, snapshot: Snapshot) -> Iterator[Trouble]:
        owner: dict[str, str] = {}
        for entry in self.config.resources:
            if isinstance(entry, VfResource):
                continue
            for gpu in selected_gpus(entry.select, snapshot.gpus):
                if gpu.uuid in owner:
                    yield Trouble(
                        f"GPU {gpu.index} ({gpu.uuid}) is offered twice, as {owner[gpu.uuid]} and as "
                        f"{entry.name}; let the two resources select different GPUs",
                        fatal=True,
                    )
                owner.setdefault(gpu.uuid, entry.name)
        for kind in self.kinds(snapshot):
            if isinstance(kind, VfPool):
                twice = [vf for entry in kind.devices(snapshot) for vf in entry.ids if vf in owner]
                if twice:
                    yield Trouble(
                        f"VF {twice[0]} is offered twice, as {owner[twice[0]]} and as {kind.resource}; separate the "
                        "two resources by select, vfIndexes or vfDriver",
                        fatal=True,
                    )
                owner.update((vf, kind.resource) for entry in kind.devices(snapshot) for vf in entry.ids)

    def _too_long(self, snapshot: Snapshot) -> Iterator[Trouble]:
        for name, complaint in self._complaints(snapshot):
            yield Trouble(f"{name}: {complaint}", fatal=True)

    def _complaints(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        for entry in self.config.resources:
            if isinstance(entry, GpuMemResource):
                memories = [gpu.memory_mib for gpu in selected_gpus(entry.select, snapshot.gpus)]
                if complaint := slices_complaint(entry, memories, "this machine"):
                    yield entry.name, complaint

    def _nothing_selected(self, snapshot: Snapshot) -> Iterator[Trouble]:
        for entry in self.config.resources:
            if isinstance(entry, VfResource):
                if not self._numbered(entry, snapshot):
                    yield Trouble(
                        f"{entry.name}: no PF is selected that has VFs and does not carry the default route",
                        fatal=False,
                    )
            elif not selected_gpus(entry.select, snapshot.gpus):
                yield Trouble(f"{entry.name}: no GPU is selected", fatal=False)

    def _pools(self, entry: VfResource, head: str, snapshot: Snapshot) -> Iterator[VfPool]:
        for function in snapshot.functions:
            if function.parent is None and function.netdev is not None:
                self._netdevs.setdefault(function.pci_address, function.netdev)
        named: dict[str, list[str]] = {} if "{" in entry.name else {entry.name: []}
        for address, rail in self._numbered(entry, snapshot).items():
            netdev = self._netdevs.setdefault(address, address.replace(":", "-"))
            named.setdefault(entry.name.format(rail=rail, netdev=netdev), []).append(address)
        for name, pfs in named.items():
            yield VfPool(
                f"{head}/{name}",
                tuple(sorted(pfs)),
                vf_indexes=tuple(map(index_range, entry.select.vf_indexes)) or None,
                vf_driver=entry.vf_driver,
                preferred=entry.preferred,
                rdma_cm=snapshot.paths.rdma_cm,
                cdi=entry.device_list_strategy == "cdi",
            )

    def _gpu_kind(
        self, entry: GpuMemResource | GpuResource, resource: str, uuids: frozenset[str], paths: HostPaths
    ) -> Kind:
        ours = self.config.cdi.generate and not uuids <= paths.vendor_gpus
        cdi_kind = cdi.GPU_KIND if ours else gpu_access.CDI_KIND
        if isinstance(entry, GpuResource):
            return WholeGpus(
                resource,
                uuids,
                strategy=entry.device_list_strategy,
                pass_device_nodes=entry.pass_device_nodes,
                cdi_kind=cdi_kind,
                control_nodes=paths.gpu_nodes,
            )
        return Slices(
            resource,
            uuids,
            slice_mib=entry.slice_mib,
            reserved_mib=entry.reserved_mib,
            strategy=entry.device_list_strategy,
            pass_device_nodes=entry.pass_device_nodes,
            cdi_kind=cdi_kind,
            control_nodes=paths.gpu_nodes,
            memory_limits=entry.memory_limits,
        )

    def _numbered(self, entry: VfResource, snapshot: Snapshot) -> dict[str, int]:
        """Rail by PF address, in the order of the rails."""
        rails = self._rails.setdefault((entry.name, entry.select), {})
        literal = literal_addresses(entry.select)
        links = {link.pci_address: link for link in snapshot.links}
        for function in snapshot.functions:
            address = function.pci_address
            if function.parent or address in rails or not (function.num_vfs or self._is_to_have(function)):
                continue
            link = links.get(address)
            if not selected_pf(entry.select, function) or not _suits(entry, function, link):
                continue
            if literal:
                rails[address] = literal.index(address)
            else:
                rails[address] = next(n for n in range(len(rails) + 1) if n not in rails.values())
        return dict(sorted(rails.items(), key=lambda item: item[1]))

    def _is_to_have(self, function: Function) -> bool:
        """Whether the ``vfs`` section wants VFs of this PF, which may have lost them for the moment."""
        return bool(function.total_vfs) and any(
            entry.count and selected_pf(entry.select, function) for entry in self.config.vfs
        )


def selected_pf(select: PfSelect, function: Function) -> bool:
    """Whether a PF matches every list that is not empty, and none of ``exclude``."""
    netdev, address, driver = function.netdev or "", function.pci_address, function.driver or ""
    return (
        (not select.vendors or function.vendor in select.vendors)
        and (not select.devices or function.device in select.devices)
        and (not select.drivers or _matches(driver, select.drivers))
        and (not select.pci_addresses or _matches(address, select.pci_addresses))
        and (not select.netdevs or _matches(netdev, select.netdevs))
        and not _matches(netdev, select.exclude)
        and not _matches(address, select.exclude)
    )


def selected_gpus(select: GpuSelect, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that match every list that is not empty."""
    indexes = [index_range(text) for text in select.indexes]
    return tuple(
        gpu
        for gpu in gpus
        if (not select.uuids or gpu.uuid in select.uuids)
        and (not indexes or any(gpu.index in one for one in indexes))
        and (not select.pci_addresses or _matches(gpu.pci_address, select.pci_addresses))
        and (not select.models or _matches(gpu.name, select.models))
    )


def literal_addresses(select: PfSelect) -> tuple[str, ...]:
    """``pciAddresses`` where none of them is a glob: their order is then the order of the rails."""
    if any(_GLOB.search(address) for address in select.pci_addresses):
        return ()
    return select.pci_addresses


def _suits(entry: VfResource, function: Function, link: Link | None) -> bool:
    select = entry.select
    if link is not None and link.default_route:
        return False
    if select.link_types and function.link_type not in select.link_types:
        return False
    if select.rdma is not None and (function.rdma is not None) != select.rdma:
        return False
    # A link that is down has no speed, and is not condemned for it: health is told to the kubelet apart.
    speed = link.speed_mbps if link is not None else None
    return speed is None or speed >= select.min_speed_mbps


def _matches(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)
