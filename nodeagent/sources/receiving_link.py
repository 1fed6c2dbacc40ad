"""One link of the LLDP receiver, with its socket and the times of what it received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.facts.model import Neighbor
from nodeagent.host.netlink.dcb import UNKNOWN_DCB, DcbSettings
from nodeagent.host.packet import LldpSocket
from nodeagent.sources.link_selection import SelectedLink

NEVER = float("-inf")


@dataclass(slots=True)
class ReceivingLink:
    """A link with a socket, or one whose netdev is away. Times are those of the event loop.

    ``up_at`` is the time of carrier up or of the socket's start, ``None`` without carrier. ``moved_from`` was the
    neighbor until ``moved_at``.
    """

    selected: SelectedLink
    socket: LldpSocket | None = None
    enslaved: bool = False
    up_at: float | None = None
    received_at: float = NEVER
    own_at: float = NEVER
    flooded_at: float = NEVER
    away_at: float | None = None
    neighbor: Neighbor | None = None
    moved_from: str | None = None
    moved_at: float | None = None
    dropped: int = 0
    error: str | None = None
    dcb: DcbSettings = UNKNOWN_DCB

    @property
    def name(self) -> str:
        return self.selected.name

    @property
    def bound_to(self) -> tuple[int, bool] | None:
        """The ifindex of the socket, and whether the socket is made for an enslaved netdev."""
        if self.socket is None or not self.socket.bound:
            return None
        return (self.socket.ifindex, self.enslaved)

    def quiet_since(self) -> float:
        return max(self.up_at or NEVER, self.received_at)

    def close(self) -> None:
        if self.socket is not None:
            self.dropped += self.socket.count_drops()
            self.socket.close()
            self.socket = None


def known_name(links: Mapping[str, ReceivingLink], selected: SelectedLink) -> str | None:
    """The name of the same link: the one whose socket is bound to the netdev, or with the PCI address or name."""
    for name, link in links.items():
        if link.socket is not None and link.socket.ifindex == selected.netdev.ifindex and link.socket.bound:
            return name
    address = selected.pci_address
    for name, link in links.items():
        if link.socket is not None and link.socket.bound:
            continue  # bound to another netdev: of the same function, or with the old name of this one
        known = link.selected.pci_address
        if known == address and (address is not None or name == selected.name):
            return name
    return None
