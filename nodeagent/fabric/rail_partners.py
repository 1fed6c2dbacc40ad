"""RailPartners: whom a node probes and answers on each rail, and its number there, as the CRD defines it
(``nodeagent.io/v1alpha1``).

The controller writes one object for each node, with the node's name and owned by the Node. The agent reads its own.
What is read is bounded here; the caps of the sender are in the agent, and no list raises them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any

import msgspec

from nodeagent.fabric.nodelinks import API_VERSION, Metadata, ReportError, Wire

PARTNERS_KIND = "RailPartners"
LEAF, ACROSS = "leaf", "across"
"""The scopes of a partner: below the same leaf, or below another one."""
RAILS_MAX = 128
PARTNERS_MAX = 8
"""Partners of a rail that it probes, and as many that it answers."""
NUMBER_MAX = 1 << 24
PORTS_MAX = 16
"""Source ports to one partner. Each is most likely another path of the fabric."""

_Node = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_Link = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
_Address = Annotated[str, msgspec.Meta(min_length=2, max_length=45)]


class ProbedPartner(Wire, frozen=True, kw_only=True):
    """A NIC to probe: ``address`` without prefix length, from ``ports`` source ports in turn, ``per_second`` packets in
    all. ``nic`` is the name of the link on its node."""

    node: _Node
    nic: _Link
    address: _Address
    scope: Annotated[str, msgspec.Meta(max_length=63)] = LEAF
    ports: Annotated[int, msgspec.Meta(ge=1, le=PORTS_MAX)] = 1
    per_second: Annotated[float, msgspec.Meta(ge=0.01, le=2)]


class AnsweredPartner(Wire, frozen=True, kw_only=True):
    """A NIC whose probes are answered."""

    node: _Node
    nic: _Link
    address: _Address


class RailList(Wire, frozen=True, kw_only=True):
    """The partners of one link of the node. ``rail`` is the link's name in the report of the node: ``nic0``."""

    rail: _Link
    probe: Annotated[tuple[ProbedPartner, ...], msgspec.Meta(max_length=PARTNERS_MAX)] = ()
    answer: Annotated[tuple[AnsweredPartner, ...], msgspec.Meta(max_length=PARTNERS_MAX)] = ()


class RailNumber(Wire, frozen=True, kw_only=True):
    """The number of the node in ``prefix``, that of the VFs' addresses in pods, on the link ``rail``. ``pci_address``
    is that of the link's PF, which has the number under any name; empty: the name tells. ``holder`` is another node
    that had this number first: this one may not use it."""

    rail: _Link
    pci_address: Annotated[str, msgspec.Meta(max_length=16)] = ""
    prefix: Annotated[str, msgspec.Meta(min_length=9, max_length=63)]
    number: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
    holder: Annotated[str, msgspec.Meta(max_length=253)] = ""


class RailPartnersSpec(Wire, frozen=True, kw_only=True):
    """The lists of all rails of the node, and its numbers."""

    rails: Annotated[tuple[RailList, ...], msgspec.Meta(max_length=RAILS_MAX)] = ()
    numbers: Annotated[tuple[RailNumber, ...], msgspec.Meta(max_length=RAILS_MAX)] = ()


class RailPartners(Wire, frozen=True, kw_only=True):
    """The object of one node. ``metadata.name`` is the name of the node."""

    metadata: Metadata = Metadata()
    spec: RailPartnersSpec = RailPartnersSpec()


def rail_partners_of(document: Any, *, lax: bool = False) -> RailPartners:
    """Convert the object as the API server sent it; ``lax`` if all its scalars are text. Raises ``ReportError``."""
    try:
        return msgspec.convert(document, RailPartners, strict=not lax)
    except msgspec.MsgspecError as error:
        raise ReportError(str(error)) from None


def rail_partners_object(partners: RailPartners) -> dict[str, Any]:
    """The object to apply, without its owner."""
    made: dict[str, Any] = msgspec.to_builtins(partners)
    return {"apiVersion": API_VERSION, "kind": PARTNERS_KIND, **made}


def of_a_host(address: IPv4Address | IPv6Address) -> bool:
    """Whether one host on a network may have the address: it is no multicast, broadcast, loopback or reserved one."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return False
    if isinstance(address, IPv4Address) and address.packed[0] == 0:
        return False
    return not (address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved)


def one_spelling(address: str) -> str:
    """The address as it is written in general; any other text as it is."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address
