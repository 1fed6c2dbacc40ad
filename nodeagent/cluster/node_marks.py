"""What this node's own Node object says of its links and GPUs: conditions, a label, a taint; each where wanted.

The law of this file:

* All three are levels: what should be is worked out from the facts, and written where it differs from what was
  last written. A condition is written every five minutes too, so that an old one can be told from a live one.
* A link counts as down after 30 s, as unknown after five minutes: a switch that restarts, or an agent, is no news.
  Until it counts as unknown, what was known of it stands; what an earlier agent has told of counts at once.
* At most one write in ten seconds, and none that would take another's: conditions are applied by field manager,
  and the taints of others are read before the list is written, under the version that was read.
* Before the agent knows its links, it says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from nodeagent.cluster.affected_devices import FAILED, QUIET, Subject, subjects
from nodeagent.cluster.retry import Bucket, Trouble
from nodeagent.inventory import Inventory
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODES, Meta
from nodeagent.model import Snapshot, State

LINK, GPU = "nodeagent.io/LinkHealthy", "nodeagent.io/GpuHealthy"
LABEL = "nodeagent.io/link-degraded"
TAINT = "nodeagent.io/links-down"
DOWN_S, UNKNOWN_S = 30.0, 300.0
HEARTBEAT_S = 300.0
PER_S = 0.1
MESSAGE_MAX = 1024
_RANKED = (State.DOWN, State.UNHEALTHY, State.DEGRADED, State.MISCABLED)
_REASONS = {
    State.DOWN: "LinkDown",
    State.UNHEALTHY: "Unhealthy",
    State.DEGRADED: "Degraded",
    State.MISCABLED: "Miscabled",
}


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the Node should say. ``degraded`` and ``taint`` are ``None`` where nothing is known of the links."""

    conditions: tuple[Condition, ...]
    degraded: int | None
    down: int | None


@dataclass(slots=True)
class Standing:
    """Since when each device is as it is, by a clock that goes on."""

    since: dict[tuple[str, State], float] = field(default_factory=dict)
    known: dict[str, Subject] = field(default_factory=dict)
    """The last of each device that was not unknown."""

    def wanted(self, told: Sequence[Subject], now: float, *, silent: str | None = None) -> Wanted:
        """``silent``: why nothing new is known of the links."""
        current = {(one.key, one.health.state) for one in told} | ({("", State.UNKNOWN)} if silent else set())
        kept = {(one.key, self.known[one.key].health.state) for one in told if one.key in self.known}
        self.since = {
            key: self.since.get(key, now) for key in (*current, *kept) if key in current or key in self.since
        }
        told = [self._as_known(one, now) for one in told]
        links = [one for one in told if one.link]
        gpus = [one for one in told if not one.link]
        old = silent if silent and now - self.since["", State.UNKNOWN] >= UNKNOWN_S else None
        conditions = [
            self._condition(type_, what, group, now, old if type_ == LINK else None)
            for type_, what, group in ((LINK, "links", links), (GPU, "GPUs", gpus))
            if group
        ]
        worse = [one for one in links if self._counts(one, now) and one.health.state not in QUIET]
        down = [one for one in worse if one.health.state in FAILED]
        return Wanted(tuple(conditions), len(worse) if links else None, len(down) if links else None)

    def stood(self, told: Sequence[Subject]) -> None:
        """These were so before this agent began."""
        self.since |= {(one.key, one.health.state): float("-inf") for one in told}

    def _as_known(self, one: Subject, now: float) -> Subject:
        if one.health.state is not State.UNKNOWN:
            self.known[one.key] = one
        return one if self._counts(one, now) else self.known.get(one.key, one)

    def due_s(self, now: float) -> float:
        """How long until a state has stood long enough to count."""
        waits = [
            at + wait - now
            for (_, state), at in self.since.items()
            if (wait := {State.DOWN: DOWN_S, State.UNKNOWN: UNKNOWN_S}.get(state)) and at + wait > now
        ]
        return min(waits, default=HEARTBEAT_S)

    def _counts(self, one: Subject, now: float) -> bool:
        wait = {State.DOWN: DOWN_S, State.UNKNOWN: UNKNOWN_S}.get(one.health.state, 0.0)
        return now - self.since[one.key, one.health.state] >= wait

    def _condition(
        self, type_: str, what: str, group: Sequence[Subject], now: float, silent: str | None
    ) -> Condition:
        counted = [one for one in group if self._counts(one, now)]
        for state in _RANKED:
            bad = [one for one in counted if one.health.state is state]
            if bad:
                count = f"{len(bad)} of {len(group)} {what} {'is' if len(bad) == 1 else 'are'} {state.value}"
                return Condition(type_, "False", _REASONS[state], _cut(f"{count}: {_listed(bad)}"))
        unknown = [one for one in counted if one.health.state is State.UNKNOWN]
        if silent is not None or unknown:
            why = silent or f"{len(unknown)} of {len(group)} {what}: {_listed(unknown)}"
            return Condition(type_, "Unknown", "Unknown", _cut(f"nothing is known at present: {why}"))
        warned = [one for one in group if one.health.reasons and one.health.state is State.HEALTHY]
        message = f"{len(group)} {what} are healthy" + (
            f"; to be watched: {_listed(warned)}" if warned else ""
        )
        return Condition(type_, "True", "Healthy", _cut(message))


def _listed(group: Sequence[Subject]) -> str:
    return "; ".join(
        one.title + "".join(f", {reason.detail}" for reason in one.health.reasons[:1]) for one in group
    )


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"


class _Taint(msgspec.Struct, rename="camel", omit_defaults=True):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class _Written(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: str | None = None


class _Spec(msgspec.Struct):
    taints: tuple[_Taint, ...] | None = None


class _Status(msgspec.Struct):
    conditions: tuple[_Written, ...] | None = None


class _Node(msgspec.Struct):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


NODE = NODES.typed(_Node)


@dataclass(frozen=True, slots=True)
class Marks:
    """What is wanted of it all. ``rails_down`` is ``None`` where there is to be no taint."""

    conditions: bool
    label: bool
    rails_down: int | None


class NodeState:
    """Keeps the Node true. Belongs to one event loop."""

    def __init__(self, client: Client, inventory: Inventory, node: str, marks: Marks) -> None:
        self._client, self._inventory, self._node, self._marks = client, inventory, node, marks
        self._standing = Standing()
        self._bucket = Bucket(1, PER_S)
        self._trouble = Trouble("The Node cannot be marked")
        self._conditions: tuple[Condition, ...] | None = None
        self._turned: dict[str, tuple[str, str]] = {}  # status and since when, by type
        self._beaten = float("-inf")
        self._label: str | bool | None = False  # not known
        self._looked = False
        self._lacking = {
            what: Trouble(f"The Node is not given its {what}") for what in ("taint", "conditions", "label")
        }
        self._tainted: bool | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            wait = await self._mark(snapshot) if self._inventory.heard("pci") else HEARTBEAT_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._inventory.changed(snapshot.revision)

    async def _mark(self, snapshot: Snapshot) -> float:
        """Write one thing that differs. How long nothing is to be done."""
        now = time.monotonic()
        silent = next((f"{one.source}: {one.reason}" for one in snapshot.silent if one.source == "pci"), None)
        wanted = self._standing.wanted(subjects(snapshot), now, silent=silent)
        if (wait := max(self._trouble.wait(now), self._bucket.wait(now))) > 0:
            return wait
        try:
            if not self._looked:
                await self._look(subjects(snapshot))
                self._looked = True
                wanted = self._standing.wanted(subjects(snapshot), now, silent=silent)
            wrote = await self._write(wanted, now)
        except ApiError as error:
            return self._trouble.has(error, now)
        self._trouble.over()
        if wrote:
            self._bucket.take(now)
            return self._bucket.wait(now)
        return min(self._standing.due_s(now), max(self._beaten + HEARTBEAT_S - now, 1.0))

    async def _write(self, wanted: Wanted, now: float) -> bool:
        """A right that is missing for one of them keeps none of the others back."""
        for what, write in (
            ("taint", self._write_taint),
            ("conditions", self._write_conditions),
            ("label", self._write_label),
        ):
            lacking = self._lacking[what]
            if lacking.wait(now) > 0:
                continue
            try:
                if await write(wanted, now):
                    lacking.over()
                    return True
            except ApiError as error:
                if error.status != 403:
                    raise
                lacking.has(error, now)
        return False

    async def _write_taint(self, wanted: Wanted, _: float) -> bool:
        if self._marks.rails_down is None:
            # One that is there was set when the configuration still wanted it.
            tainted = False if self._tainted else None
        else:
            tainted = None if wanted.down is None else wanted.down >= self._marks.rails_down
        if tainted is None or tainted == self._tainted:
            return False
        await self._taint(tainted)
        return True

    async def _write_conditions(self, wanted: Wanted, now: float) -> bool:
        stale = wanted.conditions != self._conditions or now - self._beaten >= HEARTBEAT_S
        if not (self._marks.conditions and wanted.conditions and stale):
            return False
        await self._condition(wanted.conditions)
        self._conditions, self._beaten = wanted.conditions, now
        return True

    async def _write_label(self, wanted: Wanted, _: float) -> bool:
        label = str(wanted.degraded) if wanted.degraded else None
        if not self._marks.label or wanted.degraded is None or label == self._label:
            return False
        await self._client.patch(NODES.partial, self._node, {"metadata": {"labels": {LABEL: label}}})
        self._label = label
        return True

    async def _look(self, told: Sequence[Subject]) -> None:
        """What an earlier life of this agent has written. Without the right to read, it is not known."""
        try:
            node = await self._client.get(NODE, self._node)
        except ApiError as error:
            if error.status != 403:
                raise
            self._standing.stood(told)
            return
        for one in node.status.conditions or ():
            if one.last_transition_time:
                self._turned[one.type] = (one.status, one.last_transition_time)
        self._tainted = any(taint.key == TAINT for taint in node.spec.taints or ())
        bad = {type_ for type_, (status, _) in self._turned.items() if status != "True"}
        if self._tainted or LABEL in (node.metadata.labels or {}):
            bad.add(LINK)
        self._standing.stood([one for one in told if (LINK if one.link else GPU) in bad])

    async def _condition(self, conditions: tuple[Condition, ...]) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body: list[dict[str, Any]] = []
        for one in conditions:
            status, since = self._turned.get(one.type, ("", ""))
            if status != one.status:
                since = stamp
            self._turned[one.type] = (one.status, since)
            body.append(msgspec.to_builtins(one) | {"lastHeartbeatTime": stamp, "lastTransitionTime": since})
        applied = {"metadata": {"name": self._node}, "status": {"conditions": body}}
        await self._client.apply(NODES.partial, applied, subresource="status")

    async def _taint(self, tainted: bool) -> None:
        node = await self._client.get(NODE, self._node)
        others = [taint for taint in node.spec.taints or () if taint.key != TAINT]
        taints = [*others, _Taint(TAINT, "NoSchedule")] if tainted else others
        body = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": msgspec.to_builtins(taints)},
        }
        await self._client.patch(NODES.partial, self._node, body)
        self._tainted = tainted
