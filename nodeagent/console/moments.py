"""Moments that people type: `2h`, `02:47`, `2026-11-27 02:47`, in local time unless they name a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9}) ?(s|min|m|h|d|w)")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?")
FORMS = "give a duration such as 30min, 2h or 3d, a time of day such as 02:47, or a date and time"


def moment(text: str, now: float, *, past: bool) -> float:
    """The Unix time that ``text`` means: a duration before now, the last time of day; after now and the next if it is
    not ``past``. Raises ``ValueError`` with the forms.

    >>> [moment(text, 1e6, past=past) for text, past in (("2h", True), ("30 min", False), ("1970-01-01T00:00Z", True))]
    [992800.0, 1001800.0, 0.0]
    """
    text = text.strip()
    try:
        if (found := _DURATION.fullmatch(text)) is not None:
            length = int(found[1]) * _UNITS[found[2]]
            return datetime.fromtimestamp(now - length if past else now + length, UTC).timestamp()
        today = datetime.fromtimestamp(now).astimezone()
        if _CLOCK.fullmatch(text) is None:
            return datetime.fromisoformat(text).astimezone().timestamp()
        hour, minute, second = (*map(int, text.split(":")), 0)[:3]
        at = today.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=None)
        if (at.astimezone() > today) == past:
            at += timedelta(days=-1 if past else 1)
        return at.astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time: {FORMS}") from error


def end(text: str, since: float, now: float) -> float:
    """The end of a time that began at ``since``. A time of day that would be before it, and comes again today or within
    the next 12 hours, has not come yet."""
    at = moment(text, now, past=True)
    if at < since and _CLOCK.fullmatch(text.strip()) is not None:
        ahead = moment(text, now, past=False)
        if ahead < now + 43200 or local(ahead, "%F") == local(now, "%F"):
            return ahead
    return at


def local(at: float, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """A Unix time in local time, with the zone."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at:.0f} s"
