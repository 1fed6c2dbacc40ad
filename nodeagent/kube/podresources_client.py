"""Which devices the containers of this node hold, from the kubelet's podresources API.

Rules:

* The kubelet answers with one entry for each device and NUMA node, in no order. A ``Holding`` joins the entries of
  one resource of one container: each device once, sorted.
* Shortly after a kubelet restart the list can be EMPTY although pods hold devices. The caller decides whether to use
  an empty answer, because only the caller has the start time of the kubelet.
* Every failure is a ``PodResourcesError`` that names the socket and the cause.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from nodeagent.facts.model import ClaimUser, Holding
from nodeagent.kube import podresources_pb2 as pb

Answer = TypeVar("Answer", bound=Message)

# The list grows with devices x pods and exceeds gRPC's default of 4 MiB on a node with small slices.
RECEIVE_MAX = 16 << 20

_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_MAX),
    # Without this, the authority is the percent-encoded socket path, which Go's HTTP/2 server refuses.
    ("grpc.default_authority", "localhost"),
    # A connection of its own: a shared one would also share the back-off after a kubelet failure.
    ("grpc.use_local_subchannel_pool", 1),
)
_LONG_S = 20.0
"""gRPC's own deadline, which never decides: its timers of less than 3 s make its threads wake more often."""
_FAILED = "the kubelet's podresources cannot be listed"


class PodResourcesError(Exception):
    """The call to the kubelet failed; the message names the socket and the cause."""


class PodResources:
    """A client of one podresources socket. Each call has a connection of its own.

    An open one would wake gRPC's threads a dozen times a second, and after a failure its reconnect back-off would make
    a kubelet that is back look absent.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 2.0) -> None:
        self.socket = socket
        self.pods_listed: frozenset[tuple[str, str]] = frozenset()
        """Namespace and name of the pods in the last answer, those without devices included. Without any, the kubelet
        may have just started."""
        self.claim_users: tuple[ClaimUser, ...] = ()
        """Of the last answer, from Kubernetes 1.34 on."""
        self._timeout_s = timeout_s

    async def list(self) -> tuple[Holding, ...]:
        """All holdings of the node, sorted by namespace, pod, container and resource.

        May be empty shortly after a kubelet restart although pods hold devices.
        """
        answer = await self._unary("List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)
        self.pods_listed = frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)
        self.claim_users = tuple(_claim_users(answer))
        return _holdings(answer)

    async def offered(self) -> dict[str, tuple[str, ...]]:
        """The device IDs that the kubelet counts, by resource, of all device plugins."""
        answer = await self._unary(
            "GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        )
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for devices in answer.devices:
            ids[devices.resource_name].update(devices.device_ids)
        return {resource: tuple(sorted(device_ids)) for resource, device_ids in sorted(ids.items())}

    async def _unary(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        async with grpc.aio.insecure_channel(f"unix:{self.socket}", options=_OPTIONS) as channel:
            # Of an answer that cannot be read, gRPC's own deserializer makes a traceback and None.
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}"
            )
            try:
                async with asyncio.timeout(self._timeout_s):
                    return answer.FromString(await call(request.SerializeToString(), timeout=_LONG_S))
            except DecodeError as error:
                reason = f"the answer is no {answer.DESCRIPTOR.name}: {error}"
                raise PodResourcesError(f"{self.socket}: {_FAILED}: {reason}") from error
            except TimeoutError as error:
                reason = f"no answer within {self._timeout_s:g} s"
                raise PodResourcesError(f"{self.socket}: {_FAILED}: {reason}") from error
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
                raise PodResourcesError(f"{self.socket}: {_FAILED}: {reason}") from error


def _holdings(answer: pb.ListPodResourcesResponse) -> tuple[Holding, ...]:
    ids: defaultdict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                ids[pod.namespace, pod.name, container.name, devices.resource_name].update(devices.device_ids)
    return tuple(Holding(*key, tuple(sorted(held))) for key, held in sorted(ids.items()) if held)


def _claim_users(answer: pb.ListPodResourcesResponse) -> Iterator[ClaimUser]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            devices = (it for claim in container.dynamic_resources for it in claim.claim_resources)
            if names := frozenset(cdi.name for device in devices for cdi in device.cdi_devices):
                yield ClaimUser(pod.namespace, pod.name, container.name, names)
