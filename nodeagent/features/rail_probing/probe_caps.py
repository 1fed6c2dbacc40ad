"""The most that the agent sends and answers, whatever a list or a setting says: a forged list makes no weapon. Pure.

* ``SENT_PER_S`` packets in all as sender, ``TO_ONE_PER_S`` to one address, and one a minute to an address that has
  never answered. ``ANSWERS_PER_S`` answers on each rail to listed addresses that show a ticket, and as many to those
  that show none; see ``AnswerCaps``.
* As many further answers on each rail to the checks of other nodes, ``CHECKED_TO_ONE_PER_S`` to one address; see
  ``check_guests`` and ``rail_burst``.
* A target lies in the rail's own prefix or in a configured network. It is no multicast, broadcast or loopback address.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
)

from nodeagent.fabric.rail_partners import of_a_host

SENT_PER_S = 64.0
TO_ONE_PER_S = 2.0
ANSWERS_PER_S = 64.0
WITHOUT_TICKET_PER_S = 16.0
"""To one address, where forged probes may be among them: the more are answered, the sooner is a partner's."""
CHECKED_TO_ONE_PER_S = 21.0
"""A check sends 20 a second on a rail, and an earlier version shows no ticket."""
UNANSWERED_S = 60.0
PAUSED = 24.0
"""Packets at once: a partner whose host has paused for ten seconds sends some twenty."""

_IpAddress = IPv4Address | IPv6Address
IpInterface = IPv4Interface | IPv6Interface
IpNetwork = IPv4Network | IPv6Network


class Bucket:
    """Lets ``rate`` events through in a second, and ``burst`` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, float("-inf")

    def has(self, now: float) -> bool:
        """Whether the next one would get through."""
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
        return self._left >= 1.0

    def take(self, now: float) -> bool:
        if not self.has(now):
            return False
        self._left -= 1.0
        return True


class AnswerCaps:
    """The answers of one rail: a budget for each listed address, and another one for probes of this address that show
    no ticket.

    A partner sends at most ``TO_ONE_PER_S``, and shows the ticket of an answer that it has received. Who sends with its
    address alone receives no answer. So he has no ticket, and takes nothing from the partner and from the others; a
    partner without a ticket yet, or with that of an earlier agent, shares a budget with him until its first answer.
    """

    def __init__(
        self, to_one_per_s: float = TO_ONE_PER_S + 1, without_ticket_per_s: float = WITHOUT_TICKET_PER_S
    ) -> None:
        self._per_s = {True: to_one_per_s, False: without_ticket_per_s}
        self._secret = secrets.token_bytes(16)
        self._all = {shown: Bucket(ANSWERS_PER_S, ANSWERS_PER_S) for shown in (True, False)}
        self._of: dict[tuple[str, bool], Bucket] = {}

    def keep(self, addresses: Collection[str]) -> None:
        """Forget the other addresses."""
        self._of = {key: bucket for key, bucket in self._of.items() if key[0] in addresses}

    def ticket(self, address: str, session: int) -> int:
        """The ticket of a session, which only a receiver at this address knows."""
        text = f"{address} {session}".encode()
        return int.from_bytes(hashlib.blake2b(text, key=self._secret, digest_size=8).digest()) or 1

    def take(self, address: str, now: float, *, shown: bool) -> bool:
        """Whether a probe of a listed address is answered now. ``shown``: with its ticket."""
        of_one = self._of.setdefault((address, shown), Bucket(self._per_s[shown], PAUSED))
        return of_one.take(now) and self._all[shown].take(now)


class SendCaps:
    """The caps of the sender, for all rails together."""

    def __init__(self) -> None:
        self._all = Bucket(SENT_PER_S, SENT_PER_S)
        self._to: dict[str, Bucket] = {}
        self._asked: dict[str, float] = {}
        """When an address that has not answered yet was probed last."""
        self._answered: set[str] = set()

    def answered(self, address: str) -> None:
        """The address has answered a probe of this process."""
        self._answered.add(address)
        self._asked.pop(address, None)

    def keep(self, addresses: set[str]) -> None:
        """Forget what was sent to others. A minute of silence stays, or a list that changes would shorten it."""
        self._answered &= addresses
        self._to = {address: bucket for address, bucket in self._to.items() if address in addresses}

    def take(self, address: str, now: float) -> bool:
        """Whether a packet may be sent to this address now."""
        if address not in self._answered:
            if now - self._asked.get(address, float("-inf")) < UNANSWERED_S:
                return False
            self._asked = {to: at for to, at in self._asked.items() if now - at < UNANSWERED_S}
        elif not self._to.setdefault(address, Bucket(TO_ONE_PER_S, TO_ONE_PER_S)).take(now):
            return False
        if not self._all.take(now):
            return False
        if address not in self._answered:
            self._asked[address] = now
        return True


def own_address(target: str, own: Iterable[IpInterface], networks: Iterable[IpNetwork]) -> IpInterface | None:
    """Return the address of the rail from which the target may be probed; ``None`` if it may not be probed."""
    try:
        address = ip_address(target)
    except ValueError:
        return None
    if "%" in target or not of_a_host(address):
        return None
    same = [interface for interface in own if interface.version == address.version]
    for interface in same:
        network = interface.network
        ends = network.network_address, network.broadcast_address
        wide = network.prefixlen < network.max_prefixlen - 1
        if wide and address in ends:
            return None
        if address in network and address != interface.ip:
            return interface
    if any(address in network for network in networks if network.version == address.version):
        return next((one for one in same if not one.is_link_local and one.ip != address), None)
    return None
