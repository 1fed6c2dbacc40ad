"""Requests and responses of the device-plugin API, v1beta1, as protobuf. Pure.

Imported after registration, or at the kubelet's first call: the import of protobuf takes a seventh of the
agent's start. ``device_list`` encodes the messages that registration needs without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from nodeagent.facts.allocation import Allocation
from nodeagent.kinds import Refused
from nodeagent.kube import deviceplugin_pb2 as pb


def read_allocate_request(request: bytes) -> list[list[str]]:
    """Return the device IDs of each container in an AllocateRequest."""
    try:
        message = pb.AllocateRequest.FromString(request)
    except DecodeError as error:
        raise Refused("the request is not an AllocateRequest", invalid=True) from error
    return [list(container.devices_ids) for container in message.container_requests]


def allocate_response(allocations: Iterable[Allocation]) -> bytes:
    """Encode an AllocateResponse."""
    return pb.AllocateResponse(container_responses=map(_container, allocations)).SerializeToString()


def read_preferred_request(request: bytes) -> Iterator[tuple[Sequence[str], Sequence[str], int]]:
    """Yield the available IDs, the IDs that must be included, and the size, for each container of a
    PreferredAllocationRequest."""
    try:
        message = pb.PreferredAllocationRequest.FromString(request)
    except DecodeError as error:
        raise Refused("the request is not a PreferredAllocationRequest", invalid=True) from error
    for container in message.container_requests:
        yield container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size


def preferred_response(choices: Iterable[Sequence[str]]) -> bytes:
    """Encode a PreferredAllocationResponse."""
    answer = pb.PreferredAllocationResponse()
    for ids in choices:
        answer.container_responses.add().deviceIDs.extend(ids)
    return answer.SerializeToString()


def _container(allocation: Allocation) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(allocation.env),
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=n.container_path, host_path=n.host_path, permissions=n.permissions)
            for n in allocation.device_nodes
        ],
        annotations=dict(allocation.annotations),
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )
