"""Readings that cannot be true lose their UUID and get a fault, so that one GPU with nonsense costs no other GPU. Pure.

The rest of the agent can rely on this: a UUID can name a CDI device and is unique, as are PCI address and minor
number; a slice list of the memory has an end; a text is on one line. The UUID and the profile of a MIG device can name
a CDI device and a resource.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import structs

from nodeagent.base.plain_text import one_line
from nodeagent.host.gpu_driver import GpuReading

UUID_MAX = len("GPU-00000000-0000-0000-0000-000000000000")
"""A longer UUID would make longer device IDs than ``kinds.device_list_size`` counts with."""
MEMORY_MAX_MIB = 4 << 20
"""4 TiB, ten times the largest GPU of 2026."""
_NAME_MAX = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE"""
_FAULT_MAX = 200
_MINOR_MAX = (1 << 20) - 1
"""The kernel's largest minor number. NVML's type is unsigned, so -1 is 4294967295."""
# "all", "none" and "0" would be valid CDI names too, but mean something else to NVIDIA's runtime.
_UUID = re.compile(r"GPU-[0-9A-Za-z]([-_.0-9A-Za-z]*[0-9A-Za-z])?")
_MIG_UUID = re.compile(r"MIG-[0-9A-Za-z]([-0-9A-Za-z]{0,34}[0-9A-Za-z])?")
_PROFILE = re.compile(r"[0-9a-z][-+.0-9a-z]{0,22}[0-9a-z]")
"""``1g.10gb``, ``1c.3g.40gb+me.all``: the part of a resource's name after ``mig-``."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def plausible_gpus(readings: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """Return one reading for each reading. One with nonsense keeps its index, and its PCI address if that is sound."""
    readings = tuple(readings)
    uuids = Counter(reading.uuid for reading in readings)
    addresses = Counter(reading.pci_address for reading in readings)
    minors = Counter(reading.minor for reading in readings)
    migs = Counter(device.uuid for reading in readings for device in reading.mig_devices or ())

    def nonsense(reading: GpuReading) -> Iterator[str]:
        uuid, address, minor, memory = reading.uuid, reading.pci_address, reading.minor, reading.memory_mib
        if uuid is not None and not is_uuid(uuid):
            yield f"the UUID {quoted(uuid)}"
        elif uuid is not None and uuids[uuid] > 1:
            yield f"the UUID {uuid} of another GPU"
        if address is not None and not is_address(address):
            yield f"the PCI address {quoted(address)}"
        elif address is not None and addresses[address] > 1:
            yield f"the PCI address {address} of another GPU"
        if minor is not None and not 0 <= minor <= _MINOR_MAX:
            yield f"the minor number {minor}"
        elif minor is not None and minors[minor] > 1:
            yield f"the minor number {minor} of another GPU"
        if memory is not None and not is_memory(memory):
            yield f"{memory} MiB of memory"
        for device in reading.mig_devices or ():
            if not (_MIG_UUID.fullmatch(device.uuid) and _PROFILE.fullmatch(device.profile)):
                yield f"the MIG device {quoted(device.uuid)} with the profile {quoted(device.profile)}"
            elif migs[device.uuid] > 1:
                yield f"the MIG device {device.uuid} twice"

    def checked(reading: GpuReading) -> GpuReading:
        name = None if reading.name is None else one_line(reading.name, _NAME_MAX)
        fault = None if reading.fault is None else one_line(reading.fault, _FAULT_MAX)
        found = " and ".join(nonsense(reading))
        if not found:
            return structs.replace(reading, name=name, fault=fault)
        address = reading.pci_address
        sound = address is not None and is_address(address) and addresses[address] == 1
        return GpuReading(
            reading.index,
            name=name,
            pci_address=address if sound else None,
            mig=reading.mig,
            lost=reading.lost,
            fault=one_line(f"the driver reports {found}", _FAULT_MAX),
            mig_devices=None,
            mig_profiles=None,
            mig_instances=None,
        )

    return tuple(checked(reading) for reading in readings)


def is_uuid(text: str) -> bool:
    return len(text) <= UUID_MAX and bool(_UUID.fullmatch(text))


def is_memory(mib: int) -> bool:
    return 1 <= mib <= MEMORY_MAX_MIB


def is_address(text: str) -> bool:
    return bool(_ADDRESS.fullmatch(text))


def quoted(text: str) -> str:
    """Return a foreign text for a message: quoted, on one line."""
    return f'"{one_line(text, UUID_MAX, ascii_only=True)}"'
