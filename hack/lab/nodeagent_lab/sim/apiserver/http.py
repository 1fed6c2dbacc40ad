"""The part of HTTP/1.1 that Kubernetes clients need: keep-alive, bodies with a length, chunked streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HEAD_MAX = 64 * 1024
BODY_MAX = 3 * 1024 * 1024
"""The limit of the real API server."""
_ACCEPT_TURNS = 5
"""Turns of the event loop from the acceptance of a connection to the first step of its task (asyncio's
``_accept_connection2`` and ``StreamReaderProtocol``)."""
REASONS = {200: "OK", 201: "Created", 202: "Accepted"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """``subject`` is the subject of the client certificate, as pairs of short name and value."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    subject: tuple[tuple[str, str], ...] = ()

    def query_value(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """``stream`` is sent instead of ``body``. ``cut`` ends the connection in the middle of the body."""

    code: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None
    cut: bool = False


class ClosedError(Exception):
    """The connection ends without an answer."""


Handle = Callable[[HttpRequest], Awaitable[HttpAnswer]]


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listening sockets, and return when each connection that was accepted before has its task. asyncio loses
    one that it accepts in the turn of the event loop in which ``Server.close`` is called, and leaves it open."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle) -> None:
    """Handle all requests of one connection."""
    try:
        while (request := await _read(reader, writer)) is not None:
            answer = await handle(request)
            if not await _write(writer, answer):
                break
    except (ClosedError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        writer.transport.abort()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head[0].split(" ", 2)
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    elif length := int(headers.get("content-length", "0")):
        if length > BODY_MAX:
            raise ClosedError
        body = await reader.readexactly(length)
    url = urlsplit(target)
    return HttpRequest(
        method,
        unquote(url.path),
        parse_qs(url.query, keep_blank_values=True),
        headers,
        body,
        _subject(writer),
    )


def _subject(writer: asyncio.StreamWriter) -> tuple[tuple[str, str], ...]:
    certificate: Any = writer.get_extra_info("peercert")
    return tuple(pair for part in (certificate or {}).get("subject", ()) for pair in part)


async def _write(writer: asyncio.StreamWriter, answer: HttpAnswer) -> bool:
    """Send the answer. Return whether the connection stays open."""
    lines = [
        f"HTTP/1.1 {answer.code} {REASONS.get(answer.code, 'Refused')}",
        f"Content-Type: {answer.content_type}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        "Transfer-Encoding: chunked" if answer.stream is not None else f"Content-Length: {len(answer.body)}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if answer.cut:
        writer.write(answer.body[: len(answer.body) // 2])
        await writer.drain()
        return False
    if answer.stream is None:
        writer.write(answer.body)
        await writer.drain()
        return True
    async with contextlib.aclosing(answer.stream) as parts:
        await writer.drain()
        async for part in parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True
