"""Our HyperNodes that hold the same nodes as somebody else's, marked by a condition on them.

The law of this file:

* The condition is there while the overlap is, and is written when it comes and when it goes: on Volcano up to 1.15.1
  each write to a HyperNode rebuilds a part of the scheduler's tree, be it to the status alone.
* It is applied server-side to ``/status`` by a field manager of its own. Conditions are one list here, which has no
  keys: where somebody else has some, theirs stay and ours is left out. ``status.nodeCount`` is never written.
* So many are written at a time; the tree and the labels do not wait for the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from nodeagent.fabric.hypernode import OURS, SOURCE_LABEL
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import HYPERNODES, Json, Meta, Partial
from nodeagent.rfc3339 import rfc3339

log = logging.getLogger(__name__)

CONDITION = "Overlap"
REASON = "ForeignHyperNode"
MANAGER = "nodeagent-controller-overlap"
AT_ONCE = 20
PAUSE_S, RETRY_S = 1.0, 60.0


class _Condition(msgspec.Struct):
    type: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _HyperNode(msgspec.Struct):
    metadata: Meta
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def marked(self) -> bool:
        ours = (self.metadata.labels or {}).get(SOURCE_LABEL) == OURS
        return ours and any(one.type == CONDITION for one in self.status.conditions or ())


_HYPERNODES = HYPERNODES.typed(_HyperNode)
_PARTIAL = HYPERNODES.typed(Partial)


class Overlaps:
    """``on``: whether anything is marked at all. ``forget`` when leading begins: another may have led meanwhile."""

    def __init__(self, client: Client, *, on: bool = True) -> None:
        self._client, self._on = client, on
        self._marked: set[str] | None = None
        self._others: set[str] = set()
        """Those with conditions of somebody else."""
        self._trouble: str | None = None

    def forget(self) -> None:
        self._marked = None

    async def mark(self, overlapping: Mapping[str, Sequence[str]], there: Collection[str]) -> float | None:
        """Let the condition be on these HyperNodes of ours, and on no other; ``there`` are all that exist.

        Answers in how many seconds there is more to do, if there is.
        """
        if not self._on:
            return None
        try:
            if self._marked is None:
                self._marked = await self._read()
            self._marked.intersection_update(there)
            gone = sorted(self._marked - overlapping.keys())
            self._others.intersection_update(overlapping)
            come = sorted(overlapping.keys() - self._marked - self._others)
            for name in [*gone, *come][:AT_ONCE]:
                await self._apply(name, overlapping.get(name))
            self._trouble = None
        except ApiError as error:
            if self._trouble != error.reason:
                self._trouble = error.reason
                log.warning("The overlap of HyperNodes cannot be marked on them. reason=%r", str(error))
            return max(RETRY_S, error.retry_after_s or 0.0)
        return PAUSE_S if len(gone) + len(come) > AT_ONCE else None

    async def _read(self) -> set[str]:
        found: set[str] = set()

        def take(one: _HyperNode) -> None:
            if one.marked:
                found.add(one.metadata.name)

        await self._client.list_each(_HYPERNODES, take, found.clear)
        return found

    async def _apply(self, name: str, others: Sequence[str] | None) -> None:
        assert self._marked is not None
        body: Json = {"metadata": {"name": name}}
        if others is not None:
            body["status"] = {"conditions": [_condition(others)]}
        try:
            # Applied without it, the condition goes: what this manager no longer says is removed.
            await self._client.apply(_PARTIAL, body, subresource="status", manager=MANAGER, force=False)
        except ApiError as error:
            if error.conflict:
                self._others.add(name)
                log.warning("A HyperNode has conditions of somebody else and is not marked. name=%s", name)
                return
            if not error.missing:
                raise
            others = None
        if others is not None:
            self._marked.add(name)
        else:
            self._marked.discard(name)
        log.info("The overlap of a HyperNode is marked on it. name=%s overlaps=%s", name, others is not None)


def _condition(others: Sequence[str]) -> Json:
    names = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
    return {
        "type": CONDITION,
        "status": "True",
        "reason": REASON,
        "message": f"{names} of another owner holds members of this HyperNode; the tree is not written until one goes",
        "lastTransitionTime": rfc3339(time.time()),
    }
