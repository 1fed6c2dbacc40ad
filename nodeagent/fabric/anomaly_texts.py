"""The texts of cabling anomalies, and the rails of a leaf group that they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeagent.fabric.groups import CablingPattern, SwitchGroup
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import shown

LinkPlace = tuple[CablingPattern, int]
"""A pattern, and the position of a link in its shape."""
RailCounts = Mapping[str, Mapping[str, int]]
"""The number of links to each switch, by rail."""
NAMES_MAX = 5
"""A text names at most this number of nodes or switches."""
ALIKE_NODES_MIN = 3
"""A switch names ports alike if half of its links or more have ports that this number of nodes or more report. Two
nodes may as well be at one port, behind a hub."""


class GroupRails:
    """The rails of a group. ``switch`` is the switch of each rail, of the group or a shared one, with this number of
    ``links`` of the rail; ``order`` are all rails in order.

    ``built`` are the rails with a neighbor at three of four nodes or more. ``counts`` are the links that all of this
    was counted from, ``cabled`` those of each rail with a neighbor.
    """

    def __init__(
        self,
        switch: dict[str, str],
        links: dict[str, int],
        built: frozenset[str],
        counts: RailCounts,
        cabled: Counter[str],
    ) -> None:
        self.switch = switch
        self.links = links
        self.built = built
        self.counts = counts
        self.cabled = cabled
        self.order = sorted(switch, key=rail_order)


def shared_number(prefix: str, number: int, ends: Sequence[tuple[str, str]]) -> Anomaly:
    """``ends`` are nodes, each with the link that has the number, in order."""
    nodes = tuple(dict.fromkeys(node for node, _ in ends))
    (node, link), *_ = ends
    message = (
        f"{len(nodes)} nodes ({names_of(nodes)}) have the number {number} in {shown(prefix)}, on "
        f"{names_of([f'{shown(name)} of {of}' for of, name in ends])}: their pods would have the same addresses; give "
        "each NIC an address of its own"
    )
    return Anomaly(AnomalyKind.SHARED_NUMBER, node, shown(link), "", message, nodes)


def foreign_leaf(
    node: str, pattern: CablingPattern, i: int, home: SwitchGroup, switches: Mapping[str, str]
) -> Anomaly:
    """``switches`` are those of the node's own group by rail."""
    slot, key = pattern.shape[i], pattern.keys[i]
    link, to = shown(slot.link), switches.get(slot.rail, "")
    message = (
        f"{link} of {node} is cabled to {key}, a switch of another leaf group ({home.anchor}): move this cable to "
        f"{to or 'a switch of its own group'}, or the node's other cables to that group"
    )
    return Anomaly(AnomalyKind.FOREIGN_LEAF, node, link, key, message, to=to)


def foreign_switch(node: str, pattern: CablingPattern, i: int, rails: GroupRails) -> Anomaly:
    slot, key = pattern.shape[i], pattern.keys[i]
    link, to = shown(slot.link), rails.switch.get(slot.rail, "")
    message = (
        f"{link} of {node} is cabled to {key}, which is no leaf switch of its group: all other cables of the nodes at "
        f"{key} go to the same switches as those of the group: move this cable to {to or 'a switch of its own group'}"
    )
    return Anomaly(AnomalyKind.FOREIGN_LEAF, node, link, key, message, to=to)


def rail_shift(nodes: Sequence[str], steps: int, rails: GroupRails) -> Anomaly:
    """All cables of these nodes are shifted by this number of rails."""
    count = len(rails.order)
    start = 0 if steps > 0 else -steps
    rail, other = rails.order[start], rails.order[(start + steps) % count]
    many = f"{len(nodes)} nodes ({names_of(nodes)})" if len(nodes) > 1 else nodes[0]
    by = "one rail" if abs(steps) == 1 else f"{abs(steps)} rails"
    message = (
        f"the cables of {many} are shifted by {by}: rail {shown(rail)} is cabled to {rails.switch[other]}, the switch "
        f"of rail {shown(other)}, and so on; move each cable to the switch of its own rail, rail {shown(rail)} to "
        f"{rails.switch[rail]}"
    )
    several = tuple(nodes) if len(nodes) > 1 else ()
    return Anomaly(AnomalyKind.RAIL_SHIFT, nodes[0], "", rails.switch[other], message, several)


def contested_link(node: str, link: str, key: str, contended: bool, same: bool) -> Anomaly:
    """``contended``: the other sender is known; otherwise the node may hear its switch under another name than others.
    ``same``: the other sender has the IDs and the name of the neighbor."""
    switch = key or "its neighbor"
    why = f"a device between them forwards LLDP, or a program on {node} sends forged frames"
    what = f"beside {switch} another device announces itself on {link} of {node}"
    if same:
        what = f"{switch} announces itself on {link} of {node} from two MAC addresses"
        why = f"it has two supervisors that both send, {why}"
    elif not contended:
        what += ", or the switch under the name of another one"
        why = f"switches were renamed, which ends when all nodes have the new names, {why}"
    message = f"{what}: {why}; `nodeagent neighbors` on the node shows what it hears"
    return Anomaly(AnomalyKind.CONTESTED_LINK, node, link, key, message)


def swapped_of_two(group: SwitchGroup) -> Iterator[Anomaly]:
    """The only two nodes of a group are at the same switches on different rails. Which one is right is not known."""
    if len(group.voters) != 2 or any(len(pattern.nodes) > 1 for pattern in group.voters):
        return
    (one, node), (other, second) = sorted(
        ((pattern, min(pattern.nodes)) for pattern in group.voters), key=lambda pair: pair[1]
    )
    at = dict(zip([slot.rail for slot in other.shape], other.keys, strict=True))
    crossed = [
        (slot, key)
        for slot, key in zip(one.shape, one.keys, strict=True)
        if key and key in other.keys and at.get(slot.rail, key) in set(one.keys) - {key, ""}
    ]
    if len(crossed) > 1:
        slot, key = crossed[0]
        rails = rails_text([each.rail for each, _ in crossed], "")
        message = (
            f"{node} and {second}, the only nodes of their group, are cabled to the same switches in different "
            f"orders: {rails}. {shown(slot.link)} is at {key} on {node} and at {at[slot.rail]} on {second}; find out "
            "which node is right, and exchange the cables of the other one"
        )
        yield Anomaly(AnomalyKind.RAIL_SWAP, node, shown(slot.link), key, message, (node, second))


def own_switches(nodes: Sequence[str], switch: str) -> Anomaly:
    message = (
        f"{len(nodes)} nodes ({names_of(nodes)}) reach only switches that no other node reaches, such as {switch}, so "
        "each of them is a leaf group of its own: these are probably DPUs in the nodes, which announce themselves and "
        "hide the switches; let them forward LLDP, or run them as plain NICs, or list the nodes in groups of the "
        "topology file"
    )
    return Anomaly(AnomalyKind.NO_LEAVES, "", "", "", message, tuple(nodes))


def other_fabric(nodes: Sequence[str], own: Sequence[str], others: Sequence[str]) -> Anomaly:
    message = (
        f"the links of {len(nodes)} nodes ({names_of(nodes)}) that are in no fabric have switches, and more bandwidth "
        f"than those of the tree ({names_of(own)}): is the tree made of a storage fabric, because its NICs alone have "
        "VFs? Then write these entries of `fabrics` into the controller's file: "
        f"[{{fabric: compute, links: [{', '.join(map(shown, others))}]}}, "
        f"{{fabric: storage, links: [{', '.join(map(shown, own))}]}}]"
    )
    return Anomaly(AnomalyKind.OTHER_FABRIC, nodes[0], "", "", message, tuple(nodes))


def no_leaves(group: SwitchGroup) -> Anomaly:
    nodes = sorted(node for pattern in group.voters for node in pattern.nodes)
    message = (
        f"{len(group.leaves)} switches ({names_of(group.leaves)}) have no leaf groups: each shares a part of its nodes "
        "with the next one, as in a ring or a chain, so all of them are one group; list the nodes in groups of the "
        "topology file"
    )
    return Anomaly(AnomalyKind.NO_LEAVES, "", "", group.anchor, message, tuple(nodes))


def nodes_in_a_ring(nodes: Sequence[str]) -> Anomaly:
    message = (
        f"{len(nodes)} nodes ({names_of(nodes)}) are cabled to each other, as in a ring or a chain: there is no leaf "
        "switch, so no tree is made of them; list them in a group of the topology file"
    )
    return Anomaly(AnomalyKind.NO_LEAVES, "", "", "", message, tuple(nodes))


def node_to_node(one: str, other: str, ends: Sequence[tuple[str, str]]) -> Iterator[Anomaly]:
    """The cables between two nodes. Each is reported by one of its ends, or by both."""
    links = {node: sorted(shown(link) for at, link in ends if at == node) for node in (one, other)}
    first, second = sorted((one, other), key=lambda node: (-len(links[node]), node))
    for i, link in enumerate(links[first]):
        end = f" ({links[second][i]})" if i < len(links[second]) else ""
        message = (
            f"{link} of {first} is cabled to the node {second}{end}: a node is no switch, so this cable counts for no "
            "group; move both ends to the switches of their rails"
        )
        yield Anomaly(AnomalyKind.NODE_TO_NODE, first, link, "", message, (first, second))


def rail_order(rail: str) -> tuple[bool, int, str]:
    """The order of rails: numbers first."""
    return not rail.isdecimal(), len(rail), rail


def names_of(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")


def rails_text(rails: Iterable[str], except_for: str) -> str:
    others = [shown(rail) for rail in rails if rail != except_for]
    return f"rail {others[0]}" if len(others) == 1 else f"the rails {', '.join(others)}" if others else ""


def shared_ports(leaf: str, places: Iterable[LinkPlace]) -> Iterator[Anomaly]:
    """Switch ports that several nodes report at present, and a switch that does not tell its ports apart."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for pattern, i in places:
        for node, report in pattern.nodes.items():
            if i not in report.stale:
                claims.setdefault(report.ports[i], []).append((node, pattern.shape[i].link))
    total = sum(map(len, claims.values()))
    nameless = claims.pop("", [])
    if len(nameless) > 1:
        what = "announces its own chassis ID as the ID of each port, and no description of a port"
        yield _ports_alike(leaf, what, nameless)
    alike = {
        port: links for port, links in claims.items() if len({node for node, _ in links}) >= ALIKE_NODES_MIN
    }
    links = [link for port in sorted(alike) for link in alike[port]]
    if links and 2 * (len(links) + len(nameless)) >= total:
        names = ", ".join(map(shown, sorted(alike)[:NAMES_MAX]))
        of = "each port" if len(links) == total else "many ports"
        what = f"announces one port, {names}, as the ID or the description of {of}"
        if len(alike) > 1:
            what = f"announces {names} as the ID or the description of several ports each"
        hub = "; if it does so already, a device between them forwards LLDP"
        yield _ports_alike(leaf, what, links, hub)
        claims = {port: links for port, links in claims.items() if port not in alike}
    for port, claimants in sorted(claims.items()):
        nodes = sorted({node for node, _ in claimants})
        if len(nodes) < 2:
            continue
        for node, link in sorted(claimants):
            others = ", ".join(other for other in nodes if other != node)
            message = (
                f"{node} and {shown(others)} report the same port {shown(port)} of {leaf}: a device between them "
                "forwards LLDP, or two switches share a name"
            )
            yield Anomaly(AnomalyKind.SHARED_PORT, node, shown(link), leaf, message)


def _ports_alike(leaf: str, what: str, links: Sequence[tuple[str, str]], otherwise: str = "") -> Anomaly:
    """The switch, whose announcements are ``what``, does not tell the ports of these links, each of a node, apart."""
    message = (
        f"{leaf} {what}, so nothing tells the ports of {len(links)} links apart: let it announce the names of its "
        "interfaces; lldpd: `lldpcli configure lldp portidsubtype ifname`; SONiC: start lldpmgrd, the feature lldp"
        f"{otherwise}"
    )
    return Anomaly(AnomalyKind.SHARED_PORT, "", "", leaf, message, tuple(sorted({node for node, _ in links})))
