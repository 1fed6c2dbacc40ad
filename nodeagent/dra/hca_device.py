"""HCAs that many claims have at once: a device has the capacity ``shares``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from nodeagent.dra.device_attributes import COMPUTE, LEAF, LEAF_GROUP, SPEED, pci_place
from nodeagent.dra.devices import (
    Attributes,
    Capacity,
    DraDevice,
    GrantedShare,
    LinkEnds,
    alike,
    dns_label,
    shared_hca,
)
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Function, Health, Link, Snapshot
from nodeagent.kinds.hca_shares import HcaShares


class HcaDevice(DraDevice, frozen=True):
    """An HCA that is shared by claims. ``kind`` has the settings of its entry. ``rail`` is ``None`` if the entry's name
    has no ``{rail}``."""

    name: str
    pf: Function
    kind: HcaShares
    rail: int | None = None

    @property
    def pool(self) -> Literal["nic"]:
        return "nic"

    @property
    def capacity(self) -> Capacity:
        return Capacity("shares", self.kind.shares, 1, 1)

    @property
    def health(self) -> Health:
        return self.kind.health(self.pf)

    @property
    def gone(self) -> bool:
        return self.pf.missing

    @property
    def parent(self) -> str:
        return self.pf.pci_address

    @property
    def hardware(self) -> frozenset[str]:
        return frozenset((self.pf.pci_address,))

    @property
    def order(self) -> tuple[object, ...]:
        """By rail and PCI address, among the PFs and VFs of the pool."""
        return self.rail is None, self.rail or 0, self.pf.pci_address, -2, self.name

    def attributes(self, link: Link | None, ends: LinkEnds, leaf_group: str | None) -> Attributes:
        pf = self.pf
        in_fabric = self.rail is not None and not (link and link.default_route)
        return {
            "kind": "rdma",
            "pciAddress": pf.pci_address,
            "product": f"{pf.vendor}:{pf.device}",
            "rail": self.rail,
            "linkType": pf.link_type,
            SPEED: ends.speed_mbps,
            "rdma": True,
            "fabric": COMPUTE if in_fabric else None,
            LEAF: ends.leaf,
            LEAF_GROUP: leaf_group if in_fabric else None,
            **pci_place(pf.pci_address, pf.pci_path, pf.numa_node),
        }

    def grant(self, shares: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:  # noqa: ARG002
        return self._given(share.device for share in shares)

    def show(self, devices: Sequence[DraDevice], snapshot: Snapshot) -> Allocation:  # noqa: ARG002
        """A container that watches an HCA gets its device nodes: to open one takes nothing from others."""
        return self._given(device for device in devices if not device.gone)

    def variables(
        self,
        end: str,
        allocation: Allocation,  # noqa: ARG002
        request: Sequence[GrantedShare],
        told: tuple[tuple[str, str], ...],  # noqa: ARG002
    ) -> Iterable[tuple[str, str]]:
        hcas = dict.fromkeys(hca for share in request if (hca := shared_hca(share.device)))
        return [(f"NODEAGENT_HCAS_{end}", ",".join(hcas))]

    def _given(self, devices: Iterable[DraDevice]) -> Allocation:
        return self.kind.grant(list(dict.fromkeys(device.pf for device in alike(self, devices))))


def hca_devices(kind: HcaShares, rails: Mapping[str, int], snapshot: Snapshot) -> list[HcaDevice]:
    """Return the HCAs of an entry. ``rails``: the rail of each PF by PCI address, if the entry's name has it."""
    return [
        HcaDevice(hca_name(address), pf, msgspec.structs.replace(kind, pfs=(address,)), rails.get(address))
        for address, pf in kind.hcas(snapshot).items()
    ]


def hca_name(pci_address: str) -> str:
    """
    >>> hca_name("0000:18:00.0")
    'rdma-0000-18-00-0'
    """
    return dns_label("rdma-" + re.sub(r"[:.]", "-", pci_address))
