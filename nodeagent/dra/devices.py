"""The devices of a node as a DRA driver publishes them: one for each GPU, and one for each PF, or for each VF; for a
GPU in MIG mode one for each place of a MIG device.

A GPU has the capacity ``memory``, a PF the capacity ``vfs``. Many claims share a device, and each consumes a part of
its capacity. With one device for each VF (``vfDevices``) Multus finds the VF of a claim, but the scheduler tries all
combinations of VFs (``docs/dra.md``).

Health is no part of the capacity: a sick VF or GPU keeps its place, and the health is published beside it. A PF without
a sound VF has the health of its first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from nodeagent.facts.model import Function, Gpu, Health, Holding, MigProfile, MigSlot, Snapshot
from nodeagent.kinds import DeviceKind, gpu_access
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mig import MigPlaces
from nodeagent.kinds.vf import VfPool

GPU, MIG, NIC = "gpu", "mig", "nic"
SOURCES = {GPU: "gpus", MIG: "gpus", NIC: "pci"}
"""The source of the facts of each pool."""
_LABEL_MAX = 63  # characters of a DNS label (RFC 1123), which the name of a device is


class Capacity(msgspec.Struct, frozen=True):
    """A quantity that claims consume. ``total``, ``default`` and each share are multiples of ``step``.

    ``default`` is the share of a claim that names none. ``unit`` is the suffix of a Kubernetes quantity.
    """

    name: Literal["memory", "vfs"]
    total: int
    step: int
    default: int
    unit: Literal["Mi", ""] = ""

    def quantity(self, amount: int) -> str:
        """Return an amount as a Kubernetes quantity: ``80896Mi``, ``8``."""
        return f"{amount}{self.unit}"


class GpuDevice(msgspec.Struct, frozen=True):
    """A GPU whose memory is shared by claims. ``kind`` has the settings of its entry."""

    name: str
    gpu: Gpu
    kind: GpuMemory

    @property
    def pool(self) -> Literal["gpu"]:
        return "gpu"

    @property
    def capacity(self) -> Capacity:
        """MiB in whole slices; a claim that names no amount gets the whole GPU."""
        total = self.kind.count(self.gpu) * self.kind.slice_mib
        return Capacity("memory", total, self.kind.slice_mib, total, "Mi")

    @property
    def health(self) -> Health:
        return self.gpu.health

    @property
    def hardware(self) -> frozenset[str]:
        """The IDs by which device plugins know it; a slice has the UUID before ``::``."""
        return frozenset((self.gpu.uuid,))


class PfDevice(msgspec.Struct, frozen=True):
    """A PF whose VFs are shared by claims. ``kind`` is the pool of its VFs alone, ``vfs`` are their PCI addresses.

    ``rail`` is ``None`` if the entry's name has no ``{rail}``. ``vf``: this one VF is the device, for one claim.
    """

    name: str
    pf: Function
    kind: VfPool
    vfs: tuple[str, ...]
    rail: int | None = None
    vf: Function | None = None

    @property
    def pool(self) -> Literal["nic"]:
        return "nic"

    @property
    def capacity(self) -> Capacity:
        return Capacity("vfs", len(self.vfs), 1, 1)

    @property
    def health(self) -> Health:
        return (self.vf or self.pf).health

    @property
    def missing(self) -> bool:
        """Whether it is not on the bus now."""
        return self.pf.missing or (self.vf is not None and self.vf.missing)

    @property
    def hardware(self) -> frozenset[str]:
        """The IDs by which device plugins know the PF and its VFs, or the one VF."""
        return frozenset(self.vfs if self.vf is not None else (self.pf.pci_address, *self.vfs))


class MigPlace(msgspec.Struct, frozen=True):
    """A MIG device that can be made in one place of a GPU, for one claim. ``kind`` is that of its profile.

    Places overlap. The scheduler takes those that fit together by the counters of the GPU (``mig_counters.py``).
    """

    name: str
    gpu: Gpu
    kind: MigPlaces
    profile: MigProfile
    slot: MigSlot

    @property
    def pool(self) -> Literal["mig"]:
        return "mig"

    @property
    def capacity(self) -> Capacity:
        total = self.profile.memory_mib
        return Capacity("memory", total, total, total, "Mi")

    @property
    def health(self) -> Health:
        return self.gpu.health

    @property
    def hardware(self) -> frozenset[str]:
        return frozenset((self.gpu.uuid,))


DraDevice = GpuDevice | MigPlace | PfDevice


class NumberedPool(msgspec.Struct, frozen=True):
    """The VFs of one PF with its rail, if it has one. ``vf_devices``: each VF is a device."""

    kind: VfPool
    pci_address: str
    rail: int | None
    vf_devices: bool = False


def pool_name(node: str, pool: str) -> str:
    """Return the name of a pool of this node. Each kind has one: a change of NICs leaves the GPUs as they are."""
    return f"{node}/{pool}"


def devices_of(
    kinds: Iterable[tuple[str, DeviceKind, bool]], rails: Mapping[str, int], snapshot: Snapshot
) -> tuple[DraDevice, ...]:
    """Return the devices of these kinds, GPUs first. Each kind comes with the configured name of its entry, and whether
    each of its VFs is a device.

    ``rails`` has the number of each PF by PCI address; a PF gets it if ``{rail}`` is in the name of its entry.
    """
    gpus: list[DraDevice] = []
    pools: list[NumberedPool] = []
    for name, kind, vf_devices in kinds:
        if isinstance(kind, GpuMemory):
            gpus += gpu_devices(kind, snapshot)
        elif isinstance(kind, MigPlaces):
            gpus += mig_places(kind, snapshot)
        elif isinstance(kind, VfPool):
            for address in sorted(kind.pfs):
                # Without cdi: the container gets the device nodes by the CDI spec of its claim.
                pool = msgspec.structs.replace(kind, pfs=(address,), cdi=False)
                rail = rails.get(address) if "{rail}" in name else None
                pools.append(NumberedPool(pool, address, rail, vf_devices))
    return (*gpus, *pf_devices(pools, snapshot))


def lacking_enforcement(devices: Iterable[DraDevice], snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the resources whose enforcement this node lacks, each with the reason."""
    for kind in dict.fromkeys(device.kind for device in devices if isinstance(device, GpuDevice)):
        if (lacking := kind.lacking(snapshot)) is not None:
            yield kind.resource, lacking


def gpu_devices(kind: GpuMemory, snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """Return the GPUs of an entry that hold a slice, in the order of the driver, with the health of their shares."""
    members = (gpu for gpu in gpu_access.selected(snapshot, kind.gpus) if kind.count(gpu))
    return tuple(
        GpuDevice(gpu_name(gpu.uuid), msgspec.structs.replace(gpu, health=kind.health(gpu, snapshot)), kind)
        for gpu in members
    )


def mig_places(kind: MigPlaces, snapshot: Snapshot) -> Iterator[MigPlace]:
    """Yield the places of one profile on the GPUs of an entry. The scheduler takes the first one that is free: those
    that leave most of the GPU to larger profiles come first."""
    for gpu in gpu_access.selected(snapshot, kind.gpus):
        everywhere = [slot for profile in gpu.mig_profiles for slot in profile.slots]
        for profile in gpu.mig_profiles:
            if profile.name == kind.profile:
                costs = {slot: sum(slot.overlaps(other) for other in everywhere) for slot in profile.slots}
                for slot in sorted(costs, key=lambda it: (costs[it], -it.start)):
                    yield MigPlace(mig_name(gpu.uuid, profile.name, slot.start), gpu, kind, profile, slot)


def pf_devices(pools: Iterable[NumberedPool], snapshot: Snapshot) -> tuple[PfDevice, ...]:
    """Return the PFs that have VFs to offer, by rail and PCI address; or their VFs, by index too."""
    functions = {function.pci_address: function for function in snapshot.functions}
    devices = []
    for pool in pools:
        vfs = tuple(id_ for entry in pool.kind.devices(snapshot) for id_ in entry.ids)
        pf = functions.get(pool.pci_address)
        if pf is None or not vfs:
            continue
        if pool.vf_devices:
            devices += [PfDevice(vf_name(vf), pf, pool.kind, (vf,), pool.rail, functions[vf]) for vf in vfs]
        else:
            health = _with_vfs(pf.health, [functions[vf].health for vf in vfs])
            pf = msgspec.structs.replace(pf, health=health)
            devices.append(PfDevice(pf_name(pool.pci_address), pf, pool.kind, vfs, pool.rail))
    return tuple(sorted(devices, key=_preference))


def _with_vfs(of_pf: Health, of_vfs: Sequence[Health]) -> Health:
    """The health of a PF as a device: no claim can have it while no VF is sound."""
    if not of_pf.allocatable or any(health.allocatable for health in of_vfs):
        return of_pf
    return of_vfs[0]


def _preference(device: PfDevice) -> tuple[object, ...]:
    index = -1 if device.vf is None or device.vf.vf_index is None else device.vf.vf_index
    return device.rail is None, device.rail or 0, device.pf.pci_address, index, device.name


def gpu_name(uuid: str) -> str:
    """
    >>> gpu_name("GPU-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa")
    'gpu-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa'
    """
    return _label(f"gpu-{uuid.removeprefix('GPU-')}")


def mig_name(uuid: str, profile: str, start: int) -> str:
    """
    >>> mig_name("GPU-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa", "1g.10gb+me", 6)
    'mig-5d5ba0e2-9b34-4d0f-8b64-6a3c1f0e77aa-1g10gb-plus-me-6'
    """
    word = profile.replace(".", "").replace("-", "-minus-").replace("+", "-plus-")
    return _label(f"mig-{uuid.removeprefix('GPU-')}-{word}-{start}")


def pf_name(pci_address: str) -> str:
    """
    >>> pf_name("0000:18:00.0")
    'nic-0000-18-00-0'
    """
    return _label("nic-" + re.sub(r"[:.]", "-", pci_address))


def vf_name(pci_address: str) -> str:
    """
    >>> vf_name("0000:18:00.2")
    'vf-0000-18-00-2'
    """
    return _label("vf-" + re.sub(r"[:.]", "-", pci_address))


def plugin_holders(device: DraDevice, snapshot: Snapshot) -> Iterator[Holding]:
    """Yield what pods hold of this hardware through a device plugin: the pods from before a change of the mode.

    The scheduler does not know that they use it, so it must not be published before they end.
    """
    for holding in snapshot.holdings or ():
        if not holding.claim and any(id_.partition("::")[0] in device.hardware for id_ in holding.device_ids):
            yield holding


def _label(text: str) -> str:
    """Return a DNS label. Different texts have different labels: what had to be changed has a digest of the text."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if label == text.lower() and len(label) <= _LABEL_MAX:
        return label
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{label[: _LABEL_MAX - 1 - len(digest)]}-{digest}"
