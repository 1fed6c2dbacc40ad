"""The web server: three pages, and no client that can hold it up."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodeagent.sinks import web
from nodeagent.sinks.web import Page, Web
from nodeagent.supervise import Fatal


@asynccontextmanager
async def serving(pages: dict[str, web.Answer]) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(Web(pages).run("127.0.0.1", 0, port.set_result))
    try:
        yield await asyncio.wait_for(port, 5)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


PAGES: dict[str, web.Answer] = {
    "/healthz": lambda _accept: Page(200, b"ok\n"),
    "/metrics": lambda accept: Page(200, (accept or "none").encode() * 500),
}


@pytest.mark.parametrize(
    ("request_", "first_line"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET //[ HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    ],
)
async def test_a_request_gets_its_answer(request_: bytes, first_line: bytes) -> None:
    async with serving(PAGES) as port:
        assert (await ask(port, request_)).split(b"\r\n")[0] == first_line


async def test_head_has_the_length_and_no_body() -> None:
    async with serving(PAGES) as port:
        head, _, body = (await ask(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")
        assert b"Content-Length: 3" in head
        assert body == b""


async def test_a_large_page_is_gzipped_for_who_takes_it_and_accept_is_passed_on() -> None:
    async with serving(PAGES) as port:
        request = b"GET /metrics HTTP/1.1\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n\r\n"
        head, _, body = (await ask(port, request)).partition(b"\r\n\r\n")
        assert b"Content-Encoding: gzip" in head
        assert gzip.decompress(body) == b"text/plain" * 500


async def test_a_request_that_is_too_long_or_never_ends_is_dropped_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "REQUEST_S", 0.2)
    async with serving(PAGES) as port:
        assert await dropped(port, b"GET /" + b"x" * (2 * web.REQUEST_MAX_BYTES))
        silent = asyncio.create_task(dropped(port, b"GET /healthz HT"))
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
        assert await silent


async def dropped(port: int, request: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def test_a_name_that_is_no_address_is_fatal_and_names_the_setting() -> None:
    # Longer than a label may be, so that no name server is asked.
    with pytest.raises(Fatal, match=r"cannot listen on x{64}:0: .*--listen"):
        await asyncio.wait_for(Web({}).run("x" * 64, 0), 10)


async def test_a_port_in_use_is_fatal_and_says_how_to_find_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fatal, match=rf"cannot listen on 127.0.0.1:{port}.*ss -ltnp.*--listen"):
            await Web({}).run("127.0.0.1", port)
