"""VFs that were removed on purpose, while their PF stayed: when their devices may leave the kubelet's list. Pure.

A device that a pod holds must stay on the list: without it the kubelet panics (kubernetes/kubernetes#95041). A removed
VF is therefore Unhealthy first. It leaves the list once podresources has answered for ``FREE_S`` that no pod holds it.
If it returns, it is a new device.
"""

from __future__ import annotations

from nodeagent.model import Snapshot

FREE_S = 60.0
"""Longer than the kubelet needs between an allocation and its entry in podresources."""


class RemovedVfs:
    def __init__(self) -> None:
        self.gone: frozenset[str] = frozenset()
        """The PCI addresses of VFs whose devices leave the list."""
        self._free_since: dict[str, float] = {}

    def take(self, snapshot: Snapshot, now: float) -> frozenset[str]:
        """Take a snapshot, with any clock in seconds that never goes back. Return the VFs that are gone since."""
        present = {function.pci_address for function in snapshot.functions if not function.missing}
        bound = {function.pci_address for function in snapshot.functions if function.driver is not None}
        pods_are_stale = any(source.source == "pods" for source in snapshot.stale_sources)
        if snapshot.holdings is None or pods_are_stale:
            self._free_since.clear()
            return self._drop(frozenset(), present)
        held = {id_ for holding in snapshot.holdings for id_ in holding.device_ids}
        free = [
            function.pci_address
            for function in snapshot.functions
            if function.missing and function.parent in present & bound and function.pci_address not in held
        ]
        self._free_since = {address: self._free_since.get(address, now) for address in free}
        due = {address for address, since in self._free_since.items() if now >= since + FREE_S}
        return self._drop(frozenset(due), present)

    def _drop(self, due: frozenset[str], present: set[str]) -> frozenset[str]:
        new = due - self.gone
        self.gone = (self.gone | due) - present
        return new
