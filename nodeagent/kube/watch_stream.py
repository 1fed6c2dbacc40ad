"""One watch: a thread that reads and decodes, and a loop that takes one event after the other.

The thread decodes at most ``AHEAD`` events before the loop takes them. It ends with the stream, or soon after
``abort``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

import msgspec

from nodeagent.kube.failure import ApiError, error_of_event
from nodeagent.kube.resource import Partial, WatchEvent, metadata
from nodeagent.kube.transport import ApiCall, Transport

T = TypeVar("T")

AHEAD = 1000


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
        self._events: deque[WatchEvent[T] | Exception | None] = deque()
        self._more = asyncio.Event()
        self._room = threading.Semaphore(AHEAD)
        # A daemon thread: a process that ends does not wait for a stream.
        self._thread = threading.Thread(target=self._read, name="kube-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abort(self) -> None:
        self._call.abort()
        self._room.release()

    async def next(self) -> WatchEvent[T] | None:
        """The next event; ``None`` at the end. Raises ``ApiError``."""
        while not self._events:
            self._more.clear()
            await self._more.wait()
        first = self._events.popleft()
        self._room.release()
        if isinstance(first, Exception):
            raise first
        return first

    # --- in the thread --------------------------------------------------------------------------------

    def _read(self) -> None:
        end: Exception | None = None
        try:
            for line in self._transport.lines(self._call, self._no_data_s):
                if line:
                    self._room.acquire()
                    if self._call.aborted:
                        return
                    self._pass(self._event(line))
        except ApiError as error:
            end = error
        finally:
            self._pass(end, last=True)

    def _event(self, line: bytes) -> WatchEvent[T]:
        request = self._call.request
        try:
            outer = _LINE.decode(line)
            if outer.type == "ERROR":
                raise error_of_event(request, outer.object)
            if outer.type == "BOOKMARK":
                version = _BOOKMARK.decode(outer.object).metadata.resource_version
                return WatchEvent(outer.type, None, version or "")
            obj = self._decoder.decode(outer.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"an event cannot be decoded: {error}"
            raise ApiError(request.verb, request.path, 200, "Broken", message) from error
        return WatchEvent(outer.type, obj, metadata(obj).resource_version or "")

    def _pass(self, event: WatchEvent[T] | Exception | None, *, last: bool = False) -> None:
        """Pass an event, an error or the end to the loop."""

        def append() -> None:
            self._events.append(event)
            self._more.set()
            if last:
                self.ended.set()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(append)
