"""On which way the probes of a leg are lost: there or back. Pure.

The partner counts the probes that it receives of a session, as the stateful reflector of RFC 8762 does, and each answer
has its count. Between two answers, probes that it did not count were lost on the way there, and answers that did not
come on the way back. While nothing comes back, nobody can tell.
"""

from __future__ import annotations

COUNTS = (1 << 24) - 1
"""Counts are 1 to 2^24 - 1, three octets of the packet, and begin again. 0: an agent of an earlier version."""
CLEAR, _LEAST = 0.8, 4
"""So many losses with a known way, of which so large a share was on one, have a direction."""
RECENT = 64
"""The losses that count; each newer one takes from the weight of the older ones."""


def count_of(received: int) -> int:
    """The count of the answer to a probe that was the ``received``th."""
    return (received - 1) % COUNTS + 1


class LossDirection:
    """The losses of one leg: ``there`` and ``back``."""

    def __init__(self) -> None:
        self.there = self.back = 0.0
        self._last: tuple[int, int] | None = None

    def answered(self, number: int, count: int) -> None:
        """The answer to the probe that was the ``number``th to this partner has come."""
        if not count:
            self._last = None  # an agent of a later version begins its counts again
            return
        if self._last is None:
            self._last = number, count
            return
        sent, received = number - self._last[0], (count - self._last[1]) % COUNTS
        if sent <= 0:  # it was late, and had been taken for lost
            if 0 < received < COUNTS // 2:  # already its probe was overtaken
                self.there = max(0.0, self.there - 1)
            else:
                self.back = max(0.0, self.back - 1)
            return
        received = max(1, received)
        self._last = number, count
        if received <= sent:  # otherwise the partner's agent was restarted
            self.there += sent - received
            self.back += received - 1
            keep = min(1.0, RECENT / max(1.0, self.there + self.back))
            self.there, self.back = self.there * keep, self.back * keep

    @property
    def losses(self) -> tuple[float, float]:
        """Those on the way there, and those on the way back; of ``RECENT`` at most."""
        return self.there, self.back

    def forget(self) -> None:
        """Begin again: what was lost is over."""
        self.there = self.back = 0.0


def direction(there: float, back: float) -> str:
    """``there`` or ``back``, if most of these losses were on one way; empty if not."""
    if there + back < _LEAST:
        return ""
    return "there" if there >= CLEAR * (there + back) else "back" if back >= CLEAR * (there + back) else ""
