"""HTTP to one API server: blocking in the calling thread, and abortable from any other thread.

Rules:

* The only module that imports ``urllib3``. It is loaded with the first call, so that a node without a cluster does not
  load it.
* No call outlives its deadline. The socket's timeout limits each read; against a server that sends a byte now and
  then, ``ApiCall.abort`` shuts the socket down while the thread waits on it.
* Nothing is repeated here: the server may have executed a request whose answer was lost.
* A broken connection is not used again. After a TLS failure the CA is read again.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError
from urllib3.util import Timeout

from nodeagent.base.memory_file import MemoryFile
from nodeagent.kube.access import Access, AccessError
from nodeagent.kube.answer_bounds import REFUSAL_MAX, check_encoding, too_large
from nodeagent.kube.api_request import ApiRequest
from nodeagent.kube.failure import ApiError, error_of_answer

CONNECT_S = 3.0
"""A connection attempt cannot be aborted, so an agent that ends waits for as long."""
CONNECTIONS = 8
CHUNK = 64 * 1024
KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""Detects a vanished peer within a minute, on a quiet watch too."""

_thread = threading.local()


class ApiCall:
    """One request in progress, which another thread may abort."""

    def __init__(self, request: ApiRequest, until: float) -> None:
        self.request = request
        self.until = until
        self.aborted = False
        self._connection: HTTPConnection | None = None
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    def uses(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._connection = connection

    def reads(self, answer: urllib3.BaseHTTPResponse) -> None:
        with self._lock:
            self._answer = answer

    def done(self) -> None:
        """Give the connection up: another call may use it from now on."""
        with self._lock:
            self._connection = self._answer = None

    def abort(self) -> None:
        """End the wait of the thread that executes this call."""
        with self._lock:
            self.aborted = True
            sock = getattr(self._connection, "sock", None)
            if isinstance(sock, socket.socket):
                with contextlib.suppress(OSError):
                    # Not the SSL object's shutdown, which would change it while the thread reads.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
            elif self._answer is not None:  # the connection closes after this answer, which owns the socket
                with contextlib.suppress(OSError, ValueError, RuntimeError):
                    self._answer.shutdown()


class _Plain(HTTPConnection):
    def connect(self) -> None:
        _attach(self)
        super().connect()

    def request(self, *args: Any, **more: Any) -> None:
        _attach(self)
        super().request(*args, **more)


class _Secure(_Plain, HTTPSConnection):
    pass


def _attach(connection: HTTPConnection) -> None:
    """Record that this thread's call uses the connection."""
    call: ApiCall = _thread.call
    call.uses(connection)
    if call.aborted:
        raise OSError("aborted")


class Transport:
    """Thread-safe."""

    def __init__(self, access: Access, user_agent: str, connections: int = CONNECTIONS) -> None:
        """``connections`` are kept open at most."""
        self._access = access
        self._size = connections
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def send(self, call: ApiCall, guard: Callable[[], float] | None = None) -> bytearray:
        """Return the body of a successful answer. Raises ``ApiError``.

        ``guard`` is called just before the request is sent. It returns the seconds that the request may take, or
        raises an exception, which passes.
        """
        if guard is not None:
            call.until = min(call.until, time.monotonic() + guard())
        with self._answer(call, call.left_s) as answer:
            return _body(call, answer)

    def lines(self, call: ApiCall, no_data_s: float) -> Iterator[bytes]:
        """Yield the lines of a streamed answer until it ends. Raises ``ApiError``."""
        with self._answer(call, no_data_s) as answer:
            line = bytearray()
            while part := answer.read1(CHUNK, decode_content=False):
                *whole, rest = part.split(b"\n")
                for end in whole:
                    line += end
                    yield bytes(line)
                    line.clear()
                line += rest
                if len(line) > call.request.answer_max:
                    line.clear()
                    raise too_large(call.request, f"an event of more than {call.request.answer_max} bytes")

    @contextlib.contextmanager
    def _answer(self, call: ApiCall, read_s: float) -> Iterator[urllib3.BaseHTTPResponse]:
        _thread.call = call
        answer = None
        try:
            answer = self._ask(call, read_s)
            call.reads(answer)
            if answer.status >= 300:
                raise error_of_answer(call.request, answer.status, answer.headers, _refusal(call, answer))
            check_encoding(call.request, answer.headers)
            yield answer
            if not answer.closed:
                answer.drain_conn()
            answer.release_conn()
            answer = None
        except (HTTPError, OSError) as error:
            raise self._broken(call, error) from error
        except AccessError as error:
            raise ApiError(call.request.verb, call.request.path, None, "NoAccess", str(error)) from error
        finally:
            call.done()
            if answer is not None:
                answer.close()

    def _ask(self, call: ApiCall, read_s: float) -> urllib3.BaseHTTPResponse:
        request = call.request
        if call.left_s <= 0 or call.aborted:
            raise TimeoutError("the deadline passed before the request was sent")
        headers = {"Accept": request.accept, "User-Agent": self._user_agent}
        if (authorization := self._access.authorization()) is not None:
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        query = urlencode(request.query)
        return self._connections().urlopen(
            request.method,
            request.path + ("?" + query if query else ""),
            body=request.body,
            headers=headers,
            retries=False,
            redirect=False,
            timeout=Timeout(connect=min(CONNECT_S, call.left_s), read=max(read_s, 0.001)),
            preload_content=False,
        )

    def _connections(self) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = _pool(self._access, self._size)
            return self._pool

    def _broken(self, call: ApiCall, error: Exception) -> ApiError:
        request, server = call.request, self._access.server
        if isinstance(error, SSLError | ssl.SSLError):
            self.close()  # the cluster's CA may have changed: the next call reads its file again
        if isinstance(error, NewConnectionError):  # a TimeoutError to urllib3
            reason, message = "Unreachable", f"{server}: {_cause(error)}"
        elif call.aborted or call.left_s <= 0 or isinstance(error, urllib3.exceptions.TimeoutError):
            reason, message = "Timeout", f"no answer of {server} in time"
        elif isinstance(error, SSLError | ssl.SSLError) and not isinstance(
            _innermost(error), ssl.SSLEOFError
        ):
            reason, message = "Untrusted", f"{server}: {_cause(error)}"
        else:
            reason, message = "Broken", f"{server} gave no complete answer: {_cause(error)}"
        remedy = {
            "Untrusted": "check the CA that the service account or the kubeconfig names",
            "Unreachable": "is the API server up, and does a network policy let this pod through?",
        }.get(reason, "")
        return ApiError(request.verb, request.path, None, reason, message, remedy=remedy)


def _innermost(error: BaseException) -> BaseException:
    """The exception without urllib3's wrapping."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _cause(error: BaseException) -> str:
    error = _innermost(error)
    return str(error) or type(error).__name__


def _body(call: ApiCall, answer: urllib3.BaseHTTPResponse) -> bytearray:
    """The whole body. Raises ``ApiError`` beyond the limit, ``TimeoutError`` after the deadline."""
    most = call.request.answer_max
    if answer.length_remaining is not None and answer.length_remaining > most:
        raise too_large(call.request, f"{answer.length_remaining} bytes, at most {most} are accepted")
    body = bytearray()
    while part := answer.read1(CHUNK, decode_content=False):
        body += part
        if len(body) > most:
            body.clear()  # the traceback of the error keeps it
            raise too_large(call.request, f"more than {most} bytes")
        if call.left_s <= 0:
            raise TimeoutError(f"no complete answer in time ({len(body)} bytes came)")
    return body


def _refusal(call: ApiCall, answer: urllib3.BaseHTTPResponse) -> bytes:
    """The body of a refusal, as far as it can be read."""
    body = bytearray()
    try:
        while (
            len(body) < REFUSAL_MAX
            and call.left_s > 0
            and (part := answer.read1(CHUNK, decode_content=False))
        ):
            body += part
    except (HTTPError, OSError):
        pass
    return bytes(body)


def _pool(access: Access, size: int) -> urllib3.HTTPConnectionPool:
    url = urllib3.util.parse_url(access.server)
    common: dict[str, Any] = {
        "port": url.port,
        "maxsize": size,
        "retries": False,
        "socket_options": KEEPALIVE,
    }
    if url.scheme != "https":
        plain = urllib3.HTTPConnectionPool(url.host or "", **common)
        plain.ConnectionCls = _Plain
        return plain
    secure = urllib3.HTTPSConnectionPool(
        url.host or "",
        **common,
        ssl_context=_context(access),
        cert_reqs="CERT_REQUIRED" if access.verify else "CERT_NONE",
        server_hostname=access.server_name,
        assert_hostname=access.server_name,
    )
    secure.ConnectionCls = _Secure
    return secure


def _context(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # By default Python 3.13 requires extensions (AKI) that the CAs of many clusters lack; client-go does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if (authorities := access.authorities()) is not None:
            context.load_verify_locations(cadata=authorities)
        else:
            context.load_default_certs()
        if access.certificate is not None:
            _present(context, access.certificate, access.key or access.certificate)
    except (OSError, ValueError) as error:
        where = access.ca_file or "the CA or client certificate given"
        raise AccessError(f"{where}: {error.strerror if isinstance(error, OSError) else error}") from error
    return context


def _present(context: ssl.SSLContext, certificate: str, key: str) -> None:
    with MemoryFile(certificate.encode()) as first, MemoryFile(key.encode()) as second:
        context.load_cert_chain(first.path, second.path)
