"""SFF-8636: QSFP+ and QSFP28 (SFF-8636 revision 2.11).

Page 00h lower: monitors; upper: vendor; 03h: thresholds. The interrupt flags (bytes 3 to 21) are not read, because a
read clears them.
"""

from __future__ import annotations

from nodeagent.host.eeprom.image import (
    AlarmThresholds,
    Area,
    Image,
    Lane,
    Medium,
    Module,
    Standard,
    plausible_thresholds,
)

_KINDS = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}

_FIRST = (Area(0, 0, 3), Area(0, 22, 6), Area(0, 34, 24), Area(0, 147, 65), Area(0, 220, 1))
_LIMITS = (Area(3, 128, 24), Area(3, 176, 24))

_FLAT = 0x04
_TX_POWER_MEASURED, _VOLTS_MEASURED, _CELSIUS_MEASURED = 0x04, 0x10, 0x20  # byte 220
_MONITOR_BITS_FROM = 8  # byte 1: before revision 2.8 byte 220 has no bits for temperature and voltage
_PASSIVE = (0xA, 0xB)  # device technology, byte 147: copper, unequalized and passively equalized
_COPPER_FROM = 0xA
_MICROWATTS = 1e-7
_BIAS = 2e-6
_VOLTS = 1e-4
_DEGREES = 1 / 256


def _further(image: Image) -> tuple[Area, ...]:
    return () if image.u8(0, 2) & _FLAT or _medium(image) is Medium.PASSIVE else _LIMITS


def _decode(image: Image) -> Module:
    medium = _medium(image)
    measures = image.u8(0, 220)
    said = image.u8(0, 1) >= _MONITOR_BITS_FROM
    passive = medium is Medium.PASSIVE
    celsius, volts = image.s16(0, 22) * _DEGREES, image.u16(0, 26) * _VOLTS
    warm = bool(measures & _CELSIUS_MEASURED) if said else not passive and image.u16(0, 22) != 0
    fed = bool(measures & _VOLTS_MEASURED) if said else not passive and image.u16(0, 26) != 0
    limited = image.has(3, 128) and not passive
    return Module(
        kind=_KINDS.get(image.u8(0, 0), "QSFP"),
        medium=medium,
        vendor=image.text(0, 148, 16),
        part=image.text(0, 168, 16),
        serial=image.text(0, 196, 16),
        revision=image.text(0, 184, 2),
        celsius=celsius if warm else None,
        volts=volts if fed else None,
        lanes={} if passive else {lane: _lane(image, lane, measures) for lane in range(4)},
        limits=_limits(image, measures) if limited else {},
    )


def _medium(image: Image) -> Medium:
    technology = image.u8(0, 147) >> 4
    if technology in _PASSIVE:
        return Medium.PASSIVE
    return Medium.ACTIVE if technology >= _COPPER_FROM else Medium.OPTICAL


def _lane(image: Image, lane: int, measures: int) -> Lane:
    optical = _medium(image) is Medium.OPTICAL
    return Lane(
        rx_power=image.u16(0, 34 + 2 * lane) * _MICROWATTS if optical else None,
        bias=image.u16(0, 42 + 2 * lane) * _BIAS if optical else None,
        tx_power=image.u16(0, 50 + 2 * lane) * _MICROWATTS
        if optical and measures & _TX_POWER_MEASURED
        else None,
    )


def _limits(image: Image, measures: int) -> dict[str, AlarmThresholds]:
    def four(at: int, unit: float, *, signed: bool = False) -> AlarmThresholds:
        read = image.s16 if signed else image.u16
        return AlarmThresholds(*(read(3, at + 2 * i) * unit for i in range(4)))

    found = {
        "celsius": four(128, _DEGREES, signed=True),
        "volts": four(144, _VOLTS),
        "rx_power": four(176, _MICROWATTS),
        "bias": four(184, _BIAS),
    }
    if measures & _TX_POWER_MEASURED:
        found["tx_power"] = four(192, _MICROWATTS)
    return plausible_thresholds(found)


SFF8636 = Standard(_KINDS, _FIRST, _further, _decode)
