"""Decode the EEPROM of a transceiver or cable to a ``Module``. No I/O here.

image, wanted = Image(), [IDENTIFIER]
while wanted: read each area into the image; wanted = missing(image)
decode(image)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.host.eeprom import cmis, sff8472, sff8636
from nodeagent.host.eeprom.image import (
    ADDRESS,
    DIAGNOSTICS,
    AlarmThresholds,
    Area,
    EepromError,
    Image,
    Lane,
    Medium,
    Module,
)

__all__ = [
    "ADDRESS",
    "DIAGNOSTICS",
    "IDENTIFIER",
    "AlarmThresholds",
    "Area",
    "EepromError",
    "Image",
    "Lane",
    "Medium",
    "Module",
    "decode",
    "missing",
]

IDENTIFIER = Area(0, 0, 1)
"""SFF-8024: the first byte identifies the standard of the others."""


@dataclass(frozen=True, slots=True)
class _Standard:
    first: tuple[Area, ...]
    further: Callable[[Image], tuple[Area, ...]]
    decode: Callable[[Image], Module]


_SFF8472 = _Standard(sff8472.FIRST, sff8472.further, sff8472.decode)
_SFF8636 = _Standard(sff8636.FIRST, sff8636.further, sff8636.decode)
_CMIS = _Standard(cmis.FIRST, cmis.further, cmis.decode)
_STANDARDS = {
    **dict.fromkeys(sff8472.KINDS, _SFF8472),
    **dict.fromkeys(sff8636.KINDS, _SFF8636),
    **dict.fromkeys(cmis.KINDS, _CMIS),
}


def missing(image: Image) -> tuple[Area, ...]:
    """The areas to read next; empty if ``decode`` has all it needs. Raises ``EepromError``."""
    standard = _standard(image)
    first = _left(image, standard.first)
    return first or _left(image, standard.further(image))


def decode(image: Image) -> Module:
    """Pages beyond the first may be missing; their values are then absent. Raises ``EepromError``."""
    return _standard(image).decode(image)


def _left(image: Image, areas: tuple[Area, ...]) -> tuple[Area, ...]:
    return tuple(area for area in areas if not image.has(area.page, area.start + area.length - 1, area.i2c))


def _standard(image: Image) -> _Standard:
    identifier = image.u8(0, 0)
    try:
        return _STANDARDS[identifier]
    except KeyError:
        raise EepromError(f"an EEPROM with the identifier {identifier:#04x} is of no known kind") from None
