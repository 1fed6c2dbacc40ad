"""Write the controller's topology labels on Nodes.

Rules:

* Schedulers watch every Node, so a Node is written once per move, and at most ``LABELS_PER_SECOND`` Nodes in a second.
  At most ``IN_FLIGHT`` writes wait for their answers: a slow API server gets fewer. Where its priority and fairness
  refuses a write for the moment (429), this write waits as long as it says, and is one of these.
* Only the given labels are written. A Node that was deleted meanwhile is no failure.
* The tree does not wait for labels: they are written for a limited time, and the next call continues there.
* A Node whose labels are refused does not block the others. After several refusals in a row, a timeout or a
  ``Retry-After``, nothing more is sent.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.base.supervise import first_cause
from nodeagent.cluster.node_marks import NodeMarks, NodeWrites
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.topology.write_log import WriteLog

LABELS_PER_SECOND = 800.0
IN_FLIGHT = 16
_SEEN_S = 0.1
"""After a round, until the watch has brought its writes: a plan before that would ask for the same labels again."""
_REFUSED_MAX = 3


@dataclass(frozen=True, slots=True)
class LabelResult:
    """``failed``: retry after ``retry_after_s``. ``left_out`` Nodes were not written for lack of time."""

    failed: bool = False
    left_out: int = 0
    retry_after_s: float = 0.0


class NodeLabeler:
    """``client`` should have a thread for each write in flight."""

    def __init__(self, client: ApiClient, write_log: WriteLog, per_second: float = LABELS_PER_SECOND) -> None:
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
        labels_round = _LabelRound(
            (*names[first:], *names[:first]), asyncio.get_running_loop().time() + for_s
        )
        try:
            async with asyncio.TaskGroup() as group:
                await self._write_each(group, labels_round, relabel)
        except ExceptionGroup as errors:
            raise first_cause(errors) from None  # the end of the leadership is known by its own type
        await asyncio.sleep(_SEEN_S)
        return LabelResult(labels_round.failed, len(labels_round.names), labels_round.retry_after_s)

    async def _write_each(
        self,
        group: asyncio.TaskGroup,
        labels_round: _LabelRound,
        relabel: Mapping[str, Mapping[str, str | None]],
    ) -> None:
        """Write one Node after the other, as long as the round goes on. Each success starts another such loop, so that
        a missing right is not tried for many Nodes at once."""
        while name := labels_round.next():
            self._last = name
            await self._nodes.turn()
            result, error = await self._nodes.send(name, self._node_marks.set_labels(name, relabel[name]))
            self.writes[result] += 1
            labels_round.answered(error)
            if error is None and labels_round.loops < IN_FLIGHT:
                labels_round.loops += 1
                group.create_task(self._write_each(group, labels_round, relabel))


class _LabelRound:
    """The Nodes of one call, in order. ``names`` are those that are left, and ``loops`` those that write them."""

    def __init__(self, names: Iterable[str], until: float) -> None:
        self.names = deque(names)
        self.failed = False
        self.retry_after_s = 0.0
        self._until = until
        self._begun = False
        self._stopped = False
        self._refused = 0
        self.loops = 1

    def next(self) -> str | None:
        """The next Node. The first one is written even if no time is left."""
        is_over = self._begun and asyncio.get_running_loop().time() >= self._until
        if self._stopped or is_over or not self.names:
            return None
        self._begun = True
        return self.names.popleft()

    def answered(self, error: ApiError | None) -> None:
        """Count an answer. ``error``: a retry may help."""
        if error is None:
            self._refused = 0
            return
        self.failed = True
        self._refused += 1
        self.retry_after_s = max(self.retry_after_s, error.retry_after_s or 0.0)
        if self._refused >= _REFUSED_MAX or error.status is None or error.retry_after_s is not None:
            self._stopped = True
