"""Directed-route subnet management packets (SMPs): build the two questions to a peer, and read its answers. Pure.

InfiniBand has no LLDP. But each node of the fabric answers NodeInfo and NodeDescription to a packet that follows a
route of ports, without an address and without a subnet manager. One hop is enough: the peer at the other end of the
cable answers with its GUID, with the number of the port on which the question came in, and with its name.

* The only method is Get, with the M_Key 0, over at most one hop. There is no code for Set, and none for a sweep.
* All integers are big-endian. A question and an answer have ``SIZE`` octets.

Sources: InfiniBand Architecture Specification, volume 1, release 1.4: 13.4.3 (MAD header), 13.4.7 (status), 14.2.1.2
(directed-route SMP), 14.2.5.2 (NodeDescription), 14.2.5.3 (NodeInfo); include/rdma/ib_mad.h and ib_smi.h of Linux.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

SIZE = 256
BASE_VERSION = 1
CLASS_VERSION = 1
DIRECTED_ROUTE = 0x81
"""Management class of directed-route SMPs (IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE)."""
GET = 0x01
GET_RESPONSE = 0x81
_PERMISSIVE_LID = 0xFFFF
_STATUS_MASK = 0x7FFF
"""The highest bit of the status field is the direction of the packet."""
_HEADER = struct.Struct(">BBBBHBBQHHIQHH")
"""Version, class, its version, method; status, hop pointer, hop count; transaction ID; attribute, reserved, modifier;
M_Key; DrSLID, DrDLID."""
_DATA = slice(64, 128)
_INITIAL_PATH = 128
_NODE_INFO = struct.Struct(">BBBBQQQHHIB3s")
_INVALID_GUIDS = (0, 0xFFFF_FFFF_FFFF_FFFF)
_STATUS_WORDS = {
    0x01: "it is busy",
    0x02: "it redirects",
    0x04: "it does not know this version",
    0x08: "it does not know this method",
    0x0C: "it does not support this attribute",
    0x1C: "a field of the question is invalid",
}
"""13.4.7, table 112: the common bits of the status."""


class SmpError(ValueError):
    """The octets are not an answer to the question. The message has the reason."""


class Attribute(IntEnum):
    """The attributes that are asked for (14.2.5, table 126)."""

    NODE_DESCRIPTION = 0x10
    NODE_INFO = 0x11


class NodeType(IntEnum):
    """14.2.5.3. A channel adapter (CA) is the port of a host or of a storage system."""

    CHANNEL_ADAPTER = 1
    SWITCH = 2
    ROUTER = 3


class NodeInfo(NamedTuple):
    """The identity of a node. ``local_port`` is the port on which the question came in: the far end of the cable.

    ``system_image_guid`` names the chassis, ``node_guid`` one switch chip or one adapter in it. ``vendor`` is an OUI.
    """

    node_type: NodeType
    ports: int
    system_image_guid: int
    node_guid: int
    device: int
    revision: int
    local_port: int
    vendor: int


def question(attribute: Attribute, port: int, transaction: int) -> bytes:
    """Ask the peer of the local ``port`` (1 to 254) for an attribute, one hop away.

    ``transaction`` has 32 bits; the kernel sets the upper half of the transaction ID.
    """
    if not 1 <= port <= 254:
        raise ValueError(f"{port} is not the number of an InfiniBand port")
    packet = bytearray(SIZE)
    _HEADER.pack_into(
        packet,
        0,
        *(BASE_VERSION, DIRECTED_ROUTE, CLASS_VERSION, GET),
        *(0, 0, 1),  # status, hop pointer, hop count
        transaction & 0xFFFF_FFFF,
        *(Attribute(attribute), 0, 0),  # a reserved field and the modifier
        0,  # M_Key
        *(_PERMISSIVE_LID, _PERMISSIVE_LID),
    )
    packet[_INITIAL_PATH + 1] = port
    return bytes(packet)


def answer(packet: bytes, attribute: Attribute) -> bytes:
    """The 64 octets of data in the answer to a question for ``attribute``. Raises ``SmpError``."""
    if len(packet) < _DATA.stop:
        raise SmpError(f"the answer has {len(packet)} octets, fewer than the {_DATA.stop} of an SMP")
    version, mad_class, class_version, method, status, _, _, _, answered, *_ = _HEADER.unpack_from(packet)
    if (version, mad_class, class_version) != (BASE_VERSION, DIRECTED_ROUTE, CLASS_VERSION):
        raise SmpError(
            f"the answer is of management class 0x{mad_class:02x}, version {version}.{class_version}"
        )
    if method != GET_RESPONSE:
        raise SmpError(f"the answer has the method 0x{method:02x}")
    if code := status & _STATUS_MASK:
        raise SmpError(f"the peer refuses: {_STATUS_WORDS.get(code & 0x1F, 'status')} (0x{code:04x})")
    if answered != attribute:
        raise SmpError(f"the answer is about the attribute 0x{answered:04x}")
    return packet[_DATA]


def node_info(packet: bytes) -> NodeInfo:
    """The node in an answer to ``NODE_INFO``. Raises ``SmpError``."""
    fields = _NODE_INFO.unpack_from(answer(packet, Attribute.NODE_INFO))
    _, _, kind, ports, system, node, _, _, device, revision, local_port, vendor = fields
    if node in _INVALID_GUIDS:
        raise SmpError(f"the peer has the node GUID {guid_text(node)}, which is invalid")
    try:
        node_type = NodeType(kind)
    except ValueError:
        raise SmpError(f"the peer is of the unknown node type {kind}") from None
    if local_port == 0:
        raise SmpError("the peer names no port on which the question came in")
    return NodeInfo(
        node_type, ports, system, node, device, revision, local_port, int.from_bytes(vendor, "big")
    )


def node_description(packet: bytes) -> bytes:
    """The description in an answer to ``NODE_DESCRIPTION``, up to its first NUL; at most 64 octets of any value.

    Raises ``SmpError``.
    """
    return answer(packet, Attribute.NODE_DESCRIPTION).partition(b"\0")[0]


def guid_text(guid: int) -> str:
    """As the tools of rdma-core print it, without ``0x``: ``b83fd20300aa0000``."""
    return f"{guid:016x}"
