"""One watch: a thread that reads and decodes, and a loop that takes one event after the other.

The thread decodes at most ``AHEAD`` events, of ``AHEAD_BYTES`` and one more event, before the loop takes them. It ends
with the stream, or soon after ``abort``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

import msgspec

from nodeagent.kube.answer_bounds import decode_answer
from nodeagent.kube.failure import ApiError, error_of_event
from nodeagent.kube.resource import Partial, WatchEvent, metadata
from nodeagent.kube.transport import ApiCall, Transport

T = TypeVar("T")

AHEAD = 1000
AHEAD_BYTES = 8 << 20


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)
_BOOKMARK = msgspec.json.Decoder(Partial)


class WatchStream(Generic[T]):
    """Created, started and read in one event loop."""

    def __init__(
        self, transport: Transport, call: ApiCall, decoder: msgspec.json.Decoder[T], no_data_s: float
    ) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._call = call
        self._decoder = decoder
        self._no_data_s = no_data_s
        self._events: deque[tuple[WatchEvent[T] | Exception | None, int]] = deque()
        self._more = asyncio.Event()
        self._room = threading.Condition()
        self._ahead, self._ahead_bytes = 0, 0
        # A daemon thread: a process that ends does not wait for a stream.
        self._thread = threading.Thread(target=self._read, name="kube-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abort(self) -> None:
        self._call.abort()
        with self._room:
            self._room.notify()

    async def next(self) -> WatchEvent[T] | None:
        """The next event; ``None`` at the end. Raises ``ApiError``."""
        while not self._events:
            self._more.clear()
            await self._more.wait()
        first, size = self._events.popleft()
        with self._room:
            self._ahead -= 1
            self._ahead_bytes -= size
            self._room.notify()
        if isinstance(first, Exception):
            raise first
        return first

    # --- in the thread --------------------------------------------------------------------------------

    def _read(self) -> None:
        end: Exception | None = None
        try:
            for line in self._transport.lines(self._call, self._no_data_s):
                if line:
                    self._wait_for_room(len(line))
                    if self._call.aborted:
                        return
                    self._pass(self._event(line), len(line))
        except ApiError as error:
            end = error
        finally:
            self._pass(end, 0, last=True)

    def _wait_for_room(self, size: int) -> None:
        with self._room:
            while not self._call.aborted and (self._ahead >= AHEAD or self._ahead_bytes >= AHEAD_BYTES):
                self._room.wait()
            self._ahead += 1
            self._ahead_bytes += size

    def _event(self, line: bytes) -> WatchEvent[T]:
        request = self._call.request
        outer = decode_answer(request, line, _LINE)
        if outer.type == "ERROR":
            raise error_of_event(request, outer.object)
        body = bytes(outer.object)
        if outer.type == "BOOKMARK":
            version = decode_answer(request, body, _BOOKMARK).metadata.resource_version
            return WatchEvent(outer.type, None, version or "")
        obj = decode_answer(request, body, self._decoder)
        return WatchEvent(outer.type, obj, metadata(obj).resource_version or "")

    def _pass(self, event: WatchEvent[T] | Exception | None, size: int, *, last: bool = False) -> None:
        """Pass an event, an error or the end to the loop."""

        def append() -> None:
            self._events.append((event, size))
            self._more.set()
            if last:
                self.ended.set()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(append)
