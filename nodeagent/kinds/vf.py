"""SR-IOV virtual functions, and NICs as a whole. The device ID is the function's PCI address, the parent its PF.

A whole NIC is its own parent: a PF without VFs, or a function that a guest got from its host. While a PF has VFs it is
not offered whole, and while a pod holds a PF whole, none of its VFs is given away, nor the PF while one of them is
held.

A container gets what programs written for the SR-IOV network device plugin expect, name for name. CNI plugins find
the VF by its ID, and its details in a device-info file (Network Plumbing Working Group, version 1.1.0).

In the kernel's exclusive RDMA mode, the RDMA device of a VF moves into the network namespace of the pod that holds
it. Such a VF stays in its RDMA pool while podresources lists it for a pod, and no other container gets it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import ClassVar, Literal

from nodeagent.facts.allocation import Allocation, DeviceInfo, Devices
from nodeagent.facts.cdi import ATTACHED_KIND, VF_KIND, CdiDevices, ContainerEdits
from nodeagent.facts.model import ETHERNET, DeviceNode, Function, Holding, Mount, Snapshot
from nodeagent.kinds import (
    DEVICE_INFO_FILES,
    TELL_FILE,
    DeviceKind,
    Question,
    Refused,
    distance,
    held_elsewhere,
    obstacle,
    requested,
    unknown,
    unless_held,
)
from nodeagent.kinds.tell_script import TELL_SCRIPT

VfDriver = Literal["any", "netdevice", "vfio-pci", "rdma"]
_Preferred = Literal["spread", "pack"]

_DEVICE_INFO_VERSION = "1.1.0"
_VFIO = "/dev/vfio/vfio"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_VHOST_NET, _TUN = "/dev/vhost-net", "/dev/net/tun"


class VfPool(DeviceKind, frozen=True):
    """The VFs of some PFs, or the PFs themselves (``whole``), by PCI address.

    ``vf_indexes`` restricts them, ``None`` is all. ``rdma_cm``: the host has ``/dev/infiniband/rdma_cm`` (the module
    ``rdma_ucm``); a missing device node keeps a container from starting. ``vhost_net`` adds the device nodes of a
    virtio-user port, ``/dev/vhost-net`` and ``/dev/net/tun``. ``tell``: see ``nodeagent.dra.told_pairs``.
    ``tell_script`` is the script on the host that containers of device plugins get.
    ``attach``: `nodeagent attach` moves netdevs into pods; a container without its netdev is not to start.
    ``whole``: the devices are the PFs themselves, which have no VFs.

    Never offered: VFs of a PF that carries the host's default route, unless the PF is a port of a bond and
    ``over_bonds`` is set, VFs whose PF is gone, and VFs bound to a UIO driver (no IOMMU protects the node from them).
    """

    source: ClassVar[str] = "pci"

    resource: str
    pfs: frozenset[str] | tuple[str, ...]
    vf_indexes: tuple[range, ...] | None = None
    vf_driver: VfDriver = "any"
    preferred: _Preferred = "spread"
    rdma_cm: bool = True
    vhost_net: bool = False
    cdi: bool = False
    tell: tuple[str, ...] = ()
    tell_script: str | None = None
    over_bonds: bool = False
    attach: bool = False
    whole: bool = False

    @property
    def tells(self) -> tuple[str, ...]:
        return () if self.tell_script is None else self.tell

    @property
    def attaches(self) -> bool:
        return self.attach

    @property
    def whole_nics(self) -> tuple[str, ...]:
        return tuple(self.pfs) if self.whole else ()

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(
            Devices(
                parent=_pf(vf),
                ids=(vf.pci_address,),
                numa_nodes=() if vf.numa_node is None else (vf.numa_node,),
                health=unless_held(vf.health, self._elsewhere(snapshot, vf)),
            )
            for vf in self._listed(snapshot)
        )

    def made_of(self, snapshot: Snapshot) -> object:
        if self.whole:
            return snapshot.functions, snapshot.links, snapshot.holdings
        return tuple(_vfs_of(self.pfs, snapshot, over_bonds=self.over_bonds)), snapshot.holdings

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return {vf.pci_address: f"{self._noun} {vf.pci_address}" for vf in self._listed(snapshot)}

    def selects(self, snapshot: Snapshot) -> bool:  # noqa: ARG002
        return bool(self.pfs)

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose from the PF with the fewest VFs in this choice (spread), or with the fewest free VFs (pack).

        Ties go to the PF with the most free VFs (spread), to the PF nearest to ``near``, and then by index: first the
        index that the container has on another plane of the NIC, then one that is free on all planes, then the lowest.
        """
        chosen = self._usable(snapshot, asked.must)
        choice = [
            vf
            for name, vf in self._vfs(snapshot).items()
            if name in asked.free and name not in asked.must and self._refusal(snapshot, vf) is None
        ]
        if len(choice) < asked.rest:
            count = len(choice) + len(asked.must)
            raise Refused(
                f"{self.resource}: {asked.size} {self._noun}s were requested and {count} are available"
            )
        pfs = {pf.pci_address: pf for pf in snapshot.functions if pf.pci_address in self.pfs}
        far = {name: (*distance(pf, asked.near), name) for name, pf in pfs.items()}
        fresh = _pack if self.preferred == "pack" else _spread
        taken = Counter(_pf(vf) for vf in chosen)
        aligned = _aligned(snapshot, (*asked.near, *chosen))
        picked = fresh(choice, asked.rest, taken, lambda vf: (*far[_pf(vf)], aligned(vf), *_index(vf)))
        return [vf.pci_address for vf in picked]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        vfs = self._usable(snapshot, requested(self.resource, ids))
        details = {vf.pci_address: self._details(vf) for vf in vfs}
        nodes = dict.fromkeys(node for vf in vfs for node in self._nodes(vf) if not self.cdi)
        by_cdi = [vf.pci_address for vf in vfs if self.cdi and self._nodes(vf)]
        # Sorted, as Go writes its maps: equal allocations are equal texts.
        values = {"": ",".join(details), "_INFO": _text(details)}
        return Allocation(
            env=tuple((name + end, value) for end, value in values.items() for name in self._env_names()),
            mounts=()
            if self.tell_script is None
            else (Mount(self.tell_script, TELL_SCRIPT, read_only=True),),
            device_nodes=tuple(nodes),
            cdi_devices=(
                *(f"{VF_KIND}={name}" for name in by_cdi),
                *(f"{ATTACHED_KIND}={vf.pci_address}" for vf in vfs if self.attaches and has_netdev(vf)),
            ),
            device_info=tuple(self._device_info(vf) for vf in vfs),
        )

    def show(self, snapshot: Snapshot) -> tuple[DeviceNode, ...]:
        """Return the RDMA device nodes of the PFs and VFs that are on the host now, for a container that watches them.

        To open the vfio or vdpa node of a VF would take the VF from its pod.
        """
        pfs = [function for function in snapshot.functions if function.pci_address in self.pfs]
        functions = (*pfs, *self._vfs(snapshot).values())
        seen = (it for it in functions if it.rdma is not None and it.vdpa is None and not it.by_vfio)
        return tuple(dict.fromkeys(node for function in seen for node in self._nodes(function)))

    def cdi_specs(self, snapshot: Snapshot) -> Mapping[str, CdiDevices]:
        """Return the device nodes of each VF that has any, by its address."""
        if not self.cdi:
            return {}
        edits = {
            name: ContainerEdits(device_nodes=tuple(nodes))
            for name, vf in self._vfs(snapshot).items()
            if self._suits(vf) and (nodes := self._nodes(vf)) and not (vf.by_vfio and vf.vfio_group is None)
        }
        return {VF_KIND: CdiDevices(edits)}

    def needed_files(self, snapshot: Snapshot) -> frozenset[str]:
        specs = (name for name, spec in self.cdi_specs(snapshot).items() if spec.devices)
        script = (TELL_FILE,) if self.tells else ()
        return frozenset((DEVICE_INFO_FILES, *script, *specs)) if self.devices(snapshot) else frozenset()

    @property
    def _noun(self) -> str:
        return "NIC" if self.whole else "VF"

    def _elsewhere(self, snapshot: Snapshot, vf: Function) -> Holding | None:
        """Return what a pod holds of this function through another resource, also as a part of its NIC."""
        names = [vf.pci_address]
        if self.whole:
            names += (own.pci_address for own in snapshot.vfs_to_offer.get(vf.pci_address, ()))
        found = [held_elsewhere(snapshot, name, self.resource) for name in names]
        # A share of the HCA, ``<parent>::<n>``, leaves its VFs free.
        of_nic = snapshot.holders.get(vf.parent or "", {}).values()
        found += (holding for holding in of_nic if vf.parent in holding.device_ids)
        return next((holding for holding in found if holding is not None), None)

    def _env_names(self) -> tuple[str, ...]:
        """Return the name that the SR-IOV network device plugin uses, and a name that a shell can read."""
        exact = "PCIDEVICE_" + re.sub(r"[./]", "_", self.resource.upper())
        return tuple(dict.fromkeys((exact, re.sub(r"[^A-Z0-9_]", "_", exact))))

    def _vfs(self, snapshot: Snapshot) -> dict[str, Function]:
        """Return the pool's functions with any driver, by address and sorted by it."""
        if self.whole:
            return {pf: nic for pf in sorted(self.pfs) if (nic := snapshot.whole_nics.get(pf)) is not None}
        of_pfs = chain.from_iterable(_vfs_of(self.pfs, snapshot, over_bonds=self.over_bonds))
        ordered = sorted(of_pfs, key=attrgetter("pci_address"))
        return {vf.pci_address: vf for vf in ordered if self._indexed(vf)}

    def _listed(self, snapshot: Snapshot) -> Iterator[Function]:
        """Yield the pool's functions that are devices, whatever their health."""
        held = {
            device
            for holding in snapshot.holdings or ()
            if self.vf_driver == "rdma" and holding.resource == self.resource
            for device in holding.device_ids
        }
        for vf in self._vfs(snapshot).values():
            if self._suits(vf) or (vf.pci_address in held and _is_without_rdma(vf)):
                yield vf

    def _indexed(self, vf: Function) -> bool:
        return self.vf_indexes is None or any(vf.vf_index in indexes for indexes in self.vf_indexes)

    def _suits(self, vf: Function) -> bool:
        return suits(self.vf_driver, vf)

    def _usable(self, snapshot: Snapshot, ids: frozenset[str]) -> list[Function]:
        """Return the VFs of these IDs by address. Raises ``Refused`` if one of them cannot be allocated."""
        vfs = self._vfs(snapshot)
        if not ids <= vfs.keys():
            raise unknown(self.resource, ids - vfs.keys())
        usable = [vfs[name] for name in sorted(ids)]
        for vf in usable:
            if refusal := self._refusal(snapshot, vf):
                raise refusal
        return usable

    def _refusal(self, snapshot: Snapshot, vf: Function) -> Refused | None:
        reason = None
        elsewhere = self._elsewhere(snapshot, vf)
        if refusal := obstacle(self.resource, vf.pci_address, vf.health, elsewhere):
            return refusal
        if self.vf_driver == "rdma" and vf.rdma is None:
            reason = "lacks its RDMA device, which may still be in the namespace of an earlier pod"
        elif not self._suits(vf):
            reason = f"is bound to {vf.driver or 'no driver'}; this resource needs {self.vf_driver}"
        elif vf.by_vfio and vf.vfio_group is None:
            reason = "has no IOMMU group; enable the IOMMU, or the no-IOMMU mode of vfio"
        return Refused(f"{self.resource}: {vf.pci_address} {reason}") if reason else None

    def _nodes(self, vf: Function) -> list[DeviceNode]:
        paths: list[str] = []
        if vf.vdpa:
            paths.append(vf.vdpa)
        elif vf.by_vfio:
            # Without an IOMMU the host's node is noiommu-<n>, and programs look for <n>.
            group = f"/dev/vfio/{vf.vfio_group}"
            return [DeviceNode(_VFIO, _VFIO), DeviceNode(group, _vfio_group(vf)), *self._vhost_nodes()]
        elif vf.rdma:
            paths.extend(path for path in (vf.rdma.uverbs, vf.rdma.umad, vf.rdma.issm) if path)
            paths.extend([_RDMA_CM] if self.rdma_cm else [])
        return [*(DeviceNode(path, path) for path in paths), *self._vhost_nodes()]

    def _vhost_nodes(self) -> list[DeviceNode]:
        return [DeviceNode(path, path) for path in (_VHOST_NET, _TUN) if self.vhost_net]

    def _details(self, vf: Function) -> dict[str, dict[str, str]]:
        """Return one VF of the ``_INFO`` variable; all paths are the container's."""
        details = {"generic": {"deviceID": vf.pci_address}}
        if vf.vdpa:
            details["vdpa"] = {"mount": vf.vdpa}
        elif vf.by_vfio:
            details["vfio"] = {"mount": _VFIO, "dev-mount": _vfio_group(vf)}
        elif vf.rdma:
            rdma = {
                "rdma_dev": vf.rdma.device,
                "uverbs": vf.rdma.uverbs,
                "umad": vf.rdma.umad,
                "issm": vf.rdma.issm,
                "rdma_cm": _RDMA_CM if self.rdma_cm else None,
            }
            details["rdma"] = {key: value for key, value in rdma.items() if value}
        if self.vhost_net:
            details["vhost"] = {"net-mount": _VHOST_NET, "tun-mount": _TUN}
        return details

    def _device_info(self, vf: Function) -> DeviceInfo:
        addresses = {"pci-address": vf.pci_address}
        if vf.parent is not None:
            addresses["pf-pci-address"] = vf.parent
        content: dict[str, object] = {"type": "pci", "version": _DEVICE_INFO_VERSION}
        if vf.vdpa:
            content |= {"type": "vdpa", "vdpa": {**addresses, "driver": "vhost", "path": vf.vdpa}}
        elif vf.rdma and not vf.by_vfio:
            content["pci"] = {**addresses, "rdma-device": vf.rdma.device}
        else:
            content["pci"] = addresses
        return DeviceInfo(
            name=f"{self.resource.replace('/', '-')}-{vf.pci_address}-device.json", text=_text(content)
        )


_Order = Callable[[Function], tuple[int | str, ...]]


def _spread(choice: Iterable[Function], count: int, taken: Counter[str], order: _Order) -> list[Function]:
    free = Counter(_pf(vf) for vf in choice)
    rest = list(choice)
    picked: list[Function] = []
    while len(picked) < count:
        vf = min(rest, key=lambda vf: (taken[_pf(vf)], -free[_pf(vf)], order(vf)))
        rest.remove(vf)
        taken[_pf(vf)] += 1
        free[_pf(vf)] -= 1
        picked.append(vf)
    return picked


def _pack(choice: Iterable[Function], count: int, taken: Counter[str], order: _Order) -> list[Function]:
    free = Counter(_pf(vf) for vf in choice)
    return sorted(choice, key=lambda vf: (not taken[_pf(vf)], free[_pf(vf)], order(vf)))[:count]


def _aligned(snapshot: Snapshot, chosen: Iterable[Function]) -> Callable[[Function], int]:
    """Return the rank of a VF by its index on the other planes of its NIC, which are the PFs in one PCI slot: 0 where
    the container has one of these VFs (``chosen``), 2 where one is held or sick, otherwise 1."""

    def by_place(vfs: Iterable[Function]) -> dict[tuple[str, int | None], set[str]]:
        pfs: dict[tuple[str, int | None], set[str]] = {}
        for vf in vfs:
            pfs.setdefault((_pf(vf)[:-2], vf.vf_index), set()).add(_pf(vf))
        return pfs

    held = {id_ for holding in snapshot.holdings or () for id_ in holding.device_ids}
    own = by_place(chosen)
    lost = by_place(vf for vf in snapshot.functions if vf.pci_address in held or not vf.health.allocatable)

    def rank(vf: Function) -> int:
        place, pf = (_pf(vf)[:-2], vf.vf_index), {_pf(vf)}
        return 0 if own.get(place, pf) - pf else 2 if lost.get(place, pf) - pf else 1

    return rank


def _vfs_of(pfs: Iterable[str], snapshot: Snapshot, *, over_bonds: bool) -> Iterator[tuple[Function, ...]]:
    vfs = snapshot.vfs_with_bonds if over_bonds else snapshot.vfs_to_offer
    return (vfs.get(pf, ()) for pf in pfs)


def _pf(vf: Function) -> str:
    return vf.parent or vf.pci_address


def _index(vf: Function) -> tuple[int, str]:
    return (-1 if vf.vf_index is None else vf.vf_index), vf.pci_address


def _is_without_rdma(vf: Function) -> bool:
    """Whether it has a network driver and no RDMA device in this namespace."""
    return vf.driver is not None and vf.rdma is None and vf.vdpa is None and not vf.by_vfio


def suits(vf_driver: VfDriver, vf: Function) -> bool:
    """Whether a resource with this ``vfDriver`` counts a VF."""
    if _is_uio(vf):
        return False
    match vf_driver:
        case "netdevice":
            # Not by its netdev, which is in the network namespace of the pod that holds the VF.
            return vf.driver is not None and not vf.by_vfio and vf.vdpa is None
        case "rdma":
            return vf.rdma is not None and vf.vdpa is None
        case "vfio-pci":
            return vf.by_vfio
        case "any":
            return True


def has_netdev(vf: Function) -> bool:
    """Whether a VF has a netdev of Ethernet, on the host or in a pod. Not one of virtio: the kernel does not report its
    PCI address."""
    return (
        vf.driver not in (None, "virtio-pci")
        and not vf.by_vfio
        and vf.vdpa is None
        and vf.link_type == ETHERNET
        and not _is_uio(vf)
    )


def _is_uio(vf: Function) -> bool:
    return vf.driver in ("uio_pci_generic", "igb_uio")


def _vfio_group(vf: Function) -> str:
    return "/dev/vfio/" + (vf.vfio_group or "").removeprefix("noiommu-")


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
