"""A small HTTP/1.1 server on the event loop, for Prometheus and for the kubelet's probes.

h11 parses the requests. Connections (``connections.py``), request size and time are bounded: a client that never reads,
or never ends its request, costs one descriptor for some seconds. Connections stay open between scrapes, because
Prometheus reuses them. A client beyond the limit gets the probes only, and 503 with Retry-After for every other page.
Only GET and HEAD are answered. A page comes in pieces, and each piece is compressed alone, so that no page blocks the
loop. A page that never ends is a stream of events: its pieces are sent as they come, and its connection is never closed
for another one, so its owner bounds the number of streams.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

import msgspec

from nodeagent.base.supervise import either, end_tasks
from nodeagent.host.fd import wait_readable
from nodeagent.web.auth import AccessControl
from nodeagent.web.connections import Connections, Phase
from nodeagent.web.listening import listen
from nodeagent.web.web_settings import AccessSettings

log = logging.getLogger(__name__)

_RETRY_S = 1
"""A client beyond the limit is asked to come back after so many seconds."""
REQUEST_MAX_BYTES = 16 * 1024
"""Of a request whose end has not come."""
PIECE_BYTES = 64 * 1024
"""Of an answer, what is handed to TLS at once. It takes more without asking whether the client reads."""
PLAIN_MAX_BYTES = 1024
"""Smaller bodies are not compressed."""
REQUEST_S = 10.0
_IDLE_S = 130.0
"""Longer than two of the longest scrape intervals in use."""
NO_DESCRIPTOR_S = 1.0
"""Between two tries if no descriptor is left for a connection."""
PROBES = frozenset({"/healthz", "/readyz"})
CHALLENGES = ("WWW-Authenticate: Bearer", 'WWW-Authenticate: Basic realm="nodeagent", charset="UTF-8"')
"""A browser asks its user for a name and a password; the password is the token, and the name does not matter."""
_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


_ORIGIN = re.compile(r"^https?://[^/?]*", re.IGNORECASE)
"""The scheme and host before the path, as for a proxy; RFC 9112, 3.2.2 requires a server to accept them."""


class Page(msgspec.Struct, frozen=True):
    """A response: ``body``, then ``pieces``. Compressed with gzip if the client accepts it; ``gzipped`` is the whole
    body, compressed before. A ``stream`` follows the body, uncompressed and without an end of its own."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    pieces: AsyncIterator[bytes] | None = None
    gzipped: bytes | None = None
    stream: AsyncGenerator[bytes] | None = None
    headers: tuple[str, ...] = ()


_NOT_OURS = b"this server does not know the name in the address; use an IP address, or add the name to web.hostNames\n"
_BUSY = Page(503, b"too many connections; try again\n")


def json_page(shown: object) -> Page:
    """A page with the JSON of a struct or of a value."""
    return Page(200, msgspec.json.encode(shown), "application/json")


PageHandler = Callable[[str], Page]
"""Takes the value of the Accept header."""


class PageRequest(msgspec.Struct, frozen=True):
    """``query`` is what follows the question mark, undecoded. ``keep_alive``: another request may follow on this
    connection."""

    method: str
    path: str
    headers: dict[str, str]
    keep_alive: bool
    query: str = ""


FolderHandler = Callable[[PageRequest], Awaitable[Page]]
"""Answers every path below a folder."""


class WebServer:
    """``folders`` are handlers by the beginning of a path, such as ``/ui/``."""

    def __init__(
        self,
        pages: dict[str, PageHandler],
        access: AccessControl | None = None,
        folders: Mapping[str, FolderHandler] = MappingProxyType({}),
    ) -> None:
        self._pages = pages
        self._folders = folders
        self._access = access or AccessControl(AccessSettings())
        self._last_error = ""
        self._open = Connections()

    async def run(self, host: str, port: int, ready: Callable[[int], None] = lambda _port: None) -> None:
        """Serve until cancelled; an empty host is all addresses. ``ready`` takes the port, which the kernel chooses
        if ``port`` is 0."""
        self._access.names.add(host.lower())
        await self._access.read()
        listening = await listen(host, port)
        try:
            port = listening[0].getsockname()[1]
            tls = "yes" if self._access.settings.certificate_file else "no"
            log.info("Serving metrics and probes. host=%s port=%d tls=%s", host or "*", port, tls)
            async with asyncio.TaskGroup() as group:
                for listener in listening:
                    group.create_task(self._accept(listener))
                if self._access.settings.restricted:
                    group.create_task(self._access.watch())
                ready(port)
        finally:
            for listener in listening:
                listener.close()
            await end_tasks(self._open.tasks())

    async def accept_from(self, listening: socket.socket) -> None:
        """Serve on a socket of the caller until cancelled. It becomes non-blocking."""
        listening.setblocking(False)
        try:
            await self._accept(listening)
        finally:
            await end_tasks(self._open.tasks())

    # --- connections ----------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Not ``loop.sock_accept``, which loses a connection if it is cancelled.
            await wait_readable(listening.fileno())
            try:
                connection, address = listening.accept()
                connection.setblocking(False)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # the client has left
                log.warning("A connection cannot be accepted. reason=%r", os.strerror(error.errno))
                await asyncio.sleep(NO_DESCRIPTOR_S)
                continue
            if self._access.closed:
                connection.close()
                continue
            task = loop.create_task(self._connected(connection))
            self._open.add(task, str(address[0]) if address else "")
            task.add_done_callback(partial(self._closed, connection))

    def _closed(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if task.cancelled():
            connection.close()  # a task that is cancelled before its first step does not
        elif (error := task.exception()) is not None:
            reason = f"{type(error).__name__}: {error}"
            if reason != self._last_error:  # once, not at every scrape
                log.error("A request could not be answered. reason=%r", reason)
            self._last_error = reason

    def _mark(self, phase: Phase) -> None:
        self._open.mark(asyncio.current_task(), phase)

    async def _connected(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(REQUEST_MAX_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        context = self._access.context
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                if connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=REQUEST_S if context else None,
                )
        except (TimeoutError, OSError):
            return
        finally:
            if transport is None:
                connection.close()
        # So that drain() returns when everything is sent. 0 would be "never" with TLS (Python 3.11: size >= high).
        transport.set_write_buffer_limits(high=1)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._converse(reader, writer, context)
            writer.close()
            async with asyncio.timeout(REQUEST_S):
                await writer.wait_closed()  # with TLS the client has its part in the end
        except (TimeoutError, OSError):
            pass  # too slow, or gone: no answer
        finally:
            transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        timeout_s = REQUEST_S
        received = b""
        while True:
            if not received:
                async with asyncio.timeout(timeout_s):
                    received = await reader.read(REQUEST_MAX_BYTES)
            if not received or not self._access.trusts(context):
                return
            async with asyncio.timeout(REQUEST_S):
                request, received = await _read_request(reader, received)
                if admitted := self._open.admits(asyncio.current_task()):
                    self._mark(Phase.SERVER)
                stream = await self._answer(request, writer, admitted)
            if stream is not None:
                await self._send_stream(stream, reader, writer)
                return
            if not admitted:
                return
            self._mark(Phase.IDLE)
            if request is None or not request.keep_alive:
                return
            timeout_s = _IDLE_S
            await asyncio.sleep(0)  # other tasks run even if a thousand requests wait in the buffer

    # --- requests -------------------------------------------------------------------------------------

    async def _answer(
        self, request: PageRequest | None, writer: asyncio.StreamWriter, admitted: bool
    ) -> AsyncGenerator[bytes] | None:
        """Send the answer. Returns the stream that follows it, if one does. A connection that is not admitted stays
        in the phase ``NEW``: it may be closed for another one."""
        busy = not admitted and request is not None and request.path not in PROBES
        page = _BUSY if busy else await self._page(request, writer)
        headers = request.headers if request else {}
        body, packed = await _encoded(page, _takes_gzip(headers))
        closes = page.stream is not None or not admitted or not (request and request.keep_alive)
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
            f"Content-Type: {page.content_type}",
            *([f"Content-Length: {len(body)}"] if page.stream is None else []),
            "Vary: Accept, Accept-Encoding",
            *page.headers,
            *(["Content-Encoding: gzip"] if packed else []),
            *(CHALLENGES if page.status == 401 else []),
            *(["Allow: GET, HEAD"] if page.status == 405 else []),
            *([f"Retry-After: {_RETRY_S}"] if busy else []),
            *(["Connection: close"] if closes else []),
        ]
        answer = "\r\n".join([*lines, "", ""]).encode()
        if not request or request.method != "HEAD":
            answer += body
        if admitted:
            self._mark(Phase.CLIENT)
        for at in range(0, len(answer), PIECE_BYTES):
            writer.write(answer[at : at + PIECE_BYTES])
            await writer.drain()
        return page.stream if request and request.method == "GET" else None

    async def _send_stream(
        self, pieces: AsyncGenerator[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send the pieces until the client leaves, sends anything, or does not read for ``REQUEST_S``."""
        self._mark(Phase.STREAM)

        async def send() -> None:
            async for piece in pieces:
                async with asyncio.timeout(REQUEST_S):
                    writer.write(piece)
                    await writer.drain()

        try:
            await either(send(), reader.read(1))
        finally:
            await pieces.aclose()
            writer.transport.abort()  # what the client does not read would keep the connection open

    async def _page(self, request: PageRequest | None, writer: asyncio.StreamWriter) -> Page:
        if request is None:
            return Page(400, b"this is an HTTP server\n")
        if not self._access.answers_for(request.headers.get("host", "")):
            return Page(421, _NOT_OURS)
        if request.method not in ("GET", "HEAD"):
            return Page(405, b"only GET and HEAD\n")
        certified = bool(writer.get_extra_info("peercert"))
        status = self._access.status_for(
            request.path in PROBES, request.headers.get("authorization", ""), certified
        )
        if status != 200:
            return Page(
                status, b"a client certificate is required\n" if status == 403 else b"a token is required\n"
            )
        answer = self._pages.get(request.path)
        if answer is None:
            for folder, handler in self._folders.items():
                if request.path.startswith(folder) or request.path == folder.rstrip("/"):
                    return await handler(request)
            return Page(404, f"try {' '.join(sorted((*self._pages, *self._folders)))}\n".encode())
        return answer(request.headers.get("accept", ""))


async def _read_request(reader: asyncio.StreamReader, received: bytes) -> tuple[PageRequest | None, bytes]:
    """The request that begins with ``received``, and what the client has sent after it. ``None``: it is not HTTP/1, or
    its head is longer than ``REQUEST_MAX_BYTES``."""
    import h11  # noqa: PLC0415 - saves 19 ms of the agent's start

    parser = h11.Connection(h11.SERVER, REQUEST_MAX_BYTES)
    # RFC 9112, 2.2: an empty line before a request is ignored; clients send one after the body of the request before.
    parser.receive_data(received.removeprefix(b"\r\n") or await reader.read(REQUEST_MAX_BYTES))
    try:
        while (event := parser.next_event()) is h11.NEED_DATA:
            parser.receive_data(await reader.read(REQUEST_MAX_BYTES))
        parser.next_event()  # the end of the request, if it has no body
    except h11.RemoteProtocolError:
        return None, b""
    if not isinstance(event, h11.Request) or not event.http_version.startswith(b"1."):
        return None, b""
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    target = _ORIGIN.sub("", event.target.decode(), count=1)
    path, _, query = target.partition("?")
    keep_alive = parser.their_state is h11.DONE  # not after a body, which is not read
    return PageRequest(event.method.decode(), path, headers, keep_alive, query), parser.trailing_data[0]


async def _encoded(page: Page, takes_gzip: bool) -> tuple[bytes, bool]:
    """The body as it is sent, and whether it is compressed."""
    if page.gzipped is not None and takes_gzip:
        return page.gzipped, True
    large = page.pieces is not None or (page.stream is None and len(page.body) > PLAIN_MAX_BYTES)
    packed = zlib.compressobj(1, wbits=31) if large and takes_gzip else None
    pack = packed.compress if packed else bytes
    parts = [pack(page.body)]
    if page.pieces is not None:
        parts += [pack(piece) async for piece in page.pieces]
    return b"".join([*parts, packed.flush() if packed else b""]), packed is not None


def _takes_gzip(headers: dict[str, str]) -> bool:
    for entry in headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = entry.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or weight == ""
    return False
