"""The kubelet's connections to plugins: register, dial back, watch, and lose them.

A plugin is dialed once for each registration, and its stream is opened once. Nothing reconnects. Two plugins may have
one name: the streams of both stay open, the list is that of the last message from any of them, and calls go to the one
that registered last. With ``bug_127803`` (kubelet 1.36 and before) clients are keyed by the resource's name alone: the
end of an old stream then closes the newest connection of that name.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent_lab.sim.kubelet import protocol
from nodeagent_lab.sim.kubelet.pods import (
    AdmissionError,
    Journal,
    PluginCall,
    RegistrationAttempt,
    StreamEnd,
)

VERSION = "v1beta1"
PRE_START_S = 30.0

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Answer = TypeVar("Answer", bound=Message)


class RegistrationError(Exception):
    """Why the kubelet refuses a plugin, in its words."""


def is_extended_resource(name: str) -> bool:
    """Whether a plugin may offer it: a domain that is not Kubernetes' own, a slash, a name.

    The length is that of the quota's name for it, which has ``requests.`` in front.
    """
    domain, slash, rest = name.partition("/")
    return bool(
        slash
        and "kubernetes.io/" not in name
        and not name.startswith("requests.")
        and len(f"requests.{domain}") <= 253
        and _DOMAIN.fullmatch(domain)
        and _NAME.fullmatch(rest)
    )


class PluginClient:
    """One connection to one plugin, from its registration to the end of its stream."""

    def __init__(self, resource: str, path: Path, journal: Journal) -> None:
        self.resource = resource
        self._journal = journal
        self._channel: grpc.aio.Channel | None = protocol.dial(path)

    async def dial(self, timeout_s: float) -> pb.DevicePluginOptions:
        """Connect and get the options; the latter has no time limit."""
        assert self._channel is not None, "a closed client does not dial again"
        try:
            await asyncio.wait_for(self._channel.channel_ready(), timeout_s)
        except TimeoutError:
            raise RegistrationError("failed to dial device plugin: context deadline exceeded") from None
        try:
            return await self._ask("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
        except AdmissionError as error:
            raise RegistrationError(f"failed to get device plugin options: {error}") from error

    async def watch(self, on_message: Callable[[bytes], None]) -> str:
        """Pass on every message of the stream. Return why it ended."""
        if self._channel is None:
            return protocol.CLOSING
        open_stream: grpc.aio.UnaryStreamMultiCallable[pb.Empty, bytes] = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch", request_serializer=pb.Empty.SerializeToString
        )
        try:
            async for message in open_stream(pb.Empty()):
                on_message(message)
        except grpc.aio.AioRpcError as error:
            return protocol.rpc_error(error)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if not protocol.cancelled_by_others():
                raise
            return protocol.CLOSING
        return "EOF"

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]:
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            answer = await self._ask("GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        except AdmissionError as error:
            raise AdmissionError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: list[str]) -> pb.AllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await self._ask("Allocate", request, pb.AllocateResponse)

    async def pre_start(self, ids: list[str]) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        try:
            await self._ask("PreStartContainer", request, pb.PreStartContainerResponse, PRE_START_S)
        except AdmissionError as error:
            raise AdmissionError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def close(self) -> None:
        # Without this reference the channel is freed while its loop is open.
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _ask(
        self, method: str, request: Message, answer: type[Answer], timeout_s: float | None = None
    ) -> Answer:
        """Call without a time limit by default: a plugin that hangs blocks the kubelet."""
        if self._channel is None:
            raise AdmissionError(f"endpoint {self.resource} has been stopped")
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        at = time.monotonic()
        error: str | None = None
        try:
            reply: Answer = await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as fault:
            error = protocol.rpc_error(fault)
            raise AdmissionError(error) from fault
        except asyncio.CancelledError:
            error = protocol.CLOSING
            if not protocol.cancelled_by_others():
                raise
            raise AdmissionError(error) from None
        finally:
            self._journal.calls.append(PluginCall(at, time.monotonic(), self.resource, method, error))
        return reply


class StreamOwner(Protocol):
    """The part of the device manager that the connections change."""

    def connected(self, client: PluginClient, options: pb.DevicePluginOptions) -> None: ...
    def disconnected(self, resource: str) -> None: ...
    def received(self, resource: str, message: bytes, at: float, *, repeated: bool) -> None: ...


class PluginClients:
    """All the plugins of one kubelet process."""

    def __init__(
        self,
        owner: StreamOwner,
        journal: Journal,
        directory: Path,
        *,
        bug_127803: bool,
        dial_timeout_s: float,
    ) -> None:
        self.refusal: str | None = None
        self._owner = owner
        self._journal = journal
        self._directory = directory
        self._bug_127803 = bug_127803
        self._dial_timeout_s = dial_timeout_s
        self._newest: dict[str, PluginClient] = {}
        self._live: dict[PluginClient, asyncio.Task[None]] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """Serves ``v1beta1.Registration`` on kubelet.sock."""
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=pb.RegisterRequest.FromString,
            response_serializer=pb.Empty.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})

    async def _register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """The deadline of the plugin's call also limits the dial back."""
        at = time.monotonic()
        remaining = context.time_remaining()
        timeout_s = self._dial_timeout_s if remaining is None else min(remaining, self._dial_timeout_s)
        error: str | None = "the plugin gave up"
        try:
            self.validate(request.resource_name, [request.version])
            # Options in the request are not looked at.
            await self.connect(request.resource_name, self._directory / request.endpoint, timeout_s)
            error = None
        except RegistrationError as fault:
            error = str(fault)
        finally:
            self.record(at, request.resource_name, request.endpoint, "kubelet.sock", error)
        if error is not None:
            protocol.refuse(context, grpc.StatusCode.UNKNOWN, error)
        return pb.Empty()

    def record(self, at: float, resource: str, endpoint: str, via: str, error: str | None) -> None:
        done = time.monotonic()
        self._journal.registrations.append(RegistrationAttempt(at, done, resource, endpoint, via, error))
        self._journal.changed()

    def validate(self, resource: str, versions: list[str]) -> None:
        if self.refusal is not None:
            raise RegistrationError(self.refusal)
        if VERSION not in versions:
            raise RegistrationError(
                f'requested API version "{" ".join(versions)}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        if not is_extended_resource(resource):
            raise RegistrationError(f'the ResourceName "{resource}" is invalid')

    async def connect(self, resource: str, path: Path, timeout_s: float | None = None) -> None:
        client = PluginClient(resource, path, self._journal)
        self._newest[resource] = client  # an older one is overwritten and not closed
        done = False
        try:
            options = await client.dial(self._dial_timeout_s if timeout_s is None else timeout_s)
            self._owner.connected(client, options)
            done = True
        finally:
            if not done:
                self._newest.pop(resource, None)
                await client.close()
        self._live[client] = asyncio.create_task(self._run(client), name=f"kubelet watches {resource}")

    async def disconnect(self, resource: str) -> None:
        """The plugin's socket was removed from plugins_registry."""
        client = self._newest.get(resource)
        if client is not None:
            await self._drop(client)

    async def close(self) -> None:
        """The process ends: close every connection, and change nothing else."""
        live, self._live = self._live, {}
        for task in live.values():
            task.cancel()
        await asyncio.gather(*live.values(), return_exceptions=True)
        for client in live:
            await client.close()
        self._newest.clear()

    async def _run(self, client: PluginClient) -> None:
        last: bytes | None = None

        def on_message(message: bytes) -> None:
            nonlocal last
            at = time.monotonic()
            self._owner.received(client.resource, message, at, repeated=message == last)
            last = message

        cause = await client.watch(on_message)
        self._journal.ends.append(StreamEnd(time.monotonic(), client.resource, cause))
        self._journal.changed()
        victim = self._newest.get(client.resource) if self._bug_127803 else client
        if victim is not None:
            await self._drop(victim)
        self._live.pop(client, None)
        await client.close()

    async def _drop(self, client: PluginClient) -> None:
        current = self._newest.get(client.resource) is client
        if current:
            del self._newest[client.resource]
        await client.close()
        if current:
            self._owner.disconnected(client.resource)
