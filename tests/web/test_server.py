"""The web server: pages, connections that stay open, and clients that must not block it."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import resource
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from nodeagent.base.supervise import Fatal
from nodeagent.web import connections, listening, server
from nodeagent.web.auth import AccessControl
from nodeagent.web.listening import port_owner
from nodeagent.web.server import Page, PageHandler, WebServer
from nodeagent.web.web_settings import WebSettings
from tests.support.certificates import Authority
from tests.support.waiting import LIMIT_S


class Tls(NamedTuple):
    """``server`` is ``None`` without TLS."""

    server: AccessControl | None = None
    client: ssl.SSLContext | None = None


PLAIN = Tls()


@pytest.fixture(params=["plain", pytest.param("tls", marks=pytest.mark.needs("openssl"))])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Tls:
    """Without TLS and with it."""
    if request.param == "plain":
        return PLAIN
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("server"))
    return Tls(AccessControl(WebSettings(certificate_file=certificate, key_file=key)), authority.client())


@asynccontextmanager
async def serving(pages: dict[str, PageHandler], tls: Tls = PLAIN) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(WebServer(pages, tls.server).run("127.0.0.1", 0, port.set_result))
    try:
        async with asyncio.timeout(5):
            yield await port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_at_the_end_is_closed(turns: int) -> None:
    async with serving({}) as port:
        client = socket.create_connection(("127.0.0.1", port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, suppress(ConnectionResetError):
        client.settimeout(30)
        assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()  # it reports a socket that was left open


async def test_without_descriptors_a_connection_waits_and_the_listener_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "NO_DESCRIPTOR_S", 0.2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(PAGES) as port:
        with socket.socket() as client, ExitStack() as taken:
            client.settimeout(30)
            highest = max(map(int, os.listdir("/proc/self/fd")))
            taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            with suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(client.fileno()))
            client.connect(("127.0.0.1", port))
            async with asyncio.timeout(30):
                while "A connection cannot be accepted. reason='Too many open files'" not in caplog.text:
                    await asyncio.sleep(0.01)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert len(caplog.records) < 10
            taken.close()
            client.sendall(HEALTHZ)
            assert (await asyncio.to_thread(client.recv, 100)).startswith(b"HTTP/1.1 200")


async def test_a_connection_that_another_server_has_taken_does_not_block_this_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, first.dup() as second:
        port = first.getsockname()[1]
        servers = [asyncio.create_task(WebServer(PAGES).accept_from(each)) for each in (first, second)]
        await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(30)
            client.sendall(HEALTHZ)
            assert (await asyncio.to_thread(client.recv, 100)).startswith(b"HTTP/1.1 200")
        for each in servers:
            each.cancel()
        await asyncio.gather(*servers, return_exceptions=True)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, tls: Tls = PLAIN, address: str = "127.0.0.1") -> Client:
        connecting = asyncio.open_connection("127.0.0.1", port, ssl=tls.client, local_addr=(address, 0))
        return cls(*await connecting)

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Head and body; the connection stays open if the server leaves it so."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length"))
        body = b"" if request.startswith(b"HEAD") else await self.reader.readexactly(length)
        return head, body

    async def ended(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True
        finally:
            self.writer.close()


async def ask(port: int, request: bytes, tls: Tls = PLAIN) -> tuple[bytes, bytes]:
    client = await Client.open(port, tls)
    try:
        return await client.ask(request)
    finally:
        client.writer.close()


async def long_page(pieces: int = 200) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield b"x" * 10_000


PAGES: dict[str, PageHandler] = {
    "/healthz": lambda _accept: Page(200, b"ok\n"),
    "/metrics": lambda accept: Page(200, (accept or "none").encode() * 500),
    "/long": lambda _accept: Page(200, b"", pieces=long_page()),
}
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "first_line"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (
            b"GET http://node-1:9808/healthz?x=/ HTTP/1.1\r\nHost: x\r\n\r\n",
            b"HTTP/1.1 200 OK",
        ),  # as a proxy is asked
        (b"GET http://node-1:9808 HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request"),  # RFC 9112, 3.2: without Host
        (b"GET /healthz HTTP/1.x\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\r\n" + HEALTHZ, b"HTTP/1.1 200 OK"),  # RFC 9112, 2.2: an empty line before it is ignored
        (b"\r\n" * 2 + HEALTHZ, b"HTTP/1.1 400 Bad Request"),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    ],
)
async def test_a_request_gets_its_answer(request_: bytes, first_line: bytes) -> None:
    async with serving(PAGES) as port:
        head, _ = await ask(port, request_)
        assert head.split(b"\r\n")[0] == first_line


async def test_a_refusal_names_what_is_accepted() -> None:
    async with serving(PAGES) as port:
        head, _ = await ask(port, b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"\r\nAllow: GET, HEAD\r\n" in head


async def test_a_repeated_header_is_one_list() -> None:
    async with serving(PAGES) as port:
        _, body = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: a/b\r\nAccept: c/d\r\n\r\n")
        assert body.startswith(b"a/b,c/da/b")


async def test_head_has_the_length_and_no_body() -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        head, body = await client.ask(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 3" in head
        assert body == b""
        assert await client.ended()


@pytest.mark.parametrize(
    ("header", "packed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("GZIP", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("identity, x-gzip", False),
    ],
)
async def test_a_large_page_is_compressed_if_the_client_accepts_it_and_accept_is_passed_on(
    header: str, packed: bool
) -> None:
    async with serving(PAGES) as port:
        request = (
            f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\nAccept-Encoding: {header}\r\n\r\n"
        )
        head, body = await ask(port, request.encode())
        assert (b"Content-Encoding: gzip" in head) == packed
        assert (gzip.decompress(body) if packed else body) == b"text/plain" * 500


async def test_a_connection_stays_open_for_the_next_scrape_and_closes_on_request() -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        for _ in range(3):
            head, body = await client.ask(HEALTHZ)
            assert body == b"ok\n"
            assert b"Connection: close" not in head
        head, _ = await client.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Connection: close" in head
        assert await client.ended()


@pytest.mark.parametrize(
    "request_",
    [b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"GET /healthz HTTP/1.0\r\n\r\n"],
)
async def test_a_connection_with_a_request_body_is_closed(request_: bytes) -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        await client.ask(request_)
        assert await client.ended()


async def test_other_requests_are_answered_between_the_pieces_of_a_page() -> None:
    gate = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        await gate.wait()
        yield b"last"

    async with serving({**PAGES, "/slow": lambda _accept: Page(200, b"", pieces=slowly())}) as port:
        slow = asyncio.create_task(ask(port, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"
        assert not slow.done()
        gate.set()
        assert (await slow)[1] == b"firstlast"


async def test_concurrent_scrapes_are_all_answered() -> None:
    async with serving(PAGES) as port:
        request = b"GET /long HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
        answers = await asyncio.gather(*(ask(port, request) for _ in range(connections.ANSWERED_MAX)))
        assert {len(gzip.decompress(body)) for _, body in answers} == {2_000_000}


async def test_a_client_may_send_an_empty_line_before_its_next_request() -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        assert (await client.ask(HEALTHZ))[1] == b"ok\n"
        client.writer.write(b"\r\n")
        await client.writer.drain()
        assert (await client.ask(HEALTHZ))[1] == b"ok\n"
        client.writer.close()


async def test_a_request_that_is_too_long_is_refused_before_it_ends_and_others_are_answered() -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        cookie = b"x" * server.REQUEST_MAX_BYTES
        head, _ = await client.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: " + cookie)
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert await client.ended()
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"


@pytest.mark.parametrize(
    "request_", [HEALTHZ[:-4], b"\x00" * 100, b"GET /healthz HTTP/1.1\r\nHost x\r\n\r\n"]
)
async def test_half_a_request_gets_an_answer_when_the_client_ends_it(request_: bytes) -> None:
    async with serving(PAGES) as port:
        client = await Client.open(port)
        client.writer.write(request_)
        client.writer.write_eof()
        assert (await client.reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        client.writer.close()
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"


async def test_a_request_that_never_ends_is_dropped_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    async with serving(PAGES) as port:
        stalled = asyncio.create_task(dropped(port, b"GET /healthz HT"))
        mute = asyncio.create_task(dropped(port, b""))
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"
        assert await stalled
        assert await mute


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1:9808", "127.0.0.1", "[::1]:9808", "[fe80::1%25eth0]:9808", "localhost:80", "gpu-1:9808",
        "nodeagent-controller.nodeagent.svc:9809", "c.nodeagent.svc.cluster.local", "Ip-10-0-0-1.ec2.internal:9808",
        "fabric.example.com", "FABRIC.EXAMPLE.COM.:80",
    ],
)  # fmt: skip
async def test_a_plain_port_answers_for_addresses_and_known_names(host: str) -> None:
    access = AccessControl(WebSettings(host_names=("fabric.Example.com",)), ("ip-10-0-0-1.ec2.internal",))
    async with serving(PAGES, Tls(access)) as port:
        for version in ("1.0", "1.1"):
            head, _ = await ask(port, f"GET /metrics HTTP/{version}\r\nHost: {host}\r\n\r\n".encode())
            assert head.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9808", "10.0.0.1.evil.example", "x.svc.evil.example", "10.0.0.1@evil.example", "127.1", "ai.",
        "[evil.example]", "a:b:c", "evil.example\\", "evil.example:80,10.0.0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/ui/", "/none"])
async def test_a_plain_port_tells_nothing_for_the_name_of_another_site(host: str, path: str) -> None:
    async with serving(PAGES, Tls(AccessControl(WebSettings()))) as port:
        for target in (path, f"http://10.0.0.1{path}"):
            head, body = await ask(port, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert head.split()[1] == b"421"
            assert b"web.hostNames" in body
            assert b"evil" not in head + body


@pytest.mark.needs("openssl")
async def test_with_tls_the_browser_compares_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("server"))
    tls = Tls(AccessControl(WebSettings(certificate_file=certificate, key_file=key)), authority.client())
    async with serving(PAGES, tls) as port:
        head, _ = await ask(port, b"GET /healthz HTTP/1.1\r\nHost: fabric.example.com\r\n\r\n", tls)
    assert head.startswith(b"HTTP/1.1 200")


async def dropped(port: int, request: bytes) -> bool:
    client = await Client.open(port)
    client.writer.write(request)
    return await client.ended()


async def test_a_client_that_never_reads_is_dropped_and_others_are_answered(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    never: Callable[[str], Page] = lambda _accept: Page(200, b"", pieces=long_page(2000))  # noqa: E731 - 20 MB
    async with serving({**PAGES, "/huge": never}, tls) as port:
        with await asyncio.to_thread(
            deaf_client, port, tls, b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n"
        ) as deaf:
            assert (await ask(port, HEALTHZ, tls))[1] == b"ok\n"
            closed = asyncio.create_task(reset(deaf))
            assert (await ask(port, HEALTHZ, tls))[1] == b"ok\n"
            assert await closed < 20_000_000


async def test_the_stream_of_a_client_that_never_reads_ends_with_its_connection(tls: Tls) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield bytes(1 << 16)

    async with serving({"/stream": lambda _accept: Page(200, b"", stream=endless())}, tls) as port:
        with await asyncio.to_thread(
            deaf_client, port, tls, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
        ) as deaf:
            await asyncio.to_thread(deaf.recv, 1)
            await reset(deaf)


def deaf_client(port: int, tls: Tls, request: bytes) -> socket.socket:
    """Connect and send the request. Blocks."""
    deaf = socket.create_connection(("127.0.0.1", port), timeout=30)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    if tls.client is not None:
        deaf = tls.client.wrap_socket(deaf, server_hostname="127.0.0.1")
    deaf.sendall(request)
    return deaf


async def reset(deaf: socket.socket) -> int:
    """Wait until the server has given up, then count what had been sent."""
    with suppress(OSError):  # what is written after the end is answered with a reset
        async with asyncio.timeout(LIMIT_S) as limit:
            while True:
                await asyncio.to_thread(deaf.sendall, b"x")
                await asyncio.sleep(0.02)
    assert not limit.expired(), "the server does not give up"
    count = 0
    with suppress(OSError):
        while part := await asyncio.to_thread(deaf.recv, 1 << 16):
            count += len(part)
    return count


async def test_an_idle_connection_is_closed_for_a_new_one() -> None:
    async with serving(PAGES) as port:
        keepers = [await Client.open(port) for _ in range(connections.ANSWERED_MAX)]
        for keeper in keepers:
            await keeper.ask(HEALTHZ)
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"
        assert await keepers[0].ended()
        assert (await keepers[-1].ask(HEALTHZ))[1] == b"ok\n"
        for keeper in keepers:
            keeper.writer.close()


async def test_a_client_beyond_the_limit_is_asked_to_come_back_and_probes_are_answered() -> None:
    """The 32 others are in the middle of their requests."""
    may_end = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await may_end.wait()
        yield b"page\n"

    metrics: Callable[[str], Page] = lambda _accept: Page(200, b"", pieces=slow())  # noqa: E731
    async with serving({**PAGES, "/metrics": metrics}) as port:
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        others = [asyncio.create_task(ask(port, request)) for _ in range(connections.ANSWERED_MAX + 1)]
        async with asyncio.timeout(10):
            done, waiting = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        head, body = done.pop().result()
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nRetry-After: 1\r\n" in head
        assert b"\r\nConnection: close" in head
        assert body == b"too many connections; try again\n"
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"
        may_end.set()
        assert [answer[1] for answer in await asyncio.gather(*waiting)] == [
            b"page\n"
        ] * connections.ANSWERED_MAX


@pytest.mark.parametrize(
    ("request_", "length"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 3),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 3),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 2000),
        (b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 2_000_000),
    ],
)
async def test_the_end_of_an_answer_comes_at_once(
    tls: Tls, request_: bytes, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 3600.0)
    async with serving(PAGES, tls) as port:
        client = await Client.open(port, tls)
        await ask(port, HEALTHZ, tls)  # by then the server waits for the other client too
        client.writer.write(request_)
        async with asyncio.timeout(30):
            head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        client.writer.close()
        assert head.startswith(b"HTTP/1.1 200")
        assert len(body) == length


@pytest.mark.usefixtures("virtual_time")
async def test_a_kept_connection_outlives_the_time_of_a_request(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 1.0)
    async with serving(PAGES, tls) as port, asyncio.timeout(60):
        kept = await Client.open(port, tls)
        await ask(port, HEALTHZ, tls)  # by then the server waits for the other client too
        await kept.ask(HEALTHZ)
        for _ in range(2):
            mute = await Client.open(port, tls)
            assert await mute.ended()
            assert (await kept.ask(HEALTHZ))[1] == b"ok\n"
        kept.writer.close()


async def test_each_event_of_a_stream_arrives_at_once_and_the_stream_stays(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 3600.0)
    seen = asyncio.Semaphore(0)

    async def events() -> AsyncGenerator[bytes]:
        for number in range(20):
            yield b"event %d\n" % number
            await seen.acquire()

    stream: PageHandler = lambda _accept: Page(200, b"retry\n", stream=events())  # noqa: E731
    async with serving({"/events": stream}, tls) as port, asyncio.timeout(60):
        client = await Client.open(port, tls)
        client.writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.reader.readuntil(b"retry\n")
        for number in range(20):
            assert await client.reader.readline() == b"event %d\n" % number
            seen.release()
        assert await client.ended()


class MuteClients:
    """Clients that connect and send no whole request."""

    def __init__(self, port: int, beginning: bytes = b"", address: str = "127.0.0.1") -> None:
        self._port, self._beginning, self._address = port, beginning, address
        self._open = ExitStack()

    async def __aenter__(self) -> MuteClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.close()

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            client = self._open.enter_context(socket.socket())
            client.bind((self._address, 0))
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", self._port))
            with suppress(ConnectionError):
                await loop.sock_sendall(client, self._beginning)


@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01", b"GET /healthz HT"])
async def test_no_probe_waits_for_clients_that_send_nothing(
    tls: Tls, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 3600.0)
    async with serving(PAGES, tls) as port, MuteClients(port, beginning) as mute, asyncio.timeout(60):
        for _ in range(5):
            await mute.connect(connections.ANSWERED_MAX)
            client = await Client.open(port, tls)
            await mute.connect(connections.ANSWERED_MAX)
            assert (await client.ask(HEALTHZ))[1] == b"ok\n"
            client.writer.close()


async def test_a_connection_that_has_sent_a_request_is_kept_while_others_send_nothing(tls: Tls) -> None:
    may_end = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await may_end.wait()
        yield b"page\n"

    pages: dict[str, PageHandler] = {**PAGES, "/slow": lambda _accept: Page(200, b"", pieces=slow())}
    async with serving(pages, tls) as port, MuteClients(port) as mute, asyncio.timeout(60):
        kept, answered = await Client.open(port, tls), await Client.open(port, tls)
        await kept.ask(HEALTHZ)
        answer = asyncio.create_task(answered.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        await mute.connect(3 * connections.NEW_MAX)
        may_end.set()
        assert (await answer)[1] == b"page\n"
        assert (await kept.ask(HEALTHZ))[1] == b"ok\n"
        for client in kept, answered:
            client.writer.close()


async def test_the_caller_with_the_most_connections_without_a_request_loses_its_oldest_one() -> None:
    async with serving(PAGES) as port, asyncio.timeout(60):
        typist = await Client.open(port)
        typist.writer.write(HEALTHZ[:10])
        others = [await Client.open(port, address="127.0.0.2") for _ in range(connections.NEW_MAX)]
        assert await others[0].ended()
        for client, rest in ((typist, HEALTHZ[10:]), (others[1], HEALTHZ)):
            assert (await client.ask(rest))[1] == b"ok\n"
        for client in typist, *others:
            client.writer.close()


async def test_clients_that_leave_their_end_of_a_closed_connection_open_keep_no_probe_out(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 3600.0)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serving(PAGES, tls) as port, asyncio.timeout(60):
        with ExitStack() as opened:
            for _ in range(2 * connections.ANSWERED_MAX):
                opened.enter_context(await asyncio.to_thread(deaf_client, port, tls, request))
            for _ in range(3):
                assert (await ask(port, HEALTHZ, tls))[1] == b"ok\n"


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HT", b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_slow_connection_is_closed_for_a_new_one(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise 32 idle connections keep the kubelet's probes out, and the agent is restarted."""
    monkeypatch.setattr(connections, "ANSWERED_MAX", 4)
    huge: Callable[[str], Page] = lambda _accept: Page(200, b"x" * 20_000_000)  # noqa: E731
    async with serving({**PAGES, "/huge": huge}) as port:
        held = []
        for _ in range(connections.ANSWERED_MAX):
            one = socket.create_connection(("127.0.0.1", port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(beginning)
            held.append(one)
            await asyncio.sleep(0)
        async with asyncio.timeout(server.REQUEST_S / 2):
            for _ in range(3):
                assert (await ask(port, HEALTHZ))[1] == b"ok\n"
        for one in held:
            one.close()


async def test_a_thousand_requests_in_one_buffer_do_not_block_other_clients() -> None:
    turns = 0
    seen: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def counted(_accept: str) -> Page:
        seen.append(turns)
        return Page(200, b"x")

    other = asyncio.create_task(others())
    async with serving({"/": counted}) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
            + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert (await reader.read()).count(b"HTTP/1.1 200") == 1001
        writer.close()
    other.cancel()
    assert len(set(seen)) == 1001


async def test_a_page_that_fails_is_logged_and_the_next_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_accept: str) -> Page:
        raise KeyError("carrier")

    async with serving({**PAGES, "/metrics": broken}) as port:
        for _ in range(2):
            assert await dropped(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await ask(port, HEALTHZ))[1] == b"ok\n"
    assert caplog.text.count("A request could not be answered. reason=\"KeyError: 'carrier'\"") == 1


async def test_a_host_without_an_address_is_fatal_and_names_the_setting() -> None:
    # Longer than a label may be, so that no name server is asked.
    with pytest.raises(Fatal, match=r"cannot listen on x{64}:0: .*--listen"):
        async with asyncio.timeout(10):
            await WebServer({}).run("x" * 64, 0)


async def test_a_port_in_use_is_fatal_and_names_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        owner = rf"Process {os.getpid()} \([!-~]+\) listens there"
        with pytest.raises(Fatal, match=rf"cannot listen on 127.0.0.1:{port}: .*\. {owner}.*--listen"):
            await WebServer({}).run("127.0.0.1", port)
        monkeypatch.setattr(listening, "port_owner", lambda _port: None)
        with pytest.raises(Fatal, match=r"Find its owner with `ss -ltnp.*--listen"):
            await WebServer({}).run("127.0.0.1", port)


def test_a_port_without_a_listener_has_no_owner(tmp_path: Path) -> None:
    assert port_owner(1, tmp_path) is None
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        assert (port_owner(taken.getsockname()[1]) or "").startswith(f"{os.getpid()} (")


async def test_an_empty_host_is_every_address_on_one_port() -> None:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(WebServer(PAGES).run("", 0, port.set_result))
    async with asyncio.timeout(5):
        assert (await ask(await port, HEALTHZ))[1] == b"ok\n"
        if socket.has_dualstack_ipv6():
            reader, writer = await asyncio.open_connection("::1", await port)
            assert (await Client(reader, writer).ask(HEALTHZ))[1] == b"ok\n"
            writer.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
