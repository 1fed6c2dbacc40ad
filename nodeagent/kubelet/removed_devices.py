"""Devices that a person has removed while their parent stayed, and when they may leave the kubelet's list. Pure.

* VFs, while their PF is here.
* A NIC as a whole that has got VFs.
* MIG devices, while the driver lists their GPU.
* Slices of a GPU, and the GPU as a whole, after MIG mode was switched on.

A device that a pod holds must stay on the list: without it the kubelet panics (kubernetes/kubernetes#95041). A removed
device is therefore Unhealthy first. It leaves the list once podresources has answered for ``FREE_S`` that no pod holds
it. If it returns, it is a new device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.facts.model import Snapshot

FREE_S = 60.0
"""Longer than the kubelet needs between an allocation and its entry in podresources."""


class RemovedDevices:
    def __init__(self) -> None:
        self.gone: frozenset[str] = frozenset()
        """The VFs by PCI address, and the GPUs and MIG devices by UUID, whose devices leave the list."""
        self._free_since: dict[str, float] = {}
        self._parents: dict[str, str] = {}
        """The GPU of each MIG device that was ever listed."""
        self._whole: set[str] = set()
        """The NICs that were ever listed as a whole."""

    def take(self, snapshot: Snapshot, now: float, whole: Iterable[str] = ()) -> frozenset[str]:
        """Take a snapshot, with any clock in seconds that never goes back. Return the devices that are gone since.

        ``whole``: the NICs that are offered as a whole while they have no VFs, by PCI address.
        """
        self._parents |= {device.uuid: gpu.uuid for gpu in snapshot.gpus for device in gpu.mig_devices}
        self._whole |= snapshot.whole_nics.keys() & set(whole)
        divided = self._whole & set(_divided_nics(snapshot))
        present = frozenset(_present(snapshot)) - divided
        stale = {source.source for source in snapshot.stale_sources}
        if snapshot.holdings is None or "pods" in stale:
            self._free_since.clear()
            return self._drop(frozenset(), present)
        held = {id_.partition("::")[0] for holding in snapshot.holdings for id_ in holding.device_ids}
        removed = {*_removed_vfs(snapshot), *divided}
        if "gpus" not in stale:
            removed |= set(self._removed_gpus(snapshot)) - present
        free = removed - held
        self._free_since = {name: self._free_since.get(name, now) for name in free}
        due = {name for name, since in self._free_since.items() if now >= since + FREE_S}
        return self._drop(frozenset(due), present)

    def _removed_gpus(self, snapshot: Snapshot) -> Iterator[str]:
        listed = {gpu.uuid: gpu for gpu in snapshot.gpus if not gpu.lost}
        yield from (uuid for uuid, gpu in listed.items() if gpu.mig)
        yield from (uuid for uuid, parent in self._parents.items() if parent in listed)

    def _drop(self, due: frozenset[str], present: frozenset[str]) -> frozenset[str]:
        new = due - self.gone
        self.gone = (self.gone | due) - present
        return new


def _present(snapshot: Snapshot) -> Iterator[str]:
    yield from (function.pci_address for function in snapshot.functions if not function.missing)
    for gpu in snapshot.gpus:
        if gpu.mig:
            yield from (device.uuid for device in gpu.mig_devices)
        else:
            yield gpu.uuid


def _divided_nics(snapshot: Snapshot) -> Iterator[str]:
    for function in snapshot.functions:
        if function.num_vfs and not function.missing:
            yield function.pci_address


def _removed_vfs(snapshot: Snapshot) -> Iterator[str]:
    here = {
        function.pci_address
        for function in snapshot.functions
        if not function.missing and function.driver is not None
    }
    for function in snapshot.functions:
        if function.missing and function.parent in here:
            yield function.pci_address
