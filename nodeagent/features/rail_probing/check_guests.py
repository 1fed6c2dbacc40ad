"""Which checks of other nodes this node answers, although no list has them: those of ``nodeagent rails check``.

* The packets of a check name its node. They are answered if their caller stands in the NodeLinks of that node, which
  that node's agent alone may write. So a check reaches nothing that a list could not.
* At most ``GUESTS_MAX`` checks at once, one of a node, each for ``GUEST_S``. A further one waits for a place.
* A check shows the ticket of an answer that it has received. Anybody can forge the address and the name of a node, and
  gets no answer. So a guest without a ticket for ``GUEST_QUIET_S`` loses its place if another one waits for it; agents
  of an earlier version show none.
* Anybody with an address on the rail can name nodes. So each address has a budget of reads that find nothing, a name
  whose report lacks the address is not read again for ``_REFUSED_S``, and of those that wait the one that was served
  longest ago comes first: a stranger spends his own budget alone. A newer name from one address replaces the older.
* A node that has shown a ticket before comes before all others, and needs no budget. So whoever forges other addresses,
  one's own or hundreds, can delay a node's first check here and no later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from nodeagent.features.rail_probing.probe_caps import Bucket

GUESTS_MAX, GUEST_S = 3, 10.0
GUEST_QUIET_S = 2.0
"""A check sends twenty packets a second after its first answer."""
READS_PER_S, READS_AT_ONCE = 10.0, 4
"""Of all callers together, of the API server."""
ADDRESS_PER_S, ADDRESS_AT_ONCE = 0.05, 2.0
"""Reads for one address that find nothing."""
_REFUSED_S = 60.0
WAITS_S = 5.0
"""A check knocks twice a second."""
SENDERS_MAX = 512
"""Addresses and names that are remembered."""
ReadAddresses = Callable[[str], Awaitable[Collection[str] | None]]


class CheckGuest(NamedTuple):
    """A node whose check is answered. ``shown_at``: when it has shown its ticket last; before, when it was admitted."""

    session: int
    until: float
    addresses: Collection[str]
    shown_at: float

    def keeps_place(self, now: float) -> bool:
        return now - self.shown_at < GUEST_QUIET_S


class _Knock(NamedTuple):
    """The newest check that an address asks for, and when it did so last."""

    node: str
    session: int
    at: float


class _Caller:
    """The budget of an address, and when it was served last."""

    def __init__(self) -> None:
        self.budget = Bucket(ADDRESS_PER_S, ADDRESS_AT_ONCE)
        self.served_at = float("-inf")


class CheckGuests:
    """``read`` returns the addresses of a node's rails, ``None`` if they are not known now; it raises nothing."""

    def __init__(self, read: ReadAddresses, clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._guests: dict[str, CheckGuest] = {}
        self._knocks: dict[bool, dict[str, _Knock]] = {True: {}, False: {}}
        """By whether address and name are known, and by address; the one that waits longest first."""
        self._callers: dict[str, _Caller] = {}
        self._refused: dict[str, tuple[float, Collection[str]]] = {}
        """The reports that lacked a caller, by the name of the node: until when, and their addresses."""
        self._known: dict[tuple[str, str], None] = {}
        """The addresses that have shown a ticket, each with the name of its node."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        """By address."""
        self._reads = Bucket(READS_PER_S, READS_PER_S)

    @property
    def addresses(self) -> frozenset[str]:
        """Those of the nodes that are answered now."""
        return frozenset(address for guest in self._guests.values() for address in guest.addresses)

    def admits(self, node: str, session: int, address: str, *, shown: bool = False) -> bool:
        """Whether a packet of this check is answered. The first one is not: it makes us read the node's NodeLinks.
        ``shown``: with the ticket of an answer to this address."""
        now = self._clock()
        self._guests = {name: guest for name, guest in self._guests.items() if now < guest.until}
        guest = self._guests.get(node)
        if guest is not None and (guest.session == session or address not in guest.addresses):
            if address not in guest.addresses:
                return False
            if shown:
                self._guests[node] = guest._replace(shown_at=now)
                self._known.pop((address, node), None)
                self._known[address, node] = None
                _forget_oldest(self._known)
            return True
        if guest is not None and guest.keeps_place(now):
            return False  # nobody ends its check by its address and name
        known = (address, node) in self._known
        if self._may_wait(node, address, now, known=known):
            self._knocks[known][address] = _Knock(node, session, now)
            _forget_oldest(self._knocks[known])
        self._serve(now)
        return False

    def _may_wait(self, node: str, address: str, now: float, *, known: bool) -> bool:
        until, addresses = self._refused.get(node, (now, ()))
        if now < until and address not in addresses:
            return False
        caller = self._callers.get(address)
        return known or caller is None or caller.budget.has(now)

    def _serve(self, now: float) -> None:
        """Begin the reads that are due."""
        if not self._has_place(now):
            return
        if len(self._reading) >= READS_AT_ONCE or not self._reads.has(now):
            return  # a flood costs no more than this
        for known, knocks in self._knocks.items():
            waiting = {one: knock for one, knock in knocks.items() if now - knock.at < WAITS_S}
            self._knocks[known] = waiting
            for address in sorted((one for one in waiting if one not in self._reading), key=self._served_at):
                if len(self._reading) >= READS_AT_ONCE or not self._reads.take(now):
                    return
                caller = self._callers.pop(address, None) or _Caller()
                self._callers[address] = caller  # the latest last
                caller.served_at = now
                _forget_oldest(self._callers)
                self._reading[address] = asyncio.create_task(
                    self._admit(waiting.pop(address), address, caller)
                )

    def _has_place(self, now: float, node: str = "") -> bool:
        """Whether a further guest, or another check of this node, may have a place."""
        kept = [name for name, guest in self._guests.items() if name != node and guest.keeps_place(now)]
        return len(kept) < GUESTS_MAX

    def _served_at(self, address: str) -> float:
        caller = self._callers.get(address)
        return float("-inf") if caller is None else caller.served_at

    async def _admit(self, knock: _Knock, address: str, caller: _Caller) -> None:
        try:
            found = await self._read(knock.node)
            now, addresses = self._clock(), frozenset(found or ())
            if address in addresses:
                if self._has_place(now, knock.node):
                    self._guests.pop(knock.node, None)
                    if len(self._guests) >= GUESTS_MAX:
                        del self._guests[min(self._guests, key=lambda name: self._guests[name].shown_at)]
                    self._guests[knock.node] = CheckGuest(knock.session, now + GUEST_S, addresses, now)
                return
            caller.budget.take(now)
            if found is not None:
                self._known.pop((address, knock.node), None)
                self._refused.pop(knock.node, None)
                self._refused[knock.node] = now + _REFUSED_S, addresses
                _forget_oldest(self._refused)
        finally:
            del self._reading[address]

    def close(self) -> None:
        for task in self._reading.values():
            task.cancel()


def _forget_oldest(known: dict[Any, Any]) -> None:
    if len(known) > SENDERS_MAX:
        del known[next(iter(known))]
