"""What the containers of this node hold, asked of the kubelet's podresources API.

The law of this file:

* The kubelet answers with one entry for each device and NUMA node, in no order. A ``Holding`` gathers one
  resource of one container again: each device once, everything sorted.
* An answer is what the kubelet says now, which is not always what is: shortly after a kubelet restart the
  list can be EMPTY although pods hold devices. Nothing here hides that. Whether an empty answer may be
  believed is the caller's decision, who knows when the kubelet came up.
* Every failure is a ``PodResourcesError`` that names the socket and the cause.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from nodeagent.kube import podresources_pb2 as pb
from nodeagent.model import Holding

Answer = TypeVar("Answer", bound=Message)

# The list grows with devices x pods and passes gRPC's own 4 MiB on a node cut into small slices.
RECEIVE_MAX = 16 << 20

_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_MAX),
    # Go's HTTP/2 server refuses the percent-encoded path that would otherwise be the authority.
    ("grpc.default_authority", "localhost"),
    # A connection of its own: a shared one would also share the back-off after a kubelet that is gone.
    ("grpc.use_local_subchannel_pool", 1),
)


class PodResourcesError(Exception):
    """The kubelet could not be asked; the message names the socket and the cause."""


class PodResources:
    """A client of one podresources socket that keeps its connection open between questions.

    After a failure the next question connects afresh, so that a kubelet that has come back is not
    mistaken for absent while gRPC's reconnect back-off lasts.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 2.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None
        self._asking = asyncio.Lock()  # a failure closes the channel, and must not cancel another's question

    async def list(self) -> tuple[Holding, ...]:
        """All holdings of the node, sorted by namespace, pod, container and resource.

        May be empty shortly after a kubelet restart although pods hold devices.
        """
        async with self._asking:
            return _holdings(await self._ask())

    async def offered(self) -> dict[str, tuple[str, ...]]:
        """The device IDs that the kubelet counts, by resource, whoever's plugin they come from."""
        async with self._asking:
            answer = await self._unary(
                "GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
            )
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for devices in answer.devices:
            ids[devices.resource_name].update(devices.device_ids)
        return {resource: tuple(sorted(some)) for resource, some in sorted(ids.items())}

    async def _ask(self) -> pb.ListPodResourcesResponse:
        return await self._unary("List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)

    async def _unary(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=_OPTIONS)
        ask: grpc.aio.UnaryUnaryMultiCallable[Message, Answer] = self._channel.unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=lambda asked: asked.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return await ask(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise PodResourcesError(
                f"{self.socket}: the kubelet's podresources cannot be listed: "
                f"{error.code().name}: {error.details()}"
            ) from error

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _holdings(answer: pb.ListPodResourcesResponse) -> tuple[Holding, ...]:
    ids: defaultdict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                ids[pod.namespace, pod.name, container.name, devices.resource_name].update(devices.device_ids)
    return tuple(Holding(*key, tuple(sorted(held))) for key, held in sorted(ids.items()) if held)
