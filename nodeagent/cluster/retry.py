"""How fast a sink may write to the API server, and how it says that it cannot."""

from __future__ import annotations

import logging
import random

from nodeagent.kube.failure import ApiError

log = logging.getLogger(__name__)

BACKOFF_FIRST_S, BACKOFF_MAX_S = 2.0, 120.0
FORBIDDEN_S = 600.0
"""A right that is missing is granted by a person."""


class Bucket:
    """``burst`` at once, then ``per_s`` each second."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._left, self._at = float(burst), float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until there is one to take."""
        self._fill(now)
        return max(0.0, (1 - self._left) / self._per_s)

    def take(self, now: float) -> None:
        self._fill(now)
        self._left -= 1

    def _fill(self, now: float) -> None:
        if now > self._at:
            gained = (now - self._at) * self._per_s if self._at != float("-inf") else 0.0
            self._left = min(self._burst, self._left + gained)
            self._at = now


class Trouble:
    """A failure that is said once, waited out longer each time, and said to be over."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._backoff_s = BACKOFF_FIRST_S
        self._until = float("-inf")
        self.reason: str | None = None

    def wait(self, now: float) -> float:
        """How long nothing should be tried, whatever else happens meanwhile."""
        return max(0.0, self._until - now)

    def has(self, error: ApiError, now: float) -> float:
        """How long to wait."""
        if self.reason is None:
            log.warning("%s. reason=%r", self._sentence, str(error))
        self.reason = str(error)
        if error.status == 403:
            self._until = now + FORBIDDEN_S
            return FORBIDDEN_S
        wait = max(error.retry_after_s or 0.0, self._backoff_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        self._until = now + wait
        return wait

    def over(self) -> None:
        if self.reason is not None:
            log.info("%s: that is over.", self._sentence)
        self.reason, self._until = None, float("-inf")
        self._backoff_s = BACKOFF_FIRST_S


def refused(error: ApiError) -> bool:
    """The server has understood and will not have it, now or later: to send it again is no use."""
    return error.status is not None and 400 <= error.status < 500 and error.status not in (401, 403, 429)
