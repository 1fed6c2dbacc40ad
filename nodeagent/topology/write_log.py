"""The writes to the API server of the last hour, for people: what was written, why, and with which result."""

from __future__ import annotations

import time
from collections import deque

from nodeagent.fabric.outcome import WriteRecord

KEPT = 500
"""Writes; the tree of 10,000 nodes has some 320 HyperNodes, and its labels are one record for each round."""
KEPT_S = 3600.0


class WriteLog:
    def __init__(self) -> None:
        self._records: deque[WriteRecord] = deque(maxlen=KEPT)

    def add(self, verb: str, written: str, reason: str, result: str = "ok") -> None:
        self._records.append(WriteRecord(time.time(), verb, written, reason, result))

    def recent(self) -> tuple[WriteRecord, ...]:
        oldest = time.time() - KEPT_S
        return tuple(record for record in self._records if record.at >= oldest)
