"""The files of prepared claims while the agent runs: written again when they are gone, or their device nodes changed.

A container that restarts reads the CDI spec without a Prepare. So a spec that was removed, as by a cleaned
``/var/run/cdi``, keeps it from its start, and one with device nodes of before the driver was loaded again could give it
another device.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claims import PreparedClaims
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.dra.present_nodes import with_present_nodes
from nodeagent.kinds import Refused

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
                log.info("The files of a claim are written again. claim=%s", current.full_name)

    async def _withdraw(self, record: PreparedClaim, why: str) -> None:
        if record.uid not in self._files.written:
            return
        log.error("No container of a claim starts. claim=%s reason=%r", record.full_name, why)
        try:
            async with self._files.lock:
                await self._claims.writes.calls.run(self._files.withdraw, record)
        except OSError as error:
            log.warning("The CDI spec of a claim cannot be removed. reason=%r", str(error))
            return
        self._due.add(record.uid)
        self._offer.wake()
