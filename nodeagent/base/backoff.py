"""How long to wait between attempts, and how often something may happen.

A server may ask for a wait (``Retry-After``). It can only lengthen the wait of a ``Backoff``, and by at most
``ASKED_MAX_S``: no answer makes a client send at once, or stop.
"""

from __future__ import annotations

import random

JITTER = (0.5, 1.5)
"""Spreads the retries of many nodes whose server failed at one moment."""
ASKED_MAX_S = 300.0
"""The longest wait that a server can ask for. A real API server asks for seconds; a date of next year is an error."""
ASKED_JITTER = (1.0, 1.25)
"""Clients that a server asked for the same wait do not return together."""


class Backoff:
    """Waits between attempts: ``first_s``, then twice as long after each failure, up to ``max_s``.

    Each wait is multiplied by a random factor from the range ``jitter``.
    """

    def __init__(self, first_s: float, max_s: float, *, jitter: tuple[float, float] | None = None) -> None:
        self.first_s, self.max_s = first_s, max_s
        self._jitter = jitter
        self._wait_s = 0.0

    def next_s(self, asked_s: float | None = None) -> float:
        """The wait after one more failure; ``asked_s`` is the wait that the server asked for."""
        self._wait_s = next_wait_s(self._wait_s, self.first_s, self.max_s)
        wait_s = self._wait_s if self._jitter is None else jittered(self._wait_s, *self._jitter)
        return max(wait_s, jittered(min(asked_s, ASKED_MAX_S), *ASKED_JITTER)) if asked_s else wait_s

    def reset(self) -> None:
        """Start with ``first_s`` again, after a success."""
        self._wait_s = 0.0


def next_wait_s(last_s: float, first_s: float, max_s: float) -> float:
    """The wait after one of ``last_s`` (0: none): ``first_s``, then twice as long each time, up to ``max_s``."""
    return min(2 * last_s, max_s) if last_s else first_s


def asked_wait_s(text: str | None, now: float) -> float | None:
    """The seconds of a ``Retry-After`` header: a number of seconds, or an HTTP date (RFC 9110, 10.2.3).

    ``now`` is Unix time. The answer is between 0 and ``ASKED_MAX_S``; ``None`` for no header and for other text.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), ASKED_MAX_S)
    if not text[:1].isalpha():
        return None
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - 6 ms of the agent's start

    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - now), ASKED_MAX_S)
    except (TypeError, ValueError, OverflowError):
        return None


def jittered(seconds: float, low: float = JITTER[0], high: float = JITTER[1]) -> float:
    """``seconds`` multiplied by a random factor between ``low`` and ``high``."""
    return seconds * random.uniform(low, high)  # noqa: S311 - spreads load, protects no secret


ROUNDING = 1e-6
"""Of one event: the sum of a time and a wait is rounded, and an event must be allowed when its wait has passed."""


class RateLimit:
    """A token bucket: ``burst`` events at once, then ``per_s`` in each second."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._tokens, self._filled_at = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Seconds until the next event is allowed."""
        self._fill(now)
        missing = 1 - self._tokens
        return missing / self._per_s if missing > ROUNDING else 0.0

    def take(self, now: float) -> None:
        """Count one event."""
        self._fill(now)
        self._tokens -= 1

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            gained = (now - self._filled_at) * self._per_s if self._filled_at != float("-inf") else 0.0
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_at = now
