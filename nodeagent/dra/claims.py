"""The claims that are prepared on this node. Belongs to one event loop.

The scheduler has allocated a claim before the kubelet asks for it. The record of a claim is therefore made once and
kept until the kubelet ends it, also if its files cannot be written or the kubelet stops waiting: what it holds is the
claim's by the allocation. A repeated Prepare gives the same devices, and writes what is missing. Their device nodes are
those of now: a driver that is loaded again numbers anew, and a stored number may be another device's. ``claim_mending``
does so for containers that restart, and writes files again that were removed from the disk.

Unprepare needs nothing but the record. A claim whose object is gone, or that has other devices by now, is ended by the
agent itself: the kubelet may never ask. The kubelet's own search for ended pods comes first (``GONE_S``), because the
containers of a pod that was deleted by force may still run. The claim that gets the devices of such a pod waits for
their end in its Prepare (``ENDING_S``): the kubelet would ask again only after a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from nodeagent.attach.pod_plan import AttachPlan
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claim_mig import ClaimMig, NothingMade
from nodeagent.dra.claim_preparation import allocation_key, prepare_claim, valid_uid
from nodeagent.dra.claim_writes import ClaimWrites
from nodeagent.dra.devices import Occupied
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import (
    PreparedClaim,
    holdings,
    with_mig,
    without_conflicts,
)
from nodeagent.dra.present_nodes import with_present_nodes
from nodeagent.dra.resource_claim import ResourceClaim
from nodeagent.facts.model import Holding
from nodeagent.kinds import Refused, ascii_name
from nodeagent.kube.failure import ApiError

log = logging.getLogger(__name__)

_READ_S = 20.0
"""How long an API server that does not answer is asked again. The kubelet waits 45 s (dra_plugin.go)."""
READ_AGAIN_S = 1.0
DEVICES_S = 10.0
"""How long a claim waits for devices that are not known yet, as right after the start of the agent. A refusal would
cost the pod some ten seconds: the kubelet repeats a failed pod after its back-off (kubelet.go, backOffPeriod)."""
ENDING_S = 35.0
"""How long a Prepare lasts at most while a claim without an object holds its devices; below the deadline of the call
(``kubelet_service.py``), so that the refusal names that claim's share."""
COMPARE_S = 600.0
_CONFLICT_S = 30.0
"""How soon the next comparison comes if another claim holds the devices of one: that one may be gone."""
GONE_S = 120.0
"""The kubelet looks for ended pods every 60 s, and unprepares their claims."""


class ClaimReference(msgspec.Struct, frozen=True):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{ascii_name(self.namespace)}/{ascii_name(self.name)}"


class PreparedClaims:
    """``read_claim`` reads a claim by namespace and name, and raises ``ApiError``. ``on_change`` is called when a claim
    was prepared or ended."""

    def __init__(
        self,
        node: str,
        offer: DraOffer,
        files: ClaimFiles,
        calls: BoundedCalls,
        read_claim: Callable[[str, str], Awaitable[ResourceClaim]],
        on_change: Callable[[], object] = lambda: None,
        now: Callable[[], float] = time.monotonic,
        mig: ClaimMig | None = None,
    ) -> None:
        self.records: dict[str, PreparedClaim] = {}
        """By the UID of the claim."""
        self.conflicts = 0
        """Claims that were refused because another claim or pod held their devices."""
        self._node, self._offer, self._files = node, offer, files
        self._read_claim, self._on_change, self._now = read_claim, on_change, now
        self.preparing: dict[str, set[object]] = {}
        """The calls that prepare a claim now. Unprepare empties them."""
        self._gone_since: dict[str, float] = {}
        self._conflict = asyncio.Event()
        self._ended = asyncio.Event()
        """Set, and replaced by another one, when a claim ends."""
        self._sequence = 0
        self._mig = mig
        self.writes = ClaimWrites(files, calls, self._changed)

    @property
    def written(self) -> dict[str, PreparedClaim]:
        """The records whose files are on the disk, by UID: the kubelet has them, or gets them next."""
        on_disk = self._files.written
        return {uid: record for uid, record in self.records.items() if on_disk.get(uid) == record.allocation}

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return holdings(self.records.values())

    async def load(self) -> None:
        """Read the records of an earlier agent. Raises ``OSError`` and ``Unanswered``."""
        self.take(await self.writes.calls.run(self._files.read))

    def take(self, found: Iterable[PreparedClaim]) -> None:
        """Take the records of an earlier agent."""
        before = self.records
        self.records, dropped = without_conflicts(found)
        for record in dropped:
            log.warning(
                "The record of a claim contradicts a later one and is dropped. claim=%s", record.full_name
            )
        if self._mig is not None:
            self._mig.take(self.records.values())
        self._sequence = max((record.sequence for record in self.records.values()), default=0)
        if self.records and self.records != before:
            log.info("Claims of an earlier agent are prepared. count=%d", len(self.records))
        self._changed()

    async def prepare(self, reference: ClaimReference) -> PreparedClaim:
        """Prepare a claim, or return its record if it is prepared. Raises ``Refused``, ``OSError``, ``Unanswered``."""
        uid = reference.uid
        if not valid_uid(uid):
            raise Refused(f"{ascii_name(uid)} is no UID", invalid=True)
        call, until = object(), asyncio.get_running_loop().time() + ENDING_S
        self.preparing.setdefault(uid, set()).add(call)
        try:
            claim = await self._read(reference)
            if self._awaits_devices(claim):
                await self._wait_for_devices(claim)
                claim = await self._read(reference)
            _refuse_ended(self.preparing, uid, call)
            if (
                (known := self.records.get(uid)) is not None
                and known.mig_slots
                and not _allocates(claim, known)
            ):
                await self._end(known)
            plan = None
            if _gets_netdevs(claim, self._offer):
                plan = await self.writes.calls.run(self._files.attach_plan)
            record = await self._decide_once_free(claim, reference, call, until, plan)
            await self._make(record)
            await self.write(record)
            _refuse_ended(self.preparing, uid, call)
            record = _current(self.records, record)
        finally:
            calls = self.preparing.get(uid)
            if calls is not None:
                calls.discard(call)
                if not calls:
                    del self.preparing[uid]
        return record

    async def unprepare(self, reference: ClaimReference) -> None:
        """End a claim. It succeeds for a claim that is not known, and if files cannot be removed. Raises ``Refused``
        and ``Unanswered`` if a MIG device cannot be removed: the claim keeps it."""
        self.preparing.pop(reference.uid, None)
        record = self.records.get(reference.uid)
        if record is not None:
            await self._end(record)

    async def compare(self) -> None:
        """Compare the records with the API server: restore missing files, and end those whose claim is gone for
        ``GONE_S``."""
        for record in tuple(self.records.values()):
            try:
                claim = await self._claim_of(record)
            except ApiError:
                continue
            if self.records.get(record.uid) is not record:
                continue
            if claim is not None:
                self._gone_since.pop(record.uid, None)
                self._take_pods(claim, record)
                await self._restore(record)
            elif self._now() - self._gone_since.setdefault(record.uid, self._now()) >= GONE_S:
                log.warning(
                    "A prepared claim is gone, and the kubelet has not ended it: its devices are free. claim=%s",
                    record.full_name,
                )
                try:
                    await self._end(record)
                except (Refused, Unanswered) as error:
                    log.warning("A claim cannot be ended. claim=%s reason=%r", record.full_name, str(error))
        if self._mig is not None:  # without the places that were left a while ago
            self._offer.mig_slots = self._mig.slots(self.records.values())
        await self.remove_leftovers()

    async def _restore(self, record: PreparedClaim) -> None:
        """Write files that were removed while no agent ran: the kubelet asks no more, and the claim's status waits."""
        if record.uid not in self.preparing and (record.uid not in self.written or record.mig_slots):
            try:
                record = self.records[record.uid] = with_present_nodes(record, self._offer)
            except Refused:  # ``claim_mending`` has said why, and writes them when the device is back
                return
            try:
                await self._make(record)
                await self.write(record)
            except (OSError, Unanswered, Refused) as error:
                log.warning(
                    "The files of a claim cannot be restored. claim=%s reason=%r",
                    record.full_name,
                    str(error),
                )

    async def remove_leftovers(self) -> None:
        """Remove files of claims without a record."""
        async with self._files.lock:
            await _tidy(self.writes.calls, self._files.remove_others, frozenset(self.records))

    async def follow(self) -> None:
        """Compare at the start, then regularly and soon after a conflict, until cancelled."""
        while True:
            self._conflict.clear()
            await self.compare()
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE_S if self._gone_since else COMPARE_S):
                    await self._conflict.wait()
                    await asyncio.sleep(_CONFLICT_S)

    # --- steps ----------------------------------------------------------------------------------------

    async def _read(self, reference: ClaimReference) -> ResourceClaim:
        until = self._now() + _READ_S
        while True:
            try:
                claim = await self._read_claim(reference.namespace, reference.name)
                break
            except ApiError as error:
                if error.missing:
                    raise Refused(f"the claim {reference} does not exist") from None
                if error.status in (401, 403) or error.refused or self._now() + READ_AGAIN_S > until:
                    raise Refused(f"the claim {reference} cannot be read: {error}") from None
            await asyncio.sleep(READ_AGAIN_S)
        if claim.metadata.uid != reference.uid:
            raise Refused(
                f"the claim {reference} was made again: its UID is {ascii_name(claim.metadata.uid or '')}, and the "
                f"kubelet asks for {ascii_name(reference.uid)}"
            )
        return claim

    def _awaits_devices(self, claim: ResourceClaim) -> bool:
        """Whether the claim has devices of a pool that is not known yet."""
        pools = {result.pool.rpartition("/")[2] for result in claim.results_of(DRIVER)}
        return not pools.isdisjoint(_unknown_pools(self._offer))

    async def _wait_for_devices(self, claim: ResourceClaim) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DEVICES_S):
                while self._awaits_devices(claim):
                    await self._offer.changed(self._offer.revision)

    async def _claim_of(self, record: PreparedClaim) -> ResourceClaim | None:
        """Return the claim of a record; ``None`` if it is gone or has other devices. Raises ``ApiError``."""
        try:
            claim = await self._read_claim(record.namespace, record.name)
        except ApiError as error:
            if error.missing:
                return None
            raise
        return claim if claim.metadata.uid == record.uid and _allocates(claim, record) else None

    async def _decide_once_free(
        self,
        claim: ResourceClaim,
        reference: ClaimReference,
        call: object,
        until: float,
        plan: AttachPlan | None,
    ) -> PreparedClaim:
        """Decide. While a claim that is gone holds devices of this one, wait for its end."""
        try:
            async with asyncio.timeout_at(until):
                while True:
                    ended = self._ended
                    try:
                        return self._decide(claim, plan)
                    except Occupied as occupied:
                        refusal = occupied
                    self._conflict.set()
                    if not await self._is_one_gone(claim):
                        break
                    log.info(
                        "A claim waits for the end of another one. claim=%s why=%r", reference, str(refusal)
                    )
                    await ended.wait()
                    claim = await self._read(reference)
                    _refuse_ended(self.preparing, reference.uid, call)
        except TimeoutError:
            pass
        self.conflicts += 1
        raise refusal

    async def _is_one_gone(self, claim: ResourceClaim) -> bool:
        """Whether one of the claims on the devices of this one has no object any more."""
        names = {result.device for result in claim.results_of(DRIVER)}
        for record in tuple(self.records.values()):
            if record.uid != claim.metadata.uid and not names.isdisjoint(it.device for it in record.devices):
                with suppress(ApiError):
                    if await self._claim_of(record) is None:
                        return True
        return False

    def _decide(self, claim: ResourceClaim, plan: AttachPlan | None) -> PreparedClaim:
        """Return the record of a claim, and hold its devices from now on."""
        uid = claim.metadata.uid
        known = self.records.get(uid)
        if known is not None and _allocates(claim, known):
            self._gone_since.pop(uid, None)
            self._take_pods(claim, known)
            if self._awaits_devices(claim):
                raise Refused(f"the devices of {' and '.join(_unknown_pools(self._offer))} are not known yet")
            self.records[uid] = with_present_nodes(self.records[uid], self._offer)
            return self.records[uid]
        unknown = _unknown_pools(self._offer)
        try:
            record = prepare_claim(
                claim,
                node=self._node,
                devices=self._offer.current.known(),
                snapshot=self._offer.snapshot,
                others=[other for other in self.records.values() if other.uid != uid],
                sequence=self._sequence + 1,
                metadata_folder=self._files.new_metadata,
                attach=plan,
            )
        except Occupied:
            raise
        except Refused as refusal:
            if unknown and not refusal.invalid:
                pools = " and ".join(unknown)
                raise Refused(f"{refusal}; the devices of {pools} are not known yet") from None
            raise
        self.records[uid] = record
        self._sequence = record.sequence
        self._gone_since.pop(uid, None)
        self._changed()
        return record

    def _take_pods(self, claim: ResourceClaim, record: PreparedClaim) -> None:
        if claim.pods and (claim.pods, claim.pod_uids) != (record.pods, record.pod_uids):
            self.records[record.uid] = msgspec.structs.replace(
                record, pods=claim.pods, pod_uids=claim.pod_uids
            )
            self._changed()

    async def _make(self, record: PreparedClaim) -> None:
        """Make the MIG devices of a claim, or find them: a reset of the GPU removes them. The record is on the disk
        before they are made, and goes if none is. Raises ``Refused``, ``OSError``, ``Unanswered``."""
        if not record.mig_slots:
            return
        if self._mig is None:
            raise Refused("this agent has no access to the GPU driver, which makes MIG devices")

        async def write_record() -> None:
            await self.writes.write_record(current)

        async with self._mig.lock:
            current = _current(self.records, record)  # another call may have made them
            try:
                made = await self._mig.make(current, write_record)
            except NothingMade as nothing:
                if not current.is_made:  # else a pod may use the claim, and has lost its device
                    await self._forget(record)
                raise Refused(str(nothing)) from None
            self.records[record.uid] = with_mig(_current(self.records, record), made)
            self._changed()

    async def write(self, record: PreparedClaim) -> None:
        """Write the files of a claim. Raises ``OSError``, and ``Refused`` if it was ended."""
        await self.writes.write(lambda: _current(self.records, record))
        self._offer.wake()

    async def _end(self, record: PreparedClaim) -> None:
        if record.mig_slots and self._mig is not None:
            await self._mig.remove(record)
        await self._forget(record)

    async def _forget(self, record: PreparedClaim) -> None:
        if self.records.pop(record.uid, None) is None:
            return
        self._gone_since.pop(record.uid, None)
        self._ended.set()
        self._ended = asyncio.Event()
        self._changed()
        async with self._files.lock:
            if record.uid not in self.records:
                await _tidy(self.writes.calls, self._files.remove, record)

    def _changed(self) -> None:
        if self._mig is not None:
            self._offer.mig_slots = self._mig.slots(self.records.values())
        self._on_change()


def _unknown_pools(offer: DraOffer) -> list[str]:
    return [name for name, pool in offer.current.pools.items() if pool is None]


def _gets_netdevs(claim: ResourceClaim, offer: DraOffer) -> bool:
    """Whether `nodeagent attach` moves VFs of the claim."""
    names = {result.device for result in claim.results_of(DRIVER)}
    return any(device.kind.attaches and device.name in names for device in offer.current.known())


def _current(records: Mapping[str, PreparedClaim], record: PreparedClaim) -> PreparedClaim:
    """Return the record as it is now. Raises ``Refused`` if the claim was ended or has other devices."""
    current = records.get(record.uid)
    if current is None or current.allocation != record.allocation:
        raise Refused("the claim was ended or allocated again meanwhile")
    return current


def _refuse_ended(preparing: Mapping[str, set[object]], uid: str, call: object) -> None:
    """A slow Prepare must not bring back a claim that was unprepared meanwhile."""
    if call not in preparing.get(uid, ()):
        raise Refused("the claim was unprepared meanwhile")


async def _tidy(calls: BoundedCalls, work: Callable[..., None], *arguments: Any) -> None:
    """Remove files. What stays is removed at a later comparison."""
    try:
        await calls.run(work, *arguments)
    except (OSError, Unanswered) as error:
        log.warning("A file of an ended claim cannot be removed. reason=%r", str(error))


def _allocates(claim: ResourceClaim, record: PreparedClaim) -> bool:
    """Whether the claim is allocated to the devices of its record."""
    return claim.status.allocation is not None and allocation_key(claim) == record.allocation
