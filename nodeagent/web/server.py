"""``/metrics``, ``/healthz`` and ``/readyz`` on one port, for Prometheus and for the kubelet's probes.

A small HTTP/1.1 server on the agent's own loop: bounded in connections, in the size of a request and in
time, so that a client that never reads or never ends its request costs a descriptor for some seconds and
nothing else. Connections stay open between scrapes, as Prometheus likes it; where there are too many, the one that
is idle for longest makes room, or else the one that lets us wait for longest: 32 clients that say nothing must not
keep the kubelet's probes out. Everything but GET and HEAD is refused. Pages come in pieces, which are compressed
one by one: nobody waits for a whole page on the loop.
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
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from nodeagent.supervise import Fatal
from nodeagent.web.auth import Door
from nodeagent.web.web_settings import WebSettings

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
REQUEST_MAX_BYTES = 16 * 1024
PLAIN_MAX_BYTES = 1024
"""What is smaller is not worth compressing."""
REQUEST_S = 10.0
IDLE_S = 130.0
"""Longer than two of the longest scrape intervals in use."""
PRESSED_S = 1.0
"""Before the next try, when there is no descriptor left for a connection."""
PROBES = frozenset({"/healthz", "/readyz"})
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


_VERSION = re.compile(r"HTTP/1\.\d")
_ORIGIN = re.compile(r"https?://[^/?]*", re.IGNORECASE)
"""What a client that takes us for a proxy puts before the path; RFC 9112, 3.2.2 wants it understood."""


class _Turn(Enum):
    """Whose turn it is on a connection."""

    IDLE = auto()
    """the client's, between two requests"""
    CLIENT = auto()
    """the client's, within a request: it has not said all, or does not read"""
    OURS = auto()


@dataclass(frozen=True, slots=True)
class Page:
    """An answer; what ``pieces`` gives comes after ``body``. Sent gzipped when the client takes it."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    pieces: AsyncIterator[bytes] | None = None


Answer = Callable[[str], Page]
"""Takes the value of the Accept header."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    lasting: bool
    """Another request may follow on this connection."""


class Web:
    def __init__(self, pages: dict[str, Answer], door: Door | None = None) -> None:
        self._pages = pages
        self._door = door or Door(WebSettings())
        self._said = ""
        self._open: dict[asyncio.Task[None], _Turn] = {}
        """Connections, those whose turn has lasted for longest first."""

    async def run(self, host: str, port: int, ready: Callable[[int], None] = lambda _port: None) -> None:
        """Serve until cancelled; an empty host is all addresses. ``ready`` is told the port, which matters
        where 0 was asked for."""
        await asyncio.to_thread(self._door.look)
        listening = await _listen(host, port)
        try:
            port = listening[0].getsockname()[1]
            tls = "yes" if self._door.settings.certificate_file else "no"
            log.info("Serving metrics and probes. host=%s port=%d tls=%s", host or "*", port, tls)
            async with asyncio.TaskGroup() as group:
                for one in listening:
                    group.create_task(self._accept(one))
                if self._door.settings.restricted:
                    group.create_task(self._door.watch())
                ready(port)
        finally:
            for one in listening:
                one.close()
            for task in tuple(self._open):
                task.cancel()

    # --- connections ----------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # it was gone before it was taken
                log.warning("A connection cannot be taken. reason=%r", os.strerror(error.errno))
                await asyncio.sleep(PRESSED_S)
                continue
            if self._door.shut or not self._room():
                connection.close()
                continue
            task = loop.create_task(self._connected(connection))
            self._open[task] = _Turn.CLIENT
            task.add_done_callback(self._closed)

    def _room(self) -> bool:
        """Whether one more may come; somebody who only keeps his place gives it up."""
        if len(self._open) < CONNECTIONS_MAX:
            return True
        for turn in (_Turn.IDLE, _Turn.CLIENT):
            for task, now in self._open.items():
                if now is turn:
                    self._open.pop(task)
                    task.cancel()
                    return True
        return False

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            reason = f"{type(error).__name__}: {error}"
            if reason != self._said:  # once, not at every scrape
                log.error("A request could not be answered. reason=%r", reason)
            self._said = reason

    def _mark(self, turn: _Turn) -> None:
        task = asyncio.current_task()
        if task in self._open:
            self._open.pop(task)
            self._open[task] = turn

    async def _connected(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(REQUEST_MAX_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        context = self._door.context
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=REQUEST_S if context else None,
                    ssl_shutdown_timeout=1.0 if context else None,
                )
        except (TimeoutError, OSError):
            return
        finally:
            if transport is None:
                connection.close()
        transport.set_write_buffer_limits(high=0)  # drained means sent
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._converse(reader, writer, context)
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            transport.abort()  # slow, gone or too long: nothing to be said to it
        finally:
            if not transport.is_closing():
                transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        patience = REQUEST_S
        while True:
            async with asyncio.timeout(patience):
                first = await reader.read(1)
            if not first or not self._door.trusts(context):
                return
            self._mark(_Turn.CLIENT)
            async with asyncio.timeout(REQUEST_S):
                raw = first + await reader.readuntil(b"\r\n\r\n")
                self._mark(_Turn.OURS)
                request = _parse(raw)
                await self._answer(request, writer)
            if request is None or not request.lasting:
                return
            self._mark(_Turn.IDLE)
            patience = IDLE_S
            await asyncio.sleep(0)  # the next request may be here already, and a thousand more

    # --- requests -------------------------------------------------------------------------------------

    async def _answer(self, request: _Request | None, writer: asyncio.StreamWriter) -> None:
        page = self._page(request, writer)
        headers = request.headers if request else {}
        large = page.pieces is not None or len(page.body) > PLAIN_MAX_BYTES
        packed = zlib.compressobj(1, wbits=31) if large and _takes_gzip(headers) else None
        pack = packed.compress if packed else bytes
        parts = [pack(page.body)]
        if page.pieces is not None:
            parts += [pack(piece) async for piece in page.pieces]
        body = b"".join([*parts, packed.flush() if packed else b""])
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(body)}",
            "Vary: Accept, Accept-Encoding",
            *(["Content-Encoding: gzip"] if packed else []),
            *(["WWW-Authenticate: Bearer"] if page.status == 401 else []),
            *(["Allow: GET, HEAD"] if page.status == 405 else []),
            *([] if request and request.lasting else ["Connection: close"]),
        ]
        head = "\r\n".join([*lines, "", ""]).encode()
        self._mark(_Turn.CLIENT)
        writer.write(head if request and request.method == "HEAD" else head + body)
        await writer.drain()

    def _page(self, request: _Request | None, writer: asyncio.StreamWriter) -> Page:
        if request is None:
            return Page(400, b"this is an HTTP server\n")
        if request.method not in ("GET", "HEAD"):
            return Page(405, b"only GET and HEAD\n")
        certified = bool(writer.get_extra_info("peercert"))
        status = self._door.admits(
            request.path in PROBES, request.headers.get("authorization", ""), certified
        )
        if status != 200:
            return Page(
                status, b"a client certificate is asked for\n" if status == 403 else b"a token is asked for\n"
            )
        answer = self._pages.get(request.path)
        if answer is None:
            return Page(404, f"try {' '.join(sorted(self._pages))}\n".encode())
        return answer(request.headers.get("accept", ""))


def _parse(raw: bytes) -> _Request | None:
    # An empty line before a request is skipped: RFC 9112, 2.2.
    first, *rest = raw.decode("latin-1").removeprefix("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not _VERSION.fullmatch(parts[2]):
        return None
    headers: dict[str, str] = {}
    for line in rest:
        before, _, value = line.partition(":")
        name = before.strip().lower()
        headers[name] = f"{headers[name]},{value.strip()}" if name in headers else value.strip()
    lasting = (
        parts[0] in ("GET", "HEAD")
        and parts[2] != "HTTP/1.0"
        and "close" not in headers.get("connection", "").lower()
        and not headers.keys() & {"content-length", "transfer-encoding"}  # a body, which is not read
    )
    origin = _ORIGIN.match(parts[1])
    target = parts[1][origin.end() :] if origin else parts[1]
    return _Request(parts[0], target.partition("?")[0], headers, lasting)


def _takes_gzip(headers: dict[str, str]) -> bool:
    for one in headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = one.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or weight == ""
    return False


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Bound and listening on every address that the host means. Raises ``Fatal`` with the remedy."""
    loop = asyncio.get_running_loop()
    made: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a kernel without this family
            if family == socket.AF_INET6 and not host and _no_ipv6():
                one.close()
                continue
            made.append(one)
            _bind(one, family, address if port or len(made) == 1 else (address[0], made[0].getsockname()[1]))
    except (socket.gaierror, UnicodeError) as error:
        raise Fatal(
            f"cannot listen on {host}:{port}: no address is known by that name; give one with --listen or "
            "`listen:`"
        ) from error
    except OSError as error:
        for one in made:
            one.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        raise Fatal(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno)}. Find the owner with "
            f"`ss -ltnp 'sport = :{port}'`, or choose another address with --listen or `listen:`"
        ) from error
    return made


def _no_ipv6() -> bool:
    """The kernel knows IPv6 and is told not to use it."""
    try:
        return Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() == "1"
    except OSError:
        return False


def _bind(one: socket.socket, family: int, address: tuple[Any, ...]) -> None:
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind(address)
    one.listen(128)
