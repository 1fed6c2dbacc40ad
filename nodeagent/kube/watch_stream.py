"""One watch: a thread that reads and decodes, and a loop that takes event by event.

The thread is ahead of the loop by a bounded number of events, and ends when the stream does, or within moments
of ``abort``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec

from nodeagent.kube.event_object import Event
from nodeagent.kube.failure import ApiError, said
from nodeagent.kube.resource import Partial, metadata
from nodeagent.kube.transport import Call, Transport

T = TypeVar("T")

AHEAD = 1000
"""So many events are decoded before somebody takes them."""


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)
_BOOKMARK = msgspec.json.Decoder(Partial)


class Watching(Generic[T]):
    """Made, started and read in one event loop."""

    def __init__(
        self, transport: Transport, call: Call, decoder: msgspec.json.Decoder[T], silence_s: float
    ) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._call = call
        self._decoder = decoder
        self._silence_s = silence_s
        self._events: deque[Event[T] | Exception | None] = deque()
        self._more = asyncio.Event()
        self._room = threading.Semaphore(AHEAD)
        # A daemon: a process that ends waits for no stream.
        self._thread = threading.Thread(target=self._read, name="kube-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abort(self) -> None:
        self._call.abort()
        self._room.release()

    async def next(self) -> Event[T] | None:
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
            for line in self._transport.lines(self._call, self._silence_s):
                if line:
                    self._room.acquire()
                    if self._call.aborted:
                        return
                    self._tell(self._event(line))
        except ApiError as error:
            end = error
        finally:
            self._tell(end, last=True)

    def _event(self, line: bytes) -> Event[T]:
        request = self._call.request
        try:
            outer = _LINE.decode(line)
            if outer.type == "ERROR":
                raise said(request, outer.object)
            if outer.type == "BOOKMARK":
                version = _BOOKMARK.decode(outer.object).metadata.resource_version
                return Event(outer.type, None, version or "")
            obj = self._decoder.decode(outer.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"an event is not what was asked for: {error}"
            raise ApiError(request.verb, request.path, 200, "Broken", message) from error
        return Event(outer.type, obj, metadata(obj).resource_version or "")

    def _tell(self, event: Any, *, last: bool = False) -> None:
        def told() -> None:
            self._events.append(event)
            self._more.set()
            if last:
                self.ended.set()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(told)
