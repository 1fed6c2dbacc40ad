"""Leader election by a Lease: a leader that cannot renew stops before another replica may start.

Rules:

* Clocks of different machines are never compared. A candidate measures with its own clock how long it has seen the
  record unchanged; the times in the record are for people.
* A leader counts from the moment *before* it sent the renewal that succeeded, the other candidates from the moment
  *after* they saw it. A leader stops after ``renew_s``, the others start after ``duration_s``. Its last write must
  end within the difference.
* Every write of the record names the version that it replaces. If an answer is lost, the record is read again.
* An identity is one run of one process: a process that restarts under the same name waits like the others.
* The clock continues while the machine sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from nodeagent.base.backoff import jittered
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import LEASES, Json, Meta, Resource

log = logging.getLogger(__name__)

RELEASE_S = 3.0


class NotLeading(Exception):  # noqa: N818 - a state, not an error
    """This replica does not hold the lease (any more), so it must not write."""


class LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseRecord(msgspec.Struct):
    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


LEASE_RECORDS: Resource[LeaseRecord] = LEASES.typed(LeaseRecord)


def boot_time() -> float:
    """Seconds since the machine booted, including the time that it slept. ``kube`` may not import ``host.clock``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A candidate. ``leading`` is true while it holds the lease, by its own clock.

    ``check`` raises ``NotLeading`` otherwise: pass it as ``ApiClient(guard=...)`` to the client that writes as leader.
    ``client`` must have no guard, because the lease is the guard.
    """

    def __init__(
        self,
        client: ApiClient,
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
        """Why the last call failed; ``None``: it succeeded."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._until = float("-inf")
        self._seen: LeaseRecord | None = None
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    @property
    def left_s(self) -> float:
        """Seconds for which this replica may still act as leader; 0 or less if it may not."""
        return self._until - self._clock()

    @property
    def holder(self) -> str | None:
        """The leader in the record that was last seen."""
        return (self._seen.spec.holder_identity or None) if self._seen is not None else None

    def check(self) -> float:
        """Return the seconds that a write may take. Raises ``NotLeading``."""
        left = self.left_s
        if left <= 0:
            raise NotLeading(
                f"the lease {self._namespace}/{self._name} is not held by {self.identity} any more"
            )
        return left

    async def acquire(self) -> None:
        """Return when this replica is the leader."""
        while not self.leading:
            with self._failures_kept():
                async with asyncio.timeout(self.renew_s / 2):
                    await self._try()
            if not self.leading:
                await asyncio.sleep(jittered(self.retry_s, 0.8, 1.6))
        log.info("This replica leads. lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def hold(self) -> None:
        """Renew until the lease expires or another replica takes it. Returns at the expiry at the latest."""
        while self.leading:
            await asyncio.sleep(min(jittered(self.retry_s, 0.9, 1.1), max(self.left_s, 0)))
            if not self.leading:
                break
            with self._failures_kept():
                # A call that hangs must leave time for another one.
                async with asyncio.timeout(min(self.left_s, max(self.renew_s / 2, self.retry_s))):
                    await self._try()
        log.warning(
            "This replica no longer leads. lease=%s/%s holder=%s reason=%r",
            self._namespace, self._name, self.holder, self.trouble or "another took it",
        )  # fmt: skip

    async def release(self) -> None:
        """Let the next replica start at once. Call it only after all work of the leader has ended."""
        self._until = float("-inf")
        with self._failures_kept():
            async with asyncio.timeout(RELEASE_S):
                while (seen := self._seen) is not None and self.holder == self.identity:
                    try:
                        await self._write(
                            seen, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                        )
                    except ApiError as error:
                        if not error.conflict:
                            raise
                        await self._look()  # a renewal in progress has succeeded after the end

    # --- one attempt ----------------------------------------------------------------------------------

    async def _try(self) -> None:
        """Renew the lease if this process holds it, take it if it is free, or read who has it."""
        if self._seen is None or self._seen.spec.holder_identity != self.identity:
            await self._look()
        began = self._clock()
        seen = self._seen
        spec: Json = {"leaseDurationSeconds": max(1, round(self.duration_s)), "renewTime": _now()}
        try:
            if seen is None:
                spec |= {"holderIdentity": self.identity, "acquireTime": _now(), "leaseTransitions": 0}
                body = {"metadata": {"name": self._name}, "spec": spec}
                self._saw(await self._client.create(LEASE_RECORDS, body, namespace=self._namespace))
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
            # Another replica was faster, our own write succeeded without an answer, or the record was deleted.
            await self._look()
            if self.holder != self.identity:
                self._until = float("-inf")
            return
        self._until = began + self.renew_s

    def _free(self, seen: LeaseRecord) -> bool:
        """Whether the lease has no holder, or its holder has not renewed for longer than it may lead."""
        if not seen.spec.holder_identity:
            return True
        duration = max(self.duration_s, float(seen.spec.lease_duration_seconds or 0))
        return self._clock() - self._seen_at >= duration

    async def _look(self) -> None:
        """Read the record."""
        try:
            self._saw(await self._client.get(LEASE_RECORDS, self._name, namespace=self._namespace))
        except ApiError as error:
            if not error.missing:
                raise
            self._seen = None

    def _saw(self, record: LeaseRecord) -> None:
        """Keep the record. Its time runs from when this version was first seen, not from when it was written."""
        old = self._seen
        if old is None or old.metadata.resource_version != record.metadata.resource_version:
            self._seen_at = self._clock()
        self._seen = record

    async def _write(self, seen: LeaseRecord, spec: Json) -> None:
        body = {"metadata": {"resourceVersion": seen.metadata.resource_version}, "spec": spec}
        self._saw(await self._client.patch(LEASE_RECORDS, self._name, body, namespace=self._namespace))

    @contextmanager
    def _failures_kept(self) -> Iterator[None]:
        """Suppress a failed call: it becomes the lease's trouble, and the first one is logged."""
        before = self.trouble
        try:
            yield
        except (ApiError, TimeoutError) as error:
            self.trouble = str(error) or "the API server did not answer in time"
            if before is None:
                log.warning("The lease cannot be renewed at present. reason=%r", self.trouble)
        else:
            self.trouble = None


async def lead(lease: Lease, work: Callable[[], Awaitable[object]]) -> None:
    """Wait for the lease, run ``work`` while it is held, and repeat this until cancelled.

    ``work`` is cancelled when the lease is lost; its end and its exceptions end ``lead``. When ``lead`` ends or is
    cancelled, the lease is released after ``work`` has ended.
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
    """Cancel the work and wait until it has ended; ``check`` refuses any write that it still tries."""
    while not working.done():
        working.cancel()
        done, _ = await asyncio.wait({working}, timeout=lease.duration_s - lease.renew_s)
        if not done:
            log.error(
                "The leader's work does not end after its cancellation; its writes are refused without the lease."
            )


def _now() -> str:
    return rfc3339(time.time(), "microseconds")
