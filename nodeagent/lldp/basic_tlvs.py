"""The optional TLVs of IEEE 802.1AB-2016 itself (8.5.5 to 8.5.9)."""

from __future__ import annotations

import struct

from nodeagent.lldp.lldpdu import Capabilities, LldpError, ManagementAddress
from nodeagent.lldp.tlv_spec import TlvSpec, read_text, write_text

_PAIR = struct.Struct(">HH")
_INTERFACE = struct.Struct(">BI")


def _read_capabilities(data: bytes, start: int, _: int) -> Capabilities:
    supported, enabled = _PAIR.unpack_from(data, start)
    return Capabilities(supported, enabled)


def _write_capabilities(value: Capabilities) -> bytes:
    return _PAIR.pack(value.supported, value.enabled)


def _read_management(data: bytes, start: int, end: int) -> ManagementAddress:
    size = data[start]  # of the address and its family
    after = start + 1 + size
    if not 2 <= size <= 32:
        raise LldpError(f"{size} octets of family and address where 2 to 32 belong", start)
    if after + 5 > end:
        raise LldpError("the address leaves no room for the interface number", start)
    subtype, number = _INTERFACE.unpack_from(data, after)
    oid = b""
    if after + 5 < end:  # some senders leave out even the length of the identifier that they do not have
        oid_end = after + 6 + data[after + 5]
        if oid_end > end:
            raise LldpError("the object identifier passes the end of the TLV", after + 5)
        oid = data[after + 6 : oid_end]
    return ManagementAddress(data[start + 1], data[start + 2 : after], subtype, number, oid)


def _write_management(value: ManagementAddress) -> bytes:
    if not 1 <= len(value.raw) <= 31:
        raise ValueError("a management address has 1 to 31 octets")
    return (
        bytes((len(value.raw) + 1, value.family))
        + value.raw
        + _INTERFACE.pack(value.interface_subtype, value.interface_number)
        + bytes((len(value.oid),))
        + value.oid
    )


BASIC = (
    TlvSpec(4, "port description", "port_description", 0, 255, False, read_text, write_text),
    TlvSpec(5, "system name", "system_name", 0, 255, False, read_text, write_text),
    TlvSpec(6, "system description", "system_description", 0, 255, False, read_text, write_text),
    TlvSpec(7, "system capabilities", "capabilities", 4, 511, False, _read_capabilities, _write_capabilities),
    TlvSpec(
        8, "management address", "management_addresses", 8, 511, True, _read_management, _write_management
    ),
)
