"""SFF-8472: SFP, SFP+ and SFP28 (SFF-8472 revision 12.4).

A0h: vendor; A2h: thresholds, calibration, monitors. If the module leaves calibration to the host, its slopes and
offsets are applied, to the thresholds too. The flags (A2h bytes 112 to 117) are not read.
"""

from __future__ import annotations

import math

from nodeagent.host.eeprom.image import (
    DIAGNOSTICS,
    AlarmThresholds,
    Area,
    Image,
    Lane,
    Medium,
    Module,
    Standard,
    plausible_thresholds,
)

_KINDS = {0x03: "SFP"}

_FIRST = (Area(0, 0, 96),)
_MONITORS = (Area(0, 0, 92, DIAGNOSTICS), Area(0, 96, 10, DIAGNOSTICS))

_IMPLEMENTED, _EXTERNAL, _ADDRESS_CHANGE = 0x40, 0x10, 0x04  # A0h byte 92
_PASSIVE, _ACTIVE = 0x04, 0x08  # A0h byte 8
_MICROWATTS = 1e-7
_BIAS = 2e-6
_VOLTS = 1e-4
_DEGREES = 1 / 256


def _further(image: Image) -> tuple[Area, ...]:
    """A module that needs a command to change its address is not read further."""
    monitoring = image.u8(0, 92)
    return _MONITORS if monitoring & _IMPLEMENTED and not monitoring & _ADDRESS_CHANGE else ()


def _decode(image: Image) -> Module:
    cable = image.u8(0, 8)
    medium = Medium.PASSIVE if cable & _PASSIVE else Medium.ACTIVE if cable & _ACTIVE else Medium.OPTICAL
    measured = image.has(0, 96, DIAGNOSTICS) and medium is not Medium.PASSIVE
    reading = _Reading(image, external=bool(image.u8(0, 92) & _EXTERNAL)) if measured else None
    return Module(
        kind=_KINDS.get(image.u8(0, 0), "SFP"),
        medium=medium,
        vendor=image.text(0, 20, 16),
        part=image.text(0, 40, 16),
        serial=image.text(0, 68, 16),
        revision=image.text(0, 56, 4),
        celsius=reading.celsius(96) if reading else None,
        volts=reading.volts(98) if reading else None,
        lanes={
            0: Lane(rx_power=reading.rx_power(104), tx_power=reading.tx_power(102), bias=reading.bias(100))
        }
        if reading
        else {},
        limits=reading.limits() if reading else {},
    )


class _Reading:
    def __init__(self, image: Image, *, external: bool) -> None:
        self._image = image
        self._external = external

    def limits(self) -> dict[str, AlarmThresholds]:
        reads = {
            "celsius": (0, self.celsius),
            "volts": (8, self.volts),
            "bias": (16, self.bias),
            "tx_power": (24, self.tx_power),
            "rx_power": (32, self.rx_power),
        }
        found = {
            name: AlarmThresholds(*(read(at + 2 * i) for i in range(4))) for name, (at, read) in reads.items()
        }
        return plausible_thresholds(found)

    def celsius(self, at: int) -> float:
        return self._linear(self._image.s16(0, at, DIAGNOSTICS), 84) * _DEGREES

    def volts(self, at: int) -> float:
        return self._linear(self._image.u16(0, at, DIAGNOSTICS), 88) * _VOLTS

    def bias(self, at: int) -> float:
        return self._linear(self._image.u16(0, at, DIAGNOSTICS), 76) * _BIAS

    def tx_power(self, at: int) -> float:
        return self._linear(self._image.u16(0, at, DIAGNOSTICS), 80) * _MICROWATTS

    def rx_power(self, at: int) -> float:
        raw = self._image.u16(0, at, DIAGNOSTICS)
        if not self._external:
            return raw * _MICROWATTS
        # Coefficients of the fourth power down to the constant. Without light the result may be negative.
        value = 0.0
        for place in range(56, 76, 4):
            value = value * raw + self._image.f32(0, place, DIAGNOSTICS)
        return max(0.0, value * _MICROWATTS) if math.isfinite(value) else 0.0

    def _linear(self, raw: int, place: int) -> float:
        if not self._external:
            return raw
        slope = self._image.u16(0, place, DIAGNOSTICS) / 256
        return slope * raw + self._image.s16(0, place + 2, DIAGNOSTICS)


SFF8472 = Standard(_KINDS, _FIRST, _further, _decode)
