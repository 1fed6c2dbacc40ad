"""A document that pages show live: made while it has viewers, and announced to each viewer when it changes.

An event names only the new version; the viewer then fetches the document. So a viewer that reads slowly costs one
version number and never a queue, all viewers share one document, and a viewer that was away needs the latest one only.
Without viewers nothing is made or kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.supervise import keep
from nodeagent.web.server import Page

VIEWERS_MAX = 16
"""Half of the connections of the server; further viewers ask for the document every 15 s."""
REST_S = 1.0
"""At least this long between two documents."""
REST_SHARE = 10.0
"""And at least so many times the time that one has taken: at most a tenth of a core while there are viewers."""
HEARTBEAT_S = 10.0
"""A viewer that receives nothing for three times this long has lost its connection."""
JSON_TYPE = "application/json"
_NO_STORE = ("Cache-Control: no-store",)


class Document(msgspec.Struct, frozen=True):
    """``version`` differs between all documents of all replicas."""

    version: str
    body: bytes
    gzipped: bytes


class LiveDocument:
    """``make`` returns the document as JSON. ``changed`` looks at the present state when it is called; what it returns
    ends when another call of ``make`` may give another document.

    ``state`` is sent with each event: what the page shows besides the document, such as which replica leads.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[bytes]],
        changed: Callable[[], Awaitable[object]],
        state: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self._make, self._changed, self._state = make, changed, state
        self._origin = f"{time.time_ns():x}"
        self._numbers = itertools.count(1)
        self._document: Document | None = None
        self._announced = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._making: asyncio.Task[Document] | None = None
        self.viewers = 0
        self.made = 0
        """Documents made so far."""

    def events(self) -> Page:
        """The stream of a viewer, or 503 if there are too many."""
        if self.viewers >= VIEWERS_MAX:
            return Page(503, b"too many viewers; ask for the document instead\n")
        return Page(200, b"retry: 2000\n\n", "text/event-stream", stream=self._stream(), headers=_NO_STORE)

    async def document(self) -> Page:
        """The latest document; it is made now if there is no viewer."""
        document = await self.latest()
        return Page(200, document.body, JSON_TYPE, gzipped=document.gzipped, headers=_NO_STORE)

    async def latest(self) -> Document:
        """The latest document. Calls at the same time share one."""
        if self._document is not None:
            return self._document
        return await asyncio.shield(self._making or self._begin())

    def _begin(self) -> asyncio.Task[Document]:
        """Make a document of the present state. Who asks for the latest one meanwhile gets it."""
        making = self._making = asyncio.create_task(self._make_one())
        making.add_done_callback(self._ended)
        return making

    def _ended(self, making: asyncio.Task[Document]) -> None:
        if self._making is making:
            self._making = None
        if not making.cancelled():
            making.exception()  # each waiter has it; without one it is of no interest

    async def _make_one(self) -> Document:
        raw = await self._make()
        self.made += 1
        version = f"{self._origin}-{next(self._numbers)}"
        body = b'{"version":' + msgspec.json.encode(version) + b"," + raw.removeprefix(b"{")
        return Document(version, body, await in_thread(lambda: zlib.compress(body, 6, wbits=31)))

    # --- viewers --------------------------------------------------------------------------------------

    async def _stream(self) -> AsyncGenerator[bytes]:
        if self.viewers >= VIEWERS_MAX:
            return  # others that asked at the same time came first
        self.viewers += 1
        if self._following is None:
            self._following = asyncio.create_task(keep("live page", self._follow))
        try:
            version = ""
            while True:
                announced = self._announced
                document = self._document
                if document is not None and document.version != version:
                    version = document.version
                    yield _event("document", {"version": version, **self._state()})
                elif document is None:
                    yield _event("alive", self._state())
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await announced.wait()
                if not announced.is_set():
                    yield _event("alive", self._state())
        finally:
            self.viewers -= 1
            if not self.viewers and self._following is not None:
                self._following.cancel()
                self._following = self._document = None

    async def _follow(self) -> None:
        """Make a document at each change, while there are viewers."""
        while True:
            began = time.perf_counter()
            change = asyncio.ensure_future(self._changed())
            try:
                self._document = await self._begin()
                announced, self._announced = self._announced, asyncio.Event()
                announced.set()
                await asyncio.sleep(max(REST_S, REST_SHARE * (time.perf_counter() - began)))
                await change
            finally:
                change.cancel()


def _event(name: str, state: dict[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(state)}\n\n".encode()
