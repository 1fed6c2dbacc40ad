"""Families of facts: health, names to join with, neighbors, pods, and allocated and free devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nodeagent.facts.affinity import affinity
from nodeagent.facts.model import CORDONED, LINK_STATES, ContainerLimit, Function, Gpu, Health, Holding, State
from nodeagent.metrics.computed_family import ComputedFamily, computed
from nodeagent.metrics.scrape_input import DeviceCount, FactIndex
from nodeagent.metrics.text_format import Series

_GPU_STATES = (State.HEALTHY, State.DEGRADED, State.UNHEALTHY, State.UNKNOWN, State.UNUSED)
_VF_SETUP = ("mac", "vlan", "trust", "spoof_check", "link_state")


def _numa(device: Function | Gpu) -> str:
    return "" if device.numa_node is None else str(device.numa_node)


# --- GPUs -------------------------------------------------------------------------------------------------


def _gpus(facts: FactIndex) -> Iterator[Series]:
    snapshot = facts.snapshot
    lost = sum(gpu.lost for gpu in snapshot.gpus)
    if snapshot.gpu_functions or snapshot.gpus:
        yield ("on_bus",), len(snapshot.gpu_functions)
        yield ("named",), len(snapshot.gpus) - lost
        yield ("lost",), lost


def _gpu_text(name: str) -> Callable[[FactIndex], Iterator[Series]]:
    def series(facts: FactIndex) -> Iterator[Series]:
        for gpu in facts.snapshot.gpus:
            if text := facts.text(gpu.uuid, name):
                yield (str(gpu.index), text), 1

    return series


def _gpu_info(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        names = (facts.text(gpu.uuid, name) for name in ("gpu_serial", "gpu_driver", "gpu_vbios"))
        yield (str(gpu.index), gpu.uuid, gpu.pci_address, gpu.name, *names, _numa(gpu)), 1
    for unusable in facts.snapshot.unusable_gpus:
        yield (unusable.place, "", unusable.place, "", "", "", "", ""), 1


def _judged_gpus(facts: FactIndex) -> Iterator[tuple[str, Health]]:
    """The GPUs by index, then those that no resource can offer by their PCI address."""
    for gpu in facts.snapshot.gpus:
        yield str(gpu.index), gpu.health
    for unusable in facts.snapshot.unusable_gpus:
        yield unusable.place, unusable.health


def _gpu_health_state(facts: FactIndex) -> Iterator[Series]:
    for name, health in _judged_gpus(facts):
        for state in _GPU_STATES:
            yield (name, state.value), health.state is state


def _reasons(judged: Iterable[tuple[str, Health]]) -> Iterator[Series]:
    for name, health in judged:
        for reason in health.reasons:
            yield (name, reason.key, "warning" if reason.warning or reason.key == CORDONED else "fault"), 1


def _gpu_nic_affinity(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        for pf in facts.pfs:
            if not pf.missing:
                relation = affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node)
                yield (str(gpu.index), facts.link_name(pf.pci_address), relation.name), 1


# --- links, adapters and VFs --------------------------------------------------------------------------------


def _link_health_state(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        for state in LINK_STATES:
            yield (facts.link_name(pf.pci_address), state), pf.link_state == state


def _link_info(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        link = facts.links.get(pf.pci_address)
        yield (
            (
                facts.link_name(pf.pci_address),
                facts.rdma_name(pf.pci_address),
                pf.pci_address,
                (link.mac if link else None) or "",
                facts.text(pf.pci_address, "driver") or pf.driver or "",
                facts.text(pf.pci_address, "firmware"),
                _numa(pf),
                pf.link_type or "",
                str(facts.rails.get(pf.pci_address, "")),
                "true" if link is not None and link.default_route else "false",
            ),
            1,
        )


def _link_ext_state(facts: FactIndex) -> Iterator[Series]:
    for device, texts in facts.texts.items():
        if (state := texts.get("ext_state")) and facts.has(device):
            sub = texts.get("ext_substate")
            yield (facts.link_name(device), f"{state}: {sub}" if sub else state), 1


def _link_texts(*names: str) -> Callable[[FactIndex], Iterator[Series]]:
    """One series for each link that has any of these texts."""

    def series(facts: FactIndex) -> Iterator[Series]:
        for device, texts in facts.texts.items():
            named = tuple(texts.get(name, "") for name in names)
            if any(named) and facts.has(device):
                yield (facts.link_name(device), *named), 1

    return series


def _pcie_info(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        if not pf.missing:
            yield (pf.pci_address, facts.link_name(pf.pci_address), "nic", _numa(pf)), 1
    for gpu in facts.snapshot.gpus:
        yield (gpu.pci_address, str(gpu.index), "gpu", _numa(gpu)), 1


def _rdma_port_info(facts: FactIndex) -> Iterator[Series]:
    fields = ("rdma_link_layer", "rdma_phys_state", "node_guid")
    for pf in facts.pfs:
        name = facts.rdma_name(pf.pci_address)
        if name and not pf.missing:
            texts = (facts.text(pf.pci_address, field) for field in fields)
            yield (name, "1", facts.link_name(pf.pci_address), pf.pci_address, *texts), 1


def _pf_vfs(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        if pf.missing:
            continue
        for kind, count in (("configured", pf.num_vfs), ("capable", pf.total_vfs)):
            if count is not None:
                yield (facts.link_name(pf.pci_address), kind), count


def _vf_info(facts: FactIndex) -> Iterator[Series]:
    for (pf, index), vf in facts.vfs.items():
        rdma = vf.rdma.device if vf.rdma is not None else ""
        setup = (facts.text(pf, f"vf_{name}/{index}") for name in _VF_SETUP)
        yield (facts.link_name(pf), str(index), vf.pci_address, vf.driver or "", rdma, _numa(vf), *setup), 1


# --- neighbors --------------------------------------------------------------------------------------


def _lldp_neighbor_info(facts: FactIndex) -> Iterator[Series]:
    series = []
    for neighbor in facts.snapshot.neighbors:
        ids = (neighbor.chassis_id.value, neighbor.port_id.value)
        names = (neighbor.system_name or "", neighbor.port_description or "")
        series.append((neighbor.link, *ids, *names, "true" if neighbor.stale else "false"))
    for labels in dict.fromkeys(series):  # contenders may differ only in their source
        yield labels, 1


def _lldp_neighbors(facts: FactIndex) -> Iterator[Series]:
    counts = dict.fromkeys((link.netdev for link in facts.snapshot.links), 0)
    for neighbor in facts.snapshot.neighbors:
        counts[neighbor.link] = counts.get(neighbor.link, 0) + (not neighbor.stale)
    for link, count in counts.items():
        yield (link,), count


def _lldp_neighbor_expected(facts: FactIndex) -> Iterator[Series]:
    with_neighbor = {neighbor.link for neighbor in facts.snapshot.neighbors if not neighbor.stale}
    for pf in facts.pfs:
        if (name := facts.link_name(pf.pci_address)) in with_neighbor:
            yield (name,), not any(reason.key == "miscabled" for reason in pf.health.reasons)


def _lldp_finding(facts: FactIndex) -> Iterator[Series]:
    for link, key in dict.fromkeys((remark.link, remark.key) for remark in facts.snapshot.remarks):
        yield (link, key), 1


def _lldp_neighbor_duplicates(facts: FactIndex) -> Iterator[Series]:
    current = [neighbor for neighbor in facts.snapshot.neighbors if not neighbor.stale and neighbor.port]
    links: dict[tuple[object, object], set[str]] = {}
    for neighbor in current:
        links.setdefault((neighbor.chassis_id, neighbor.port), set()).add(neighbor.link)
    series = [
        (neighbor.link, neighbor.place)
        for neighbor in current
        if len(links[neighbor.chassis_id, neighbor.port]) > 1
    ]
    for labels in dict.fromkeys(series):
        yield labels, 1


# --- pods and devices ---------------------------------------------------------------------------------------


def _held(facts: FactIndex) -> Iterator[Series]:
    """How many devices a container holds of one parent."""
    counts: dict[tuple[Holding, str], int] = {}
    for holding in facts.snapshot.holdings or ():
        for id_ in holding.device_ids:
            key = (holding, id_.partition("::")[0])
            counts[key] = counts.get(key, 0) + 1
    for (holding, device), count in counts.items():
        yield (device, holding.resource, holding.namespace, holding.pod, holding.container), count


def _devices(
    gpus: bool, number: Callable[[DeviceCount], int | None]
) -> Callable[[FactIndex], Iterator[Series]]:
    """The number of each resource on each GPU, or on each link."""

    def series(facts: FactIndex) -> Iterator[Series]:
        name = facts.gpu_name if gpus else facts.link_name
        for count in facts.device_counts:
            if (count.parent in facts.gpus) is gpus and (value := number(count)) is not None:
                yield (name(count.parent), count.resource), value

    return series


def _largest_free_block(facts: FactIndex) -> Iterator[Series]:
    largest: dict[str, int] = {}
    for count in facts.device_counts:
        if count.free is not None:
            largest[count.resource] = max(largest.get(count.resource, 0), count.free)
    for resource, free in largest.items():
        yield (resource,), free


def _device_bytes(facts: FactIndex) -> Iterator[Series]:
    for resource, size in {count.resource: count.each_bytes for count in facts.device_counts}.items():
        if size is not None:
            yield (resource,), size


def _enforcement(facts: FactIndex) -> Iterator[Series]:
    for resource, level in {count.resource: count.level for count in facts.device_counts}.items():
        if level is not None:
            yield (resource, level), 1


def _limits(value: Callable[[ContainerLimit], float]) -> Callable[[FactIndex], Iterator[Series]]:
    def series(facts: FactIndex) -> Iterator[Series]:
        for limit in facts.snapshot.gpu_limits:
            if limit.state in ("in force", "not in force"):
                yield (facts.gpu_name(limit.uuid), limit.namespace, limit.pod, limit.container), value(limit)

    return series


FACT_FAMILIES: tuple[ComputedFamily[FactIndex], ...] = (
    computed("gpus", "state",
        "GPUs of the node: on_bus, on the PCI bus; named, reached by the driver; lost, known and not reached.", _gpus),
    computed("gpu_recovery_action", "gpu,action", "1 for the recovery action that the driver requests for the GPU.",
        _gpu_text("gpu_recovery_action")),
    computed("gpu_info", "gpu,uuid,pci_address,model,serial,driver_version,vbios_version,numa_node",
        "Names and versions of a GPU; always 1.", _gpu_info),
    computed("gpu_health_state", "gpu,state", "1 for the state that the GPU is in, 0 for the others.",
        _gpu_health_state),
    computed("gpu_health_reason", "gpu,reason,severity", "1 for each reason that is active.",
        lambda facts: _reasons(_judged_gpus(facts))),
    computed("gpu_fabric_state", "gpu,state", "1 for the state of the GPU in the NVLink fabric.",
        _gpu_text("gpu_fabric_state")),
    computed("gpu_mps_ready", "gpu",
        "1 while the MPS daemon of a GPU answers, else 0; absent where no daemon is needed.",
        lambda facts: (((facts.gpu_name(uuid),), not fault) for uuid, fault in facts.snapshot.mps_obstacles)),
    computed("gpu_nic_affinity_info", "gpu,device,relation",
        "Distance between a GPU and a link: PIX, PXB, PHB, NODE or SYS, as in nvidia-smi topo -m; always 1.",
        _gpu_nic_affinity),
    computed("link_health_state", "device,state", "1 for the state that the link is in, 0 for the others.",
        _link_health_state),
    computed("link_health_reason", "device,reason,severity",
        "1 for each reason that is active; a warning does not change the state.",
        lambda facts: _reasons((facts.link_name(pf.pci_address), pf.health) for pf in facts.pfs)),
    computed("link_info",
        "device,rdma_device,pci_address,mac,driver,firmware_version,numa_node,link_type,rail,default_route",
        "Names and versions of a link; always 1.", _link_info),
    computed("link_ext_state", "device,state", "The kernel's reason why the link is down; absent while it is up.",
        _link_ext_state),
    computed("link_fec_info", "device,mode", "The FEC mode in use; always 1.", _link_texts("fec_mode")),
    computed("transceiver_info", "device,type,vendor,part_number,serial_number,revision",
        "The transceiver's names in its EEPROM; always 1.",
        _link_texts("module_type", "module_vendor", "module_part", "module_serial", "module_revision")),
    computed("transceiver_module_state", "device,state", "1 for the state that the module is in.",
        _link_texts("module_state")),
    computed("pcie_info", "pci_address,device,kind,numa_node", "The link or GPU at a PCI address; always 1.",
        _pcie_info),
    computed("rdma_port_info", "rdma_device,port,device,pci_address,link_layer,phys_state,node_guid",
        "Names and state of an RDMA port; always 1.", _rdma_port_info),
    computed("pf_vfs", "pf,kind", "VFs of a PF: configured, and the most that it supports.", _pf_vfs),
    computed("vf_info", "pf,vf,pci_address,driver,rdma_device,numa_node,mac,vlan,trust,spoof_check,link_state",
        "Names and settings of a VF; always 1.", _vf_info),
    computed("lldp_neighbor_info", "device,chassis,port,system,port_description,stale",
        "The switch port at the other end, as it announces itself; always 1.", _lldp_neighbor_info),
    computed("lldp_neighbors", "device", "LLDP neighbors of a link, without stale ones.", _lldp_neighbors),
    computed("lldp_neighbor_expected", "device", "0 while the neighbor differs from the cabling plan, else 1.",
        _lldp_neighbor_expected),
    computed("lldp_finding", "device,finding", "1 for each remark that LLDP gives about a link.", _lldp_finding),
    computed("lldp_neighbor_duplicates", "device,neighbor",
        "1 where one neighbor appears on several links of this node.", _lldp_neighbor_duplicates),
    computed("device_pod_info", "device_id,resource,namespace,pod,container",
        "The container that holds a device; always 1. For slices of GPU memory device_id is their GPU.",
        lambda facts: ((labels, 1) for labels, _ in _held(facts))),
    computed("device_pod_devices", "device_id,resource,namespace,pod,container",
        "Devices that a container holds of one parent: slices of a GPU, or 1.", _held),
    computed("link_device_allocatable", "device,resource",
        "Devices of a link that are healthy enough for the kubelet to allocate.",
        _devices(False, lambda count: count.allocatable)),
    computed("link_device_free", "device,resource", "Devices of a link that are healthy and that no pod holds.",
        _devices(False, lambda count: count.free)),
    computed("gpu_device_allocatable", "gpu,resource",
        "Slices of a GPU (or the GPU) that are healthy enough for the kubelet to allocate.",
        _devices(True, lambda count: count.allocatable)),
    computed("gpu_device_free", "gpu,resource",
        "Slices of a GPU (or the GPU) that are healthy and that no pod holds: the largest request that it can serve.",
        _devices(True, lambda count: count.free)),
    computed("resource_largest_free_block", "resource",
        "The most devices that one GPU or one link of the node can still give to one container.", _largest_free_block),
    computed("resource_device_bytes", "resource",
        "Memory that one device of the resource stands for; absent for resources other than memory.", _device_bytes),
    computed("resource_enforcement", "resource,level",
        "1 for the level in force that keeps programs within their share of GPU memory: none, env, nvml-limits, mps or "
        "evict.", _enforcement),
    computed("gpu_container_limit_in_force", "gpu,namespace,pod,container",
        "1 while the driver shows the hard limit of GPU memory that the container should have, 0 while it does not.",
        _limits(lambda limit: limit.state == "in force")),
    computed("gpu_container_limit_since_timestamp_seconds", "gpu,namespace,pod,container",
        "Time since when the hard limit of the container is in force, or is not.", _limits(lambda limit: limit.since)),
)  # fmt: skip
"""In the order of the page. They are computed when the facts change, and kept."""
