"""The areas of a transceiver's EEPROM that were read, and the decoding of numbers and texts in them.

Only the bytes of an ``Area`` are read from a module. No area contains flag bytes: a read clears these latched
alarms, and another program would miss them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

ADDRESS = 0x50
DIAGNOSTICS = 0x51
"""The second I2C address, A2h, of an SFP (SFF-8472)."""


class EepromError(Exception):
    """The bytes are not an EEPROM of a known kind."""


@dataclass(frozen=True, slots=True)
class Area:
    """Bytes ``start`` to ``start + length - 1`` of a page; the upper half of a page begins at 128."""

    page: int
    start: int
    length: int
    i2c: int = ADDRESS


class Medium(StrEnum):
    """``PASSIVE`` is copper without measured values."""

    OPTICAL = "optical"
    ACTIVE = "active copper"
    PASSIVE = "passive copper"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AlarmThresholds:
    """The thresholds that the module itself reports."""

    high_alarm: float
    low_alarm: float
    high_warning: float
    low_warning: float


def plausible_thresholds(found: dict[str, AlarmThresholds]) -> dict[str, AlarmThresholds]:
    """Return the thresholds that can be true. Without room between the alarms there are none: a module that has not
    filled its table has zeros. A warning that is not between the alarms, or not on its side of the other warning, is
    left to the alarm."""
    kept = {}
    for name, limits in found.items():
        if limits.high_alarm > limits.low_alarm:
            ordered = limits.low_alarm <= limits.low_warning < limits.high_warning <= limits.high_alarm
            kept[name] = (
                limits
                if ordered
                else replace(limits, high_warning=limits.high_alarm, low_warning=limits.low_alarm)
            )
    return kept


@dataclass(frozen=True, slots=True)
class Lane:
    """Watts and amperes. No light is 0; a value that the module does not measure is ``None``."""

    rx_power: float | None = None
    tx_power: float | None = None
    bias: float | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A transceiver or cable. ``lanes`` are by number, from 0; lanes without data are left out.

    Only CMIS has ``state``. ``limits`` are by ``celsius``, ``volts``, ``rx_power``, ``tx_power``, ``bias``.
    """

    kind: str
    medium: Medium
    vendor: str
    part: str
    serial: str
    revision: str
    state: str | None = None
    celsius: float | None = None
    volts: float | None = None
    lanes: dict[int, Lane] = field(default_factory=dict)
    limits: dict[str, AlarmThresholds] = field(default_factory=dict)


class Image:
    """The bytes that were read so far."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, int, int], int] = {}

    def put(self, area: Area, data: bytes) -> None:
        for offset, byte in enumerate(data):
            self._bytes[area.i2c, area.page, area.start + offset] = byte

    def data(self, page: int, start: int, length: int, i2c: int = ADDRESS) -> bytes:
        """Raises ``EepromError`` if one of the bytes was not read."""
        try:
            return bytes(self._bytes[i2c, page, at] for at in range(start, start + length))
        except KeyError:
            raise EepromError(f"bytes {start} to {start + length - 1} of page {page} were not read") from None

    def has(self, page: int, start: int, i2c: int = ADDRESS) -> bool:
        return (i2c, page, start) in self._bytes

    def u8(self, page: int, at: int, i2c: int = ADDRESS) -> int:
        return self.data(page, at, 1, i2c)[0]

    def u16(self, page: int, at: int, i2c: int = ADDRESS) -> int:
        return int.from_bytes(self.data(page, at, 2, i2c), "big")

    def s16(self, page: int, at: int, i2c: int = ADDRESS) -> int:
        return int.from_bytes(self.data(page, at, 2, i2c), "big", signed=True)

    def f32(self, page: int, at: int, i2c: int = ADDRESS) -> float:
        value: float = struct.unpack(">f", self.data(page, at, 4, i2c))[0]
        return value

    def text(self, page: int, at: int, length: int) -> str:
        """ASCII padded with blanks. Unprintable characters, which some vendors use, become question marks."""
        raw = self.data(page, at, length).decode("latin-1")
        return "".join(c if " " <= c <= "~" else "?" for c in raw.rstrip(" \0\xff")).strip()


class Standard(NamedTuple):
    """A kind of EEPROM: its names by the identifier in the first byte, the areas to read first, those to read when
    these are in the image, and the decoding. Pages beyond the first may be missing."""

    kinds: Mapping[int, str]
    first: tuple[Area, ...]
    further: Callable[[Image], tuple[Area, ...]]
    decode: Callable[[Image], Module]
