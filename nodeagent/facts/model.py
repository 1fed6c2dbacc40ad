"""The facts of a node, as frozen values.

* Equal values are the same fact. No value counts or ages: counters are read at scrape time and are not in a snapshot,
  because each change of a snapshot wakes every reader.
* Absent is ``None``, broken is an exception in the source, zero is zero. The source turns the kernel's ``numa_node``
  of -1 into ``None``.
* Collections are tuples in a defined order, so that equal facts are equal values.
* PCI addresses are in the long form, lower case: ``0000:1a:00.3``.
* Units are in the names: ``_mib`` is 2**20 bytes, ``_mbps`` is 10**6 bits per second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import cached_property

import msgspec

from nodeagent.facts.port_names import port_name


class State(StrEnum):
    """The state of a link, a function or a GPU; ``Health.allocatable`` decides whether pods may get it."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"
    MISCABLED = "miscabled"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    UNUSED = "unused"
    """No link since the boot, and none is expected: Unhealthy for the kubelet, and no reason for an alert."""


ETHERNET, INFINIBAND = "ethernet", "infiniband"
"""The types of a link."""
MISSING = "missing"
LINK_STATES = (
    MISSING, *(state.value for state in (
        State.DOWN, State.MISCABLED, State.DEGRADED, State.UNKNOWN, State.HEALTHY, State.UNUSED,
    )),
)  # fmt: skip
"""The states of a link in reports and metrics, the worst first. The definition of NodeLinks lists the same words."""


CORDONED = "cordoned"
MAINTENANCE = "maintenance"
"""The key of the reason of a device that a person keeps from new pods."""


class Reason(msgspec.Struct, frozen=True):
    """Why a state is not healthy. ``key`` is from a closed set. ``detail`` is a sentence for people that stays the
    same while the fault is active. A ``warning`` does not change the state.
    """

    key: str
    detail: str
    warning: bool = False


class Health(msgspec.Struct, frozen=True):
    """A state with all its active reasons, the most severe first.

    ``allocatable`` is the health that the kubelet gets (Healthy or Unhealthy). It is separate from the state: unknown
    never changes it, and a degraded device stays allocatable unless its rule withdraws it.
    """

    state: State = State.HEALTHY
    reasons: tuple[Reason, ...] = ()
    allocatable: bool = True

    @property
    def only_cordoned(self) -> bool:
        """Whether a person alone keeps new pods away: pods that hold the device can use it."""
        usable = self.state not in (State.DOWN, State.UNHEALTHY)
        return usable and any(reason.key == CORDONED and not reason.warning for reason in self.reasons)


HEALTHY = Health()


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG device: a part of a GPU that the driver isolates.

    ``profile`` is the driver's word, ``1g.10gb`` or ``1c.3g.40gb+me``. ``nodes`` are the device nodes that a container
    needs beside that of the GPU (``/dev/nvidia-caps/nvidia-cap<n>``); empty if they are not known. ``takes`` are its
    multiprocessors and engines, as those of a ``MigProfile``, those that it has; empty if they are not known.
    """

    uuid: str
    profile: str
    memory_mib: int
    gpu_instance: int
    compute_instance: int
    nodes: tuple[str, ...] = ()
    takes: tuple[tuple[str, int], ...] = ()


class MigSlot(msgspec.Struct, frozen=True):
    """A GPU instance that is there or that could be made: ``profile`` is NVML's number of its profile, ``start`` and
    ``size`` are its slices of the memory of the GPU with the UUID ``gpu``."""

    gpu: str
    profile: int
    start: int
    size: int

    def overlaps(self, other: MigSlot) -> bool:
        apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.gpu == other.gpu and not apart


class MigProfile(msgspec.Struct, frozen=True):
    """A kind of GPU instance that a GPU in MIG mode can make, in any of its ``slots``.

    ``takes`` are the multiprocessors and engines of an instance, by name: the GPU has as many as its largest profile.
    """

    name: str
    memory_mib: int
    takes: tuple[tuple[str, int], ...]
    slots: tuple[MigSlot, ...]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as its driver reports it, or as it last did.

    ``memory_mib`` is NVML's total, rounded down. ``minor`` is n in ``/dev/nvidia<n>``. ``pci_path``: see ``Function``.
    ``lost``: the driver does not list the GPU now, or does not reach it; its slices stay on the kubelet's list.
    ``index`` is NVML's. While a GPU is lost, the others keep theirs. ``mig``: MIG mode is on, and only ``mig_devices``
    can be used. ``mig_profiles`` are what it can be divided into then, and ``mig_instances`` the GPU instances that are
    there; both are empty if the driver does not show them. ``nvlink_domain`` is ``<cluster UUID>.<clique ID>``, empty
    for none, ``None`` if not known. ``nvlink_island``: GPUs of this machine that NVLinks join have the same, the PCI
    address of the first of them; ``None`` if not known.
    """

    uuid: str
    index: int
    minor: int | None
    name: str
    pci_address: str
    memory_mib: int
    numa_node: int | None
    pci_path: tuple[str, ...] = ()
    health: Health = HEALTHY
    lost: bool = False
    nvlink_domain: str | None = None
    nvlink_island: str | None = None
    mig: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigSlot, ...] = ()


_FOR_GUESTS = ("vfio", "pci-stub", "pciback")
"""Parts of the names of drivers that keep a function for virtual machines: vfio-pci and its variants, Xen's."""


class GpuFunction(msgspec.Struct, frozen=True):
    """A PCI function that is an NVIDIA GPU, whether or not NVML names it. ``driver`` is the bound kernel driver.
    ``excluded``: a setting of NVIDIA's driver leaves it out; NVML reports this, the PCI bus does not. ``said``: what
    the driver has written about it into the kernel log since it last listed it."""

    pci_address: str
    driver: str | None = None
    numa_node: int | None = None
    pci_path: tuple[str, ...] = ()
    excluded: bool = False
    said: str = ""

    @property
    def for_guests(self) -> bool:
        """Whether its driver keeps it for virtual machines."""
        return self.driver is not None and any(part in self.driver for part in _FOR_GUESTS)


class UnusableGpu(msgspec.Struct, frozen=True):
    """A GPU that no resource can offer: NVML does not name it, or reports values that cannot be true.

    ``place`` is its PCI address, or ``index 3`` where NVML gives no address. ``health`` has the reason.
    """

    place: str
    health: Health


class Rdma(msgspec.Struct, frozen=True):
    """The RDMA device of a function and its character devices (absolute paths on the host). ``node_guid`` is that of
    InfiniBand, as sysfs writes it: ``0c42:a103:0016:054c``, zeros for a VF that has none. ``port_active``: whether the
    port of an InfiniBand VF is; that of a PF is in its ``Link``."""

    device: str
    uverbs: str | None = None
    umad: str | None = None
    issm: str | None = None
    node_guid: str | None = None
    port_active: bool | None = None


class Function(msgspec.Struct, frozen=True):
    """A PCI network function: a PF, or a VF when ``parent`` is set.

    ``vendor`` and ``device`` are four hex digits. ``link_type`` is ``ethernet`` or ``infiniband`` and,
    on a VF, that of its PF. ``vdpa`` is the character device ``/dev/vhost-vdpa-<n>``. ``pci_path`` lists the
    components of the real path under ``/sys/devices``, root complex first and the function itself last:
    ``("pci0000:15", "0000:15:01.0", "0000:17:00.0")``. ``num_vfs`` and ``total_vfs`` are ``None`` where
    the function has no SR-IOV capability. ``mac`` is the address of a VF's netdev; that of a PF is in its ``Link``.
    ``missing``: the function is not on the bus now, and these are its last values.
    """

    pci_address: str
    vendor: str
    device: str
    driver: str | None
    netdev: str | None
    link_type: str | None
    rdma: Rdma | None
    vfio_group: str | None
    vdpa: str | None
    numa_node: int | None
    pci_path: tuple[str, ...]
    parent: str | None = None
    vf_index: int | None = None
    num_vfs: int | None = None
    total_vfs: int | None = None
    health: Health = HEALTHY
    missing: bool = False
    mac: str | None = None

    @property
    def by_vfio(self) -> bool:
        """Whether it is bound to vfio-pci or to a vendor's variant, such as mlx5_vfio_pci."""
        return self.driver is not None and self.driver.replace("_", "-").endswith("vfio-pci")

    @property
    def link_state(self) -> str:
        """One of ``LINK_STATES``: the state of a PF in reports and metrics."""
        return MISSING if self.missing else self.health.state.value


class Link(msgspec.Struct, frozen=True):
    """The netdev of a PF. ``carrier`` is ``None`` if the kernel does not report it (admin down).

    ``default_route`` is true if it carries the host's default route, ``bonded`` if it does so as a port of a bond.
    ``node_address`` is true if an address of the Node, by which the cluster reaches it, may be on it or above it.
    ``permanent_mac`` identifies the card: it is the address in its memory, which a bond does not change; ``None`` if
    the kernel does not report it.
    """

    netdev: str
    pci_address: str
    mac: str | None
    admin_up: bool
    carrier: bool | None
    operstate: str | None
    speed_mbps: int | None
    mtu: int | None
    default_route: bool = False
    permanent_mac: str | None = None
    bonded: bool = False
    node_address: bool = False


class UnreadValue(msgspec.Struct, frozen=True):
    """A value of a NIC that is not known because a file could not be read now: it fails, or it hangs.

    ``pci_address`` is empty where the file tells of all NICs. ``value`` is the field of ``Function`` or ``Link``, or
    ``product``; empty where it is not even known whether a NIC is there. ``path`` is that of the file.
    """

    pci_address: str
    value: str
    path: str


class Holding(msgspec.Struct, frozen=True):
    """Devices of one resource that one container holds, from the kubelet's podresources API.

    ``claim`` is the name of the ResourceClaim that gave them; empty if a device plugin did. The container is then
    empty: a claim belongs to the pod.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    claim: str = ""


class PodNetdev(msgspec.Struct, frozen=True):
    """The netdev of a VF in the pod that holds it, as `nodeagent attach` has found it last. ``device`` is the PCI
    address; ``addresses`` have the lengths of their prefixes. On the host's network there is no address of the pod."""

    device: str
    namespace: str
    pod: str
    netdev: str
    addresses: tuple[str, ...] = ()


class NodeNumber(msgspec.Struct, frozen=True):
    """The number of this node on the rail of one PF, by whose address it is known, or as the controller gave it; 0: it
    has none. ``prefix`` is that of the VFs' IPv4 addresses in pods."""

    pci_address: str
    prefix: str
    number: int


class DeviceNode(msgspec.Struct, frozen=True):
    """A character device for the container; ``permissions`` as in the device cgroup, ``rwm``. ``number`` is its major
    and minor number: then the runtime makes it, and it need not exist on the host."""

    host_path: str
    container_path: str
    permissions: str = "rw"
    number: tuple[int, int] | None = None


class Mount(msgspec.Struct, frozen=True):
    """A bind mount of the container."""

    host_path: str
    container_path: str
    read_only: bool = False


class HostPaths(msgspec.Struct, frozen=True):
    """Files and device nodes of the host for containers.

    ``gpu_nodes`` are the driver's device nodes that all GPUs share. ``vendor_gpus`` are the names that the
    host's CDI specifications define under the vendor's kind ``nvidia.com/gpu``. ``driver_files`` are the
    driver's libraries and programs, each under the name that a container expects. ``rdma_exclusive``: an RDMA device is
    in one network namespace alone.
    """

    gpu_nodes: tuple[str, ...] = ()
    rdma_cm: bool = False
    rdma_exclusive: bool = False
    vendor_gpus: frozenset[str] = frozenset()
    driver_files: tuple[Mount, ...] = ()


class LimitSupport(msgspec.Struct, frozen=True):
    """The parts of the host that limits of GPU memory need. ``None``: not known. The texts are why the agent cannot see
    the host's processes, and why it cannot limit the cgroups of containers; empty if it can."""

    cgroup2: bool | None = None
    hidden_processes: str | None = None
    cgroup_obstacle: str | None = None


class VgpuGrant(msgspec.Struct, frozen=True):
    """One GPU that Volcano chose for a container: its slices, and percent of its time (0: any)."""

    uuid: str
    slices: int
    cores: int


class VgpuWaiting(msgspec.Struct, frozen=True):
    """A container of this node that has no GPUs yet. ``count`` is the number that it asks for. ``fault`` is why its
    annotations are refused, or empty. A container that is not ``placed`` has no choice by Volcano."""

    namespace: str
    pod: str
    container: str
    uid: str
    count: int
    gpus: tuple[VgpuGrant, ...]
    fault: str = ""
    placed: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The UID of the pod, and the container."""
        return self.uid, self.container

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


class VgpuShare(msgspec.Struct, frozen=True):
    """The slices of one GPU that a container has by Volcano's choice; with an empty ``container`` those of the whole
    pod, by its limits."""

    namespace: str
    pod: str
    uuid: str
    slices: int
    container: str = ""


class ClaimUser(msgspec.Struct, frozen=True):
    """A container that uses claims, with the CDI devices of the whole of each claim: the kubelet does not say which of
    its requests the container uses."""

    namespace: str
    pod: str
    container: str
    cdi_devices: frozenset[str]


class ClaimShare(msgspec.Struct, frozen=True):
    """The memory of one GPU that a container has by a claim. ``resource`` is the name for a device plugin."""

    namespace: str
    pod: str
    container: str
    uuid: str
    size_bytes: int
    resource: str


class ContainerLimit(msgspec.Struct, frozen=True):
    """The hard limit of GPU memory of one container on one GPU, as the driver shows it.

    ``state`` is ``in force``, ``not in force``, ``waiting`` while the container is not found, or ``unknown`` while the
    limit cannot be read. ``since`` is the Unix time at which this was first seen, ``why`` the reason for the others.
    """

    namespace: str
    pod: str
    container: str
    uuid: str
    size_bytes: int
    state: str
    since: float
    why: str | None = None


class LossyLeg(msgspec.Struct, frozen=True):
    """The way over a rail to a partner's NIC and back, which loses probes.

    ``scope`` is ``leaf`` or ``across``, ``level`` the loss in percent, about: 1, 10, 50 or 100. ``large``: only packets
    of the full MTU are lost. ``since`` is in RFC 3339."""

    node: str
    nic: str
    scope: str
    level: int
    large: bool
    since: str


class RailCheck(msgspec.Struct, frozen=True):
    """The probes over the rail of one PF. ``addresses`` have a prefix length. ``checked`` is ``yes``, or a word for why
    the rail cannot be checked."""

    pci_address: str
    addresses: tuple[str, ...]
    checked: str
    legs: tuple[LossyLeg, ...] = ()


class RailTraffic(msgspec.Struct, frozen=True):
    """A VF of a pod whose level differs from that of the pod: ``silent``, ``below`` its peers, or ``unmeasured``.
    ``pf`` and ``vf`` are PCI addresses, ``since`` is Unix time."""

    pf: str
    vf: str
    level: str
    since: int | None = None


class PodTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of the VFs of a pod, as a level that changes seldom: ``moving``, ``silent``, ``unused`` (never since
    the pod began) or ``unmeasured``.

    ``since`` is the Unix time since when a pod is silent or unused. ``longest_pause`` in seconds is that between two
    movements, rounded up. ``gpus`` of a silent pod: ``waiting``, ``working`` or ``idle``, empty if it is not known;
    ``idle_gpus``: NVML's indexes of those that are idle where the others are not. ``at_start``: the pod was there when
    this agent began, so a level of before may hold."""

    namespace: str
    pod: str
    level: str
    since: int | None = None
    longest_pause: int = 0
    gpus: str = ""
    idle_gpus: tuple[int, ...] = ()
    rails: tuple[RailTraffic, ...] = ()
    at_start: bool = False


class StaleSource(msgspec.Struct, frozen=True):
    """A source that cannot publish at present. Its last facts stay, and no health is derived from its failure."""

    source: str
    reason: str


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """All facts of this node at one moment.

    ``guest``: the machine is a virtual one (``facts.virtual_machine``).
    ``revision`` grows by one with each change and is not part of equality in meaning: compare the parts.
    Functions are sorted by PCI address, GPUs by index, links by netdev, holdings by pod,
    neighbors and remarks by link. ``gpu_functions`` are all GPUs of the PCI bus; ``gpus`` are those with a known
    UUID, the lost ones too; ``unusable_gpus`` are the others, by place.
    ``holdings`` is ``None`` until podresources has answered once.
    """

    revision: int = 0
    product: str | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_functions: tuple[GpuFunction, ...] = ()
    unusable_gpus: tuple[UnusableGpu, ...] = ()
    functions: tuple[Function, ...] = ()
    links: tuple[Link, ...] = ()
    holdings: tuple[Holding, ...] | None = None
    pod_netdevs: tuple[PodNetdev, ...] = ()
    """By PCI address; empty unless `nodeagent attach` moves netdevs."""
    node_numbers: tuple[NodeNumber, ...] = ()
    """By PCI address; empty unless VFs get IPv4 addresses in pods (`attach.addresses`)."""
    claim_shares: tuple[ClaimShare, ...] = ()
    """By container, which ``holdings`` does not name for claims."""
    paths: HostPaths = HostPaths()
    gpu_driver: str | None = None  # its version: 580.95.05
    guest: bool = False
    limit_support: LimitSupport = LimitSupport()
    limits_kept: bool = False
    """Whether the driver has kept a limit of GPU memory: the agent has set one and read it back."""
    gpu_limits: tuple[ContainerLimit, ...] = ()
    """Of the containers whose level of enforcement promises a hard limit, by pod."""
    mps_obstacles: tuple[tuple[str, str], ...] = ()
    """The UUID of each GPU that needs an MPS daemon, and why no program can use it; empty if one can."""
    neighbors: tuple[Neighbor, ...] = ()
    remarks: tuple[Remark, ...] = ()
    rail_checks: tuple[RailCheck, ...] = ()
    """In the order of PCI addresses; empty unless the agent probes its rails."""
    compared: tuple[tuple[str, str], ...] = ()
    """The values that peers should share, by name; empty unless the agent compares (`peers.compare`)."""
    pod_traffic: tuple[PodTraffic, ...] = ()
    """By pod; empty unless the agent judges traffic (`traffic.report`)."""
    stale_sources: tuple[StaleSource, ...] = ()
    unreadable: tuple[str, ...] = ()
    unread: tuple[UnreadValue, ...] = ()
    """The values that decide which NICs are offered, and which card each is, sorted."""
    vgpu_waiting: tuple[VgpuWaiting, ...] = ()
    """In the order in which Volcano bound them; the containers of a pod in the order of the pod."""
    vgpu_shares: tuple[VgpuShare, ...] = ()
    vgpu_locked: bool = False
    """Volcano has locked this Node since the agent started: ``deviceshare.NodeLockEnable`` is true."""
    vgpu_granted: frozenset[tuple[str, str]] = frozenset()
    """The containers that have just got their GPUs, by ``VgpuWaiting.key``: podresources lists them later."""

    @cached_property
    def vfs_to_offer(self) -> Mapping[str, tuple[Function, ...]]:
        """The VFs of each PF, by its PCI address. No VFs of a PF with the default route, or of one that is gone."""
        return self._vfs_without({link.pci_address for link in self.links if link.default_route})

    @cached_property
    def vfs_with_bonds(self) -> Mapping[str, tuple[Function, ...]]:
        """``vfs_to_offer``, with the VFs of PFs that carry the default route as ports of a bond."""
        routed = {link.pci_address for link in self.links if link.default_route and not link.bonded}
        return self._vfs_without(routed)

    @cached_property
    def whole_nics(self) -> Mapping[str, Function]:
        """The NICs that one container may have as a whole, by PCI address: functions of no PF that this machine shows,
        without VFs. No NIC with the default route or an address of the Node. A missing one stays."""
        divided = {function.parent for function in self.functions if not function.missing}
        routed = {link.pci_address for link in self.links if link.default_route or link.node_address}
        return {
            function.pci_address: function
            for function in self.functions
            if function.parent is None
            and not function.num_vfs
            and function.pci_address not in divided
            and function.pci_address not in routed
        }

    @cached_property
    def holders(self) -> Mapping[str, Mapping[str, Holding]]:
        """The holdings of pods by the PCI address or UUID that a device ID begins with, then by resource: one of
        each."""
        held: dict[str, dict[str, Holding]] = {}
        for holding in self.holdings or ():
            for id_ in holding.device_ids:
                held.setdefault(id_.partition("::")[0], {}).setdefault(holding.resource, holding)
        return held

    def _vfs_without(self, left_out: Collection[str]) -> Mapping[str, tuple[Function, ...]]:
        vfs: dict[str, list[Function]] = {
            function.pci_address: [] for function in self.functions if function.pci_address not in left_out
        }
        for function in self.functions:
            if function.parent in vfs:
                vfs[function.parent].append(function)
        return {pf: tuple(of_pf) for pf, of_pf in vfs.items()}


class Identifier(msgspec.Struct, frozen=True):
    """A chassis or port ID: the subtype's word (``mac``, ``ifname``, ``local``, …) and its value."""

    subtype: str
    value: str


class Ets(msgspec.Struct, frozen=True):
    """``classes[p]`` is the traffic class of priority p; class c gets ``bandwidth[c]`` percent by
    ``algorithms[c]`` (a word of ``ets_algorithm``). Eight of each.
    """

    classes: tuple[int, ...]
    bandwidth: tuple[int, ...]
    algorithms: tuple[str, ...]


_ETS_ALGORITHMS = {0: "strict", 1: "credit-based-shaper", 2: "ets", 255: "vendor"}


def ets_algorithm(number: int) -> str:
    """The word for a transmission selection algorithm of IEEE 802.1Q, as the kernel and LLDP number them."""
    return _ETS_ALGORITHMS.get(number, f"algorithm-{number}")


class Neighbor(msgspec.Struct, frozen=True):
    """The switch port at the other end of a link, as announced by LLDP, or as an InfiniBand switch has answered.

    Every text is one line fit for any listener: what does not print is escaped, differently for different
    bytes, so that equal texts were equal on the wire. ``capabilities`` are the enabled ones.
    ``pfc`` lists the priorities with PFC enabled. ``stale``: its TTL has expired, and no other neighbor has been
    received on the link since. ``confirmed``: more than one frame was received. ``contender``: it sends while the
    link's neighbor sends too. ``source`` is the MAC address that its frames come from.
    """

    link: str
    chassis_id: Identifier
    port_id: Identifier
    system_name: str | None = None
    system_description: str | None = None
    port_description: str | None = None
    management_addresses: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    pvid: int | None = None
    maximum_frame_size: int | None = None
    pfc: tuple[int, ...] | None = None
    ets: Ets | None = None
    stale: bool = False
    confirmed: bool = False
    contender: bool = False
    source: str | None = None

    @property
    def port(self) -> str:
        """The port in one name; empty if the switch names none."""
        return port_name(self.chassis_id, self.port_id, self.port_description)

    @property
    def place(self) -> str:
        """Switch and port for a person: ``leaf-1 swp3``."""
        return f"{self.system_name or self.chassis_id.value} {self.port or self.port_id.value}"


class Remark(msgspec.Struct, frozen=True):
    """Something odd about one link, found by LLDP or on InfiniBand. ``key`` is from a closed set
    (``nodeagent.lldp.link_remarks``, ``nodeagent.infiniband.peer``), ``detail`` is a sentence for people, with the
    remedy if there is one.
    """

    link: str
    key: str
    detail: str
