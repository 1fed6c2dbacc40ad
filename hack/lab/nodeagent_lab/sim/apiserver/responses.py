"""Refusals: Status objects with the messages of Kubernetes."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiRefusedError(Exception):
    """A request that is refused with a Status."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Json | None = None,
        retry_after_s: int | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.details = details
        self.retry_after_s = retry_after_s
        self.token = token

    def status(self) -> Json:
        details = dict(self.details or {})
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.token} if self.token else {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            **({"details": details} if details else {}),
            "code": self.code,
        }


def named(group: str, plural: str) -> str:
    """``hypernodes.topology.volcano.sh``: the name of a resource in messages."""
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> ApiRefusedError:
    details = {"name": name, "group": group, "kind": plural}
    return ApiRefusedError(404, f'{named(group, plural)} "{name}" not found', details=details)


def exists(group: str, plural: str, name: str) -> ApiRefusedError:
    details = {"name": name, "group": group, "kind": plural}
    message = f'{named(group, plural)} "{name}" already exists'
    return ApiRefusedError(409, message, reason="AlreadyExists", details=details)


def conflict(group: str, plural: str, name: str, why: str) -> ApiRefusedError:
    details = {"name": name, "group": group, "kind": plural}
    message = f'Operation cannot be fulfilled on {named(group, plural)} "{name}": {why}'
    return ApiRefusedError(409, message, details=details)


def invalid(group: str, kind: str, name: str, causes: list[tuple[str, str]]) -> ApiRefusedError:
    """``causes`` are pairs of field and error."""
    text = ", ".join(f"{field}: {why}" for field, why in causes)
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [{"reason": _reason(why), "message": why, "field": field} for field, why in causes],
    }
    whole = text if len(causes) == 1 else f"[{text}]"
    return ApiRefusedError(422, f'{named(group, kind)} "{name}" is invalid: {whole}', details=details)


def _reason(why: str) -> str:
    """The reason of a cause by its message, as the API server's field errors have it."""
    reasons = {
        "Required value": "FieldValueRequired",
        "Unsupported value": "FieldValueNotSupported",
        "Duplicate value": "FieldValueDuplicate",
        "Too long": "FieldValueTooLong",
        "Too many": "FieldValueTooMany",
    }
    return reasons.get(why.partition(":")[0], "FieldValueInvalid")
