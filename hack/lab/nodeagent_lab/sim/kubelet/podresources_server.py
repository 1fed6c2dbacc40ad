"""The kubelet's podresources server: which container holds which devices.

As the kubelet does, it writes one entry for each device and NUMA node, and searches for ended pods at each request. It
answers at most 100 requests a second. Between a restart and the first list of pods it lists no pod.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import grpc.aio

from nodeagent.kube import podresources_pb2 as pb
from nodeagent_lab.sim.kubelet import protocol
from nodeagent_lab.sim.kubelet.checkpoint import WITHOUT_NUMA
from nodeagent_lab.sim.kubelet.device_manager import DeviceManager
from nodeagent_lab.sim.kubelet.dra_manager import DraManager
from nodeagent_lab.sim.kubelet.pods import Container, PodSpec

QUERIES_PER_S = 100.0
BURST = 10.0

_List = grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]
_Allocatable = grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse]
_Get = grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse]


class PodResourcesServer:
    """Serves ``v1.PodResourcesLister``."""

    def __init__(self, devices: DeviceManager, dra: DraManager) -> None:
        self._devices, self._dra = devices, dra
        self._tokens = BURST
        self._filled_at = time.monotonic()

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister",
            {
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list,
                    request_deserializer=pb.ListPodResourcesRequest.FromString,
                    response_serializer=pb.ListPodResourcesResponse.SerializeToString,
                ),
                "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                    self._allocatable,
                    request_deserializer=pb.AllocatableResourcesRequest.FromString,
                    response_serializer=pb.AllocatableResourcesResponse.SerializeToString,
                ),
                "Get": grpc.unary_unary_rpc_method_handler(
                    self._get,
                    request_deserializer=pb.GetPodResourcesRequest.FromString,
                    response_serializer=pb.GetPodResourcesResponse.SerializeToString,
                ),
            },
        )

    async def _list(self, _: pb.ListPodResourcesRequest, context: _List) -> pb.ListPodResourcesResponse:
        if not self._allowed():
            protocol.refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return pb.ListPodResourcesResponse()
        self._devices.update_allocated()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def _allocatable(
        self, _: pb.AllocatableResourcesRequest, context: _Allocatable
    ) -> pb.AllocatableResourcesResponse:
        if not self._allowed():
            protocol.refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return pb.AllocatableResourcesResponse()
        answer = pb.AllocatableResourcesResponse()
        for resource, healthy in self._devices.healthy.items():
            for device in healthy:
                nodes = self._devices.numa(resource, device)
                answer.devices.extend(_entry(resource, device, node) for node in nodes or (WITHOUT_NUMA,))
        return answer

    async def _get(self, request: pb.GetPodResourcesRequest, context: _Get) -> pb.GetPodResourcesResponse:
        if not self._allowed():
            protocol.refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return pb.GetPodResourcesResponse()
        for pod in self._pods():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        protocol.refuse(context, grpc.StatusCode.UNKNOWN, text)
        return pb.GetPodResourcesResponse()

    def _pods(self) -> list[PodSpec]:
        return list(self._devices.active.values()) if self._devices.sources_ready else []

    def _pod(self, pod: PodSpec) -> pb.PodResources:
        shown = [*(c for c in pod.init_containers if c.restartable), *pod.containers]
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(
                    name=container.name,
                    devices=self._held(pod.uid, container.name),
                    dynamic_resources=self._claims(pod.namespace, container),
                )
                for container in shown
            ],
        )

    def _held(self, uid: str, container: str) -> Iterator[pb.ContainerDevices]:
        for resource, held in self._devices.holdings.get(uid, {}).get(container, {}).items():
            for node, ids in held.by_numa.items():
                for device in ids:
                    yield _entry(resource, device, node)

    def _claims(self, namespace: str, container: Container) -> Iterator[pb.DynamicResource]:
        """All devices of a claim, whichever of its requests the container uses, and each with the CDI names of those
        before it (``GetDynamicResources``)."""
        for name in container.claims:
            if (state := self._dra.states.get(f"{namespace}/{name}")) is None:
                continue
            resources = []
            for driver, devices in state.devices.items():
                names: list[pb.CDIDevice] = []
                for device in devices:
                    names += [pb.CDIDevice(name=id_) for id_ in device.cdi_ids]
                    where = {"driver_name": driver, "pool_name": device.pool, "device_name": device.device}
                    resources.append(pb.ClaimResource(cdi_devices=names, share_id=device.share_id, **where))
            yield pb.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=resources)

    def _allowed(self) -> bool:
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * QUERIES_PER_S)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _entry(resource: str, device: str, node: int) -> pb.ContainerDevices:
    topology = None if node == WITHOUT_NUMA else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)])
    return pb.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)
