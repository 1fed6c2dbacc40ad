"""The PCIe link of a function, what it should be, and the errors that AER has counted on it.

Expected is the least of what the function and the port above it can do: a Gen5 NIC in a Gen4 slot runs as it
should at Gen4. Where the firmware keeps AER to itself (APEI) the counters stay zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nodeagent.host.sysfs import OpenAttributes, SysfsError

_DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_WIDTH_UNKNOWN = 255  # include/linux/pci.h, PCIE_LNK_WIDTH_UNKNOWN
SEVERITIES = ("correctable", "nonfatal", "fatal")


@dataclass(frozen=True, slots=True)
class PcieReading:
    """GT/s and lanes; ``None`` is not known. ``errors`` are by severity and the kernel's own name."""

    gts: float | None
    width: int | None
    expected_gts: float | None
    expected_width: int | None
    errors: dict[tuple[str, str], int] = field(default_factory=dict)


def read(attributes: OpenAttributes, path: tuple[str, ...]) -> PcieReading:
    """``path`` is a function's way from the root complex. Raises ``SysfsError``."""
    address = path[-1]
    gts, width = _link(attributes, address, "current")
    most = [_link(attributes, one, "max") for one in path[-2:] if _ADDRESS.fullmatch(one)]
    errors = {}
    for severity in SEVERITIES:
        text = attributes.text(f"{_DEVICES}/{address}/aer_dev_{severity}")
        errors.update({(severity, name): count for name, count in aer(text or "").items()})
    return PcieReading(
        gts=gts,
        width=width,
        expected_gts=min((speed for speed, _ in most if speed is not None), default=None),
        expected_width=min((lanes for _, lanes in most if lanes is not None), default=None),
        errors=errors,
    )


def aer(text: str) -> dict[str, int]:
    """Lines of a name and a count, without the totals."""
    found = {}
    for line in text.splitlines():
        name, _, count = line.rpartition(" ")
        if name and count.isdecimal() and not name.startswith("TOTAL"):
            found[name] = int(count)
    return found


def _link(attributes: OpenAttributes, address: str, which: str) -> tuple[float | None, int | None]:
    folder = f"{_DEVICES}/{address}"
    speed = _SPEED.match(attributes.text(f"{folder}/{which}_link_speed") or "")
    text = attributes.text(f"{folder}/{which}_link_width") or "0"
    try:
        width = int(text)
    except ValueError as error:
        raise SysfsError(f"{folder}/{which}_link_width holds {text[:40]!r}, not a number") from error
    return float(speed[1]) if speed else None, width if 0 < width < _WIDTH_UNKNOWN else None
