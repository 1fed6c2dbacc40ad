"""The writes of the files of claims: whether they succeed at present.

While the files of claims cannot be written, each Prepare fails on a node that looks healthy, and the scheduler sends
the next pod there. So ``unwritable`` keeps new claims away: from a failed write, or from a look at the folders, until
the files that failed are written, or a trial is if their claim has ended.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.kubelet.offer_files import described
from nodeagent.kubelet.withheld import UnwritableFile

log = logging.getLogger(__name__)

WRITES_CHECK_S, _RETRY_S = 10.0, 1.0
"""Between two looks at the folders, and while a file cannot be written."""


class ClaimWrites:
    """Belongs to one event loop. ``changed`` is called when ``unwritable`` has changed."""

    def __init__(self, files: ClaimFiles, calls: BoundedCalls, changed: Callable[[], object]) -> None:
        self.unwritable: UnwritableFile | None = None
        """Why no claim can be prepared: the last attempt to write has failed."""
        self.calls, self._files, self._changed = calls, files, changed
        self._unwritten = ""
        """The UID of the claim whose files could not be written last."""
        self._failed = asyncio.Event()

    async def write(self, record: Callable[[], PreparedClaim]) -> None:
        """Write the files of a claim; ``record`` returns it once it is its turn. Raises ``OSError``."""
        await self._attempt(record, self._files.write)

    async def write_record(self, record: PreparedClaim) -> None:
        """Write the record of a claim alone. Raises ``OSError``."""
        await self._attempt(lambda: record, self._files.write_record)

    async def follow(self, records: Callable[[], Mapping[str, PreparedClaim]]) -> None:
        """Find out whether files can be written, regularly and soon after a failure, until cancelled.

        ``records`` returns those of the prepared claims by UID."""
        while True:
            self._failed.clear()
            await self._look(records)
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITES_CHECK_S if self.unwritable is None else _RETRY_S):
                    await self._failed.wait()

    async def _attempt(
        self, record: Callable[[], PreparedClaim], work: Callable[[PreparedClaim], object]
    ) -> None:
        uid = ""
        try:
            async with self._files.lock:
                claim = record()
                uid = claim.uid
                await self.calls.run(work, claim)
        except OSError as error:
            self._take_failure(error, uid)
            raise
        self._take_success()

    async def _look(self, records: Callable[[], Mapping[str, PreparedClaim]]) -> None:
        uid = self._unwritten
        try:
            async with self._files.lock:
                record = records().get(uid)
                if record is None or (record.mig_slots and not record.is_made):
                    thorough = self.unwritable is not None
                    await self.calls.run(partial(self._files.try_writing, thorough=thorough))
                else:
                    await self.calls.run(self._files.write, record)
        except OSError as error:
            self._take_failure(error, uid)
        else:
            self._take_success()

    def _take_failure(self, error: OSError, uid: str) -> None:
        if error.errno == errno.EFBIG:  # the claim's own fault
            return
        if error.filename is None:  # no answer within the time for a file
            error.filename = str(self._files.folder)
        found, self._unwritten = described(error), uid
        if found != self.unwritable:
            self.unwritable = found
            self._failed.set()
            log.error("New claims are kept away: their files cannot be written. reason=%r", str(found))
            self._changed()

    def _take_success(self) -> None:
        self._unwritten = ""
        if self.unwritable is not None:
            log.info("The files of claims can be written again. file=%s", self.unwritable.path)
            self.unwritable = None
            self._changed()
