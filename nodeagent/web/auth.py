"""Who may come in: the certificate, the client CA and the bearer tokens of the web server, and their renewal.

The law of this file: what is in force stays in force until something better is there. Files that are missing,
half written, expired or do not belong together are said once and change nothing; certificate and key are taken
from the same reading, so that a renewal caught half way is refused as a whole. Without anything in force the
door stays shut: nobody is served in the clear because a file was late.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import ssl
import time
from pathlib import Path

from nodeagent.rfc3339 import rfc3339
from nodeagent.web.web_settings import WebSettings
from nodeagent.web.x509 import CertificateError, ends_at

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Between two looks at the files. The kubelet renews a mounted secret within a minute or two."""
FILE_MAX = 1 << 20


class Door:
    """Decides which requests the web server answers, by certificate, client CA and tokens."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.context: ssl.SSLContext | None = None
        self.ends_at: float | None = None
        """When the certificate in force ends, Unix time."""
        self.fresh = True
        """Whether the last look found everything in order."""
        self._tokens: tuple[bytes, ...] = ()
        self._taken: tuple[bytes, ...] | None = None
        self._said = ""

    @property
    def shut(self) -> bool:
        """TLS is asked for and there is nothing to do it with."""
        return self.settings.certificate_file is not None and self.context is None

    async def watch(self) -> None:
        """Look at the files again and again, in a thread: a disk that hangs must not hold up the loop."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the files and take what is good. Blocks."""
        problem = ""
        try:
            self._look()
        except (OSError, CertificateError, ValueError) as error:
            problem = _reason(error)
        self.fresh = not problem
        if problem and problem != self._said:
            state = "the old one stays" if self._taken else "nobody is served until it is mended"
            log.error("The web's certificate or token cannot be taken; %s. reason=%r", state, problem)
        elif self._said and not problem:
            log.info("The web's certificate and token are in order again.")
        self._said = problem

    def trusts(self, context: ssl.SSLContext | None) -> bool:
        """Whether a connection that came in by ``context`` may go on: not by a client CA that was replaced."""
        return self.settings.client_ca_file is None or context is self.context

    def admits(self, probe: bool, authorization: str, certified: bool) -> int:
        """200, or the status to refuse with. ``certified``: the client's certificate was verified."""
        if probe and self.settings.probes_open:
            return 200
        if self.settings.client_ca_file is not None and not certified:
            return 403
        if self.settings.token_file is None:
            return 200
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("latin-1", "replace")  # as the header was decoded
        right = [one for one in self._tokens if hmac.compare_digest(one, given)]
        return 200 if scheme.lower() == "bearer" and right else 401

    def _look(self) -> None:
        settings = self.settings
        certificate_file = settings.certificate_file
        files = (
            certificate_file,
            settings.key_file or certificate_file,
            settings.client_ca_file,
            settings.token_file,
        )
        texts = tuple(b"" if file is None else _read(Path(file)) for file in files)
        if texts == self._taken:
            self._not_over(self.ends_at)
            return
        certificate, key, client_ca, tokens = texts
        context, end = None, None
        if certificate_file is not None:
            end = ends_at(certificate, certificate_file)
            if self._taken is not None:
                self._not_over(end)
            context = _context(certificate, key)
            if settings.client_ca_file is not None:
                _ask_clients(context, client_ca, settings.client_ca_file, optional=settings.probes_open)
        lines = tuple(filter(None, (line.strip() for line in tokens.splitlines())))
        if settings.token_file is not None and not lines:
            raise CertificateError(f"{settings.token_file} holds no token")
        if self._taken is not None:
            log.info("The web's certificate or token was renewed.")
        self._taken, self.context, self.ends_at, self._tokens = texts, context, end, lines
        self._not_over(end)

    def _not_over(self, end: float | None) -> None:
        if end is not None and end <= time.time():
            day = rfc3339(end)
            raise CertificateError(f"{self.settings.certificate_file} ended at {day}; renew it")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(FILE_MAX + 1)
    if not text or len(text) > FILE_MAX:
        raise CertificateError(f"{path} is {'empty' if not text else 'too large'}")
    return text


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # OpenSSL takes files alone: these cannot change between two reads of it.
    with _Memory(certificate) as first, _Memory(key) as second:
        context.load_cert_chain(first.path, second.path, password=_encrypted)
    return context


def _ask_clients(context: ssl.SSLContext, authorities: bytes, path: str, *, optional: bool) -> None:
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))  # names stand beside them
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{path} holds no certificates of CAs in PEM: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED


def _encrypted() -> str:
    raise CertificateError("the key is encrypted; give one that is not")


class _Memory:
    """Bytes that have a path for as long as they are needed, and are on no disk."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __enter__(self) -> _Memory:
        self._fd = os.memfd_create("nodeagent-web", os.MFD_CLOEXEC)
        os.write(self._fd, self._text)
        self.path = f"/proc/self/fd/{self._fd}"
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._fd)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"certificate and key are broken or do not belong together: {error.reason or error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
