"""The device-plugin service of one resource on one unix socket.

Handlers work on state in memory and never wait for the kernel, the driver or the API server: the kubelet
puts no deadline on Allocate, and a hang there blocks the admission of every pod of the node. The two file
writes that must precede an answer go to a thread, and the whole call has a deadline of its own.

Any number of ListAndWatch streams may be open (the kubelet's old and new one after a restart): each is told
the latest roll, and no roll twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from nodeagent.kinds import Refused
from nodeagent.kubelet.device_info import refusal
from nodeagent.kubelet.device_list import OPTIONS, Roll
from nodeagent.kubelet.rpc_stats import Measure
from nodeagent.model import Allocation, Devices, Function, Reason, Snapshot

log = logging.getLogger(__name__)

DEADLINE_S = 2.0
"""An Allocate that has not ended by then is refused; the kubelet rolls a refusal back."""

NEAR_S = 2.0
"""NICs handed out this lately are taken for the same container's: the kubelet asks for each resource of a
container apart, in random order, without saying whose it is, and admits containers one after the other."""

_OPTIONS = (
    # The kubelet lists every free id in GetPreferredAllocation: 80,000 of them pass gRPC's 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)

_EMPTY = b""


class Kind(Protocol):
    """A kind of device, as ``nodeagent.kinds`` makes them: pure answers from a snapshot."""

    @property
    def resource(self) -> str: ...

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]: ...

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
    ) -> list[str]: ...

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation: ...


class Files(Protocol):
    """What must lie on the disk before an answer; ``write`` blocks and raises ``OSError``."""

    def due(self, allocation: Allocation) -> bool: ...

    def write(self, allocation: Allocation) -> None: ...


class Near:
    """The functions that were handed out in the last ``NEAR_S`` seconds; shared by the endpoints."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: deque[tuple[float, Function]] = deque(maxlen=64)

    def add(self, function: Function) -> None:
        self._entries.append((self._clock(), function))

    def functions(self) -> tuple[Function, ...]:
        oldest = self._clock() - NEAR_S
        while self._entries and self._entries[0][0] < oldest:
            self._entries.popleft()
        return tuple(function for _, function in self._entries)


def _why(folder: Path) -> str | None:
    """What gRPC does not say."""
    try:
        return refusal(folder)
    except OSError as error:
        return f"its folder is not there ({error.strerror})"


class BindError(Exception):
    """The socket cannot be opened; the message names it and the remedy."""


class Endpoint:
    """Serves one kind. ``stream_lost`` is called when the last ListAndWatch stream ends by itself,
    ``handed_out`` at each Allocate that is granted, ``write`` in a thread."""

    def __init__(
        self,
        kind: Kind,
        files: Files,
        near: Near,
        measure: Measure,
        stream_lost: Callable[[], None],
        handed_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.resource = kind.resource
        self.roll = Roll()
        self.streams = 0
        self._kind = kind
        self._snapshot = Snapshot()
        self._files = files
        self._near = near
        self._measure = measure
        self._stream_lost = stream_lost
        self._handed_out = handed_out
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()
        self._inode: tuple[int, int] | None = None
        self._path: Path | None = None

    # --- what is told ---------------------------------------------------------------------------------

    def tell(self, kind: Kind, snapshot: Snapshot) -> bool:
        """The latest kind and snapshot. Every open stream hears of a changed roll. True if it changed."""
        self._kind = kind
        self._snapshot = snapshot
        held = [
            id_
            for holding in snapshot.holdings or ()
            if holding.resource == self.resource
            for id_ in holding.device_ids
        ]
        before = self.roll.devices
        if not self.roll.state(kind.devices(snapshot), held):
            return False
        _log_transitions(self.resource, before, self.roll.devices)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return True

    # --- the socket -----------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        return self._server is not None

    def intact(self) -> bool:
        """Whether the socket's file is still the one that was bound."""
        return self._path is not None and self._inode is not None and _inode(self._path) == self._inode

    async def start(self, path: Path, extra: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        """Bind and serve. A file left over at ``path`` is replaced; the caller holds the node's lock."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handler(), *extra))
        try:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise BindError(f"cannot listen on {path}: {_why(path.parent) or error}") from error
        self._server, self._path, self._inode = server, path, _inode(path)

    async def stop(self) -> None:
        """Close the socket and every stream, and return once they are closed."""
        server, self._server = self._server, None
        self._inode = None
        if server is not None:
            await server.stop(grace=None)

    # --- the service ----------------------------------------------------------------------------------

    def _handler(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[[bytes, Any], Any]) -> grpc.RpcMethodHandler[bytes, bytes]:
            return grpc.unary_unary_rpc_method_handler(method)

        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "GetPreferredAllocation": unary(self._prefer),
            "Allocate": unary(self._allocate),
            "PreStartContainer": unary(self._pre_start),
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)

    async def _options(self, _request: bytes, _context: Any) -> bytes:
        return OPTIONS

    async def _pre_start(self, _request: bytes, _context: Any) -> bytes:
        return _EMPTY

    async def _list_and_watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        server = self._server
        self.streams += 1
        told = -1
        try:
            while True:
                changed = self._changed
                if told != self.roll.revision:
                    told = self.roll.revision
                    yield self.roll.message
                await changed.wait()
        finally:
            self.streams -= 1
            if self.streams == 0 and self._server is server:
                self._stream_lost()

    async def _prefer(self, request: bytes, context: Any) -> bytes:
        with self._measure.call(self.resource, "GetPreferredAllocation") as call:
            try:
                from nodeagent.kubelet import messages  # noqa: PLC0415

                return messages.preferred(self._preferred(*choice) for choice in messages.choices(request))
            except Refused as refusal:
                code, why = _code(refusal), str(refusal)
            call.refused(code.name)
        log.warning("A preferred allocation was refused. resource=%s reason=%r", self.resource, why)
        await context.abort(code, why)
        raise AssertionError("abort returns never")

    def _preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        try:
            return self._kind.prefer(self._snapshot, available, must, size, self._near.functions())
        except Refused as refusal:
            # What the kubelet has taken by NUMA affinity before it asks leaks at a veto, while a refused
            # Allocate is rolled back (devicemanager/manager.go). It will fill this up, and be refused there.
            if not must or refusal.invalid:
                raise
            log.info("No preference is left. resource=%s reason=%r", self.resource, str(refusal))
            return must

    async def _allocate(self, request: bytes, context: Any) -> bytes:
        with self._measure.call(self.resource, "Allocate") as call:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    return await self._answer(request)
            except Refused as refusal:
                code, why = _code(refusal), str(refusal)
            except TimeoutError:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                why = f"{self.resource}: the files for the container were not written within {DEADLINE_S:g} s"
            except OSError as error:
                code = grpc.StatusCode.UNAVAILABLE
                why = f"{self.resource}: {error.filename} cannot be written: {error.strerror}"
            call.refused(code.name)
        log.warning("An allocation was refused. resource=%s reason=%r", self.resource, why)
        await context.abort(code, why)
        raise AssertionError("abort returns never")

    async def _answer(self, request: bytes) -> bytes:
        from nodeagent.kubelet import messages  # noqa: PLC0415

        kind, snapshot = self._kind, self._snapshot
        allocations = []
        for ids in messages.asked(request):
            self._refuse_missing(ids)
            allocation = kind.allocate(snapshot, ids)
            if self._files.due(allocation):
                await asyncio.to_thread(self._files.write, allocation)
            self._note(snapshot, ids)
            allocations.append(allocation)
            log.info(
                "Devices were handed out. resource=%s count=%d first=%s", self.resource, len(ids), ids[0]
            )
            self._handed_out()
        return messages.granted(allocations)

    def _refuse_missing(self, ids: Sequence[str]) -> None:
        missing = self.roll.missing(ids)
        if missing is not None:
            raise Refused(f"{self.resource}: {missing} is no longer found on this node", invalid=False)

    def _note(self, snapshot: Snapshot, ids: Sequence[str]) -> None:
        if len(ids) > len(snapshot.functions):
            return
        wanted = set(ids)
        for function in snapshot.functions:
            if function.pci_address in wanted:
                self._near.add(function)


def _code(refusal: Refused) -> grpc.StatusCode:
    return grpc.StatusCode.INVALID_ARGUMENT if refusal.invalid else grpc.StatusCode.FAILED_PRECONDITION


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _log_transitions(resource: str, before: Sequence[Devices], now: Sequence[Devices]) -> None:
    """One line for what happened to the devices of one parent, however many they are."""
    was = {entry.ids[0]: entry.health.allocatable for entry in before if entry.ids}
    changed: dict[tuple[str, tuple[str, ...]], list[Devices]] = {}
    for entry in now:
        if entry.ids and was.get(entry.ids[0], True) != entry.health.allocatable:
            # The sentences may name each device; what happened to them is one thing.
            keys = () if entry.health.allocatable else tuple(reason.key for reason in entry.health.reasons)
            changed.setdefault((entry.parent, keys), []).append(entry)
    for (parent, _), entries in changed.items():
        health, first = entries[0].health, entries[0].ids[0]
        count = sum(len(entry.ids) for entry in entries)
        where = (resource, parent, count, first)
        if health.allocatable:
            log.info("Devices are healthy again. resource=%s parent=%s count=%d first=%s", *where)
        else:
            why = "; ".join(_sentence(reason) for reason in health.reasons)
            log.warning(
                "Devices are unhealthy. resource=%s parent=%s count=%d first=%s reason=%r", *where, why
            )


def _sentence(reason: Reason) -> str:
    return f"{reason.key}: {reason.detail}"
