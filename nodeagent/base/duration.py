"""Durations for people, in one style everywhere."""

from __future__ import annotations

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_EXACT_S = 10


def duration(seconds: float) -> str:
    """In the two largest units, whole seconds from ten on.

    >>> [duration(n) for n in (0, 0.25, 7, 90, 317, 3600, 7260, 200000)]
    ['0 s', '0.25 s', '7 s', '1 min 30 s', '5 min 17 s', '1 h', '2 h 1 min', '2 d 7 h']
    """
    if seconds < _EXACT_S:
        return f"{max(0.0, seconds):.2g} s"
    left, parts = round(seconds), list[str]()
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
