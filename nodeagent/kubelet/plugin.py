"""The device-plugin service of one resource, on one unix socket.

The handlers use state in memory and never wait for the kernel, the driver or the API server. The kubelet puts no
deadline on Allocate, and a call that hangs blocks the admission of every pod of the node. Files that must exist
before the answer are written in a thread, and the whole call has a deadline of its own.

Several ListAndWatch streams may be open at once: the kubelet's old stream and its new one after a restart. Each
stream sends the latest device list, and no list twice.

A request goes to a GPU with room for the size that requests of its size grew to (``kubelet/grown_requests.py``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.facts.allocation import Allocation, Devices, hardware_of
from nodeagent.facts.model import Function, Reason, Snapshot
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kubelet.device_list import PLUGIN_OPTIONS, DeviceList
from nodeagent.kubelet.grown_requests import GrownRequests
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.unix_server import UnixServer

log = logging.getLogger(__name__)

T = TypeVar("T")

ALLOCATE_DEADLINE_S = 2.0
"""An Allocate that has not ended by then is refused, and the kubelet rolls it back."""

_LATER_S = 1.0
"""For facts of the API server that the kubelet had first. It watches the same pods as the agent."""

_FILES_S = 1.5
"""For the files of one container. A local file is written in a millisecond; a disk that takes longer hangs."""

RECENT_S = 2.0
"""NICs allocated within this time are taken for the same container's. The kubelet allocates each resource of a
container in a call of its own, in random order and without the pod's name, and admits one container at a time."""

_EMPTY = b""
_PREFERRED: tuple[frozenset[str], Refused | None] = (frozenset(), None)


class RecentFunctions:
    """The functions allocated within the last ``RECENT_S``. All plugins share this object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: deque[tuple[float, Function]] = deque(maxlen=64)

    def add(self, function: Function) -> None:
        self._entries.append((self._clock(), function))

    def functions(self) -> tuple[Function, ...]:
        oldest = self._clock() - RECENT_S
        while self._entries and self._entries[0][0] < oldest:
            self._entries.popleft()
        return tuple(function for _, function in self._entries)


class Plugin:
    """Serves the devices of one kind.

    ``on_stream_lost`` is called when the last ListAndWatch stream ends while the server runs, ``on_allocate`` with
    resource and IDs at each Allocate that is granted.
    """

    def __init__(
        self,
        kind: DeviceKind,
        files: OfferFiles,
        recent: RecentFunctions,
        stats: RpcStats,
        grown: GrownRequests,
        on_stream_lost: Callable[[], None],
        on_allocate: Callable[[str, Sequence[str]], None] = lambda _resource, _ids: None,
    ) -> None:
        self.resource = kind.resource
        self.device_list = DeviceList()
        self.streams = 0
        """The ListAndWatch streams that are open."""
        self.silent = False
        """Send nothing: the kubelet asks another plugin of this name, whose list a message would replace."""
        self.sent: tuple[Devices, ...] = ()
        """The device list that was sent last."""
        self._kind = kind
        self._snapshot = Snapshot()
        self._files = files
        self._recent = recent
        self._stats = stats
        self._on_stream_lost = on_stream_lost
        self._on_allocate = on_allocate
        self._writes = BoundedCalls("files of an allocation", _FILES_S)
        self._grown = grown
        self._unpreferred: tuple[frozenset[str], Refused | None] = _PREFERRED
        """The required devices of the last request that has no preference, and why it has none."""
        self._server = UnixServer()
        self._changed = asyncio.Event()
        self._fresh = asyncio.Event()

    def update(self, kind: DeviceKind, snapshot: Snapshot, removed: frozenset[str] = frozenset()) -> bool:
        """Take the latest kind and snapshot. If the device list changed, every open stream sends it. ``removed`` are
        the IDs that may leave the list."""
        self._kind = kind
        self._snapshot = snapshot
        fresh, self._fresh = self._fresh, asyncio.Event()
        fresh.set()
        made_of = kind, removed, kind.made_of(snapshot)
        if made_of == self.device_list.made_of:
            return False
        self.device_list.made_of = made_of
        held = [
            id_
            for holding in snapshot.holdings or ()
            if holding.resource == self.resource
            for id_ in holding.device_ids
            if hardware_of(id_) is not None  # another plugin had this name, and pods hold its devices
        ]
        before = self.device_list.devices
        if not self.device_list.update(kind.devices(snapshot), held, removed):
            return False
        _log_transitions(self.resource, before, self.device_list.devices)
        self._wake_streams()
        return True

    def speak(self) -> None:
        """End the silence. Every open stream sends the present list, unless it has sent it."""
        self.silent = False
        self._wake_streams()

    def _wake_streams(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- the socket -----------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        return self._server.serving

    def intact(self) -> bool:
        """Whether the socket's file is still the one that was bound."""
        return self._server.intact()

    async def start(self, path: Path) -> None:
        """Bind and serve. A file at ``path`` is replaced; the caller holds the node's lock."""
        await self._server.start(path, (self._handler(),))

    async def stop(self) -> None:
        """Close the socket and every stream. Return when they are closed."""
        await self._server.stop()

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
        return PLUGIN_OPTIONS

    async def _pre_start(self, _request: bytes, _context: Any) -> bytes:
        return _EMPTY

    async def _list_and_watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        served = self._server.bound
        self.streams += 1
        sent: bytes | None = None
        try:
            while True:
                changed = self._changed
                # Two changes while this stream waits for its turn may leave the list as it was.
                if sent != self.device_list.message and not self.silent:
                    sent, self.sent = self.device_list.message, self.device_list.devices
                    yield sent
                await changed.wait()
        finally:
            self.streams -= 1
            if self.streams == 0 and self.serving and self._server.bound == served:
                self._on_stream_lost()

    async def _prefer(self, request: bytes, context: Any) -> bytes:
        with self._stats.call(self.resource, "GetPreferredAllocation") as call:
            try:
                from nodeagent.kubelet import messages  # noqa: PLC0415 - protobuf: 24 ms and 1.2 MiB

                questions = messages.read_preferred_request(request)
                answers = [
                    await self._once_known(partial(self._preferred, *question)) for question in questions
                ]
                return messages.preferred_response(answers)
            except Refused as refusal:
                code, reason = _code(refusal), str(refusal)
            call.refused(code.name)
        log.warning("A preferred allocation was refused. resource=%s reason=%r", self.resource, reason)
        await context.abort(code, reason)
        raise AssertionError("abort never returns")

    def _preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        try:
            self._grown.ask(must, size, time.monotonic())
            later_sizes = () if must else self._grown.later_sizes(size)
            near = self._recent.functions()
            return self._kind.prefer(self._snapshot, available, must, size, near, later_sizes)
        except Refused as refusal:
            # The kubelet may have taken devices by NUMA affinity before this call. After a veto it keeps them
            # until its next update; after a refused Allocate it frees them at once (devicemanager/manager.go).
            # So let it fill up the choice, and refuse the Allocate.
            if not must or refusal.invalid:
                raise
            log.info("No preference is left. resource=%s reason=%r", self.resource, str(refusal))
            self._unpreferred = frozenset(must), refusal
            return must

    async def _allocate(self, request: bytes, context: Any) -> bytes:
        with self._stats.call(self.resource, "Allocate") as call:
            try:
                async with asyncio.timeout(ALLOCATE_DEADLINE_S):
                    return await self._grant(request)
            except Refused as refusal:
                code, reason = _code(refusal), str(refusal)
            except TimeoutError:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                within = f"within {ALLOCATE_DEADLINE_S:g} s"
                reason = f"{self.resource}: the files for the container were not written {within}"
            except OSError as error:
                code = grpc.StatusCode.UNAVAILABLE
                reason = f"{self.resource}: {error.filename} cannot be written: {error.strerror}"
            call.refused(code.name)
        log.warning("An allocation was refused. resource=%s reason=%r", self.resource, reason)
        await context.abort(code, reason)
        raise AssertionError("abort never returns")

    async def _grant(self, request: bytes) -> bytes:
        from nodeagent.kubelet import messages  # noqa: PLC0415 - protobuf: 24 ms and 1.2 MiB

        allocations = []
        for ids in messages.read_allocate_request(request):
            self._refuse_missing(ids)
            allocation = self._files.stamped(await self._once_known(partial(self._allocation, ids)))
            if self._files.due(allocation):
                await self._write_files(allocation)
            self._note_recent(self._snapshot, ids)
            self._grown.allocate(ids, time.monotonic())
            allocations.append(allocation)
            log.info("Devices were allocated. resource=%s count=%d first=%s", self.resource, len(ids), ids[0])
            self._on_allocate(self.resource, ids)
        return messages.allocate_response(allocations)

    async def _once_known(self, ask: Callable[[], T]) -> T:
        """Return the answer. If it needs a fact that may arrive soon, wait for new facts for ``_LATER_S``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LATER_S
        while True:
            try:
                return ask()
            except Refused as refusal:
                if not refusal.later or loop.time() >= deadline:
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._fresh.wait()

    def _allocation(self, ids: Sequence[str]) -> Allocation:
        """Raises ``Refused``, with the reason why there was no preference for this request: it names the cause."""
        (must, cause), self._unpreferred = self._unpreferred, _PREFERRED
        try:
            return self._kind.allocate(self._snapshot, ids)
        except Refused:
            if cause is not None and must <= frozenset(ids):
                raise cause from None
            raise

    async def _write_files(self, allocation: Allocation) -> None:
        try:
            await self._writes.run(self._files.write, allocation)
        except (OSError, asyncio.CancelledError):  # cancelled: the deadline of the call
            self._files.take_failure(self.resource, allocation)
            raise

    def _refuse_missing(self, ids: Sequence[str]) -> None:
        missing = self.device_list.first_missing(ids)
        if missing is not None:
            raise Refused(f"{self.resource}: {missing} is no longer found on this node")

    def _note_recent(self, snapshot: Snapshot, ids: Sequence[str]) -> None:
        if len(ids) > len(snapshot.functions):
            return
        allocated = set(ids)
        for function in snapshot.functions:
            if function.pci_address in allocated:
                self._recent.add(function)


def _code(refusal: Refused) -> grpc.StatusCode:
    return grpc.StatusCode.INVALID_ARGUMENT if refusal.invalid else grpc.StatusCode.FAILED_PRECONDITION


def _log_transitions(resource: str, before: Sequence[Devices], now: Sequence[Devices]) -> None:
    """Log one line for the devices of one parent that changed together, however many they are."""
    was = {entry.ids[0]: entry.health.allocatable for entry in before if entry.ids}
    changed: dict[tuple[str, tuple[str, ...]], list[Devices]] = {}
    for entry in now:
        if entry.ids and was.get(entry.ids[0], True) != entry.health.allocatable:
            # Group by the keys of the reasons: their sentences may name each device.
            keys = () if entry.health.allocatable else tuple(reason.key for reason in entry.health.reasons)
            changed.setdefault((entry.parent, keys), []).append(entry)
    for (parent, _), entries in changed.items():
        health, first = entries[0].health, entries[0].ids[0]
        count = sum(len(entry.ids) for entry in entries)
        where = (resource, parent, count, first)
        if health.allocatable:
            log.info("Devices are healthy again. resource=%s parent=%s count=%d first=%s", *where)
        else:
            reasons = "; ".join(_sentence(reason) for reason in health.reasons)
            log.warning(
                "Devices are unhealthy. resource=%s parent=%s count=%d first=%s reason=%r", *where, reasons
            )


def _sentence(reason: Reason) -> str:
    return f"{reason.key}: {reason.detail}"
