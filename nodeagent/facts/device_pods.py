"""The pods that hold devices of each NIC and GPU, by what the kubelet and claims say. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.facts.allocation import hardware_of
from nodeagent.facts.model import PodNetdev, Snapshot


def pods_by_device(snapshot: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """The pods, ``namespace/pod``, by PCI address of the PF and UUID of the GPU. Empty also while it is not known what
    pods hold. A device that no kind of this agent makes, or that has gone, is of none."""
    parents = {
        function.pci_address: function.parent or function.pci_address for function in snapshot.functions
    }
    for gpu in snapshot.gpus:
        parents |= dict.fromkeys((gpu.uuid, *(device.uuid for device in gpu.mig_devices)), gpu.uuid)
    pods: dict[str, set[str]] = {}
    for held in snapshot.holdings or ():
        for device_id in held.device_ids if held.pod else ():
            if (parent := parents.get(hardware_of(device_id) or "")) is not None:
                pods.setdefault(parent, set()).add(f"{held.namespace}/{held.pod}")
    return {parent: tuple(sorted(names)) for parent, names in pods.items()}


def netdevs_by_device(snapshot: Snapshot) -> Mapping[str, tuple[PodNetdev, ...]]:
    """The netdevs in pods by the PCI address of the PF. One whose VF has gone is of none."""
    parents = {
        function.pci_address: function.parent or function.pci_address for function in snapshot.functions
    }
    found: dict[str, list[PodNetdev]] = {}
    for netdev in snapshot.pod_netdevs:
        if (parent := parents.get(netdev.device)) is not None:
            found.setdefault(parent, []).append(netdev)
    return {parent: tuple(netdevs) for parent, netdevs in found.items()}
