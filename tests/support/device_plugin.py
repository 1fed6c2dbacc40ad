"""A small device plugin on a real socket, for tests of the stand-in kubelet. The test sets its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.kube import pluginregistration_pb2 as registration_pb


def device(name: str, *numa: int, health: str = "Healthy") -> pb.Device:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in numa]) if numa else None
    return pb.Device(ID=name, health=health, topology=topology)


def many(prefix: str, count: int, *numa: int) -> list[pb.Device]:
    return [device(f"{prefix}{index}", *numa) for index in range(count)]


def unary(handle, request, answer):
    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=answer.SerializeToString
    )


class RefusalError(Exception):
    """Raised by a ``prefer`` or ``give`` function: the RPC's status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


class Plugin:
    """Serves one resource; ``prefer(available, must_include, size)`` and ``give(ids)`` decide the answers.

    ``calls`` holds every request in order; ListAndWatch sends bytes as they are.
    """

    def __init__(
        self,
        socket: Path,
        resource: str,
        devices: Iterable[pb.Device],
        *,
        prefer: Callable[[list[str], list[str], int], list[str]] | None = None,
        give: Callable[[list[str]], pb.AllocateResponse] | None = None,
        pre_start: bool = False,
        endpoint: str = "",
        versions: tuple[str, ...] = ("v1beta1",),
        kind: str = "DevicePlugin",
    ) -> None:
        self.socket = socket
        self.resource = resource
        self.prefer = prefer
        self.give = give or (
            lambda ids: pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()])
        )
        self.info = registration_pb.PluginInfo(
            type=kind, name=resource, endpoint=endpoint, supported_versions=versions
        )
        self.options = pb.DevicePluginOptions(
            pre_start_required=pre_start, get_preferred_allocation_available=prefer is not None
        )
        self.options_gate = asyncio.Event()
        self.options_gate.set()
        self.allocate_gate = asyncio.Event()
        self.allocate_gate.set()
        self._pulse = asyncio.Event()
        self.calls: list[tuple[str, object]] = []
        self.statuses: list[registration_pb.RegistrationStatus] = []
        self._message = self._encode(devices)
        self._streams: list[asyncio.Queue[bytes | None]] = []
        self._server: grpc.aio.Server | None = None

    @staticmethod
    def _encode(devices: Iterable[pb.Device]) -> bytes:
        return pb.ListAndWatchResponse(devices=devices).SerializeToString()

    def called(self, method: str) -> list:
        return [request for name, request in self.calls if name == method]

    @property
    def streams(self) -> int:
        return len(self._streams)

    async def until(self, predicate: Callable[[], bool], timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not predicate():
                await self._pulse.wait()

    def _changed(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    def _log(self, method: str, request: object) -> None:
        self.calls.append((method, request))
        self._changed()

    def say(self, devices: Iterable[pb.Device]) -> None:
        """Send a new list on every open stream."""
        self._message = self._encode(devices)
        for stream in self._streams:
            stream.put_nowait(self._message)

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    async def start(self) -> Plugin:
        self._server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "v1beta1.DevicePlugin",
                    {
                        "GetDevicePluginOptions": unary(self._options, pb.Empty, pb.DevicePluginOptions),
                        "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._watch),
                        "GetPreferredAllocation": unary(
                            self._preferred, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
                        ),
                        "Allocate": unary(self._allocate, pb.AllocateRequest, pb.AllocateResponse),
                        "PreStartContainer": unary(
                            self._pre_start, pb.PreStartContainerRequest, pb.PreStartContainerResponse
                        ),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    "pluginregistration.Registration",
                    {
                        "GetInfo": unary(
                            self._get_info, registration_pb.InfoRequest, registration_pb.PluginInfo
                        ),
                        "NotifyRegistrationStatus": unary(
                            self._notify,
                            registration_pb.RegistrationStatus,
                            registration_pb.RegistrationStatusResponse,
                        ),
                    },
                ),
            )
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def register(
        self,
        kubelet: Path,
        *,
        version: str = "v1beta1",
        timeout_s: float | None = 5.0,
        options: pb.DevicePluginOptions | None = None,
    ) -> None:
        request = pb.RegisterRequest(
            version=version, endpoint=self.socket.name, resource_name=self.resource, options=options
        )
        async with grpc.aio.insecure_channel(
            f"unix:{kubelet}",
            options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)),
        ) as channel:
            await channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )(request, timeout=timeout_s)

    async def _options(self, request, context):
        self._log("GetDevicePluginOptions", request)
        await self.options_gate.wait()
        return self.options

    async def _watch(self, request, context):
        self._log("ListAndWatch", request)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.append(stream)
        try:
            yield self._message
            while (message := await stream.get()) is not None:
                yield message
        finally:
            self._streams.remove(stream)
            self._changed()

    async def _preferred(self, request, context):
        self._log("GetPreferredAllocation", request)
        (asked,) = request.container_requests
        try:
            chosen = self.prefer(
                list(asked.available_deviceIDs), list(asked.must_include_deviceIDs), asked.allocation_size
            )
        except RefusalError as refusal:
            await context.abort(refusal.code, refusal.text)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def _allocate(self, request, context):
        self._log("Allocate", request)
        await self.allocate_gate.wait()
        (asked,) = request.container_requests
        try:
            return self.give(list(asked.devices_ids))
        except RefusalError as refusal:
            await context.abort(refusal.code, refusal.text)

    async def _pre_start(self, request, context):
        self._log("PreStartContainer", request)
        return pb.PreStartContainerResponse()

    async def _get_info(self, request, context):
        self._log("GetInfo", request)
        return self.info

    async def _notify(self, request, context):
        self.statuses.append(request)
        self._changed()
        return registration_pb.RegistrationStatusResponse()
