"""Nodes with too few links up, marked on the Node: a condition, a taint, or both.

The law of this file:

* A mark is a level: who leads reads once which Nodes are marked, and says the difference from then on. Marked
  Nodes are looked at again from time to time, for a Node that registers anew has lost its marks.
* The condition is applied server-side by a field manager of its own and so leaves all others as they are. Taints
  are one list: it is read, changed and written on the version that was read.
* No more than a share of the cluster is tainted, however many nodes lack links: a switch that fails must not
  stop everything. A node is marked when it has been below for a while, and is free at once when it no longer is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODES, Json, Meta, Partial

log = logging.getLogger(__name__)

CONDITION = "nodeagent.io/FabricLinks"
TAINT = {"key": "nodeagent.io/links-below-minimum", "effect": "NoSchedule"}
MANAGER = "nodeagent-controller-links"
PER_SECOND = 10.0
LOOK_AGAIN_S = 600.0
TRIES = 3


@dataclass(frozen=True, slots=True)
class Marks:
    """What is asked for. ``min_links`` is for the condition's message."""

    condition: bool = False
    taint: bool = False
    after_s: float = 60.0
    percent: int = 20
    min_links: int = 0


class _Spec(msgspec.Struct):
    taints: list[Json] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def tainted(self) -> bool:
        return any(_is_ours(taint) for taint in self.spec.taints or ())

    @property
    def conditioned(self) -> bool:
        return any(one.type == CONDITION and one.status == "False" for one in self.status.conditions or ())


_NODES = NODES.typed(_Node)
_PARTIAL = NODES.typed(Partial)


class NodeMarks:
    """``forget`` when leading begins: somebody else may have led meanwhile."""

    def __init__(
        self,
        client: Client,
        marks: Marks,
        per_second: float = PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._marks, self._clock = client, marks, clock
        self._gap_s = 1.0 / per_second
        self._conditioned: dict[str, float] | None = None
        """Which Nodes carry the mark, and when that was last known to be so; ``None``: not read yet."""
        self._tainted: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._trouble: str | None = None
        self.writes: Counter[tuple[str, str]] = Counter()
        """By mark (``condition``, ``taint``) and result: ``ok``, ``gone`` or ``failed``."""
        self.spared = 0
        """Nodes that are below and not tainted, for too many are."""

    @property
    def counts(self) -> dict[str, int]:
        return {"condition": len(self._conditioned or ()), "taint": len(self._tainted)}

    def forget(self) -> None:
        self._conditioned, self._tainted = None, {}

    async def mark(self, below: Iterable[str], nodes: int) -> bool:
        """Make the marks of all Nodes (``nodes`` in number) be those of these. False: something is worth another
        try."""
        if self._conditioned is None and not await self._read():
            return False
        assert self._conditioned is not None
        now = self._clock()
        # Who is marked already has been below for long enough, whoever has seen it.
        early = dict.fromkeys(self._conditioned.keys() | self._tainted.keys(), now - self._marks.after_s)
        self._since = {name: self._since.get(name, early.get(name, now)) for name in below}
        ripe = [name for name, since in sorted(self._since.items()) if now - since >= self._marks.after_s]
        wanted = set(ripe) if self._marks.condition else set[str]()
        tainted = self._share(ripe, nodes) if self._marks.taint else set[str]()
        good = True
        for known, want, put in (
            (self._conditioned, wanted, self._condition),
            (self._tainted, tainted, self._taint),
        ):
            for name in sorted(known.keys() - want):
                good &= await self._do(known, name, put, on=False)
            for name in sorted(want):
                if now - known.get(name, float("-inf")) >= LOOK_AGAIN_S:
                    good &= await self._do(known, name, put, on=True)
        return good

    def next_s(self) -> float | None:
        """In how many seconds time alone asks for ``mark`` again."""
        now, after_s = self._clock(), self._marks.after_s
        waits = [since + after_s - now for since in self._since.values() if since + after_s > now]
        looks = [*(self._conditioned or {}).values(), *self._tainted.values()]
        waits += [at + LOOK_AGAIN_S - now for at in looks]
        return max(0.0, min(waits)) if waits else None

    def _share(self, ripe: list[str], nodes: int) -> set[str]:
        """Who is tainted: those that are already come first, that the taint does not wander."""
        room = max(1, nodes * self._marks.percent // 100) if self._marks.percent else 0
        chosen = sorted(ripe, key=lambda name: (name not in self._tainted, name))[:room]
        spared = len(ripe) - len(chosen)
        if spared and not self.spared:
            log.warning(
                "Too many nodes have too few links to taint them all: has a switch failed? tainted=%d spared=%d",
                len(chosen),
                spared,
            )
        self.spared = spared
        return set(chosen)

    async def _read(self) -> bool:
        """Which Nodes are marked, whoever has done it."""
        conditioned: dict[str, float] = {}
        tainted: dict[str, float] = {}
        now = self._clock()

        def take(node: _Node) -> None:
            if node.conditioned:
                conditioned[node.metadata.name] = now
            if node.tainted:
                tainted[node.metadata.name] = now

        def again() -> None:
            conditioned.clear()
            tainted.clear()

        try:
            await self._client.list_each(_NODES, take, again)
        except ApiError as error:
            self._failed("*", error)
            return False
        self._conditioned, self._tainted = conditioned, tainted
        return True

    async def _do(self, known: dict[str, float], name: str, put: Any, *, on: bool) -> bool:
        mark = "condition" if known is self._conditioned else "taint"
        result = "ok"
        try:
            await put(name, on=on)
            self._trouble = None
        except ApiError as error:
            result = "gone" if error.missing else "failed"
            if result == "failed":
                self._failed(name, error)
        self.writes[mark, result] += 1
        if result == "ok" and on:
            if name not in known:
                log.info("A node has too few links up and is marked. node=%s mark=%s", name, mark)
            known[name] = self._clock()
        elif result != "failed":
            if known.pop(name, None) is not None:
                log.info("A node's mark is gone. node=%s mark=%s", name, mark)
            if on:
                # It is looked for again after a while: a Node that is gone may come back.
                self._since.pop(name, None)
        await asyncio.sleep(self._gap_s)
        return result != "failed"

    async def _condition(self, name: str, *, on: bool) -> None:
        body: Json = {"metadata": {"name": name}}
        if on:
            live = await self._client.get(_NODES, name)
            if live.conditioned:
                return
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            condition = {
                "type": CONDITION,
                "status": "False",
                "reason": "BelowMinLinks",
                "message": f"fewer than {self._marks.min_links} links to the fabric are up",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
            body["status"] = {"conditions": [condition]}
        # Applied without it, the condition goes: what this manager no longer says is removed.
        await self._client.apply(_PARTIAL, body, subresource="status", manager=MANAGER)

    async def _taint(self, name: str, *, on: bool) -> None:
        for attempt in range(TRIES):
            live = await self._client.get(_NODES, name)
            if live.tainted == on:
                return
            taints = [taint for taint in live.spec.taints or () if not _is_ours(taint)]
            body = {
                "metadata": {"resourceVersion": live.metadata.resource_version},
                "spec": {"taints": [*taints, TAINT] if on else taints or None},
            }
            try:
                await self._client.patch(_PARTIAL, name, body)
                return
            except ApiError as error:
                # The kubelet or somebody else has written meanwhile.
                if error.status != 409 or attempt == TRIES - 1:
                    raise

    def _failed(self, name: str, error: ApiError) -> None:
        if self._trouble != error.reason:
            self._trouble = error.reason
            log.warning("The links of a Node cannot be marked on it. node=%s reason=%r", name, str(error))


def _is_ours(taint: Json) -> bool:
    return taint.get("key") == TAINT["key"] and taint.get("effect") == TAINT["effect"]
