"""Write Kubernetes Events: one object for each fault of each target, counted up when the fault returns.

Rules:

* The desired state is a level: the notices that stand now. ``NoticeLedger`` compares it with what was written, so
  an API server outage only delays Events. A fault that came and went during the outage is written too.
* With ``aggregate`` the Event's name is a hash of its target, device and reason. A restarted process therefore
  writes no fault twice, and a fault that returns increases the count of the Event of an earlier process.
* A pod that is made again has its name and another UID, so its Events are its own.
* An hourly notice is written at most once an hour.
* An Event that the server does not take for a reason that may pass (its namespace is not there yet, or another write
  was faster) is written again later, as a new one. It does not delay the others, and is dropped after ``_TRIES``.
* The number of records and the rate of writes are bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from nodeagent.base.backoff import JITTER, Backoff, RateLimit
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import EVENTS

log = logging.getLogger(__name__)

RECORDS_MAX = 512
HOURLY_S = 3600.0
"""By the API server's default, an Event lives for an hour too."""
BURST, PER_S = 25, 0.1
AGAIN_FIRST_S, _AGAIN_MAX_S = 5.0, 300.0
_TRIES = 8
"""With the waits above: a quarter of an hour."""
PASSING = (403, 404, 409, 410)
"""Refusals of one Event that may end: by a quota or the end of its namespace, or of an Event that has just expired."""
_MESSAGE_MAX = 1024
"""The API server's limit (ValidateEvent)."""


class Ending(NamedTuple):
    """How the faults of a device have ended for a target: the reason of the Event, and what its message says."""

    reason: str
    sentence: str


RECOVERED = Ending("Recovered", "its faults have ended")
RELEASED = Ending("DeviceReleased", "the pod no longer holds it")
"""The device may still have its faults."""
UNUSED = Ending("DeviceUnused", "it is not in use any more")
"""The device is not used, and so has no faults that count."""


@dataclass(frozen=True, slots=True)
class EventTarget:
    """The object that an Event is about. ``namespace`` is empty for an object without a namespace.

    ``uid`` is that of the object, by which `kubectl describe` looks for its Events; empty if it is not known. A Node's
    is its name, as in the kubelet's Events.
    """

    kind: str
    namespace: str
    name: str
    api_version: str = "v1"
    uid: str = ""


NoticeKey = tuple[EventTarget, str, str]


@dataclass(frozen=True, slots=True)
class Notice:
    """A fault, or its end, that one Event reports. Target, ``about`` (the device) and ``reason`` identify it.

    ``recovers``: the end of this Warning, with all others of its device, is an Event too. ``title`` names the device in
    it; without one it is the message. ``ids``: of the devices that the pod of the target holds. ``began``: in Unix
    seconds; ``None``: when it is observed.
    """

    target: EventTarget
    about: str
    reason: str
    message: str
    warning: bool = True
    hourly: bool = False
    recovers: bool = True
    title: str = ""
    ids: tuple[str, ...] = ()
    began: float | None = field(default=None, compare=False)

    @property
    def key(self) -> NoticeKey:
        return self.target, self.about, self.reason


class NoticeBoard:
    """The notices of other parts than the one that writes the Events. Each part posts those that stand; one that ends
    before it is read is still read once.

    Belongs to one event loop. ``changed`` is set when a part posts other notices; the reader clears it. At most
    ``RECORDS_MAX`` notices wait that have ended: the newest.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._standing: dict[str, dict[NoticeKey, Notice]] = {}
        self._unread: dict[NoticeKey, Notice] = {}

    def post(self, part: str, *notices: Notice) -> None:
        """Replace the notices of this part."""
        before = self._standing.get(part, {})
        posted = {notice.key: notice for notice in notices}
        if posted == before:
            return
        now = time.time()
        for key, notice in posted.items():
            began = before[key].began if key in before else now
            posted[key] = replace(notice, began=began)
        self._standing[part] = posted
        self._unread |= posted
        if len(self._unread) > RECORDS_MAX:
            ended = [key for key in self._unread if not any(key in it for it in self._standing.values())]
            for key in ended[: len(self._unread) - RECORDS_MAX]:
                del self._unread[key]
        self.changed.set()

    def take(self) -> tuple[Notice, ...]:
        """The notices that stand, and those that have ended since the last call."""
        taken = self._unread
        for posted in self._standing.values():
            taken |= posted
        self._unread = {}
        return tuple(taken.values())


@dataclass(slots=True)
class NoticeRecord:
    """The state of the Event of one notice. Times are Unix seconds, except ``written_at``.

    ``count``: how often the notice began. ``written``: the count of the last write. ``at_start``: the notice stood
    at the first observation, so that an earlier process may have written it. ``before``: the count of that Event.
    """

    notice: Notice
    first: float
    last: float
    active: bool = True
    count: int = 1
    written: int = 0
    written_at: float = float("-inf")
    at_start: bool = False
    before: int = 0
    tries: int = 0
    not_before: float = float("-inf")
    backoff: Backoff = field(default_factory=lambda: Backoff(AGAIN_FIRST_S, _AGAIN_MAX_S, jitter=JITTER))

    def rejected(self, now: float, *, passing: bool) -> float | None:
        """Count a rejection. Return the seconds until the next try; ``None``: there is none."""
        self.tries += 1
        if not passing or self.tries >= _TRIES:
            return None
        wait_s = self.backoff.next_s()
        self.not_before = now + wait_s
        return wait_s

    def wrote(self, count: int, now: float) -> None:
        self.written, self.written_at = count, now
        self.tries, self.not_before = 0, float("-inf")
        self.backoff.reset()

    @property
    def total(self) -> int:
        return self.before + self.count


def _nothing_unknown(_about: str) -> bool:
    return False


def _nothing_lasts(_notice: Notice) -> bool:
    return False


def _recovered(_notice: Notice) -> Ending:
    return RECOVERED


@dataclass(slots=True)
class NoticeLedger:
    """The notices that stand, those that ended, and what was written of each.

    ``now`` is any clock that never goes back; ``wall`` is Unix time, for the Events. With ``recovery`` the end of
    all faults of a device is a notice too.
    """

    recovery: bool = True
    records: dict[NoticeKey, NoticeRecord] = field(default_factory=dict)
    observed: bool = False
    endings: dict[tuple[EventTarget, str], Ending] = field(default_factory=dict)
    """How the faults of each device ended when they did, by target and device."""

    def observe(
        self,
        notices: Iterable[Notice],
        now: float,
        wall: float,
        unknown: Callable[[str], bool] = _nothing_unknown,
        ending: Callable[[Notice], Ending] = _recovered,
        lasts: Callable[[Notice], bool] = _nothing_lasts,
    ) -> None:
        """Take the notices that stand now. Every other notice has ended, unless its device is ``unknown`` or it
        ``lasts``, and ``ending`` returns how."""
        current = {notice.key: notice for notice in notices}
        current |= {
            key: record.notice
            for key, record in self.records.items()
            if key not in current and record.active and (unknown(record.notice.about) or lasts(record.notice))
        }
        if self.recovery:
            current |= {notice.key: notice for notice in self._ended(current, unknown, ending)}
        for key, notice in current.items():
            record = self.records.get(key)
            began = wall if notice.began is None else notice.began
            if record is None:
                self.records[key] = NoticeRecord(notice, began, began, at_start=not self.observed)
                continue
            if not record.active:
                record.active, record.last = True, began
                record.count += 1
            record.notice = notice
        for key, record in self.records.items():
            if key not in current:
                record.active = False
        self.observed = True
        self._prune(now)

    def due(self, now: float) -> list[NoticeRecord]:
        """The records to write, oldest first."""
        return sorted(
            (
                record
                for record in self.records.values()
                if record.count > record.written
                and now >= record.not_before
                and (not record.notice.hourly or now - record.written_at >= HOURLY_S)
            ),
            key=lambda record: record.last,
        )

    def next_s(self, now: float) -> float | None:
        """Seconds until a rejected Event is tried again; ``None``: there is none."""
        waits = (record.not_before - now for record in self.records.values() if record.tries)
        return min((max(0.0, wait_s) for wait_s in waits), default=None)

    def _ended(
        self,
        current: dict[NoticeKey, Notice],
        unknown: Callable[[str], bool],
        ending: Callable[[Notice], Ending],
    ) -> Iterable[Notice]:
        """A notice for each device with a written Warning and without a standing one."""
        faulty = {(notice.target, notice.about) for notice in current.values() if notice.warning}
        over: dict[tuple[EventTarget, str], Ending] = {}
        for record in self.records.values():
            notice = record.notice
            device = notice.target, notice.about
            if unknown(notice.about):
                if device in self.endings:
                    over[device] = self.endings[device]
                continue
            if notice.warning and notice.recovers and record.written and device not in faulty:
                over[device] = reason, sentence = self.endings.get(device) or ending(notice)
                message = f"{notice.title or notice.message}: {sentence}"
                yield Notice(notice.target, notice.about, reason, message, warning=False)
        self.endings = over

    def _prune(self, now: float) -> None:
        done = [
            key
            for key, record in self.records.items()
            if not record.active and record.written and now - record.written_at > HOURLY_S
        ]
        for key in done:
            del self.records[key]
        if len(self.records) > RECORDS_MAX:
            order = sorted(self.records, key=lambda key: (self.records[key].active, self.records[key].last))
            for key in order[: len(self.records) - RECORDS_MAX]:
                del self.records[key]


class EventWriter:
    """Write what is due in ``ledger``.

    ``component`` and ``instance`` name the reporting process, ``host`` its Node. Without ``aggregate`` each
    occurrence becomes an Event of its own, which needs only the right to create Events.
    """

    def __init__(
        self,
        client: ApiClient,
        component: str,
        instance: str,
        *,
        host: str | None = None,
        aggregate: bool = True,
        recovery: bool = True,
        delivery: Delivery | None = None,
    ) -> None:
        self.ledger = NoticeLedger(recovery)
        self.written = 0
        """How many writes have ended, also those that were refused for good."""
        self._client, self._component, self._instance = client, component, instance
        self._host, self._aggregate = host, aggregate
        self._rate = RateLimit(BURST, PER_S)
        self._retry = ApiRetry("Events do not reach the API server", delivery)

    async def deliver(self) -> float | None:
        """Write the Events that are due. Return the seconds until the rest may be written; ``None``: no rest."""
        if (wait := self._retry.wait_s(time.monotonic())) > 0:
            return wait
        for record in self.ledger.due(time.monotonic()):
            if (wait := self._rate.wait_s(time.monotonic())) > 0:
                return wait
            self._rate.take(time.monotonic())
            count = record.count
            try:
                await self._write(record)
            except ApiError as error:
                if not error.refused:
                    return self._retry.failed(error, time.monotonic())
                self._retry.rejected(error)
                if record.rejected(time.monotonic(), passing=error.status in PASSING) is not None:
                    continue
                log.warning("The API server rejects an Event; it is dropped. reason=%r", str(error))
            else:
                self._retry.succeeded()
            record.wrote(count, time.monotonic())
            self.written += 1
        return self.ledger.next_s(time.monotonic())

    async def _write(self, record: NoticeRecord) -> None:
        target = record.notice.target
        namespace = target.namespace or "default"
        body = self._body(record)
        if self._aggregate and record.written:
            try:
                await self._client.patch(EVENTS, body["metadata"]["name"], _update(body), namespace=namespace)
            except ApiError as error:
                if error.status not in (404, 410):
                    raise  # else the Event has expired
            else:
                return
        try:
            await self._client.create(EVENTS, body, namespace=namespace)
        except ApiError as error:
            if not error.exists:
                raise
            if self._aggregate:  # else our own write succeeded without an answer
                await self._continue(record, body, namespace)

    async def _continue(self, record: NoticeRecord, body: dict[str, Any], namespace: str) -> None:
        """Add to the Event of an earlier process.

        That process has counted a notice that stood at the first observation; a later one is a return. An empty
        patch reads the Event without the right to get it.
        """
        name = body["metadata"]["name"]
        existing = await self._client.patch(EVENTS, name, {}, namespace=namespace)
        counted = existing.get("count")
        counted = counted if isinstance(counted, int) else 1
        record.before = counted - 1 if record.at_start else counted
        if record.total > counted:
            update = _update(body | {"count": record.total})
            await self._client.patch(EVENTS, name, update, namespace=namespace)

    def _body(self, record: NoticeRecord) -> dict[str, Any]:
        notice, target = record.notice, record.notice.target
        uid = target.name if target.kind == "Node" else target.uid
        regarding = {"kind": target.kind, "apiVersion": target.api_version, "name": target.name}
        regarding |= {"namespace": target.namespace} if target.namespace else {}
        regarding |= {"uid": uid} if uid else {}
        return {
            "metadata": {"name": self._name(record), "namespace": target.namespace or "default"},
            "involvedObject": regarding,
            "type": "Warning" if notice.warning else "Normal",
            "reason": notice.reason,
            "message": shortened(notice.message),
            "count": record.total if self._aggregate else 1,
            "firstTimestamp": rfc3339(record.first if self._aggregate else record.last),
            "lastTimestamp": rfc3339(record.last),
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _name(self, record: NoticeRecord) -> str:
        target, about, reason = record.notice.key
        parts: tuple[str, ...] = (target.kind, target.namespace, target.name, about, reason)
        if target.uid:
            parts += (target.uid,)
        if not self._aggregate:
            parts += (self._instance, repr(record.last))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"{target.name[:200]}.{digest[:16]}"


def shortened(message: str) -> str:
    """A message of at most ``_MESSAGE_MAX`` characters, for an Event or a condition."""
    return message if len(message) <= _MESSAGE_MAX else message[: _MESSAGE_MAX - 1] + "…"


def _update(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of an Event that change when its fault returns."""
    return {name: body[name] for name in ("count", "lastTimestamp", "message")}
