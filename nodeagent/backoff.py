"""How long to wait between attempts, and how often something may happen. Pure but for the random factor."""

from __future__ import annotations

JITTER = (0.5, 1.5)
"""Spreads the retries of many nodes whose server failed at one moment."""


class Backoff:
    """Waits between attempts: ``first_s``, then twice as long after each failure, up to ``max_s``.

    Each wait is multiplied by a random factor from the range ``jitter``.
    """

    def __init__(self, first_s: float, max_s: float, *, jitter: tuple[float, float] | None = None) -> None:
        self.first_s, self.max_s = first_s, max_s
        self._jitter = jitter
        self._wait_s = 0.0

    def next_s(self) -> float:
        """The wait after one more failure."""
        self._wait_s = next_wait_s(self._wait_s, self.first_s, self.max_s)
        return self._wait_s if self._jitter is None else jittered(self._wait_s, *self._jitter)

    def reset(self) -> None:
        """Start with ``first_s`` again, after a success."""
        self._wait_s = 0.0


def next_wait_s(last_s: float, first_s: float, max_s: float) -> float:
    """The wait after one of ``last_s`` (0: none): ``first_s``, then twice as long each time, up to ``max_s``."""
    return min(2 * last_s, max_s) if last_s else first_s


def jittered(seconds: float, low: float = JITTER[0], high: float = JITTER[1]) -> float:
    """``seconds`` multiplied by a random factor between ``low`` and ``high``."""
    import random  # noqa: PLC0415 - the agent registers without it

    return seconds * random.uniform(low, high)  # noqa: S311 - spreads load, protects no secret


class RateLimit:
    """A token bucket: ``burst`` events at once, then ``per_s`` in each second."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._tokens, self._filled_at = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Seconds until the next event is allowed."""
        self._fill(now)
        return max(0.0, (1 - self._tokens) / self._per_s)

    def take(self, now: float) -> None:
        """Count one event."""
        self._fill(now)
        self._tokens -= 1

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            gained = (now - self._filled_at) * self._per_s if self._filled_at != float("-inf") else 0.0
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_at = now
