"""Where a Node stands in the fabric, as labels on it.

The law of this file:

* A Node is seen by every scheduler and every agent that watches Nodes, so it is written once per move, and no
  more than ``PER_SECOND`` are.
* Only the labels handed in are touched. A Node that has gone meanwhile is no fault.
* The tree does not wait for labels: they are written for a while, and later from where that ended.
* One Node that is refused keeps no other from its labels; a server that refuses several in a row, wants to be left
  alone or does not answer is asked for no more.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODES, Partial

log = logging.getLogger(__name__)

PER_SECOND = 50.0
REFUSED_MAX = 3

_NODE = NODES.typed(Partial)


@dataclass(frozen=True, slots=True)
class Labelled:
    """``failed``: something is worth another try, after ``retry_after_s``; ``left_out`` Nodes were not come to."""

    failed: bool = False
    left_out: int = 0
    retry_after_s: float = 0.0


class NodeLabels:
    def __init__(self, client: Client, per_second: float = PER_SECOND) -> None:
        self._client = client
        self._gap_s = 1.0 / per_second
        self.writes: Counter[str] = Counter()
        """By result: ``ok``, ``gone`` or ``failed``."""
        self._trouble: str | None = None
        self._last = ""

    async def label(self, relabel: Mapping[str, Mapping[str, str | None]], for_s: float) -> Labelled:
        """Patch the labels of these Nodes, for no longer than so many seconds."""
        names = sorted(relabel)
        first = bisect_right(names, self._last)
        until = asyncio.get_running_loop().time() + for_s
        failed, refused = False, 0
        for done, name in enumerate((*names[first:], *names[:first])):
            if done and asyncio.get_running_loop().time() >= until:
                return Labelled(failed, len(names) - done)
            self._last = name
            error = await self._patch(name, {"metadata": {"labels": dict(relabel[name])}})
            failed = failed or error is not None
            refused = 0 if error is None else refused + 1
            if error is not None and (
                refused >= REFUSED_MAX or error.status is None or error.retry_after_s is not None
            ):
                return Labelled(True, len(names) - done - 1, error.retry_after_s or 0.0)
        return Labelled(failed)

    async def _patch(self, name: str, body: dict[str, Any]) -> ApiError | None:
        """The error, where another try may help."""
        failure = None
        try:
            await self._client.patch(_NODE, name, body)
            self._trouble = None
            result = "ok"
        except ApiError as error:
            result = "gone" if error.missing else "failed"
            failure = None if error.missing else error
            if failure is not None and self._trouble != error.reason:
                self._trouble = error.reason
                log.warning("The labels of a Node cannot be written. node=%s reason=%r", name, str(error))
        self.writes[result] += 1
        await asyncio.sleep(self._gap_s)
        return failure
