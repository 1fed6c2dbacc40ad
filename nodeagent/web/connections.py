"""The open connections of the web server: what each waits for, and which one is closed for another.

Those without a whole request have a limit of their own: clients that send nothing must not keep the kubelet's probes
out. Beyond it, the caller with the most of them loses its oldest one. The other limit is that of connections which have
sent a request. If another request comes, the one that is idle for longest is closed, or else the one whose client reads
slowly for longest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum, auto
from typing import NamedTuple

ANSWERED_MAX = 32
"""Connections that have sent a whole request."""
NEW_MAX = 128
"""Connections that have not. With TLS each takes 350 KiB."""
SLOW_S = 1.0
"""A client that has not read its answer for this time makes room for another."""


class Phase(Enum):
    """The part that a connection waits for."""

    NEW = auto()
    """the end of the client's first request"""
    IDLE = auto()
    """the end of the client's next request, or of the connection"""
    CLIENT = auto()
    """the client: it must read"""
    SERVER = auto()
    """this server"""
    STREAM = auto()
    """the next piece of a stream"""


class _Place(NamedTuple):
    phase: Phase
    since: float
    caller: str


class Connections:
    """Each connection is the task that serves it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._places: dict[asyncio.Task[None], _Place] = {}
        """The one that is in its phase for longest comes first."""

    def add(self, task: asyncio.Task[None], caller: str) -> None:
        """Add a new connection, and close another one if there are too many."""
        new = {other: place.caller for other, place in self._places.items() if place.phase is Phase.NEW}
        if len(new) >= NEW_MAX:
            most, _ = Counter(new.values()).most_common(1)[0]
            self._close(next(other for other, its in new.items() if its == most))
        self._places[task] = _Place(Phase.NEW, asyncio.get_running_loop().time(), caller)

    def discard(self, task: asyncio.Task[None]) -> None:
        self._places.pop(task, None)

    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        return tuple(self._places)

    def admits(self, task: asyncio.Task[None] | None) -> bool:
        """Whether a connection that has sent a whole request is within the limit, for which another one may be
        closed."""
        others = {other: place for other, place in self._places.items() if place.phase is not Phase.NEW}
        if task in others or len(others) < ANSWERED_MAX:
            return True
        slow_since = asyncio.get_running_loop().time() - SLOW_S
        for phase in (Phase.IDLE, Phase.CLIENT):
            for other, place in others.items():
                if place.phase is phase and (phase is Phase.IDLE or place.since <= slow_since):
                    self._close(other)
                    return True
        return False

    def mark(self, task: asyncio.Task[None] | None, phase: Phase) -> None:
        """The connection begins this phase."""
        if task in self._places:
            caller = self._places.pop(task).caller
            self._places[task] = _Place(phase, asyncio.get_running_loop().time(), caller)

    def _close(self, task: asyncio.Task[None]) -> None:
        self.discard(task)
        task.cancel()
