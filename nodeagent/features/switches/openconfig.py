"""Decode openconfig-lldp from gNMI updates, which hold single leaves or JSON subtrees of any size.

Paths and values are first flattened into leaves, because switches split the tree at any level. Module prefixes are
removed from names: RFC 7951 uses them in some places, switches in any. Unknown leaves are ignored; an answer beyond
the bounds ends the reading.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nodeagent.fabric.uplinks import SwitchNeighbor
from nodeagent.features.switches.switch_reading import NEIGHBORS_MAX, TEXT_MAX, SwitchError, SwitchReading
from nodeagent.lldp.escaping import valid_unicode
from nodeagent.lldp.lldpdu import CHASSIS_WORDS, PORT_WORDS


class Step(NamedTuple):
    """One element of a path; ``key`` is empty unless it is an entry of a list."""

    name: str
    key: str = ""


Steps = tuple[Step, ...]

KEYS = {"interface": "name", "neighbor": "id", "capability": "name", "mgmt-address": "address"}
"""The lists and their keys."""
_NEIGHBOR = ("lldp", "interfaces", "interface", "neighbors", "neighbor")
_CHASSIS = (
    "CHASSIS_COMPONENT", "INTERFACE_ALIAS", "PORT_COMPONENT", "MAC_ADDRESS", "NETWORK_ADDRESS", "INTERFACE_NAME",
    "LOCAL",
)  # fmt: skip
_PORT = (
    "INTERFACE_ALIAS", "PORT_COMPONENT", "MAC_ADDRESS", "NETWORK_ADDRESS", "INTERFACE_NAME", "AGENT_CIRCUIT_ID",
    "LOCAL",
)  # fmt: skip
CHASSIS_TYPES = {word: CHASSIS_WORDS[n] for n, word in enumerate(_CHASSIS, 1)}
PORT_TYPES = {word: PORT_WORDS[n] for n, word in enumerate(_PORT, 1)}
_FORWARDS = frozenset(("MAC_BRIDGE", "ROUTER"))
_NO_MAC_DIGIT = re.compile(r"[^0-9a-fA-F]")
_DEPTH_MAX = 32


def step(name: str, keys: Iterable[tuple[str, str]] = ()) -> Step:
    """An element of a path with its key."""
    bare = local(name)
    return Step(bare, next((value for key, value in keys if local(key) == KEYS.get(bare)), ""))


def local(name: str) -> str:
    """A name or an identity without its module."""
    return name.rpartition(":")[2]


def leaves(steps: Steps, value: Any, depth: int = 0) -> Iterator[tuple[Steps, Any]]:
    """All leaves of a path and its value."""
    if depth > _DEPTH_MAX:
        raise SwitchError(f"the answer has more than {_DEPTH_MAX} levels")
    last = steps[-1] if steps else Step("")
    if isinstance(value, list) and last.name in KEYS and not last.key:
        for item in value:
            if isinstance(item, dict):
                yield from leaves((*steps[:-1], step(last.name, _keys(item))), item, depth + 1)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves((*steps, Step(local(name))), inner, depth + 1)
    else:
        yield steps, value


def reading_of(values: Iterable[tuple[Steps, Any]]) -> SwitchReading:
    """The switch's own identity and its neighbors."""
    own: dict[str, str] = {}
    by_place: dict[tuple[str, str], _NeighborLeaves] = {}
    for steps, value in values:
        names = tuple(element.name for element in steps)
        if names[:2] == ("lldp", "state") and len(names) == 3:
            own[names[2]] = _text(value)
        elif names[:5] == _NEIGHBOR:
            where = (steps[2].key, steps[4].key)
            parts = by_place.get(where)
            if parts is None:
                if len(by_place) == NEIGHBORS_MAX:
                    raise SwitchError(f"the switch reports more than {NEIGHBORS_MAX} neighbors")
                parts = by_place[where] = _NeighborLeaves()
            parts.take(steps[5:], value)
    chassis = _identifier(CHASSIS_TYPES, own.get("chassis-id-type", ""), own.get("chassis-id", ""))
    neighbors = (parts.neighbor(interface) for (interface, _), parts in sorted(by_place.items()))
    return SwitchReading(
        own.get("system-name", ""), chassis, tuple(neighbor for neighbor in neighbors if neighbor.chassis)
    )


class _NeighborLeaves:
    """Collects the leaves of one neighbor."""

    def __init__(self) -> None:
        self._state: dict[str, str] = {}
        self._addresses: set[str] = set()
        self._enabled: dict[str, bool] = {}

    def take(self, steps: Steps, value: Any) -> None:
        names = tuple(element.name for element in steps)
        if names[:1] == ("state",) and len(names) == 2:
            if names[1] == "management-address":
                for text in value if isinstance(value, list) else _text(value).split(","):
                    self._address(_text(text))
            else:
                self._state[names[1]] = _text(value)
        elif names[:2] == ("capabilities", "capability") and names[-1] == "enabled":
            self._enabled[local(steps[1].key)] = value is True or value == "true"
        elif names[:2] == ("mgmt-addresses", "mgmt-address"):
            self._address(steps[1].key)

    def neighbor(self, interface: str) -> SwitchNeighbor:
        state = self._state
        forwards = any(self._enabled.get(word) for word in _FORWARDS) if self._enabled else None
        return SwitchNeighbor(
            _identifier(CHASSIS_TYPES, state.get("chassis-id-type", ""), state.get("chassis-id", "")),
            _identifier(PORT_TYPES, state.get("port-id-type", ""), state.get("port-id", "")),
            state.get("system-name", ""),
            forwards,
            tuple(sorted(self._addresses)),
            (_text(interface),) if interface else (),
        )

    def _address(self, text: str) -> None:
        try:
            self._addresses.add(str(ipaddress.ip_address(text.strip())))
        except ValueError:
            return  # a MAC, or a word such as "none"


def _identifier(words: dict[str, str], kind: str, value: str) -> str:
    """In the notation of node reports. Switches write a MAC in many forms; a missing type is guessed from it."""
    if not value:
        return ""
    digits = _NO_MAC_DIGIT.sub("", value).lower()
    word = words.get(local(kind).upper().replace("-", "_"))
    if word is None:
        word = "mac" if len(digits) == 12 and len(value) in (12, 14, 17) else "local"
    if word == "mac" and len(digits) == 12:
        value = ":".join(digits[n : n + 2] for n in range(0, 12, 2))
    return f"{word}={value}"


def _keys(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in item.items():
        if isinstance(value, str | int):
            yield name, str(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    return (
        valid_unicode(value)[:TEXT_MAX]
        if isinstance(value, str)
        else ""
        if value is None
        else str(value)[:TEXT_MAX]
    )
