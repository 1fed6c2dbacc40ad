"""The devices of a resource, and the allocation of a container. Kinds make both from the facts of a snapshot."""

from __future__ import annotations

import re

import msgspec

from nodeagent.facts.model import HEALTHY, DeviceNode, Health, Mount

_HARDWARE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]|(GPU|MIG)-[-_.0-9A-Za-z]{1,36}")
"""A PCI address, or a UUID as ``host/plausible_gpus.py`` takes it. Other plugins append to a UUID (``GPU-…-3``)."""


def hardware_of(device_id: str) -> str | None:
    """Return the VF (PCI address), GPU or MIG device (UUID) that a device ID names; ``None``: it is not of this agent.

    The kubelet lists the devices of another plugin under our name if that plugin has registered it.

    >>> [hardware_of(it) for it in ("0000:18:00.1", "GPU-32563e7a::12", "rdma0")]
    ['0000:18:00.1', 'GPU-32563e7a', None]
    """
    name = device_id.partition("::")[0]
    return name if _HARDWARE.fullmatch(name) else None


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
