"""PFs whose VFs are shared by claims: a device has the capacity ``vfs``, or is one VF (``vfDevices``). A NIC as a whole
is a device for one claim. Pure.

With one device for each VF Multus finds the VF of a claim, but the scheduler tries all combinations of VFs
(``docs/dra.md``). A PF without a sound VF has the health of its first one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from nodeagent.dra.device_attributes import (
    COMPUTE,
    LEAF,
    LEAF_GROUP,
    PF_ADDRESS,
    SPEED,
    pci_place,
)
from nodeagent.dra.device_taints import tolerates
from nodeagent.dra.devices import Attributes, Capacity, DraDevice, GrantedShare, LinkEnds, alike, dns_label
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import HEALTHY, Function, Health, Link, Snapshot
from nodeagent.kinds import Refused, ascii_name
from nodeagent.kinds.vf import VfPool


class PfDevice(DraDevice, frozen=True):
    """A PF whose VFs are shared by claims. ``kind`` is the pool of its VFs alone, ``vfs`` are their PCI addresses.

    ``rail`` is ``None`` if the entry's name has no ``{rail}``. ``vf``: this one VF is the device, for one claim; a NIC
    as a whole is its own.
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
    def own_health(self) -> bool:
        return False

    @property
    def gone(self) -> bool:
        return self.pf.missing or (self.vf is not None and self.vf.missing)

    @property
    def parent(self) -> str:
        return self.pf.pci_address

    @property
    def hardware(self) -> frozenset[str]:
        """The PF and its VFs, or the one VF."""
        return frozenset(self.vfs if self.vf is not None else (self.pf.pci_address, *self.vfs))

    @property
    def order(self) -> tuple[object, ...]:
        """By rail and PCI address; VFs by index too."""
        index = -1 if self.vf is None or self.vf.vf_index is None else self.vf.vf_index
        return self.rail is None, self.rail or 0, self.pf.pci_address, index, self.name

    @property
    def tell(self) -> tuple[str, ...]:
        return self.kind.tell

    def attributes(self, link: Link | None, ends: LinkEnds, leaf_group: str | None) -> Attributes:
        pf, vf = self.pf, self.vf
        function = vf or pf
        in_fabric = self.rail is not None and not (link and link.default_route)
        return {
            "kind": self.pool,
            "pciAddress": function.pci_address,
            PF_ADDRESS: vf.parent if vf is not None else None,
            "whole": self.kind.whole,
            "vfIndex": vf.vf_index if vf is not None else None,
            "product": f"{pf.vendor}:{pf.device}",
            "rail": self.rail,
            "linkType": pf.link_type,
            SPEED: ends.speed_mbps,
            "rdma": pf.rdma is not None,
            "fabric": COMPUTE if in_fabric else None,
            LEAF: ends.leaf,
            LEAF_GROUP: leaf_group if in_fabric else None,
            **pci_place(function.pci_address, pf.pci_path, pf.numa_node),
        }

    def consumption(self) -> dict[str, Any]:
        """One VF is for one claim."""
        return super().consumption() if self.vf is None else {}

    def choose(
        self, share: GrantedShare, taken: Collection[str], own: Collection[str], snapshot: Snapshot
    ) -> tuple[str, ...]:
        facts = _forgiven(snapshot, share)
        free = [vf for vf in self.vfs if vf not in taken]
        near = [function for function in facts.functions if function.pci_address in own]
        try:
            return tuple(self.kind.prefer(facts, free, (), share.amount, near))
        except Refused as refusal:
            raise Refused(f"{refusal}{self._why(free, facts)}", invalid=refusal.invalid) from None

    def grant(self, shares: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:
        pool = msgspec.structs.replace(
            self.kind, pfs=tuple(sorted({share.device.parent for share in shares}))
        )
        for share in shares:
            snapshot = _forgiven(snapshot, share)
        return pool.allocate(snapshot, [vf for share in shares for vf in share.vfs])

    def show(self, devices: Sequence[DraDevice], snapshot: Snapshot) -> Allocation:
        nodes = [node for device in alike(self, devices) for node in device.kind.show(snapshot)]
        return Allocation(device_nodes=tuple(dict.fromkeys(nodes)))

    def variables(
        self,
        end: str,
        allocation: Allocation,  # noqa: ARG002
        request: Sequence[GrantedShare],
        told: tuple[tuple[str, str], ...],
    ) -> Iterable[tuple[str, str]]:
        """Name the PFs of an administrator, or the VFs."""
        if any(share.admin for share in request):
            pfs = (share.device.parent for share in request if share.device.pool == self.pool)
            return [(f"NODEAGENT_PFS_{end}", ",".join(dict.fromkeys(pfs)))]
        return [(f"NODEAGENT_VFS_{end}", ",".join(vf for share in request for vf in share.vfs)), *told]

    def _why(self, free: Collection[str], snapshot: Snapshot) -> str:
        """Return the reason of the first free VF that is Unhealthy: the PF's own fault is usually its cause."""
        sick = next(
            (it for it in snapshot.functions if it.pci_address in free and not it.health.allocatable), self.pf
        )
        reasons = sick.health.reasons
        return f" ({ascii_name(sick.pci_address)}: {ascii_name(reasons[0].detail)})" if reasons else ""


def pf_devices(
    kind: VfPool, rails: Mapping[str, int], snapshot: Snapshot, *, vf_devices: bool
) -> list[PfDevice]:
    """Return the NICs of an entry as a whole, its PFs that have VFs to offer, or their VFs.

    ``rails``: the rail of each PF by PCI address, if the entry's name has it.
    """
    functions = {function.pci_address: function for function in snapshot.functions}
    devices = []
    for address in sorted(kind.pfs):
        # Without cdi: the container gets the device nodes by the CDI spec of its claim.
        pool = msgspec.structs.replace(kind, pfs=(address,), cdi=False)
        rail = rails.get(address)
        vfs = tuple(id_ for entry in pool.devices(snapshot) for id_ in entry.ids)
        pf = functions.get(address)
        if pf is None or not vfs:
            continue
        if kind.whole:
            devices.append(PfDevice(_whole_name(address), pf, pool, vfs, rail, pf))
        elif vf_devices:
            devices += [PfDevice(_vf_name(vf), pf, pool, (vf,), rail, functions[vf]) for vf in vfs]
        else:
            health = _with_vfs(pf.health, [functions[vf].health for vf in vfs])
            devices.append(
                PfDevice(pf_name(address), msgspec.structs.replace(pf, health=health), pool, vfs, rail)
            )
    return devices


def pf_name(pci_address: str) -> str:
    """
    >>> pf_name("0000:18:00.0")
    'nic-0000-18-00-0'
    """
    return dns_label("nic-" + re.sub(r"[:.]", "-", pci_address))


def _whole_name(pci_address: str) -> str:
    """Return another name than that of the PF with VFs: a claim on the one is none on the other.

    >>> _whole_name("0000:18:00.0")
    'whole-0000-18-00-0'
    """
    return dns_label("whole-" + re.sub(r"[:.]", "-", pci_address))


def _vf_name(pci_address: str) -> str:
    """
    >>> _vf_name("0000:18:00.2")
    'vf-0000-18-00-2'
    """
    return dns_label("vf-" + re.sub(r"[:.]", "-", pci_address))


def _with_vfs(of_pf: Health, of_vfs: Sequence[Health]) -> Health:
    """The health of a PF as a device: no claim can have it while no VF is sound."""
    if not of_pf.allocatable or any(health.allocatable for health in of_vfs):
        return of_pf
    return of_vfs[0]


def _forgiven(snapshot: Snapshot, share: GrantedShare) -> Snapshot:
    """Return the facts with those functions of the device healthy whose taints the request tolerates, as a diagnostic
    pod does."""
    tolerations, own = share.result.tolerations, share.device.hardware
    if not tolerations:
        return snapshot

    def forgive(function: Function) -> Function:
        forgiven = function.pci_address in own and tolerates(tolerations, function.health)
        return msgspec.structs.replace(function, health=HEALTHY) if forgiven else function

    return msgspec.structs.replace(snapshot, functions=tuple(map(forgive, snapshot.functions)))
