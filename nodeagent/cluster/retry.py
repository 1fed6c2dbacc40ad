"""Failed calls to the API server: when to retry them, and how to log them once."""

from __future__ import annotations

import logging

from nodeagent.backoff import JITTER, Backoff
from nodeagent.kube.failure import ApiError

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 2.0, 120.0
FORBIDDEN_S = 600.0
"""A person must grant a missing right."""


class ApiRetry:
    """Decide when a task may call the API server again. ``problem`` is the sentence to log, without its full stop."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, jitter=JITTER)
        self._until = float("-inf")
        self.reason: str | None = None

    def wait_s(self, now: float) -> float:
        """Seconds until the next attempt, whatever changes meanwhile."""
        return max(0.0, self._until - now)

    def failed(self, error: ApiError, now: float) -> float:
        """Record a failure. Return the seconds until the next attempt."""
        if self.reason is None:
            log.warning("%s. reason=%r", self._problem, str(error))
        self.reason = str(error)
        wait_s = (
            FORBIDDEN_S if error.status == 403 else max(error.retry_after_s or 0.0, self._backoff.next_s())
        )
        self._until = now + wait_s
        return wait_s

    def succeeded(self) -> None:
        if self.reason is not None:
            log.info("Recovered: %s.", self._problem)
        self.reason, self._until = None, float("-inf")
        self._backoff.reset()


class FailureLog:
    """Log a failure once, until its reason changes or a call succeeds. For parts that retry by their own schedule."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._reason: str | None = None

    def failed(self, error: ApiError, **facts: str) -> None:
        """Log the failure with ``facts`` as keys."""
        if self._reason != error.reason:
            self._reason = error.reason
            keys = "".join(f"{key}={value} " for key, value in facts.items())
            log.warning("%s. %sreason=%r", self._problem, keys, str(error))

    def succeeded(self) -> None:
        self._reason = None


def refused(error: ApiError) -> bool:
    """Whether the server rejects this request for good: sending it again is useless."""
    return error.status is not None and 400 <= error.status < 500 and error.status not in (401, 403, 429)
