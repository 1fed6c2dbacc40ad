"""Prepared claims, and what they hold of each device. Values alone: ``claim_files`` keeps them on the disk.

A record holds everything that answers a repeated Prepare and that Unprepare needs: the claim may be gone by then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from nodeagent.dra.devices import GPU, MIG, SOURCES
from nodeagent.facts.allocation import DeviceInfo
from nodeagent.facts.cdi import ContainerEdits
from nodeagent.facts.model import (
    ClaimShare,
    ClaimUser,
    DeviceNode,
    Function,
    Holding,
    MigSlot,
    Snapshot,
)
from nodeagent.kinds import ascii_name


class VfInterface(msgspec.Struct, frozen=True, omit_defaults=True):
    """A VF as the host saw it when the claim was prepared: a CNI plugin may move and rename its netdev afterwards.
    ``in_pod`` and ``addresses`` are the name and the addresses that `nodeagent attach` gives it in the pod, by its
    plan."""

    pci_address: str
    netdev: str | None = None
    mac: str | None = None
    rdma: str | None = None
    in_pod: str | None = None
    addresses: tuple[str, ...] = ()


class MadeMig(msgspec.Struct, frozen=True):
    """A MIG device that is there, with the device nodes of its two instances."""

    uuid: str
    nodes: tuple[DeviceNode, ...]


class PreparedDevice(msgspec.Struct, frozen=True):
    """One share of one device. ``amount`` is in the unit of its capacity, MiB or VFs; 0 is access as an administrator,
    which takes nothing of the device.

    ``requests`` are requests of the claim without sub-requests. ``vfs`` are the chosen VFs, ``interfaces`` what the
    host knows of them; ``uuid`` is the GPU's. ``mig`` is the place of a MIG device, whose ``uuid`` is empty before it
    is made. ``hca`` is the PCI address of a PF whose RDMA device is shared.
    ``resource`` is the name by which a device plugin would offer it, ``slices`` the number of its slices of GPU memory.
    """

    request: str
    pool: str
    kind: str
    device: str
    amount: int
    resource: str
    cdi_devices: tuple[str, ...]
    share_id: str | None = None
    vfs: tuple[str, ...] = ()
    uuid: str = ""
    slices: int = 0
    interfaces: tuple[VfInterface, ...] = ()
    mig: MigSlot | None = None
    hca: str = ""


class PreparedClaim(msgspec.Struct, frozen=True):
    """``allocation`` identifies the devices that the scheduler gave: with other ones the claim is prepared again.

    ``sequence`` grows with each record of this node. ``edits`` are the CDI devices by name, ``metadata`` the texts of
    the metadata files by request.
    """

    uid: str
    namespace: str
    name: str
    sequence: int
    allocation: str
    devices: tuple[PreparedDevice, ...]
    edits: dict[str, ContainerEdits]
    device_info: tuple[DeviceInfo, ...] = ()
    pods: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    pod_uids: tuple[str, ...] = ()
    """In the order of ``pods``; `nodeagent attach` reads them."""

    @property
    def full_name(self) -> str:
        """Its namespace and name, for logs."""
        return f"{ascii_name(self.namespace)}/{ascii_name(self.name)}"

    @property
    def mig_slots(self) -> tuple[MigSlot, ...]:
        return tuple(device.mig for device in self.devices if device.mig is not None)

    @property
    def is_made(self) -> bool:
        """Whether each of its MIG devices has been made."""
        return all(device.uuid for device in self.devices if device.mig is not None)


def with_mig(record: PreparedClaim, made: Mapping[MigSlot, MadeMig]) -> PreparedClaim:
    """Return the record with the UUIDs and device nodes of its MIG devices. A container that uses a request gets all
    MIG devices of the request."""
    devices = tuple(
        it if it.mig is None else msgspec.structs.replace(it, uuid=made[it.mig].uuid) for it in record.devices
    )
    edits = dict(record.edits)
    for device in devices:
        if device.mig is None:
            continue
        name = device.cdi_devices[0].rpartition("=")[2]
        uuids = ",".join(it.uuid for it in devices if it.mig is not None and it.request == device.request)
        end = re.sub(r"[^A-Z0-9]", "_", device.request.upper())
        edits[name] = msgspec.structs.replace(
            edits[name],
            env=(("NODEAGENT_MIG_UUID", uuids), (f"NODEAGENT_MIG_UUID_{end}", uuids)),
            device_nodes=made[device.mig].nodes,
        )
    return msgspec.structs.replace(record, devices=devices, edits=edits)


def is_outdated(record: PreparedClaim, snapshot: Snapshot) -> bool:
    """Whether a device node that the claim gives is another device's by now, or a device of the claim has another one:
    a driver that is loaded again numbers anew. Nodes that the facts do not name are no evidence. Those of MIG devices
    are read from the driver at each Prepare."""
    using = [device for device in record.devices if device.amount and device.mig is None]
    names = (device.cdi_devices[0].rpartition("=")[2] for device in using)
    given = {node.host_path for name in names for node in record.edits[name].device_nodes}
    own = {vf for device in using for vf in device.vfs} | {device.hca or device.uuid for device in using}
    shared = {device.hca for device in using}
    owners: dict[str, set[str]] = {}
    for function in snapshot.functions:
        nodes = _nodes(function)
        needed = _verbs(function) if function.pci_address in shared else nodes
        if function.pci_address in own and not needed <= given:
            return True
        for node in nodes:
            owners.setdefault(node, set()).add(function.pci_address)
    by_node = any(re.fullmatch(r"/dev/nvidia\d+", node) for node in given)  # else by CDI
    for gpu in snapshot.gpus:
        node = f"/dev/nvidia{gpu.minor}"
        if by_node and gpu.minor is not None and gpu.uuid in own and node not in given:
            return True
        owners.setdefault(node, set()).add(gpu.uuid)
    return any(node in owners and owners[node].isdisjoint(own) for node in given)


def gone_device(record: PreparedClaim, snapshot: Snapshot, known_pools: Collection[str]) -> str | None:
    """Return the PCI address of a VF, or the UUID of a GPU, that the claim uses and that is gone by the facts, if one
    is. A source that cannot publish now is no evidence, nor is an absence from a pool that is not known. MIG devices
    are looked for in the driver at each Prepare."""
    stale = {entry.source for entry in snapshot.stale_sources}
    missing = {it.pci_address: it.missing for it in snapshot.functions}
    missing |= {gpu.uuid: gpu.lost for gpu in snapshot.gpus}
    for device in record.devices:
        if not device.amount or device.mig is not None or SOURCES[device.kind] in stale:
            continue
        for own in device.vfs or (device.hca or device.uuid,):
            if missing.get(own, device.kind in known_pools):
                return own
    return None


def has_other_names(record: PreparedClaim, snapshot: Snapshot) -> bool:
    """Whether the device-info files of the claim name other RDMA devices than its VFs have. Not while the host sees
    none of one of them: it may be in the network namespace of a pod."""
    now = {it.pci_address: it.rdma for it in snapshot.functions}
    names: list[tuple[str, str | None]] = []
    for info in record.device_info:
        pci = msgspec.json.decode(info.text).get("pci", {})
        if given := pci.get("rdma-device"):
            rdma = now.get(pci.get("pci-address"))
            names.append((given, rdma.device if rdma else None))
    return all(has for _, has in names) and any(given != has for given, has in names)


def _nodes(function: Function) -> set[str]:
    """The device nodes of this function alone; those of a vfio group may be of several."""
    rdma = function.rdma
    if function.missing:
        return set()
    if function.vdpa:
        return {function.vdpa}
    if function.by_vfio:
        return {f"/dev/vfio/{function.vfio_group}"} if function.vfio_group else set()
    return {node for node in (rdma.uverbs, rdma.umad, rdma.issm) if node} if rdma else set()


def _verbs(function: Function) -> set[str]:
    """The device node that each share of an HCA has."""
    uverbs = function.rdma.uverbs if function.rdma is not None and not function.missing else None
    return {uverbs} if uverbs else set()


class ClaimFigures(msgspec.Struct, frozen=True):
    """The claims that are prepared now, and those refused so far because others held their devices."""

    prepared: int
    conflicts: int


class Shares:
    """The sum that claims hold of each device, and their VFs."""

    def __init__(self, claims: Iterable[PreparedClaim]) -> None:
        self.amounts: dict[str, int] = {}
        self.vfs: dict[str, PreparedClaim] = {}
        for claim in claims:
            for device in claim.devices:
                self.add(claim, device)

    def add(self, claim: PreparedClaim, device: PreparedDevice) -> None:
        self.amounts[device.device] = self.amounts.get(device.device, 0) + device.amount
        self.vfs.update(dict.fromkeys(device.vfs, claim))


def holdings(claims: Iterable[PreparedClaim]) -> tuple[Holding, ...]:
    """Return what the claims hold as facts, by pod. A claim that several pods share counts for the first, and access as
    an administrator holds nothing."""
    return tuple(
        Holding(
            claim.namespace,
            claim.pods[0] if claim.pods else "",
            "",
            device.resource,
            _held_ids(claim, device),
            claim.name,
        )
        for claim in sorted(claims, key=lambda it: (it.namespace, it.name, it.uid))
        for device in claim.devices
        if device.amount
    )


def container_shares(claims: Iterable[PreparedClaim], users: Iterable[ClaimUser]) -> Iterator[ClaimShare]:
    """Yield the GPU memory that each container has by a claim. None of a claim with shares in several requests: the
    kubelet does not say which of them a container uses."""
    users = tuple(users)
    for claim in claims:
        gpus = [device for device in claim.devices if device.kind == GPU and device.amount]
        if len({device.request for device in gpus}) != 1:
            continue
        for user in users:
            for device in gpus:
                if device.cdi_devices[0] in user.cdi_devices:
                    where = user.namespace, user.pod, user.container
                    yield ClaimShare(*where, device.uuid, device.amount << 20, device.resource)


def _held_ids(claim: PreparedClaim, device: PreparedDevice) -> tuple[str, ...]:
    if device.kind == MIG:
        return (device.uuid,) if device.uuid else ()
    if device.kind == GPU:
        return tuple(f"{device.uuid}::{claim.uid}.{n}" for n in range(device.slices))
    if device.hca:
        return tuple(f"{device.hca}::{claim.uid}.{n}" for n in range(device.amount))
    return device.vfs


def without_conflicts(
    claims: Iterable[PreparedClaim],
) -> tuple[dict[str, PreparedClaim], tuple[PreparedClaim, ...]]:
    """Return the records by UID without those that contradict a later one, and the others.

    A write that failed may leave a record that this process did not count. Then a VF, or the place of a MIG device, was
    given to a later claim, and the later record is the true one.
    """
    kept: dict[str, PreparedClaim] = {}
    dropped: list[PreparedClaim] = []
    taken: set[str] = set()
    places: list[MigSlot] = []
    for claim in sorted(claims, key=lambda it: it.sequence, reverse=True):
        vfs = {vf for device in claim.devices for vf in device.vfs}
        displaced = any(slot.overlaps(place) for slot in claim.mig_slots for place in places)
        if taken & vfs or displaced or claim.uid in kept:
            dropped.append(claim)
        else:
            kept[claim.uid] = claim
            taken |= vfs
            places += claim.mig_slots
    return kept, tuple(dropped)
