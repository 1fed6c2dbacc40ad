"""On which way the probes of a leg are lost: there or back. Pure.

The partner counts the probes that it receives of a session, as the stateful reflector of RFC 8762 does, and each answer
has its count. Between two answers, probes that it did not count were lost on the way there, and answers that did not
come on the way back. While nothing comes back, nobody can tell.
"""

from __future__ import annotations

COUNTS = (1 << 24) - 1
"""Counts are 1 to 2^24 - 1, three octets of the packet, and begin again. 0: an agent of an earlier version."""
CLEAR, LEAST = 0.8, 4
"""So many losses with a known way, of which so large a share was on one, have a direction."""


def count_of(received: int) -> int:
    """The count of the answer to a probe that was the ``received``th."""
    return (received - 1) % COUNTS + 1


class LossDirection:
    """The losses of one leg: ``there`` and ``back``."""

    def __init__(self) -> None:
        self.there = self.back = 0
        self._last: tuple[int, int] | None = None

    def answered(self, number: int, count: int) -> None:
        """The answer to the probe that was the ``number``th to this partner has come."""
        if not count:
            return
        if self._last is None:
            self._last = number, count
            return
        sent = number - self._last[0]
        if sent <= 0:  # it was late, and had been taken for lost
            self.back = max(0, self.back - 1)
            return
        received = max(1, (count - self._last[1]) % COUNTS)
        self._last = number, count
        if received <= sent:  # otherwise the partner's agent was restarted
            self.there += sent - received
            self.back += received - 1

    @property
    def losses(self) -> tuple[int, int]:
        """Those on the way there, and those on the way back."""
        return self.there, self.back

    def forget(self) -> None:
        """Begin again: what was lost is over."""
        self.there = self.back = 0


def direction(there: float, back: float) -> str:
    """``there`` or ``back``, if most of these losses were on one way; empty if not."""
    if there + back < LEAST:
        return ""
    return "there" if there >= CLEAR * (there + back) else "back" if back >= CLEAR * (there + back) else ""
