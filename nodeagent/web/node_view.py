"""Everything that the node page shows, as one document. Pure.

It has the facts, the health with its rules, the devices in the lists of the kubelet, and who holds them. Times are Unix
time, in seconds; values that are not known are ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.base.change_log import Change
from nodeagent.facts.affinity import affinity
from nodeagent.facts.device_pods import pods_by_device
from nodeagent.facts.model import Function, Gpu, Holding, Neighbor, PodNetdev, Reason, Remark, Snapshot
from nodeagent.facts.remedies import runbook_links
from nodeagent.health.explain import DeviceView, remedy_of_device
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kubelet.rpc_stats import ResourceStatus
from nodeagent.web.gpu_statuses import GpuStatuses
from nodeagent.web.machine_view import MachineView

_HOLDERS_MAX = 64
"""Of the containers with devices that the page lists; a node has some dozens."""


class NodePart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ViewVf(NodePart, frozen=True, kw_only=True):
    """``resource`` and ``healthy`` are those in the list of the kubelet; ``holder`` is ``namespace/pod/container``.
    ``pod_netdev`` and ``pod_addresses`` are its name and addresses in the pod, by `nodeagent attach`."""

    address: str
    index: int | None
    driver: str | None
    netdev: str | None
    rdma: str | None
    state: str
    resource: str | None = None
    healthy: bool | None = None
    holder: str | None = None
    pod_netdev: str | None = None
    pod_addresses: tuple[str, ...] = ()


class ViewNic(NodePart, frozen=True, kw_only=True):
    """``name`` is the first of its names: ``nic0`` by its rail, or else that of ``netdev``, or the address."""

    address: str
    name: str
    netdev: str | None
    state: str
    allocatable: bool
    reasons: tuple[Reason, ...]
    link_type: str | None
    driver: str | None
    rdma: str | None
    numa_node: int | None
    pci_path: tuple[str, ...]
    carrier: bool | None
    speed_mbps: int | None
    mtu: int | None
    mac: str | None
    default_route: bool
    rail: int | None
    total_vfs: int | None
    vfs: tuple[ViewVf, ...]
    neighbors: tuple[Neighbor, ...]
    remarks: tuple[Remark, ...]
    remedy: str
    pods: tuple[str, ...]


class ViewGpuPlace(NodePart, frozen=True, kw_only=True):
    uuid: str
    name: str
    address: str
    numa_node: int | None
    pci_path: tuple[str, ...]
    reasons: tuple[Reason, ...]
    remedy: str
    pods: tuple[str, ...]
    nearness: tuple[str, ...]
    """To each of the NICs, in the words of ``nvidia-smi topo -m``."""


class ViewResource(NodePart, frozen=True, kw_only=True):
    """``devices`` in the list of the kubelet, ``healthy`` ones of them. ``registered`` is ``None`` without an agent."""

    name: str
    devices: int
    healthy: int
    held: int | None
    registered: bool | None
    reason: str
    level: str | None


class NodeView(NodePart, frozen=True, kw_only=True):
    kind: str = "node"
    node: str
    taken: float
    product: str | None
    gpu_driver: str | None
    source: str
    gpus: GpuStatuses
    places: tuple[ViewGpuPlace, ...]
    nics: tuple[ViewNic, ...]
    health: tuple[DeviceView, ...]
    resources: tuple[ViewResource, ...]
    troubles: tuple[str, ...]
    stale: Mapping[str, str]
    holders: tuple[Holding, ...]
    history: Mapping[str, list[dict[str, object]]]
    """The curves of each PF and GPU."""
    changes: tuple[Change, ...] = ()
    """The newest ones, the oldest first; none without an agent."""
    runbook: Mapping[str, str] = {}
    """The addresses of reasons in the runbook, if that is known."""


def node_view(
    machine: MachineView,
    health: tuple[DeviceView, ...],
    gpus: GpuStatuses,
    statuses: Iterable[ResourceStatus],
    rails: Mapping[str, int],
    history: Mapping[str, list[dict[str, object]]],
    *,
    node: str,
    source: str,
    taken: float,
    changes: Iterable[Change] = (),
    runbook: str | None = None,
) -> NodeView:
    """``source``: where the facts come from, in words. ``rails``: of the offered PFs, by PCI address."""
    snapshot = machine.snapshot
    holder_of = {
        id_: f"{held.namespace}/{held.pod}" + (f"/{held.container}" if held.container else "")
        for held in snapshot.holdings or ()
        for id_ in held.device_ids
    }
    pfs = [function for function in snapshot.functions if function.parent is None]
    pods = pods_by_device(snapshot)
    healths = [gpu.health for gpu in snapshot.gpus] + [pf.health for pf in pfs]
    return NodeView(
        node=node,
        taken=taken,
        product=snapshot.product,
        gpu_driver=snapshot.gpu_driver,
        source=source,
        gpus=gpus,
        places=tuple(_place(gpu, pfs, pods) for gpu in snapshot.gpus),
        nics=tuple(_nics(machine, pfs, holder_of, rails, pods)),
        health=health,
        resources=tuple(_resources(machine, statuses, holder_of)),
        troubles=tuple(trouble.message for trouble in machine.troubles),
        stale={entry.source: entry.reason for entry in snapshot.stale_sources},
        holders=tuple(
            msgspec.structs.replace(held, device_ids=held.device_ids[:_HOLDERS_MAX])
            for held in (snapshot.holdings or ())[:_HOLDERS_MAX]
        ),
        history=history,
        changes=tuple(changes),
        runbook=runbook_links(runbook, (reason.key for one in healths for reason in one.reasons)),
    )


def _place(gpu: Gpu, pfs: Iterable[Function], pods: Mapping[str, tuple[str, ...]]) -> ViewGpuPlace:
    return ViewGpuPlace(
        uuid=gpu.uuid,
        name=gpu.name,
        address=gpu.pci_address,
        numa_node=gpu.numa_node,
        pci_path=gpu.pci_path,
        reasons=gpu.health.reasons,
        remedy=remedy_of_device(gpu.health.reasons, f"GPU{gpu.index}"),
        pods=pods.get(gpu.uuid, ()),
        nearness=tuple(affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node).name for pf in pfs),
    )


def _nics(
    machine: MachineView,
    pfs: Iterable[Function],
    holder_of: Mapping[str, str],
    rails: Mapping[str, int],
    pods: Mapping[str, tuple[str, ...]],
) -> Iterable[ViewNic]:
    snapshot = machine.snapshot
    links = {link.pci_address: link for link in snapshot.links}
    vfs: dict[str, list[Function]] = {}
    for function in snapshot.functions:
        if function.parent is not None:
            vfs.setdefault(function.parent, []).append(function)
    offered, first_names = _offered(snapshot, machine), nic_names(rails)
    in_pods = {netdev.device: netdev for netdev in snapshot.pod_netdevs}
    for pf in pfs:
        link = links.get(pf.pci_address)
        netdev = link.netdev if link else pf.netdev
        name = first_names.get(pf.pci_address) or netdev or pf.pci_address
        ordered = sorted(vfs.get(pf.pci_address, ()), key=lambda vf: (vf.vf_index or 0, vf.pci_address))
        yield ViewNic(
            address=pf.pci_address,
            name=name,
            netdev=netdev,
            state=pf.link_state,
            allocatable=pf.health.allocatable,
            reasons=pf.health.reasons,
            link_type=pf.link_type,
            driver=pf.driver,
            rdma=pf.rdma.device if pf.rdma else None,
            numa_node=pf.numa_node,
            pci_path=pf.pci_path,
            carrier=link.carrier if link else None,
            speed_mbps=link.speed_mbps if link else None,
            mtu=link.mtu if link else None,
            mac=link.mac if link else None,
            default_route=link.default_route if link else False,
            rail=rails.get(pf.pci_address),
            total_vfs=pf.total_vfs,
            vfs=tuple(_vf(vf, offered, holder_of, in_pods.get(vf.pci_address)) for vf in ordered),
            neighbors=tuple(neighbor for neighbor in snapshot.neighbors if neighbor.link == netdev),
            remarks=tuple(remark for remark in snapshot.remarks if remark.link == netdev),
            remedy=remedy_of_device(pf.health.reasons, netdev or name),
            pods=pods.get(pf.pci_address, ()),
        )


def _offered(snapshot: Snapshot, machine: MachineView) -> dict[str, tuple[str, bool]]:
    """The resource of each VF, and whether it is Healthy for the kubelet."""
    addresses = {function.pci_address for function in snapshot.functions if function.parent is not None}
    return {
        id_: (resource, devices.health.allocatable)
        for resource, listed in machine.resources
        for devices in listed
        if len(devices.ids) == 1
        for id_ in devices.ids
        if id_ in addresses
    }


def _vf(
    vf: Function,
    offered: Mapping[str, tuple[str, bool]],
    holder_of: Mapping[str, str],
    in_pod: PodNetdev | None,
) -> ViewVf:
    resource, healthy = offered.get(vf.pci_address, (None, None))
    return ViewVf(
        address=vf.pci_address,
        index=vf.vf_index,
        driver=vf.driver,
        netdev=vf.netdev,
        rdma=vf.rdma.device if vf.rdma else None,
        state=vf.health.state.value,
        resource=resource,
        healthy=healthy,
        holder=holder_of.get(vf.pci_address),
        pod_netdev=None if in_pod is None else in_pod.netdev,
        pod_addresses=() if in_pod is None else in_pod.addresses,
    )


def _resources(
    machine: MachineView, statuses: Iterable[ResourceStatus], holder_of: Mapping[str, str]
) -> Iterable[ViewResource]:
    status_of = {status.resource: status for status in statuses}
    known = machine.snapshot.holdings is not None
    for resource, listed in machine.resources:
        status = status_of.get(resource)
        yield ViewResource(
            name=resource,
            devices=status.devices if status else sum(len(devices.ids) for devices in listed),
            healthy=status.healthy
            if status
            else sum(len(devices.ids) for devices in listed if devices.health.allocatable),
            held=sum(id_ in holder_of for devices in listed for id_ in devices.ids) if known else None,
            registered=None if status is None else status.registered,
            reason=status.reason if status else "",
            level=machine.levels.get(resource),
        )
