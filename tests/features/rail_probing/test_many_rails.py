"""A node whose lists ask for more than it may send: each rail gets its share."""

from __future__ import annotations

import socket
from ipaddress import ip_interface

from nodeagent.fabric.rail_partners import ProbedPartner, RailList, RailPartners, RailPartnersSpec
from nodeagent.features.rail_probing.rail_probes import TICK_S, RailLink, RailProbes
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import RailSocket
from nodeagent.features.rail_probing.rail_watch import rail_listing


async def no_links() -> list[RailLink]:
    return []


class Sent(RailSocket):
    """A socket that sends nothing, and says that it did."""

    def __init__(self) -> None: ...

    def send(self, _packet: bytes, _address: str, _port: int) -> bool:
        return True

    def read(self) -> None: ...

    def close(self) -> None: ...


def opened(*_: object) -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def probes_of(rails: int, clock: list[float]) -> RailProbes:
    """Probes of this many rails, each with three partners that have answered, at 0.5 packets a second."""
    own = [ip_interface(f"10.0.{i}.1/24") for i in range(rails)]
    links = [
        RailLink(f"nic{i}", f"0000:{i:02x}:00.0", f"eth{i}", i + 1, 1500, (one,)) for i, one in enumerate(own)
    ]
    lists = [
        RailList(
            rail=f"nic{i}",
            probe=tuple(
                ProbedPartner(node=f"n{k}", nic=f"nic{i}", address=f"10.0.{i}.{k}", per_second=0.5)
                for k in range(2, 5)
            ),
        )
        for i in range(rails)
    ]
    probes = RailProbes(RailsSettings(probe=True), no_links, clock=lambda: clock[0], open_socket=opened)
    probes.take_partners(RailPartners(spec=RailPartnersSpec(rails=tuple(lists))))
    probes._arrange(links, clock[0])
    for rail in probes.rails.values():
        for one in rail.sockets.values():
            one.close()
        rail.sockets = dict.fromkeys(rail.sockets, Sent())
        for leg in rail.legs.values():
            probes._caps.answered(leg.partner.address)
    return probes


async def test_beyond_the_cap_no_rail_is_without_probes() -> None:
    clock = [1000.0]
    probes = probes_of(64, clock)
    for _ in range(round(300 / TICK_S)):
        clock[0] += TICK_S
        probes.tick()
    sent = [sum(leg.sent for leg in rail.legs.values()) for rail in probes.rails.values()]
    assert sum(sent) <= 64 * 301
    assert min(sent) > max(sent) / 2, sent


async def test_the_listing_says_what_the_cap_cuts() -> None:
    for rails, cut in ((42, (0.0, 0.0)), (64, (96.0, 64.0))):
        listing = rail_listing(tuple(probes_of(rails, [1000.0]).rails.values()), 1000.0)
        assert (listing.due_per_s, listing.at_most_per_s) == cut
