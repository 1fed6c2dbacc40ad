"""The clock of facts, samples and health: seconds since boot. It counts suspended time, and nothing sets it."""

from __future__ import annotations

import time


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
