"""The affinity of two PCI functions, in the terms of ``nvidia-smi topo -m``. Pure.

A PCI path is the real path of ``/sys/bus/pci/devices/<address>`` below ``/sys/devices``, as components: the root
complex first (``pci0000:15``), then each bridge, the function last. A PCIe switch has an upstream and a downstream
port, so there are two bridges between its children and the bridge above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Affinity(IntEnum):
    """A smaller value is nearer."""

    PIX = 0
    """at most one PCIe switch between them"""
    PXB = 1
    """several PCIe switches, but no host bridge"""
    PHB = 2
    """a PCIe host bridge (the CPU's root complex)"""
    NODE = 3
    """several host bridges of one NUMA node"""
    SYS = 4
    """the interconnect between NUMA nodes"""


def affinity(
    path_a: Sequence[str], numa_a: int | None, path_b: Sequence[str], numa_b: int | None
) -> Affinity:
    """Return the worst hop between two functions. An empty path is unknown and shares nothing."""
    shared = 0
    for a, b in zip(path_a, path_b, strict=False):
        if a != b:
            break
        shared += 1
    if shared == 0:
        return Affinity.NODE if numa_a is not None and numa_a == numa_b else Affinity.SYS
    if shared == 1:
        return Affinity.PHB
    # Below the last shared bridge: a downstream port and the function mean one switch.
    left = max(len(path_a), len(path_b)) - shared
    return Affinity.PIX if left <= 2 else Affinity.PXB


def root_port(path: Sequence[str]) -> tuple[str, ...] | None:
    """Return the path down to the first bridge: functions with an equal one have the affinity ``PIX`` or ``PXB``. An
    unknown path has none."""
    return tuple(path[:2]) if len(path) > 1 else None


def path_of(real_path: str) -> tuple[str, ...]:
    """Return the PCI path of a real path such as ``/sys/devices/pci0000:15/0000:15:01.0/0000:17:00.0``."""
    parts = real_path.strip("/").split("/")
    for i, part in enumerate(parts):
        if part.startswith("pci"):
            return tuple(parts[i:])
    return ()
