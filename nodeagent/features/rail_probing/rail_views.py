"""The answers of the agent about its rails: the listing for ``nodeagent rails``, and the result of a check. Pure."""

from __future__ import annotations

import msgspec


class PartnerView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A partner of a rail: the probes of the last hour, and its level of loss in percent, 0 for a good leg."""

    node: str
    nic: str
    address: str
    scope: str
    sent: int
    lost: int
    level: int
    large: bool = False
    absent: bool = False
    rtt_us: float | None = None
    answered_s: float | None = None
    """Seconds since its last answer."""
    direction: str = ""
    """On which way most of its lost probes are lost, ``there`` or ``back``; empty: unknown, or on both."""


class RailView(msgspec.Struct, frozen=True, rename="camel"):
    """A rail. ``checked`` is ``yes``, or a word for why it cannot be checked."""

    name: str
    netdev: str
    checked: str
    addresses: tuple[str, ...] = ()
    partners: tuple[PartnerView, ...] = ()


class RailListing(msgspec.Struct, frozen=True, rename="camel"):
    """The rails of this node. ``probes``: `rails.probe` is on. ``due_per_s``: the packets a second that the lists ask
    for over all rails, if they are more than the ``at_most_per_s`` of one node."""

    probes: bool
    rails: tuple[RailView, ...] = ()
    due_per_s: float = 0.0
    at_most_per_s: float = 0.0


class BurstRail(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of one rail. ``why`` is why it could not be checked, or empty. ``large`` packets are of the MTU, and
    stand in no other count. ``rtt_us`` is the median, without the time in the hosts."""

    name: str
    address: str = ""
    sent: int = 0
    lost: int = 0
    large_sent: int = 0
    large_lost: int = 0
    rtt_us: float | None = None
    why: str = ""

    @property
    def dead(self) -> bool:
        """No packet came back, or there is no carrier."""
        return self.why == "down" or (not self.why and 0 < self.sent == self.lost)


class BurstResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of a check. ``why``: nothing could be checked, in words, with the remedy."""

    to: str
    why: str = ""
    rails: tuple[BurstRail, ...] = ()
