"""An HTTP server that answers every request in one hostile way, and counts requests and sent bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from nodeagent_lab.sim.apiserver.http import stop_listening
from tests.support.waiting import LIMIT_S

MIB = 1 << 20
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Answer = Callable[[str], Iterator[bytes]]
"""Receives the request line; yields the bytes of the answer, then the connection ends."""


def endless(size: int = 400 * MIB) -> Iterator[bytes]:
    """A body without a length that does not end for a long time."""
    yield (HEAD + 'Connection: close\r\n\r\n{"metadata":{"name":"').encode()
    for _ in range(size // MIB):
        yield b"x" * MIB


def announced() -> Iterator[bytes]:
    """A body of an announced length of 400 MiB."""
    yield (HEAD + f"Content-Length: {400 * MIB}\r\n\r\n").encode()
    for _ in range(400):
        yield b" " * MIB


def gzip_bomb() -> Iterator[bytes]:
    """400 KiB that expand to 400 MiB."""
    body = _bomb()
    yield (HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    yield body


@functools.cache
def _bomb() -> bytes:
    pack = zlib.compressobj(9, wbits=31)
    return b"".join(pack.compress(b" " * MIB) for _ in range(400)) + pack.flush()


def nested() -> Iterator[bytes]:
    """Three million lists in each other."""
    yield from _whole(b'{"metadata":{"name":"a"},"links":' + b"[" * (3 * MIB))


def crowded() -> Iterator[bytes]:
    """300,000 links in less than 4 MiB."""
    link = b'{"name":"a"}'
    yield from _whole(
        b'{"metadata":{"name":"a"},"nodeName":"a","links":[' + (link + b",") * 300_000 + link + b"]}"
    )


def _whole(body: bytes) -> Iterator[bytes]:
    yield (HEAD + f"Content-Length: {len(body)}\r\n\r\n").encode()
    yield body


def refusal(status: int, *headers: str) -> Iterator[bytes]:
    body = b'{"kind":"Status","message":"later"}'
    lines = [f"HTTP/1.1 {status} Later", f"Content-Length: {len(body)}", *headers]
    yield "\r\n".join([*lines, "", ""]).encode() + body


class HostileServer:
    """``answer`` may change while it runs. It is ``None`` at first: requests wait."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.requests: list[str] = []
        self.sent = 0
        self.port = 0
        self.changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, good: Callable[[], bool], timeout_s: float = LIMIT_S) -> None:
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(good)

    async def set_answer(self, answer: Answer) -> None:
        async with self.changed:
            self.answer = answer
            self.changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                await self._handle(line.decode("latin-1"), reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _handle(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = 0
        while (header := (await reader.readline()).decode("latin-1").strip().lower()) != "":
            if header.startswith("content-length:"):
                length = int(header.partition(":")[2])
        await reader.readexactly(length)
        async with self.changed:
            self.requests.append(line.strip())
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.answer is not None)
            answer = self.answer
        assert answer is not None
        try:
            for part in answer(line):
                writer.write(part)
                await writer.drain()
                self.sent += len(part)
                await asyncio.sleep(0)
        finally:
            async with self.changed:
                self.changed.notify_all()


@asynccontextmanager
async def hostile_server() -> AsyncIterator[HostileServer]:
    hostile = HostileServer()
    server = await asyncio.start_server(hostile._connected, "127.0.0.1", 0)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        await stop_listening(server)
        for task in tuple(hostile._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.gather(*hostile._tasks, return_exceptions=True)
