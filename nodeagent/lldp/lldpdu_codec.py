"""Decode and encode LLDPDUs (IEEE 802.1AB-2016, 9.2.7.7).

Chassis ID, port ID and TTL come first, in this order, once. An error in them, in the End TLV or in the length of
any TLV is an error of the frame, because the following octets cannot be trusted. An optional TLV that is
malformed, or repeated where one is allowed, is dropped and noted in ``Lldpdu.warnings``: the neighbor is more
important than its description. Octets beyond those that a TLV needs are ignored, because a later edition may
define them. Octets after the End TLV are padding; without one, the LLDPDU ends with the frame.
"""

from __future__ import annotations

import struct
from typing import Any

from nodeagent.lldp.lldpdu import ChassisId, Lldpdu, LldpError, Med, Organizational, PortId, Reserved
from nodeagent.lldp.optional_tlvs import BASIC, ORGANIZATIONAL, TlvSpec

_ORGANIZATIONAL = 127
_ORGANIZATIONAL_HEADER = _ORGANIZATIONAL << 9
_LENGTH_MAX = 511  # nine bits
# Bounds the cost of a frame. No real sender reaches it: 256 of the shortest useful TLVs fill a frame.
_TLVS_MAX = 256
_MANDATORY = ("End", "chassis ID", "port ID", "TTL")

# By OUI and subtype as one number, or by type as a negative one: an OUI may be 00-00-00.
_SPECS = {
    -spec.key if isinstance(spec.key, int) else int.from_bytes(spec.key, "big"): spec
    for spec in (*BASIC, *ORGANIZATIONAL)
}
# A list of values in the order of the fields of Lldpdu, then of Med: a place in it costs half as much as a key.
_FIELDS = (*Lldpdu.__struct_fields__, *(f"med.{name}" for name in Med.__struct_fields__))
_PLACES = {name: place for place, name in enumerate(_FIELDS)}
_MED = len(Lldpdu.__struct_fields__)
_NOTHING = [None] * 3 + list(Lldpdu.__struct_defaults__) + list(Med.__struct_defaults__)
_MED_PLACE, _ORGANIZATIONAL_PLACE, _RESERVED_PLACE, _WARNINGS_PLACE = (
    _PLACES[name] for name in ("med", "organizational", "reserved", "warnings")
)
_READERS = {key: (_PLACES[s.field], s.least, s.most, s.many, s.read) for key, s in _SPECS.items()}

# One read takes a TLV's header and the octets after it; the padding allows reads past the last octet.
_HEADER_AND_KEY = struct.Struct(">HI").unpack_from
_HEADER_AND_SUBTYPE = struct.Struct(">HB").unpack_from
_HEADER_AND_SHORT = struct.Struct(">HH").unpack_from
_PADDING = bytes(6)


def decode_lldpdu(data: bytes, offset: int = 0) -> Lldpdu:
    """Decode the LLDPDU at ``offset`` of a frame; offsets in errors and warnings count from the frame's start.

    Raises only ``LldpError``, for any input.
    """
    size = len(data)
    padded = data + _PADDING
    values = _NOTHING.copy()
    subtype, start, end = _identifier(padded, offset, 1, size)
    values[0] = ChassisId(subtype, data[start:end])
    subtype, start, end = _identifier(padded, end, 2, size)
    values[1] = PortId(subtype, data[start:end])
    values[2], offset = _ttl(padded, end, size)
    for _ in range(_TLVS_MAX):
        header, key = _HEADER_AND_KEY(padded, offset)
        start = offset + 2
        end = start + (header & _LENGTH_MAX)
        if end > size:
            if offset == size:
                break
            raise _overrun(header, size - start, offset)
        if header >= _ORGANIZATIONAL_HEADER:
            start += 4
        else:
            key = -(header >> 9)
            if key > -4:
                if header == 0:
                    break
                raise _misplaced(header, offset)
        try:
            reader = _READERS.get(key)
            if reader is None:
                _keep(values, key, data, start, end)
            else:
                place, least, most, many, read = reader
                length = end - start
                if length < least or length > most:
                    raise _misfit(length, least, most, offset)
                present = values[place]
                if present is None:
                    values[place] = read(data, start, end)
                elif many:
                    values[place] = (*present, read(data, start, end))
                else:
                    raise LldpError("repeated", offset)
        except LldpError as error:
            values[_WARNINGS_PLACE] = (*values[_WARNINGS_PLACE], f"{_label(key)}: {error}")
        offset = end
    else:
        raise LldpError(f"more than {_TLVS_MAX} TLVs", offset)
    if values[_MED:] != _NOTHING[_MED:]:
        values[_MED_PLACE] = Med(*values[_MED:])
    return Lldpdu(*values[:_MED])


def encode_lldpdu(pdu: Lldpdu) -> bytes:
    """Encode the LLDPDU with its End TLV, without ``warnings``. Unknown TLVs come last.

    Raises ``LldpError`` for a value that does not fit its TLV.
    """
    out = bytearray()
    _append(out, 1, _encoded_id("chassis ID", pdu.chassis_id, out))
    _append(out, 2, _encoded_id("port ID", pdu.port_id, out))
    if not 0 <= pdu.ttl <= 0xFFFF:
        raise LldpError("TTL: 0 to 65535 seconds fit", len(out))
    _append(out, 3, pdu.ttl.to_bytes(2, "big"))
    for spec in _SPECS.values():
        holder, _, name = spec.field.rpartition(".")
        value = getattr(pdu.med if holder else pdu, name, None)
        if value is None:
            continue
        for single in value if spec.many else (value,):
            _append(out, spec.key, _encoded(spec, single, out))
    for other in pdu.organizational:
        if len(other.oui) != 3 or not 0 <= other.subtype <= 255 or len(other.value) > _LENGTH_MAX - 4:
            raise LldpError("organizational TLV: an OUI has 3 octets, a value at most 507", len(out))
        _append(out, other.oui + bytes((other.subtype,)), other.value)
    for unknown in pdu.reserved:
        if not 9 <= unknown.type < _ORGANIZATIONAL or len(unknown.value) > _LENGTH_MAX:
            raise LldpError("reserved TLV: types 9 to 126 and at most 511 octets", len(out))
        _append(out, unknown.type, unknown.value)
    return bytes(out + b"\0\0")


def _identifier(padded: bytes, offset: int, kind: int, size: int) -> tuple[int, int, int]:
    """The subtype of the chassis ID (1) or port ID (2) at ``offset``, and the start and end of its octets."""
    header, subtype = _HEADER_AND_SUBTYPE(padded, offset)
    end = offset + 2 + (header & _LENGTH_MAX)
    if header >> 9 != kind or end > size or not 1 <= subtype <= 7 or not offset + 4 <= end <= offset + 258:
        raise _bad_identifier(header, subtype, offset, kind, size)
    return subtype, offset + 3, end


def _bad_identifier(header: int, subtype: int, offset: int, kind: int, size: int) -> LldpError:
    length = header & _LENGTH_MAX
    if header >> 9 != kind or offset + 2 + length > size:
        return _missing(header, offset, kind, size)
    if not 2 <= length <= 256:
        octets = max(0, length - 1)
        return LldpError(f"the {_MANDATORY[kind]} has {octets} octets, 1 to 255 expected", offset)
    return LldpError(f"the {_MANDATORY[kind]} has the reserved subtype {subtype}", offset + 2)


def _ttl(padded: bytes, offset: int, size: int) -> tuple[int, int]:
    header, ttl = _HEADER_AND_SHORT(padded, offset)
    end = offset + 2 + (header & _LENGTH_MAX)
    if header >> 9 != 3 or end > size:
        raise _missing(header, offset, 3, size)
    if end < offset + 4:
        raise LldpError(f"the TTL has {end - offset - 2} octets, needs 2", offset)
    return ttl, end


def _missing(header: int, offset: int, kind: int, size: int) -> LldpError:
    if offset + 2 > size:
        return LldpError(f"the frame ends before the {_MANDATORY[kind]}", offset)
    if header >> 9 != kind:
        return LldpError(f"a TLV of type {header >> 9} in place of the {_MANDATORY[kind]}", offset)
    return _overrun(header, size - offset - 2, offset)


def _overrun(header: int, left: int, offset: int) -> LldpError:
    if left < 0:
        return LldpError("the frame ends inside a TLV header", offset)
    length = header & _LENGTH_MAX
    return LldpError(f"a TLV of type {header >> 9} has {length} octets, but {left} are left", offset)


def _misplaced(header: int, offset: int) -> LldpError:
    kind = header >> 9
    if kind == 0:
        return LldpError("the End TLV is not empty", offset)
    return LldpError(f"a second {_MANDATORY[kind]}", offset)


def _misfit(length: int, least: int, most: int, offset: int) -> LldpError:
    if length < 0:
        return LldpError("too short for an OUI and a subtype", offset)
    expected = f"{least} or more" if length < least else f"{most} or fewer"
    return LldpError(f"{length} octets, {expected} expected", offset)


def _label(key: int) -> str:
    return _SPECS[key].label if key in _SPECS else "organizational TLV"


def _keep(values: list[Any], key: int, data: bytes, start: int, end: int) -> None:
    """Keep an unknown TLV as raw octets."""
    if key < 0:
        values[_RESERVED_PLACE] = (*values[_RESERVED_PLACE], Reserved(-key, data[start:end]))
        return
    if start > end:
        raise LldpError("too short for an OUI and a subtype", start - 6)
    unknown = Organizational(data[start - 4 : start - 1], data[start - 1], data[start:end])
    values[_ORGANIZATIONAL_PLACE] = (*values[_ORGANIZATIONAL_PLACE], unknown)


def _encoded_id(name: str, value: ChassisId | PortId, out: bytearray) -> bytes:
    if not 1 <= value.subtype <= 7 or not 1 <= len(value.raw) <= 255:
        raise LldpError(f"{name}: subtypes 1 to 7 and 1 to 255 octets", len(out))
    return bytes((value.subtype,)) + value.raw


def _encoded(spec: TlvSpec, value: Any, out: bytearray) -> bytes:
    try:
        raw = spec.write(value)
    except (ValueError, OverflowError, struct.error) as error:
        raise LldpError(f"{spec.label}: {error}", len(out)) from error
    if not spec.least <= len(raw) <= spec.most:
        raise LldpError(f"{spec.label}: {len(raw)} octets, {spec.least} to {spec.most} fit", len(out))
    return raw


def _append(out: bytearray, key: int | bytes, value: bytes) -> None:
    if isinstance(key, bytes):
        kind, value = _ORGANIZATIONAL, key + value
    else:
        kind = key
    out += (kind << 9 | len(value)).to_bytes(2, "big") + value
