"""A node's report in compact form: what matters for the tree, in values that equal reports share.

* A report is accepted whole, or refused with a reason. Refused is a report about another node, with more than a node
  can have, or with text that no LLDPDU can carry. Times in a report are never compared with the controller's clock.
* A link without a neighbor keeps its place in the report. It counts for the group in which the node is published.
* Reports of nodes with identical cabling share one ``Shape``, so that sums are made once for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterable
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.fabric.fabric_settings import FabricRules, FabricSelect
from nodeagent.fabric.nodelinks import (
    CONTENDERS_MAX,
    LEGS_MAX,
    NOT_UP,
    RAIL_ADDRESSES_MAX,
    Contender,
    LinkNeighbor,
    NodeLink,
    NodeLinks,
    RailLeg,
)
from nodeagent.fabric.rail_partners import of_a_host

_LINKS_MAX = 128
_TEXT_MAX = 1100
"""An LLDP string has at most 255 octets; escaping makes up to four characters of each."""
_SHOWN_MAX = 80
MAC_OCTETS = 6
SWITCH_GUID, ADAPTER_GUID = "switch-guid", "hca-guid"
"""The subtypes of InfiniBand: the chassis ID is the GUID of a switch chip or of an adapter."""
DOMAINS_MAX = 64
"""Four times the GPUs of the largest node of 2026."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ZERO_UUID = "00000000-0000-0000-0000-000000000000"
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LAST = 1 << 31
STATE_LETTERS = {
    "missing": "-", "down": "x", "miscabled": "m", "degraded": "d", "unknown": "?", "healthy": "h", "unused": "o",
}  # fmt: skip
"""A letter for each state of a link; a state of a later version counts as unknown."""
UNKNOWN_LETTER = STATE_LETTERS["unknown"]


T = TypeVar("T", bound=Hashable)


class RefusedReportError(ValueError):
    """The report is refused. The message completes "its report …"."""


class SwitchAnnouncement(NamedTuple):
    """The LLDP announcement of a switch, without the port: one value for all links to that switch."""

    name: str
    chassis: str
    addresses: tuple[str, ...]


class LinkSlot(NamedTuple):
    """A link in a report: its name, its rail (as the node numbers it) and its neighbor. The rail of a link without a
    number is its name. So is that of a link which shares its number, such as a plane of a NIC."""

    link: str
    rail: str
    neighbor: SwitchAnnouncement | None


Shape = tuple[LinkSlot, ...]


class NumberedLink(NamedTuple):
    """A link whose VFs get addresses of a prefix, and the number of its node in it; 0: the node has none. ``pf`` is its
    PCI address; empty: the report has none."""

    link: str
    prefix: str
    number: int
    pf: str = ""


class OtherLink(NamedTuple):
    """A link outside the fabric of the tree, such as one for storage. It counts for no group."""

    link: str
    fabric: str
    switch: str


class CompactReport(msgspec.Struct, frozen=True, gc=False, eq=False):
    """``ports[i]`` is the switch port of link ``shape[i]``, empty if nothing names it, and ``stale``,
    ``contested``, ``miscabled`` and ``unused`` contain i if this link is so; ``unused``: the node expects no cable
    there. ``contenders`` have i, a link to another switch, and the port there, for each neighbor that sends beside
    that of ``shape[i]``.

    ``incomplete``: some link is up and has no current neighbor yet. ``up`` counts the links that are up. ``macs`` are
    the MAC addresses of all links of the node, of other fabrics too: six octets each. ``domains`` are the NVLink
    domains of its GPUs, empty for none, with the indexes of these GPUs.

    ``states`` has a letter of ``STATE_LETTERS`` for each link of ``shape``, then one for each link of ``others``.
    The tree does not depend on ``states`` and ``others``.
    """

    shape: Shape
    ports: tuple[str, ...]
    stale: frozenset[int]
    contested: frozenset[int]
    miscabled: frozenset[int]
    unused: frozenset[int]
    up: int
    incomplete: bool
    macs: bytes
    states: str = ""
    others: tuple[OtherLink, ...] = ()
    domains: tuple[tuple[str, tuple[int, ...]], ...] = ()
    contenders: tuple[tuple[int, LinkSlot, str], ...] = ()
    outranking: tuple[str, ...] = ()
    """Links of no fabric that have switches, and more bandwidth than the links in ``shape``."""
    addresses: tuple[tuple[str, ...], ...] = ()
    """The addresses of each link of ``shape`` that partners may probe; empty if none has any."""
    legs: tuple[tuple[int, RailLeg], ...] = ()
    """i and a leg of link ``shape[i]`` that loses probes. The tree depends on neither."""
    numbered: tuple[NumberedLink, ...] = ()
    """Of all fabrics. The tree does not depend on them."""

    @property
    def domain(self) -> str:
        """The NVLink domain of all GPUs, or an empty string."""
        return self.domains[0][0] if len(self.domains) == 1 else ""


def only_legs_differ(one: CompactReport, other: CompactReport) -> bool:
    """Nothing else in two reports differs, so they lead to the same plan."""
    return msgspec.structs.astuple(msgspec.structs.replace(one, legs=other.legs)) == msgspec.structs.astuple(
        other
    )


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
        self.pool = pool

    def read(self, name: str, links: NodeLinks) -> CompactReport:
        """``name`` is the name of the NodeLinks object. Raises ``RefusedReportError``."""
        _check(name, links)
        pool = self.pool
        macs = dict.fromkeys(link.mac for link in links.links)
        slots: list[LinkSlot] = []
        ports: list[str] = []
        stale: set[int] = set()
        contested: set[int] = set()
        miscabled: set[int] = set()
        unused: set[int] = set()
        contenders: list[tuple[int, LinkSlot, str]] = []
        up, incomplete = 0, False
        letters: list[str] = []
        of_fabric = list(self._of_fabric(links))
        rails = _rails(of_fabric)
        for i, link in enumerate(of_fabric):
            state = (link.state or "").lower()
            letters.append(STATE_LETTERS.get(state, UNKNOWN_LETTER))
            is_down = state in NOT_UP
            up += not is_down
            if state == "miscabled":
                miscabled.add(i)
            elif state == "unused":
                unused.add(i)
            neighbor = link.neighbor
            if neighbor is not None and not _is_own(macs, neighbor):
                ports.append(pool(neighbor.port))
                if neighbor.contested:
                    contested.add(i)
                    contenders += (
                        (i, self._slot(link, rails[i], other), pool(other.port))
                        for other in neighbor.contenders[:CONTENDERS_MAX]
                        if not _is_own(macs, other)
                    )
                if neighbor.stale:
                    stale.add(i)
                    incomplete = incomplete or not is_down
            else:
                neighbor = None
                ports.append("")
                incomplete = incomplete or not is_down
            slots.append(self._slot(link, rails[i], neighbor))
        others: list[OtherLink] = []
        outranking: tuple[str, ...] = ()
        if len(of_fabric) < len(links.links):
            named = {link.name for link in of_fabric}
            for link in sorted(links.links, key=_order):
                if link.name not in named:
                    letters.append(STATE_LETTERS.get((link.state or "").lower(), UNKNOWN_LETTER))
                    others.append(_other(link))
            outranking = () if self._rules.fabrics else _outranking(of_fabric, links.links)
        return CompactReport(
            pool(tuple(slots)),
            pool(tuple(ports)),
            pool(frozenset(stale)),
            pool(frozenset(contested)),
            pool(frozenset(miscabled)),
            pool(frozenset(unused)),
            up,
            incomplete,
            b"".join(octets(mac) for mac in macs if mac is not None),
            pool("".join(letters)),
            pool(tuple(others)),
            pool(_domains(links)) if links.nvlink_domains else (),
            tuple(contenders),
            pool(outranking),
            tuple(map(_addresses, of_fabric)) if any(link.addresses for link in of_fabric) else (),
            tuple([(i, leg) for i, link in enumerate(of_fabric) for leg in link.legs]),
            _numbered(links.links),
        )

    def _slot(self, link: NodeLink, rail: str, neighbor: LinkNeighbor | Contender | None) -> LinkSlot:
        pool = self.pool
        switch = None if neighbor is None else pool(_announcement(neighbor))
        return pool(LinkSlot(pool(link.name), rail, switch))

    def _of_fabric(self, links: NodeLinks) -> Iterable[NodeLink]:
        """The links of the fabric that makes the tree, ordered by rail and name."""
        rules = self._rules
        by_rail = sorted([link for link in links.links if not _unasked(link)], key=_order)
        named = {link.fabric for link in by_rail}
        if not rules.fabrics and named == {rules.fabric}:
            return by_rail
        # If the node names the fabric of some links, its other links belong to none, such as those for storage.
        has_fabrics = bool(named - {None})
        fastest = max((link.speed_mbps or 0 for link in by_rail), default=0)
        return [
            link
            for link in by_rail
            if self._fabric_of(links.node_name, link, has_fabrics, fastest) == rules.fabric
        ]

    def _fabric_of(self, node: str, link: NodeLink, has_fabrics: bool, fastest: int) -> str | None:
        for rule in self._rules.fabrics:
            if _matches(rule, node, link):
                return rule.fabric
        # Slow links are management ports. A link of unknown speed stays in the fabric, because links that are down
        # have no speed.
        speed = link.speed_mbps or 0
        if not has_fabrics and (speed <= 0 or speed * 2 >= fastest):
            return self._rules.fabric
        return link.fabric


def _addresses(link: NodeLink) -> tuple[str, ...]:
    """Without prefix length; only those that one host may have."""
    found = []
    for text in link.addresses:
        try:
            address = ip_address(text.partition("/")[0])
        except ValueError:
            continue
        if of_a_host(address) and "%" not in text:
            found.append(str(address))
    return tuple(found)


def _numbered(links: Iterable[NodeLink]) -> tuple[NumberedLink, ...]:
    return tuple(
        [
            NumberedLink(link.name, link.vf_prefix, max(0, link.number or 0), link.pci_address or "")
            for link in links
            if link.vf_prefix is not None
        ]
    )


def _outranking(of_fabric: list[NodeLink], links: Iterable[NodeLink]) -> tuple[str, ...]:
    """Links outside the tree's fabric that have a neighbor, if they have more bandwidth than all links of the tree and
    the node names the fabric of these. Otherwise the fastest links make the tree, which no VFs can have misled."""
    if all(link.fabric is None for link in of_fabric):
        return ()
    own = len(of_fabric) * max((link.speed_mbps or 0 for link in of_fabric), default=0)
    rest = [link for link in links if link.fabric is None and link.neighbor is not None and link.speed_mbps]
    return tuple([link.name for link in rest]) if 0 < own < sum(link.speed_mbps or 0 for link in rest) else ()


def _rails(links: list[NodeLink]) -> list[str]:
    numbers = [link.rail for link in links]
    if len(set(numbers)) == len(numbers):
        return [link.name if link.rail is None else str(link.rail) for link in links]
    return [
        link.name if link.rail is None or numbers.count(link.rail) > 1 else str(link.rail) for link in links
    ]


def _other(link: NodeLink) -> OtherLink:
    neighbor = link.neighbor
    switch = "" if neighbor is None else neighbor.system_name or neighbor.chassis_id.value
    return OtherLink(link.name, link.fabric or "", switch)


def _announcement(neighbor: LinkNeighbor | Contender) -> SwitchAnnouncement:
    chassis, addresses = neighbor.chassis_id, tuple(sorted(neighbor.management_addresses))
    return SwitchAnnouncement(neighbor.system_name or "", f"{chassis.subtype}={chassis.value}", addresses)


def _is_own(macs: Container[str | None], neighbor: LinkNeighbor | Contender) -> bool:
    """The frame is from the node itself, such as its NIC's firmware or a representor.

    The name does not decide: a switch may have the name of the node.
    """
    chassis = neighbor.chassis_id
    return chassis.subtype == "mac" and chassis.value in macs


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
    if len(links.links) > _LINKS_MAX:
        raise RefusedReportError(f"lists {len(links.links)} links; at most {_LINKS_MAX} are accepted")
    names: set[str] = set()
    for link in links.links:
        if link.name in names:
            raise RefusedReportError(f"lists the link {shown(link.name)} twice")
        names.add(link.name)
        if _has_long_text(link):
            raise RefusedReportError(f"has a text of more than {_TEXT_MAX} characters at {shown(link.name)}")


def _domains(links: NodeLinks) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Raises ``RefusedReportError`` for values that NVML cannot report."""
    if len(links.nvlink_domains) > DOMAINS_MAX:
        raise RefusedReportError(
            f"lists {len(links.nvlink_domains)} NVLink domains; at most {DOMAINS_MAX} are accepted"
        )
    domains = []
    for reported in links.nvlink_domains:
        cluster, clique = reported.cluster_uuid or "", reported.clique_id or 0
        if (cluster and not (_UUID.fullmatch(cluster) and 0 <= clique < 1 << 32)) or len(
            reported.gpus
        ) > DOMAINS_MAX:
            raise RefusedReportError(
                f"has the NVLink domain {shown(f'{cluster}.{clique}')}, which is not one of NVML's"
            )
        known = cluster and cluster != _ZERO_UUID
        domains.append((f"{cluster}.{clique}" if known else "", reported.gpus))
    return tuple(domains)


def _has_long_text(link: NodeLink) -> bool:
    """The sum of the lengths is enough for nearly every link."""
    name, fabric, neighbor = link.name, link.fabric or "", link.neighbor
    if len(link.legs) > LEGS_MAX or len(link.addresses) > RAIL_ADDRESSES_MAX:
        return True
    legs = [text for leg in link.legs for text in (leg.node, leg.nic, leg.scope or "", leg.since or "")]
    if _is_long((*link.addresses, link.rail_checked or "", link.vf_prefix or "", *legs)):
        return True
    if neighbor is None:
        return max(len(name), len(fabric)) > _TEXT_MAX
    others = neighbor.contenders
    return _is_long((name, fabric, *_texts(neighbor))) or bool(
        others and any(map(_is_long, map(_texts, others)))
    )


def _texts(end: LinkNeighbor | Contender) -> tuple[str, ...]:
    chassis, port = end.chassis_id, end.port_id
    names = (end.system_name or "", chassis.subtype, chassis.value, port.subtype, port.value)
    return names + end.management_addresses


def _is_long(texts: tuple[str, ...]) -> bool:
    return len("".join(texts)) > _TEXT_MAX and max(map(len, texts)) > _TEXT_MAX


def octets(mac: str) -> bytes:
    """The octets of a MAC address, or none where the text is no MAC address."""
    try:
        made = bytes.fromhex(mac.replace(":", ""))
    except ValueError:
        return b""
    return made if len(made) == MAC_OCTETS else b""


def shown(text: str) -> str:
    """Text from a report or a switch, for use in a sentence: one line of ASCII, cut to ``_SHOWN_MAX`` characters."""
    return one_line(text, _SHOWN_MAX, ascii_only=True)
