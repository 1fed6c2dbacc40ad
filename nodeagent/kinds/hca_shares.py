"""Shares of HCAs. The device ID is ``<PCI address of the PF>::<n>``, n from 0.

Many containers have the RDMA device of one PF at once, in the shared RDMA mode of the kernel. A share is a place in a
count, and limits nothing: a container with two shares of an HCA has what a container with one has. The host keeps the
PF, so its VFs may be offered beside its shares.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.cdi import ATTACHED_KIND
from nodeagent.facts.model import ETHERNET, DeviceNode, Function, Health, Snapshot
from nodeagent.kinds import (
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

_RDMA_CM = "/dev/infiniband/rdma_cm"


class HcaShares(DeviceKind, frozen=True):
    """The shares of some HCAs, by the PCI address of their PFs. ``shares`` is the number for each HCA.

    ``exclusive``: an RDMA device is in one network namespace alone, so containers cannot open that of the host.
    ``umad`` adds the device nodes for management packets. ``rdma_cm``: the host has ``/dev/infiniband/rdma_cm`` (the
    module ``rdma_ucm``); a missing device node keeps a container from starting. ``attach``:
    `nodeagent attach` makes a netdev for each share in a pod, without which a container is not to start.
    """

    source: ClassVar[str] = "pci"

    resource: str
    pfs: tuple[str, ...]
    shares: int
    umad: bool = False
    rdma_cm: bool = True
    exclusive: bool = False
    attach: bool = False

    @property
    def attaches(self) -> bool:
        return self.attach

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(
            Devices(
                parent=pf.pci_address,
                ids=share_ids(pf.pci_address, self.shares),
                numa_nodes=() if pf.numa_node is None else (pf.numa_node,),
                health=unless_held(self.health(pf), held_elsewhere(snapshot, pf.pci_address, self.resource)),
            )
            for pf in self.hcas(snapshot).values()
        )

    def made_of(self, snapshot: Snapshot) -> object:
        return snapshot.functions, snapshot.holdings

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return {address: f"the HCA {address}" for address in self.hcas(snapshot)}

    def selects(self, snapshot: Snapshot) -> bool:  # noqa: ARG002
        return bool(self.pfs)

    def obstacle(self, snapshot: Snapshot) -> str | None:
        if not (self.exclusive and self.hcas(snapshot)):
            return None
        return (
            "containers cannot open the RDMA device of the host, because the kernel is in the exclusive RDMA mode: "
            "set options ib_core netns_mode=1 in /etc/modprobe.d and reboot (`rdma system set netns shared` works only "
            "before the first pod), or offer VFs"
        )

    def health(self, pf: Function) -> Health:
        """Return the health of the shares of an HCA: that of the PF."""
        return pf.health

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose shares of as many HCAs as possible, of each the one with the most free shares, then the nearest to
        ``near``."""
        must = self._hcas_of(snapshot, asked.must)
        taken = Counter({pf.pci_address: len(ids) for pf, ids in must})
        free: dict[str, list[str]] = {}
        for address, pf in self.hcas(snapshot).items():
            left = [id_ for id_ in share_ids(address, self.shares) if id_ in asked.free - asked.must]
            if left and self._refusal(snapshot, pf) is None:
                free[address] = left
        count = sum(map(len, free.values()))
        if count < asked.rest:
            raise Refused(
                f"{self.resource}: {asked.size} shares were requested and {count + len(asked.must)} are available"
            )
        hcas = self.hcas(snapshot)
        picked: list[str] = []
        while len(picked) < asked.rest:
            address = min(
                (one for one, left in free.items() if left),
                key=lambda one: (taken[one], -len(free[one]), *distance(hcas[one], asked.near), one),
            )
            picked.append(free[address].pop(0))
            taken[address] += 1
        return picked

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        found = self._hcas_of(snapshot, requested(self.resource, ids))
        attached = (
            share for pf, mine in found if self.attach and takes_netdevs(pf) for share in sorted(mine)
        )
        names = tuple(f"{ATTACHED_KIND}={share}" for share in attached)
        return msgspec.structs.replace(self.grant([pf for pf, _ in found]), cdi_devices=names)

    def grant(self, hcas: Sequence[Function]) -> Allocation:
        """Return what a container with shares of these HCAs gets."""
        nodes = dict.fromkeys(node for pf in hcas for node in self.nodes(pf))
        details = {pf.pci_address: self._details(pf) for pf in hcas}
        values = {"": ",".join(details), "_INFO": json.dumps(details, sort_keys=True, separators=(",", ":"))}
        return Allocation(
            env=tuple((name + end, value) for end, value in values.items() for name in self._env_names()),
            device_nodes=tuple(nodes),
        )

    def nodes(self, pf: Function) -> list[DeviceNode]:
        """Return the device nodes of an HCA on the host."""
        return [DeviceNode(path, path) for path in self._paths(pf).values()]

    def _details(self, pf: Function) -> dict[str, dict[str, str]]:
        """Return one HCA of the ``_INFO`` variable; all paths are the container's."""
        details = {"generic": {"deviceID": pf.pci_address}}
        if pf.rdma is not None:
            details["rdma"] = {"rdma_dev": pf.rdma.device, **self._paths(pf)}
        return details

    def _paths(self, pf: Function) -> dict[str, str]:
        if pf.rdma is None:
            return {}
        paths = {
            "uverbs": pf.rdma.uverbs,
            "umad": pf.rdma.umad if self.umad else None,
            "issm": pf.rdma.issm if self.umad else None,
            "rdma_cm": _RDMA_CM if self.rdma_cm else None,
        }
        return {name: path for name, path in paths.items() if path}

    def _env_names(self) -> tuple[str, ...]:
        """Return the name that programs for VFs know too, and a name that a shell can read."""
        exact = "PCIDEVICE_" + re.sub(r"[./]", "_", self.resource.upper())
        return tuple(dict.fromkeys((exact, re.sub(r"[^A-Z0-9_]", "_", exact))))

    def hcas(self, snapshot: Snapshot) -> dict[str, Function]:
        """The PFs with an RDMA device, by address and sorted by it."""
        return {
            function.pci_address: function
            for function in sorted(snapshot.functions, key=lambda function: function.pci_address)
            if function.pci_address in self.pfs and function.rdma is not None
        }

    def _hcas_of(self, snapshot: Snapshot, ids: frozenset[str]) -> list[tuple[Function, frozenset[str]]]:
        """Return the HCAs of these shares with theirs, by address. Raises ``Refused`` if one cannot be allocated."""
        found = [
            (pf, mine)
            for address, pf in self.hcas(snapshot).items()
            if (mine := ids.intersection(share_ids(address, self.shares)))
        ]
        if sum(len(mine) for _, mine in found) < len(ids):
            raise unknown(self.resource, ids.difference(*(mine for _, mine in found)))
        for pf, _ in found:
            if refusal := self._refusal(snapshot, pf):
                raise refusal
        return found

    def _refusal(self, snapshot: Snapshot, pf: Function) -> Refused | None:
        elsewhere = held_elsewhere(snapshot, pf.pci_address, self.resource)
        return obstacle(self.resource, pf.pci_address, self.health(pf), elsewhere)


def takes_netdevs(pf: Function) -> bool:
    """Whether `nodeagent attach` can make netdevs on a PF: on Ethernet alone."""
    return pf.link_type == ETHERNET and pf.netdev is not None


@lru_cache
def share_ids(address: str, count: int) -> tuple[str, ...]:
    """
    >>> share_ids("0000:18:00.0", 2)
    ('0000:18:00.0::0', '0000:18:00.0::1')
    """
    return tuple(f"{address}::{number}" for number in range(count))
