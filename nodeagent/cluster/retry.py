"""Failed calls to the API server: when to retry them, and how to log them once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.cluster.deliveries import Delivery
from nodeagent.kube.failure import ApiError

log = logging.getLogger(__name__)

RETRY_FIRST_S, _RETRY_MAX_S = 2.0, 120.0
FORBIDDEN_FIRST_S, FORBIDDEN_MAX_S = 5.0, 600.0
"""A right often arrives seconds after the agent, with the same installation; otherwise a person must grant it."""
FORBIDDEN_JITTER = (0.5, 1.0)


class ApiRetry:
    """Decide when a task may call the API server again.

    ``sentence`` is the one to log, without its full stop. ``delivery`` shows the result to readers.
    """

    def __init__(self, sentence: str, delivery: Delivery | None = None) -> None:
        self._sentence = sentence
        self._delivery = delivery
        self._backoff = Backoff(RETRY_FIRST_S, _RETRY_MAX_S, jitter=JITTER)
        self._forbidden = Backoff(FORBIDDEN_FIRST_S, FORBIDDEN_MAX_S, jitter=FORBIDDEN_JITTER)
        self._until = float("-inf")
        self._kind: tuple[int | None, str] | None = None
        self.reason: str | None = None

    def wait_s(self, now: float) -> float:
        """Seconds until the next attempt, whatever changes meanwhile."""
        return max(0.0, self._until - now)

    def failed(self, error: ApiError, now: float) -> float:
        """Record a failure. Return the seconds until the next attempt."""
        self._note(error)
        wait_s = (self._forbidden if error.status == 403 else self._backoff).next_s(error.retry_after_s)
        self._until = now + wait_s
        return wait_s

    def rejected(self, error: ApiError) -> None:
        """Record a request that the server rejects. The task continues with others. A policy (403) may refuse them all,
        so its reason is shown until a request succeeds."""
        if error.status == 403:
            self._note(error)
        elif self._delivery is not None:
            self._delivery.results["refused"] += 1

    def _note(self, error: ApiError) -> None:
        if self._kind != (error.status, error.reason):
            log.warning("%s. reason=%r", self._sentence, str(error))
        self._kind, self.reason = (error.status, error.reason), str(error)
        if self._delivery is not None:
            self._delivery.failed(error)

    def succeeded(self, left_out: Iterable[str] = ()) -> None:
        """Record a write. ``left_out`` names the parts that the server refused."""
        if self.reason is not None:
            log.info("Recovered: %s.", self._sentence)
        self.reason, self._kind, self._until = None, None, float("-inf")
        self._backoff.reset()
        self._forbidden.reset()
        if self._delivery is not None:
            self._delivery.succeeded(left_out)


class FailureLog:
    """Log a failure once, until its reason changes or a call succeeds. For parts that retry by their own schedule."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._reason: str | None = None

    def failed(self, error: ApiError, **facts: str) -> None:
        """Log the failure with ``facts`` as keys."""
        if self._reason != error.reason:
            self._reason = error.reason
            keys = "".join(f"{key}={value} " for key, value in facts.items())
            log.warning("%s. %sreason=%r", self._sentence, keys, str(error))

    def succeeded(self) -> None:
        self._reason = None
