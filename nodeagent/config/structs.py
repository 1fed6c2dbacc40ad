"""Every setting, declared once: name, type, bounds, default and meaning.

The loader, the commented default, the JSON schema and the table in docs/configuration.md are all made from these
structs, so nothing about a setting may be written anywhere else. The law of this file:

* A field is ``Annotated[type, setting("meaning", ...)]``; on the wire its name is in camelCase.
* Units are in the names, absent is ``None``, lists are tuples and mean sets.
* A default suits a plain node; what changes hardware (``vfs``) does nothing until it is asked for.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nodeagent.config.cluster_settings import ClusterSettings
from nodeagent.config.gpu_health_settings import GpuHealthSettings
from nodeagent.config.health_settings import HealthSettings
from nodeagent.config.sample_settings import SamplesSettings
from nodeagent.config.setting import (
    AUTO,
    ENTRIES_MAX,
    RATE_MAX,
    SECONDS_MAX,
    Address,
    Argument,
    Count,
    Directory,
    Driver,
    Glob,
    Hex4,
    IndexRange,
    LinkType,
    Model,
    Mtu,
    Name,
    PciAddress,
    Prefix,
    Rate,
    Seconds,
    Settings,
    Strategy,
    Template,
    Uuid,
    Xid,
    listed,
    setting,
)
from nodeagent.config.web_settings import WebSettings


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


Resource = VfResource | GpuMemResource | GpuResource


class KubeletSettings(Settings, frozen=True, kw_only=True):
    """How the agent talks to the kubelet."""

    registration: Annotated[
        Literal["socket", "plugins_registry"],
        setting("Register at the kubelet's own socket, or be found by it in its plugins_registry directory."),
    ] = "socket"
    pod_resources: Annotated[
        bool, setting("Ask the kubelet's podresources API which pod holds what, after a restart above all.")
    ] = True


class CdiSettings(Settings, frozen=True, kw_only=True):
    """Container Device Interface specs."""

    generate: Annotated[
        bool, setting("Write our own spec where an entry wants CDI and no vendor's spec is on the host.")
    ] = True
    directory: Annotated[
        Directory, setting("Where our spec is written; the container runtime must read this directory.")
    ] = "/var/run/cdi"


class GpuSettings(Settings, frozen=True, kw_only=True):
    """How the GPUs are found and watched."""

    driver: Annotated[
        Literal["nvml", "none"], setting("The library to ask; none leaves the GPUs of this node alone.")
    ] = "nvml"
    timeout_seconds: Annotated[
        Seconds, setting("A driver that has not answered for so long is reported as hanging.")
    ] = 5.0
    fatal_xids: Annotated[
        tuple[Xid, ...],
        listed(
            "XID errors that turn all devices of the GPU Unhealthy, besides those of the agent's own table."
        ),
    ] = ()
    ignore_xids: Annotated[
        tuple[Xid, ...],
        listed("XID errors that say nothing against the GPU, besides the table's 13, 31, 43, 45, 68 and 94."),
    ] = ()
    xid_clear_seconds: Annotated[
        Seconds | None,
        setting(
            "After an XID the GPU is Healthy again when it was reset, or after so long without another; null: only "
            "after a reset."
        ),
    ] = 600.0
    health: Annotated[GpuHealthSettings, setting("When what is measured on a GPU stands against it.")] = (
        GpuHealthSettings()
    )


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


class LinkSelect(Settings, frozen=True, kw_only=True):
    """Which netdevs are links: those that match all the lists given.

    Where all are empty: every physical Ethernet NIC, so no VFs, representors, bridges, bonds or loopback. What
    is named is taken, veth and tap too.
    """

    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the name of the netdev: ens*np0.")] = ()
    drivers: Annotated[tuple[Glob, ...], listed("Globs on the driver: mlx5_core.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    exclude: Annotated[tuple[Glob, ...], listed("Globs on the netdev or the PCI address to leave out.")] = ()


class LinksSettings(Settings, frozen=True, kw_only=True):
    """The links of this node: what is listened on by LLDP."""

    select: Annotated[LinkSelect, setting("Which netdevs; everything empty selects the physical NICs.")] = (
        LinkSelect()
    )


class LldpSettings(Settings, frozen=True, kw_only=True):
    """How the switch ports at the other end of the links are learnt."""

    source: Annotated[
        Literal["socket", "lldpd", "none"],
        setting(
            "Listen on sockets of our own (CAP_NET_RAW), ask an lldpd that runs on the host, or do neither."
        ),
    ] = "socket"
    command: Annotated[
        tuple[Argument, ...],
        setting("How lldpd is asked; it must print lldpcli's json0.", max_length=32, min_length=1),
    ] = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
    transmit: Annotated[
        bool,
        setting(
            "Announce this node to its switches too. Receive-only by default: a second speaker on a port, beside "
            "the NIC's firmware, upsets some switches."
        ),
    ] = False


class LogSettings(Settings, frozen=True, kw_only=True):
    """What the agent tells on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], setting("The least grave level.")] = "info"


class Config(Settings, frozen=True, kw_only=True):
    """The configuration of one node's agent."""

    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("The version of this file's form.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["NodeAgentConfig"], setting("What this file is.", required=True)] = (
        "NodeAgentConfig"
    )
    resource_prefix: Annotated[
        Prefix,
        setting(
            "What stands before the slash in the names of all resources: a DNS subdomain. auto makes it "
            "from the machine's DMI product name, nvidia-dgx-h100 on a DGX H100, or takes nodeagent.io "
            "where there is none."
        ),
    ] = AUTO
    resources: Annotated[
        tuple[Resource, ...],
        setting(
            "What is offered to the kubelet: entries of kind vf, gpu-mem or gpu.", max_length=ENTRIES_MAX
        ),
    ] = (VfResource(), GpuMemResource())
    kubelet: Annotated[KubeletSettings, setting("How the agent talks to the kubelet.")] = KubeletSettings()
    cdi: Annotated[CdiSettings, setting("Container Device Interface specs.")] = CdiSettings()
    gpu: Annotated[GpuSettings, setting("How the GPUs are found and watched.")] = GpuSettings()
    links: Annotated[LinksSettings, setting("The links of this node.")] = LinksSettings()
    lldp: Annotated[LldpSettings, setting("How the switch ports at the other end are learnt.")] = (
        LldpSettings()
    )
    health: Annotated[HealthSettings, setting("How links are judged.")] = HealthSettings()
    cluster: Annotated[ClusterSettings, setting("What the API server is told.")] = ClusterSettings()
    samples: Annotated[SamplesSettings, setting("How often what is measured on NICs is read.")] = (
        SamplesSettings()
    )
    vfs: Annotated[
        tuple[VfsEntry, ...],
        setting(
            "VFs that `nodeagent vfs apply` creates and sets up; empty changes nothing on the machine.",
            max_length=ENTRIES_MAX,
        ),
    ] = ()
    listen: Annotated[
        Address | None,
        setting(
            "Where /metrics, /healthz and /readyz are served: :9808, 10.0.0.1:9808, [::1]:9808; or null."
        ),
    ] = ":9808"
    web: Annotated[WebSettings, setting("How they are served: TLS, who may scrape.")] = WebSettings()
    scan_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)],
        setting("A full look at the machine at least this often; what the kernel announces is seen at once."),
    ] = 30.0
    log: Annotated[LogSettings, setting("What the agent tells on stderr.")] = LogSettings()
