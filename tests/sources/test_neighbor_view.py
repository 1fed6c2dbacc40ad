"""The listing of neighbors that an agent answers with: the InfiniBand links beside those of LLDP."""

from __future__ import annotations

from nodeagent.facts.model import Identifier, Link, Neighbor, Remark, Snapshot
from nodeagent.sources.neighbor_view import AgedNeighbor, LinkRow, NeighborListing, with_infiniband_facts
from tests.support.kind_machines import pf_of

ETHERNET = pf_of(9, netdev="swp9", link_type="ethernet")
PFS = {
    name: pf_of(rail, netdev=name) for rail, name in enumerate(("ib-live", "ib-old", "ib-mute", "ib-down"))
}
LLDP = NeighborListing(
    (LinkRow("swp9", ETHERNET.pci_address, "mlx5_core", "live", ()),), (Remark("swp9", "odd", "of LLDP"),)
)


def link(name: str, address: str, *, carrier: bool = True) -> Link:
    return Link(name, address, None, True, carrier, "up", 400_000, 4092)


def peer(name: str, *, stale: bool = False) -> Neighbor:
    guid = Identifier("switch-guid", f"0xb83fd20300{len(name):06x}")
    return Neighbor(name, guid, Identifier("port", "1"), system_name="leaf", stale=stale)


SNAPSHOT = Snapshot(
    functions=(*PFS.values(), ETHERNET),
    links=(
        *(link(name, pf.pci_address, carrier=name != "ib-down") for name, pf in PFS.items()),
        link("swp9", ETHERNET.pci_address),
        link("gone", "0000:ff:00.0"),
    ),
    neighbors=(peer("ib-live"), peer("ib-old", stale=True)),
    remarks=(Remark("swp9", "odd", "of LLDP"), Remark("ib-mute", "silent_port", "no answer")),
)


def test_each_infiniband_link_has_its_state_and_peer() -> None:
    listing = with_infiniband_facts(LLDP, SNAPSHOT, asks=True)
    assert [(row.link, row.state) for row in listing.rows] == [
        ("ib-down", "down"),
        ("ib-live", "live"),
        ("ib-mute", "silent"),
        ("ib-old", "stale"),
        ("swp9", "live"),
    ]
    found = {row.link: row.neighbors for row in listing.rows if row.neighbors}
    assert found == {
        "ib-live": (AgedNeighbor(peer("ib-live")),),
        "ib-old": (AgedNeighbor(peer("ib-old", stale=True)),),
    }
    assert [remark.link for remark in listing.remarks] == ["ib-mute", "swp9"], "each once"


def test_ports_that_may_not_ask_are_shown_as_such() -> None:
    listing = with_infiniband_facts(LLDP, SNAPSHOT, asks=False)
    states = {row.link: row.state for row in listing.rows}
    assert states["ib-down"] == "down"
    assert {states[name] for name in PFS} == {"down", "unasked"}
    assert states["swp9"] == "live"
