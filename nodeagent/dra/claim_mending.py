"""The files of prepared claims while the agent runs: written again when they are gone, or their device nodes changed.

A container that restarts reads the CDI spec without a Prepare. So a spec that was removed, as by a cleaned
``/var/run/cdi``, keeps it from its start, and one with device nodes of before the driver was loaded again could give it
another device.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claim_preparation import renewed
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim, gone_device, has_other_names, is_outdated
from nodeagent.kinds import Refused, ascii_name

if TYPE_CHECKING:
    from nodeagent.dra.claims import PreparedClaims

log = logging.getLogger(__name__)

MEND_S = 10.0


class ClaimMending:
    """Belongs to the event loop of ``claims``."""

    def __init__(self, claims: PreparedClaims, files: ClaimFiles, offer: DraOffer) -> None:
        self._claims, self._files, self._offer = claims, files, offer
        self._due: set[str] = set()
        """The claims whose files are to be written."""

    async def follow(self) -> None:
        """Mend the files regularly, until cancelled."""
        while True:
            await self.mend()
            await asyncio.sleep(MEND_S)

    async def mend(self) -> None:
        """Write the files that are gone from the disk, and those with device nodes that have changed. While these
        cannot be given, no container of the claim starts."""
        claims, calls = self._claims, self._claims.writes.calls
        try:
            async with self._files.lock:
                lost = await calls.run(self._files.lost, tuple(claims.records.values()))
        except OSError as error:
            log.warning("The files of claims cannot be looked at. reason=%r", str(error))
            return
        self._due &= claims.records.keys()
        for record in tuple(claims.records.values()):
            uid = record.uid
            if claims.records.get(uid) is not record or uid in claims.preparing or not record.is_made:
                continue
            try:
                current = with_present_nodes(record, self._offer)
            except Refused as refusal:
                await self._withdraw(record, str(refusal))
                continue
            if current is record and uid not in lost | self._due:
                continue
            claims.records[uid] = current
            self._due.add(uid)
            with suppress(OSError, Refused):  # the first is logged, the second has ended
                await claims.write(current)
                self._due.discard(uid)
                log.info("The files of a claim are written again. claim=%s", _named(current))

    async def _withdraw(self, record: PreparedClaim, why: str) -> None:
        if record.uid not in self._files.written:
            return
        log.error("No container of a claim starts. claim=%s reason=%r", _named(record), why)
        try:
            async with self._files.lock:
                await self._claims.writes.calls.run(self._files.withdraw, record)
        except OSError as error:
            log.warning("The CDI spec of a claim cannot be removed. reason=%r", str(error))
            return
        self._due.add(record.uid)
        self._offer.wake()


def with_present_nodes(record: PreparedClaim, offer: DraOffer) -> PreparedClaim:
    """Return the record with the device nodes that its devices have now. Raises ``Refused`` if a device is gone, or if
    the nodes cannot be given, and those of the record are not theirs."""
    pools = offer.current.pools
    known_pools = {pool for pool, devices in pools.items() if devices is not None}
    not_offered = {device.kind for device in record.devices if offer.known and device.kind not in pools}
    gone = gone_device(record, offer.snapshot, known_pools)
    if gone is not None:
        raise Refused(f"the device {ascii_name(gone)} of the claim is not there any more")
    outdated = is_outdated(record, offer.snapshot)
    renamed = has_other_names(record, offer.snapshot)
    if not (outdated or renamed) and all(device.amount for device in record.devices):
        return record
    try:
        current = renewed(record, offer.current.known(), offer.snapshot, known_pools | not_offered)
    except Refused as refusal:
        if not outdated:
            return record
        raise Refused(
            f"the device nodes of the claim have changed since it was prepared: {refusal}"
        ) from None
    if current == record:
        return record
    log.warning(
        "The device nodes of a claim, or the names of its RDMA devices, have changed. claim=%s",
        _named(record),
    )
    return current


def _named(record: PreparedClaim) -> str:
    return f"{ascii_name(record.namespace)}/{ascii_name(record.name)}"
