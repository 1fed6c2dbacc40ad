"""The stored objects as encoded bytes, their changes by resource version, and the watchers.

One counter for all resources, like etcd's revision. All pages of a list come from the moment of the first page; when
that snapshot is dropped, the continue token has expired.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

Json = dict[str, Any]

HISTORY_MAX = 10_000
SNAPSHOTS_MAX = 32
BACKLOG_MAX = 20_000
"""A watcher that is further behind is disconnected, as by the real API server."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class StoreChange:
    version: int
    type: str
    key: str
    body: bytes
    before: bytes | None


@dataclass(eq=False, slots=True)
class StoreWatcher:
    """``None`` in the queue ends the watch."""

    queue: asyncio.Queue[StoreChange | None] = field(default_factory=asyncio.Queue)


def key_of(namespace: str | None, name: str) -> str:
    return f"{namespace}/{name}" if namespace is not None else name


class StoredTable:
    """The objects of one resource."""

    def __init__(self, began: int) -> None:
        self.keys: list[str] = []
        self.bodies: dict[str, bytes] = {}
        self.history: deque[StoreChange] = deque()
        self.since = began
        """The history contains all changes after this version."""
        self.watchers: set[StoreWatcher] = set()

    def within(self, namespace: str | None) -> tuple[int, int]:
        """The first and the last index of a namespace's keys."""
        if namespace is None:
            return 0, len(self.keys)
        return bisect_left(self.keys, f"{namespace}/"), bisect_left(self.keys, f"{namespace}0")

    def after(self, version: int) -> Iterator[StoreChange]:
        return (change for change in self.history if change.version > version)


class Store:
    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.version = 1
        self._tables: dict[tuple[str, str], StoredTable] = {}
        self._snapshots: OrderedDict[tuple[str, str, str | None, int], tuple[list[str], list[bytes]]] = (
            OrderedDict()
        )
        self._changed = changed
        self._dependents: dict[str, set[tuple[str, str, str]]] = {}

    def table(self, group: str, plural: str) -> StoredTable:
        return self._tables.setdefault((group, plural), StoredTable(self.version))

    def get(self, group: str, plural: str, key: str) -> Json | None:
        body = self.table(group, plural).bodies.get(key)
        if body is None:
            return None
        obj: Json = decode(body)
        return obj

    def write(self, group: str, plural: str, key: str, obj: Json) -> Json:
        """Store the object and set its new resource version."""
        table = self.table(group, plural)
        before = table.bodies.get(key)
        self.version += 1
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self.version)
        head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta}
        body = encode(head | obj)
        if before is None:
            insort(table.keys, key)
        table.bodies[key] = body
        for owner in meta.get("ownerReferences") or ():
            self._dependents.setdefault(owner.get("uid", ""), set()).add((group, plural, key))
        self._publish(
            table, StoreChange(self.version, "ADDED" if before is None else "MODIFIED", key, body, before)
        )
        return obj

    def remove(self, group: str, plural: str, key: str) -> Json:
        """Remove the object, and the objects that only it owned."""
        table = self.table(group, plural)
        before = table.bodies.pop(key)
        del table.keys[bisect_left(table.keys, key)]
        self.version += 1
        obj: Json = decode(before)
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._publish(table, StoreChange(self.version, "DELETED", key, encode(obj), before))
        uid = obj["metadata"].get("uid", "")
        for owned in sorted(self._dependents.pop(uid, ())):
            self._orphan(owned, uid)
        return obj

    def _orphan(self, owned: tuple[str, str, str], uid: str) -> None:
        """Remove an object whose last owner is gone."""
        obj = self.get(*owned)
        if obj is None:
            return
        owners = [owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("uid") != uid]
        if not owners and len(owners) != len(obj["metadata"].get("ownerReferences") or ()):
            self.remove(*owned)

    def _publish(self, table: StoredTable, change: StoreChange) -> None:
        table.history.append(change)
        while len(table.history) > HISTORY_MAX:
            table.since = table.history.popleft().version
        for watcher in list(table.watchers):
            if watcher.queue.qsize() > BACKLOG_MAX:
                table.watchers.discard(watcher)
                watcher.queue.put_nowait(None)
            else:
                watcher.queue.put_nowait(change)
        self._changed()

    # --- lists ----------------------------------------------------------------------------------------

    def items(self, group: str, plural: str, namespace: str | None) -> tuple[list[str], list[bytes]]:
        """The present keys and bodies."""
        table = self.table(group, plural)
        first, last = table.within(namespace)
        keys = table.keys[first:last]
        return keys, [table.bodies[key] for key in keys]

    def remember(
        self, group: str, plural: str, namespace: str | None, items: tuple[list[str], list[bytes]]
    ) -> int:
        """Keep a list for its next pages. Return its version."""
        self._snapshots[group, plural, namespace, self.version] = items
        while len(self._snapshots) > SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)
        return self.version

    def recall(
        self, group: str, plural: str, namespace: str | None, version: int
    ) -> tuple[list[str], list[bytes]] | None:
        return self._snapshots.get((group, plural, namespace, version))

    def expire(self) -> None:
        """Compact: forget every version except the present one."""
        self._snapshots.clear()
        for table in self._tables.values():
            table.history.clear()
            table.since = self.version

    def end_watches(self, plural: str | None = None) -> None:
        for (_, name), table in self._tables.items():
            if plural in (None, name):
                for watcher in table.watchers:
                    watcher.queue.put_nowait(None)
                table.watchers.clear()
