"""A node's report in compact form: what matters for the tree, in values that equal reports share.

* A report is accepted whole, or refused with a reason. Refused is a report about another node, with more than a node
  can have, or with text that no LLDPDU can carry. Times in a report are never compared with the controller's clock.
* A link without a neighbor keeps its place in the report. It counts for the group in which the node is published.
* Reports of nodes with identical cabling share one ``Shape``, so that sums are made once for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from nodeagent.fabric.fabric_settings import FabricRules, FabricSelect
from nodeagent.fabric.nodelinks import NOT_UP, LinkNeighbor, NodeLink, NodeLinks
from nodeagent.plain_text import one_line

LINKS_MAX = 128
TEXT_MAX = 1100
"""An LLDP string has at most 255 octets; escaping makes up to four characters of each."""
SHOWN_MAX = 80
MAC_OCTETS = 6
SWITCH_GUID, ADAPTER_GUID = "switch-guid", "hca-guid"
"""The subtypes of InfiniBand: the chassis ID is the GUID of a switch chip or of an adapter."""
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LAST = 1 << 31

T = TypeVar("T", bound=Hashable)


class RefusedReportError(ValueError):
    """The report is refused. The message completes "its report …"."""


class SwitchAnnouncement(NamedTuple):
    """The LLDP announcement of a switch, without the port: one value for all links to that switch."""

    name: str
    chassis: str
    addresses: tuple[str, ...]


class LinkSlot(NamedTuple):
    """A link in a report: its name, its rail (as the node numbers it, or the link's name) and its neighbor."""

    link: str
    rail: str
    neighbor: SwitchAnnouncement | None


Shape = tuple[LinkSlot, ...]


class CompactReport:
    """``ports[i]`` is the switch port of link ``shape[i]``. Bit i of ``stale``, ``contested``, ``miscabled`` and
    ``unused`` is for this link; ``unused``: the node expects no cable there.

    ``incomplete``: some link is up and has no current neighbor yet. ``up`` counts the links that are up. ``macs`` are
    the MAC addresses of all links of the node, of other fabrics too: six octets each.
    """

    __slots__ = ("contested", "incomplete", "macs", "miscabled", "ports", "shape", "stale", "unused", "up")

    def __init__(
        self,
        shape: Shape,
        ports: tuple[str, ...],
        stale: int,
        contested: int,
        miscabled: int,
        unused: int,
        up: int,
        incomplete: bool,
        macs: bytes,
    ) -> None:
        self.shape = shape
        self.ports = ports
        self.stale = stale
        self.contested = contested
        self.miscabled = miscabled
        self.unused = unused
        self.up = up
        self.incomplete = incomplete
        self.macs = macs


class InternPool:
    """Makes equal values one object. A full pool starts again empty, because it also keeps values of past reports."""

    def __init__(self, size_max: int = 1 << 19) -> None:
        self._size_max = size_max
        self._values: dict[Hashable, Hashable] = {}

    def __call__(self, value: T) -> T:
        if len(self._values) >= self._size_max:
            self._values = {}
        return self._values.setdefault(value, value)  # type: ignore[return-value]


class ReportReader:
    """Makes compact reports by one set of rules."""

    def __init__(self, rules: FabricRules, pool: InternPool) -> None:
        self._rules = rules
        self._pool = pool

    def read(self, name: str, links: NodeLinks) -> CompactReport:
        """``name`` is the name of the NodeLinks object. Raises ``RefusedReportError``."""
        _check(name, links)
        pool = self._pool
        shape: list[LinkSlot] = []
        ports: list[str] = []
        stale = contested = miscabled = unused = up = 0
        incomplete = False
        for link in self._of_fabric(links):
            bit = 1 << len(shape)
            state = (link.state or "").lower()
            is_down = state in NOT_UP
            up += not is_down
            if state == "miscabled":
                miscabled |= bit
            elif state == "unused":
                unused |= bit
            neighbor = None if link.neighbor is None else self._announcement(links, link.neighbor)
            rail = link.name if link.rail is None else str(link.rail)
            shape.append(pool(LinkSlot(pool(link.name), rail, neighbor)))
            if neighbor is None or link.neighbor is None:
                ports.append("")
                incomplete = incomplete or not is_down
            else:
                ports.append(pool(link.neighbor.port_id.value))
                if link.neighbor.contested:
                    contested |= bit
                if link.neighbor.stale:
                    stale |= bit
                    incomplete = incomplete or not is_down
        macs = b"".join(octets(link.mac) for link in links.links if link.mac is not None)
        return CompactReport(
            pool(tuple(shape)),
            pool(tuple(ports)),
            stale,
            contested,
            miscabled,
            unused,
            up,
            incomplete,
            macs,
        )

    def _announcement(self, links: NodeLinks, neighbor: LinkNeighbor) -> SwitchAnnouncement | None:
        """``None`` for a frame from the node itself, such as its NIC's firmware or a representor.

        The name does not decide: a switch may have the name of the node.
        """
        name = neighbor.system_name or ""
        chassis = neighbor.chassis_id
        if chassis.subtype == "mac" and any(chassis.value == link.mac for link in links.links):
            return None
        addresses = tuple(sorted(neighbor.management_addresses))
        return self._pool(SwitchAnnouncement(name, f"{chassis.subtype}={chassis.value}", addresses))

    def _of_fabric(self, links: NodeLinks) -> Iterator[NodeLink]:
        """The links of the fabric that makes the tree, ordered by rail and name."""
        rules = self._rules
        listed = [link for link in links.links if not _unasked(link)]
        # If the node names the fabric of some links, its other links belong to none, such as those for storage.
        has_fabrics = any(link.fabric is not None for link in listed)
        fastest = max((link.speed_mbps or 0 for link in listed), default=0)
        for link in sorted(listed, key=_order):
            fabric = link.fabric
            for rule in rules.fabrics:
                if _matches(rule, links.node_name, link):
                    fabric = rule.fabric
                    break
            else:
                # Slow links are management ports. A link of unknown speed stays in the fabric, because links that
                # are down have no speed.
                speed = link.speed_mbps or 0
                if not has_fabrics and (speed <= 0 or speed * 2 >= fastest):
                    fabric = rules.fabric
            if fabric == rules.fabric:
                yield link


def _unasked(link: NodeLink) -> bool:
    """An InfiniBand link without any neighbor belongs to no fabric. Most likely its port asks nothing, by default, and
    then the Ethernet links make the tree."""
    return link.link_type == "infiniband" and link.neighbor is None


def _order(link: NodeLink) -> tuple[int, int, str]:
    return (_LAST if link.rail is None else link.rail, len(link.name), link.name)


def _matches(rule: FabricSelect, node: str, link: NodeLink) -> bool:
    neighbor = link.neighbor
    switch = "" if neighbor is None else neighbor.system_name or neighbor.chassis_id.value
    return (
        _matches_any(rule.nodes, node)
        and _matches_any(rule.links, link.name)
        and _matches_any(rule.netdevs, link.netdev or "")
        and _matches_any(rule.pci_addresses, link.pci_address or "")
        and _matches_any(rule.switches, switch)
        and (link.speed_mbps or 0) >= rule.min_speed_mbps
    )


def _matches_any(globs: tuple[str, ...], text: str) -> bool:
    return not globs or any(fnmatchcase(text, glob) for glob in globs)


def _check(name: str, links: NodeLinks) -> None:
    if links.node_name != name:
        raise RefusedReportError(
            f"names the node {shown(links.node_name)}: a node reports its own links, in an object with its name"
        )
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        raise RefusedReportError("has a node name that is not valid in Kubernetes")
    if len(links.links) > LINKS_MAX:
        raise RefusedReportError(f"lists {len(links.links)} links; at most {LINKS_MAX} are accepted")
    names: set[str] = set()
    for link in links.links:
        if link.name in names:
            raise RefusedReportError(f"lists the link {shown(link.name)} twice")
        names.add(link.name)
        if max(map(len, _texts(link))) > TEXT_MAX:
            raise RefusedReportError(f"has a text of more than {TEXT_MAX} characters at {shown(link.name)}")


def _texts(link: NodeLink) -> Iterator[str]:
    yield link.name
    yield link.fabric or ""
    if (neighbor := link.neighbor) is not None:
        yield neighbor.system_name or ""
        for identifier in (neighbor.chassis_id, neighbor.port_id):
            yield identifier.subtype
            yield identifier.value
        yield from neighbor.management_addresses


def octets(mac: str) -> bytes:
    """The octets of a MAC address, or none where the text is no MAC address."""
    try:
        made = bytes.fromhex(mac.replace(":", ""))
    except ValueError:
        return b""
    return made if len(made) == MAC_OCTETS else b""


def shown(text: str) -> str:
    """Text from a report or a switch, for use in a sentence: one line of ASCII, cut to ``SHOWN_MAX`` characters."""
    return one_line(text, SHOWN_MAX, ascii_only=True)
