"""Names: of switches, as keys that are safe anywhere, and of HyperNodes, which must outlive what they are named for.

The law of this file: a name is given once, from the smallest switch of the group on that day, and kept for as
long as the group can be recognized: by the members it shares with a published object, then by the switches,
then by the name. Nothing is numbered, for numbers shift.
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
    """Lower case, and percent-encoded but for letters, digits and ``._-``: no comma, no space, no escape.

    What is too long ends in a digest of the whole.
    """
    safe = _UNSAFE.sub(_encoded, text.strip().lower())
    if len(safe) <= _KEY_MAX:
        return safe
    return f"{safe[: _KEY_MAX - 9]}-{_digest(text)}"


@lru_cache(maxsize=1 << 15)
def full(name: str) -> str:
    """A system name with its domain, as a key."""
    return plain(name).rstrip(".")


@lru_cache(maxsize=1 << 15)
def short(name: str) -> str:
    """A full name without its domain, unless it is an address."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0] or name


def chassis_key(chassis: str) -> str:
    """The key of a switch that is known by its chassis ID alone; no name can look like it."""
    subtype, _, value = chassis.partition("=")
    return f"chassis:{plain(subtype)}:{plain(value).replace('%3a', ':')}"


def name_of(fabric: str, tier: int, anchor: str, taken: Callable[[str], bool]) -> str:
    """``nodeagent-t<tier>-<anchor>-<digest>``, not longer than 63 characters and not taken."""
    slug = re.sub(r"[^a-z0-9]+", "-", anchor.lower())[:_SLUG_MAX].strip("-") or "group"
    for salt in range(1000):
        mark = f"{fabric}|{anchor}" + (f"|{salt}" if salt else "")
        name = f"nodeagent-t{tier}-{slug}-{_digest(mark)}"
        if not taken(name):
            return name
    raise AssertionError(f"a thousand HyperNodes are named like {slug}")


def match(claims: Mapping[G, Mapping[str, tuple[int, int]]], order: Callable[[G], str]) -> dict[G, str]:
    """Which group is which published object. ``claims[group][name]`` is (shared members, shared switches).

    The greatest share first; each group and each name once.
    """
    ranked = [
        (-members, -switches, name, order(group), group)
        for group, names in claims.items()
        for name, (members, switches) in names.items()
        if members or switches
    ]
    ranked.sort(key=lambda one: one[:4])
    found: dict[G, str] = {}
    used: set[str] = set()
    for _, _, name, _, group in ranked:
        if group not in found and name not in used:
            found[group] = name
            used.add(name)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{octet:02x}" for octet in found[0].encode("utf-8", "surrogatepass"))
