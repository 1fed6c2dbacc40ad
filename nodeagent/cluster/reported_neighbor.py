"""The neighbor of a link in the report of a node, which is the last one while frames are missing. Pure."""

from __future__ import annotations

import msgspec

from nodeagent.fabric.nodelinks import LinkNeighbor, ReportedId
from nodeagent.facts.model import Neighbor

ADDRESSES_MAX = 8


def reported_neighbor(
    neighbors: list[Neighbor], last: LinkNeighbor | None, *, patient: bool
) -> LinkNeighbor | None:
    """The neighbor to report: the first one, unless it is another one than before and not confirmed."""
    if not neighbors:
        return last if last is None or patient else msgspec.structs.replace(last, stale=True)
    first = neighbors[0]
    current = _link_neighbor(first, contested=_is_contested(neighbors))
    if last is None:
        return current
    if (current.chassis_id, current.port_id) == (last.chassis_id, last.port_id):
        return last if patient and first.stale else current
    return current if first.confirmed else msgspec.structs.replace(last, stale=True)


def _is_contested(neighbors: list[Neighbor]) -> bool:
    """Whether several confirmed chassis are live on a link. A switch that renames its ports while it boots is one."""
    return (
        len({neighbor.chassis_id for neighbor in neighbors if neighbor.confirmed and not neighbor.stale}) > 1
    )


def _link_neighbor(neighbor: Neighbor, *, contested: bool) -> LinkNeighbor:
    port = ReportedId(subtype=neighbor.port_id.subtype, value=neighbor.port_id.value)
    return LinkNeighbor(
        chassis_id=ReportedId(subtype=neighbor.chassis_id.subtype, value=neighbor.chassis_id.value),
        port_id=port,
        system_name=neighbor.system_name,
        # Most switches repeat the port's name as its description; the API server stores these bytes for every link.
        port_description=neighbor.port_description if neighbor.port_description != port.value else None,
        # Their order means nothing. A switch with hundreds of addresses must not make the report too large.
        management_addresses=tuple(sorted(set(neighbor.management_addresses))[:ADDRESSES_MAX]),
        stale=neighbor.stale,
        contested=contested,
    )
