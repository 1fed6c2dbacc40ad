"""Write the controller's topology labels on Nodes.

Rules:

* Schedulers and agents watch every Node, so a Node is written once per move, and at most ``PER_SECOND`` Nodes in
  a second.
* Only the given labels are written. A Node that was deleted meanwhile is no failure.
* The tree does not wait for labels: they are written for a limited time, and the next call continues there.
* A Node whose labels are refused does not block the others. After several refusals in a row, a timeout or a
  ``Retry-After``, nothing more is sent.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.cluster.node_marks import NodeMarks, NodeWrites
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.topology.write_log import WriteLog

PER_SECOND = 50.0
REFUSED_MAX = 3


@dataclass(frozen=True, slots=True)
class LabelResult:
    """``failed``: retry after ``retry_after_s``. ``left_out`` Nodes were not written for lack of time."""

    failed: bool = False
    left_out: int = 0
    retry_after_s: float = 0.0


class NodeLabeler:
    def __init__(self, client: ApiClient, write_log: WriteLog, per_second: float = PER_SECOND) -> None:
        self._node_marks = NodeMarks(client)
        self._write_log = write_log
        self._nodes = NodeWrites("The labels of a node cannot be written", per_second)
        self.writes: Counter[str] = Counter()
        """By result: ``ok``, ``gone`` or ``failed``."""
        self._last = ""

    async def label(self, relabel: Mapping[str, Mapping[str, str | None]], for_s: float) -> LabelResult:
        """Write the labels of these Nodes, for at most ``for_s`` seconds."""
        before = self.writes["ok"]
        try:
            return await self._label(relabel, for_s)
        finally:
            if (count := self.writes["ok"] - before) > 0:
                nodes = f"Node {self._last}" if count == 1 else f"{count} Nodes"
                self._write_log.add("patch", nodes, "labels of the position in the tree")

    async def _label(self, relabel: Mapping[str, Mapping[str, str | None]], for_s: float) -> LabelResult:
        names = sorted(relabel)
        first = bisect_right(names, self._last)
        until = asyncio.get_running_loop().time() + for_s
        failed, refused = False, 0
        for done, name in enumerate((*names[first:], *names[:first])):
            if done and asyncio.get_running_loop().time() >= until:
                return LabelResult(failed, len(names) - done)
            self._last = name
            error = await self._write(name, relabel[name])
            failed = failed or error is not None
            refused = 0 if error is None else refused + 1
            if error is not None and (
                refused >= REFUSED_MAX or error.status is None or error.retry_after_s is not None
            ):
                return LabelResult(True, len(names) - done - 1, error.retry_after_s or 0.0)
        return LabelResult(failed)

    async def _write(self, name: str, labels: Mapping[str, str | None]) -> ApiError | None:
        """Write the labels of one Node. Return the error if a retry may help."""
        result, error = await self._nodes.send(name, self._node_marks.set_labels(name, labels))
        self.writes[result] += 1
        await self._nodes.pause()
        return error
