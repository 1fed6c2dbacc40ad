"""The devices of this node whose health the cluster learns, and the pods that hold a failed one. Pure.

A VF is reported as its PF; for a pod, the VF that the pod holds is named. A port with a thousand VFs that goes
down is therefore one notice on the Node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nodeagent.facts.allocation import Devices, hardware_of
from nodeagent.facts.model import Health, Reason, Snapshot, State

QUIET = (State.HEALTHY, State.UNKNOWN, State.UNUSED)
"""States without a known fault."""

_MISSING = Health(
    State.DOWN, (Reason("device_missing", "the device is gone from this node"),), allocatable=False
)

Offered = Sequence[tuple[str, Sequence[Devices]]]
"""Each offered resource with its devices."""


@dataclass(frozen=True, slots=True)
class ReportedDevice:
    """A link or a GPU with its health. ``title`` names it for people."""

    key: str
    title: str
    link: bool
    health: Health


@dataclass(frozen=True, slots=True)
class AffectedPod:
    """A pod that holds failed devices of one parent. ``claim`` is the name of the claim that gave them, empty if a
    device plugin did."""

    namespace: str
    pod: str
    resource: str
    device_ids: tuple[str, ...]
    device: ReportedDevice
    claim: str = ""


def is_withdrawn(health: Health) -> bool:
    """Whether a fault keeps new pods away; a cordon is none."""
    return not health.allocatable and not health.only_cordoned


def reported_devices(snapshot: Snapshot) -> tuple[ReportedDevice, ...]:
    """The PFs whose link is in use, then the GPUs, then those that no resource can offer."""
    links = [
        ReportedDevice(pf.pci_address, _link_title(pf.netdev, pf.pci_address), True, pf.health)
        for pf in snapshot.functions
        if pf.parent is None and pf.health.state is not State.UNUSED
    ]
    gpus = [
        ReportedDevice(gpu.uuid, f"GPU {gpu.index} ({gpu.uuid})", False, gpu.health)
        for gpu in snapshot.gpus
        if gpu.health.state is not State.UNUSED
    ]
    gpus += [
        ReportedDevice(f"gpu {gpu.place}", f"GPU at {gpu.place}", False, gpu.health)
        for gpu in snapshot.unusable_gpus
        if gpu.health.state is not State.UNUSED
    ]
    return (*links, *gpus)


def failed_devices(snapshot: Snapshot) -> frozenset[str]:
    """The keys of the reported devices that pods cannot get because of a fault."""
    return frozenset(device.key for device in reported_devices(snapshot) if is_withdrawn(device.health))


def affected_pods(snapshot: Snapshot, offered: Offered) -> tuple[AffectedPod, ...]:
    """The pods that hold devices which are no longer allocatable.

    A held device that no longer exists counts as failed, unless a source has failed. One that is here and not offered
    under this name any more has its own health, and so has one of a claim. One that this agent cannot have given is of
    another plugin.
    """
    held: dict[tuple[str, str, str, str], set[str]] = {}
    for holding in snapshot.holdings or ():
        key = holding.resource, holding.namespace, holding.pod, holding.claim
        held.setdefault(key, set()).update(holding.device_ids)
    by_resource = dict(offered)
    parents = {device.key: device for device in reported_devices(snapshot)}
    present = _present(snapshot)
    affected = []
    for (resource, namespace, pod, claim), ids in sorted(held.items()):
        offered_devices = () if claim else by_resource.get(resource)
        if offered_devices is None or not pod:  # no pod has reserved the claim
            continue
        remaining = set(ids)
        for devices in chain(offered_devices, _not_offered(remaining, present)):
            pod_ids = remaining.intersection(devices.ids)
            remaining -= pod_ids
            if pod_ids and is_withdrawn(devices.health) and devices.health.state not in QUIET:
                device = _held_device(devices, parents.get(devices.parent), pod_ids)
                affected.append(AffectedPod(namespace, pod, resource, tuple(sorted(pod_ids)), device, claim))
        gone = sorted(id_ for id_ in remaining if hardware_of(id_) is not None)
        if claim:
            gone = [id_ for id_ in gone if _is_known(id_, snapshot)]
        if gone and (offered_devices or claim) and not snapshot.stale_sources:
            missing = ReportedDevice(gone[0], gone[0], False, _MISSING)
            affected.append(AffectedPod(namespace, pod, resource, tuple(gone), missing, claim))
    return tuple(affected)


def _is_known(device_id: str, snapshot: Snapshot) -> bool:
    """Whether the facts would name this device of a claim if it were here. They may come after the records of claims,
    and a MIG device may be made for the claim after them."""
    if device_id.startswith("MIG-"):
        return False
    return bool(snapshot.gpus if device_id.startswith("GPU-") else snapshot.functions)


def failed_ids(snapshot: Snapshot, device_ids: Iterable[str]) -> frozenset[str]:
    """Those of the devices, which this agent has given, that have a fault or are gone, offered or not."""
    present = _present(snapshot)
    healths = {id_: present.get(hardware_of(id_) or "", ("", _MISSING))[1] for id_ in device_ids}
    return frozenset(
        id_ for id_, health in healths.items() if is_withdrawn(health) and health.state not in QUIET
    )


def _present(snapshot: Snapshot) -> dict[str, tuple[str, Health]]:
    """The parent and the health of each NIC, VF, GPU and MIG device that pods can use, offered or not."""
    found = {
        function.pci_address: (function.parent or function.pci_address, function.health)
        for function in snapshot.functions
    }
    for gpu in snapshot.gpus:
        for uuid in (device.uuid for device in gpu.mig_devices) if gpu.mig else (gpu.uuid,):
            found[uuid] = gpu.uuid, gpu.health
    return found


def _not_offered(remaining: set[str], present: Mapping[str, tuple[str, Health]]) -> Iterator[Devices]:
    """Yield the held devices that are here, of those that remain after all that are offered."""
    ids: dict[str, list[str]] = {}
    for id_ in remaining:
        ids.setdefault(hardware_of(id_) or "", []).append(id_)
    for name in sorted(ids.keys() & present):
        parent, health = present[name]
        yield Devices(parent, tuple(ids[name]), (), health)


def _held_device(devices: Devices, parent: ReportedDevice | None, pod_ids: Iterable[str]) -> ReportedDevice:
    """The held device, titled after its parent, with its own health."""
    title = parent.title if parent else devices.parent
    first = min(pod_ids)
    if parent is None or (parent.link and first != parent.key):
        title = f"VF {first} of {title}"
    return ReportedDevice(devices.parent, title, parent.link if parent else True, devices.health)


def _link_title(netdev: str | None, address: str) -> str:
    return f"{netdev} ({address})" if netdev else address
