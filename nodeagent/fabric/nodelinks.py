"""NodeLinks: what one node says of its links, in the shape of the CRD ``nodeagent.io/v1alpha1``.

The law of this file: the structs are the wire, field for field and name for name, and take what a later
version adds. What is absent is ``None`` and is not written. Nothing here says what a report means: whether it
is believed is decided in ``reports``.
"""

from __future__ import annotations

from typing import Any

import msgspec

API_VERSION = "nodeagent.io/v1alpha1"
KIND = "NodeLinks"


class ReportError(ValueError):
    """A report that cannot be read; the message says where and why."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What all structs here have in common. Unknown fields are another version's, and are passed over."""


class ReportedId(Wire, frozen=True, kw_only=True):
    """A chassis or port ID: the subtype's word (``mac``, ``ifname``, ``local``, …) and its value."""

    subtype: str
    value: str


class LinkNeighbor(Wire, frozen=True, kw_only=True):
    """The switch port at the other end. ``stale``: the last one known, for whom nobody vouches any more."""

    chassis_id: ReportedId = msgspec.field(name="chassisID")
    port_id: ReportedId = msgspec.field(name="portID")
    system_name: str | None = None
    port_description: str | None = None
    management_addresses: tuple[str, ...] = ()
    stale: bool = False


class NodeLink(Wire, frozen=True, kw_only=True):
    """One link. ``fabric`` and ``rail`` are the node's own opinion; ``rail`` counts from 0."""

    name: str
    netdev: str | None = None
    pci_address: str | None = None
    mac: str | None = None
    fabric: str | None = None
    rail: int | None = None
    speed_mbps: int | None = None
    state: str | None = None
    reasons: tuple[str, ...] = ()
    neighbor: LinkNeighbor | None = None
    last_transition_time: str | None = None


class Metadata(Wire, frozen=True, kw_only=True):
    """Of the object's metadata, what is asked for here."""

    name: str | None = None
    namespace: str | None = None
    resource_version: str | None = None


class NodeLinks(Wire, frozen=True, kw_only=True):
    """The report of one node. ``metadata.name`` is the node's name too; one that differs is not believed."""

    api_version: str | None = None
    kind: str | None = None
    metadata: Metadata = Metadata()
    node_name: str
    links: tuple[NodeLink, ...] = ()


_DECODER = msgspec.json.Decoder(NodeLinks)


def decode(raw: bytes) -> NodeLinks:
    """An object's JSON, as the API server sends it. Raises ``ReportError``."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReportError(str(error)) from None


def convert(found: Any, *, lax: bool = False) -> NodeLinks:
    """The same from what a YAML or JSON reader has made of it; ``lax`` where all its scalars are text.
    Raises ``ReportError``.
    """
    try:
        return msgspec.convert(found, NodeLinks, strict=not lax)
    except msgspec.MsgspecError as error:
        raise ReportError(str(error)) from None
