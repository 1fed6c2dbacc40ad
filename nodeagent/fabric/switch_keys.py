"""The keys of switches: their names and chassis IDs in safe characters."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from nodeagent.base.plain_text import one_line

CHASSIS, ADDRESS = "chassis:", "address:"
"""How the keys of switches begin that no name identifies."""
_KEY_MAX = 120
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_UNSAFE = re.compile(r"[^a-z0-9._-]")
_ENCODED = re.compile(r"(?:%[0-9a-f]{2})+")


def safe_key(text: str) -> str:
    """Convert to lower case, and percent-encode everything but letters, digits and ``._-``.

    A long text is cut and ends in a digest of the whole.
    """
    safe = _UNSAFE.sub(_percent_encode, text.strip().lower())
    if len(safe) <= _KEY_MAX:
        return text if safe == text else safe  # nearly always the text itself, which is in memory already
    return f"{safe[: _KEY_MAX - 9]}-{digest(text)}"


_CACHED = 1 << 10
"""The names of a unit or two, which are asked for several times in a row. A cache for 25,000 switches takes 6 MiB and
saves no time."""


def plain(text: str) -> str:
    """A key, or a sentence with keys, for a person: without percent-encoding, on one line of ASCII."""
    if "%" not in text:
        return text
    return one_line(_ENCODED.sub(_percent_decode, text), ascii_only=True)


@lru_cache(maxsize=_CACHED)
def full_key(name: str) -> str:
    """The key of a system name, with its domain."""
    return safe_key(name).rstrip(".")


@lru_cache(maxsize=_CACHED)
def short(name: str) -> str:
    """A key without its domain. An address stays whole."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0] or name


def chassis_key(chassis: str) -> str:
    """The key of a switch that is known by its chassis ID alone. No system name has a key of this form."""
    subtype, _, value = chassis.partition("=")
    return f"{CHASSIS}{safe_key(subtype)}:{safe_key(value).replace('%3a', ':')}"


def address_key(address: str) -> str:
    """The key of a switch that is known by its management address alone."""
    return f"{ADDRESS}{safe_key(address).replace('%3a', ':')}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _percent_decode(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace")


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{octet:02x}" for octet in match[0].encode("utf-8", "surrogatepass"))
