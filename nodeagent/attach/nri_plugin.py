"""A plugin of the container runtime's Node Resource Interface (NRI) that follows pod sandboxes.

The runtime asks at each sandbox of the node and waits for the answer, one sandbox after the other. A plugin that
answers later than the runtime's limit is closed, and the sandbox goes on without it: so the answer leaves before that,
and the work goes on. An error that is returned in time fails the sandbox, and the kubelet makes another one.

Runtimes send pod events in two ways: as ``StateChange`` (containerd 2.1, CRI-O), and as a call of its own for each
event (NRI since 2026-04). Both are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from nodeagent.attach import nri_pb2 as pb
from nodeagent.attach.ttrpc_frames import (
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    TTRPC_REQUEST,
    TTRPC_RESPONSE,
    TtrpcError,
    TtrpcMessage,
    TtrpcReader,
    frame,
)

log = logging.getLogger(__name__)

SOCKET = Path("/var/run/nri/nri.sock")
_NAME, _ORDER = "nodeagent-attach", "10"
_RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
_READ_BYTES = 64 * 1024
_CONNECT_S = 5.0
_REGISTERED_S = 10.0
"""From the connection to the end of ``Synchronize``. The runtime's own limit is five seconds by default."""
_ANSWER_SHARE = 0.8
"""The part of the runtime's limit after which the answer leaves although the work goes on."""
_LIMIT_S = 2.0
"""containerd's default, until the runtime has named its own."""
_LIMIT_MAX_S = 60.0
_CALLS_MAX = 64
"""Calls that are being answered at a time. A runtime makes one; more wait in its socket."""
SANDBOXES_MAX = 4096
"""The sandboxes of a node. The kubelet's own limit is 110 pods by default."""

_UNKNOWN, _INVALID, _EXHAUSTED, _UNIMPLEMENTED = 2, 3, 8, 12  # google.rpc.Code


class NriError(Exception):
    """No connection to the runtime, or it ended. The message names the socket and the cause."""


class AttachRefused(Exception):  # noqa: N818 - it is an answer
    """A pod cannot get its netdevs. The message is for the pod's Event."""


class Sandbox(Struct, frozen=True):
    """A pod sandbox. ``network`` is the path of its network namespace; empty for one without, which is in that of the
    node if ``on_host``. A runtime lists no namespace at all of a sandbox that it has stopped."""

    id: str
    namespace: str
    pod: str
    uid: str
    network: str
    on_host: bool = False


class SandboxEvents(Protocol):
    """A part that follows the sandboxes of a node."""

    async def synchronize(self, sandboxes: tuple[Sandbox, ...]) -> None:
        """These are all sandboxes that the runtime knows; some of them may have ended."""

    async def begin(self, sandbox: Sandbox) -> None:
        """A sandbox has its networks and no container yet. Raises ``AttachRefused`` to fail it."""

    async def end(self, sandbox: Sandbox) -> None:
        """The containers of a sandbox have ended; its network namespace still exists, or is gone already."""


class Runtime(Struct, frozen=True):
    """The runtime as it describes itself. ``nri`` is its version of NRI, empty where it tells none."""

    name: str
    version: str
    nri: str
    answer_limit_s: float


def sandbox_of(pod: pb.PodSandbox) -> Sandbox:
    paths = {one.type: one.path for one in pod.linux.namespaces}
    network = paths.get("network", "")
    return Sandbox(pod.id, pod.namespace, pod.name, pod.uid, network, bool(paths) and not network)


class NriPlugin:
    """Follows one runtime. ``run`` serves one connection, and is called again after its end."""

    def __init__(
        self, socket: Path, events: SandboxEvents, registered: Callable[[Runtime], object] = lambda _: None
    ) -> None:
        self._socket = socket
        self._events = events
        self._registered = registered
        self.runtime: Runtime | None = None
        """The runtime that is connected and synchronized."""

    async def run(self) -> None:
        """Connect, register, and serve until the runtime ends the connection. Raises ``NriError``."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(self._socket)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or f"no answer within {_CONNECT_S:g} s"
            raise NriError(f"{self._socket}: the runtime's NRI cannot be reached: {reason}") from error
        try:
            await _Connection(self, self._socket, self._events, writer).serve(reader)
        finally:
            self.runtime = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def synchronized(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._registered(runtime)


class _Connection:
    def __init__(
        self, plugin: NriPlugin, socket: Path, events: SandboxEvents, writer: asyncio.StreamWriter
    ) -> None:
        self._plugin, self._socket, self._events, self._writer = plugin, socket, events, writer
        self._runtime = Runtime("", "", "", _LIMIT_S)
        self._pods: list[Sandbox] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_CALLS_MAX)
        self._until_ready: asyncio.Timeout | None = None
        self._refused: str | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        request = pb.RegisterPluginRequest(plugin_name=_NAME, plugin_idx=_ORDER)
        call = pb.TtrpcRequest(service=_RUNTIME, method="RegisterPlugin", payload=request.SerializeToString())
        frames = TtrpcReader()
        await self._send(TtrpcMessage(RUNTIME_SERVICE, 1, TTRPC_REQUEST, call.SerializeToString()))
        try:
            async with asyncio.timeout(_REGISTERED_S) as self._until_ready:
                while data := await reader.read(_READ_BYTES):
                    for message in frames.feed(data):
                        await self._take(message)
        except TimeoutError as error:
            raise NriError(f"{self._socket}: the runtime did not register the plugin") from error
        except (OSError, TtrpcError) as error:
            raise NriError(f"{self._socket}: {error}") from error
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        raise NriError(f"{self._socket}: {self._refused or 'the runtime closed the connection'}")

    async def _take(self, message: TtrpcMessage) -> None:
        if message.connection == RUNTIME_SERVICE and message.kind == TTRPC_RESPONSE:
            status = _parsed(pb.TtrpcResponse, message.body).status
            if status.code:
                self._refused = f"the runtime refuses the plugin: {status.message[:300]}"
                self._writer.close()
        elif message.connection == PLUGIN_SERVICE and message.kind == TTRPC_REQUEST:
            await self._places.acquire()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A call of the runtime was not answered. reason=%r", error)
            self._writer.close()

    async def _answer(self, message: TtrpcMessage) -> None:
        answer = pb.TtrpcResponse()
        try:
            request = _parsed(pb.TtrpcRequest, message.body)
            reply = await self._call(request.method, request.payload)
            answer.payload = reply.SerializeToString()
        except TtrpcError as error:
            answer.status.code, answer.status.message = _INVALID, str(error)
        except AttachRefused as error:
            answer.status.code, answer.status.message = _UNKNOWN, str(error)
        except NotImplementedError as error:
            answer.status.code, answer.status.message = _UNIMPLEMENTED, str(error)
        except OverflowError as error:
            answer.status.code, answer.status.message = _EXHAUSTED, str(error)
        await self._send(
            TtrpcMessage(PLUGIN_SERVICE, message.stream, TTRPC_RESPONSE, answer.SerializeToString())
        )

    async def _call(self, method: str, payload: bytes) -> Message:
        if method == "Configure":
            return self._configure(_parsed(pb.ConfigureRequest, payload))
        if method == "Synchronize":
            return await self._synchronize(_parsed(pb.SynchronizeRequest, payload))
        if method == "StateChange":
            change = _parsed(pb.StateChangeEvent, payload)
            await self._event(change.event, sandbox_of(change.pod))
        elif method in _EVENTS:
            await self._event(_EVENTS[method], sandbox_of(_parsed(pb.PodRequest, payload).pod))
        elif method != "Shutdown":
            raise NotImplementedError(method[:100])
        return pb.Empty()

    def _configure(self, request: pb.ConfigureRequest) -> Message:
        limit_s = min(request.request_timeout / 1000 or _LIMIT_S, _LIMIT_MAX_S)
        self._runtime = Runtime(
            request.runtime_name[:100], request.runtime_version[:100], request.NRI_version[:100], limit_s
        )
        return pb.ConfigureResponse(events=sum(1 << event - 1 for event in _EVENTS.values()))

    async def _synchronize(self, request: pb.SynchronizeRequest) -> Message:
        self._pods.extend(map(sandbox_of, request.pods))
        if len(self._pods) > SANDBOXES_MAX:
            raise OverflowError(f"more than {SANDBOXES_MAX} sandboxes")
        if not request.more:
            pods, self._pods = tuple(self._pods), []
            await self._in_time(self._events.synchronize(pods), "Synchronize")
            if self._until_ready is not None:
                self._until_ready.reschedule(None)
            self._plugin.synchronized(self._runtime)
        return pb.SynchronizeResponse(more=request.more)

    async def _event(self, event: int, sandbox: Sandbox) -> None:
        if event == pb.RUN_POD_SANDBOX:
            await self._in_time(self._events.begin(sandbox), f"{sandbox.namespace}/{sandbox.pod}")
        elif event in (pb.STOP_POD_SANDBOX, pb.REMOVE_POD_SANDBOX):
            await self._in_time(self._events.end(sandbox), f"{sandbox.namespace}/{sandbox.pod}")

    async def _in_time(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do the work; return before the runtime's limit although it goes on."""
        task = asyncio.create_task(work)
        _going_on.add(task)
        limit_s = self._runtime.answer_limit_s * _ANSWER_SHARE
        done: set[asyncio.Task[None]] = set()
        try:
            done, _ = await asyncio.wait((task,), timeout=limit_s)
        finally:  # the connection may end meanwhile
            if done:
                _going_on.discard(task)
            else:
                task.add_done_callback(_late)
        if done:
            await task
            return
        log.warning("The runtime is answered before the work is done. what=%s after_s=%.1f", what, limit_s)

    async def _send(self, message: TtrpcMessage) -> None:
        self._writer.write(frame(message))
        with suppress(ConnectionError):
            await self._writer.drain()


_EVENTS = {
    "RunPodSandbox": pb.RUN_POD_SANDBOX,
    "StopPodSandbox": pb.STOP_POD_SANDBOX,
    "RemovePodSandbox": pb.REMOVE_POD_SANDBOX,
}
_going_on: set[asyncio.Task[None]] = set()
"""Work that goes on though its answer has left or its connection ended: asyncio itself keeps no reference."""


def _late(task: asyncio.Task[None]) -> None:
    _going_on.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("The work failed after its answer. reason=%r", str(error))


def _parsed(kind: type[Any], payload: bytes) -> Any:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise TtrpcError(f"no {kind.DESCRIPTOR.name}: {error}") from error
