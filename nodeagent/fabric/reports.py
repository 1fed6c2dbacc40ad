"""A NodeLinks made small: what of a report bears on the tree, in values shared with all that are equal to it.

The law of this file:

* A report is believed whole or refused with a sentence. What a node says of *another* node, more than a node
  can have, and what no LLDPDU can carry is refused; a time in a report is never compared with ours.
* A link that says nothing of a switch stays in its place with no announcement: silence is counted, and votes
  for the group in which the node is.
* Reports of nodes that are cabled alike share one ``Shape``, and that is what the sums are made over.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from nodeagent.fabric.nodelinks import LinkNeighbor, NodeLink, NodeLinks
from nodeagent.fabric.rules import FabricRule, Rules
from nodeagent.one_line import one_line

LINKS_MAX = 128
TEXT_MAX = 1100
"""An LLDP string has 255 octets at most, four characters for each where they are escaped."""
SHOWN_MAX = 80
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LAST = 1 << 31
_DARK = frozenset(("down", "unknown", "away"))

T = TypeVar("T", bound=Hashable)


class RefusedError(ValueError):
    """A report that is not believed; the message completes "its report …"."""


class Announcement(NamedTuple):
    """Who speaks at the other end, apart from the port: one value for all links to that switch."""

    name: str
    chassis: str
    addresses: tuple[str, ...]


class Slot(NamedTuple):
    """A link in its place: its name, its rail (the node's number, or the name) and who is heard on it."""

    link: str
    rail: str
    heard: Announcement | None


Shape = tuple[Slot, ...]


class Report:
    """``ports[i]`` is the switch port of ``shape[i]``; the masks have bit i set for it.

    ``unheard``: some link is up and nobody has been heard on it yet. ``up`` counts the links that are up.
    """

    __slots__ = ("miscabled", "ports", "shape", "stale", "unheard", "up")

    def __init__(
        self, shape: Shape, ports: tuple[str, ...], stale: int, miscabled: int, up: int, unheard: bool
    ) -> None:
        self.shape = shape
        self.ports = ports
        self.stale = stale
        self.miscabled = miscabled
        self.up = up
        self.unheard = unheard

    def same(self, other: Report) -> bool:
        return (
            self.shape == other.shape
            and self.ports == other.ports
            and self.stale == other.stale
            and self.miscabled == other.miscabled
            and self.up == other.up
            and self.unheard == other.unheard
        )


class Pool:
    """Equal values become one object. What only departed reports have said is forgotten by ``keep``."""

    def __init__(self) -> None:
        self._one: dict[Hashable, Hashable] = {}

    def __call__(self, value: T) -> T:
        return self._one.setdefault(value, value)  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._one)

    def keep(self, reports: Iterable[Report]) -> None:
        self._one = {}
        for report in reports:
            for slot in self(report.shape):
                self(slot)
                self(slot.link)
                if slot.heard is not None:
                    self(slot.heard)
            for port in self(report.ports):
                self(port)


class Reader:
    """Reads reports by one set of rules."""

    def __init__(self, rules: Rules, pool: Pool) -> None:
        self._rules = rules
        self._pool = pool

    def read(self, name: str, links: NodeLinks) -> Report:
        """``name`` is the object's own. Raises ``RefusedError``."""
        _check(name, links)
        pool = self._pool
        shape: list[Slot] = []
        ports: list[str] = []
        stale = miscabled = up = 0
        unheard = False
        for link in self._of_fabric(links):
            bit = 1 << len(shape)
            dark = link.state is not None and link.state.lower() in _DARK
            up += not dark
            if link.state is not None and link.state.lower() == "miscabled":
                miscabled |= bit
            heard = None if link.neighbor is None else self._announcement(links, link.neighbor)
            rail = link.name if link.rail is None else str(link.rail)
            shape.append(pool(Slot(pool(link.name), rail, heard)))
            if heard is None or link.neighbor is None:
                ports.append("")
                unheard = unheard or not dark
            else:
                ports.append(pool(link.neighbor.port_id.value))
                if link.neighbor.stale:
                    stale |= bit
        return Report(pool(tuple(shape)), pool(tuple(ports)), stale, miscabled, up, unheard)

    def _announcement(self, links: NodeLinks, neighbor: LinkNeighbor) -> Announcement | None:
        """Nobody, where the node hears itself (its NIC's firmware, a representor)."""
        name = neighbor.system_name or ""
        if name == links.node_name:
            return None
        chassis = neighbor.chassis_id
        if chassis.subtype == "mac" and any(chassis.value == link.mac for link in links.links):
            return None
        addresses = tuple(sorted(neighbor.management_addresses))
        return self._pool(Announcement(name, f"{chassis.subtype}={chassis.value}", addresses))

    def _of_fabric(self, links: NodeLinks) -> Iterator[NodeLink]:
        """The links of the fabric that makes the tree, in the order of their names."""
        rules = self._rules
        # A node that names the fabric of some links has thought of the others too: they are its storage's.
        told = any(link.fabric is not None for link in links.links)
        fastest = max((link.speed_mbps or 0 for link in links.links), default=0)
        for link in sorted(links.links, key=_place):
            fabric = link.fabric
            for rule in rules.fabric_rules:
                if _meets(rule, links.node_name, link):
                    fabric = rule.fabric
                    break
            else:
                # Management ports are the slow ones. A speed that is not known is no reason to leave one out:
                # a link that went down would leave the fabric.
                speed = link.speed_mbps or 0
                if not told and (speed <= 0 or speed * 2 >= fastest):
                    fabric = rules.fabric
            if fabric == rules.fabric:
                yield link


def _place(link: NodeLink) -> tuple[int, int, str]:
    return (_LAST if link.rail is None else link.rail, len(link.name), link.name)


def _meets(rule: FabricRule, node: str, link: NodeLink) -> bool:
    switch = "" if link.neighbor is None else link.neighbor.system_name or ""
    return (
        _any(rule.nodes, node)
        and _any(rule.links, link.name)
        and _any(rule.netdevs, link.netdev or "")
        and _any(rule.pci_addresses, link.pci_address or "")
        and _any(rule.switches, switch)
        and (link.speed_mbps or 0) >= rule.min_speed_mbps
    )


def _any(globs: tuple[str, ...], text: str) -> bool:
    return not globs or any(fnmatchcase(text, glob) for glob in globs)


def _check(name: str, links: NodeLinks) -> None:
    if links.node_name != name:
        raise RefusedError(
            f"speaks for {shown(links.node_name)}: a node reports of itself, under its own name"
        )
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        raise RefusedError("is of a node whose name is none that Kubernetes gives")
    if len(links.links) > LINKS_MAX:
        raise RefusedError(f"lists {len(links.links)} links, more than {LINKS_MAX} are not believed")
    seen: set[str] = set()
    for link in links.links:
        if link.name in seen:
            raise RefusedError(f"lists the link {shown(link.name)} twice")
        seen.add(link.name)
        if max(map(len, _texts(link))) > TEXT_MAX:
            raise RefusedError(f"has a text of more than {TEXT_MAX} characters at {shown(link.name)}")


def _texts(link: NodeLink) -> Iterator[str]:
    yield link.name
    yield link.fabric or ""
    if (heard := link.neighbor) is not None:
        yield heard.system_name or ""
        for identifier in (heard.chassis_id, heard.port_id):
            yield identifier.subtype
            yield identifier.value
        yield from heard.management_addresses


def shown(text: str) -> str:
    """A text from a report in a sentence: one line of ASCII, cut to ``SHOWN_MAX`` characters."""
    return one_line(text, SHOWN_MAX, ascii_only=True)
