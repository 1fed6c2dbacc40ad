"""What may go wrong between us and the API server: one exception, which names the call and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

GONE = 410
TEXT_MAX = 500
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Asked(Protocol):
    """What of a request an error names; ``transport.Request`` is one."""

    @property
    def verb(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def namespace(self) -> str | None: ...


class ApiError(Exception):
    """A call that did not succeed.

    ``verb`` is RBAC's word (``list``, ``patch``, …), ``path`` the server's. ``status`` is HTTP's, ``None``
    where no whole answer came. ``reason`` is the server's word (``Forbidden``, ``AlreadyExists``,
    ``Conflict``, ``Expired``, …) or ours (``Timeout``, ``Unreachable``, ``Broken``). ``retry_after_s`` is
    how long the server wants to be left alone. ``remedy`` is a sentence, empty where there is none.
    """

    def __init__(
        self,
        verb: str,
        path: str,
        status: int | None,
        reason: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        remedy: str = "",
    ) -> None:
        self.verb = verb
        self.path = path
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.remedy = remedy
        head = f"{verb} {path}: {'' if status is None else f'{status} '}{reason}"
        super().__init__(f"{head}: {message}" + (f"; {remedy}" if remedy else ""))

    @property
    def gone(self) -> bool:
        """The resource version or the continue token is too old: list anew."""
        return self.status == GONE

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Somebody else has changed, made or owns it."""
        return self.status == 409


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, rename="camel"):
    """What the API server says of a request that it refuses."""

    reason: str = ""
    message: str = ""
    code: int | None = None
    details: _Details | None = None


def refused(request: Asked, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error that an answer other than a good one stands for."""
    try:
        said = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = Status(message=body.decode("utf-8", "replace"))
    reason = said.reason or _REASONS.get(status, "Unknown")
    message = plain(said.message) or "the server says no more"
    after = _seconds(headers.get("Retry-After"))
    if after is None and said.details is not None and said.details.retry_after_seconds:
        after = float(said.details.retry_after_seconds)
    return ApiError(
        request.verb,
        request.path,
        status,
        plain(reason),
        message,
        retry_after_s=after,
        remedy=_remedy(request, status, said.message),
    )


def said(request: Asked, status: bytes | msgspec.Raw) -> ApiError:
    """The error that a Status in the middle of a watch stands for."""
    try:
        code = msgspec.json.decode(status, type=Status).code
    except (msgspec.DecodeError, UnicodeDecodeError):
        code = None
    return refused(request, code or 500, {}, bytes(status))


def _remedy(request: Asked, status: int, message: str) -> str:
    if status == 401:
        return "the API server does not know us: is the token of this cluster, and not expired?"
    if status == 403 and " cannot " in message:
        where = "" if request.namespace is None else f" in namespace {request.namespace!r}"
        return (
            f"a role must grant us the verb {request.verb} on {request.resource} "
            f"(API group {request.group!r}){where}"
        )
    if status == 404 and request.group and "could not find the requested resource" in message:
        plural = request.resource.partition("/")[0]
        return f"the cluster has no such kind: install the CustomResourceDefinition {plural}.{request.group}"
    return ""


def plain(text: str) -> str:
    """One line of bounded length that no terminal takes for anything else."""
    cut = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
    return "".join(c if c.isprintable() else " " if c == "\n" else f"\\x{ord(c):02x}" for c in cut.strip())


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` as API servers send it: whole seconds."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
