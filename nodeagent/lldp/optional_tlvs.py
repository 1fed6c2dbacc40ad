"""The optional TLVs that are decoded and encoded: one ``TlvSpec`` each, with its bounds, decoder and encoder.

``BASIC`` is the basic management set (IEEE 802.1AB-2016, 8.5.5 to 8.5.9). ``ORGANIZATIONAL`` is of IEEE 802.1 (802.1Q
annex D), 802.3 (clause 79) and LLDP-MED (TIA-1057).

Priority 0 is the highest nibble of a priority assignment table and the lowest bit of the PFC enable vector.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from string import hexdigits
from typing import Any, NamedTuple

from nodeagent.lldp.escaping import raw_of
from nodeagent.lldp.lldpdu import (
    Application,
    Capabilities,
    EtsConfiguration,
    EtsRecommendation,
    LinkAggregation,
    LldpError,
    MacPhy,
    ManagementAddress,
    MedCapabilities,
    Pfc,
    Ppvid,
    Vlan,
)

_VALUE_MAX = 507
"""Octets of an organizational TLV after its OUI and subtype: a TLV has at most 511."""

DOT1 = b"\x00\x80\xc2"
DOT3 = b"\x00\x12\x0f"
MED = b"\x00\x12\xbb"

_PAIR = struct.Struct(">HH")
_INTERFACE = struct.Struct(">BI")
_FLAGS_SHORT = struct.Struct(">BH")
_FLAGS_LONG = struct.Struct(">BI")
_MAC_PHY = struct.Struct(">BHH")
_ETS = struct.Struct(">B4s8s8s")
_MED = struct.Struct(">HB")
_NUMBER_OF_DIGIT = bytes(int(chr(octet), 16) if chr(octet) in hexdigits else 0 for octet in range(256))


class TlvSpec(NamedTuple):
    """``clause`` is the standard and its clause. ``key`` is the TLV's type, or its OUI and subtype as four octets.

    ``read(data, start, end)`` decodes a value of ``least`` to ``most`` octets and raises ``LldpError`` for a
    malformed one. ``write`` may raise the errors of ``struct`` and ``bytes``. ``many``: the TLV may repeat, and its
    values become a tuple. The field "med.x" is the field x of ``Med``.
    """

    clause: str
    key: int | bytes
    label: str
    field: str
    read: Callable[[bytes, int, int], Any]
    write: Callable[[Any], bytes]
    least: int = 0
    most: int = _VALUE_MAX
    many: bool = False


def _read_text(data: bytes, start: int, end: int) -> str:
    raw = data[start:end]
    try:
        return raw.decode()  # the usual case, at two thirds of the time
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


_write_text = raw_of


def _read_short(data: bytes, start: int, _: int) -> int:
    return data[start] << 8 | data[start + 1]


def _write_short(value: int) -> bytes:
    return value.to_bytes(2, "big")


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
_TEXT = (_read_text, _write_text, 0, 255)
_CAPABILITIES = (_read_capabilities, _write_capabilities, 4, 511)
_MANAGEMENT = (_read_management, _write_management, 8, 511, True)

BASIC = (
    TlvSpec(_AB + "5", 4, "port description", "port_description", *_TEXT),
    TlvSpec(_AB + "6", 5, "system name", "system_name", *_TEXT),
    TlvSpec(_AB + "7", 6, "system description", "system_description", *_TEXT),
    TlvSpec(_AB + "8", 7, "system capabilities", "capabilities", *_CAPABILITIES),
    TlvSpec(_AB + "9", 8, "management address", "management_addresses", *_MANAGEMENT),
)


def _read_ppvid(data: bytes, start: int, _: int) -> Ppvid:
    flags, vid = _FLAGS_SHORT.unpack_from(data, start)
    return Ppvid(vid, flags & 2 != 0, flags & 4 != 0)


def _write_ppvid(value: Ppvid) -> bytes:
    return _FLAGS_SHORT.pack(value.supported << 1 | value.enabled << 2, value.vid)


def _read_vlan(data: bytes, start: int, end: int) -> Vlan:
    size = data[start + 2]
    if size > 32:
        raise LldpError(f"a name of {size} octets, at most 32 are allowed", start + 2)
    if start + 3 + size > end:
        raise LldpError("the name passes the end of the TLV", start + 2)
    return Vlan(data[start] << 8 | data[start + 1], _read_text(data, start + 3, start + 3 + size))


def _write_vlan(value: Vlan) -> bytes:
    name = _write_text(value.name)
    if len(name) > 32:
        raise ValueError("a VLAN name has at most 32 octets")
    return struct.pack(">HB", value.vid, len(name)) + name


def _read_aggregation(data: bytes, start: int, _: int) -> LinkAggregation:
    flags, port_id = _FLAGS_LONG.unpack_from(data, start)
    return LinkAggregation(flags & 1 != 0, flags & 2 != 0, port_id)


def _write_aggregation(value: LinkAggregation) -> bytes:
    return _FLAGS_LONG.pack(value.capable | value.enabled << 1, value.port_id)


def _nibbles(octets: bytes) -> bytes:
    """The upper and lower half of each octet, as octets."""
    return hexlify(octets).translate(_NUMBER_OF_DIGIT)


def _read_ets(data: bytes, start: int, _: int) -> EtsConfiguration:
    flags, classes, bandwidth, algorithms = _ETS.unpack_from(data, start)
    return EtsConfiguration(
        flags & 0x80 != 0, flags & 0x40 != 0, flags & 7 or 8, _nibbles(classes), bandwidth, algorithms
    )


def _read_recommendation(data: bytes, start: int, _: int) -> EtsRecommendation:
    _, classes, bandwidth, algorithms = _ETS.unpack_from(data, start)
    return EtsRecommendation(_nibbles(classes), bandwidth, algorithms)


def _write_tables(value: EtsConfiguration | EtsRecommendation) -> bytes:
    classes = value.classes
    if not len(classes) == len(value.bandwidth) == len(value.algorithms) == 8:
        raise ValueError("an ETS table has eight entries")
    if not all(0 <= c <= 15 for c in classes):
        raise ValueError("a traffic class fits four bits")
    nibbles = bytes(classes[n] << 4 | classes[n + 1] for n in range(0, 8, 2))
    return nibbles + value.bandwidth + value.algorithms


def _write_ets(value: EtsConfiguration) -> bytes:
    if not 1 <= value.max_classes <= 8:
        raise ValueError("ETS has 1 to 8 traffic classes")
    flags = value.willing << 7 | value.credit_based_shaper << 6 | value.max_classes & 7
    return bytes((flags,)) + _write_tables(value)


def _write_recommendation(value: EtsRecommendation) -> bytes:
    return b"\0" + _write_tables(value)


def _read_pfc(data: bytes, start: int, _: int) -> Pfc:
    flags = data[start]
    return Pfc(flags & 0x80 != 0, flags & 0x40 != 0, flags & 15, data[start + 1])


def _write_pfc(value: Pfc) -> bytes:
    if not 0 <= value.capability <= 15:
        raise ValueError("the PFC capability fits four bits")
    return bytes((value.willing << 7 | value.macsec_bypass << 6 | value.capability, value.enabled))


def _read_applications(data: bytes, start: int, end: int) -> tuple[Application, ...]:
    if (end - start - 1) % 3:
        raise LldpError("the table ends inside an entry", start)
    return tuple(
        [
            Application(flags >> 5, flags & 7, protocol)
            for flags, protocol in _FLAGS_SHORT.iter_unpack(data[start + 1 : end])
        ]
    )


def _write_applications(value: tuple[Application, ...]) -> bytes:
    if not all(0 <= a.priority <= 7 and 0 <= a.selector <= 7 for a in value):
        raise ValueError("a priority and a selector fit three bits")
    entries = [_FLAGS_SHORT.pack(a.priority << 5 | a.selector, a.protocol) for a in value]
    return b"\0" + b"".join(entries)


def _read_mac_phy(data: bytes, start: int, _: int) -> MacPhy:
    flags, advertised, mau = _MAC_PHY.unpack_from(data, start)
    return MacPhy(flags & 1 != 0, flags & 2 != 0, advertised, mau)


def _write_mac_phy(value: MacPhy) -> bytes:
    flags = value.autonegotiation_supported | value.autonegotiation_enabled << 1
    return _MAC_PHY.pack(flags, value.advertised, value.mau)


def _read_med(data: bytes, start: int, _: int) -> MedCapabilities:
    return MedCapabilities(*_MED.unpack_from(data, start))


def _write_med(value: MedCapabilities) -> bytes:
    return _MED.pack(value.bits, value.device_class)


def _inventory(subtype: int, field: str) -> TlvSpec:
    """An inventory string of LLDP-MED, at most 32 octets."""
    clause = f"TIA-1057 10.2.6.{subtype - 4}"
    label = f"MED {field.replace('_', ' ')}"
    return TlvSpec(clause, MED + bytes((subtype,)), label, f"med.{field}", _read_text, _write_text, most=32)


_AGGREGATION = (_read_aggregation, _write_aggregation, 5)
_RECOMMENDATION = (_read_recommendation, _write_recommendation, 21)
_APPLICATIONS = (_read_applications, _write_applications, 1)
_Q = "802.1Q D.2."
_802_3 = "802.3 79.3."

ORGANIZATIONAL = (
    TlvSpec(_Q + "1", DOT1 + b"\x01", "port VLAN ID", "pvid", _read_short, _write_short, 2),
    TlvSpec(_Q + "2", DOT1 + b"\x02", "PPVID", "ppvids", _read_ppvid, _write_ppvid, 3, many=True),
    TlvSpec(_Q + "3", DOT1 + b"\x03", "VLAN name", "vlans", _read_vlan, _write_vlan, 3, many=True),
    TlvSpec(_Q + "7", DOT1 + b"\x07", "link aggregation", "link_aggregation", *_AGGREGATION),
    TlvSpec(_Q + "9", DOT1 + b"\x09", "ETS configuration", "ets", _read_ets, _write_ets, 21),
    TlvSpec(_Q + "10", DOT1 + b"\x0a", "ETS recommendation", "ets_recommendation", *_RECOMMENDATION),
    TlvSpec(_Q + "11", DOT1 + b"\x0b", "PFC", "pfc", _read_pfc, _write_pfc, 2),
    TlvSpec(_Q + "12", DOT1 + b"\x0c", "application priority", "applications", *_APPLICATIONS),
    TlvSpec(_802_3 + "1", DOT3 + b"\x01", "MAC/PHY", "mac_phy", _read_mac_phy, _write_mac_phy, 5),
    TlvSpec(_802_3 + "3", DOT3 + b"\x03", "802.3 link aggregation", "link_aggregation_8023", *_AGGREGATION),
    TlvSpec(
        _802_3 + "4", DOT3 + b"\x04", "maximum frame size", "maximum_frame_size", _read_short, _write_short, 2
    ),
    TlvSpec(
        "TIA-1057 10.2.2", MED + b"\x01", "MED capabilities", "med.capabilities", _read_med, _write_med, 3
    ),
    _inventory(5, "hardware_revision"),
    _inventory(6, "firmware_revision"),
    _inventory(7, "software_revision"),
    _inventory(8, "serial_number"),
    _inventory(9, "manufacturer"),
    _inventory(10, "model"),
    _inventory(11, "asset_id"),
)
