"""How each source of samples does."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.measurements.sample import Source


@dataclass(slots=True)
class Collector:
    """How one source does. Times are CLOCK_BOOTTIME; ``reason`` is why the last reading failed.

    ``ports_left_out`` counts the times that a port or a counter was.
    """

    source: Source
    attempts: int = 0
    successes: int = 0
    errors: int = 0
    duration_s: float | None = None
    succeeded_at: float | None = None
    reason: str | None = None
    hanging: bool = False
    ports_left_out: int = 0

    @property
    def name(self) -> str:
        return str(self.source)

    @property
    def up(self) -> bool:
        """Whether its last reading was good and none is waited for."""
        return self.succeeded_at is not None and self.reason is None and not self.hanging

    @property
    def seconds(self) -> float | None:
        return self.duration_s

    def age(self, now: float) -> float | None:
        """Seconds since it last succeeded."""
        return None if self.succeeded_at is None else now - self.succeeded_at

    def succeeded(self, now: float, duration_s: float | None) -> bool:
        """Whether that is news."""
        news = self.reason is not None
        self.attempts += 1
        self.successes += 1
        self.duration_s, self.succeeded_at, self.reason = duration_s, now, None
        return news

    def failed(self, reason: str, duration_s: float | None = None) -> bool:
        """Whether that is news."""
        news = self.reason != reason
        self.attempts += duration_s is not None
        self.errors += 1
        self.reason = reason
        if duration_s is not None:
            self.duration_s = duration_s
        return news
