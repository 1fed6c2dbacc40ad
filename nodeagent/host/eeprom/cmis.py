"""CMIS: QSFP-DD, OSFP and related modules (Common Management Interface Specification 5.2, chapter 8).

Page 00h lower: state and monitors of the module; upper: vendor. 01h: capabilities. 02h: thresholds. 11h: monitors of
the lanes. The flags (00h bytes 8-11, 11h bytes 134-152) are not read, because a read clears them.
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

_KINDS = {
    0x18: "QSFP-DD",
    0x19: "OSFP",
    0x1B: "DSFP",
    0x1E: "QSFP+ with CMIS",
    0x1F: "SFP-DD with CMIS",
    0x20: "SFP+ with CMIS",
    0x21: "OSFP-XD",
}

_FIRST = (Area(0, 0, 4), Area(0, 14, 4), Area(0, 85, 1), Area(0, 129, 53), Area(0, 212, 1))
_PAGED = (Area(1, 159, 2), Area(2, 128, 16), Area(2, 176, 24), Area(0x11, 154, 60))

_STATES = {1: "low-power", 2: "power-up", 3: "ready", 4: "power-down", 5: "fault"}
_MEDIA = {1: Medium.OPTICAL, 2: Medium.OPTICAL, 3: Medium.PASSIVE, 4: Medium.ACTIVE}
_FLAT = 0x80
_COPPER_FROM = 0x0A  # media interface technology: copper cables of all sorts
_LANES = 8
_MICROWATTS = 1e-7  # the unit is a tenth of one
_BIAS = 2e-6
_VOLTS = 1e-4
_DEGREES = 1 / 256


def _further(image: Image) -> tuple[Area, ...]:
    """A module with flat memory, such as a passive cable, has no other pages."""
    return () if image.u8(0, 2) & _FLAT else _PAGED


def _decode(image: Image) -> Module:
    paged = image.has(1, 159)
    medium = _MEDIA.get(image.u8(0, 85), Medium.UNKNOWN)
    if medium is Medium.ACTIVE and image.u8(0, 212) < _COPPER_FROM:
        medium = Medium.OPTICAL  # an active optical cable
    can = image.data(1, 159, 2) if paged else b"\0\0"
    measured = paged and medium is not Medium.PASSIVE
    return Module(
        kind=_KINDS.get(image.u8(0, 0), "CMIS"),
        medium=medium,
        vendor=image.text(0, 129, 16),
        part=image.text(0, 148, 16),
        serial=image.text(0, 166, 16),
        revision=image.text(0, 164, 2),
        state=_STATES.get(image.u8(0, 3) >> 1 & 7),
        celsius=image.s16(0, 14) * _DEGREES if can[0] & 1 else None,
        volts=image.u16(0, 16) * _VOLTS if can[0] & 2 else None,
        lanes=_lanes(image, can[1]) if measured and image.has(0x11, 154) else {},
        limits=_limits(image, can) if measured and image.has(2, 128) else {},
    )


def _scale(can: int) -> float:
    return _BIAS * (1, 2, 4, 1)[can >> 3 & 3]


def _lanes(image: Image, can: int) -> dict[int, Lane]:
    # A lane without an application (active control set, bytes 206 to 213) carries nothing.
    busy = [image.u8(0x11, 206 + lane) >> 4 for lane in range(_LANES)]
    found = {}
    for lane in range(_LANES):
        if busy[lane] or not any(busy):
            found[lane] = Lane(
                rx_power=image.u16(0x11, 186 + 2 * lane) * _MICROWATTS if can & 4 else None,
                tx_power=image.u16(0x11, 154 + 2 * lane) * _MICROWATTS if can & 2 else None,
                bias=image.u16(0x11, 170 + 2 * lane) * _scale(can) if can & 1 else None,
            )
    return found if can & 7 else {}


def _limits(image: Image, can: bytes) -> dict[str, AlarmThresholds]:
    found = {}
    if can[0] & 1:
        found["celsius"] = _four([image.s16(2, 128 + 2 * i) * _DEGREES for i in range(4)])
    if can[0] & 2:
        found["volts"] = _four([image.u16(2, 136 + 2 * i) * _VOLTS for i in range(4)])
    if can[1] & 2:
        found["tx_power"] = _four([image.u16(2, 176 + 2 * i) * _MICROWATTS for i in range(4)])
    if can[1] & 1:
        found["bias"] = _four([image.u16(2, 184 + 2 * i) * _scale(can[1]) for i in range(4)])
    if can[1] & 4:
        found["rx_power"] = _four([image.u16(2, 192 + 2 * i) * _MICROWATTS for i in range(4)])
    return plausible_thresholds(found)


def _four(values: list[float]) -> AlarmThresholds:
    return AlarmThresholds(*values)


CMIS = Standard(_KINDS, _FIRST, _further, _decode)
