"""The controller's marks on Nodes with too few links up: a condition, a taint, or both.

Rules:

* A mark is a level: a new leader reads once which Nodes are marked, then writes only differences. Marked Nodes
  are checked again from time to time, because a Node that registers again has lost its marks.
* A Node is marked after it has been below the minimum for ``afterSeconds``, and unmarked at once when it no longer is.
* At most ``taintPercent`` of the Nodes are tainted: a failed switch must not stop the whole cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from nodeagent.cluster.cluster_settings import NodesSettings
from nodeagent.cluster.node_marks import STORED_NODES, NodeCondition, NodeMarks, NodeTaint, StoredNode
from nodeagent.cluster.retry import FailureLog
from nodeagent.kube.client import ApiClient, ApiError

log = logging.getLogger(__name__)

CONDITION = "nodeagent.io/FabricLinks"
TAINT = NodeTaint("nodeagent.io/links-below-minimum")
FIELD_MANAGER = "nodeagent-controller-links"
PER_SECOND = 10.0
CHECK_AGAIN_S = 600.0


class _SetMark(Protocol):
    def __call__(self, name: str, *, on: bool) -> Awaitable[None]: ...


class MinLinksMarker:
    """Call ``forget`` when this replica becomes the leader: another may have written marks before.
    ``min_links`` is for the condition's message."""

    def __init__(
        self,
        client: ApiClient,
        settings: NodesSettings,
        min_links: int = 0,
        per_second: float = PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._settings, self._clock = client, settings, clock
        self._min_links = min_links
        self._node_marks = NodeMarks(client, FIELD_MANAGER)
        self._gap_s = 1.0 / per_second
        self._conditioned: dict[str, float] | None = None
        """The Nodes with the condition, and when each was last checked; ``None``: not read yet."""
        self._tainted: dict[str, float] = {}
        self._below_since: dict[str, float] = {}
        self._failures = FailureLog("A node with too few links cannot be marked")
        self.writes: Counter[tuple[str, str]] = Counter()
        """By mark (``condition``, ``taint``) and result: ``ok``, ``gone`` or ``failed``."""
        self.spared = 0
        """Nodes below the minimum without a taint, because ``taintPercent`` are tainted already."""

    @property
    def counts(self) -> dict[str, int]:
        return {"condition": len(self._conditioned or ()), "taint": len(self._tainted)}

    def forget(self) -> None:
        self._conditioned, self._tainted = None, {}

    async def mark(self, below: Iterable[str], nodes: int) -> bool:
        """Mark exactly the Nodes ``below`` the minimum, of ``nodes`` in the cluster.

        Return False if a call failed and should be retried.
        """
        if self._conditioned is None and not await self._read():
            return False
        assert self._conditioned is not None
        now, after_s = self._clock(), self._settings.after_seconds
        # A Node that another leader has marked has been below for long enough.
        early = dict.fromkeys(self._conditioned.keys() | self._tainted.keys(), now - after_s)
        self._below_since = {name: self._below_since.get(name, early.get(name, now)) for name in below}
        due = [name for name, since in sorted(self._below_since.items()) if now >= since + after_s]
        conditioned = set(due) if self._settings.min_links_condition else set[str]()
        tainted = self._chosen_for_taint(due, nodes) if self._settings.min_links_taint else set[str]()
        good = True
        for mark, marked, wanted in (
            ("condition", self._conditioned, conditioned),
            ("taint", self._tainted, tainted),
        ):
            for name in sorted(marked.keys() - wanted):
                good &= await self._write(mark, marked, name, on=False)
            for name in sorted(wanted):
                if now - marked.get(name, float("-inf")) >= CHECK_AGAIN_S:
                    good &= await self._write(mark, marked, name, on=True)
        return good

    def next_s(self) -> float | None:
        """Seconds until ``mark`` has something to do although nothing changes."""
        now, after_s = self._clock(), self._settings.after_seconds
        waits = [since + after_s - now for since in self._below_since.values() if since + after_s > now]
        checked = [*(self._conditioned or {}).values(), *self._tainted.values()]
        waits += [at + CHECK_AGAIN_S - now for at in checked]
        return max(0.0, min(waits)) if waits else None

    def _chosen_for_taint(self, due: list[str], nodes: int) -> set[str]:
        """The Nodes to taint. Tainted Nodes come first, so that the taint does not move between Nodes."""
        most = max(1, nodes * self._settings.taint_percent // 100) if self._settings.taint_percent else 0
        chosen = sorted(due, key=lambda name: (name not in self._tainted, name))[:most]
        spared = len(due) - len(chosen)
        if spared and not self.spared:
            log.warning(
                "Too many nodes have too few links to taint them all; check the switches. tainted=%d spared=%d",
                len(chosen),
                spared,
            )
        self.spared = spared
        return set(chosen)

    async def _read(self) -> bool:
        """Read which Nodes are marked."""
        conditioned: dict[str, float] = {}
        tainted: dict[str, float] = {}
        now = self._clock()

        def take(node: StoredNode) -> None:
            if _has_condition(node):
                conditioned[node.metadata.name] = now
            if node.has_taint(TAINT):
                tainted[node.metadata.name] = now

        def restart() -> None:
            conditioned.clear()
            tainted.clear()

        try:
            await self._client.list_each(STORED_NODES, take, restart)
        except ApiError as error:
            self._failures.failed(error, node="*")
            return False
        self._conditioned, self._tainted = conditioned, tainted
        return True

    async def _write(self, mark: str, marked: dict[str, float], name: str, *, on: bool) -> bool:
        """Set or remove one mark of one Node and record it in ``marked``."""
        set_mark: _SetMark = self._set_condition if mark == "condition" else self._set_taint
        result = "ok"
        try:
            await set_mark(name, on=on)
            self._failures.succeeded()
        except ApiError as error:
            result = "gone" if error.missing else "failed"
            if result == "failed":
                self._failures.failed(error, node=name)
        self.writes[mark, result] += 1
        if result == "ok" and on:
            if name not in marked:
                log.info("A node has too few links up and is marked. node=%s mark=%s", name, mark)
            marked[name] = self._clock()
        elif result != "failed":
            if marked.pop(name, None) is not None:
                log.info("A mark of a node is removed. node=%s mark=%s", name, mark)
            if on:
                # A deleted Node may come back: its time below the minimum starts again.
                self._below_since.pop(name, None)
        await asyncio.sleep(self._gap_s)
        return result != "failed"

    async def _set_condition(self, name: str, *, on: bool) -> None:
        if not on:
            await self._node_marks.set_conditions(name, ())
        elif not _has_condition(await self._node_marks.read(name)):
            message = f"fewer than {self._min_links} links to the fabric are up"
            condition = NodeCondition(CONDITION, "False", "BelowMinLinks", message)
            await self._node_marks.set_conditions(name, (condition,))

    async def _set_taint(self, name: str, *, on: bool) -> None:
        await self._node_marks.set_taint(name, TAINT, on=on)


def _has_condition(node: StoredNode) -> bool:
    return any(condition.type == CONDITION and condition.status == "False" for condition in node.conditions)
