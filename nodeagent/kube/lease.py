"""One leads: election by a Lease, in which a leader that cannot renew stops before another may start.

The law of this file:

* Clocks of different machines are never compared. A candidate measures by its own clock how long it has seen
  the record unchanged; the times written into it are for people.
* A leader counts from the moment *before* it sent the renewal that succeeded, the others from the moment
  *after* they saw it. It stops after ``renew_s``, they start after ``duration_s``: the difference is what
  its last write may take to end.
* Every write to the record names the version that it replaces. An answer that got lost is asked for again.
* An identity is one life of one process: whoever starts again under the same name waits like everybody.
* The clock is the one that goes on while a machine sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from nodeagent.backoff import jittered
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import LEASES, Json, Meta, Resource
from nodeagent.rfc3339 import rfc3339

log = logging.getLogger(__name__)

RELEASE_S = 3.0


class NotLeading(Exception):  # noqa: N818 - a state, and no mistake of anybody
    """The lease is not held (any more), so nothing may be written."""


class Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Record(msgspec.Struct):
    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


RECORDS: Resource[Record] = LEASES.typed(Record)


class Records(Protocol):
    """What of ``kube.client.Client`` is needed here. It must have no guard: the lease is what guards."""

    async def get(self, resource: Resource[Record], name: str, *, namespace: str) -> Record: ...
    async def create(self, resource: Resource[Record], obj: Json, *, namespace: str) -> Record: ...
    async def patch(self, resource: Resource[Record], name: str, body: Json, *, namespace: str) -> Record: ...


def boot_time() -> float:
    """Seconds since the machine started, those that it slept through included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A candidate. ``leading`` says whether it holds the lease at this very moment, by its own clock.

    ``check`` raises ``NotLeading`` where it does not: hand it to ``Client(guard=...)`` of the client that
    writes as the leader.
    """

    def __init__(
        self,
        client: Records,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float = 15.0,
        renew_s: float = 10.0,
        retry_s: float = 2.0,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        if not 0 < retry_s < renew_s < duration_s:
            raise ValueError(
                f"a lease needs retry < renew < duration, not {retry_s:g}, {renew_s:g} and {duration_s:g} s"
            )
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self.duration_s = duration_s
        self.renew_s = renew_s
        self.retry_s = retry_s
        self.trouble: str | None = None
        """Why the last call failed; ``None`` while all is well."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._until = float("-inf")
        self._seen: Record | None = None
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    @property
    def left_s(self) -> float:
        """So long it may still act as the leader; not above 0 where it may not."""
        return self._until - self._clock()

    @property
    def holder(self) -> str | None:
        """Who leads, as last seen."""
        return (self._seen.spec.holder_identity or None) if self._seen is not None else None

    def check(self) -> float:
        """Seconds that a write may take. Raises ``NotLeading``."""
        left = self.left_s
        if left <= 0:
            raise NotLeading(
                f"the lease {self._namespace}/{self._name} is not held by {self.identity} any more"
            )
        return left

    async def acquire(self) -> None:
        """Return as the leader."""
        while not self.leading:
            with self._noting():
                async with asyncio.timeout(self.renew_s / 2):
                    await self._try()
            if not self.leading:
                await asyncio.sleep(jittered(self.retry_s, 0.8, 1.6))
        log.info("This replica leads. lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def hold(self) -> None:
        """Renew until the lease is lost: to time, or to somebody else. Returns no later than the time is over."""
        while self.leading:
            await asyncio.sleep(min(jittered(self.retry_s, 0.9, 1.1), max(self.left_s, 0)))
            if not self.leading:
                break
            with self._noting():
                # A call that hangs must leave time for another.
                async with asyncio.timeout(min(self.left_s, max(self.renew_s / 2, self.retry_s))):
                    await self._try()
        log.warning(
            "This replica leads no more. lease=%s/%s holder=%s reason=%r",
            self._namespace, self._name, self.holder, self.trouble or "another took it",
        )  # fmt: skip

    async def release(self) -> None:
        """Let the next one start at once. Only after everything that leads has ended."""
        self._until = float("-inf")
        with self._noting():
            async with asyncio.timeout(RELEASE_S):
                while (seen := self._seen) is not None and self.holder == self.identity:
                    try:
                        await self._write(
                            seen, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                        )
                    except ApiError as error:
                        if not error.conflict:
                            raise
                        await self._look()  # a renewal was under way when we ended, and got through

    # --- how ------------------------------------------------------------------------------------------

    async def _try(self) -> None:
        """Renew what we hold, take what nobody holds, or look who does."""
        if self._seen is None or self._seen.spec.holder_identity != self.identity:
            await self._look()
        began = self._clock()
        seen = self._seen
        spec: Json = {"leaseDurationSeconds": max(1, round(self.duration_s)), "renewTime": _now()}
        try:
            if seen is None:
                spec |= {"holderIdentity": self.identity, "acquireTime": _now(), "leaseTransitions": 0}
                body = {"metadata": {"name": self._name}, "spec": spec}
                self._saw(await self._client.create(RECORDS, body, namespace=self._namespace))
            elif seen.spec.holder_identity == self.identity:
                await self._write(seen, spec)
            elif self._free(seen):
                transitions = (seen.spec.lease_transitions or 0) + 1
                spec |= {
                    "holderIdentity": self.identity,
                    "acquireTime": _now(),
                    "leaseTransitions": transitions,
                }
                await self._write(seen, spec)
            else:
                return
        except ApiError as error:
            if not (error.conflict or error.missing):
                raise
            # Somebody was faster; or we were, and did not hear of it; or somebody has deleted it.
            await self._look()
            if self.holder != self.identity:
                self._until = float("-inf")
            return
        self._until = began + self.renew_s

    def _free(self, seen: Record) -> bool:
        """Nobody holds it, or whoever does has been silent for longer than it may act."""
        if not seen.spec.holder_identity:
            return True
        duration = max(self.duration_s, float(seen.spec.lease_duration_seconds or 0))
        return self._clock() - self._seen_at >= duration

    async def _look(self) -> None:
        try:
            self._saw(await self._client.get(RECORDS, self._name, namespace=self._namespace))
        except ApiError as error:
            if not error.missing:
                raise
            self._seen = None

    def _saw(self, record: Record) -> None:
        """The clock runs from when a record was first seen, not from when it was written."""
        old = self._seen
        if old is None or old.metadata.resource_version != record.metadata.resource_version:
            self._seen_at = self._clock()
        self._seen = record

    async def _write(self, seen: Record, spec: Json) -> None:
        body = {"metadata": {"resourceVersion": seen.metadata.resource_version}, "spec": spec}
        self._saw(await self._client.patch(RECORDS, self._name, body, namespace=self._namespace))

    def _noting(self) -> Noting:
        return Noting(self)


class Noting:
    """What a call may fail with is kept as the lease's trouble, and said once."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> bool:
        if not isinstance(error, ApiError | TimeoutError | None):
            return False
        before = self._lease.trouble
        self._lease.trouble = None if error is None else str(error) or "the API server did not answer in time"
        if error is not None and before is None:
            log.warning("The lease cannot be kept up at present. reason=%r", self._lease.trouble)
        return True


async def lead(lease: Lease, work: Callable[[], Awaitable[object]]) -> None:
    """Wait for the lease, run ``work`` while it is held, and so on for ever.

    ``work`` is cancelled when the lease is lost; its end and its exceptions end ``lead``. When ``lead`` ends or
    is cancelled, the lease is released once ``work`` has ended.
    """
    while True:
        await lease.acquire()
        working = asyncio.ensure_future(work())
        holding = asyncio.ensure_future(lease.hold())
        try:
            await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
            lost = not working.done()
        finally:
            holding.cancel()
            await _end(working, lease)
            await asyncio.gather(holding, return_exceptions=True)
            await lease.release()
        failure = None if working.cancelled() else working.exception()
        if failure is not None and not isinstance(failure, NotLeading):
            raise failure
        if not lost and failure is None:
            return


async def _end(working: asyncio.Future[object], lease: Lease) -> None:
    """Cancel it and wait until it has ended; nothing that it still writes passes ``check``."""
    while not working.done():
        working.cancel()
        done, _ = await asyncio.wait({working}, timeout=lease.duration_s - lease.renew_s)
        if not done:
            log.error(
                "What leads does not end, though it is to; once the lease is lost its writes are refused."
            )


def _now() -> str:
    return rfc3339(time.time(), "microseconds")
