"""``/metrics``, ``/healthz`` and ``/readyz`` on one port, for Prometheus and for the kubelet's probes.

A small HTTP/1.1 server on the agent's own loop: bounded in connections, in the size of a request and in
time, so that a client that never reads or never ends its request costs a descriptor for some seconds and
nothing else. Everything but GET and HEAD is refused.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.supervise import Fatal

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
REQUEST_MAX_BYTES = 16 * 1024
REQUEST_S = 10.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer; ``body`` is sent gzipped when the client takes it and it is worth it."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answer = Callable[[str], Page]
"""Takes the value of the Accept header."""


class Web:
    def __init__(self, pages: dict[str, Answer]) -> None:
        self._pages = pages
        self._open = 0

    async def run(self, host: str, port: int, ready: Callable[[int], None] = lambda _port: None) -> None:
        """Serve until cancelled; an empty host is all addresses. ``ready`` is told the port, which matters
        where 0 was asked for."""
        try:
            server = await asyncio.start_server(self._connected, host or None, port, limit=REQUEST_MAX_BYTES)
        except (socket.gaierror, UnicodeError) as error:
            raise Fatal(
                f"cannot listen on {host}:{port}: no address is known by that name; give one with --listen or "
                "`listen:`"
            ) from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise
            raise Fatal(
                f"cannot listen on {host}:{port}: {os.strerror(error.errno)}. Find the owner with "
                f"`ss -ltnp 'sport = :{port}'`, or choose another address with --listen or `listen:`"
            ) from error
        async with server:
            port = server.sockets[0].getsockname()[1]
            log.info("Serving metrics and probes. host=%s port=%d", host or "*", port)
            ready(port)
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # slow, gone or too long: nothing to be said to it
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        parts = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:])
        }
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            page = Page(400, b"this is an HTTP server\n")
        elif parts[0] not in ("GET", "HEAD"):
            page = Page(405, b"only GET and HEAD\n")
        else:
            answer = self._pages.get(parts[1].partition("?")[0])
            known = " ".join(sorted(self._pages))
            page = answer(headers.get("accept", "")) if answer else Page(404, f"try {known}\n".encode())
        body, extra = page.body, ""
        if len(body) > 1024 and "gzip" in headers.get("accept-encoding", ""):
            body, extra = gzip.compress(body, 1), "Content-Encoding: gzip\r\n"
        writer.write(
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{extra}Vary: Accept-Encoding\r\nConnection: close\r\n\r\n".encode()
        )
        if parts[0] != "HEAD":
            writer.write(body)
        await writer.drain()
