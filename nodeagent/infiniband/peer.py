"""From the answers of a peer to a neighbor and remarks. Pure.

* The GUID of the node is the identity: of one switch chip, or of one adapter. The subtype of the chassis ID is the kind
  of node: ``switch-guid``, ``hca-guid`` or ``router-guid``. An adapter (HCA) is a neighbor, and never a leaf.
* The port ID is the number of the peer's port. Numbers beyond the faceplate are legal: of split ports, and for SHARP.
* A description without a name of its own gives no system name; a map of GUIDs may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nodeagent.facts.model import Identifier, Neighbor, Remark
from nodeagent.infiniband.asking import IbPortState, PeerState
from nodeagent.infiniband.node_names import NameMap, adapter_name, switch_name
from nodeagent.infiniband.smp import NodeInfo, NodeType, guid_text
from nodeagent.lldp.escaping import printable, text_of
from nodeagent.lldp.link_remarks import NO_NEIGHBOR

PORT_NUMBER = "port-number"
SUBTYPES = {
    NodeType.CHANNEL_ADAPTER: "hca-guid",
    NodeType.SWITCH: "switch-guid",
    NodeType.ROUTER: "router-guid",
}
_CAPABILITIES = {
    NodeType.CHANNEL_ADAPTER: ("station",),
    NodeType.SWITCH: ("bridge",),
    NodeType.ROUTER: ("router",),
}
"""The words of LLDP's system capabilities (802.1AB, 8.5.8.1)."""

ADAPTER_NEIGHBOR = "adapter_neighbor"
NOT_ASKED = "peer_not_asked"
_KEYS = (NO_NEIGHBOR, ADAPTER_NEIGHBOR, NOT_ASKED)
_ACTIVE = 4


class Peer(msgspec.Struct, frozen=True):
    """The answers of a peer. ``description`` is ``None`` if the second question had no answer."""

    info: NodeInfo
    description: bytes | None = None


class AskedPort(msgspec.Struct, frozen=True):
    """One link with what is known of its far end. ``error``: why its device cannot be used, with a remedy."""

    link: str
    peer_state: PeerState
    state: IbPortState
    peer: Peer | None = None
    error: str | None = None


def with_description(peer: Peer, before: Peer | None) -> Peer:
    """Keep the description of the same node if the second question had no answer this time."""
    if peer.description is None and before is not None and before.info.node_guid == peer.info.node_guid:
        return msgspec.structs.replace(peer, description=before.description)
    return peer


def infiniband_neighbors(ports: Iterable[AskedPort], names: NameMap) -> tuple[Neighbor, ...]:
    """One neighbor for each port whose peer has answered, sorted by link. It is stale while the link is down, and
    while the peer does not answer."""
    found = (
        _neighbor_of(
            port.link, port.peer, names, stale=port.peer_state in (PeerState.DOWN, PeerState.UNRESPONSIVE)
        )
        for port in ports
        if port.peer is not None
    )
    return tuple(sorted(found, key=lambda neighbor: neighbor.link))


def _neighbor_of(link: str, peer: Peer, names: NameMap, *, stale: bool = False) -> Neighbor:
    info, description = peer.info, peer.description or b""
    own_name = adapter_name if info.node_type is NodeType.CHANNEL_ADAPTER else switch_name
    return Neighbor(
        link=link,
        chassis_id=Identifier(SUBTYPES[info.node_type], guid_text(info.node_guid)),
        port_id=Identifier(PORT_NUMBER, str(info.local_port)),
        system_name=names.get(info.node_guid) or own_name(description),
        system_description=printable(text_of(description)) or None,
        capabilities=_CAPABILITIES[info.node_type],
        stale=stale,
        confirmed=True,  # the peer has answered a question: no frame of another port can be in its place
    )


def remarks_of(ports: Iterable[AskedPort], neighbors: Iterable[Neighbor]) -> tuple[Remark, ...]:
    """Remarks sorted by link and key."""
    by_link = {neighbor.link: neighbor for neighbor in neighbors}
    remarks = (remark for port in ports for remark in _of_port(port, by_link.get(port.link)))
    return tuple(sorted(remarks, key=lambda remark: (remark.link, remark.key)))


def _of_port(port: AskedPort, neighbor: Neighbor | None) -> Iterator[Remark]:
    if port.error is not None:
        yield Remark(port.link, NOT_ASKED, port.error)
    elif port.peer_state is PeerState.UNRESPONSIVE:
        yield Remark(port.link, NO_NEIGHBOR, _silence(port.state))
    if neighbor is not None and not neighbor.stale and neighbor.chassis_id.subtype == "hca-guid":
        other = neighbor.system_name or neighbor.chassis_id.value
        detail = f"cabled to an adapter, {other} port {neighbor.port_id.value}, and not to a switch"
        yield Remark(port.link, ADAPTER_NEIGHBOR, detail)


def _silence(state: IbPortState) -> str:
    likely = (
        "most likely the fabric has management keys (M_Key with protection level 2 or 3), and the agent has none by "
        "design; give the controller the switches of these ports in a file"
        if state.state == _ACTIVE
        else "the port is not active: most likely no subnet manager has configured it, or the switch still starts"
    )
    return (
        f"the link is up, but its peer does not answer: {likely}. It is asked again after a change of the port's state "
        "or LID, or after a day"
    )
