"""The facts of a node, as frozen values.

The law of this file:

* A value that compares equal is the same fact. Nothing here counts, ages or ticks: counters are read
  at scrape time and never stand in a snapshot, or every listener would wake at every tick.
* Absent is ``None``, broken is an exception at the door, zero is zero. The kernel's ``numa_node`` of -1
  is ``None`` before it gets here.
* Collections are tuples, in a stated order, so that equal facts are equal values.
* PCI addresses are in the long form, lower case: ``0000:1a:00.3``.
* Units are in the names: ``_mib`` is 2**20 bytes, ``_mbps`` is 10**6 bits per second.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """How well a link, a function or a GPU does; what may be done about it is ``Health.allocatable``."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"
    MISCABLED = "miscabled"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    UNUSED = "unused"
    """No link since the boot, and none was expected: not offered, and nobody's alarm."""


class Reason(msgspec.Struct, frozen=True):
    """Why a state is not healthy: ``key`` is from a closed set, ``detail`` is a sentence for a person, which
    stays the same as long as the fault does. A ``warning`` lessens no state.
    """

    key: str
    detail: str
    warning: bool = False


class Health(msgspec.Struct, frozen=True):
    """A verdict with all its active reasons, the gravest first.

    ``allocatable`` is what the kubelet hears (Healthy or Unhealthy). The two differ on purpose: unknown
    never changes what is allocatable, and degraded is a warning until a rule says otherwise.
    """

    state: State = State.HEALTHY
    reasons: tuple[Reason, ...] = ()
    allocatable: bool = True


HEALTHY = Health()


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as its driver names it.

    ``memory_mib`` is NVML's total, rounded down. ``minor`` is n in ``/dev/nvidia<n>``. ``pci_path`` is
    the way from the root complex, as ``Function.pci_path``.
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


class Rdma(msgspec.Struct, frozen=True):
    """The RDMA device of a function and its character devices (absolute paths on the host)."""

    device: str
    uverbs: str | None = None
    umad: str | None = None
    issm: str | None = None


class Function(msgspec.Struct, frozen=True):
    """A PCI network function: a PF, or a VF when ``parent`` is set.

    ``vendor`` and ``device`` are four hex digits. ``link_type`` is ``ethernet`` or ``infiniband`` and,
    on a VF, its PF's. ``vdpa`` is the character device ``/dev/vhost-vdpa-<n>``. ``pci_path`` lists the
    components of the real path under ``/sys/devices``, root complex first and the function itself last:
    ``("pci0000:15", "0000:15:01.0", "0000:17:00.0")``. ``num_vfs`` and ``total_vfs`` are ``None`` where
    the function has no SR-IOV capability.
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


class Link(msgspec.Struct, frozen=True):
    """The netdev of a PF. ``carrier`` is ``None`` where the kernel cannot say (admin down).

    ``default_route`` is true when the host's own default route leaves by it.
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


class Holding(msgspec.Struct, frozen=True):
    """Devices of one resource that one container holds, as the kubelet's podresources API tells it."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class Devices(msgspec.Struct, frozen=True):
    """Devices of one resource that share their parent, NUMA nodes and health: all the slices of a GPU,
    or one VF. ``parent`` is a GPU's UUID or a PF's PCI address. Stated together because they change
    together, and because 80,000 single values would cost what 8 do not.
    """

    parent: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...]
    health: Health = HEALTHY


class DeviceNode(msgspec.Struct, frozen=True):
    """A character device to be seen in the container; ``permissions`` as in the device cgroup, ``rwm``."""

    host_path: str
    container_path: str
    permissions: str = "rw"


class Mount(msgspec.Struct, frozen=True):
    """A bind mount of the container."""

    host_path: str
    container_path: str
    read_only: bool = False


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device-info file of the Network Plumbing Working Group, to be written before the answer.

    ``name`` is the file's name under ``/var/run/k8s.cni.cncf.io/devinfo/dp``, ``text`` its JSON.
    """

    name: str
    text: str


class Allocation(msgspec.Struct, frozen=True):
    """What the kubelet's Allocate is answered with, and the files that must exist before the answer."""

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    device_info: tuple[DeviceInfo, ...] = ()


class HostPaths(msgspec.Struct, frozen=True):
    """What lies on the host for containers to be given.

    ``gpu_nodes`` are the driver's device nodes that all GPUs share. ``vendor_gpus`` are the names that the
    host's CDI specifications define under the vendor's kind ``nvidia.com/gpu``. ``driver_files`` are the
    driver's libraries and programs, each under the name that a container looks for.
    """

    gpu_nodes: tuple[str, ...] = ()
    rdma_cm: bool = False
    vendor_gpus: frozenset[str] = frozenset()
    driver_files: tuple[Mount, ...] = ()


class Silence(msgspec.Struct, frozen=True):
    """A source that cannot speak at present; its last facts stand, and nothing is concluded from it."""

    source: str
    reason: str


class Snapshot(msgspec.Struct, frozen=True):
    """Everything known of this node at one moment.

    ``revision`` grows by one with each change and is not part of equality in meaning: compare the parts.
    Functions are sorted by PCI address, GPUs by index, links by netdev, holdings by pod,
    neighbors and remarks by link.
    ``holdings`` is ``None`` until the kubelet has been heard once.
    """

    revision: int = 0
    product: str | None = None
    gpus: tuple[Gpu, ...] = ()
    functions: tuple[Function, ...] = ()
    links: tuple[Link, ...] = ()
    holdings: tuple[Holding, ...] | None = None
    paths: HostPaths = HostPaths()
    neighbors: tuple[Neighbor, ...] = ()
    remarks: tuple[Remark, ...] = ()
    silent: tuple[Silence, ...] = ()
    unreadable: tuple[str, ...] = ()


class Identifier(msgspec.Struct, frozen=True):
    """A chassis or port ID: the subtype's word (``mac``, ``ifname``, ``local``, …) and its value."""

    subtype: str
    value: str


class Ets(msgspec.Struct, frozen=True):
    """``classes[p]`` is the traffic class of priority p; class c gets ``bandwidth[c]`` percent by
    ``algorithms[c]`` (``strict``, ``credit-based-shaper``, ``ets``, ``vendor``). Eight of each.
    """

    classes: tuple[int, ...]
    bandwidth: tuple[int, ...]
    algorithms: tuple[str, ...]


class Neighbor(msgspec.Struct, frozen=True):
    """The switch port at the other end of a link, as it announced itself over LLDP.

    Every text is one line fit for any listener: what does not print is escaped, differently for different
    bytes, so that equal texts were equal on the wire. ``capabilities`` are the enabled ones.
    ``pfc`` lists the priorities with PFC enabled. ``stale``: nobody vouches for it any more, but nobody
    else has spoken on the link since. ``confirmed``: it has been heard more than once.
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


class Remark(msgspec.Struct, frozen=True):
    """What LLDP shows of a link that somebody should look at: ``key`` is from a closed set
    (``nodeagent.lldp.link_remarks``), ``detail`` a sentence for a person, with the remedy where there is one.
    """

    link: str
    key: str
    detail: str
