"""Settings of the resources: which PFs, VFs and GPUs are offered, under which names, and which VFs are created."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nodeagent.config.setting import (
    RATE_MAX,
    Count,
    Driver,
    Glob,
    Hex4,
    IndexRange,
    LinkType,
    Model,
    Name,
    PciAddress,
    Rate,
    Settings,
    Template,
    Uuid,
    listed,
    setting,
)

Mtu = Annotated[int, msgspec.Meta(ge=68, le=65535)]
Strategy = Literal["cdi", "envvar"]


class PfSelect(Settings, frozen=True, kw_only=True):
    """Which PFs are meant: those that match all the lists given; an empty list asks for nothing."""

    vendors: Annotated[tuple[Hex4, ...], listed("PCI vendor IDs, four hex digits: 15b3.")] = ()
    devices: Annotated[tuple[Hex4, ...], listed("PCI device IDs of the PF, four hex digits: 1021.")] = ()
    drivers: Annotated[tuple[Glob, ...], listed("Globs on the PF's driver: mlx5_core.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PF's PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the name of the PF's netdev: ens*np0.")] = ()
    exclude: Annotated[
        tuple[Glob, ...], listed("Globs on the netdev or the PCI address of PFs to leave out.")
    ] = ()


class VfSelect(PfSelect, frozen=True, kw_only=True):
    """Which VFs are offered: those of the PFs that match. A PF with the default route never does."""

    link_types: Annotated[tuple[LinkType, ...], listed("The PF's link types.")] = ()
    min_speed_mbps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)],
        setting("The least speed of the PF's link; 0 asks for none."),
    ] = 0
    rdma: Annotated[
        bool | None, setting("true: only PFs with an RDMA device; false: only those without; null: both.")
    ] = None
    vf_indexes: Annotated[
        tuple[IndexRange, ...],
        listed('The VFs of each PF, as indexes and ranges: ["0-3", "7"]; empty is all.'),
    ] = ()


class GpuSelect(Settings, frozen=True, kw_only=True):
    """Which GPUs are meant: those that match all the lists given; an empty list asks for nothing."""

    uuids: Annotated[tuple[Uuid, ...], listed("UUIDs as `nvidia-smi -L` prints them.")] = ()
    indexes: Annotated[
        tuple[IndexRange, ...], listed('Indexes and ranges in the driver\'s order: ["0-3", "7"].')
    ] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1b:00.0.")
    ] = ()
    models: Annotated[tuple[Model, ...], listed("Globs on the product name: *H100*.")] = ()


class VfResource(Settings, frozen=True, kw_only=True, tag_field="kind", tag="vf"):
    """SR-IOV VFs; a device's ID is the VF's PCI address."""

    name: Annotated[
        Template,
        setting(
            "The resource's name. {rail} stands for the place of the PF among those selected, in PCI order "
            "(or in the order of pciAddresses where these are all literal), {netdev} for the name of its "
            "netdev: one resource per PF. Without a field, one resource holds the VFs of all selected PFs."
        ),
    ] = "nic{rail}"
    select: Annotated[VfSelect, setting("Which VFs; everything empty selects the VFs of all PFs.")] = (
        VfSelect()
    )
    vf_driver: Annotated[
        Literal["any", "netdevice", "vfio-pci", "rdma"],
        setting(
            "What a VF must be to be offered: bound to a network driver, bound to vfio-pci, or with an RDMA "
            "device; any takes whatever it is."
        ),
    ] = "any"
    preferred: Annotated[
        Literal["spread", "pack"],
        setting("Which VFs a pod gets where several PFs share a resource: of many PFs, or of few."),
    ] = "spread"
    device_list_strategy: Annotated[
        Literal["nodes", "cdi"],
        setting(
            "How the container gets the VF's RDMA, vfio or vdpa nodes: nodes by the kubelet; cdi by the container "
            "runtime, from a spec that the agent writes."
        ),
    ] = "nodes"


class GpuMemResource(Settings, frozen=True, kw_only=True, tag_field="kind", tag="gpu-mem"):
    """Slices of GPU memory; the slices of a container are always on one GPU."""

    name: Annotated[Name, setting("The resource's name.")] = "gpu-mem"
    slice_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**30)],
        setting("The size of one slice. A GPU offers as many as its memory less reservedMiB holds."),
    ] = 1024
    reserved_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**30)],
        setting("Memory of each GPU that is kept back for the driver and the CUDA contexts."),
    ] = 512
    select: Annotated[GpuSelect, setting("Which GPUs; everything empty selects all of them.")] = GpuSelect()
    device_list_strategy: Annotated[
        Strategy,
        setting(
            "How the container gets its GPU. cdi names it to the container runtime (containerd 1.7 with CDI "
            "switched on, containerd 2, CRI-O): no RuntimeClass is needed, and where it cannot work the "
            "container does not start and says why. envvar sets NVIDIA_VISIBLE_DEVICES, which only the "
            "nvidia runtime reads: a pod under another runtime starts without a GPU."
        ),
    ] = "cdi"
    pass_device_nodes: Annotated[
        bool,
        setting(
            "Give the kubelet the device nodes too, so that a reload of systemd or the CPU manager does not "
            "take the GPU from a running container."
        ),
    ] = False
    memory_limits: Annotated[
        bool,
        setting(
            "Tell the container its share in NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT, of which NVIDIA's "
            "container toolkit 1.20.1 makes a hard limit (driver 615, cgroup v2); older ones take no notice. false "
            "where such a toolkit meets a host that cannot, for it then refuses the container."
        ),
    ] = True


class GpuResource(Settings, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """Whole GPUs; a GPU that is offered here must not be offered in slices."""

    name: Annotated[Name, setting("The resource's name.")] = "gpu"
    select: Annotated[
        GpuSelect,
        setting("Which GPUs; it must name some.", extra_json_schema={"minProperties": 1}),
    ]
    device_list_strategy: Annotated[Strategy, setting("As for gpu-mem.")] = "cdi"
    pass_device_nodes: Annotated[bool, setting("As for gpu-mem.")] = False


ResourceSettings = VfResource | GpuMemResource | GpuResource


class VfsEntry(Settings, frozen=True, kw_only=True):
    """VFs that `nodeagent vfs apply` creates and sets up. null leaves a setting as it is found."""

    select: Annotated[
        PfSelect,
        setting(
            'On which PFs; it must name some, and pciAddresses: ["*"] names all.',
            extra_json_schema={"minProperties": 1},
        ),
    ]
    count: Annotated[Count, setting("How many VFs each PF has; 0 removes them.")]
    mtu: Annotated[Mtu | None, setting("The MTU of the PF.")] = None
    driver: Annotated[
        Driver | None, setting("The driver that the VFs are bound to: vfio-pci, mlx5_core.")
    ] = None
    trust: Annotated[bool | None, setting("May the VF change its MAC address and be promiscuous?")] = None
    spoof_check: Annotated[bool | None, setting("Drop what the VF sends from another MAC address?")] = None
    link_state: Annotated[
        Literal["auto", "enable", "disable"] | None,
        setting("The VF's link: as the PF's, always up, or always down."),
    ] = None
    min_tx_rate_mbps: Annotated[Rate | None, setting("Send rate that a VF is sure of; 0 is no promise.")] = (
        None
    )
    max_tx_rate_mbps: Annotated[Rate | None, setting("Send rate that a VF cannot pass; 0 is no limit.")] = (
        None
    )
    vf_indexes: Annotated[
        tuple[IndexRange, ...],
        listed('The VFs that the settings from driver on are for: ["0-3", "7"]; empty is all.'),
    ] = ()


EXAMPLE_GPU = (
    "Whole GPUs; those of an entry like this must be left out of gpu-mem by its select:",
    GpuResource(select=GpuSelect(indexes=("0", "1"))),
)
EXAMPLE_VFS = (
    "Eight VFs on each Mellanox PF:",
    VfsEntry(select=PfSelect(vendors=("15b3",), drivers=("mlx5_core",)), count=8),
)
