"""Replace the identifiers of a machine in a capture.

* MAC addresses, and what is made from them (GUIDs, GIDs, EUI-64, ``enx…`` names): the last 24 bits. The first 24 stay:
  the vendor, and the bits for multicast and for a locally administered address.
* UUIDs of GPUs, of the boot and of pods: all digits; a prefix such as ``GPU-`` stays.
* Serial numbers in JSON: each digit by a digit, each letter by a letter.
* IP addresses, also in routes, neighbors of GIDs and IPv4-mapped GIDs: two addresses with the same first n bits get
  replacements with the same first n bits, so that subnets stay subnets. Trailing zero bits, masks, loopback,
  multicast and the prefix of link-local addresses stay.
* The host's name.

Equal identifiers have equal replacements within a capture, in file names, links and contents. ``finish`` then finds
the identifiers that ``text`` has replaced in their other notations. Two captures replace differently.
"""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address


@dataclass(slots=True)
class Scrambler:
    """Replaces identifiers consistently within one capture. The random key is never stored."""

    host_names: tuple[str, ...] = ()
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _replacements: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: set[tuple[str, str]] = field(default_factory=set)
    _compact: dict[str, str] = field(default_factory=dict)
    """Replaced identifiers as bare hexadecimal digits, in both byte orders."""
    _serials: dict[str, str] = field(default_factory=dict)

    def file(self, path: str, text: str) -> str:
        """The content of the file at this path of the machine."""
        if path == "/proc/net/route":
            text = "".join(map(self._route, text.splitlines(keepends=True)))
        return self.text(text, guids="/gids/" in path)

    def text(self, text: str, *, guids: bool = False) -> str:
        """``guids``: the interface identifiers of IPv6 addresses are GUIDs."""
        text = _VERSIONS_OR_IPV4.sub(lambda match: match[0] if match[1] else self._ipv4(match), text)
        text = _IPV6.sub(lambda match: self._ipv6_text(match[0], guids=guids), text)
        text = _IPV6_DIGITS.sub(lambda match: self._ipv6(match[0], guids=guids), text)
        text = _MAC.sub(self._mac, text)
        text = _DOTTED_MAC.sub(self._dotted_mac, text)
        text = _GUID.sub(lambda match: _groups(self._interface(match[0].replace(":", ""))), text)
        text = _GUID_DIGITS.sub(lambda match: "0x" + self._interface(match[1]), text)
        text = _NAMED.sub(lambda match: match[1] + match[2] + self._nic(match[2], match[3]), text)
        text = _UUID.sub(lambda match: self._uuid(match[0], match[1]), text)
        text = _SERIAL.sub(lambda match: match[1] + self._serial(match[2]) + match[3], text)
        for name in self.host_names:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", self._host_name(name), text)
        return text

    def finish(self, text: str) -> str:
        """Replace what ``text`` has met elsewhere: bare digits in either byte order, and serial numbers."""
        text = _DIGITS.sub(lambda match: self._known(match[0]), text)
        for serial, replacement in self._serials.items():
            text = text.replace(serial, replacement)
        return text

    # --- hardware addresses ---------------------------------------------------------------------------------

    def _mac(self, match: re.Match[str]) -> str:
        """A MAC of six octets, or an InfiniBand address of 20 that ends in a GUID."""
        separator = match[1]
        octets = match[0].split(separator)
        if len(octets) < 6 or set(octets) <= {"00", "ff"}:
            return match[0]
        if len(octets) == 8 and [octet.lower() for octet in octets[3:5]] == ["ff", "fe"]:
            return separator.join(_octets(self._interface("".join(octets))))
        vendor = octets[:3] if len(octets) == 6 else octets[-8:-5]
        changed = self._nic("".join(vendor), "".join(octets[-3:]))
        return separator.join([*octets[:-3], *_octets(changed)])

    def _dotted_mac(self, match: re.Match[str]) -> str:
        digits = match[0].replace(".", "")
        digits = digits[:6] + self._nic(digits[:6], digits[6:])
        return ".".join(digits[i : i + 4] for i in range(0, 12, 4))

    def _interface(self, digits: str) -> str:
        """A GUID, or the interface identifier of an IPv6 address."""
        vendor = digits[:6]
        if digits[6:10].lower() == "fffe":  # the universal bit of the MAC is inverted (RFC 4291)
            vendor = f"{int(vendor, 16) ^ 0x020000:06x}"
        if int(digits, 16) == 0:
            return digits
        changed = digits[:10] + self._nic(vendor, digits[10:])
        self._remember(digits, changed)
        return changed

    def _nic(self, vendor: str, digits: str) -> str:
        changed = self._replacement(vendor.lower(), digits.lower(), 3)
        self._remember(vendor + digits, vendor + changed)
        return changed

    # --- IP addresses ---------------------------------------------------------------------------------------

    def _route(self, line: str) -> str:
        """Columns: Iface Destination Gateway …; numbers in hex, in the byte order of the machine (little endian)."""
        columns = line.split("\t")
        for i in (1, 2):
            if len(columns) > 2 and re.fullmatch("[0-9A-Fa-f]{8}", columns[i].strip()):
                old = columns[i].strip()
                new = self._ipv4_bytes(bytes.fromhex(old)[::-1])[::-1].hex().upper()
                columns[i] = columns[i].replace(old, new)
        return "\t".join(columns)

    def _ipv4(self, match: re.Match[str]) -> str:
        try:
            address = IPv4Address(match[0])
        except ValueError:
            return match[0]
        return str(IPv4Address(self._ipv4_bytes(address.packed)))

    def _ipv4_bytes(self, packed: bytes) -> bytes:
        address = IPv4Address(packed)
        number = int(address)
        inverted = number ^ 0xFFFFFFFF
        is_mask = number >> 31 == 1 and inverted & (inverted + 1) == 0
        if address.is_loopback or address.is_multicast or is_mask:
            return packed
        return self._keeping_prefixes("ipv4", packed, 0)

    def _ipv6_text(self, text: str, *, guids: bool) -> str:
        try:
            address = IPv6Address(text)
        except ValueError:
            return text
        changed = IPv6Address(bytes.fromhex(self._ipv6(address.packed.hex(), guids=guids)))
        if changed == address:
            return text
        return changed.exploded if len(text) == len(address.exploded) else str(changed)

    def _ipv6(self, digits: str, *, guids: bool) -> str:
        packed = bytes.fromhex(digits)
        address = IPv6Address(packed)
        if address.is_multicast or address.is_loopback or address.is_unspecified:
            return digits
        if address.ipv4_mapped is not None:
            changed = packed[:12] + self._ipv4_bytes(packed[12:])
        elif packed[11:13] == b"\xff\xfe" or guids:
            prefix = packed[:8] if address.is_link_local else self._keeping_prefixes("ipv6", packed[:8], 0)
            changed = prefix + bytes.fromhex(self._interface(packed[8:].hex()))
        else:
            changed = self._keeping_prefixes("ipv6", packed, 64 if address.is_link_local else 0)
        self._remember(packed.hex(), changed.hex())
        return changed.hex()

    def _keeping_prefixes(self, family: str, packed: bytes, kept: int) -> bytes:
        """Invert each bit or not, by the bits before it. The first ``kept`` bits and trailing zeros stay."""
        bits = "".join(f"{byte:08b}" for byte in packed)
        changed = bits[:kept]
        for i in range(kept, len(bits.rstrip("0"))):
            drawn = blake2b(f"{family} {bits[:i]}".encode(), digest_size=1, key=self._key).digest()[0] & 1
            changed += str(int(bits[i]) ^ drawn)
        return int(changed.ljust(len(bits), "0"), 2).to_bytes(len(packed), "big")

    # --- others -----------------------------------------------------------------------------------------------

    def _uuid(self, uuid: str, separator: str) -> str:
        old = uuid.lower().replace(separator, "")
        digits = self._replacement("uuid", old, 16)
        self._remember(old, digits)
        return separator.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _serial(self, serial: str) -> str:
        if serial not in self._serials:
            stream = blake2b(
                serial.encode("utf-8", "surrogateescape"), digest_size=64, key=self._key
            ).digest()
            changed = "".join(_alike(char, stream[i % 64]) for i, char in enumerate(serial))
            if len(serial) >= SERIAL_LEAST:
                self._serials[serial] = changed
            return changed
        return self._serials[serial]

    def _host_name(self, name: str) -> str:
        return f"host-{self._replacement('host', name, 4)}"

    def _remember(self, old: str, new: str) -> None:
        old, new = old.lower(), new.lower()
        self._compact[old] = new
        self._compact["".join(reversed(_octets(old)))] = "".join(reversed(_octets(new)))

    def _known(self, digits: str) -> str:
        """Replace the known identifiers in a run of digits."""
        lower, changed, i = digits.lower(), "", 0
        while i < len(digits):
            for size in (32, 16, 12):
                new = self._compact.get(lower[i : i + size]) if i + size <= len(digits) else None
                if new is not None and new != lower[i : i + size]:
                    break
            else:
                new, size = None, 1
            changed += digits[i : i + size] if new is None else new
            i += size
        return changed

    def _replacement(self, space: str, text: str, size: int) -> str:
        """Another number of ``size`` bytes in hexadecimal, unique within ``space`` (a vendor, or UUIDs)."""
        if (space, text) not in self._replacements:
            for attempt in range(1 << 16):
                drawn = blake2b(
                    f"{space} {text} {attempt}".encode(), digest_size=size, key=self._key
                ).hexdigest()
                if (space, drawn) not in self._taken and drawn != text:
                    break
            self._taken.add((space, drawn))
            self._replacements[space, text] = drawn
        return self._replacements[space, text]


SERIAL_LEAST = 6
"""Characters; a shorter serial number is replaced only where a key names it, because it may be part of any text."""


def _alike(char: str, drawn: int) -> str:
    for alphabet in (string.digits, string.ascii_uppercase, string.ascii_lowercase):
        if char in alphabet:
            return alphabet[drawn % len(alphabet)]
    return char


def _octets(digits: str) -> list[str]:
    return [digits[i : i + 2] for i in range(0, len(digits), 2)]


def _groups(digits: str) -> str:
    return ":".join(digits[i : i + 4] for i in range(0, len(digits), 4))


_HEX2 = "[0-9a-fA-F]{2}"
_HEX4 = "[0-9a-fA-F]{4}"
_MAC = re.compile(rf"(?<![0-9a-fA-F:-]){_HEX2}([:-]){_HEX2}(?:\1{_HEX2})+(?![0-9a-fA-F:.-])")
_DOTTED_MAC = re.compile(rf"(?<![0-9a-fA-F.]){_HEX4}\.{_HEX4}\.{_HEX4}(?![0-9a-fA-F.])")
_GUID = re.compile(rf"(?<![0-9a-fA-F:]){_HEX4}(?::{_HEX4}){{3}}(?![0-9a-fA-F:])")
_GUID_DIGITS = re.compile(r"\b0x([0-9a-fA-F]{16})\b")
_NAMED = re.compile(
    r"(?<![0-9a-z])((?:en|ib|wl|ww|sl|iw|roce|opa|hfi)x)([0-9a-f]{6})([0-9a-f]{6})(?![0-9a-f])"
)
"""Names that systemd and rdma-core make from the MAC address."""
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = re.compile(
    rf"(?<![0-9a-zA-Z:.])(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}(?::{_GROUP}){{1,6}})(?![0-9a-zA-Z:])"
)
_IPV6_DIGITS = re.compile(r"(?<![0-9a-fA-F])[0-9a-f]{32}(?![0-9a-fA-F])")
_VERSIONS_OR_IPV4 = re.compile(
    r'("?\b(?:firmware|driver_version|cuda_version|gpu_vbios|kernel|nodeagent)"?\s*:\s*"[^"]*")|'
    r"(?<![0-9a-zA-Z.:])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9a-zA-Z.])"
)
"""Versions of firmware look like IPv4 addresses."""
_UUID = re.compile(
    r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}([-_])[0-9a-fA-F]{4}(?:\1[0-9a-fA-F]{4}){2}\1[0-9a-fA-F]{12}(?![0-9a-fA-F])"
)
_SERIAL = re.compile(r'("[a-z_]*(?:serial|board_id|part_id)[a-z_]*"\s*:\s*")([^"\\]+)(")', re.IGNORECASE)
_DIGITS = re.compile(r"[0-9a-fA-F]{12,}")
