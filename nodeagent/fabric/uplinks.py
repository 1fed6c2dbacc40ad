"""The switches above a switch, from the LLDP neighbors of that switch.

* Only a neighbor that announces forwarding, as a bridge or a router, counts as an uplink. A node of the cluster never
  counts, because a server with containers announces forwarding too.
* Neighbors on management ports do not count: they are not part of the fabric.
* The key of a neighbor is its system name. It is the chassis ID where the name is a factory default or belongs to
  several switches, as for leaf switches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from nodeagent.fabric.reports import SwitchAnnouncement
from nodeagent.fabric.switch_keys import chassis_key, full_key, short

MANAGEMENT_PORTS = ("mgmt*", "Mgmt*", "management*", "Management*", "eth0", "em0", "me0", "fxp0", "oob*")


@dataclass(frozen=True, slots=True)
class SwitchNeighbor:
    """An LLDP neighbor of a switch.

    ``chassis`` and ``port`` are ``subtype=value``, as in reports. ``forwards`` is ``None`` if the neighbor announces
    no capabilities. ``local_ports`` are all names of the switch's own port.
    """

    chassis: str
    port: str
    name: str = ""
    forwards: bool | None = None
    addresses: tuple[str, ...] = ()
    local_ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownSwitch:
    """A switch that can be queried: its key, and how its neighbors know it."""

    key: str
    names: tuple[str, ...]
    chassis: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UplinkRule:
    """Decides which neighbors are above a switch. ``name``, if given, must match and is sufficient."""

    name: re.Pattern[str] | None = None
    management_ports: tuple[str, ...] = MANAGEMENT_PORTS
    generic_names: frozenset[str] = frozenset()
    is_node: Callable[[str], bool] = field(default=lambda _: False)

    def accepts(self, neighbor: SwitchNeighbor) -> bool:
        if any(fnmatchcase(port, glob) for port in neighbor.local_ports for glob in self.management_ports):
            return False
        if neighbor.name and any(map(self.is_node, _forms(neighbor.name))):
            return False
        if self.name is not None:
            return self.name.search(neighbor.name) is not None
        return neighbor.forwards is True


def find_uplinks(
    neighbors: Mapping[str, Iterable[SwitchNeighbor]], rule: UplinkRule, leaves: Iterable[KnownSwitch] = ()
) -> tuple[dict[str, tuple[str, ...]], dict[str, KnownSwitch]]:
    """The switches above each switch, and all of these by key. ``neighbors`` are by the key of the switch.

    ``leaves`` keep their keys. They may appear as uplinks of each other; the tiers leave out such peer links.
    """
    accepted = {
        key: [neighbor for neighbor in received if rule.accepts(neighbor)]
        for key, received in sorted(neighbors.items())
    }
    every = [neighbor for received in accepted.values() for neighbor in received]
    keys = _NeighborKeys(every, rule.generic_names, leaves)
    uplinks: dict[str, tuple[str, ...]] = {}
    by_key: dict[str, list[SwitchNeighbor]] = {}
    for key, received in accepted.items():
        uplinks[key] = tuple(sorted({keys.of(neighbor) for neighbor in received} - {key}))
        for neighbor in received:
            by_key.setdefault(keys.of(neighbor), []).append(neighbor)
    return uplinks, {key: _known(key, same) for key, same in sorted(by_key.items())}


def known_switches(keys: Mapping[SwitchAnnouncement, str]) -> tuple[KnownSwitch, ...]:
    """The switches in the reports of nodes, by key."""
    by_key: dict[str, list[SwitchAnnouncement]] = {}
    for announcement, key in keys.items():
        by_key.setdefault(key, []).append(announcement)
    return tuple(_known(key, same) for key, same in sorted(by_key.items()))


def is_same(known: KnownSwitch, name: str, chassis: str) -> bool:
    """The switch that answered is the one that was queried. An answer without name and chassis ID is accepted."""
    if not name and not chassis:
        return True
    if chassis and chassis in known.chassis:
        return True
    names = {short(full_key(known_name)) for known_name in known.names} | {known.key}
    return bool(name) and short(full_key(name)) in names


def _forms(name: str) -> tuple[str, ...]:
    whole = full_key(name)
    return (name, whole, short(whole))


def _known(key: str, same: Collection[SwitchNeighbor] | Collection[SwitchAnnouncement]) -> KnownSwitch:
    return KnownSwitch(
        key,
        tuple(sorted({peer.name for peer in same if peer.name})),
        tuple(sorted({peer.chassis for peer in same})),
        tuple(sorted({address for peer in same for address in peer.addresses})),
    )


class _NeighborKeys:
    """Finds the key of the switch that a neighbor is."""

    def __init__(
        self,
        neighbors: Collection[SwitchNeighbor],
        generic_names: frozenset[str],
        leaves: Iterable[KnownSwitch],
    ) -> None:
        self._generic = generic_names
        self._ambiguous = _ambiguous_names(neighbors)
        domains: dict[str, set[str]] = {}
        for neighbor in neighbors:
            whole = full_key(neighbor.name)
            domains.setdefault(short(whole), set()).add(whole)
        self._several_domains = {name for name, wholes in domains.items() if len(wholes - {name}) > 1}
        self._leaf: dict[str, str] = {}
        leaves = tuple(leaves)
        announced = Counter(chassis for leaf in leaves for chassis in leaf.chassis)
        for leaf in leaves:
            names = {form for name in leaf.names for form in (full_key(name), short(full_key(name)))}
            own = {chassis for chassis in leaf.chassis if announced[chassis] == 1}
            self._leaf.update(dict.fromkeys((names - generic_names - {""}) | own, leaf.key))

    def of(self, neighbor: SwitchNeighbor) -> str:
        whole = full_key(neighbor.name)
        name = short(whole)
        if (leaf := self._leaf.get(neighbor.chassis)) is not None:
            return leaf
        if not name or {name, whole} & self._generic or name in self._ambiguous:
            return chassis_key(neighbor.chassis)
        name = whole if name in self._several_domains else name
        return self._leaf.get(name, name)


def _ambiguous_names(neighbors: Iterable[SwitchNeighbor]) -> set[str]:
    """Names of several switches: one port under two chassis IDs, or two chassis IDs with several ports each.

    One chassis ID for each port is one switch (NX-OS).
    """
    ports: dict[str, dict[str, set[str]]] = {}
    for neighbor in neighbors:
        by_chassis = ports.setdefault(full_key(neighbor.name), {})
        by_chassis.setdefault(neighbor.chassis, set()).add(neighbor.port)
    ambiguous = set()
    for name, by_chassis in ports.items():
        shared = sum(map(len, by_chassis.values())) > len(set[str]().union(*by_chassis.values()))
        if shared or sum(len(own) > 1 for own in by_chassis.values()) > 1:
            ambiguous.add(short(name))
    return ambiguous
