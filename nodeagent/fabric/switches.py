"""Which announcements are one switch, and what it is called here.

The law of this file:

* A switch is its system name. A name that switches are born with is none; then, and where one name is used by
  several switches, it is the chassis ID.
* One name with several chassis IDs is one switch with an ID for each port (NX-OS), or one that was replaced,
  or two that share a name. Only what is heard at the same time tells: two IDs with several ports each, or one
  port under two IDs, are two switches. Where the reports do not tell, what was known before stands.
* One chassis ID under a new name is a switch renamed: it keeps the key under which it is recorded. When the
  old name has gone to another chassis, names are believed again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from nodeagent.fabric.names import chassis_key, full, short
from nodeagent.fabric.outcome import Kind
from nodeagent.fabric.reports import Announcement, shown
from nodeagent.fabric.wiring import Wiring


class Oddity(NamedTuple):
    """What is odd about a name: an anomaly of switches."""

    kind: Kind
    switch: str
    message: str


class _One(NamedTuple):
    """Announcements under one name that are one switch."""

    name: str
    heard: tuple[Announcement, ...]


class Directory:
    """The switches that are announced. ``record`` (chassis ID → key) outlives what is announced at the moment,
    ``aliases`` (name → key) are those that published objects remember.
    """

    def __init__(self, generic_names: Iterable[str], published: Container[str]) -> None:
        self._generic = frozenset(name.lower() for name in generic_names)
        self._published = published
        self._wirings: dict[Announcement, dict[Wiring, None]] = {}
        self._buckets: dict[str, dict[Announcement, None]] = {}
        self._chassis: dict[str, set[str]] = {}
        self._dirty: set[str] = set()
        self._followers: dict[str, set[str]] = {}
        self._bucket_of: dict[str, str] = {}
        self._new: set[str] = set()
        self.keys: dict[Announcement, str] = {}
        self.record: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.odd: dict[str, Oddity] = {}

    def rewind(self) -> None:
        """Forget which switch is which; who announces what, and what is recorded, is not forgotten."""
        self._dirty = set(self._buckets)
        self._followers = {}
        self.keys = {}
        self.renamed = {}
        self.odd = {}

    def add(self, heard: Announcement, wiring: Wiring) -> None:
        wirings = self._wirings.get(heard)
        if wirings is None:
            wirings = self._wirings[heard] = {}
            bucket = self._bucket(heard)
            self._buckets.setdefault(bucket, {})[heard] = None
            self._chassis.setdefault(heard.chassis, set()).add(bucket)
            self._dirty.add(bucket)
        wirings[wiring] = None

    def drop(self, heard: Announcement, wiring: Wiring) -> None:
        wirings = self._wirings[heard]
        wirings.pop(wiring, None)
        if wirings:
            return
        del self._wirings[heard]
        self.keys.pop(heard, None)
        bucket = self._bucket(heard)
        members = self._buckets[bucket]
        del members[heard]
        self._dirty.add(bucket)
        if not any(other.chassis == heard.chassis for other in members):
            buckets = self._chassis[heard.chassis]
            self._dirty |= buckets
            buckets.discard(bucket)
            if not buckets:
                del self._chassis[heard.chassis]
        if not members:
            del self._buckets[bucket]

    def touch(self, heard: Announcement) -> None:
        """Ports or freshness have changed; that matters where one name has several announcements."""
        bucket = self._bucket(heard)
        if len(self._buckets[bucket]) > 1:
            self._dirty.add(bucket)

    def remember(self, aliases: dict[str, str]) -> None:
        """The aliases that published objects carry."""
        for name in aliases.keys() ^ self.aliases.keys():
            self._dirty.add(short(name))
        self.aliases = aliases

    def announced(self, name: str) -> bool:
        """Some switch calls itself so at present."""
        return name in self._buckets

    def key_of(self, name: str) -> str:
        """What a switch is called here that calls itself so."""
        whole = full(name)
        same = [heard for heard in self._buckets.get(short(whole), ()) if full(heard.name) == whole]
        return min((self.keys[heard] for heard in same), default=short(whole))

    def wirings(self, heard: Announcement) -> Iterable[Wiring]:
        return self._wirings[heard]

    def resolve(self) -> list[Announcement]:
        """The announcements that belong to another switch than they did."""
        changed: list[Announcement] = []
        self._new = set()
        for bucket in sorted(self._dirty):
            if bucket in self._dirty and not self._lone(bucket, changed):
                todo = self._closure(bucket)
                self._dirty -= todo
                self._settle(todo, changed)
        if len(self.record) > 2 * len(self._chassis) + 4096:
            self.record = {one: key for one, key in self.record.items() if one in self._chassis}
        return changed

    def _lone(self, bucket: str, changed: list[Announcement]) -> bool:
        """Nearly every switch: one name with one chassis ID, both for ever."""
        members = self._buckets.get(bucket)
        if members is None or len(members) != 1 or bucket[0] == "=":
            return False
        (heard,) = members
        known = self.record.get(heard.chassis, bucket)
        if (
            known != bucket
            or len(self._chassis[heard.chassis]) > 1
            or any(short(name) == bucket for name in self.odd)
            or bucket in self.renamed
            or bucket in self._followers
            or bucket in self.aliases
        ):
            return False
        self._note(heard.chassis, bucket)
        if self.keys.get(heard) != bucket:
            self.keys[heard] = bucket
            changed.append(heard)
        self._dirty.discard(bucket)
        return True

    def _closure(self, first: str) -> set[str]:
        """All the names that must be judged together: they share a chassis, or one is an alias of the other."""
        found, todo = {first}, [first]
        while todo:
            bucket = todo.pop()
            near: set[str] = set(self._followers.get(bucket, ()))
            for heard in self._buckets.get(bucket, ()):
                near |= self._chassis[heard.chassis]
            todo += near - found
            found |= near
        return found

    def _settle(self, buckets: set[str], changed: list[Announcement]) -> None:
        ones: list[_One] = []
        nameless: list[Announcement] = []
        chosen: dict[str, str] = {}
        for bucket in sorted(buckets):
            for name in [name for name in self.odd if name == bucket or short(name) == bucket]:
                del self.odd[name]
            self.renamed.pop(bucket, None)
            members = self._buckets.get(bucket)
            if members is None:
                self._followers.pop(bucket, None)
            elif bucket[0] == "=":
                nameless += members
            else:
                for name, said in self._names(bucket, members):
                    if self._is_one(name, said):
                        ones.append(_One(name, said))
                    else:
                        self._assign(said, None, changed)
                        chosen.update((heard.chassis, chassis_key(heard.chassis)) for heard in said)
        for union in _unions(ones):
            key = self._key(union)
            for one in union:
                self._assign(one.heard, key, changed)
                if one.name != key:
                    self.renamed[short(one.name)] = key
                    self._followers.setdefault(short(key), set()).add(short(one.name))
                for heard in one.heard:
                    chosen.setdefault(heard.chassis, key)
        for heard in nameless:
            known = chosen.get(heard.chassis) or self.record.get(heard.chassis)
            self._assign((heard,), known or chassis_key(heard.chassis), changed)

    def _assign(self, heard: Iterable[Announcement], key: str | None, changed: list[Announcement]) -> None:
        for one in heard:
            now = chassis_key(one.chassis) if key is None else key
            self._note(one.chassis, now)
            if self.keys.get(one) != now:
                self.keys[one] = now
                changed.append(one)

    def _note(self, chassis: str, key: str) -> None:
        if chassis not in self.record:
            self._new.add(chassis)
        self.record[chassis] = key

    def _names(
        self, bucket: str, members: dict[Announcement, None]
    ) -> Iterator[tuple[str, tuple[Announcement, ...]]]:
        """The short name, unless several domains have it."""
        fulls: dict[str, list[Announcement]] = {}
        for heard in members:
            fulls.setdefault(full(heard.name), []).append(heard)
        if len(fulls) == 1 or len(fulls.keys() - {bucket}) == 1:
            yield bucket, tuple(members)
            return
        for name in sorted(fulls):
            yield name, tuple(fulls[name])

    def _is_one(self, name: str, heard: tuple[Announcement, ...]) -> bool:
        """One switch by this name; what is odd about it is noted."""
        by_chassis: dict[str, list[Announcement]] = {}
        for one in heard:
            by_chassis.setdefault(one.chassis, []).append(one)
        if len(by_chassis) == 1:
            return True
        fresh: dict[str, set[str]] = {}
        ports: dict[str, set[str]] = {}
        for chassis, said in by_chassis.items():
            live, old = self._ports(said)
            if live:
                fresh[chassis] = live
            ports[chassis] = live | old
        several = [chassis for chassis in ports if len(ports[chassis]) > 1]
        apart = any(self.record.get(one) == chassis_key(one) for one in by_chassis) or any(
            chassis_key(one) in self._published for one in by_chassis
        )
        twice = sum(map(len, fresh.values())) > len(set().union(*fresh.values())) if fresh else False
        two = sum(chassis in fresh for chassis in several) > 1 or twice
        if not two and not apart and len(fresh) > 1 and several:
            addresses = [{a for one in by_chassis[c] for a in one.addresses} for c in fresh]
            two = all(addresses) and not set.intersection(*addresses)
        listed = ", ".join(shown(chassis.partition("=")[2]) for chassis in sorted(by_chassis)[:4])
        if two or apart:
            message = (
                f"{len(by_chassis)} switches are called {name} (chassis {listed}); they are told apart by chassis ID: "
                "give each a name of its own"
            )
            self.odd[name] = Oddity(Kind.DUPLICATE_SYSTEM_NAME, name, message)
            return False
        gone = sorted(chassis for chassis in several if chassis not in fresh)
        if gone and fresh:
            message = (
                f"{name} speaks with another chassis ID than before ({shown(gone[0].partition('=')[2])} has gone): "
                "taken for the same switch, replaced"
            )
            self.odd[name] = Oddity(Kind.REPLACED_SWITCH, name, message)
        return True

    def _ports(self, said: Iterable[Announcement]) -> tuple[set[str], set[str]]:
        """The ports that are heard at present, and those that were."""
        fresh: set[str] = set()
        stale: set[str] = set()
        for heard in said:
            for wiring in self._wirings[heard]:
                for i, slot in enumerate(wiring.shape):
                    if slot.heard == heard:
                        for report in wiring.nodes.values():
                            (stale if report.stale >> i & 1 else fresh).add(report.ports[i])
        return fresh, stale

    def _key(self, union: list[_One]) -> str:
        names = {one.name for one in union}
        chassis = {heard.chassis for one in union for heard in one.heard}
        recorded = {self.record.get(one, "") for one in chassis}
        known = {key for key in recorded if key and not key.startswith("chassis:")}
        # The record is newer than the aliases on published objects, which a write may not have reached yet.
        known = known or {self.aliases[name] for name in names if name in self.aliases}
        kept = sorted(key for key in known if key in names or not self._taken(key, chassis))
        return (kept or sorted(name for name in names if name in self._published) or sorted(names))[0]

    def _taken(self, key: str, chassis: set[str]) -> bool:
        """The name is used by a switch today that was not known by it before."""
        return any(
            heard.chassis not in chassis
            and (heard.chassis in self._new or self.record.get(heard.chassis) != key)
            for heard in self._buckets.get(short(key), ())
        )

    def _bucket(self, heard: Announcement) -> str:
        known = self._bucket_of.get(heard.name)
        if known is None:
            whole = full(heard.name)
            known = short(whole)
            if whole in self._generic or known in self._generic:
                known = ""
            if len(self._bucket_of) > 2 * len(self._buckets) + 4096:
                self._bucket_of.clear()
            self._bucket_of[heard.name] = known
        return known or f"={heard.chassis}"


def _unions(ones: list[_One]) -> Iterator[list[_One]]:
    """Those that share a chassis, together."""
    if len(ones) == 1:
        yield ones
        return
    home: dict[str, list[_One]] = {}
    for one in ones:
        union = [one]
        for heard in one.heard:
            other = home.get(heard.chassis)
            if other is not None and other is not union:
                union += other
                for member in other:
                    for known in member.heard:
                        home[known.chassis] = union
            home[heard.chassis] = union
    seen: set[int] = set()
    for union in home.values():
        if id(union) not in seen:
            seen.add(id(union))
            yield sorted(union, key=lambda one: one.name)
