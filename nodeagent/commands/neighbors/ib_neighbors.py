"""The InfiniBand rows of `neighbors`: each port that is up asks its peer once, with one question of two packets."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from nodeagent.console.terminal import note
from nodeagent.facts.model import Link, Neighbor, Remark
from nodeagent.host.sysfs import Tree
from nodeagent.infiniband.asking import PeerState
from nodeagent.infiniband.peer import NOT_ASKED
from nodeagent.sources.infiniband_source import InfinibandSource
from nodeagent.sources.neighbor_view import AgedNeighbor, LinkRow, NeighborListing
from nodeagent.sources.pci_source import PciFacts, scan_once
from nodeagent.sources.source_settings import InfinibandSettings

_NEVER = (
    "InfiniBand has no LLDP; with `infiniband: {query: auto}` the port asks its switch, which needs the right to open "
    "/dev/infiniband/umad*"
)


async def with_infiniband(
    listing: NeighborListing, settings: InfinibandSettings, root: Path
) -> NeighborListing:
    """Add the InfiniBand links of the machine to a listing of LLDP."""
    tree = Tree(root)
    facts = scan_once(tree)
    for path in sorted(tree.hanging):
        note(f"{path} does not answer: its device is left out")
    if not any(link for link in facts.links if _is_infiniband(facts, link)):
        return listing
    rows, remarks = await _asked(tree, facts, settings) if settings.asks else _unasked(facts)
    return replace(
        listing,
        rows=tuple(sorted((*listing.rows, *rows), key=lambda row: row.link)),
        remarks=tuple(sorted((*listing.remarks, *remarks), key=lambda remark: (remark.link, remark.key))),
    )


def _is_infiniband(facts: PciFacts, link: Link) -> bool:
    return any(
        function.pci_address == link.pci_address and function.link_type == "infiniband"
        for function in facts.functions
    )


def _unasked(facts: PciFacts) -> tuple[list[LinkRow], list[Remark]]:
    drivers = {function.pci_address: function.driver for function in facts.functions}
    links = [link for link in facts.links if _is_infiniband(facts, link)]
    rows = [
        LinkRow(
            link.netdev,
            link.pci_address,
            drivers.get(link.pci_address),
            "unasked" if link.carrier else "down",
        )
        for link in links
    ]
    return rows, [Remark(row.link, NOT_ASKED, _NEVER) for row in rows if row.state == "unasked"][:1]


async def _asked(
    tree: Tree, facts: PciFacts, settings: InfinibandSettings
) -> tuple[list[LinkRow], list[Remark]]:
    found: dict[str, Neighbor] = {}
    remarks: list[Remark] = []

    def take(neighbors: tuple[Neighbor, ...], odd: tuple[Remark, ...]) -> None:
        found.update((neighbor.link, neighbor) for neighbor in neighbors)
        remarks.extend(odd)

    names = Path(settings.node_names) if settings.node_names is not None else None
    source = InfinibandSource(tree, take, node_names=names)
    await source.look(facts.functions, facts.links)
    drivers = {function.pci_address: function.driver for function in facts.functions}
    rows = []
    for port, asked in source.ports():
        neighbor = found.get(port.link)
        if asked.peer_state is PeerState.DOWN:
            state = "down"
        elif asked.error is not None:
            state = "deaf"
        else:
            state = "live" if neighbor is not None else "silent"
        if state == "silent":
            detail = "the link is up, but its peer did not answer this question; the agent asks three times"
            remarks.append(Remark(port.link, "silent_port", detail))
        neighbors = (AgedNeighbor(neighbor),) if neighbor is not None else ()
        rows.append(LinkRow(port.link, port.pci_address, drivers.get(port.pci_address), state, neighbors))
    return rows, remarks
