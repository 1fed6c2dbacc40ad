"""Names of switches, as keys of safe characters, and names of HyperNodes.

A HyperNode is named once, after the first switch of its group at that time. It keeps the name as long as the group can
be recognized: by the members that it shares with a published object, then by the switches, then by the name. Names
contain no index, because an index changes when groups are added.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import TypeVar

NAME_MAX = 63
_SLUG_MAX = 30
_KEY_MAX = 120
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_UNSAFE = re.compile(r"[^a-z0-9._-]")

G = TypeVar("G", bound=Hashable)


def plain(text: str) -> str:
    """Convert to lower case, and percent-encode everything but letters, digits and ``._-``.

    A long text is cut and ends in a digest of the whole.
    """
    safe = _UNSAFE.sub(_percent_encode, text.strip().lower())
    if len(safe) <= _KEY_MAX:
        return safe
    return f"{safe[: _KEY_MAX - 9]}-{_digest(text)}"


@lru_cache(maxsize=1 << 15)
def full(name: str) -> str:
    """The key of a system name, with its domain."""
    return plain(name).rstrip(".")


@lru_cache(maxsize=1 << 15)
def short(name: str) -> str:
    """A key without its domain. An address stays whole."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0] or name


def chassis_key(chassis: str) -> str:
    """The key of a switch that is known by its chassis ID alone. No system name has a key of this form."""
    subtype, _, value = chassis.partition("=")
    return f"chassis:{plain(subtype)}:{plain(value).replace('%3a', ':')}"


def name_of(fabric: str, tier: int, anchor: str, taken: Callable[[str], bool]) -> str:
    """A free name of at most 63 characters: ``nodeagent-t<tier>-<anchor>-<digest>``."""
    slug = re.sub(r"[^a-z0-9]+", "-", anchor.lower())[:_SLUG_MAX].strip("-") or "group"
    for salt in range(1000):
        mark = f"{fabric}|{anchor}" + (f"|{salt}" if salt else "")
        name = f"nodeagent-t{tier}-{slug}-{_digest(mark)}"
        if not taken(name):
            return name
    raise AssertionError(f"all names for {slug} are taken")


def match(claims: Mapping[G, Mapping[str, tuple[int, int]]], order: Callable[[G], str]) -> dict[G, str]:
    """The published name of each group. ``claims[group][name]`` counts (shared members, shared switches).

    The largest claim wins first. Every group and every name is matched at most once.
    """
    ranked = [
        (-members, -switches, name, order(group), group)
        for group, names in claims.items()
        for name, (members, switches) in names.items()
        if members or switches
    ]
    ranked.sort(key=lambda claim: claim[:4])
    matched: dict[G, str] = {}
    used: set[str] = set()
    for _, _, name, _, group in ranked:
        if group not in matched and name not in used:
            matched[group] = name
            used.add(name)
    return matched


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{octet:02x}" for octet in match[0].encode("utf-8", "surrogatepass"))
