"""The access control of the web server: certificate, client CA and bearer tokens, their renewal, and the Host.

The credentials in force stay until better ones can be loaded. If files are missing, half written, expired, or do not
belong together, this is logged once and nothing changes. Certificate and key come from one reading, so that half a
renewal is refused as a whole. Without credentials in force no connection is accepted: a late file must not make the
pages readable without TLS.

A page of another site can make its own name an address of this node (DNS rebinding), and a browser then reads our pages
for it. It cannot make an address, a name without a dot, or a name of the cluster its own. So without TLS these are
answered, and other names only if they are known here. With TLS the browser itself compares name and certificate.
"""

from __future__ import annotations

import _ssl
import asyncio
import base64
import hmac
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterable
from pathlib import Path

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.memory_file import MemoryFile
from nodeagent.base.regular_file import read_regular
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.web.web_settings import AccessSettings

log = logging.getLogger(__name__)

RELOAD_S = 10.0
"""Between two readings of the files. The kubelet renews a mounted secret within a minute or two."""
_READ_S = 2.0
_FILE_MAX = 1 << 20


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[^\]]*)?\]|[^:\[\]]*)(?::[0-9]*)?")
_OF_CLUSTER = (".svc", ".svc.cluster.local")
"""No one can register a name with these ends."""


class CertificateError(Exception):
    """A file cannot be used; the message names the file and the cause."""


class AccessControl:
    """Decides which requests the web server answers, by certificate, client CA and tokens."""

    def __init__(self, settings: AccessSettings, names: Iterable[str] = ()) -> None:
        """``names`` are further names of this server."""
        self.settings = settings
        self.names = {name.lower() for name in ("localhost", *settings.host_names, *names)}
        self.context: ssl.SSLContext | None = None
        self.ends_at: float | None = None
        """When the certificate in force ends, Unix time."""
        self.fresh = True
        """Whether the last reading of the files was valid."""
        self._tokens: tuple[bytes, ...] = ()
        self._loaded: tuple[bytes, ...] | None = None
        self._last_problem = ""
        self._reads = BoundedCalls("certificates", _READ_S)

    @property
    def closed(self) -> bool:
        """Whether TLS is configured and no certificate is loaded."""
        return self.settings.certificate_file is not None and self.context is None

    async def watch(self) -> None:
        """Read the files again and again."""
        while True:
            await asyncio.sleep(RELOAD_S)
            await self.read()

    async def read(self) -> None:
        """``load`` in a thread. A disk that hangs is logged as a file that cannot be read."""
        try:
            await self._reads.run(self.load)
        except Unanswered as error:
            self._report(str(error))

    def load(self) -> None:
        """Read the files and apply them if they are valid. Blocks."""
        problem = ""
        try:
            self._load()
        except (OSError, CertificateError, ValueError) as error:
            problem = _reason(error)
        self._report(problem)

    def _report(self, problem: str) -> None:
        self.fresh = not problem
        if problem and problem != self._last_problem:
            state = "the old one stays" if self._loaded else "no connection is accepted until it is fixed"
            log.error(
                "The certificate or token of the web server cannot be used; %s. reason=%r", state, problem
            )
        elif self._last_problem and not problem:
            log.info("Certificate and token of the web server are valid again.")
        self._last_problem = problem

    def trusts(self, context: ssl.SSLContext | None) -> bool:
        """Whether a connection with this context may continue: not if its client CA has been replaced."""
        return self.settings.client_ca_file is None or context is self.context

    def answers_for(self, host: str) -> bool:
        """Whether a request with this value of the Host header is answered."""
        if self.settings.certificate_file is not None or not host:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower()
        if name[:1] == "[" or "." not in name or _is_address(name):
            return True
        name = name.removesuffix(".")
        return name in self.names or name.endswith(_OF_CLUSTER)

    def status_for(self, probe: bool, authorization: str, certified: bool) -> int:
        """Return 200, or the status of the refusal. ``certified``: the client's certificate was verified."""
        if probe and self.settings.probes_open:
            return 200
        if self.settings.client_ca_file is not None and not certified:
            return 403
        if self.settings.token_file is None:
            return 200
        received = _received_token(authorization)
        valid = [token for token in self._tokens if hmac.compare_digest(token, received)]
        return 200 if received and valid else 401

    def _load(self) -> None:
        settings = self.settings
        certificate_file = settings.certificate_file
        files = (
            certificate_file,
            settings.key_file or certificate_file,
            settings.client_ca_file,
            settings.token_file,
        )
        texts = tuple(b"" if file is None else _read(Path(file)) for file in files)
        if texts == self._loaded:
            self._check_end(self.ends_at)
            return
        certificate, key, client_ca, tokens = texts
        context, end = None, None
        if certificate_file is not None:
            end = ends_at(certificate, certificate_file)
            if self._loaded is not None:
                self._check_end(end)
            context = _context(certificate, key)
            if settings.client_ca_file is not None:
                _verify_clients(context, client_ca, settings.client_ca_file, optional=settings.probes_open)
        lines = tuple(filter(None, (line.strip() for line in tokens.splitlines())))
        if settings.token_file is not None and not lines:
            raise CertificateError(f"{settings.token_file} holds no token")
        if self._loaded is not None:
            log.info("The certificate or token of the web server was renewed.")
        self._loaded, self.context, self.ends_at, self._tokens = texts, context, end, lines
        self._check_end(end)

    def _check_end(self, end: float | None) -> None:
        if end is not None and end <= time.time():
            day = rfc3339(end)
            raise CertificateError(f"{self.settings.certificate_file} ended at {day}; renew it")


def ends_at(pem: bytes, name: str) -> float:
    """Return the notAfter of the first certificate in a PEM file, as Unix time. RFC 5280, 4.1."""
    begin = pem.find(b"-----BEGIN CERTIFICATE-----")
    if begin < 0 or pem.find(b"-----END CERTIFICATE-----", begin) < 0:
        raise CertificateError(f"{name} has no complete certificate in PEM")
    # The one reader of the standard library for a certificate that no peer has sent: it has no public name.
    try:
        with MemoryFile(pem[begin:]) as file:
            certificate = _ssl._test_decode_cert(file.path)  # type: ignore[attr-defined]
            return float(ssl.cert_time_to_seconds(certificate["notAfter"]))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{name} has a certificate that cannot be read: {error}") from error


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def _received_token(authorization: str) -> bytes:
    """The token of a Bearer header, or the password of a Basic one (RFC 7617): the way in which a browser sends a
    secret that its user has typed."""
    scheme, _, rest = authorization.partition(" ")
    received = rest.strip().encode("latin-1", "replace")  # as the header was decoded
    if scheme.lower() == "bearer":
        return received
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(received, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _read(path: Path) -> bytes:
    text = read_regular(path, _FILE_MAX)
    if not text:
        raise CertificateError(f"{path} is empty")
    return text


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # OpenSSL reads files only. These are in memory, so they cannot change between two reads.
    with MemoryFile(certificate) as first, MemoryFile(key) as second:
        context.load_cert_chain(first.path, second.path, password=_encrypted)
    return context


def _verify_clients(context: ssl.SSLContext, authorities: bytes, path: str, *, optional: bool) -> None:
    try:
        context.load_verify_locations(
            cadata=authorities.decode("ascii", "ignore")
        )  # comments may stand between them
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{path} holds no certificates of CAs in PEM: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED


def _encrypted() -> str:
    raise CertificateError("the key is encrypted; use a key without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"certificate and key are broken or do not belong together: {error.reason or error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
