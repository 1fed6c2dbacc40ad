"""Which checks of other nodes this node answers, although no list has them: those of ``nodeagent rails check``.

* The packets of a check name its node. They are answered if their sender stands in the NodeLinks of that node, which
  that node's agent alone may write. So a check reaches nothing that a list could not.
* At most ``GUESTS_MAX`` checks at once, each for ``GUEST_S``. A further one is silent, and its node says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from nodeagent.rails.probe_caps import Bucket

GUESTS_MAX, GUEST_S = 3, 10.0
_READS_PER_S, _READS_AT_ONCE = 1.0, 4.0
ReadAddresses = Callable[[str], Awaitable[Collection[str]]]


class CheckGuest(NamedTuple):
    """A node whose check is answered."""

    session: int
    until: float
    addresses: Collection[str]


class CheckGuests:
    """``read`` returns the addresses of a node's rails, or none; it raises nothing."""

    def __init__(self, read: ReadAddresses, clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._guests: dict[str, CheckGuest] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._reads = Bucket(_READS_PER_S, _READS_AT_ONCE)

    def admits(self, node: str, session: int, address: str) -> bool:
        """Whether a packet of this check is answered. The first one is not: it makes us read the node's NodeLinks."""
        now = self._clock()
        self._guests = {name: guest for name, guest in self._guests.items() if now < guest.until}
        guest = self._guests.get(node)
        if guest is not None and (guest.session == session or address not in guest.addresses):
            return address in guest.addresses
        others = (self._guests.keys() | self._reading.keys()) - {node}
        if node not in self._reading and len(others) < GUESTS_MAX and self._reads.take(now):
            self._reading[node] = asyncio.create_task(self._admit(node, session, address))
        return False

    async def _admit(self, node: str, session: int, address: str) -> None:
        try:
            addresses = frozenset(await self._read(node))
            if address in addresses:
                self._guests[node] = CheckGuest(session, self._clock() + GUEST_S, addresses)
        finally:
            del self._reading[node]

    def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
