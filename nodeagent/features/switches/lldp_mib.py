"""Decode the LLDP-MIB (IEEE 802.1AB-2005, 1.0.8802.1.1.2) of a switch.

A row counts if it has a chassis ID. The tables are read column by column while neighbors come and go, so a missing
cell is an absent value.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from nodeagent.fabric.uplinks import SwitchNeighbor
from nodeagent.features.switches.switch_reading import NEIGHBORS_MAX, TEXT_MAX, SwitchReading
from nodeagent.lldp.escaping import text_of, valid_unicode
from nodeagent.lldp.lldpdu import CHASSIS_WORDS, PORT_WORDS, ChassisId, PortId

Value: TypeAlias = str | bytes | int | float | None
Index: TypeAlias = tuple[int, ...]
Column: TypeAlias = Mapping[Index, Value]

_MIB = "1.0.8802.1.1.2.1"
OWN_CHASSIS_SUBTYPE, OWN_CHASSIS, OWN_NAME = f"{_MIB}.3.1.0", f"{_MIB}.3.2.0", f"{_MIB}.3.3.0"
OWN = (OWN_CHASSIS_SUBTYPE, OWN_CHASSIS, OWN_NAME)
LOCAL_PORT, LOCAL_PORT_DESCRIPTION = f"{_MIB}.3.7.1.3", f"{_MIB}.3.7.1.4"
CHASSIS_SUBTYPE, _CHASSIS = f"{_MIB}.4.1.1.4", f"{_MIB}.4.1.1.5"
PORT_SUBTYPE, PORT = f"{_MIB}.4.1.1.6", f"{_MIB}.4.1.1.7"
NAME, ENABLED = f"{_MIB}.4.1.1.9", f"{_MIB}.4.1.1.12"
_ADDRESS = f"{_MIB}.4.2.1.3"
COLUMNS = (
    LOCAL_PORT,
    LOCAL_PORT_DESCRIPTION,
    CHASSIS_SUBTYPE,
    _CHASSIS,
    PORT_SUBTYPE,
    PORT,
    NAME,
    ENABLED,
    _ADDRESS,
)
_BRIDGE, _ROUTER = 2, 4


def index_of(column: str, oid: str) -> Index | None:
    """The index in an object's name; ``None`` if the object belongs to another column."""
    head, rest = oid[: len(column)], oid[len(column) :]
    if head != column or not rest.startswith("."):
        return None
    try:
        return tuple(int(part) for part in rest[1:].split("."))
    except ValueError:
        return None


def reading_of(own: Mapping[str, Value], columns: Mapping[str, Column]) -> SwitchReading:
    """The switch's own identity and its neighbors."""
    ports = {index: _text(value) for index, value in columns[LOCAL_PORT].items()}
    descriptions = {index: _text(value) for index, value in columns[LOCAL_PORT_DESCRIPTION].items()}
    addresses = _addresses(columns[_ADDRESS])
    neighbors: list[SwitchNeighbor] = []
    for index, subtype in columns[CHASSIS_SUBTYPE].items():
        chassis = _chassis(subtype, columns[_CHASSIS].get(index))
        if not chassis or len(index) != 3 or len(neighbors) == NEIGHBORS_MAX:
            continue
        port = (index[1],)
        neighbors.append(
            SwitchNeighbor(
                chassis,
                _port(columns[PORT_SUBTYPE].get(index), columns[PORT].get(index)),
                _text(columns[NAME].get(index)),
                forwards(columns[ENABLED].get(index)),
                tuple(sorted(addresses.get(index, ()))),
                tuple(filter(None, (ports.get(port), descriptions.get(port)))),
            )
        )
    chassis = _chassis(own.get(OWN_CHASSIS_SUBTYPE), own.get(OWN_CHASSIS))
    return SwitchReading(_text(own.get(OWN_NAME)), chassis, tuple(neighbors))


def forwards(enabled: Value) -> bool | None:
    """Whether the capabilities (BITS, first bit highest in its octet) include bridge or router.

    Some SNMP agents copy the two octets of the frame, whose first bit is the lowest. These are recognizable: bits
    above the eleven defined ones are never set.
    """
    if not isinstance(enabled, bytes) or not enabled:
        return None
    bits = {n for n in range(8 * min(len(enabled), 2)) if enabled[n // 8] & 0x80 >> n % 8}
    if len(enabled) == 2 and any(n > 10 for n in bits) and not enabled[0] & 0xF8:
        whole = int.from_bytes(enabled, "big")
        bits = {n for n in range(11) if whole >> n & 1}
    return bool(bits & {_BRIDGE, _ROUTER})


def _addresses(column: Iterable[Index]) -> dict[Index, set[str]]:
    """Management addresses are in the index: time, port, row, family, length, octets."""
    addresses: dict[Index, set[str]] = {}
    for index in column:
        if len(index) < 5:
            continue
        row, family, length, octets = index[:3], index[3], index[4], index[5:]
        if {1: 4, 2: 16}.get(family) == length == len(octets) and all(octet < 256 for octet in octets):
            addresses.setdefault(row, set()).add(str(ipaddress.ip_address(bytes(octets))))
    return addresses


def _chassis(subtype: Value, raw: Value) -> str:
    if subtype not in CHASSIS_WORDS or not isinstance(raw, bytes) or not raw or not isinstance(subtype, int):
        return ""
    identifier = ChassisId(subtype, raw[:255])
    return f"{identifier.word}={valid_unicode(identifier.text)}"


def _port(subtype: Value, raw: Value) -> str:
    if subtype not in PORT_WORDS or not isinstance(raw, bytes) or not isinstance(subtype, int):
        return ""
    identifier = PortId(subtype, raw[:255])
    return f"{identifier.word}={valid_unicode(identifier.text)}"


def _text(value: Value) -> str:
    return valid_unicode(text_of(value[:255]))[:TEXT_MAX] if isinstance(value, bytes) else ""
