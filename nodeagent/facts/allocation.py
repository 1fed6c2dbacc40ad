"""The devices of a resource, and the allocation of a container. Kinds make both from the facts of a snapshot."""

from __future__ import annotations

import msgspec

from nodeagent.facts.model import HEALTHY, DeviceNode, Health, Mount


class Devices(msgspec.Struct, frozen=True):
    """Devices of one resource that share their parent, NUMA nodes and health: all the slices of a GPU,
    or one VF. ``parent`` is a GPU's UUID or a PF's PCI address. They are one value because they change together,
    and because 8 values cost less than 80,000.
    """

    parent: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...]
    health: Health = HEALTHY


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device-info file of the Network Plumbing Working Group, written before Allocate is answered.

    ``name`` is the file's name under ``/var/run/k8s.cni.cncf.io/devinfo/dp``, ``text`` its JSON.
    """

    name: str
    text: str


class Allocation(msgspec.Struct, frozen=True):
    """The answer to the kubelet's Allocate, and the files that must exist before it."""

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    device_info: tuple[DeviceInfo, ...] = ()
