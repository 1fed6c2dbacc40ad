"""LLDP announcements that belong together: by chassis ID, and by management address."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from nodeagent.fabric.reports import SWITCH_GUID, SwitchAnnouncement


class NamedSwitch(NamedTuple):
    """Announcements under one name that come from one switch."""

    name: str
    announcements: tuple[SwitchAnnouncement, ...]


def is_guid(chassis: str) -> bool:
    return chassis.startswith(f"{SWITCH_GUID}=")


def overlap(sets: Collection[set[str]]) -> bool:
    """Some value is in several sets."""
    return sum(map(len, sets)) > len(set[str]().union(*sets))


def join_by_address(announcements: Iterable[SwitchAnnouncement]) -> list[list[SwitchAnnouncement]]:
    """Announcements with a common management address together; those without an address are one list."""
    by_address: dict[str, list[SwitchAnnouncement]] = {}
    for announcement in announcements:
        same = [announcement]
        for address in announcement.addresses or ("",):
            known = by_address.get(address)
            if known is not None and known is not same:
                known += same
                for member in same:
                    by_address.update(dict.fromkeys(member.addresses or ("",), known))
                same = known
            by_address[address] = same
    return list({id(same): same for same in by_address.values()}.values())


def join_by_chassis(named: list[NamedSwitch]) -> Iterator[list[NamedSwitch]]:
    """Names that share a chassis ID, together."""
    home: dict[str, list[NamedSwitch]] = {}
    for switch in named:
        union = [switch]
        for announcement in switch.announcements:
            other = home.get(announcement.chassis)
            if other is not None and other is not union:
                union += other
                for member in other:
                    for known in member.announcements:
                        home[known.chassis] = union
            home[announcement.chassis] = union
    done: set[int] = set()
    for union in home.values():
        if id(union) not in done:
            done.add(id(union))
            yield sorted(union, key=lambda part: part.name)
