"""A page with buttons for the faults of the demo, and below it the page of the real agent or controller.

The server listens on the loopback address and passes each request for ``/ui/`` on to the daemon, as a Service does: if
a replica of the controller ends, the next request goes to another one. A button needs a header that no page of another
origin can send.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.base.supervise import end_tasks

FOLDER = Path(__file__).parent / "panel"
HEAD_MAX = 16 * 1024
REQUEST_S = 10.0
PRESS_S = 60.0
"""For a fault: the demo starts and ends processes for some."""
_FILES = {
    "/": ("panel.html", "text/html; charset=utf-8"),
    "/panel.js": ("panel.js", "text/javascript; charset=utf-8"),
    "/panel.css": ("panel.css", "text/css; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class DemoFault:
    """A fault that a button makes. ``undo`` takes it back; ``None``: it can be made again and again."""

    key: str
    title: str
    make: Callable[[], Awaitable[object]]
    undo: Callable[[], Awaitable[object]] | None = None
    active: bool = False

    async def press(self) -> None:
        if self.active and self.undo is not None:
            await self.undo()
        else:
            await self.make()
        self.active = self.undo is not None and not self.active


class FaultPanel:
    """``connect`` opens a connection to the daemon. Raises ``OSError`` if none runs."""

    def __init__(self, faults: Sequence[DemoFault], connect: Callable[[], Awaitable[Streams]]) -> None:
        self._faults = {fault.key: fault for fault in faults}
        self._connect = connect
        self._pressing = asyncio.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultPanel]:
        """Serve while the context is open, and open the page where a graphical browser can."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_MAX)
        self.port = server.sockets[0].getsockname()[1]
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            await asyncio.to_thread(webbrowser.open, self.url)
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ),
        ):
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, reader, writer)

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("host") not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            await _send(writer, 403, b"this is another host\n")
        elif path.startswith("/ui"):
            await self._pass_on(first, lines, reader, writer)
        elif method == "GET" and path in _FILES:
            file, content_type = _FILES[path]
            await _send(writer, 200, await asyncio.to_thread((FOLDER / file).read_bytes), content_type)
        elif path == "/faults" and method == "GET":
            await _send(writer, 200, self._listed(), "application/json")
        elif path.startswith("/faults/") and method == "POST" and "x-nodeagent-demo" in headers:
            await self._press(path.removeprefix("/faults/"), writer)
        else:
            await _send(writer, 404, b"there is no such page\n")

    def _listed(self) -> bytes:
        shown = [
            {"key": fault.key, "title": fault.title, "active": fault.active}
            for fault in self._faults.values()
        ]
        return json.dumps(shown).encode()

    async def _press(self, key: str, writer: asyncio.StreamWriter) -> None:
        fault = self._faults.get(key)
        if fault is None:
            await _send(writer, 404, b"there is no such fault\n")
            return
        async with self._pressing:
            pressing = asyncio.ensure_future(fault.press())
            try:
                await asyncio.wait((pressing,), timeout=PRESS_S)
            finally:
                pressing.cancel()
        if not pressing.done() or pressing.cancelled():
            await _send(writer, 500, f"not done within {PRESS_S:g} s: {fault.title}\n".encode())
        elif (error := pressing.exception()) is not None:
            await _send(writer, 500, f"failed: {fault.title}: {error or type(error).__name__}\n".encode())
        else:
            await _send(writer, 200, self._listed(), "application/json")

    async def _pass_on(
        self, first: str, lines: Sequence[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass one request on, and its answer back until either side ends."""
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            await _send(writer, 503, b"no daemon runs\n")
            return
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        far_writer.write("\r\n".join([first, *kept, "Connection: close", "", ""]).encode("latin-1"))
        tasks = [
            asyncio.ensure_future(_copy(far_reader, writer)),
            asyncio.ensure_future(_copy(reader, far_writer)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(tasks)
            far_writer.close()


async def connect_to_socket(opened: socket.socket) -> Streams:
    """The streams of a connected Unix socket."""
    opened.setblocking(False)
    return await asyncio.open_unix_connection(sock=opened)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, content_type: str = "text/plain"
) -> None:
    lines = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        f"Content-Security-Policy: {_POLICY}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
