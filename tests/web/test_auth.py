"""Certificate, client CA and tokens of the web server, and their renewal while the agent runs."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.web.auth import AccessControl, CertificateError, ends_at
from nodeagent.web.live_document import LiveDocument
from nodeagent.web.server import Page, PageRequest, WebServer
from nodeagent.web.ui_pages import UiPages
from nodeagent.web.web_settings import WebSettings
from tests.support.certificates import Authority
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.needs("openssl")

PAGES = {"/metrics": lambda _accept: Page(200, b"numbers\n"), "/healthz": lambda _accept: Page(200, b"ok\n")}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def first(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("first")


@pytest.fixture(scope="module")
def second(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("second", days=30)


@pytest.fixture(scope="module")
def expired(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("expired", days=-1)


class Place:
    """The mounted secret."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.tokens, self.ca = folder / "token", folder / "ca.crt"

    def put(self, pair: tuple[Path, Path]) -> None:
        shutil.copy(pair[0], self.certificate)
        shutil.copy(pair[1], self.key)

    def access(
        self, *, tokens: bool = False, mutual: bool = False, probes_open: bool = True
    ) -> AccessControl:
        return AccessControl(
            WebSettings(
                certificate_file=str(self.certificate),
                key_file=str(self.key),
                client_ca_file=str(self.ca) if mutual else None,
                token_file=str(self.tokens) if tokens else None,
                probes_open=probes_open,
            )
        )


async def folder(request: PageRequest) -> Page:
    """The pages of a daemon. A stream would not end, so that its place is a status of its own."""
    page = await UiPages("node", LiveDocument(document, asyncio.Event().wait), {"x": question}).answer(
        request
    )
    return page if page.stream is None else Page(301, b"")


async def document() -> bytes:
    return b"{}"


async def question(_parameters: Mapping[str, str]) -> Page:
    return Page(200, b"an answer\n")


UI_PATHS = {
    "/ui/": 200, "/ui/node.js": 200, "/ui/document.json": 200, "/ui/events": 301, "/ui/x": 200, "/ui/none": 404,
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def serving(access: AccessControl) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        WebServer(PAGES, access, {"/ui/": folder}).run("127.0.0.1", 0, port.set_result)
    )
    try:
        async with asyncio.timeout(10):
            yield await port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(
    port: int, tls: ssl.SSLContext | None, path: str = "/metrics", token: str = ""
) -> tuple[int, str]:
    """The status, and the name in the server's certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        names = dict(entry[0] for entry in (writer.get_extra_info("peercert") or {}).get("subject", ()))
        header = f"Authorization: {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n".encode())
        answer = await reader.read()
        return int(answer.split()[1]), names.get("commonName", "")
    finally:
        writer.close()


async def test_tls_is_served_and_a_renewed_certificate_is_loaded(
    place: Place, authority: Authority, first: tuple[Path, Path], second: tuple[Path, Path]
) -> None:
    place.put(first)
    access = place.access()
    async with serving(access) as port:
        assert await get(port, authority.client()) == (200, "first")
        place.put(second)
        access.load()
        assert await get(port, authority.client()) == (200, "second")
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await get(port, None)


async def test_a_faulty_renewal_keeps_the_old_certificate_and_is_logged_once(
    place: Place,
    authority: Authority,
    first: tuple[Path, Path],
    second: tuple[Path, Path],
    expired: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    place.put(first)
    access = place.access()
    async with serving(access) as port:
        half = second[0].read_bytes()[:300]
        wrongs = {
            "has no complete certificate": lambda: place.certificate.write_bytes(half),
            "is empty": lambda: place.certificate.write_bytes(b""),
            "No such file": place.certificate.unlink,
            "do not belong together": lambda: shutil.copy(second[0], place.certificate),
            "ended at": lambda: place.put(expired),
        }
        for message, go_wrong in wrongs.items():
            place.put(first)
            access.load()
            assert access.fresh
            caplog.clear()
            go_wrong()
            access.load()
            access.load()
            assert not access.fresh
            assert caplog.text.count(message) == 1, caplog.text
            assert "the old one stays" in caplog.text
            assert await get(port, authority.client()) == (200, "first")
        place.put(second)
        access.load()
        assert access.fresh
        assert "valid again" in caplog.text
        assert await get(port, authority.client()) == (200, "second")


async def test_without_a_certificate_no_connection_is_accepted_until_it_exists(
    place: Place, authority: Authority, first: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    access = place.access()
    async with serving(access) as port:
        assert "no connection is accepted until it is fixed" in caplog.text
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await get(port, authority.client())
        with pytest.raises((ConnectionError, IndexError)):
            await get(port, None)  # no page without TLS meanwhile
        place.put(first)
        access.load()
        assert await get(port, authority.client()) == (200, "first")


async def test_an_expired_certificate_is_used_at_start_if_there_is_no_other(
    place: Place, expired: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    place.put(expired)
    access = place.access()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with serving(access) as port:
        assert (await get(port, trusting))[0] == 200
        assert "ended at" in caplog.text
        assert not access.fresh


async def test_a_token_is_required_and_can_be_replaced(
    place: Place, authority: Authority, first: tuple[Path, Path]
) -> None:
    place.put(first)
    place.tokens.write_text("old\nnew\n")
    access = place.access(tokens=True)
    client = authority.client()
    async with serving(access) as port:
        for token, status in (
            ("Bearer old", 200),
            ("bearer new", 200),
            ("Bearer other", 401),
            ("", 401),
            ("old", 401),
        ):
            assert (await get(port, client, token=token))[0] == status, token
        assert (await get(port, client, "/healthz"))[0] == 200
        for path, status in UI_PATHS.items():
            assert (await get(port, client, path, "Bearer old"))[0] == status, path
            assert (await get(port, client, path))[0] == 401, path
        for typed, status in (("me:new", 200), (":old", 200), ("new:me", 401), ("new", 401)):
            password = b64encode(typed.encode()).decode()
            assert (await get(port, client, token=f"Basic {password}"))[0] == status, typed
        assert (await get(port, client, token="Basic §"))[0] == 401
        place.tokens.write_text("new\n")
        access.load()
        assert (await get(port, client, token="Bearer old"))[0] == 401
        place.tokens.write_text("\n")
        access.load()
        assert not access.fresh
        assert (await get(port, client, token="Bearer new"))[0] == 200
        assert (await get(port, client, token="Bearer "))[0] == 401


async def test_a_token_may_have_any_bytes(
    place: Place, authority: Authority, first: tuple[Path, Path]
) -> None:
    place.put(first)
    place.tokens.write_bytes("grün\r\n\r\n  spaced \r\n".encode())
    async with serving(place.access(tokens=True)) as port:
        for token, status in (("grün", 200), ("spaced", 200), ("gr", 401), ("grün spaced", 401)):
            assert (await get(port, authority.client(), token=f"Bearer {token}"))[0] == status, token


async def test_a_connection_of_the_old_client_ca_is_closed(
    place: Place, authority: Authority, first: tuple[Path, Path], second: tuple[Path, Path], tmp_path: Path
) -> None:
    """A connection lasts for as long as it is used, and a CA is changed because it is no longer trusted."""
    place.put(first)
    shutil.copy(authority.certificate, place.ca)
    access = place.access(mutual=True)
    async with serving(access) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client(second))
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert (head.split()[1], b"Connection: close" in head) == (b"200", False)
        await reader.readexactly(len(b"numbers\n"))
        shutil.copy(Authority(tmp_path / "new", "new").certificate, place.ca)
        access.load()
        writer.write(request)
        answer = await reader.read()
        assert answer == b"" or b" 403 " in answer.splitlines()[0]
        writer.close()


async def test_a_broken_client_ca_is_named(
    place: Place, authority: Authority, first: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    place.put(first)
    for text in (authority.certificate.read_bytes()[:200], b"nothing\n", b"\xff\xfe"):
        place.ca.write_bytes(text)
        caplog.clear()
        place.access(mutual=True).load()
        assert f"{place.ca} holds no" in caplog.text, caplog.text
    place.ca.write_bytes("# Autorité\n".encode() + authority.certificate.read_bytes())
    caplog.clear()
    place.access(mutual=True).load()
    assert caplog.text == ""


async def test_probes_need_the_token_if_configured(
    place: Place, authority: Authority, first: tuple[Path, Path]
) -> None:
    place.put(first)
    place.tokens.write_text("secret")
    async with serving(place.access(tokens=True, probes_open=False)) as port:
        assert (await get(port, authority.client(), "/healthz"))[0] == 401
        assert (await get(port, authority.client(), "/healthz", "Bearer secret"))[0] == 200


async def test_a_client_certificate_is_required_except_for_probes(
    place: Place, authority: Authority, first: tuple[Path, Path], second: tuple[Path, Path], tmp_path: Path
) -> None:
    place.put(first)
    shutil.copy(authority.certificate, place.ca)
    stranger = Authority(tmp_path / "other", "other").sign("stranger")
    async with serving(place.access(mutual=True)) as port:
        assert (await get(port, authority.client(second)))[0] == 200
        assert (await get(port, authority.client()))[0] == 403
        for path, status in UI_PATHS.items():
            assert (await get(port, authority.client(second), path))[0] == status, path
            assert (await get(port, authority.client(), path))[0] == 403, path
        assert (await get(port, authority.client(), "/healthz"))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await get(port, authority.client(stranger))
    async with serving(place.access(mutual=True, probes_open=False)) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await get(port, authority.client(), "/healthz")


async def test_an_encrypted_key_is_refused_without_a_password_prompt(
    place: Place, first: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    place.put(first)
    process = await asyncio.create_subprocess_exec(
        *("openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(first[1]), "-out", str(place.key)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    await asyncio.wait_for(process.wait(), LIMIT_S)
    place.access().load()
    assert "the key is encrypted" in caplog.text


def test_the_end_of_a_certificate_is_the_one_that_openssl_prints(
    authority: Authority, second: tuple[Path, Path]
) -> None:
    ends = {ends_at(pair.read_bytes(), "x") for pair in (second[0], authority.certificate)}
    context = ssl.create_default_context(cafile=str(authority.certificate))
    (ca,) = context.get_ca_certs()
    assert ssl.cert_time_to_seconds(str(ca["notAfter"])) in ends
    assert len(ends) == 2


@given(st.binary(max_size=64), st.integers(0, 600))
def test_a_broken_certificate_raises_a_certificate_error(noise: bytes, at: int) -> None:
    whole = ssl.DER_cert_to_PEM_cert(_DER[:at] + noise + _DER[at + len(noise) :]).encode()
    with suppress(CertificateError):
        ends_at(whole, "tls.crt")


_DER = bytes.fromhex("3082010a3081b1") + bytes(260)
