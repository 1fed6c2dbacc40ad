"""The messages of the device-plugin API, v1beta1: what the kubelet asks, and what it is answered. Pure.

Loaded when the agent has started, or by the kubelet's first question: protobuf takes a seventh of the time
that the start has. What the start itself sends is made by hand in ``roll``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from nodeagent.kinds import Refused
from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.model import Allocation


def asked(request: bytes) -> list[list[str]]:
    """AllocateRequest: the ids for each container."""
    try:
        message = pb.AllocateRequest.FromString(request)
    except DecodeError as error:
        raise Refused("the request is not an AllocateRequest", invalid=True) from error
    return [list(container.devices_ids) for container in message.container_requests]


def granted(allocations: Iterable[Allocation]) -> bytes:
    """AllocateResponse."""
    return pb.AllocateResponse(container_responses=map(_container, allocations)).SerializeToString()


def choices(request: bytes) -> Iterator[tuple[Sequence[str], Sequence[str], int]]:
    """PreferredAllocationRequest: for each container what is free, what must be chosen, and how many."""
    try:
        message = pb.PreferredAllocationRequest.FromString(request)
    except DecodeError as error:
        raise Refused("the request is not a PreferredAllocationRequest", invalid=True) from error
    for container in message.container_requests:
        yield container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size


def preferred(chosen: Iterable[Sequence[str]]) -> bytes:
    """PreferredAllocationResponse."""
    answer = pb.PreferredAllocationResponse()
    for ids in chosen:
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
