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
from collections.abc import Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.cluster.cluster_settings import NodesSettings
from nodeagent.cluster.node_marks import (
    FABRIC_CONDITION,
    FABRIC_TAINT,
    STORED_NODES,
    NodeCondition,
    NodeMarks,
    NodeWrites,
    StoredNode,
)
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import NotLeading
from nodeagent.metrics.computed_family import ComputedFamily, computed, single
from nodeagent.metrics.text_format import Series
from nodeagent.topology.parts import ControllerCore, ControllerPart

log = logging.getLogger(__name__)

FIELD_MANAGER = "nodeagent-controller-links"
_PER_SECOND = 10.0
CHECK_AGAIN_S = 600.0
_FIRST_S, _MAX_S = 2.0, 60.0
"""The pause after a failure: the first, and the longest."""


@dataclass(slots=True)
class MinLinksMark:
    """A row of the marker's table.

    ``wanted`` returns the Nodes that should have the mark, from those that have been below the minimum for long enough,
    and the number of Nodes in the cluster. ``put`` sets it on a Node or removes it.
    """

    name: str
    wanted: Callable[[list[str], int], AbstractSet[str]]
    is_on: Callable[[StoredNode], bool]
    put: Callable[[str, bool], Awaitable[None]]
    nodes: dict[str, float] = field(default_factory=dict)
    """The Nodes with the mark, and when each was last checked."""


class MinLinksMarker:
    """Call ``forget`` when this replica becomes the leader: another may have written marks before.
    ``min_links`` is for the condition's message."""

    def __init__(
        self,
        client: ApiClient,
        settings: NodesSettings,
        min_links: int = 0,
        per_second: float = _PER_SECOND,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client, self._settings, self._clock = client, settings, clock or time.monotonic
        self._min_links = min_links
        self._node_marks = NodeMarks(client, FIELD_MANAGER)
        self._nodes = NodeWrites("A node with too few links cannot be marked", per_second)
        self._marks = (
            MinLinksMark("condition", self._wants_condition, _has_condition, self._put_condition),
            MinLinksMark("taint", self._wants_taint, _has_taint, self._put_taint),
        )
        self._is_read = False
        self._below_since: dict[str, float] = {}
        self.writes: Counter[tuple[str, str]] = Counter()
        """By mark (``condition``, ``taint``) and result: ``ok``, ``gone`` or ``failed``."""
        self.spared = 0
        """Nodes below the minimum without a taint, because ``taintPercent`` are tainted already."""

    @property
    def counts(self) -> dict[str, int]:
        return {mark.name: len(mark.nodes) for mark in self._marks}

    def forget(self) -> None:
        self._is_read = False
        for mark in self._marks:
            mark.nodes = {}

    async def mark(self, below: Iterable[str], nodes: int) -> bool:
        """Mark exactly the Nodes ``below`` the minimum, of ``nodes`` in the cluster.

        Return False if a call failed and should be retried.
        """
        if not self._is_read and not await self._read():
            return False
        now, after_s = self._clock(), self._settings.after_seconds
        # A Node that another leader has marked has been below for long enough.
        early = {name: now - after_s for mark in self._marks for name in mark.nodes}
        self._below_since = {name: self._below_since.get(name, early.get(name, now)) for name in below}
        due = [name for name, since in sorted(self._below_since.items()) if now >= since + after_s]
        good = True
        for mark, wanted in [(mark, mark.wanted(due, nodes)) for mark in self._marks]:
            for name in sorted(mark.nodes.keys() - wanted):
                good &= await self._write(mark, name, on=False)
            for name in sorted(wanted):
                if now - mark.nodes.get(name, float("-inf")) >= CHECK_AGAIN_S:
                    good &= await self._write(mark, name, on=True)
        return good

    def next_s(self) -> float | None:
        """Seconds until ``mark`` has something to do although nothing changes."""
        now, after_s = self._clock(), self._settings.after_seconds
        waits = [since + after_s - now for since in self._below_since.values() if since + after_s > now]
        waits += [at + CHECK_AGAIN_S - now for mark in self._marks for at in mark.nodes.values()]
        return max(0.0, min(waits)) if waits else None

    async def _read(self) -> bool:
        """Read which Nodes are marked."""
        now = self._clock()
        found: dict[str, dict[str, float]] = {mark.name: {} for mark in self._marks}

        def take(node: StoredNode) -> None:
            for mark in self._marks:
                if mark.is_on(node):
                    found[mark.name][node.metadata.name] = now

        def restart() -> None:
            for names in found.values():
                names.clear()

        try:
            await self._client.list_each(STORED_NODES, take, restart)
        except ApiError as error:
            self._nodes.failures.failed(error, node="*")
            return False
        for mark in self._marks:
            mark.nodes = found[mark.name]
        self._is_read = True
        return True

    async def _write(self, mark: MinLinksMark, name: str, *, on: bool) -> bool:
        """Set or remove one mark of one Node and record it."""
        result, _ = await self._nodes.send(name, mark.put(name, on))
        self.writes[mark.name, result] += 1
        if result == "ok" and on:
            if name not in mark.nodes:
                log.info("A node has too few links up and is marked. node=%s mark=%s", name, mark.name)
            mark.nodes[name] = self._clock()
        elif result != "failed":
            if mark.nodes.pop(name, None) is not None:
                log.info("A mark of a node is removed. node=%s mark=%s", name, mark.name)
            if on:
                # A deleted Node may come back: its time below the minimum starts again.
                self._below_since.pop(name, None)
        await self._nodes.pause()
        return result != "failed"

    # --- the condition ------------------------------------------------------------------------------------------

    def _wants_condition(self, due: list[str], _nodes: int) -> set[str]:
        return set(due) if self._settings.min_links_condition else set()

    async def _put_condition(self, name: str, on: bool) -> None:
        if not on:
            await self._node_marks.set_conditions(name, ())
        elif not _has_condition(await self._node_marks.read(name)):
            message = f"fewer than {self._min_links} links to the fabric are up"
            condition = NodeCondition(FABRIC_CONDITION, "False", "BelowMinLinks", message)
            await self._node_marks.set_conditions(name, (condition,))

    # --- the taint ----------------------------------------------------------------------------------------------

    def _wants_taint(self, due: list[str], nodes: int) -> set[str]:
        """Tainted Nodes come first, so that the taint does not move between Nodes."""
        if not self._settings.min_links_taint:
            return set()
        most = max(1, nodes * self._settings.taint_percent // 100) if self._settings.taint_percent else 0
        tainted = self._marks[1].nodes
        chosen = sorted(due, key=lambda name: (name not in tainted, name))[:most]
        spared = len(due) - len(chosen)
        if spared and not self.spared:
            log.warning(
                "Too many nodes have too few links to taint them all; check the switches. tainted=%d spared=%d",
                len(chosen),
                spared,
            )
        self.spared = spared
        return set(chosen)

    async def _put_taint(self, name: str, on: bool) -> None:
        await self._node_marks.set_taint(name, FABRIC_TAINT, on=on)


def _has_condition(node: StoredNode) -> bool:
    return any(one.type == FABRIC_CONDITION and one.status == "False" for one in node.conditions)


def _has_taint(node: StoredNode) -> bool:
    return node.has_taint(FABRIC_TAINT)


# --- the feature of the controller ----------------------------------------------------------------------------

MARK_FAMILIES: tuple[ComputedFamily[MinLinksMarker], ...] = (
    computed("fabric_marked_nodes", "mark", "Nodes marked for having too few links up.",
        lambda marks: (((mark,), count) for mark, count in marks.counts.items())),
    computed("fabric_spared_nodes", "",
        "Nodes with too few links that are not tainted, because too many would be.",
        lambda marks: single(marks.spared)),
)  # fmt: skip


def start_marks(core: ControllerCore, settings: NodesSettings, min_links: int) -> ControllerPart:
    if not (settings.min_links_condition or settings.min_links_taint):
        return ControllerPart()
    marks = MinLinksMarker(core.writer, settings, min_links)

    def writes() -> Iterator[Series]:
        for (mark, result), count in sorted(marks.writes.items()):
            yield ("apply" if mark == "condition" else "patch", f"node-{mark}", result), count

    return ControllerPart({"marks": lambda: _lead(core, marks)}, shown=marks, writes=writes)


async def _lead(core: ControllerCore, marks: MinLinksMarker) -> None:
    """Mark nodes with too few links after each plan and when a mark is due, until cancelled."""
    await core.plans.first()
    marks.forget()
    backoff = Backoff(_FIRST_S, _MAX_S, jitter=JITTER)
    while True:
        outcome, plans = core.plans.outcome, core.plans.progress.plans
        assert outcome is not None
        try:
            good = await marks.mark(outcome.below_min_links, len(core.mirror.nodes.objects))
        except NotLeading:
            await asyncio.Event().wait()  # until this task is cancelled
            return
        wait_s = marks.next_s()
        if good:
            backoff.reset()
        else:
            await asyncio.sleep(backoff.next_s())
            wait_s = 0.0
        try:
            async with asyncio.timeout(wait_s):
                await core.plans.after(plans)
        except TimeoutError:
            pass
