"""Decode the EEPROM of a transceiver or cable to a ``Module``. No I/O here.

image, wanted = Image(), [IDENTIFIER]
while wanted: read each area into the image; wanted = missing(image)
decode(image)
"""

from __future__ import annotations

from nodeagent.host.eeprom.cmis import CMIS
from nodeagent.host.eeprom.image import Area, EepromError, Image, Module, Standard
from nodeagent.host.eeprom.sff8472 import SFF8472
from nodeagent.host.eeprom.sff8636 import SFF8636

IDENTIFIER = Area(0, 0, 1)
"""SFF-8024: the first byte identifies the standard of the others."""


_STANDARDS = {kind: standard for standard in (SFF8472, SFF8636, CMIS) for kind in standard.kinds}


def missing(image: Image) -> tuple[Area, ...]:
    """The areas to read next; empty if ``decode_module`` has all it needs. Raises ``EepromError``."""
    standard = _standard(image)
    first = _left(image, standard.first)
    return first or _left(image, standard.further(image))


def decode_module(image: Image) -> Module:
    """Pages beyond the first may be missing; their values are then absent. Raises ``EepromError``."""
    return _standard(image).decode(image)


def _left(image: Image, areas: tuple[Area, ...]) -> tuple[Area, ...]:
    return tuple(area for area in areas if not image.has(area.page, area.start + area.length - 1, area.i2c))


def _standard(image: Image) -> Standard:
    identifier = image.u8(0, 0)
    try:
        return _STANDARDS[identifier]
    except KeyError:
        raise EepromError(f"an EEPROM with the identifier {identifier:#04x} is of no known kind") from None
