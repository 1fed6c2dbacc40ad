"""The optional TLVs of the basic management set of IEEE 802.1AB-2016 (8.5.5 to 8.5.9)."""

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
        raise LldpError(f"{size} octets of family and address, 2 to 32 expected", start)
    if after + 5 > end:
        raise LldpError("the address leaves no room for the interface number", start)
    subtype, number = _INTERFACE.unpack_from(data, after)
    oid = b""
    if after + 5 < end:  # some senders omit the length of the identifier if they have none
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


_AB = "802.1AB 8.5."
_TEXT = (read_text, write_text, 0, 255)
_CAPABILITIES = (_read_capabilities, _write_capabilities, 4, 511)
_MANAGEMENT = (_read_management, _write_management, 8, 511, True)

BASIC = (
    TlvSpec(_AB + "5", 4, "port description", "port_description", *_TEXT),
    TlvSpec(_AB + "6", 5, "system name", "system_name", *_TEXT),
    TlvSpec(_AB + "7", 6, "system description", "system_description", *_TEXT),
    TlvSpec(_AB + "8", 7, "system capabilities", "capabilities", *_CAPABILITIES),
    TlvSpec(_AB + "9", 8, "management address", "management_addresses", *_MANAGEMENT),
)
