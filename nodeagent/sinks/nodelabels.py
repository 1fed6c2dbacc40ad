"""Where a Node stands in the fabric, as labels on it.

The law of this file:

* A Node is seen by every scheduler and every agent that watches Nodes, so it is written once per move, and no
  more than ``PER_SECOND`` are.
* Only the labels handed in are touched. A Node that has gone meanwhile is no fault.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODES, Partial

log = logging.getLogger(__name__)

PER_SECOND = 50.0

_NODE = NODES.typed(Partial)


class NodeLabels:
    def __init__(self, client: Client, per_second: float = PER_SECOND) -> None:
        self._client = client
        self._gap_s = 1.0 / per_second
        self.writes: Counter[str] = Counter()
        """By result: ``ok``, ``gone`` or ``failed``."""
        self._trouble: str | None = None

    async def label(
        self,
        relabel: Mapping[str, Mapping[str, str | None]],
        wanted: Callable[[str], Mapping[str, str | None] | None],
    ) -> bool:
        """Patch the labels of these Nodes. ``wanted`` says just before each what is to be changed by now: at first
        there are as many patches as Nodes, and plans go on meanwhile. False when something failed and is worth
        another try."""
        good = True
        for name in sorted(relabel):
            if labels := wanted(name):
                good &= await self._patch(name, {"metadata": {"labels": dict(labels)}})
        return good

    async def _patch(self, name: str, body: dict[str, Any]) -> bool:
        result = "ok"
        try:
            await self._client.patch(_NODE, name, body)
            self._trouble = None
        except ApiError as error:
            result = "gone" if error.missing else "failed"
            if result == "failed" and self._trouble != error.reason:
                self._trouble = error.reason
                log.warning("The labels of a Node cannot be written. node=%s reason=%r", name, str(error))
        self.writes[result] += 1
        await asyncio.sleep(self._gap_s)
        return result != "failed"
