"""Read the PCIe link of a function, its expected speed and width, and the AER error counters.

The expected values are the lower ones of the function and the port above it: a Gen5 NIC in a Gen4 slot is expected
to run at Gen4. If the firmware owns AER (APEI), the counters stay zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from nodeagent.host.sysfs import OpenAttributes, SysfsError

_DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_WIDTH_UNKNOWN = 255  # include/linux/pci.h, PCIE_LNK_WIDTH_UNKNOWN
SEVERITIES = ("correctable", "nonfatal", "fatal")


class PcieReading(Struct, frozen=True):
    """GT/s and lanes; ``None`` is unknown. ``errors`` are by ``aer_<severity>/<the kernel's name>``."""

    gts: float | None
    width: int | None
    expected_gts: float | None
    expected_width: int | None
    errors: Mapping[str, int]


class PcieLinks:
    """One reading of several functions. The maximum of a port above several of them is read once."""

    def __init__(self, attributes: OpenAttributes) -> None:
        self._attributes = attributes
        self._most: dict[str, tuple[float | None, int | None]] = {}
        """The highest speed and width of each function and port that was read."""

    def read(self, path: tuple[str, ...]) -> PcieReading:
        """``path`` lists the functions from the root complex to this one. Raises ``SysfsError``."""
        address = path[-1]
        gts, width = _link(self._attributes, address, "current")
        most = [self._maximum(function) for function in path[-2:] if _ADDRESS.fullmatch(function)]
        errors: dict[str, int] = {}
        for severity in SEVERITIES:
            text = self._attributes.text(f"{_DEVICES}/{address}/aer_dev_{severity}")
            errors |= _errors(severity, text or "")
        return PcieReading(
            gts=gts,
            width=width,
            expected_gts=min((speed for speed, _ in most if speed is not None), default=None),
            expected_width=min((lanes for _, lanes in most if lanes is not None), default=None),
            errors=errors,
        )

    def _maximum(self, function: str) -> tuple[float | None, int | None]:
        if function not in self._most:
            self._most[function] = _link(self._attributes, function, "max")
        return self._most[function]


@lru_cache(256)  # most counters rest, so the same texts come each time
def _errors(severity: str, text: str) -> Mapping[str, int]:
    return {f"aer_{severity}/{name}": count for name, count in aer(text).items()}


def aer(text: str) -> dict[str, int]:
    """Decode lines of a name and a count, without the totals."""
    counts = {}
    for line in text.splitlines():
        name, _, count = line.rpartition(" ")
        if name and count.isdecimal() and not name.startswith("TOTAL"):
            counts[name] = int(count)
    return counts


def _link(attributes: OpenAttributes, address: str, which: str) -> tuple[float | None, int | None]:
    folder = f"{_DEVICES}/{address}"
    speed = _SPEED.match(attributes.text(f"{folder}/{which}_link_speed") or "")
    text = attributes.text(f"{folder}/{which}_link_width") or "0"
    try:
        width = int(text)
    except ValueError as error:
        raise SysfsError(f"{folder}/{which}_link_width holds {text[:40]!r}, not a number") from error
    return float(speed[1]) if speed else None, width if 0 < width < _WIDTH_UNKNOWN else None
