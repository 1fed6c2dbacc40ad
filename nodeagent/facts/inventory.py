"""The only mutable object of the agent: the latest snapshot, and a way to wait for a change.

Sources publish whole facts; an equal fact wakes no reader. If a source fails, its last facts stay, and a
``StaleSource`` marks them as old. Readers take ``snapshot``, an immutable value that is swapped in one assignment.
There is no queue: a slow reader sees the latest snapshot. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from nodeagent.facts.model import Snapshot, StaleSource


class Inventory:
    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._published: set[str] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._events: list[asyncio.Event] = []
        self.listener: Callable[[Snapshot], object] = lambda _snapshot: None
        """Takes each snapshot, after those who wait for it are awake; it must be quick."""

    def publish(self, source: str, **facts: Any) -> bool:
        """Replace these parts of the snapshot; its facts are current. Return whether anything changed."""
        first = source not in self._published
        self._published.add(source)
        stale = tuple(entry for entry in self.snapshot.stale_sources if entry.source != source)
        return self._update({**facts, "stale_sources": stale}, wake=first)

    def mark_stale(self, source: str, reason: str) -> bool:
        """Mark the facts of the source as old, with the reason. They stay in the snapshot."""
        others = [entry for entry in self.snapshot.stale_sources if entry.source != source]
        stale = tuple(sorted([*others, StaleSource(source, reason)], key=lambda entry: entry.source))
        return self._update({"stale_sources": stale}, wake=False)

    def has_published(self, source: str) -> bool:
        """Whether the source has ever published a fact. Before that, "no devices" would be a guess."""
        return source in self._published

    async def changed(self, since: int) -> Snapshot:
        """Wait until the revision is beyond ``since``, and return the latest snapshot."""
        while self.snapshot.revision <= since:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.snapshot

    @contextmanager
    def notifying(self, event: asyncio.Event) -> Iterator[None]:
        """Set the event at each change. Its reader runs in the next turn of the event loop, one that waits for several
        coroutines (``supervise.either``) some turns later."""
        self._events.append(event)
        try:
            yield
        finally:
            self._events.remove(event)

    def _update(self, facts: dict[str, Any], *, wake: bool) -> bool:
        old = self.snapshot
        same = all(getattr(old, name) == value for name, value in facts.items())
        if same and not wake:
            return False
        self.snapshot = replace(old, **facts, revision=old.revision + 1)
        for event in self._events:
            event.set()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.listener(self.snapshot)
        return not same
