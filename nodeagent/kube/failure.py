"""What may go wrong between us and the API server: one exception, which names the call and the remedy."""

from __future__ import annotations

GONE = 410


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
