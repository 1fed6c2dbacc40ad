"""Timestamps as Kubernetes, logs and reports write them (RFC 3339), in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def rfc3339(unix_s: float, timespec: Literal["seconds", "milliseconds", "microseconds"] = "seconds") -> str:
    """``2026-01-31T12:00:00Z``, cut to ``timespec``.

    Raises ValueError, OverflowError or OSError for a time outside the years 1 to 9999.
    """
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
