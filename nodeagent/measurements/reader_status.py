"""The state of one reader: its last reading and its errors. Metric names call it a collector."""

from __future__ import annotations

import msgspec

from nodeagent.measurements.sample import Source


class ReaderStatus(msgspec.Struct):
    """Times are CLOCK_BOOTTIME. ``reason`` is why the last reading failed.

    ``skipped`` counts how often a port or a counter was skipped after a failure.
    """

    source: Source
    attempts: int = 0
    errors: int = 0
    duration_s: float | None = None
    succeeded_at: float | None = None
    reason: str | None = None
    hanging: bool = False
    skipped: int = 0

    @property
    def name(self) -> str:
        return str(self.source)

    @property
    def up(self) -> bool:
        """Whether the last reading succeeded and no reading hangs."""
        return self.succeeded_at is not None and self.reason is None and not self.hanging

    def succeeded(self, now: float, duration_s: float | None) -> bool:
        """Note a success. Returns whether the reader had failed before."""
        recovered = self.reason is not None
        self.attempts += 1
        self.duration_s, self.succeeded_at, self.reason = duration_s, now, None
        return recovered

    def failed(self, reason: str, duration_s: float | None = None) -> bool:
        """Note a failure. Returns whether the reason is new."""
        changed = self.reason != reason
        self.attempts += duration_s is not None
        self.errors += 1
        self.reason = reason
        if duration_s is not None:
            self.duration_s = duration_s
        return changed
