"""Which LLDP announcements come from one switch, and the key of that switch.

* The key is the system name. Factory-default names count as no name; then, and where several switches share a name,
  the key is the chassis ID.
* One name with several chassis IDs is one switch with an ID for each port (NX-OS), a replaced switch, or two switches
  that share a name. Only what is received at the same time separates these: two IDs with several ports each, or one
  port under two IDs, are two switches. Where the reports leave it open, the recorded answer stands.
* An ID for each port identifies no switch where the name is a factory default or belongs to several switches. There
  the management address does. Without one, the links are ambiguous: they count for no group.
* One node cannot undo an ID for each port: without its report the IDs of all others have one port each. Nor does an ID
  join switches if each of its names comes from one node, and others have these names with other IDs.
* A known chassis ID under a new name is a renamed switch: it keeps its recorded key. When the old name has moved to
  another chassis, the names count again.
* A chassis ID that several names have at once is a factory default, and identifies no switch. Two names are too few
  for this, unless both announce one port: while a switch is renamed, some reports still have the old name. That of a
  dead node has it for good, on a port that another node may have by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import NamedTuple

from nodeagent.fabric.groups import CablingPattern
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.reports import SWITCH_GUID, SwitchAnnouncement, shown
from nodeagent.fabric.switch_keys import ADDRESS, CHASSIS, address_key, chassis_key, full_key, short

_RECORD_SPARE = 4096


class SwitchNames:
    """``keys`` is the switch of each announcement, and ``renamed`` maps current names to the keys of renamed switches.

    ``record`` (chassis ID → key) is the record that was given, brought up to date. It outlives announcements.
    ``ambiguous`` are announcements of unknown switches. They have no key, and neither have those of nodes.
    """

    def __init__(
        self,
        patterns: Iterable[CablingPattern],
        generic_names: Iterable[str],
        published: Container[str],
        aliases: Mapping[str, str],
        record: Mapping[str, str],
        nodes: Container[SwitchAnnouncement] = (),
    ) -> None:
        """``nodes`` are announcements of nodes, which are no switches."""
        self._generic = frozenset(name.lower() for name in generic_names)
        self._published = published
        self._aliases = aliases
        self._patterns: dict[SwitchAnnouncement, list[CablingPattern]] = {}
        self._by_name: dict[str, Sequence[SwitchAnnouncement]] = {}
        self._name_of_chassis: dict[str, str] = {}
        self._shared_chassis: set[str] = set()
        self._default_chassis: set[str] = set()
        self._named_by_one: set[str] = set()
        self._new: set[str] = set()
        self.keys: dict[SwitchAnnouncement, str] = {}
        self.record = dict(record)
        self.renamed: dict[str, str] = {}
        self.ambiguous: set[SwitchAnnouncement] = set()
        self.anomalies: list[Anomaly] = []
        self._index(patterns, nodes)
        self._find_default_chassis()
        self._resolve()
        self._trim_record()

    def is_announced(self, name: str) -> bool:
        """Some switch uses this name at present."""
        return name in self._by_name

    def announced(self) -> dict[str, tuple[str, ...]]:
        """The system names that each switch announces, by its key."""
        names: dict[str, set[str]] = {}
        for announcement, key in self.keys.items():
            if announcement.name:
                names.setdefault(key, set()).add(announcement.name.rstrip("."))
        return {key: tuple(sorted(same)) for key, same in names.items()}

    def key_of(self, name: str) -> str:
        """The key of the switch that uses this system name: of several, the one that the name identifies."""
        whole = full_key(name)
        announcements = self._by_name.get(short(whole), ())
        keys = (
            self.keys[announcement]
            for announcement in announcements
            if full_key(announcement.name) == whole and announcement in self.keys
        )
        return min(keys, key=lambda key: (key not in (whole, short(whole)), key), default=short(whole))

    def _index(self, patterns: Iterable[CablingPattern], nodes: Container[SwitchAnnouncement]) -> None:
        users = self._patterns
        for pattern in patterns:
            for slot in pattern.shape:
                if slot.neighbor is None or slot.neighbor in nodes:
                    continue
                known = users.get(slot.neighbor)
                if known is None:
                    users[slot.neighbor] = [pattern]
                elif known[-1] is not pattern:
                    known.append(pattern)
        by_name: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in users:
            name = self._name(announcement)
            by_name.setdefault(name, []).append(announcement)
            if self._name_of_chassis.setdefault(announcement.chassis, name) != name:
                self._shared_chassis.add(announcement.chassis)
        self._by_name = {name: tuple(announcements) for name, announcements in by_name.items()}

    def _find_default_chassis(self) -> None:
        """Chassis IDs of several switches: at present under three names or more, or on one port under two.

        Expired ports count for the latter, so that a pause of LLDP does not make one switch of several. They do not
        where the names are known as those of one switch: a dead node's report has the old name of a renamed switch.
        """
        if not self._shared_chassis:
            return
        users: dict[str, dict[str, list[SwitchAnnouncement]]] = {}
        for name, announcements in self._by_name.items():
            for announcement in announcements if name[0] != "=" else ():
                if (chassis := announcement.chassis) in self._shared_chassis:
                    users.setdefault(chassis, {}).setdefault(name, []).append(announcement)
        for chassis, by_name in sorted(users.items()):
            if _has_names_of_others(chassis, by_name, self._by_name, self._patterns):
                self._default_chassis.add(chassis)
                self.record.pop(chassis, None)
                continue
            known = chassis in self.record or len({self._aliases.get(name, name) for name in by_name}) == 1
            found = [self._ports(same) for same in by_name.values()]
            ports = [fresh if known else fresh | stale for fresh, stale in found]
            if sum(bool(fresh) for fresh, _ in found) > 2 or overlap(ports):
                self._default_chassis.add(chassis)
                self.record.pop(chassis, None)
                names = sorted(by_name)
                some = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
                self._report(
                    AnomalyKind.SHARED_CHASSIS_ID,
                    names[0],
                    f"{len(names)} switches ({some}) announce one chassis ID, {shown(chassis.partition('=')[2])}, and "
                    "are identified by their names: it is a factory default; give every switch its own",
                )

    def _name(self, announcement: SwitchAnnouncement) -> str:
        """The short name, or ``=`` and the chassis ID where the name is none or a factory default."""
        whole = full_key(announcement.name)
        name = short(whole)
        if not name or whole in self._generic or name in self._generic:
            return f"={announcement.chassis}"
        return name

    def _resolve(self) -> None:
        with_name = frozenset(
            chain.from_iterable(same for name, same in self._by_name.items() if name[0] != "=")
        )
        self._named_by_one = _named_by_one(self._patterns, with_name, self._shared_chassis)
        named: list[NamedSwitch] = []
        nameless: list[SwitchAnnouncement] = []
        chosen: dict[str, str] = {}
        for name, announcements in sorted(self._by_name.items()):
            if name[0] == "=":
                nameless += announcements
            elif self._is_plain(name, announcements):
                self._assign(announcements, name)
            else:
                for distinct_name, same in self._split_by_domain(name, announcements):
                    if self._is_one_switch(distinct_name, same):
                        named.append(NamedSwitch(distinct_name, same))
                    elif known := _known_to_others(same, self._patterns, self.record):
                        named.append(NamedSwitch(distinct_name, known))
                        chosen.update(self._assign_separately(distinct_name, same, except_for=known))
                    else:
                        chosen.update(self._assign_separately(distinct_name, same))
        for switch in join_by_chassis(named, self._default_chassis):
            key = self._key(switch)
            for part in switch:
                self._assign(part.announcements, key)
                if part.name != key:
                    self.renamed[short(part.name)] = key
                for announcement in part.announcements:
                    if announcement.chassis not in self._default_chassis:
                        chosen.setdefault(announcement.chassis, key)
        self._resolve_nameless(nameless, chosen)

    def _resolve_nameless(self, nameless: Iterable[SwitchAnnouncement], chosen: Mapping[str, str]) -> None:
        """Announcements with a factory default name or none. A chassis ID that is known by a name keeps its key."""
        by_name: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in nameless:
            known = chosen.get(announcement.chassis) or self.record.get(announcement.chassis, "")
            if announcement.chassis in self._named_by_one:
                known = ""
            if known and not known.startswith((CHASSIS, ADDRESS)):
                self._assign((announcement,), known)
            else:
                by_name.setdefault(full_key(announcement.name), []).append(announcement)
        for name, announcements in sorted(by_name.items()):
            self._assign_separately(name, announcements, is_generic=True)

    def _assign_separately(
        self,
        name: str,
        announcements: Collection[SwitchAnnouncement],
        *,
        is_generic: bool = False,
        except_for: Collection[SwitchAnnouncement] = (),
    ) -> dict[str, str]:
        """Assign the keys of announcements that their name does not identify. Returns them by chassis ID. Those
        ``except_for`` keep the name."""
        keys = self._separate(announcements)
        if len(keys) < len(announcements):
            self._report_ambiguous(name, announcements)
        elif not is_generic:
            self._report_duplicate(name, announcements, len(set(keys.values())), kept=bool(except_for))
        keys = {announcement: key for announcement, key in keys.items() if announcement not in except_for}
        for announcement, key in keys.items():
            self._assign((announcement,), key)
        return {announcement.chassis: key for announcement, key in keys.items()}

    def _separate(self, announcements: Collection[SwitchAnnouncement]) -> dict[SwitchAnnouncement, str]:
        """The keys of announcements that their name does not identify: by chassis ID, or by management address.

        A chassis ID with several ports is that of a switch. Several IDs with one port each are one switch if these
        ports differ and all of them have a common address. Left out are announcements of which this is not known. One
        node whose report contradicts what all others say decides about its own announcements alone. If it is one of two
        that contradict each other, the ports of neither count, and both keep their address.
        """
        addressed = any(announcement.addresses for announcement in announcements)
        odd = _odd_ones(announcements, self._patterns, one_switch=False) if addressed else frozenset[str]()
        own = {
            announcement
            for announcement in announcements
            if len(odd) == 1 and _only_of(self._patterns[announcement], odd)
        }
        keys = self._keys_of_ids([each for each in announcements if each not in own], odd)
        keys.update((announcement, self._known_key(announcement)) for announcement in own)
        return keys

    def _keys_of_ids(
        self, announcements: Collection[SwitchAnnouncement], odd: AbstractSet[str]
    ) -> dict[SwitchAnnouncement, str]:
        """The same without the ports that these nodes report."""
        ports = {announcement.chassis: set[str]() for announcement in announcements}
        nodes: set[str] = set()
        for announcement in announcements:
            fresh, stale = self._ports((announcement,), odd)
            ports[announcement.chassis] |= fresh | stale
            for pattern in self._patterns[announcement]:
                nodes.update(pattern.nodes)
        if any(len(several) > 1 or is_guid(chassis) for chassis, several in ports.items()):
            return {announcement: chassis_key(announcement.chassis) for announcement in announcements}
        if len(ports) < 2 or len(nodes) < 2:
            return {announcement: self._known_key(announcement) for announcement in announcements}
        keys: dict[SwitchAnnouncement, str] = {}
        for address, told in by_common_address(announcements).items():
            same, differ = told, not overlap([ports[chassis] for chassis in {each.chassis for each in told}])
            if address and not differ and (odd := _odd_ones(told, self._patterns, one_switch=True)):
                own = {one for one in told if len(odd) == 1 and _only_of(self._patterns[one], odd)}
                keys.update((announcement, self._known_key(announcement)) for announcement in own)
                same, differ = [each for each in told if each not in own], True
            chassis = {announcement.chassis for announcement in same}
            if len(chassis) == 1 and address:
                keys.update((announcement, self._known_key(announcement)) for announcement in same)
            elif address and differ:
                keys.update((announcement, address_key(address)) for announcement in same)
            elif len(set[str]().union(*(ports[chassis_id] for chassis_id in chassis))) == 1:
                # One port name under several IDs: each of them is another switch.
                keys.update((announcement, chassis_key(announcement.chassis)) for announcement in same)
        return keys

    def _known_address(self, announcement: SwitchAnnouncement) -> str:
        """The key by which the switch was identified by its management address before, or an empty text."""
        recorded = self.record.get(announcement.chassis, "")
        if recorded.startswith(ADDRESS):
            return recorded
        keys = map(address_key, announcement.addresses)
        return next((key for key in keys if key in self._published), "")

    def _known_key(self, announcement: SwitchAnnouncement) -> str:
        return self._known_address(announcement) or chassis_key(announcement.chassis)

    def _report_duplicate(
        self, name: str, announcements: Iterable[SwitchAnnouncement], switches: int, *, kept: bool
    ) -> None:
        chassis = sorted({announcement.chassis for announcement in announcements})
        listed = ", ".join(shown(chassis_id.partition("=")[2]) for chassis_id in chassis[:4])
        by = "chassis ID" if switches == len(chassis) else "management address"
        by += ", except for the one that several nodes report" if kept else ""
        self._report(
            AnomalyKind.DUPLICATE_SYSTEM_NAME,
            name,
            f"{switches} switches share the name {name} (chassis {listed}) and are identified by {by}: give every "
            "switch its own name",
        )

    def _report_ambiguous(self, name: str, announcements: Collection[SwitchAnnouncement]) -> None:
        """Announcements that belong to an unknown number of switches: one anomaly for all."""
        self.ambiguous.update(announcements)
        chassis = {announcement.chassis for announcement in announcements}
        same = f"the name {shown(name)}" if name else "no name"
        self._report(
            AnomalyKind.AMBIGUOUS_SWITCH,
            name,
            f"{len(chassis)} ports announce {same}, each with a chassis ID of its own and without a common management "
            "address, so their switches are unknown: give each switch its own name, or let it announce its management "
            "address; until then these links count for no group",
        )

    def _is_plain(self, name: str, announcements: Collection[SwitchAnnouncement]) -> bool:
        """Nearly every switch: one name and one chassis ID, and neither is known with another."""
        if len(announcements) != 1 or name in self._aliases:
            return False
        (announcement,) = announcements
        chassis = announcement.chassis
        return chassis not in self._shared_chassis and self.record.get(chassis, name) == name

    def _assign(self, announcements: Iterable[SwitchAnnouncement], key: str | None) -> None:
        """Give announcements this key, or that of their chassis ID."""
        for announcement in announcements:
            chosen = chassis_key(announcement.chassis) if key is None else key
            self.keys[announcement] = chosen
            if announcement.chassis in self._default_chassis:
                continue
            if announcement.chassis not in self.record:
                self._new.add(announcement.chassis)
            self.record[announcement.chassis] = chosen

    def _split_by_domain(
        self, name: str, announcements: Iterable[SwitchAnnouncement]
    ) -> Iterator[tuple[str, tuple[SwitchAnnouncement, ...]]]:
        """By short name, unless several domains use it."""
        by_full: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in announcements:
            by_full.setdefault(full_key(announcement.name), []).append(announcement)
        if len(by_full) == 1 or len(by_full.keys() - {name}) == 1:
            yield name, tuple(announcements)
            return
        for whole in sorted(by_full):
            yield whole, tuple(by_full[whole])

    def _is_one_switch(self, name: str, announcements: Collection[SwitchAnnouncement]) -> bool:
        """One switch has this name. Adds the anomalies of the name."""

        def is_recorded_apart(announcement: SwitchAnnouncement) -> bool:
            """Its name did not identify the switch before."""
            key = chassis_key(announcement.chassis)
            recorded = self.record.get(announcement.chassis) == key or key in self._published
            return recorded or bool(self._known_address(announcement))

        by_chassis: dict[str, list[SwitchAnnouncement]] = {}
        for announcement in announcements:
            by_chassis.setdefault(announcement.chassis, []).append(announcement)
        if len(by_chassis) == 1:
            return True
        current: dict[str, set[str]] = {}
        ports: dict[str, set[str]] = {}
        for chassis, same in by_chassis.items():
            fresh, stale = self._ports(same)
            if fresh:
                current[chassis] = fresh
            ports[chassis] = fresh | stale
        several = [chassis for chassis in ports if len(ports[chassis]) > 1]
        recorded_apart = any(map(is_recorded_apart, announcements))
        two = sum(chassis in current for chassis in several) > 1 or overlap(current.values())
        # An InfiniBand switch has one GUID, never one for each port.
        two = two or sum(map(is_guid, current)) > 1
        is_known = name in self._published or any(self.record.get(chassis) == name for chassis in by_chassis)
        if not two and not recorded_apart and len(current) > 1 and (several or not is_known):
            two = _have_no_common_address(by_chassis[chassis] for chassis in current)
        if two or recorded_apart:
            odd = _odd_ones(announcements, self._patterns, one_switch=True)
            rest = {
                chassis: told
                for chassis, same in by_chassis.items()
                if (told := [each for each in same if not _only_of(self._patterns[each], odd)])
            }
            if not odd or any(map(is_recorded_apart, chain.from_iterable(rest.values()))):
                return False
            return is_known or not _have_no_common_address(
                rest[chassis] for chassis in current if chassis in rest
            )
        gone = sorted(chassis for chassis in several if chassis not in current)
        if gone and current:
            self._report(
                AnomalyKind.REPLACED_SWITCH,
                name,
                f"{name} has another chassis ID than before ({shown(gone[0].partition('=')[2])} is gone): counted as "
                "the same switch, replaced",
            )
        return True

    def _report(self, kind: AnomalyKind, name: str, message: str) -> None:
        self.anomalies.append(Anomaly(kind, "", "", name, message))

    def _ports(
        self, announcements: Iterable[SwitchAnnouncement], without: Container[str] = ()
    ) -> tuple[set[str], set[str]]:
        """The ports with a current neighbor, and those with a stale one; not those that some nodes report."""
        fresh: set[str] = set()
        stale: set[str] = set()
        for announcement in announcements:
            for pattern in self._patterns[announcement]:
                for i, slot in enumerate(pattern.shape):
                    if slot.neighbor == announcement:
                        for node, report in pattern.nodes.items():
                            if node not in without:
                                port = report.ports[i] or announcement.chassis
                                (stale if i in report.stale else fresh).add(port)
        return fresh, stale

    def _key(self, switch: list[NamedSwitch]) -> str:
        names = {part.name for part in switch}
        chassis = {announcement.chassis for part in switch for announcement in part.announcements}
        chassis -= self._default_chassis | self._named_by_one
        if not chassis:
            return min(names)  # Neither the record nor an alias is about this name: a chassis ID made them.
        recorded = {self.record.get(chassis_id, "") for chassis_id in chassis}
        known = {key for key in recorded if key and not key.startswith((CHASSIS, ADDRESS))}
        # The record is newer than the aliases on published objects, which a write may not have reached yet.
        known = known or {self._aliases[name] for name in names if name in self._aliases}
        kept = sorted(key for key in known if key in names or not self._has_moved(key, chassis))
        return (kept or sorted(name for name in names if name in self._published) or sorted(names))[0]

    def _has_moved(self, name: str, chassis: Collection[str]) -> bool:
        """A switch uses this name now that was not known by it before."""
        return any(
            other.chassis not in chassis
            and (other.chassis in self._new or self.record.get(other.chassis) != name)
            for other in self._by_name.get(short(name), ())
        )

    def _trim_record(self) -> None:
        """Drop chassis IDs that are not announced, once they are most of the record."""
        announced = self._name_of_chassis
        if len(self.record) > 2 * len(announced) + _RECORD_SPARE:
            self.record = {chassis: key for chassis, key in self.record.items() if chassis in announced}


class NamedSwitch(NamedTuple):
    """Announcements under one name that come from one switch."""

    name: str
    announcements: tuple[SwitchAnnouncement, ...]


def is_guid(chassis: str) -> bool:
    return chassis.startswith(f"{SWITCH_GUID}=")


def overlap(sets: Collection[set[str]]) -> bool:
    """Some value is in several sets."""
    return sum(map(len, sets)) > len(set[str]().union(*sets))


def _have_no_common_address(chassis: Iterable[Iterable[SwitchAnnouncement]]) -> bool:
    """Of several chassis IDs each has a management address, and no address is that of all."""
    addresses = [{address for each in same for address in each.addresses} for same in chassis]
    return len(addresses) > 1 and all(addresses) and not set.intersection(*addresses)


def _only_of(patterns: Iterable[CablingPattern], nodes: AbstractSet[str]) -> bool:
    """No other node has these."""
    return all(pattern.nodes.keys() <= nodes for pattern in patterns)


def _nodes_of_ports(
    announcements: Iterable[SwitchAnnouncement], users: Mapping[SwitchAnnouncement, Iterable[CablingPattern]]
) -> dict[str, set[str]]:
    """The nodes that report each port, expired or not."""
    found: dict[str, set[str]] = {}
    for announcement in announcements:
        for pattern in users[announcement]:
            for i, slot in enumerate(pattern.shape):
                if slot.neighbor == announcement:
                    for node, report in pattern.nodes.items():
                        found.setdefault(report.ports[i] or announcement.chassis, set()).add(node)
    return found


def _named_by_one(
    users: Mapping[SwitchAnnouncement, Iterable[CablingPattern]],
    named: Container[SwitchAnnouncement],
    shared: Container[str],
) -> set[str]:
    """The shared chassis IDs that have a name in the report of one node, and none in that of another one."""
    of_name: dict[str, set[str]] = {}
    of_none: dict[str, set[str]] = {}
    for announcement, patterns in users.items():
        if announcement.chassis in shared:
            found = of_name if announcement in named else of_none
            nodes = found.setdefault(announcement.chassis, set())
            nodes.update(chain.from_iterable(pattern.nodes for pattern in patterns))
    return {
        chassis
        for chassis, nodes in of_name.items()
        if len(nodes) == 1 and of_none.get(chassis, set()) - nodes
    }


def _odd_ones(
    announcements: Iterable[SwitchAnnouncement],
    users: Mapping[SwitchAnnouncement, Collection[CablingPattern]],
    *,
    one_switch: bool,
) -> frozenset[str]:
    """The nodes without any one of whose reports these chassis IDs have one port each, as with an ID for each port; of
    ``one_switch``, no two have the same. Two, where one report contradicts another one: nothing says which one is odd.

    None, if fewer than three IDs, or two nodes, are left without one of them. A switch with one ID has several ports
    for two nodes already.
    """
    by_chassis: dict[str, list[SwitchAnnouncement]] = {}
    for announcement in announcements:
        by_chassis.setdefault(announcement.chassis, []).append(announcement)
    suspects: set[str] | None = None
    ids_of_port: dict[str, dict[str, set[str]]] = {}
    for chassis, same in by_chassis.items():
        if is_guid(chassis):
            return frozenset()
        ports = _nodes_of_ports(same, users)
        if len(ports) > 1:
            suspects = _who_alone_tells(ports, suspects)
            if not suspects:
                return frozenset()
        for port, nodes in ports.items() if one_switch else ():
            ids_of_port.setdefault(port, {})[chassis] = nodes
    for ids in ids_of_port.values():
        if len(ids) > 1:
            suspects = _who_alone_tells(ids, suspects)
    found: set[str] = set()
    for node in suspects or ():
        left = [same for same in by_chassis.values() if not all(_only_of(users[one], {node}) for one in same)]
        patterns = chain.from_iterable(users[one] for one in chain.from_iterable(left))
        if len(left) > 2 and len({*chain.from_iterable(pattern.nodes for pattern in patterns)} - {node}) > 1:
            found.add(node)
    return frozenset(found)


def _known_to_others(
    announcements: Iterable[SwitchAnnouncement],
    users: Mapping[SwitchAnnouncement, Iterable[CablingPattern]],
    record: Mapping[str, str],
) -> tuple[SwitchAnnouncement, ...]:
    """The announcements of the one chassis ID that two nodes have under a name, if one further node alone reports the
    other IDs: the switch keeps its name, or that of before it was renamed. None, where it was known by its ID."""
    nodes: dict[str, set[str]] = {}
    for one in announcements:
        nodes.setdefault(one.chassis, set()).update(chain.from_iterable(p.nodes for p in users[one]))
    for chassis, told in nodes.items():
        others = set[str]().union(*(nodes[other] for other in nodes if other != chassis))
        known_by_id = record.get(chassis, "").startswith((CHASSIS, ADDRESS))
        if len(others) == 1 and len(told - others) > 1 and not known_by_id:
            return tuple(one for one in announcements if one.chassis == chassis)
    return ()


def _has_names_of_others(
    chassis: str,
    by_name: Mapping[str, Collection[SwitchAnnouncement]],
    named: Mapping[str, Collection[SwitchAnnouncement]],
    users: Mapping[SwitchAnnouncement, Collection[CablingPattern]],
) -> bool:
    """One node alone reports each name of an ID, and others have these names with other IDs: it joins nothing."""
    for name, announcements in by_name.items():
        node, *others = {*chain.from_iterable(p.nodes for one in announcements for p in users[one])}
        if others or all(each.chassis == chassis or _only_of(users[each], {node}) for each in named[name]):
            return False
    return True


def _who_alone_tells(told: Mapping[str, set[str]], suspects: set[str] | None) -> set[str]:
    """The nodes without whose report there are not several of these; of the suspects, if there are any yet."""
    alone = Counter(chain.from_iterable(nodes for nodes in told.values() if len(nodes) == 1))
    found = {node for node, count in alone.items() if len(told) - count < 2}
    return found if suspects is None else found & suspects


def by_common_address(
    announcements: Collection[SwitchAnnouncement],
) -> dict[str, list[SwitchAnnouncement]]:
    """Announcements by that one of their management addresses that most of them have; those without one at an empty
    text. One with the addresses of two switches joins them not."""
    count = Counter(chain.from_iterable({*announcement.addresses} for announcement in announcements))
    found: dict[str, list[SwitchAnnouncement]] = {}
    for announcement in announcements:
        address = min(announcement.addresses, key=lambda one: (-count[one], one), default="")
        found.setdefault(address, []).append(announcement)
    return found


def join_by_chassis(named: list[NamedSwitch], except_for: Container[str] = ()) -> Iterator[list[NamedSwitch]]:
    """Names that share a chassis ID, together. The IDs ``except_for`` join nothing."""

    def identities(part: NamedSwitch) -> list[str]:
        chassis = (announcement.chassis for announcement in part.announcements)
        return [f"={part.name}" if one in except_for else one for one in chassis]

    home: dict[str, list[NamedSwitch]] = {}
    for switch in named:
        union = [switch]
        for identity in identities(switch):
            other = home.get(identity)
            if other is not None and other is not union:
                union += other
                for member in other:
                    home.update(dict.fromkeys(identities(member), union))
            home[identity] = union
    done: set[int] = set()
    for union in home.values():
        if id(union) not in done:
            done.add(id(union))
            yield sorted(union, key=lambda part: part.name)
