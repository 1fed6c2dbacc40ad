"""Prepare one claim: check its allocation against the devices and the other claims, and choose the VFs. Pure.

The scheduler has made the allocation, and it may be wrong: several schedulers overbook, and a device of a pod that was
deleted by force is given away before the kubelet has ended the pod. So the sums are checked here again, for each GPU
and PF, against what the prepared claims hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nodeagent.attach.address_plan import AddressPlanError
from nodeagent.attach.pod_plan import AttachPlan, PodLink, claim_stamp, pod_links
from nodeagent.base.quantities import quantity
from nodeagent.dra import DRIVER
from nodeagent.dra.device_attributes import LinkMemory, published
from nodeagent.dra.device_metadata import POD_CLAIM_NAME, ClaimName, metadata_files, metadata_mount
from nodeagent.dra.device_taints import tolerates
from nodeagent.dra.devices import (
    GPU,
    NIC,
    DraDevice,
    GrantedShare,
    Occupied,
    gpu_name,
    plugin_holders,
    pool_name,
    shared_hca,
)
from nodeagent.dra.prepared_claim import PreparedClaim, PreparedDevice, Shares, VfInterface
from nodeagent.dra.resource_claim import DeviceResult, ResourceClaim
from nodeagent.dra.told_pairs import told
from nodeagent.facts.allocation import Allocation, DeviceInfo
from nodeagent.facts.cdi import ATTACHED_KIND, ContainerEdits
from nodeagent.facts.model import HEALTHY, Function, MigSlot, Snapshot
from nodeagent.kinds import Refused, ascii_name, held_by, unhealthy
from nodeagent.kinds.mps_clients import MpsShares

CDI_KIND = f"{DRIVER}/claim"
"""The CDI kind of the specs of claims, one file for each claim."""

_MIB = 1 << 20
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,62}")


class PodNames(NamedTuple):
    """The stamp of the VFs of a claim, and their netdevs in the pod by PCI address."""

    stamp: str
    links: Mapping[str, PodLink]


def valid_uid(uid: str) -> bool:
    """Whether a UID may be part of the name of a file and of a CDI device."""
    return _UID.fullmatch(uid) is not None


def allocation_key(claim: ResourceClaim) -> str:
    """Return a text that is equal for equal allocations of this driver's devices."""
    results = claim.results_of(DRIVER)
    return msgspec.json.encode(results, order="deterministic").decode()


def prepare_claim(
    claim: ResourceClaim,
    *,
    node: str,
    devices: Iterable[DraDevice],
    snapshot: Snapshot,
    others: Sequence[PreparedClaim],
    sequence: int,
    metadata_folder: str | None = None,
    attach: AttachPlan | None = None,
) -> PreparedClaim:
    """Return the record of a claim that is allocated to devices of this node. Raises ``Refused``.

    ``others`` are the claims that are prepared now, without this one. The metadata files of the claim are in
    ``metadata_folder``; ``None``: it has none. ``attach`` is the plan for netdevs in pods, if there is one.
    """
    if claim.status.allocation is None:
        raise Refused("the claim is not allocated")
    if claim.has_parameters_for(DRIVER):
        raise Refused(
            f"the claim has opaque parameters for {DRIVER}, which takes none; remove them", invalid=True
        )
    by_name: dict[tuple[str, str], DraDevice] = {(device.pool, device.name): device for device in devices}
    in_mig_mode = {gpu_name(gpu.uuid) for gpu in snapshot.gpus if gpu.mig}
    shares = [_share(result, by_name, node, in_mig_mode) for result in claim.results_of(DRIVER)]
    # What an administrator sees may be held, sick, gone, or full.
    using = [share for share in shares if not share.admin]
    _check(shares, using, snapshot, others)
    _choose_vfs(using, Shares(others), snapshot)
    _check_nics(using, snapshot, others)
    uid = claim.metadata.uid
    granted = [_grant(group, snapshot) for group in _by_request(shares)]
    variables = _told(using, by_name.values(), snapshot)
    edits: dict[str, ContainerEdits] = {}
    prepared: list[PreparedDevice] = []
    netdevs = PodNames(claim_stamp(uid, sequence), _in_pod(attach, claim, using, others))
    for group, allocation in zip(_by_request(shares), granted, strict=True):
        for share in group:
            name = f"{uid}-{len(prepared)}"
            edits[name] = _edits(allocation, share, shares, variables)
            prepared.append(_prepared(share, f"{CDI_KIND}={name}", allocation, snapshot, netdevs))
    record = PreparedClaim(
        uid,
        claim.metadata.namespace,
        claim.metadata.name,
        sequence,
        allocation_key(claim),
        tuple(prepared),
        edits,
        tuple(_infos(granted)),
        claim.pods,
        pod_uids=claim.pod_uids,
    )
    if metadata_folder is None:
        return record
    return _with_metadata(record, claim, shares, snapshot, metadata_folder)


def renewed(
    record: PreparedClaim,
    devices: Iterable[DraDevice],
    snapshot: Snapshot,
    known_pools: Collection[str] = frozenset(),
) -> PreparedClaim:
    """Return the record with the edits of its devices by present facts. Health does not count: the claim has them.

    Raises ``Refused`` if a device is gone, or cannot be given. The nodes of MIG devices stay as they are. An
    administrator loses a device that is gone from one of the ``known_pools``, those without an entry among them, and
    sees the others.
    """
    by_name: dict[tuple[str, str], DraDevice] = {(device.pool, device.name): device for device in devices}
    shares: list[GrantedShare] = []
    withdrawn: dict[str, PreparedDevice] = {}
    here = {function.pci_address for function in snapshot.functions if not function.missing}
    for it in record.devices:
        device = by_name.get((it.kind, it.device))
        if device is None and not it.amount and it.kind in known_pools:
            withdrawn[it.cdi_devices[0]] = it
            continue
        if device is None:
            raise Refused(f"{ascii_name(it.device)} is no device of this node any more")
        gone = [vf for vf in it.vfs if vf not in here]
        if (device.slices(it.amount) or it.hca) and it.amount and device.gone:
            gone.append(device.name)
        if gone:
            raise Refused(f"{ascii_name(gone[0])} is not there any more")
        result = DeviceResult(it.request, DRIVER, it.pool, it.device, admin_access=not it.amount)
        shares.append(GrantedShare(result, device, it.amount, it.vfs))
    own = {vf for share in shares for vf in share.vfs}
    facts = msgspec.structs.replace(
        snapshot,
        functions=tuple(
            msgspec.structs.replace(it, health=HEALTHY) if it.pci_address in own else it
            for it in snapshot.functions
        ),
    )
    granted = [_grant(group, facts) for group in _by_request(shares)]
    variables = _told([share for share in shares if not share.admin], by_name.values(), facts)
    edits = dict(record.edits)
    known = iter([it for it in record.devices if it.cdi_devices[0] not in withdrawn])
    edits |= _withdrawn(edits, tuple(withdrawn.values()))
    for group, allocation in zip(_by_request(shares), granted, strict=True):
        for share, it in zip(group, known, strict=False):
            name = it.cdi_devices[0].rpartition("=")[2]
            if it.mig is None:
                new = _edits(allocation, share, shares, variables)
                metadata = (
                    mount
                    for mount in edits[name].mounts
                    if mount.host_path.endswith(f"/{record.uid}/{it.request}.json")
                )
                edits[name] = msgspec.structs.replace(new, mounts=(*new.mounts, *metadata))
    return msgspec.structs.replace(record, edits=edits, device_info=tuple(_infos(granted)))


def _withdrawn(
    edits: Mapping[str, ContainerEdits], gone: Sequence[PreparedDevice]
) -> dict[str, ContainerEdits]:
    """Return the edits without these devices; a CDI device needs an edit, so a variable names them."""
    without = {}
    for it in gone:
        name, end = it.cdi_devices[0].rpartition("=")[2], re.sub(r"[^A-Z0-9]", "_", it.request.upper())
        names = ",".join(one.device for one in gone if one.request == it.request)
        env = ((f"NODEAGENT_GONE_{end}", names),)
        without[name] = msgspec.structs.replace(edits[name], env=env, device_nodes=())
    return without


def _with_metadata(
    record: PreparedClaim,
    claim: ResourceClaim,
    shares: Sequence[GrantedShare],
    snapshot: Snapshot,
    folder: str,
) -> PreparedClaim:
    """Return the record with the metadata file of each request, which every CDI device of the request mounts."""
    meta = claim.metadata
    name = ClaimName(meta.namespace, meta.name, meta.uid, (meta.annotations or {}).get(POD_CLAIM_NAME))
    places = LinkMemory().places(snapshot)
    attributes = {
        share.device.name: published(share.device, snapshot, places)["attributes"] for share in shares
    }
    ordered = [share for group in _by_request(shares) for share in group]
    references = zip((share.result.request for share in ordered), record.devices, strict=True)
    texts = metadata_files(name, references, attributes)
    edits = dict(record.edits)
    for cdi_name, device in zip(record.edits, record.devices, strict=True):
        mount = metadata_mount(name, device.request, f"{folder}/{meta.uid}/{device.request}.json")
        if mount is not None and device.request in texts:
            edits[cdi_name] = msgspec.structs.replace(
                edits[cdi_name], mounts=(*edits[cdi_name].mounts, mount)
            )
    return msgspec.structs.replace(record, edits=edits, metadata=texts)


def _share(
    result: DeviceResult,
    by_name: Mapping[tuple[str, str], DraDevice],
    node: str,
    in_mig_mode: Collection[str],
) -> GrantedShare:
    shown = f"{ascii_name(result.pool)}/{ascii_name(result.device)}"
    own, _, pool = result.pool.rpartition("/")
    device = by_name.get((pool, result.device)) if own == node else None
    if device is None or pool_name(node, device.pool) != result.pool:
        if result.device in in_mig_mode:
            raise Refused(f"{shown} is in MIG mode now, and claims share whole GPUs alone")
        raise Refused(f"{shown} is no device of this node")
    if result.admin_access:
        return GrantedShare(result, device, 0)
    capacity = device.capacity
    consumed = result.consumed_capacity or {}
    asked = consumed.get(capacity.name, consumed.get(f"{DRIVER}/{capacity.name}"))
    # Without an amount the server does not know shared devices, and the claim has the device alone.
    amount = capacity.default if asked is None else _amount(asked, capacity.unit)
    if amount is None or amount <= 0:
        raise Refused(
            f"{shown}: {ascii_name(str(asked))} is no amount of {capacity.name}: ask for more in capacity.requests of "
            "the claim or its template, and create the pod again; 0 is for adminAccess alone",
            invalid=True,
        )
    return GrantedShare(result, device, amount)


def _amount(text: str | float, unit: str) -> int | None:
    number = quantity(text)
    if number is None:
        return None
    return math.ceil(number / _MIB if unit else number)


def _check(
    shares: Sequence[GrantedShare],
    using: Sequence[GrantedShare],
    snapshot: Snapshot,
    others: Sequence[PreparedClaim],
) -> None:
    _check_devices(using, snapshot)
    _check_sums(using, Shares(others))
    _check_places(shares, others)
    _check_limits(using, snapshot)
    _check_clients(using, others)


def _check_devices(shares: Iterable[GrantedShare], snapshot: Snapshot) -> None:
    for share in shares:
        device = share.device
        holder = next(plugin_holders(device, snapshot), None)
        if holder is not None:
            raise Occupied(str(held_by(device.name, device.name, holder)))
        sick = device.own_health and not device.health.allocatable
        if device.gone or (sick and not tolerates(share.result.tolerations or (), device.health)):
            raise unhealthy(DRIVER, device.name, device.health)


def _check_sums(shares: Sequence[GrantedShare], held: Shares) -> None:
    wanted: dict[str, int] = {}
    for share in shares:
        wanted[share.device.name] = wanted.get(share.device.name, 0) + share.amount
    for device in {share.device.name: share.device for share in shares}.values():
        amount, taken, capacity = wanted[device.name], held.amounts.get(device.name, 0), device.capacity
        has = f"{device.name}: the claim has {capacity.quantity(amount)} of {capacity.name}"
        if amount > capacity.total:
            raise Refused(
                f"{has}, more than the {capacity.quantity(capacity.total)} that the device has now; delete the pod and "
                "the claim, and the scheduler chooses again"
            )
        if amount + taken > capacity.total:
            raise Occupied(
                f"{has}, and other claims hold {capacity.quantity(taken)} of {capacity.quantity(capacity.total)}; they "
                "may be of pods that still end"
            )


def _check_places(shares: Iterable[GrantedShare], others: Sequence[PreparedClaim]) -> None:
    elsewhere = [(other.name, slot) for other in others for slot in other.mig_slots]
    own: dict[MigSlot, str] = {}
    for share in shares:
        device = share.device
        device.check_place(own, elsewhere, admin=share.admin)
        if device.slot is not None:
            own[device.slot] = device.name


def _check_limits(shares: Sequence[GrantedShare], snapshot: Snapshot) -> None:
    """One variable limits the memory of all GPUs of a container, so unequal shares cannot be enforced; and a container
    has one MPS daemon."""
    if len(list(_through_mps(shares))) > 1:
        raise Refused(
            "a container has one MPS daemon: use one claim for each share of GPU memory, and one container for each "
            "claim",
            invalid=True,
        )
    limits = (share.device.limit_mib(share.amount, snapshot) for share in shares)
    limited = {limit for limit in limits if limit is not None}
    if len(limited) > 1:
        sizes = " and ".join(f"{mib} MiB" for mib in sorted(limited))
        raise Refused(
            f"the claim has shares of {sizes}, and one limit counts for all GPUs of a container; use one claim for "
            "each size",
            invalid=True,
        )


def _through_mps(shares: Iterable[GrantedShare]) -> Iterator[tuple[str, MpsShares]]:
    for share in shares:
        if (mps := share.device.mps) is not None:
            yield share.device.name, mps


def _check_clients(shares: Iterable[GrantedShare], others: Sequence[PreparedClaim]) -> None:
    """A daemon has so many clients, and the containers of a claim count as one."""
    for name, mps in _through_mps(shares):
        clients = sum(any(it.device == name and it.amount for it in other.devices) for other in others)
        if clients >= mps.clients:
            raise Occupied(f"{name} has {clients} claims, and gpu.mps.clients is {mps.clients}")


def _choose_vfs(shares: Iterable[GrantedShare], held: Shares, snapshot: Snapshot) -> None:
    taken, own = set(held.vfs), set[str]()
    for share in shares:
        share.vfs = share.device.choose(share, taken, own, snapshot)
        taken.update(share.vfs)
        own.update(share.vfs)


def _check_nics(shares: Iterable[GrantedShare], snapshot: Snapshot, others: Iterable[PreparedClaim]) -> None:
    """A NIC as a whole leaves nothing of it to others, under whatever name. The configuration or the hardware may have
    changed since the other claim was prepared."""
    parents = {function.pci_address: function.parent for function in snapshot.functions}
    held = [(other, it) for other in others for it in other.devices if it.amount]
    for share in shares:
        if share.device.pool != NIC:
            continue
        nic = share.device.parent
        for other, it in held:
            part = it.hca == nic or any(parents.get(vf) == nic for vf in it.vfs)
            if nic in it.vfs or (nic in share.vfs and part):
                whole = it.device if nic in it.vfs else share.device.name
                raise Occupied(
                    f"{share.device.name}: the claim {other.full_name} has {it.device}, and {whole} is the whole NIC"
                )


def _by_request(shares: Iterable[GrantedShare]) -> list[list[GrantedShare]]:
    """Return the shares of each request and resource. A container that uses a request gets all of them. Shares of GPU
    memory are of one size."""
    groups: dict[tuple[str, str, int], list[GrantedShare]] = {}
    for share in shares:
        size = share.amount if share.device.slices(share.amount) else 0
        key = share.request, share.device.kind.resource, size
        groups.setdefault(key, []).append(share)
    return list(groups.values())


def _grant(group: Sequence[GrantedShare], snapshot: Snapshot) -> Allocation:
    first = group[0]
    if first.admin:
        return first.device.show([share.device for share in group], snapshot)
    return first.device.grant(group, snapshot)


def _told(
    shares: Sequence[GrantedShare], devices: Iterable[DraDevice], snapshot: Snapshot
) -> tuple[tuple[str, str], ...]:
    """Return the variables for programs, the same for each VF of the claim: of equal names the last one counts, and
    programs leave out the VFs of other requests, which the container cannot open."""
    vfs: dict[str, set[str]] = {}
    for share in shares:
        for program in share.device.tell:
            vfs.setdefault(program, set()).update(share.vfs)
    gpus = {share.device.parent for share in shares if share.device.pool == GPU}
    return told(vfs, gpus, devices, snapshot) if vfs else ()


def _edits(
    allocation: Allocation,
    share: GrantedShare,
    shares: Iterable[GrantedShare],
    variables: tuple[tuple[str, str], ...],
) -> ContainerEdits:
    """Return the edits of one share: the variables of its resource, and variables with the name of its request.

    A container with two requests of one resource gets both CDI devices, and the second sets the same variables again.
    So each device of a request with several rails names the VFs or PFs of all rails.
    """
    request = [it for it in shares if it.request == share.request]
    end = re.sub(r"[^A-Z0-9]", "_", share.request.upper())
    env = share.device.variables(end, allocation, request, variables)
    return ContainerEdits((*allocation.env, *env), allocation.device_nodes, allocation.mounts)


def _in_pod(
    plan: AttachPlan | None,
    claim: ResourceClaim,
    shares: Iterable[GrantedShare],
    others: Iterable[PreparedClaim],
) -> dict[str, PodLink]:
    """Return the netdevs that the pod of the claim gets, by PCI address; none if they are not known now. The VFs of
    claims that were prepared earlier for the same pod come first."""
    earlier = {
        vf: other.sequence
        for other in others
        if not set(other.pod_uids).isdisjoint(claim.pod_uids)
        for device in other.devices
        for vf in device.vfs
    }
    own = dict.fromkeys((vf for share in shares for vf in share.vfs), max(earlier.values(), default=0) + 1)
    if plan is None or not plan.on:
        return {}
    try:
        return {link.device: link for link in pod_links(plan, (*earlier, *own), earlier | own)}
    except AddressPlanError:  # the pod waits for an address
        return {}


def _prepared(
    share: GrantedShare,
    cdi_name: str,
    allocation: Allocation,
    snapshot: Snapshot,
    netdevs: PodNames,
) -> PreparedDevice:
    device, result = share.device, share.result
    slices = device.slices(share.amount)
    given = [name.rpartition("=") for name in allocation.cdi_devices]
    own = [f"{kind}={name}" for kind, _, name in given if name == device.parent and kind != ATTACHED_KIND]
    own += [
        f"{kind}={name}-{netdevs.stamp}"
        for kind, _, name in given
        if kind == ATTACHED_KIND and name in share.vfs
    ]
    return PreparedDevice(
        share.request,
        result.pool,
        device.pool,
        device.name,
        share.amount,
        device.kind.resource,
        (cdi_name, *own),
        result.share_id,
        share.vfs,
        device.parent if slices else "",
        slices,
        tuple(
            _interface(vf, netdevs.links.get(vf.pci_address))
            for vf in snapshot.functions
            if vf.pci_address in share.vfs
        ),
        device.slot,
        shared_hca(device),
    )


def _interface(vf: Function, link: PodLink | None) -> VfInterface:
    rdma = vf.rdma.device if vf.rdma else None
    if link is None:
        return VfInterface(vf.pci_address, vf.netdev, vf.mac, rdma)
    addresses = tuple(map(str, link.addresses))
    return VfInterface(vf.pci_address, vf.netdev, vf.mac, rdma, link.name, addresses)


def _infos(granted: Iterable[Allocation]) -> Iterable[DeviceInfo]:
    return dict.fromkeys(info for allocation in granted for info in allocation.device_info)
