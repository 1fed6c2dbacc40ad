"""Replace the identifiers of hardware in a capture.

Replaced are the last 24 bits of MAC addresses and of identifiers made from them (EUI-64, GUIDs, ``enx...`` names), and
UUIDs (of GPUs and of the boot). Equal identifiers stay equal within a capture, and the vendor part stays. Serial
numbers are never read. IP addresses are read and stay.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True)
class Scrambler:
    """Replaces identifiers consistently within one capture. The random key is never stored."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _replacements: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: set[tuple[str, str]] = field(default_factory=set)

    def text(self, text: str) -> str:
        text = _MAC.sub(self._mac, text)
        text = _GUID.sub(self._guid, text)
        text = _EUI64.sub(self._eui64, text)
        text = _ENX.sub(lambda match: "enx" + match[1] + self._nic(match[1], match[2]), text)
        return _UUID.sub(lambda match: self._uuid(match[0]), text)

    def _mac(self, match: re.Match[str]) -> str:
        """A MAC of six octets, or an InfiniBand address of 20 that ends in a GUID."""
        octets = match[0].split(":")
        if len(octets) < 6 or set(octets) <= {"00", "ff"}:
            return match[0]
        vendor = octets[:3] if len(octets) == 6 else octets[-8:-5]
        changed = self._nic("".join(vendor), "".join(octets[-3:]))
        return ":".join([*octets[:-3], changed[:2], changed[2:4], changed[4:]])

    def _guid(self, match: re.Match[str]) -> str:
        digits = match[0].replace(":", "")
        digits = digits[:10] + self._nic(digits[:6], digits[10:])
        return ":".join(digits[i : i + 4] for i in range(0, 16, 4))

    def _eui64(self, match: re.Match[str]) -> str:
        """The interface identifier of an IPv6 address, with the universal bit of the MAC inverted (RFC 4291)."""
        vendor = f"{int(match[2], 16) ^ 0x020000:06x}"
        return f"{match[1]}{match[2]}fffe{self._nic(vendor, match[3])}"

    def _nic(self, vendor: str, digits: str) -> str:
        return self._replacement(vendor.lower(), digits.lower(), 3)

    def _uuid(self, uuid: str) -> str:
        digits = self._replacement("uuid", uuid.lower(), 16)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _replacement(self, space: str, text: str, size: int) -> str:
        """Another number of ``size`` bytes in hexadecimal, unique within ``space`` (a vendor, or UUIDs)."""
        if (space, text) not in self._replacements:
            for attempt in range(1 << 16):
                drawn = blake2b(
                    f"{space} {text} {attempt}".encode(), digest_size=size, key=self._key
                ).hexdigest()
                if (space, drawn) not in self._taken:
                    break
            self._taken.add((space, drawn))
            self._replacements[space, text] = drawn
        return self._replacements[space, text]


_HEX2 = "[0-9a-fA-F]{2}"
_MAC = re.compile(rf"(?<![0-9a-fA-F:]){_HEX2}(?::{_HEX2})+(?![0-9a-fA-F:.])")
_GUID = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![0-9a-fA-F:])")
_EUI64 = re.compile(r"(?<![0-9a-f])([0-9a-f]{16})([0-9a-f]{6})fffe([0-9a-f]{6})(?![0-9a-f])")
_ENX = re.compile(r"\benx([0-9a-f]{6})([0-9a-f]{6})(?![0-9a-f])")
_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])")
