"""The file ``kubelet_internal_checkpoint``: the devices of each container, and the registered resources.

The JSON has the kubelet's members. The checksum is a CRC-32 of the data. The kubelet's checksum is a hash of Go's dump
of its structures, so a real kubelet refuses this file, and this module refuses a real one.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nodeagent.kube import deviceplugin_pb2 as pb

NAME = "kubelet_internal_checkpoint"
WITHOUT_NUMA = -1  # the NUMA node of devices without one


@dataclass(slots=True)
class Held:
    """Devices of one resource in one container, by NUMA node, and the plugin's only answer to Allocate."""

    by_numa: dict[int, list[str]]
    response: pb.ContainerAllocateResponse

    def ids(self) -> set[str]:
        return {device for devices in self.by_numa.values() for device in devices}


# Pod UID, then container, then resource.
Holdings = dict[str, dict[str, dict[str, Held]]]


class _PodDeviceEntry(msgspec.Struct):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[int, list[str]]
    AllocResp: str


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_PodDeviceEntry]
    RegisteredDevices: dict[str, list[str]]


class _CheckpointFile(msgspec.Struct):
    Data: msgspec.Raw
    Checksum: int


@dataclass(slots=True)
class Checkpoint:
    """The state of a kubelet at its start."""

    holdings: Holdings = field(default_factory=dict)
    resources: tuple[str, ...] = ()


def write(directory: Path, holdings: Holdings, registered: dict[str, set[str]]) -> None:
    entries = [
        _PodDeviceEntry(uid, container, resource, held.by_numa, _text(held.response))
        for uid, containers in holdings.items()
        for container, resources in containers.items()
        for resource, held in resources.items()
    ]
    data = msgspec.json.encode(_Data(entries, {name: list(ids) for name, ids in registered.items()}))
    passing = directory / f".{NAME}"
    passing.write_bytes(msgspec.json.encode(_CheckpointFile(msgspec.Raw(data), zlib.crc32(data))))
    passing.replace(directory / NAME)


def read(directory: Path) -> Checkpoint | None:
    """Return ``None`` if there is no file, or a damaged one, as the kubelet does."""
    try:
        file = msgspec.json.decode((directory / NAME).read_bytes(), type=_CheckpointFile)
        if zlib.crc32(bytes(file.Data)) != file.Checksum:
            return Checkpoint()
        data = msgspec.json.decode(file.Data, type=_Data)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        return Checkpoint()
    holdings: Holdings = {}
    for entry in data.PodDeviceEntries:
        response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.AllocResp))
        of_pod = holdings.setdefault(entry.PodUID, {})
        of_pod.setdefault(entry.ContainerName, {})[entry.ResourceName] = Held(entry.DeviceIDs, response)
    return Checkpoint(holdings, tuple(data.RegisteredDevices))


def _text(response: pb.ContainerAllocateResponse) -> str:
    return base64.b64encode(response.SerializeToString()).decode()
