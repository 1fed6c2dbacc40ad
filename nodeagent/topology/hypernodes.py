"""Write the tree: HyperNodes in the order of a plan, a condition on those that overlap with another owner's, and Events
about what keeps the tree from being written.

Rules of the tree:

* After each single write, the tree in the API server is one that Volcano accepts. The plan gives the order; a write
  is sent only after the writes that it depends on have succeeded.
* A write is conditional on the resource version that it was planned on, so a plan on outdated data is refused.
* A member list is replaced as a whole. ``status`` is never written with the tree.
* A failed write is not repeated here: the next plan contains it, based on the data of that time.
* After a timeout or a ``Retry-After``, nothing more is sent.

Rules of the condition:

* It is written when the overlap begins and when it ends, and not between: up to Volcano 1.15.1, each write to a
  HyperNode rebuilds a part of the scheduler's tree, even a write to the status alone.
* It is applied server-side to ``/status`` by a field manager of its own. A HyperNode's conditions are one list
  without keys: where another owner has conditions, theirs stay and none is written. ``status.nodeCount`` is never
  written.
* A few are written at a time, so that the tree and the labels do not wait.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cluster.event_writer import EventTarget, EventWriter, Notice
from nodeagent.cluster.node_marks import StoredCondition
from nodeagent.cluster.retry import FailureLog
from nodeagent.fabric.hypernode import OURS, OWN_ANNOTATIONS, SOURCE_LABEL, HyperNode, render
from nodeagent.fabric.outcome import PlanOutcome, TreeWrite, obstacles
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, Json, Meta, Partial
from nodeagent.topology.write_log import WriteLog

log = logging.getLogger(__name__)

COMPONENT = "nodeagent-controller"
"""Of Events."""
CONDITION = "Overlap"
REASON = "ForeignHyperNode"
OVERLAP_MANAGER = "nodeagent-controller-overlap"
OVERLAPS_AT_ONCE = 20
OVERLAP_PAUSE_S, OVERLAP_RETRY_S = 1.0, 60.0


@dataclass(slots=True)
class TreeResult:
    """``versions`` are the new resource versions by name, ``None`` for a deleted HyperNode."""

    versions: dict[str, str | None] = field(default_factory=dict)
    failed: list[tuple[TreeWrite, ApiError]] = field(default_factory=list)
    left_out: int = 0
    retry_after_s: float = 0.0


class HyperNodeWriter:
    """Write the tree."""

    def __init__(self, client: ApiClient, write_log: WriteLog) -> None:
        self._client, self._write_log = client, write_log
        self.writes: Counter[tuple[str, str]] = Counter()
        """By verb and result: ``ok``, ``conflict``, ``refused`` or ``unreachable``."""
        self._failures: dict[str, str] = {}

    async def write(self, writes: Sequence[TreeWrite]) -> TreeResult:
        """Send the writes. An exception of the client's guard passes: this replica may no longer write."""
        result = TreeResult()
        done: set[int] = set()
        for place, write in enumerate(writes):
            if not done.issuperset(write.after):
                result.left_out += 1
                continue
            try:
                await self._send(write, result)
            except ApiError as error:
                self.writes[write.verb, _outcome(error)] += 1
                result.failed.append((write, error))
                self._write_log.add(write.verb, f"HyperNode {write.object.name}", write.reason, str(error))
                self._log_failure(write, error)
                if error.retry_after_s is not None or error.status is None:
                    result.left_out += len(writes) - place - 1
                    result.retry_after_s = error.retry_after_s or 0.0
                    break
                continue
            done.add(place)
            self._write_log.add(write.verb, f"HyperNode {write.object.name}", write.reason)
            self.writes[write.verb, "ok"] += 1
            if self._failures.pop(write.object.name, None):
                log.info("A HyperNode can be written again. name=%s", write.object.name)
        return result

    async def _send(self, write: TreeWrite, result: TreeResult) -> None:
        hypernode, name = write.object, write.object.name
        version = hypernode.resource_version or result.versions.get(name)
        if write.verb == "delete":
            try:
                await self._client.delete(HYPERNODES, name, resource_version=version)
            except ApiError as error:
                if not error.missing:
                    raise
            result.versions[name] = None
        elif write.verb == "create":
            created = await self._client.create(_WRITTEN, render(hypernode))
            result.versions[name] = created.metadata.resource_version
        else:
            patched = await self._client.patch(_WRITTEN, name, _patch(hypernode, version))
            result.versions[name] = patched.metadata.resource_version
        log.info(
            "A HyperNode is written. verb=%s name=%s members=%d reason=%r",
            write.verb,
            name,
            len(hypernode.nodes) + len(hypernode.children),
            write.reason,
        )

    def _log_failure(self, write: TreeWrite, error: ApiError) -> None:
        name = write.object.name
        if self._failures.get(name) != str(error):
            self._failures[name] = str(error)
            log.warning(
                "A HyperNode cannot be written; the next plan tries again. verb=%s name=%s reason=%r",
                write.verb,
                name,
                str(error),
            )


def _patch(hypernode: HyperNode, version: str | None) -> dict[str, Any]:
    """A merge patch: its lists replace lists, and it removes our annotations that the HyperNode no longer has."""
    body = render(hypernode)
    annotations = dict.fromkeys(OWN_ANNOTATIONS, None) | dict(hypernode.annotations)
    metadata: dict[str, Any] = {"labels": dict(hypernode.labels), "annotations": annotations}
    if version is not None:
        metadata["resourceVersion"] = version
    return {"metadata": metadata, "spec": body["spec"]}


def _outcome(error: ApiError) -> str:
    if error.conflict:
        return "conflict"
    return "unreachable" if error.status is None or error.status >= 500 else "refused"


class _HyperNodeStatus(msgspec.Struct):
    conditions: list[StoredCondition] | None = None


class _StoredHyperNode(msgspec.Struct):
    metadata: Meta
    status: _HyperNodeStatus = msgspec.field(default_factory=_HyperNodeStatus)

    @property
    def marked(self) -> bool:
        ours = (self.metadata.labels or {}).get(SOURCE_LABEL) == OURS
        return ours and any(condition.type == CONDITION for condition in self.status.conditions or ())


_STORED = HYPERNODES.typed(_StoredHyperNode)
_WRITTEN = HYPERNODES.typed(Partial)


class OverlapMarker:
    """Write the condition where ``enabled``.

    Call ``forget`` when this replica becomes the leader: another may have written conditions before.
    """

    def __init__(self, client: ApiClient, *, enabled: bool = True) -> None:
        self._client, self._enabled = client, enabled
        self._marked: set[str] | None = None
        self._foreign_conditions: set[str] = set()
        """HyperNodes with conditions of another owner."""
        self._failures = FailureLog("The overlap of HyperNodes cannot be marked on them")

    def forget(self) -> None:
        self._marked = None

    async def mark(self, overlapping: Mapping[str, Sequence[str]], existing: Collection[str]) -> float | None:
        """Let exactly the ``overlapping`` HyperNodes of this controller have the condition.

        ``existing``: all HyperNodes.

        Return the seconds until there is more to do, if there is.
        """
        if not self._enabled:
            return None
        try:
            if self._marked is None:
                self._marked = await self._read()
            self._marked.intersection_update(existing)
            ended = sorted(self._marked - overlapping.keys())
            self._foreign_conditions.intersection_update(overlapping)
            new = sorted(overlapping.keys() - self._marked - self._foreign_conditions)
            for name in [*ended, *new][:OVERLAPS_AT_ONCE]:
                await self._apply(name, overlapping.get(name))
            self._failures.succeeded()
        except ApiError as error:
            self._failures.failed(error)
            return max(OVERLAP_RETRY_S, error.retry_after_s or 0.0)
        return OVERLAP_PAUSE_S if len(ended) + len(new) > OVERLAPS_AT_ONCE else None

    async def _read(self) -> set[str]:
        marked: set[str] = set()

        def take(hypernode: _StoredHyperNode) -> None:
            if hypernode.marked:
                marked.add(hypernode.metadata.name)

        await self._client.list_each(_STORED, take, marked.clear)
        return marked

    async def _apply(self, name: str, others: Sequence[str] | None) -> None:
        """Set the condition that names the ``others``, or remove it."""
        assert self._marked is not None
        body: Json = {"metadata": {"name": name}}
        if others is not None:
            body["status"] = {"conditions": [_condition(others)]}
        try:
            # Without the condition it is removed: the field manager no longer applies it.
            await self._client.apply(
                _WRITTEN, body, subresource="status", manager=OVERLAP_MANAGER, force=False
            )
        except ApiError as error:
            if error.conflict:
                self._foreign_conditions.add(name)
                log.warning("A HyperNode has conditions of another owner and is not marked. name=%s", name)
                return
            if not error.missing:
                raise
            others = None
        if others is not None:
            self._marked.add(name)
        else:
            self._marked.discard(name)
        log.info(
            "The overlap condition of a HyperNode is written. name=%s overlaps=%s", name, others is not None
        )


def _condition(others: Sequence[str]) -> Json:
    names = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
    return {
        "type": CONDITION,
        "status": "True",
        "reason": REASON,
        "message": f"{names} of another owner holds members of this HyperNode; the tree is not written until one goes",
        "lastTransitionTime": rfc3339(time.time()),
    }


class FabricEvents:
    """An Event for each obstacle to the tree that a person must remove.

    The target is the HyperNode of another owner, or the Lease where no object is concerned. The controller may only
    create Events, so each occurrence is an Event of its own.

    ``instance`` is this replica; ``lease`` in ``namespace`` is the Lease that the replicas share.
    """

    def __init__(self, client: ApiClient, namespace: str, instance: str, lease: str) -> None:
        self.writer = EventWriter(client, COMPONENT, instance, aggregate=False, recovery=False)
        self._lease = EventTarget("Lease", namespace, lease, "coordination.k8s.io/v1")
        self._obstacles: dict[str, str] = {}

    async def write(self, outcome: PlanOutcome) -> float | None:
        """Write an Event for each new obstacle. Return the seconds until the rest may be written, if any."""
        current = obstacles(outcome)
        for key, text in current.items():
            if self._obstacles.get(key) != text:
                log.warning("The tree is not written as reported. %s", text)
        for key in self._obstacles.keys() - current.keys():
            log.info("An obstacle to the tree is gone. what=%s", key)
        self._obstacles = current
        standing = [self._notice(key, text) for key, text in current.items()]
        self.writer.ledger.observe(standing, time.monotonic(), time.time())
        return await self.writer.deliver()

    def _notice(self, key: str, text: str) -> Notice:
        kind, _, name = key.partition("/")
        if kind == "overlap":
            target = EventTarget("HyperNode", "", name, "topology.volcano.sh/v1alpha1")
            return Notice(target, text, "ForeignHyperNode", text)
        return Notice(self._lease, text, "BreakerOpen", text)
