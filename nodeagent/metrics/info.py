"""What stands still: names to join with, neighbors, pods, what is allocated and what is free."""

from collections.abc import Iterator

from nodeagent.metrics.family import Series, described
from nodeagent.metrics.scrape_input import Scene, Stock, missing
from nodeagent.model import Holding


@described(
    "link_info",
    "device,rdma_device,pci_address,mac,driver,firmware_version,numa_node,link_type,rail,default_route",
    help="What is known of a link by name; always 1.",
    source="sysfs, RTM_GETLINK, ETHTOOL_GDRVINFO",
    use="Join on device for anything descriptive.",
    peers="node_ethtool_info; node_network_info; rdma_port_info",
)
def link_info(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        link = scene.links.get(pf.pci_address)
        yield (
            (
                scene.link_name(pf.pci_address),
                scene.rdma_name(pf.pci_address),
                pf.pci_address,
                (link.mac if link else None) or "",
                scene.text(pf.pci_address, "driver") or pf.driver or "",
                scene.text(pf.pci_address, "firmware"),
                "" if pf.numa_node is None else str(pf.numa_node),
                pf.link_type or "",
                str(scene.rails.get(pf.pci_address, "")),
                "true" if link is not None and link.default_route else "false",
            ),
            1,
        )


@described(
    "link_ext_state",
    "device,state",
    help="Why the link is down, in the kernel's words; absent while it is up.",
    source="state: ETHTOOL_A_LINKSTATE_EXT_STATE and EXT_SUBSTATE",
    use="No cable, no module, link training failed: the first thing to read when a link is down.",
)
def link_ext_state(scene: Scene) -> Iterator[Series]:
    for device, texts in scene.texts.items():
        if (state := texts.get("ext_state")) and scene.there(device):
            sub = texts.get("ext_substate")
            yield (scene.link_name(device), f"{state}: {sub}" if sub else state), 1


@described(
    "link_fec_info",
    "device,mode",
    help="The FEC mode in use; always 1.",
    source="fec: ETHTOOL_A_FEC_ACTIVE",
    use="The same on both ends; off on 100G per lane is a fault by itself.",
)
def link_fec_info(scene: Scene) -> Iterator[Series]:
    for device, texts in scene.texts.items():
        if (mode := texts.get("fec_mode")) and scene.there(device):
            yield (scene.link_name(device), mode), 1


@described(
    "transceiver_info",
    "device,type,vendor,part_number,serial_number,revision",
    help="The transceiver as its EEPROM names it; always 1.",
    source="module: ETHTOOL_MSG_MODULE_EEPROM_GET",
    use="Faults that share a part number or a revision are a batch.",
    peers="transceiver_vendor_*_info",
)
def transceiver_info(scene: Scene) -> Iterator[Series]:
    for device, texts in scene.texts.items():
        fields = ("module_type", "module_vendor", "module_part", "module_serial", "module_revision")
        named = tuple(texts.get(name, "") for name in fields)
        if any(named) and scene.there(device):
            yield (scene.link_name(device), *named), 1


@described(
    "transceiver_module_state",
    "device,state",
    help="1 for the state that the module is in.",
    source="module: CMIS 00h byte 3, or ETHTOOL_MSG_MODULE_GET",
    use="fault: change it; low-power under a link that should be up: the host has not woken it.",
)
def transceiver_module_state(scene: Scene) -> Iterator[Series]:
    for device, texts in scene.texts.items():
        if (state := texts.get("module_state")) and scene.there(device):
            yield (scene.link_name(device), state), 1


@described(
    "pcie_info",
    "pci_address,device,kind,numa_node",
    help="Which link or GPU a PCI address is; always 1.",
    source="sysfs, NVML",
    use="Join on pci_address, to give the PCIe families a name.",
    peers="node_pcidevice_info",
)
def pcie_info(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        if not missing(pf.health):
            numa = "" if pf.numa_node is None else str(pf.numa_node)
            yield (pf.pci_address, scene.link_name(pf.pci_address), "nic", numa), 1
    for gpu in scene.snapshot.gpus:
        numa = "" if gpu.numa_node is None else str(gpu.numa_node)
        yield (gpu.pci_address, str(gpu.index), "gpu", numa), 1


@described(
    "rdma_port_info",
    "rdma_device,port,device,pci_address,link_layer,phys_state,node_guid",
    help="What is known of an RDMA port by name; always 1.",
    source="sysfs",
    use="Join on rdma_device for the netdev.",
    peers="rdma_port_info",
)
def rdma_port_info(scene: Scene) -> Iterator[Series]:
    fields = ("rdma_link_layer", "rdma_phys_state", "node_guid")
    for pf in scene.pfs:
        name = scene.rdma_name(pf.pci_address)
        if name and not missing(pf.health):
            texts = (scene.text(pf.pci_address, field) for field in fields)
            yield (name, "1", scene.link_name(pf.pci_address), pf.pci_address, *texts), 1


@described(
    "pf_vfs",
    "pf,kind",
    help="VFs of a PF: those it has, and those it could have.",
    source="sriov_numvfs, sriov_totalvfs",
    use="Fewer configured than wanted: nodeagent vfs apply.",
    peers="node_pcidevice_sriov_numvfs; node_pcidevice_sriov_totalvfs",
)
def pf_vfs(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        if missing(pf.health):
            continue
        for kind, count in (("configured", pf.num_vfs), ("capable", pf.total_vfs)):
            if count is not None:
                yield (scene.link_name(pf.pci_address), kind), count


_VF_SETUP = ("mac", "vlan", "trust", "spoof_check", "link_state")


@described(
    "vf_info",
    "pf,vf,pci_address,driver,rdma_device,numa_node,mac,vlan,trust,spoof_check,link_state",
    help="What is known of a VF by name; always 1.",
    source="sysfs, IFLA_VFINFO_LIST",
    use="Join on pci_address. link_state enable keeps a VF up when its PF's cable is pulled: the pod will not notice.",
    peers="node_net_vf_info",
)
def vf_info(scene: Scene) -> Iterator[Series]:
    for (pf, index), vf in scene.vfs.items():
        numa = "" if vf.numa_node is None else str(vf.numa_node)
        rdma = vf.rdma.device if vf.rdma is not None else ""
        setup = (scene.text(pf, f"vf_{name}/{index}") for name in _VF_SETUP)
        yield (scene.link_name(pf), str(index), vf.pci_address, vf.driver or "", rdma, numa, *setup), 1


# --- the switch's side --------------------------------------------------------------------------------------


@described(
    "lldp_neighbor_info",
    "device,chassis,port,system,port_description,stale",
    help="The switch port at the other end, as it announces itself; always 1.",
    source="AF_PACKET, EtherType 88cc",
    use="Join on device: faults by leaf. Texts are the switch's, escaped and cut.",
    peers="none of the agents here; lldp exporters vary",
)
def lldp_neighbor_info(scene: Scene) -> Iterator[Series]:
    for one in scene.snapshot.neighbors:
        texts = (one.chassis_id.value, one.port_id.value, one.system_name or "", one.port_description or "")
        yield (one.link, *texts, "true" if one.stale else "false"), 1


@described(
    "lldp_neighbors",
    "device",
    help="Neighbors that a link hears, stale ones not counted.",
    source="AF_PACKET, EtherType 88cc",
    use="1 is right; more: something between node and switch forwards LLDP; 0 under carrier: LLDP is off there.",
)
def lldp_neighbors(scene: Scene) -> Iterator[Series]:
    counts = dict.fromkeys((link.netdev for link in scene.snapshot.links), 0)
    for one in scene.snapshot.neighbors:
        counts[one.link] = counts.get(one.link, 0) + (not one.stale)
    for link, count in counts.items():
        yield (link,), count


@described(
    "lldp_neighbor_expected",
    "device",
    help="0 while the neighbor is another one than the plan has, 1 while it is not.",
    source="the rules: miscabled",
    use="0: alert NodeLinkMiscabled; nodeagent neighbors shows whom it hears.",
)
def lldp_neighbor_expected(scene: Scene) -> Iterator[Series]:
    heard = {one.link for one in scene.snapshot.neighbors if not one.stale}
    for pf in scene.pfs:
        if (name := scene.link_name(pf.pci_address)) in heard:
            yield (name,), not any(reason.key == "miscabled" for reason in pf.health.reasons)


@described(
    "lldp_finding",
    "device,finding",
    help="1 for each thing that LLDP shows to be odd about a link.",
    source="lldp/findings",
    use="frame_size_mismatch, pfc_mismatch, ets_mismatch: set up switch and node alike; nodeagent neighbors says more.",
)
def lldp_finding(scene: Scene) -> Iterator[Series]:
    for link, key in dict.fromkeys((one.link, one.key) for one in scene.snapshot.findings):
        yield (link, key), 1


@described(
    "lldp_neighbor_duplicates",
    "device,neighbor",
    help="1 where a neighbor is heard on several links of this node.",
    source="lldp/findings",
    use="Two cables on one port's name: something forwards LLDP, or a switch is set up twice.",
)
def lldp_neighbor_duplicates(scene: Scene) -> Iterator[Series]:
    live = [one for one in scene.snapshot.neighbors if not one.stale]
    seen: dict[tuple[object, object], list[str]] = {}
    for one in live:
        seen.setdefault((one.chassis_id, one.port_id), []).append(one.link)
    for one in live:
        if len(set(seen[one.chassis_id, one.port_id])) > 1:
            yield (one.link, f"{one.system_name or one.chassis_id.value} {one.port_id.value}"), 1


# --- pods and devices ---------------------------------------------------------------------------------------


@described(
    "device_pod_info",
    "device_id,resource,namespace,pod,container",
    help="Which container holds a device; always 1. Slices of GPU memory are told by their GPU.",
    source="the kubelet's podresources API",
    use="The join side for pods: device_id is a VF's PCI address or a GPU's UUID.",
    peers="sriov_kubepoddevice; pod labels of dcgm-exporter",
)
def device_pod_info(scene: Scene) -> Iterator[Series]:
    for holding, device in _held(scene):
        yield (device, holding.resource, holding.namespace, holding.pod, holding.container), 1


@described(
    "device_pod_devices",
    "device_id,resource,namespace,pod,container",
    help="How many devices a container holds of one parent: slices of a GPU, or 1.",
    source="the kubelet's podresources API",
    use="GPU memory by pod: times nodeagent_resource_device_bytes.",
)
def device_pod_devices(scene: Scene) -> Iterator[Series]:
    for (holding, device), count in _counted(scene).items():
        yield (device, holding.resource, holding.namespace, holding.pod, holding.container), count


def _held(scene: Scene) -> Iterator[tuple[Holding, str]]:
    yield from _counted(scene)


def _counted(scene: Scene) -> dict[tuple[Holding, str], int]:
    counts: dict[tuple[Holding, str], int] = {}
    for holding in scene.snapshot.holdings or ():
        for id_ in holding.device_ids:
            key = (holding, id_.partition("::")[0])
            counts[key] = counts.get(key, 0) + 1
    return counts


@described(
    "link_device_allocatable",
    "device,resource",
    help="Devices of a link that the kubelet may hand out, as far as health goes.",
    source="the agent",
    use="0 when the link's devices are Unhealthy.",
)
def link_device_allocatable(scene: Scene) -> Iterator[Series]:
    for stock in _of_links(scene):
        yield (scene.link_name(stock.parent), stock.resource), stock.allocatable


@described(
    "link_device_free",
    "device,resource",
    help="Devices of a link that are healthy and that no pod holds.",
    source="the agent, and the kubelet's podresources API",
    use="0 on one rail keeps pods from the node that ask for all.",
)
def link_device_free(scene: Scene) -> Iterator[Series]:
    for stock in _of_links(scene):
        if stock.free is not None:
            yield (scene.link_name(stock.parent), stock.resource), stock.free


@described(
    "gpu_device_allocatable",
    "gpu,resource",
    help="Slices of a GPU (or the GPU) that the kubelet may hand out, as far as health goes.",
    source="the agent",
    use="0 when the GPU is Unhealthy.",
)
def gpu_device_allocatable(scene: Scene) -> Iterator[Series]:
    for stock in _of_gpus(scene):
        yield (scene.gpu_name(stock.parent), stock.resource), stock.allocatable


@described(
    "gpu_device_free",
    "gpu,resource",
    help="Slices of a GPU (or the GPU) that are healthy and that no pod holds: the largest request that it can serve.",
    source="the agent, and the kubelet's podresources API",
    use="All slices of a container lie on one GPU: the sum over GPUs is not what a pod can ask for.",
)
def gpu_device_free(scene: Scene) -> Iterator[Series]:
    for stock in _of_gpus(scene):
        if stock.free is not None:
            yield (scene.gpu_name(stock.parent), stock.resource), stock.free


@described(
    "resource_largest_free_block",
    "resource",
    help="The most devices that one GPU or one link of the node can still give to one container.",
    source="the agent, and the kubelet's podresources API",
    use="Pods that ask for more are refused here although the scheduler sees enough: fragmentation.",
)
def resource_largest_free_block(scene: Scene) -> Iterator[Series]:
    largest: dict[str, int] = {}
    for stock in scene.stock:
        if stock.free is not None:
            largest[stock.resource] = max(largest.get(stock.resource, 0), stock.free)
    for resource, count in largest.items():
        yield (resource,), count


@described(
    "resource_device_bytes",
    "resource",
    help="Memory that one device of the resource stands for; absent where it is no memory.",
    source="the configuration",
    use="Turns slices into bytes.",
)
def resource_device_bytes(scene: Scene) -> Iterator[Series]:
    for resource, size in {one.resource: one.each_bytes for one in scene.stock}.items():
        if size is not None:
            yield (resource,), size


def _of_gpus(scene: Scene) -> Iterator[Stock]:
    return (one for one in scene.stock if one.parent in scene.gpus)


def _of_links(scene: Scene) -> Iterator[Stock]:
    return (one for one in scene.stock if one.parent not in scene.gpus)
