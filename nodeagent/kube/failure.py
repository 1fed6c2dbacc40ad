"""The one exception of a call to the API server: it names the call, the reason and, if possible, the remedy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from nodeagent.base.backoff import ASKED_MAX_S, asked_wait_s
from nodeagent.base.plain_text import one_line
from nodeagent.kube.api_request import ApiRequest

_GONE = 410
_TEXT_MAX = 500
CAUSES_MAX = 1000
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


class RefusedField(NamedTuple):
    """A field that the server refuses, such as ``links[3].state``, and its reason in words."""

    field: str
    message: str


class ApiError(Exception):
    """A call that did not succeed.

    ``verb`` is RBAC's word (``list``, ``patch``, …). ``status`` is the HTTP status, ``None`` without a complete
    answer. ``reason`` is the server's word (``Forbidden``, ``AlreadyExists``, ``Conflict``, ``Expired``, …) or the
    client's (``Timeout``, ``Unreachable``, ``Untrusted``, ``Broken``, ``TooLarge``, ``NoAccess``). ``retry_after_s`` is
    how long the server asks to wait, between 0 and ``backoff.ASKED_MAX_S``. ``causes`` are the fields that it refuses.
    ``remedy`` is a sentence or empty.
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
        causes: tuple[RefusedField, ...] = (),
    ) -> None:
        self.verb = verb
        self.path = path
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.remedy = remedy
        self.causes = causes
        head = f"{verb} {path}: {'' if status is None else f'{status} '}{reason}"
        super().__init__(f"{head}: {message}" + (f"; {remedy}" if remedy else ""))

    @property
    def gone(self) -> bool:
        """The resource version or the continue token has expired: list again."""
        return self.status == _GONE

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def refused(self) -> bool:
        """The server rejects this one request, and another one may pass. A missing right concerns all of its kind."""
        if self.status is None or not 400 <= self.status < 500:
            return False
        return self.status not in (401, 429) and not self.missing_right

    @property
    def missing_right(self) -> bool:
        """No role grants such a request (RBAC's words). Any other 403 is about one object: an admission policy, a
        webhook, a quota or the end of a namespace refuses it."""
        return self.status == 403 and f" cannot {self.verb} resource " in self.message

    @property
    def exists(self) -> bool:
        """An object of this name exists already."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Another client has changed, created or owns the object."""
        return self.status == 409


class ApiStatus(msgspec.Struct, rename="camel"):
    """The Status object with which the API server refuses a request."""

    reason: str = ""
    message: str = ""
    code: int | None = None
    details: dict[str, Any] | None = None


def error_of_answer(request: ApiRequest, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an answer with a status of 300 or more."""
    try:
        answer = msgspec.json.decode(body, type=ApiStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = ApiStatus(message=body.decode("utf-8", "replace"))
    reason = answer.reason or _REASONS.get(status, "Unknown")
    message = (
        one_line(" ".join(answer.message.split("\n")).strip(), _TEXT_MAX) or "no message from the server"
    )
    details = answer.details or {}
    after = asked_wait_s(headers.get("Retry-After"), time.time())
    asked = details.get("retryAfterSeconds")
    if after is None and isinstance(asked, int | float) and asked > 0:
        after = float(min(asked, ASKED_MAX_S))
    return ApiError(
        request.verb,
        request.path,
        status,
        one_line(reason, _TEXT_MAX),
        message,
        retry_after_s=after,
        remedy=_remedy(request, status, answer.message),
        causes=_causes(details.get("causes")),
    )


def error_of_event(request: ApiRequest, status: bytes | msgspec.Raw) -> ApiError:
    """The error for a Status object in the middle of a watch."""
    try:
        code = msgspec.json.decode(status, type=ApiStatus).code
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        code = None
    return error_of_answer(request, code or 500, {}, bytes(status))


def _remedy(request: ApiRequest, status: int, message: str) -> str:
    if status == 401:
        return "the API server does not accept our token: is it from this cluster, and not expired?"
    if status == 403 and f" cannot {request.verb} resource " in message:
        where = "" if request.namespace is None else f" in namespace {request.namespace!r}"
        return (
            f"a role must grant us the verb {request.verb} on {request.resource} "
            f"(API group {request.group!r}){where}"
        )
    if status == 404 and request.group and "could not find the requested resource" in message:
        plural = request.resource.partition("/")[0]
        return f"the cluster has no such kind: install the CustomResourceDefinition {plural}.{request.group}"
    return ""


def _causes(causes: Any) -> tuple[RefusedField, ...]:
    """The causes of a Status that name a field."""
    return tuple(
        RefusedField(field[:_TEXT_MAX], one_line(str(cause.get("message", "")), _TEXT_MAX))
        for cause in (causes[:CAUSES_MAX] if isinstance(causes, list) else ())
        if isinstance(cause, dict) and isinstance(field := cause.get("field"), str)
    )
