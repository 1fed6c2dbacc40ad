"""What is above a switch, of what the switch itself hears over LLDP.

The law of this file: only who says that it forwards, as a bridge or a router, can be above a switch, and a node
of the cluster never is, whatever it says: a server with containers forwards too. What is heard on a management
port says nothing of the fabric. A neighbor goes by its system name, and by its chassis ID where the name says
nothing or is that of several switches, as the leaves do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from nodeagent.fabric.names import chassis_key, full, short
from nodeagent.fabric.reports import SwitchAnnouncement

MANAGEMENT_PORTS = ("mgmt*", "Mgmt*", "management*", "Management*", "eth0", "em0", "me0", "fxp0", "oob*")


@dataclass(frozen=True, slots=True)
class SwitchNeighbor:
    """What a switch hears on one of its ports.

    ``chassis`` and ``port`` are ``subtype=value``, as reports have them. ``forwards`` is ``None`` where the
    neighbor does not say what it is. ``here`` is all that the switch calls its own port.
    """

    chassis: str
    port: str
    name: str = ""
    forwards: bool | None = None
    addresses: tuple[str, ...] = ()
    here: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownSwitch:
    """A switch that may be asked: its key, and what others say of it."""

    key: str
    names: tuple[str, ...]
    chassis: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Above:
    """Who counts as being above a switch. ``name`` must match where it is given, and is enough then."""

    name: re.Pattern[str] | None = None
    management_ports: tuple[str, ...] = MANAGEMENT_PORTS
    generic_names: frozenset[str] = frozenset()
    is_node: Callable[[str], bool] = field(default=lambda _: False)

    def counts(self, neighbor: SwitchNeighbor) -> bool:
        if any(fnmatchcase(one, glob) for one in neighbor.here for glob in self.management_ports):
            return False
        if neighbor.name and any(map(self.is_node, _forms(neighbor.name))):
            return False
        if self.name is not None:
            return self.name.search(neighbor.name) is not None
        return neighbor.forwards is True


def uplinks(
    heard: Mapping[str, Iterable[SwitchNeighbor]], above: Above, leaves: Iterable[KnownSwitch] = ()
) -> tuple[dict[str, tuple[str, ...]], dict[str, KnownSwitch]]:
    """Of what each switch hears, by its key: the switches above each, and all of those by their key.

    ``leaves`` are known already and keep their keys; that they are beside each other is seen by the tiers.
    """
    counted = {key: [one for one in found if above.counts(one)] for key, found in sorted(heard.items())}
    book = _Book([one for found in counted.values() for one in found], above.generic_names, leaves)
    ups: dict[str, tuple[str, ...]] = {}
    told: dict[str, list[SwitchNeighbor]] = {}
    for key, found in counted.items():
        keys = {book.key(one): one for one in found}
        keys.pop(key, None)
        for one in found:
            told.setdefault(book.key(one), []).append(one)
        ups[key] = tuple(sorted(keys))
    return ups, {key: _known(key, found) for key, found in sorted(told.items())}


def known_switches(keys: Mapping[SwitchAnnouncement, str]) -> tuple[KnownSwitch, ...]:
    """The switches that nodes announce, by key."""
    found: dict[str, list[SwitchAnnouncement]] = {}
    for heard, key in keys.items():
        found.setdefault(key, []).append(heard)
    return tuple(
        KnownSwitch(
            key,
            tuple(sorted({one.name for one in said if one.name})),
            tuple(sorted({one.chassis for one in said})),
            tuple(sorted({address for one in said for address in one.addresses})),
        )
        for key, said in sorted(found.items())
    )


def is_same(known: KnownSwitch, name: str, chassis: str) -> bool:
    """The switch that answers is the one that was meant. What says nothing of itself is believed."""
    if not name and not chassis:
        return True
    if chassis and chassis in known.chassis:
        return True
    names = {short(full(one)) for one in known.names} | {known.key}
    return bool(name) and short(full(name)) in names


def _forms(name: str) -> tuple[str, ...]:
    whole = full(name)
    return (name, whole, short(whole))


def _known(key: str, found: Collection[SwitchNeighbor]) -> KnownSwitch:
    return KnownSwitch(
        key,
        tuple(sorted({one.name for one in found if one.name})),
        tuple(sorted({one.chassis for one in found})),
        tuple(sorted({address for one in found for address in one.addresses})),
    )


class _Book:
    """Which neighbor is which switch."""

    def __init__(
        self, found: Collection[SwitchNeighbor], generic: frozenset[str], leaves: Iterable[KnownSwitch]
    ) -> None:
        self._generic = generic
        self._several = _ambiguous(found)
        domains: dict[str, set[str]] = {}
        for one in found:
            whole = full(one.name)
            domains.setdefault(short(whole), set()).add(whole)
        self._domains = {name for name, wholes in domains.items() if len(wholes - {name}) > 1}
        self._leaf: dict[str, str] = {}
        for leaf in leaves:
            names = {form for name in leaf.names for form in (full(name), short(full(name)))}
            self._leaf.update(dict.fromkeys((names - generic - {""}) | set(leaf.chassis), leaf.key))

    def key(self, one: SwitchNeighbor) -> str:
        whole = full(one.name)
        name = short(whole)
        if (leaf := self._leaf.get(one.chassis)) is not None:
            return leaf
        if not name or {name, whole} & self._generic or name in self._several:
            return chassis_key(one.chassis)
        name = whole if name in self._domains else name
        return self._leaf.get(name, name)


def _ambiguous(found: Iterable[SwitchNeighbor]) -> set[str]:
    """Names of several switches: one port under two chassis IDs, or two chassis IDs with several ports each.

    One chassis ID for each port is one switch (NX-OS).
    """
    ports: dict[str, dict[str, set[str]]] = {}
    for one in found:
        ports.setdefault(full(one.name), {}).setdefault(one.chassis, set()).add(one.port)
    several = set()
    for name, by_chassis in ports.items():
        twice = sum(map(len, by_chassis.values())) > len(set[str]().union(*by_chassis.values()))
        if twice or sum(len(own) > 1 for own in by_chassis.values()) > 1:
            several.add(short(name))
    return several
