"""Convert text and addresses of a frame for terminals, labels and JSON.

Text is decoded with ``surrogateescape``: no byte is lost, equal bytes are equal strings. Such a string must be
escaped before it reaches a terminal, a label or a JSON file.
"""

from __future__ import annotations

import ipaddress

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}

# IANA address family numbers: https://www.iana.org/assignments/address-family-numbers
FAMILY_WORDS = {1: "ipv4", 2: "ipv6", 6: "mac", 16: "dns"}


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def raw_of(text: str) -> bytes:
    """The inverse of ``text_of``; raises ``UnicodeEncodeError`` for a surrogate that is not an escaped byte."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Convert to one line that is safe anywhere; different strings stay different.

    Trailing NULs are padding (Extreme switches send them) and are removed. Characters that do not print are
    escaped: control characters, terminal escapes, bidirectional overrides, line separators, bytes that are not
    UTF-8 (``\\xff``). So is the backslash: no text can look like an escape.
    """
    text = text.rstrip("\0")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def valid_unicode(text: str) -> str:
    """Convert to valid Unicode for JSON, which has its own escapes for control characters: only bytes that are
    not UTF-8 become ``\\xff``. Trailing NULs are removed, as in ``printable``.
    """
    return raw_of(text).rstrip(b"\0").decode("utf-8", "backslashreplace")


def mac(raw: bytes) -> str:
    return raw.hex(":")


def address_text(family: int, raw: bytes) -> str:
    """A network address in the notation of its family; in hex for a wrong length or an unknown family."""
    if family == 1 and len(raw) == 4:
        return str(ipaddress.IPv4Address(raw))
    if family == 2 and len(raw) == 16:
        return str(ipaddress.IPv6Address(raw))
    if family == 16:
        return valid_unicode(text_of(raw))
    return raw.hex(":")


def family_word(family: int) -> str:
    return FAMILY_WORDS.get(family, f"family-{family}")


def object_identifier(raw: bytes) -> str:
    """Dotted decimals from the contents octets of a BER object identifier; in hex if it is malformed.

    Some switches send tag and length before the contents (``06 0a 2b …``). Valid contents do not begin with 6
    (that would be 0.6), so both are skipped if the length fits.
    """
    if len(raw) > 2 and raw[0] == 6 and raw[1] == len(raw) - 2:
        raw = raw[2:]
    parts: list[int] = []
    value = 0
    for octet in raw:
        value = value << 7 | octet & 0x7F
        if not octet & 0x80:
            parts.append(value)
            value = 0
    if not parts or raw[-1] & 0x80:
        return raw.hex(":")
    root = min(parts[0] // 40, 2)
    return ".".join(map(str, [root, parts[0] - 40 * root, *parts[1:]]))


def _escaped(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    # Beyond ASCII a code point, never a byte: U+0085 and the stray byte 85 must look different.
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
