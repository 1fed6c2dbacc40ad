"""InfiniBand cables that the operator provides: to switches that answer no question of a node, and between switches.
Pure.

A link of a report gets a known neighbor if it has none, or only one whose information has expired. Links are found by
their port GUID, the last eight octets of an IPoIB address, or else by the node's name and the RDMA device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from nodeagent.fabric.nodelinks import LinkNeighbor, NodeLink, NodeLinks

_IPOIB_OCTETS = 20


@dataclass(frozen=True, slots=True)
class KnownNeighbors:
    """``by_guid``: by port GUID in 16 hex digits. ``by_device``: by host name without domain, and RDMA device.
    ``uplinks``: the switches above each switch, or beside it, all by chassis ID."""

    by_guid: Mapping[str, LinkNeighbor] = field(default_factory=dict)
    by_device: Mapping[tuple[str, str], LinkNeighbor] = field(default_factory=dict)
    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def complete(self, links: NodeLinks) -> NodeLinks:
        """The report with the neighbors that it lacks."""
        completed = self.complete_links(links.node_name, links.links)
        return links if completed == links.links else replace(links, links=completed)

    def complete_links(self, node: str, links: tuple[NodeLink, ...]) -> tuple[NodeLink, ...]:
        """The links of a node with the neighbors that they lack."""
        return tuple(self._completed(node, link) for link in links) if self.by_guid else links

    def _completed(self, node: str, link: NodeLink) -> NodeLink:
        if link.neighbor is not None and not link.neighbor.stale:
            return link
        octets = (link.mac or "").lower().split(":")
        guid = "".join(octets[-8:]) if len(octets) == _IPOIB_OCTETS else ""
        host = node.partition(".")[0]
        known = self.by_guid.get(guid) or self.by_device.get((host, link.rdma_device or link.netdev or ""))
        return link if known is None else replace(link, neighbor=known)


NO_NEIGHBORS = KnownNeighbors()
