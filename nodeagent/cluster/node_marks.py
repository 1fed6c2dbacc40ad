"""The marks of Nodes that are ours, and how to write them without touching those of other owners.

``OWN_MARKS`` has a row for each condition, label and taint.

* Conditions: server-side apply by nodeagent's own field manager. A condition that the manager no longer applies is
  removed; all others stay.
* Taints: one list without owners. It is read, changed and written back under the version that was read; after a
  conflict this is repeated.
* Labels: a merge patch that contains only our keys.

The agent has one loop for all marks of its Node (``device_marks``): each needs a right of its own, and one is written
in ten seconds. The controller has few marks on many Nodes, and writes several in a second (``NodeWrites``), in three
loops: labels follow the plan (``node_labels``), and missing links (``min_links_marks``) and new Nodes
(``startup_taint``) their own times. The condition of a HyperNode is one list without keys and has other rules
(``topology/hypernodes``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cluster.retry import FailureLog
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODES, Json, Meta, Partial

TAINT_TRIES = 3
BEHIND_S = 0.05

LINK_CONDITION, GPU_CONDITION = "nodeagent.io/LinkHealthy", "nodeagent.io/GpuHealthy"
FABRIC_CONDITION = "nodeagent.io/FabricLinks"
LINKS_LABEL = "nodeagent.io/link-degraded"
BLOCK_LABEL, LEVEL_LABEL = "nodeagent.io/gpu-mem-largest", "nodeagent.io/gpu-mem-enforcement"
LEAF_GROUP_LABEL = "topology.nodeagent.io/tier-1"
"""The default of ``labels`` in the configuration of the fabric, for the lowest tier. Other tiers have keys like it."""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """``since`` is the time of the last transition (RFC 3339); ``None``: now."""

    type: str
    status: str
    reason: str
    message: str
    since: str | None = None


@dataclass(frozen=True, slots=True)
class NodeTaint:
    key: str
    effect: str = "NoSchedule"

    def matches(self, taint: Json) -> bool:
        """Whether this is the taint as the API server has it."""
        return (taint.get("key"), taint.get("effect")) == (self.key, self.effect)


LINKS_TAINT, DEVICE_TAINT, FABRIC_TAINT = (
    NodeTaint("nodeagent.io/links-down"),
    NodeTaint("nodeagent.io/device-failed"),
    NodeTaint("nodeagent.io/links-below-minimum"),
)
STARTING_TAINT = "nodeagent.io/starting"
"""Node groups set it, with any effect."""


class OwnMark(NamedTuple):
    """A mark of Nodes that ``writer`` sets or removes."""

    writer: Literal["agent", "controller"]
    kind: Literal["condition", "label", "taint"]
    key: str

    @property
    def resource(self) -> str:
        """The resource that the writer needs the right to patch."""
        return "nodes/status" if self.kind == "condition" else "nodes"


OWN_MARKS = (
    OwnMark("agent", "condition", LINK_CONDITION),
    OwnMark("agent", "condition", GPU_CONDITION),
    OwnMark("agent", "label", LINKS_LABEL),
    OwnMark("agent", "label", BLOCK_LABEL),
    OwnMark("agent", "label", LEVEL_LABEL),
    OwnMark("agent", "taint", LINKS_TAINT.key),
    OwnMark("agent", "taint", DEVICE_TAINT.key),
    OwnMark("controller", "condition", FABRIC_CONDITION),
    OwnMark("controller", "label", LEAF_GROUP_LABEL),
    OwnMark("controller", "taint", FABRIC_TAINT.key),
    OwnMark("controller", "taint", STARTING_TAINT),
)
"""Tests compare them with roles, policies, docs/security.md and ``daemonset/uninstall.sh``."""


class StoredCondition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None

    def equals(self, condition: NodeCondition) -> bool:
        """Whether they differ in times alone."""
        return (self.status, self.reason, self.message) == (
            condition.status, condition.reason, condition.message,
        )  # fmt: skip

    def age_s(self, now: float) -> float:
        """Seconds since the last write, at Unix time ``now``; infinite if its time cannot be read."""
        try:
            return now - datetime.fromisoformat(self.last_heartbeat_time or "").timestamp()
        except ValueError:
            return float("inf")


class _NodeSpec(msgspec.Struct):
    taints: list[Json] | None = None


class _NodeStatus(msgspec.Struct):
    conditions: list[StoredCondition] | None = None


class StoredNode(msgspec.Struct):
    """The marks of a Node, of every owner."""

    metadata: Meta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def conditions(self) -> Sequence[StoredCondition]:
        return self.status.conditions or ()

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    def has_taint(self, taint: NodeTaint) -> bool:
        return any(taint.matches(stored) for stored in self.spec.taints or ())


STORED_NODES = NODES.typed(StoredNode)
_WRITTEN = NODES.typed(Partial)


class NodeMarks:
    """Every method raises ``ApiError``. ``manager`` owns the conditions; by default it is the client's."""

    def __init__(self, client: ApiClient, manager: str | None = None) -> None:
        self._client, self._manager = client, manager

    async def read(self, name: str) -> StoredNode:
        return await self._client.get(STORED_NODES, name)

    async def set_conditions(self, name: str, conditions: Sequence[NodeCondition]) -> None:
        """Apply exactly these conditions to the Node; an empty list removes nodeagent's."""
        now = rfc3339(time.time())
        body: Json = {"metadata": {"name": name}}
        if conditions:
            body["status"] = {
                "conditions": [
                    {
                        "type": condition.type,
                        "status": condition.status,
                        "reason": condition.reason,
                        "message": condition.message,
                        "lastHeartbeatTime": now,
                        "lastTransitionTime": condition.since or now,
                    }
                    for condition in conditions
                ]
            }
        await self._client.apply(_WRITTEN, body, subresource="status", manager=self._manager)

    async def set_taint(self, name: str, taint: NodeTaint, *, on: bool) -> None:
        """Add or remove the taint. A Node that already is as wanted is not written."""

        def changed(stored: Sequence[Json]) -> list[Json]:
            if any(map(taint.matches, stored)) == on:
                return list(stored)
            others = [one for one in stored if not taint.matches(one)]
            return [*others, {"key": taint.key, "effect": taint.effect}] if on else others

        await self._change_taints(name, changed)

    async def remove_taint(self, name: str, key: str) -> bool:
        """Remove the taint with every effect. Return whether the Node had it."""
        return await self._change_taints(
            name, lambda stored: [taint for taint in stored if taint.get("key") != key]
        )

    async def _change_taints(self, name: str, changed: Callable[[Sequence[Json]], list[Json]]) -> bool:
        """Write the taints that ``changed`` makes of the present ones. Return whether they differ."""
        for attempt in range(TAINT_TRIES):
            node = await self.read(name)
            before = node.spec.taints or []
            taints = changed(before)
            if taints == before:
                return False
            body = {
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints or None},
            }
            try:
                await self._client.patch(_WRITTEN, name, body)
                break
            except ApiError as error:
                # The kubelet or another controller has written the Node since it was read.
                if not error.conflict or attempt == TAINT_TRIES - 1:
                    raise
        return True

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set these labels; ``None`` removes one."""
        await self._client.patch(_WRITTEN, name, {"metadata": {"labels": dict(labels)}})


class NodeWrites:
    """Marks of many Nodes: at most ``per_second`` writes in a second. With ``pause`` they go one after the other; with
    ``turn`` several are in flight. ``sentence`` is the one to log when a write fails, without its full stop."""

    def __init__(self, sentence: str, per_second: float) -> None:
        self.failures = FailureLog(sentence)
        self._gap_s = 1.0 / per_second
        self._next = 0.0

    async def send(self, name: str, write: Awaitable[object]) -> tuple[str, ApiError | None]:
        """Send a write to the Node ``name``. Return ``ok``, ``gone`` for a Node that was deleted, or ``failed`` with
        the error."""
        try:
            await write
        except ApiError as error:
            if error.missing:
                return "gone", None
            self.failures.failed(error, node=name)
            return "failed", error
        self.failures.succeeded()
        return "ok", None

    async def turn(self) -> None:
        """Wait until this write may be sent. Turns that passed while nobody could take them are caught up, for a time
        of ``BEHIND_S``."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - BEHIND_S) + self._gap_s
        if (wait_s := self._next - now) > 0:
            await asyncio.sleep(wait_s)

    async def pause(self) -> None:
        """Wait until the next write may be sent, after an answer."""
        await asyncio.sleep(self._gap_s)
