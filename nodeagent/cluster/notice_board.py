"""Notices of other parts of the agent than the health of devices: reports that are refused, and evictions.

``DeviceEvents`` writes the Events of all parts, so that one limit holds for them together. Each part posts the notices
that stand; one that ends before it is read is still read once.
"""

from __future__ import annotations

import asyncio

from nodeagent.cluster.event_writer import Notice, NoticeKey


class NoticeBoard:
    """Belongs to one event loop. ``changed`` is set when a part posts other notices; the reader clears it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._standing: dict[str, dict[NoticeKey, Notice]] = {}
        self._unread: dict[NoticeKey, Notice] = {}

    def post(self, part: str, *notices: Notice) -> None:
        """Replace the notices of this part."""
        posted = {notice.key: notice for notice in notices}
        if posted != self._standing.get(part, {}):
            self._standing[part] = posted
            self._unread |= posted
            self.changed.set()

    def take(self) -> tuple[Notice, ...]:
        """The notices that stand, and those that have ended since the last call."""
        taken = self._unread
        for posted in self._standing.values():
            taken |= posted
        self._unread = {}
        return tuple(taken.values())
