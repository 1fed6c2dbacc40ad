"""Events: what has happened to this node's devices, told on the Node and on the pods that hold them.

The law of this file:

* What should be told is a level: the faults that stand. The ledger compares it with what was told, so an API
  server that is away loses nothing but time: a fault that came and went meanwhile is told as well.
* A fault is one Event, however often it comes: its name is made from what it says of whom, so that a restart of
  the agent tells nothing twice, and a return counts the Event up, one that an earlier agent began too.
* A device of which nothing is known at present has neither a new fault nor an end of its old ones.
* What is only a warning is told once an hour.
* The ledger is bounded, and so is the rate.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from nodeagent.cluster.affected_devices import FAILED, QUIET, Hit, Offered, Subject, hits, subjects
from nodeagent.cluster.retry import Bucket, Trouble, refused
from nodeagent.inventory import Inventory
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import EVENTS, PODS
from nodeagent.model import Reason, Snapshot, State

log = logging.getLogger(__name__)

ENTRIES_MAX = 512
HOURLY_S = 3600.0
"""An Event lives for an hour too, by the API server's default."""
BURST, PER_S = 25, 0.1
MESSAGE_MAX = 1024
"""What the API server takes."""
COMPONENT = "nodeagent"
RECOVERED = "Recovered"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom an Event is about: ``namespace`` is empty for the Node."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that is to be told as long as it stands. ``device`` and ``reason`` name it."""

    target: Target
    device: str
    reason: str
    message: str
    warning: bool = True
    hourly: bool = False

    @property
    def key(self) -> tuple[Target, str, str]:
        return self.target, self.device, self.reason

    @property
    def event_name(self) -> str:
        said = "\0".join(
            (self.target.kind, self.target.namespace, self.target.name, self.device, self.reason)
        )
        return f"{self.target.name[:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def notes(snapshot: Snapshot, node: str, offered: Offered) -> tuple[Note, ...]:
    """What stands at this moment."""
    on_node = Target("Node", "", node)
    told = [note for one in subjects(snapshot) for note in _notes(on_node, one)]
    told += [note for hit in hits(snapshot, offered) for note in _pod_notes(hit)]
    return tuple({note.key: note for note in told}.values())


def doubted(snapshot: Snapshot) -> Callable[[str], bool]:
    """Whether nothing can be said of a device at this moment."""
    states = {one.key: one.health.state for one in subjects(snapshot)}

    def doubt(device: str) -> bool:
        state = states.get(device)
        return state is State.UNKNOWN or (state is None and bool(snapshot.silent))

    return doubt


def _notes(target: Target, subject: Subject) -> Iterable[Note]:
    health = subject.health
    for reason in health.reasons:
        if health.state in (State.UNKNOWN, State.UNUSED):
            continue
        warned = reason.warning or health.state is State.HEALTHY
        message = f"{subject.title}: {reason.detail}"
        yield Note(target, subject.key, _word(reason, subject), message, not warned, hourly=warned)
    if not health.reasons and health.state not in QUIET:
        message = f"{subject.title} is {health.state.value}"
        yield Note(target, subject.key, _word(Reason(health.state.value, ""), subject), message)


def _pod_notes(hit: Hit) -> Iterable[Note]:
    target = Target("Pod", hit.namespace, hit.pod)
    first, more = hit.device_ids[0], len(hit.device_ids) - 1
    held = f"{first} and {more} more" if more else first
    reasons = [reason for reason in hit.subject.health.reasons if not reason.warning]
    why = "; ".join(reason.detail for reason in reasons) or hit.subject.health.state.value
    failed = hit.subject.health.state in FAILED
    what = "has failed" if failed else f"is {hit.subject.health.state.value}"
    message = f"{hit.subject.title}, held as {hit.resource} ({held}), {what}: {why}"
    yield Note(target, hit.subject.key, "DeviceFailed" if failed else "DeviceUnhealthy", message)


def _word(reason: Reason, subject: Subject) -> str:
    """``carrier_down`` of a link is ``LinkCarrierDown``."""
    said = "".join(part.capitalize() for part in reason.key.replace("-", "_").split("_"))
    return f"{'Link' if subject.link else 'Gpu'}{said}"


@dataclass(slots=True)
class Entry:
    """A note, and how often it began (``count``) and was told of (``told``). ``met``: it stood at the first look,
    so that an earlier life of this agent may have told it. ``before``: how often that one counted."""

    note: Note
    first: float
    last: float
    active: bool = True
    count: int = 1
    told: int = 0
    told_at: float = float("-inf")
    met: bool = False
    before: int = 0

    @property
    def total(self) -> int:
        return self.before + self.count


@dataclass(slots=True)
class Ledger:
    """What stands, stood and was told. ``now`` is any clock that goes on; ``wall`` is for the Events."""

    entries: dict[tuple[Target, str, str], Entry] = field(default_factory=dict)
    looked: bool = False

    def observe(
        self,
        standing: Iterable[Note],
        now: float,
        wall: float,
        doubt: Callable[[str], bool] = lambda _device: False,
    ) -> None:
        """What stands now; what is not among it has ended, unless there is ``doubt`` about its device."""
        current = {note.key: note for note in standing}
        current |= {
            key: entry.note
            for key, entry in self.entries.items()
            if key not in current and entry.active and doubt(entry.note.device)
        }
        current |= {note.key: note for note in self._recovered(current, doubt)}
        for key, note in current.items():
            entry = self.entries.get(key)
            if entry is None:
                self.entries[key] = Entry(note, wall, wall, met=not self.looked)
                continue
            if not entry.active:
                entry.active, entry.last = True, wall
                entry.count += 1
            entry.note = note
        for key, entry in self.entries.items():
            if key not in current:
                entry.active = False
        self.looked = True
        self._prune(now)

    def due(self, now: float) -> list[Entry]:
        """What is to be told, the oldest first."""
        return sorted(
            (
                entry
                for entry in self.entries.values()
                if entry.count > entry.told and (not entry.note.hourly or now - entry.told_at >= HOURLY_S)
            ),
            key=lambda entry: entry.last,
        )

    def _recovered(
        self, current: dict[tuple[Target, str, str], Note], doubt: Callable[[str], bool]
    ) -> Iterable[Note]:
        """A device of which a Warning was told and of which none stands: that is news as well."""
        standing = {(note.target, note.device) for note in current.values() if note.warning}
        for entry in self.entries.values():
            note = entry.note
            if doubt(note.device):
                continue
            if note.warning and entry.told and (note.target, note.device) not in standing:
                title = note.message.partition(":")[0].partition(", held as ")[0]
                yield Note(
                    note.target, note.device, RECOVERED, f"{title}: its faults have ended", warning=False
                )

    def _prune(self, now: float) -> None:
        done = [
            key
            for key, entry in self.entries.items()
            if not entry.active and entry.told and now - entry.told_at > HOURLY_S
        ]
        for key in done:
            del self.entries[key]
        if len(self.entries) > ENTRIES_MAX:
            order = sorted(self.entries, key=lambda key: (self.entries[key].active, self.entries[key].last))
            for key in order[: len(self.entries) - ENTRIES_MAX]:
                del self.entries[key]


class Events:
    """Tells them. ``offered`` says which devices each resource has now."""

    def __init__(
        self, client: Client, inventory: Inventory, node: str, offered: Callable[[Snapshot], Offered]
    ) -> None:
        self.ledger = Ledger()
        self._client, self._inventory, self._node, self._offered = client, inventory, node, offered
        self._bucket = Bucket(BURST, PER_S)
        self._trouble = Trouble("Events do not reach the API server")
        self._uids: dict[Target, str] = {}
        self._may_read_pods = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            self.ledger.observe(
                notes(snapshot, self._node, self._offered(snapshot)),
                time.monotonic(),
                time.time(),
                doubted(snapshot),
            )
            wait = await self._deliver()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._inventory.changed(snapshot.revision)

    async def _deliver(self) -> float:
        """Tell what is due. How long nothing is to be done."""
        if (wait := self._trouble.wait(time.monotonic())) > 0:
            return wait
        for entry in self.ledger.due(time.monotonic()):
            if (wait := self._bucket.wait(time.monotonic())) > 0:
                return wait
            self._bucket.take(time.monotonic())
            count, now = entry.count, time.monotonic()
            try:
                await self._tell(entry)
            except ApiError as error:
                if not refused(error):
                    return self._trouble.has(error, time.monotonic())
                log.warning("An Event is refused, and not told. reason=%r", str(error))
            else:
                self._trouble.over()
            entry.told, entry.told_at = count, now
        return HOURLY_S / 4  # an hourly one may come due without anything happening

    async def _tell(self, entry: Entry) -> None:
        note = entry.note
        namespace = note.target.namespace or "default"
        body = self._body(entry, await self._uid(note.target))
        if entry.told:
            try:
                await self._client.patch(EVENTS, note.event_name, _more(body), namespace=namespace)
            except ApiError as error:
                if not error.missing:
                    raise  # else it has outlived its hour
            else:
                return
        try:
            await self._client.create(EVENTS, body, namespace=namespace)
        except ApiError as error:
            if error.conflict:
                await self._go_on(entry, body, namespace)
            elif not (
                error.missing and note.target.kind == "Pod"
            ):  # its namespace is gone, and the pod with it
                raise

    async def _go_on(self, entry: Entry, body: dict[str, Any], namespace: str) -> None:
        """An earlier life of this agent has told of it: what stood at the first look is what it told of, and what
        began since is a return. An empty patch reads an Event without the right to."""
        was = await self._client.patch(EVENTS, entry.note.event_name, {}, namespace=namespace)
        counted = was.get("count")
        counted = counted if isinstance(counted, int) else 1
        entry.before = counted - 1 if entry.met else counted
        if entry.total > counted:
            more = _more(body | {"count": entry.total})
            await self._client.patch(EVENTS, entry.note.event_name, more, namespace=namespace)

    def _body(self, entry: Entry, uid: str | None) -> dict[str, Any]:
        note = entry.note
        namespace = note.target.namespace or "default"
        about = {"kind": note.target.kind, "apiVersion": "v1", "name": note.target.name}
        about |= {"namespace": note.target.namespace} if note.target.namespace else {}
        about |= {"uid": uid} if uid else {}
        message = note.message if len(note.message) <= MESSAGE_MAX else note.message[: MESSAGE_MAX - 1] + "…"
        return {
            "metadata": {"name": note.event_name, "namespace": namespace},
            "involvedObject": about,
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "message": message,
            "count": entry.total,
            "firstTimestamp": _stamp(entry.first),
            "lastTimestamp": _stamp(entry.last),
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
        }

    async def _uid(self, target: Target) -> str | None:
        """`kubectl describe` finds a pod's Events by its UID, and a Node's by its name, as the kubelet does it.
        Without the right to read pods it goes without."""
        if target.kind == "Node":
            return target.name
        if target not in self._uids and self._may_read_pods:
            try:
                pod = await self._client.get(PODS.partial, target.name, namespace=target.namespace)
            except ApiError as error:
                self._may_read_pods = error.status != 403
                return None
            if len(self._uids) >= ENTRIES_MAX:
                self._uids.clear()
            self._uids[target] = pod.metadata.uid or ""
        return self._uids.get(target)


def _more(body: dict[str, Any]) -> dict[str, Any]:
    """What changes of an Event when it returns."""
    return {name: body[name] for name in ("count", "lastTimestamp", "message")}


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
