"""Settings of the resources: which PFs, VFs and GPUs are offered, under which names, and which VFs are created."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from nodeagent.config.setting import (
    RATE_MAX,
    Count,
    DriverName,
    Glob,
    GpuTemplate,
    Hex4,
    IndexRange,
    LinkType,
    MigTemplate,
    Model,
    Name,
    NetdevGlob,
    PciAddress,
    Rate,
    Settings,
    Uuid,
    VfTemplate,
    listed,
    setting,
)
from nodeagent.kinds.enforcement import Enforcement

Mtu = Annotated[int, msgspec.Meta(ge=68, le=65535)]
_Strategy = Literal["cdi", "envvar"]
Preferred = Literal["pack", "spread", "nic-affinity"]
Program = Literal["vllm", "ucx", "nvshmem", "nccl"]
Mode = Literal["devicePlugin", "dra"]
NO_MODE = {"mode": "kinds gpu-mem, vf, nic, rdma and mig have it; device plugins alone offer whole GPUs"}
OTHER_GPUS = "let the two resources select different GPUs"
OF_SRIOVDP = {
    "rootDevices": "here it is pciAddresses, of the PFs",
    "pfNames": 'here it is netdevs, and ens1f0#0-3 is netdevs: [ens1f0] with vfIndexes: ["0-3"]',
    "isRdma": "here it is vfDriver: rdma, beside select",
    "needVhostNet": "here it is vhostNet, beside select",
    "vdpaType": "leave it out: a VF's vDPA device is passed on if it exists",
    "acpiIndexes": "nodeagent selects by pciAddresses or netdevs instead",
    "ddpProfiles": "nodeagent does not select by it",
    "pKeys": "nodeagent does not select by it",
    "auxTypes": "nodeagent offers VFs, and no auxiliary devices",
}
"""Selectors of sriov-network-device-plugin (pkg/types/types.go)."""
SELECTORS = {
    "resourceName": "here it is name; the part before the slash is resourcePrefix, beside resources",
    "resourcePrefix": "it is a setting of the file, beside resources: all resources have one prefix",
    "selectors": "here it is select",
    "deviceType": "here it is kind",
    "additionalInfo": "nodeagent has no such setting: set variables in the pod",
    "excludeTopology": "nodeagent has no such setting: it reports the NUMA node if the kernel has one",
}
"""Settings of a resource of sriov-network-device-plugin (pkg/types/types.go)."""
SHARES_MAX = 1000
"""More than pods of a node: 110 by the kubelet's default, 500 at most in practice."""
NAME_GPUS = (
    'must name the GPUs by uuids, indexes, pciAddresses or models; pciAddresses: ["*"] names all of them'
)
NAME_PFS = 'must name some PFs; pciAddresses: ["*"] names all of them'


class PfSelect(Settings, frozen=True, kw_only=True):
    """Which PFs are selected: PFs that match every list that is not empty."""

    misplaced: ClassVar[Mapping[str, str]] = OF_SRIOVDP

    vendors: Annotated[tuple[Hex4, ...], listed("PCI vendor IDs, four hex digits: 15b3.")] = ()
    devices: Annotated[tuple[Hex4, ...], listed("PCI device IDs of the PF, four hex digits: 1021.")] = ()
    drivers: Annotated[tuple[Glob, ...], listed("Globs on the name of the PF's driver: mlx5_core.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PF's PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    netdevs: Annotated[tuple[NetdevGlob, ...], listed("Globs on the name of the PF's netdev: ens*np0.")] = ()
    link_types: Annotated[tuple[LinkType, ...], listed("Link types of the PF.")] = ()
    exclude: Annotated[
        tuple[Glob, ...], listed("Globs on the netdev's name or the PCI address of PFs to leave out.")
    ] = ()


class NicSelect(PfSelect, frozen=True, kw_only=True):
    """Which NICs are offered as a whole: those that match, have no VFs, and that the host does not need."""

    misplaced: ClassVar[Mapping[str, str]] = OF_SRIOVDP | {
        "vfIndexes": "kind nic offers NICs as a whole; VFs are kind vf",
        "defaultRoute": "the NIC with the default route is never offered as a whole",
    }

    min_speed_mbps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)],
        setting("Minimum speed of the PF's link in Mbit/s; 0 is no minimum. A link that is down matches."),
    ] = 0
    rdma: Annotated[
        bool | None, setting("true: only PFs with an RDMA device; false: only PFs without one; null: both.")
    ] = None

    @property
    def over_bonds(self) -> bool:
        """Whether PFs match that carry the default route as ports of a bond."""
        return False

    @property
    def over_route(self) -> bool:
        """Whether PFs match that carry the default route."""
        return False


class VfSelect(NicSelect, frozen=True, kw_only=True):
    """Which VFs are offered: the VFs of all PFs that match. A PF with the default route matches by ``default_route``
    alone, and is never offered itself."""

    misplaced: ClassVar[Mapping[str, str]] = OF_SRIOVDP

    default_route: Annotated[
        Literal["never", "bond"],
        setting(
            "PFs with the host's default route. never: their VFs are not offered. bond: those of PFs that are ports of "
            "a bond are, for nodes whose NICs are all in it; the host keeps the PFs and the bond."
        ),
    ] = "never"
    vf_indexes: Annotated[
        tuple[IndexRange, ...],
        listed('VFs of each PF, as indexes and ranges: ["0-3", "7"]; empty: all VFs.'),
    ] = ()

    @property
    def over_bonds(self) -> bool:
        return self.default_route == "bond"


class HcaSelect(PfSelect, frozen=True, kw_only=True):
    """Which HCAs are shared: all PFs with an RDMA device that match. The host keeps them."""

    misplaced: ClassVar[Mapping[str, str]] = OF_SRIOVDP | {
        "ifNames": "here it is netdevs",
        "deviceIDs": "here it is devices",
        "rdma": "leave it out: each HCA has an RDMA device",
        "vfIndexes": "shares are of PFs; kind vf offers VFs",
    }

    min_speed_mbps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)],
        setting("Minimum speed of the PF's link in Mbit/s; 0 is no minimum. A link that is down matches."),
    ] = 0
    default_route: Annotated[
        Literal["never", "bond", "always"],
        setting(
            "PFs with the host's default route. never: they are not shared. bond: those that are ports of a bond are. "
            "always: they are, for nodes with one NIC."
        ),
    ] = "never"

    @property
    def rdma(self) -> bool:
        """An HCA has an RDMA device."""
        return True

    @property
    def over_bonds(self) -> bool:
        return self.default_route == "bond"

    @property
    def over_route(self) -> bool:
        return self.default_route == "always"


class GpuSelect(Settings, frozen=True, kw_only=True):
    """Which GPUs are selected: GPUs that match every list that is not empty."""

    uuids: Annotated[tuple[Uuid, ...], listed("UUIDs as `nvidia-smi -L` prints them.")] = ()
    indexes: Annotated[
        tuple[IndexRange, ...], listed('Indexes and ranges in the driver\'s order: ["0-3", "7"].')
    ] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the GPU's PCI address in the long form: 0000:1b:00.0.")
    ] = ()
    models: Annotated[tuple[Model, ...], listed("Globs on the product name: *H100*.")] = ()


class ResourceEntry(Settings, frozen=True, kw_only=True):
    """An entry of any kind, which has a name and a selection too."""

    source: ClassVar[str]
    """The source of the facts: ``pci``, ``gpus``."""
    pool: ClassVar[str]
    """The pool of its devices for claims: ``gpu``, ``mig``, ``nic``."""
    apart: ClassVar[str]
    """How to mend two entries that select one device."""
    may_be_empty: ClassVar[bool] = False
    """Whether its devices come while the agent runs."""

    @property
    def vf_devices(self) -> bool:
        """Whether each VF is a device for claims."""
        return False

    @property
    def whole(self) -> bool:
        """Whether its devices are NICs as a whole."""
        return False

    @property
    def by_claim(self) -> bool:
        """Whether claims allocate its devices; otherwise the kubelet does."""
        return False


class VfResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="vf"):
    """SR-IOV VFs. A device's ID is the PCI address of the VF."""

    misplaced: ClassVar[Mapping[str, str]] = SELECTORS | {
        "vfIndexes": "it is a list of select",
        "needVhostNet": "here it is vhostNet",
        **dict.fromkeys(
            ("vendors", "devices", "drivers", "pciAddresses", "netdevs", "rdma", "linkTypes"),
            "it is a list of select",
        ),
    }

    source: ClassVar[str] = "pci"
    pool: ClassVar[str] = "nic"

    apart: ClassVar[str] = "separate the two resources by select, vfIndexes or vfDriver"

    name: Annotated[
        VfTemplate,
        setting(
            "Name of the resource. {rail} is the number of the PF among the selected PFs, in PCI order (or in "
            "the order of pciAddresses if none of these is a glob), which it keeps over restarts; {netdev} is the "
            "name of the PF's netdev. "
            "Either field makes one resource for each PF. Without a field, one resource holds the VFs of all "
            "selected PFs."
        ),
    ] = "nic{rail}"
    select: Annotated[VfSelect, setting("Which VFs; without any list, the VFs of all PFs.")] = VfSelect()
    mode: Annotated[
        Mode,
        setting(
            "How pods get the VFs. devicePlugin: as counted devices of the kubelet. dra: by Dynamic Resource "
            "Allocation (Kubernetes 1.36 or newer): the scheduler chooses the PF, and the agent one of its VFs. All "
            "entries of kind vf have one mode, and a PF is in one entry alone."
        ),
    ] = "devicePlugin"
    vf_devices: Annotated[
        bool,
        setting(
            "With mode dra: one device for each VF, with the attributes by which Multus finds the VF of a claim. "
            "false: one device for each PF, which the scheduler allocates much faster to pods with several VFs "
            "(docs/dra.md)."
        ),
    ] = False
    tell: Annotated[
        tuple[Program, ...],
        listed(
            "Programs that learn from variables which NIC belongs to which GPU. vllm: VLLM_GPU_NIC_PCIE_MAPPING and "
            "VLLM_NIC_SELECTION_VARS; ucx: UCX_NET_DEVICES; nvshmem: NVSHMEM_HCA_LIST; nccl: NCCL_IB_HCA, with rails "
            "and planes. With mode dra the containers of a claim have the variables; leave them out of the image and "
            "the pod. With device plugins a shell of the container reads them: . /var/run/nodeagent.io/tell.sh "
            "(docs/rails.md)."
        ),
    ] = ()
    nccl_ib_hca: Annotated[
        bool, setting("The former name of tell: [nccl]; true adds nccl to tell. Write tell in new files.")
    ] = False
    vf_driver: Annotated[
        Literal["any", "netdevice", "vfio-pci", "rdma"],
        setting(
            "Which VFs count: netdevice: bound to a network driver; vfio-pci: bound to vfio-pci; rdma: with "
            "an RDMA device; any: all of them."
        ),
    ] = "any"
    preferred: Annotated[
        Literal["spread", "pack"],
        setting(
            "Which VFs a pod gets where several PFs share the resource. spread: from as many PFs as possible, "
            "for bandwidth; pack: from as few as possible."
        ),
    ] = "spread"
    device_list_strategy: Annotated[
        Literal["nodes", "cdi"],
        setting(
            "How the container gets the RDMA, vfio or vdpa device nodes of the VF. nodes: from the kubelet; "
            "cdi: from the container runtime, by a CDI spec of the agent."
        ),
    ] = "nodes"
    vhost_net: Annotated[
        bool,
        setting(
            "true: containers get /dev/vhost-net and /dev/net/tun of the host too, for a virtio-user port of DPDK. "
            "Where the host lacks one of them (module vhost_net), no container with a VF of this resource starts."
        ),
    ] = False

    @property
    def told(self) -> tuple[Program, ...]:
        """The programs that are told, also by the former name of one of them."""
        return (*self.tell, "nccl") if self.nccl_ib_hca and "nccl" not in self.tell else self.tell

    @property
    def by_claim(self) -> bool:
        return self.mode == "dra"


class NicResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="nic"):
    """NICs as a whole: PFs without VFs, and functions that a guest got from its host. A device's ID is the PCI address
    of the NIC."""

    misplaced: ClassVar[Mapping[str, str]] = SELECTORS | {
        "vfDriver": "here it is driver; VFs are kind vf",
        "vfDevices": "leave it out: a NIC as a whole is one device",
        "vfIndexes": "kind nic offers NICs as a whole; VFs are kind vf",
        "needVhostNet": "here it is vhostNet",
        **dict.fromkeys(
            ("vendors", "devices", "drivers", "pciAddresses", "netdevs", "rdma", "linkTypes"),
            "it is a list of select",
        ),
    }

    source: ClassVar[str] = "pci"
    pool: ClassVar[str] = "nic"
    apart: ClassVar[str] = "separate the two resources by select or driver"

    name: Annotated[
        VfTemplate,
        setting(
            "As for vf: {rail} or {netdev} makes one resource for each NIC. An entry of kind vf with the same select "
            "shares the numbers of the rails."
        ),
    ] = "nic{rail}"
    select: Annotated[
        NicSelect,
        setting(
            "Which NICs; without any list, all of them. A NIC with VFs, with VFs under vfs, with the default route, or "
            "with an address of the Node is never offered."
        ),
    ] = NicSelect()
    mode: Annotated[Mode, setting("As for vf. All entries of kind nic have one mode.")] = "devicePlugin"
    tell: Annotated[tuple[Program, ...], listed("As for vf.")] = ()
    driver: Annotated[
        Literal["any", "netdevice", "vfio-pci", "rdma"],
        setting("Which NICs count, as vfDriver of vf: by their driver, or by their RDMA device."),
    ] = "any"
    preferred: Annotated[
        Literal["spread", "pack"], setting("As for vf, where several NICs share the resource.")
    ] = "spread"
    device_list_strategy: Annotated[Literal["nodes", "cdi"], setting("As for vf.")] = "nodes"
    vhost_net: Annotated[bool, setting("As for vf.")] = False

    @property
    def whole(self) -> bool:
        return True

    @property
    def vf_driver(self) -> Literal["any", "netdevice", "vfio-pci", "rdma"]:
        """``driver``, by the name that it has for VFs."""
        return self.driver

    @property
    def told(self) -> tuple[Program, ...]:
        return self.tell

    @property
    def by_claim(self) -> bool:
        return self.mode == "dra"


class RdmaResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="rdma"):
    """Shares of HCAs: many containers have the RDMA device of a PF at once. A device's ID is the PCI address of the PF
    with the number of the share."""

    misplaced: ClassVar[Mapping[str, str]] = SELECTORS | {
        "rdmaHcaMax": "here it is shares",
        "vfIndexes": "shares are of PFs; kind vf offers VFs",
        "vfDriver": "shares are of PFs; kind vf offers VFs",
        "ifNames": "here it is netdevs, a list of select",
        "deviceIDs": "here it is devices, a list of select",
        **dict.fromkeys(
            ("vendors", "devices", "drivers", "pciAddresses", "netdevs", "linkTypes"),
            "it is a list of select",
        ),
    }

    source: ClassVar[str] = "pci"
    pool: ClassVar[str] = "nic"
    apart: ClassVar[str] = "let one resource alone have its shares, and no other one the whole NIC"
    device_list_strategy: ClassVar[Literal["nodes"]] = "nodes"
    vf_driver: ClassVar[Literal["rdma"]] = "rdma"

    name: Annotated[
        VfTemplate,
        setting(
            "Name of the resource. {rail} and {netdev} as for vf: either makes one resource for each HCA. Without a "
            "field, one resource holds the shares of all selected HCAs."
        ),
    ] = "rdma{rail}"
    select: Annotated[HcaSelect, setting("Which HCAs; without any list, all PFs with an RDMA device.")] = (
        HcaSelect()
    )
    shares: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=SHARES_MAX)],
        setting(
            "Number of shares of each HCA: the most containers that have its RDMA device at once. A share limits "
            "nothing else: the containers compete for the bandwidth and the resources of the HCA."
        ),
    ] = 64
    mode: Annotated[
        Mode,
        setting(
            "How pods get the shares. devicePlugin: as counted devices of the kubelet. dra: by claims (Kubernetes 1.36 "
            "or newer), each HCA a device with the capacity shares. All entries of kind rdma have one mode."
        ),
    ] = "devicePlugin"
    umad: Annotated[
        bool,
        setting(
            "true: containers get the device nodes umad and issm of the HCA too. With those of a PF a program may send "
            "management packets into the whole InfiniBand fabric, and act as its subnet manager; verbs and the RDMA "
            "connection manager need neither."
        ),
    ] = False

    @property
    def by_claim(self) -> bool:
        return self.mode == "dra"


class GpuMemResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="gpu-mem"):
    """Slices of GPU memory. All slices of a container are on one GPU, and those of several resources on several."""

    source: ClassVar[str] = "gpus"
    pool: ClassVar[str] = "gpu"
    apart: ClassVar[str] = OTHER_GPUS

    name: Annotated[
        GpuTemplate,
        setting(
            "Name of the resource. {gpu} is the driver's index of the GPU, and makes one resource for each GPU: "
            "gpu-mem{gpu}. The scheduler then counts each GPU, so no pod is refused for fragmentation; the pod names "
            "its GPU. Without the field, one resource holds the slices of all selected GPUs."
        ),
    ] = "gpu-mem"
    mode: Annotated[
        Mode,
        setting(
            "How pods get the memory. devicePlugin: as slices that the kubelet counts. dra: by Dynamic Resource "
            "Allocation (Kubernetes 1.36 or newer): a claim names the memory, and the scheduler chooses the GPU. All "
            "entries of kind gpu-mem have one mode; dra needs deviceListStrategy cdi."
        ),
    ] = "devicePlugin"
    slice_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**30)],
        setting(
            "Size of one slice in MiB. A GPU offers as many slices as fit into its memory less reservedMiB. The "
            "status of a pod grows by 85 bytes for each slice (Kubernetes 1.36), and etcd accepts some 17,000 in one "
            "pod: 64 MiB or more suits eight GPUs of 80 GB."
        ),
    ] = 1024
    reserved_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**30)],
        setting(
            "Memory of each GPU in MiB that is not offered. The default leaves room for the driver and for "
            "CUDA contexts."
        ),
    ] = 512
    select: Annotated[GpuSelect, setting("Which GPUs; without any list, all GPUs.")] = GpuSelect()
    preferred: Annotated[
        Preferred,
        setting(
            "Which GPU a container gets where several share the resource. pack: the GPU with the smallest remainder, "
            "which keeps large blocks free; spread: the one with the most free slices, for bandwidth and load; "
            "nic-affinity: the one nearest to the container's NICs, then as pack. The kubelet allocates the resources "
            "of a container in random order, so the NICs count only if they come first."
        ),
    ] = "pack"
    device_list_strategy: Annotated[
        _Strategy,
        setting(
            "How the container gets its GPU. cdi: the container runtime gets the GPU's CDI name (containerd "
            "1.7 with CDI enabled, containerd 2, CRI-O). No RuntimeClass is needed, and a runtime without CDI "
            "refuses to start the container. envvar: the agent sets NVIDIA_VISIBLE_DEVICES, which only the "
            "nvidia runtime reads; under another runtime the pod starts without a GPU."
        ),
    ] = "cdi"
    pass_device_nodes: Annotated[
        bool,
        setting(
            "Pass the device nodes to the kubelet too. The container then keeps its GPU when systemd reloads "
            "or the CPU manager updates the cgroup."
        ),
    ] = False
    volcano: Annotated[
        bool,
        setting(
            "true: Volcano's plugin deviceshare places the pods by GPU. The resources are volcano.sh/vgpu-number, "
            "volcano.sh/vgpu-memory (in slices) and volcano.sh/vgpu-cores, whatever name is set. It needs an API "
            "server and rights of its own (daemonset/components/volcano-deviceshare)."
        ),
    ] = False
    enforcement: Annotated[
        Enforcement,
        setting(
            "What keeps a program within its share. none: nothing. env: the container gets NVIDIA_GPU_MEMORY_REQUEST "
            "and NVIDIA_GPU_MEMORY_LIMIT, of which NVIDIA's container toolkit 1.20.1 makes a hard limit; needs driver "
            "615 and cgroup v2. nvml-limits: the agent sets the hard limit of each container through the driver; needs "
            "the same and components/gpu-memory-limits. mps: an MPS daemon of each GPU limits its clients, which "
            "cooperate; needs `nodeagent mps` (components/gpu-mps). evict: a pod that exceeds its share for "
            "gpu.accounting.evictSeconds is evicted, and the variables are set where env is possible; needs "
            "gpu.health.processes with hostPID, and the right to evict. auto: nvml-limits once the driver has kept "
            "a limit, else the first of env and none that the node supports. The agent refuses a level that its node "
            "lacks."
        ),
    ] = "auto"

    @property
    def by_claim(self) -> bool:
        return self.mode == "dra"


class GpuResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """Whole GPUs. A GPU offered here must not be offered in slices."""

    misplaced: ClassVar[Mapping[str, str]] = NO_MODE
    source: ClassVar[str] = "gpus"
    pool: ClassVar[str] = "gpu"
    apart: ClassVar[str] = OTHER_GPUS

    name: Annotated[Name, setting("Name of the resource.")] = "gpu"
    select: Annotated[
        GpuSelect,
        setting(
            'Which GPUs; at least one list is required. pciAddresses: ["*"] selects all GPUs.',
            missing=NAME_GPUS,
            extra_json_schema={"minProperties": 1},
        ),
    ]
    device_list_strategy: Annotated[_Strategy, setting("As for gpu-mem.")] = "cdi"
    pass_device_nodes: Annotated[bool, setting("As for gpu-mem.")] = False


class MigResource(ResourceEntry, frozen=True, kw_only=True, tag_field="kind", tag="mig"):
    """MIG devices of the GPUs in MIG mode. They are found while the agent runs, or made for claims. Slices and whole
    GPUs leave these GPUs out."""

    source: ClassVar[str] = "gpus"
    pool: ClassVar[str] = "mig"
    apart: ClassVar[str] = OTHER_GPUS
    may_be_empty: ClassVar[bool] = True

    name: Annotated[
        MigTemplate,
        setting(
            "Name of the resources, one for each profile. {profile} is the driver's name of the profile, with . in "
            "place of +: mig-1g.10gb, mig-1g.10gb.me."
        ),
    ] = "mig-{profile}"
    mode: Annotated[
        Mode,
        setting(
            "How pods get MIG devices. devicePlugin: those that are there, as counted devices of the kubelet. dra: by "
            "Dynamic Resource Allocation (Kubernetes 1.36 or newer): a claim names the profile, the scheduler chooses "
            "the place, and the agent makes the device and removes it when the claim ends. It needs "
            "components/mig-claims. All entries of kind mig have one mode, and dra needs deviceListStrategy cdi. The "
            "agent never switches MIG mode."
        ),
    ] = "devicePlugin"
    select: Annotated[GpuSelect, setting("Which GPUs; without any list, all GPUs.")] = GpuSelect()
    device_list_strategy: Annotated[_Strategy, setting("As for gpu-mem.")] = "cdi"
    pass_device_nodes: Annotated[bool, setting("As for gpu-mem.")] = False

    @property
    def by_claim(self) -> bool:
        return self.mode == "dra"


class ExpectSettings(Settings, frozen=True, kw_only=True):
    """The devices that a node must offer for its agent to be ready. Without a number, it must offer some of the
    hardware that it has."""

    gpus: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        setting(
            "Fewest GPUs that the resources must offer, lost ones not counted; with fewer the agent is not ready. "
            "null: it is not ready only if the PCI bus has GPUs and the driver names none."
        ),
    ] = None
    nics: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        setting(
            "Fewest NICs that the resources must offer, whole or in VFs, missing ones not counted; with fewer the "
            "agent is not ready. null: it is not ready only if PFs that a resource selects can have VFs and none is "
            "offered."
        ),
    ] = None


FunctionResource = VfResource | NicResource
"""The entries whose devices are network functions, each for one container."""
NetworkResource = FunctionResource | RdmaResource
"""The entries of NICs, which have rails."""
ResourceSettings = VfResource | NicResource | RdmaResource | GpuMemResource | GpuResource | MigResource


class OfferSettings(Settings, frozen=True, kw_only=True):
    """Settings of all entries of ``resources`` that do not say it themselves. A fragment of the configuration cannot
    add to a list, so a feature that concerns all entries sets it here."""

    mode: Annotated[
        Mode | None, setting("`mode` of the entries of kind vf, nic, rdma and gpu-mem; null: devicePlugin.")
    ] = None
    enforcement: Annotated[
        Enforcement | None, setting("`enforcement` of the entries of kind gpu-mem; null: auto.")
    ] = None
    volcano: Annotated[bool | None, setting("`volcano` of the entries of kind gpu-mem; null: false.")] = None
    mig: Annotated[
        Mode | None,
        setting(
            "Also offer MIG devices: adds the entry of kind mig with this mode where `resources` has entries and none "
            "of this kind; the mode of those that have none otherwise. null: adds none."
        ),
    ] = None

    def complete(self, entries: list[Any]) -> None:
        """Add these settings to the entries of a file, as builtins; what is no mapping stays."""
        known = [entry for entry in entries if isinstance(entry, dict)]
        if self.mig is not None and known and not any(entry["kind"] == "mig" for entry in known):
            known.append({"kind": "mig"})
            entries.append(known[-1])
        own: dict[str, dict[str, Any]] = {
            "vf": {"mode": self.mode},
            "nic": {"mode": self.mode},
            "rdma": {"mode": self.mode},
            "gpu-mem": {"mode": self.mode, "enforcement": self.enforcement, "volcano": self.volcano},
            "mig": {"mode": self.mig},
        }
        for entry in known:
            for key, value in own.get(entry["kind"], {}).items():
                if value is not None:
                    entry.setdefault(key, value)


def network_entries(resources: Iterable[ResourceSettings]) -> tuple[NetworkResource, ...]:
    """Return the entries of NICs, which have rails."""
    return tuple(entry for entry in resources if isinstance(entry, NetworkResource))


def attached_shares(resources: Iterable[ResourceSettings]) -> int:
    """Return the most shares of an HCA that a netdev in the pod may follow: by name, and not of InfiniBand alone."""
    return max(
        (
            entry.shares
            for entry in resources
            if isinstance(entry, RdmaResource)
            and not entry.by_claim
            and set(entry.select.link_types) != {"infiniband"}
        ),
        default=0,
    )


def vf_entries(resources: Iterable[ResourceSettings]) -> tuple[VfResource, ...]:
    """Return the entries of VFs."""
    return tuple(entry for entry in resources if isinstance(entry, VfResource))


def hca_entries(resources: Iterable[ResourceSettings]) -> tuple[RdmaResource, ...]:
    """Return the entries of shares of HCAs."""
    return tuple(entry for entry in resources if isinstance(entry, RdmaResource))


def memory_entries(resources: Iterable[ResourceSettings]) -> tuple[GpuMemResource, ...]:
    """Return the entries of GPU memory, which has slices and a level of enforcement."""
    return tuple(entry for entry in resources if isinstance(entry, GpuMemResource))


def mig_entries(resources: Iterable[ResourceSettings]) -> tuple[MigResource, ...]:
    """Return the entries of MIG devices, which need GPUs in MIG mode."""
    return tuple(entry for entry in resources if isinstance(entry, MigResource))


class VfsEntry(Settings, frozen=True, kw_only=True):
    """VFs that `nodeagent vfs apply` creates and configures. null leaves a value as it is."""

    select: Annotated[
        PfSelect,
        setting(
            'Which PFs; at least one list is required. pciAddresses: ["*"] selects all PFs.',
            missing=NAME_PFS,
            extra_json_schema={"minProperties": 1},
        ),
    ]
    count: Annotated[Count, setting("Number of VFs of each PF; 0 removes them.")]
    mtu: Annotated[Mtu | None, setting("MTU of the PF in bytes.")] = None
    driver: Annotated[DriverName | None, setting("Driver to bind the VFs to: vfio-pci, mlx5_core.")] = None
    trust: Annotated[
        bool | None, setting("true: the VF may change its MAC address and enter promiscuous mode.")
    ] = None
    spoof_check: Annotated[
        bool | None, setting("true: drop frames of the VF with another source MAC address.")
    ] = None
    link_state: Annotated[
        Literal["auto", "enable", "disable"] | None,
        setting("Link state of the VF. auto: as the PF's; enable: always up; disable: always down."),
    ] = None
    guid: Annotated[
        Literal["auto"] | None,
        setting(
            "auto: give each InfiniBand VF without a GUID one for its node and its port, made from the GUID of the PF "
            "and the index of the VF, and the link state auto if linkState is null; then bind its driver again. "
            "mlx5's VFs have neither, and reach no peer without."
        ),
    ] = None
    min_tx_rate_mbps: Annotated[
        Rate | None, setting("Guaranteed send rate of each VF in Mbit/s; 0: none.")
    ] = None
    max_tx_rate_mbps: Annotated[
        Rate | None, setting("Maximum send rate of each VF in Mbit/s; 0: no limit.")
    ] = None
    vf_indexes: Annotated[
        tuple[IndexRange, ...],
        listed('VFs that the settings from driver on apply to: ["0-3", "7"]; empty: all VFs.'),
    ] = ()


EXAMPLE_GPU = (
    "Whole GPUs. The select of gpu-mem must leave these GPUs out:",
    GpuResource(select=GpuSelect(indexes=("0", "1"))),
)
EXAMPLE_VFS = (
    "Eight VFs on each Mellanox PF:",
    VfsEntry(select=PfSelect(vendors=("15b3",), drivers=("mlx5_core",)), count=8),
)
