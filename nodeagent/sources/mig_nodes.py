"""The device nodes of MIG devices, from the numbers in ``/proc/driver/nvidia-caps/mig-minors``.

A container needs the nodes of the GPU instance and of the compute instance beside that of the GPU (NVIDIA, MIG user
guide, section "Device Nodes and Capabilities"). The lines of the file are ``gpu0/gi7/access 66`` and
``gpu0/gi7/ci0/access 67``; the number of the GPU is its minor number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from nodeagent.facts.model import DeviceNode, MigDevice
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.sysfs import SysfsScan, Tree

MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_MAJOR = re.compile(r"^ *(\d+) nvidia-caps$", re.MULTILINE)
_LINE = re.compile(r"gpu(\d{1,4})/gi(\d{1,4})/(?:ci(\d{1,4})/)?access (\d{1,7})")

Instance = tuple[int, int, int | None]
"""Minor number of the GPU, GPU instance, and compute instance, or ``None`` for the GPU instance itself."""


def with_nodes(tree: Tree, readings: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
    """Return the readings with the device nodes of their MIG devices, as far as they are known."""
    if not any(reading.mig_devices for reading in readings):
        return readings
    numbers = parse_minors(SysfsScan(tree).read(tree.text, MIG_MINORS) or "")
    return tuple(_with_nodes(numbers, reading) for reading in readings)


def parse_minors(text: str) -> dict[Instance, int]:
    """Return the minor number of each instance's device node. Other lines are left out."""
    numbers: dict[Instance, int] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            gpu, instance, compute, number = match.groups()
            numbers[int(gpu), int(instance), None if compute is None else int(compute)] = int(number)
    return numbers


def numbered_nodes(tree: Tree, minor: int, device: MigDevice) -> tuple[DeviceNode, ...]:
    """Return the two nodes of a MIG device with their numbers, for a runtime that makes them; none if these are not
    known. The host may lack the nodes of a new device: only a program of NVIDIA's makes them."""
    scan = SysfsScan(tree)
    major = _MAJOR.search(scan.read(tree.text, "/proc/devices") or "")
    minors = parse_minors(scan.read(tree.text, MIG_MINORS) or "")
    names = ((minor, device.gpu_instance, it) for it in (None, device.compute_instance))
    found = [minors[name] for name in names if name in minors]
    if major is None or len(found) < 2:
        return ()
    return tuple(
        DeviceNode(node, node, number=(int(major[1]), number))
        for number in found
        for node in (f"/dev/nvidia-caps/nvidia-cap{number}",)
    )


def _with_nodes(numbers: Mapping[Instance, int], reading: GpuReading) -> GpuReading:
    minor = reading.minor
    if minor is None or not reading.mig_devices:
        return reading

    def complete(device: MigDevice) -> MigDevice:
        instances = (
            (minor, device.gpu_instance, None),
            (minor, device.gpu_instance, device.compute_instance),
        )
        if not all(instance in numbers for instance in instances):
            return device
        nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{numbers[instance]}" for instance in instances)
        return replace(device, nodes=nodes)

    return replace(reading, mig_devices=tuple(complete(device) for device in reading.mig_devices))
