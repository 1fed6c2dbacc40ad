"""Facts: names to join with, neighbors, pods, and allocated and free devices."""

from collections.abc import Iterator

from nodeagent.facts.model import Holding
from nodeagent.measurements.family import FROM_RULES
from nodeagent.metrics.computed_family import fact_family
from nodeagent.metrics.scrape_input import DeviceCount, FactIndex
from nodeagent.metrics.text_format import Series


@fact_family(
    "link_info",
    "device,rdma_device,pci_address,mac,driver,firmware_version,numa_node,link_type,rail,default_route",
    help="Names and versions of a link; always 1.",
    source="sysfs, RTM_GETLINK, ETHTOOL_GDRVINFO",
    use="Join on device for anything descriptive.",
    peers="node_ethtool_info; node_network_info; rdma_port_info",
)
def link_info(facts: FactIndex) -> Iterator[Series]:
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
                "" if pf.numa_node is None else str(pf.numa_node),
                pf.link_type or "",
                str(facts.rails.get(pf.pci_address, "")),
                "true" if link is not None and link.default_route else "false",
            ),
            1,
        )


@fact_family(
    "link_ext_state",
    "device,state",
    help="The kernel's reason why the link is down; absent while it is up.",
    source="state: ETHTOOL_A_LINKSTATE_EXT_STATE and EXT_SUBSTATE",
    use="No cable, no module, link training failed: read it first when a link is down.",
)
def link_ext_state(facts: FactIndex) -> Iterator[Series]:
    for device, texts in facts.texts.items():
        if (state := texts.get("ext_state")) and facts.has(device):
            sub = texts.get("ext_substate")
            yield (facts.link_name(device), f"{state}: {sub}" if sub else state), 1


@fact_family(
    "link_fec_info",
    "device,mode",
    help="The FEC mode in use; always 1.",
    source="fec: ETHTOOL_A_FEC_ACTIVE",
    use="Must be equal on both ends; off at 100G per lane is a fault.",
)
def link_fec_info(facts: FactIndex) -> Iterator[Series]:
    for device, texts in facts.texts.items():
        if (mode := texts.get("fec_mode")) and facts.has(device):
            yield (facts.link_name(device), mode), 1


@fact_family(
    "transceiver_info",
    "device,type,vendor,part_number,serial_number,revision",
    help="The transceiver's names in its EEPROM; always 1.",
    source="module: ETHTOOL_MSG_MODULE_EEPROM_GET",
    use="Faults with one part number or revision point to a bad batch.",
    peers="transceiver_vendor_*_info",
)
def transceiver_info(facts: FactIndex) -> Iterator[Series]:
    for device, texts in facts.texts.items():
        fields = ("module_type", "module_vendor", "module_part", "module_serial", "module_revision")
        named = tuple(texts.get(name, "") for name in fields)
        if any(named) and facts.has(device):
            yield (facts.link_name(device), *named), 1


@fact_family(
    "transceiver_module_state",
    "device,state",
    help="1 for the state that the module is in.",
    source="module: CMIS 00h byte 3, or ETHTOOL_MSG_MODULE_GET",
    use="fault: replace it; low-power on a link that should be up: the host did not power it up.",
)
def transceiver_module_state(facts: FactIndex) -> Iterator[Series]:
    for device, texts in facts.texts.items():
        if (state := texts.get("module_state")) and facts.has(device):
            yield (facts.link_name(device), state), 1


@fact_family(
    "pcie_info",
    "pci_address,device,kind,numa_node",
    help="The link or GPU at a PCI address; always 1.",
    source="sysfs, NVML",
    use="Join on pci_address to add a name to the PCIe families.",
    peers="node_pcidevice_info",
)
def pcie_info(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        if not pf.missing:
            numa = "" if pf.numa_node is None else str(pf.numa_node)
            yield (pf.pci_address, facts.link_name(pf.pci_address), "nic", numa), 1
    for gpu in facts.snapshot.gpus:
        numa = "" if gpu.numa_node is None else str(gpu.numa_node)
        yield (gpu.pci_address, str(gpu.index), "gpu", numa), 1


@fact_family(
    "rdma_port_info",
    "rdma_device,port,device,pci_address,link_layer,phys_state,node_guid",
    help="Names and state of an RDMA port; always 1.",
    source="sysfs",
    use="Join on rdma_device for the netdev.",
    peers="rdma_port_info",
)
def rdma_port_info(facts: FactIndex) -> Iterator[Series]:
    fields = ("rdma_link_layer", "rdma_phys_state", "node_guid")
    for pf in facts.pfs:
        name = facts.rdma_name(pf.pci_address)
        if name and not pf.missing:
            texts = (facts.text(pf.pci_address, field) for field in fields)
            yield (name, "1", facts.link_name(pf.pci_address), pf.pci_address, *texts), 1


@fact_family(
    "pf_vfs",
    "pf,kind",
    help="VFs of a PF: configured, and the most that it supports.",
    source="sriov_numvfs, sriov_totalvfs",
    use="Fewer configured than wanted: nodeagent vfs apply.",
    peers="node_pcidevice_sriov_numvfs; node_pcidevice_sriov_totalvfs",
)
def pf_vfs(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        if pf.missing:
            continue
        for kind, count in (("configured", pf.num_vfs), ("capable", pf.total_vfs)):
            if count is not None:
                yield (facts.link_name(pf.pci_address), kind), count


_VF_SETUP = ("mac", "vlan", "trust", "spoof_check", "link_state")


@fact_family(
    "vf_info",
    "pf,vf,pci_address,driver,rdma_device,numa_node,mac,vlan,trust,spoof_check,link_state",
    help="Names and settings of a VF; always 1.",
    source="sysfs, IFLA_VFINFO_LIST",
    use="Join on pci_address. link_state enable keeps a VF up when its PF loses carrier: the pod does not notice.",
    peers="node_net_vf_info",
)
def vf_info(facts: FactIndex) -> Iterator[Series]:
    for (pf, index), vf in facts.vfs.items():
        numa = "" if vf.numa_node is None else str(vf.numa_node)
        rdma = vf.rdma.device if vf.rdma is not None else ""
        setup = (facts.text(pf, f"vf_{name}/{index}") for name in _VF_SETUP)
        yield (facts.link_name(pf), str(index), vf.pci_address, vf.driver or "", rdma, numa, *setup), 1


# --- neighbors --------------------------------------------------------------------------------------


@fact_family(
    "lldp_neighbor_info",
    "device,chassis,port,system,port_description,stale",
    help="The switch port at the other end, as it announces itself; always 1.",
    source="AF_PACKET, EtherType 88cc; InfiniBand: umad",
    use="Join on device to see faults by leaf. Texts come from the switch, escaped and cut.",
    peers="none of the agents here; lldp exporters vary",
)
def lldp_neighbor_info(facts: FactIndex) -> Iterator[Series]:
    for neighbor in facts.snapshot.neighbors:
        ids = (neighbor.chassis_id.value, neighbor.port_id.value)
        names = (neighbor.system_name or "", neighbor.port_description or "")
        yield (neighbor.link, *ids, *names, "true" if neighbor.stale else "false"), 1


@fact_family(
    "lldp_neighbors",
    "device",
    help="LLDP neighbors of a link, without stale ones.",
    source="AF_PACKET, EtherType 88cc; InfiniBand: umad",
    use="1 is right. More: a device between node and switch forwards LLDP. 0 with carrier: LLDP is off on the switch.",
)
def lldp_neighbors(facts: FactIndex) -> Iterator[Series]:
    counts = dict.fromkeys((link.netdev for link in facts.snapshot.links), 0)
    for neighbor in facts.snapshot.neighbors:
        counts[neighbor.link] = counts.get(neighbor.link, 0) + (not neighbor.stale)
    for link, count in counts.items():
        yield (link,), count


@fact_family(
    "lldp_neighbor_expected",
    "device",
    help="0 while the neighbor differs from the cabling plan, else 1.",
    source=f"{FROM_RULES}: miscabled",
    use="0: alert NodeLinkMiscabled; nodeagent neighbors shows the neighbor.",
)
def lldp_neighbor_expected(facts: FactIndex) -> Iterator[Series]:
    with_neighbor = {neighbor.link for neighbor in facts.snapshot.neighbors if not neighbor.stale}
    for pf in facts.pfs:
        if (name := facts.link_name(pf.pci_address)) in with_neighbor:
            yield (name,), not any(reason.key == "miscabled" for reason in pf.health.reasons)


@fact_family(
    "lldp_finding",
    "device,finding",
    help="1 for each remark that LLDP gives about a link.",
    source="lldp/findings",
    use="frame_size_mismatch, pfc_mismatch, ets_mismatch: configure switch and node alike; see nodeagent neighbors.",
)
def lldp_finding(facts: FactIndex) -> Iterator[Series]:
    for link, key in dict.fromkeys((remark.link, remark.key) for remark in facts.snapshot.remarks):
        yield (link, key), 1


@fact_family(
    "lldp_neighbor_duplicates",
    "device,neighbor",
    help="1 where one neighbor appears on several links of this node.",
    source="lldp/findings",
    use="Two cables show one port: a device forwards LLDP, or two switches have one configuration.",
)
def lldp_neighbor_duplicates(facts: FactIndex) -> Iterator[Series]:
    current = [neighbor for neighbor in facts.snapshot.neighbors if not neighbor.stale]
    links: dict[tuple[object, object], set[str]] = {}
    for neighbor in current:
        links.setdefault((neighbor.chassis_id, neighbor.port_id), set()).add(neighbor.link)
    for neighbor in current:
        if len(links[neighbor.chassis_id, neighbor.port_id]) > 1:
            switch = neighbor.system_name or neighbor.chassis_id.value
            yield (neighbor.link, f"{switch} {neighbor.port_id.value}"), 1


# --- pods and devices ---------------------------------------------------------------------------------------


@fact_family(
    "device_pod_info",
    "device_id,resource,namespace,pod,container",
    help="The container that holds a device; always 1. For slices of GPU memory device_id is their GPU.",
    source="the kubelet's podresources API",
    use="Join it to add pods: device_id is a VF's PCI address or a GPU's UUID.",
    peers="sriov_kubepoddevice; pod labels of dcgm-exporter",
)
def device_pod_info(facts: FactIndex) -> Iterator[Series]:
    for holding, device in _counted(facts):
        yield (device, holding.resource, holding.namespace, holding.pod, holding.container), 1


@fact_family(
    "device_pod_devices",
    "device_id,resource,namespace,pod,container",
    help="Devices that a container holds of one parent: slices of a GPU, or 1.",
    source="the kubelet's podresources API",
    use="GPU memory by pod: multiply by nodeagent_resource_device_bytes.",
)
def device_pod_devices(facts: FactIndex) -> Iterator[Series]:
    for (holding, device), count in _counted(facts).items():
        yield (device, holding.resource, holding.namespace, holding.pod, holding.container), count


def _counted(facts: FactIndex) -> dict[tuple[Holding, str], int]:
    counts: dict[tuple[Holding, str], int] = {}
    for holding in facts.snapshot.holdings or ():
        for id_ in holding.device_ids:
            key = (holding, id_.partition("::")[0])
            counts[key] = counts.get(key, 0) + 1
    return counts


@fact_family(
    "link_device_allocatable",
    "device,resource",
    help="Devices of a link that are healthy enough for the kubelet to allocate.",
    source="the agent",
    use="0: the link's devices are Unhealthy.",
)
def link_device_allocatable(facts: FactIndex) -> Iterator[Series]:
    for count in _of_links(facts):
        yield (facts.link_name(count.parent), count.resource), count.allocatable


@fact_family(
    "link_device_free",
    "device,resource",
    help="Devices of a link that are healthy and that no pod holds.",
    source="the agent, and the kubelet's podresources API",
    use="0 on one rail: pods that need all rails do not fit on the node.",
)
def link_device_free(facts: FactIndex) -> Iterator[Series]:
    for count in _of_links(facts):
        if count.free is not None:
            yield (facts.link_name(count.parent), count.resource), count.free


@fact_family(
    "gpu_device_allocatable",
    "gpu,resource",
    help="Slices of a GPU (or the GPU) that are healthy enough for the kubelet to allocate.",
    source="the agent",
    use="0: the GPU is Unhealthy.",
)
def gpu_device_allocatable(facts: FactIndex) -> Iterator[Series]:
    for count in _of_gpus(facts):
        yield (facts.gpu_name(count.parent), count.resource), count.allocatable


@fact_family(
    "gpu_device_free",
    "gpu,resource",
    help="Slices of a GPU (or the GPU) that are healthy and that no pod holds: the largest request that it can serve.",
    source="the agent, and the kubelet's podresources API",
    use="All slices of a container are on one GPU, so a pod cannot request the sum over GPUs.",
)
def gpu_device_free(facts: FactIndex) -> Iterator[Series]:
    for count in _of_gpus(facts):
        if count.free is not None:
            yield (facts.gpu_name(count.parent), count.resource), count.free


@fact_family(
    "resource_largest_free_block",
    "resource",
    help="The most devices that one GPU or one link of the node can still give to one container.",
    source="the agent, and the kubelet's podresources API",
    use="Larger requests are refused here although the scheduler counts enough free devices: fragmentation.",
)
def resource_largest_free_block(facts: FactIndex) -> Iterator[Series]:
    largest: dict[str, int] = {}
    for count in facts.device_counts:
        if count.free is not None:
            largest[count.resource] = max(largest.get(count.resource, 0), count.free)
    for resource, free in largest.items():
        yield (resource,), free


@fact_family(
    "resource_device_bytes",
    "resource",
    help="Memory that one device of the resource stands for; absent for resources other than memory.",
    source="the configuration",
    use="Converts slices to bytes.",
)
def resource_device_bytes(facts: FactIndex) -> Iterator[Series]:
    for resource, size in {count.resource: count.each_bytes for count in facts.device_counts}.items():
        if size is not None:
            yield (resource,), size


@fact_family(
    "resource_enforcement",
    "resource,level",
    help="1 for the level in force that keeps programs within their share of GPU memory: none, env, "
    "nvml-limits, mps or evict.",
    source="the configuration, the driver's version and the host's cgroups",
    use="none: a program that uses more than its share takes it from its neighbors; docs/gpu-memory.md.",
)
def resource_enforcement(facts: FactIndex) -> Iterator[Series]:
    for resource, level in {count.resource: count.level for count in facts.device_counts}.items():
        if level is not None:
            yield (resource, level), 1


def _of_gpus(facts: FactIndex) -> Iterator[DeviceCount]:
    return (count for count in facts.device_counts if count.parent in facts.gpus)


def _of_links(facts: FactIndex) -> Iterator[DeviceCount]:
    return (count for count in facts.device_counts if count.parent not in facts.gpus)
