"""The agent's marks on its own Node: conditions, a label and a taint for faults of links and GPUs, and the label of the
largest free block of GPU memory (``largest_block.py``).

Rules:

* All of them are levels: they are derived from the facts, and written where they differ from the last write. A
  condition is also written every five minutes, so that its age shows whether the agent still runs.
* A link counts as down after 30 s and as unknown after five minutes, so that the restart of a switch or of the
  agent changes nothing. Until it counts as unknown, its last known state stands. A state that an earlier agent
  has published counts at once.
* At most one write in ten seconds.
* The taint counts rails only: a port without a rail never taints the Node.
* Nothing is written before the links are known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nodeagent.base.backoff import RateLimit, jittered
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cluster.affected_devices import FAILED, QUIET, ReportedDevice, reported_devices
from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.event_writer import shortened
from nodeagent.cluster.largest_block import LABEL as BLOCK_LABEL
from nodeagent.cluster.largest_block import LEVEL_LABEL, DampedBlock, FreeBlock
from nodeagent.cluster.node_marks import NodeCondition, NodeMarks, NodeTaint, StoredNode
from nodeagent.cluster.retry import ApiRetry
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot, State
from nodeagent.kube.client import ApiClient, ApiError

LINK, GPU = "nodeagent.io/LinkHealthy", "nodeagent.io/GpuHealthy"
LABEL = "nodeagent.io/link-degraded"
TAINT = NodeTaint("nodeagent.io/links-down")
DOWN_S, UNKNOWN_S = 30.0, 300.0
HEARTBEAT_S = 300.0
PER_S = 0.1
JITTER_S = 10.0
"""Spreads the first writes of agents that start together. Meanwhile the last source publishes its first facts."""
_DELAYS = {State.DOWN: DOWN_S, State.UNKNOWN: UNKNOWN_S}
_REASONS = {
    State.DOWN: "LinkDown",
    State.UNHEALTHY: "Unhealthy",
    State.DEGRADED: "Degraded",
    State.MISCABLED: "Miscabled",
}
"""The reason of a condition by state, worst first."""


@dataclass(frozen=True, slots=True)
class DeviceMarks:
    """The marks that the Node should have. ``degraded`` counts links, ``rails_down`` those with a rail; ``None``: no
    link is known."""

    conditions: tuple[NodeCondition, ...]
    degraded: int | None
    rails_down: int | None


@dataclass(slots=True)
class StateTimes:
    """Since when each device has been in its state, by a clock that never goes back."""

    since: dict[tuple[str, State], float] = field(default_factory=dict)
    known: dict[str, ReportedDevice] = field(default_factory=dict)
    """Each device in its last state other than unknown."""

    def marks(
        self,
        devices: Sequence[ReportedDevice],
        now: float,
        *,
        rails: Container[str] = (),
        stale: str | None = None,
    ) -> DeviceMarks:
        """The marks for these devices. ``rails`` has the keys of the links with a rail; a port without one may be empty
        for good. ``stale``: why the facts of the links are old."""
        current = {(device.key, device.health.state) for device in devices}
        if stale:
            current.add(("", State.UNKNOWN))
        # A device that was not listed for a while starts again: nothing is known of the time between.
        self.known = {device.key: self.known[device.key] for device in devices if device.key in self.known}
        kept = {(key, device.health.state) for key, device in self.known.items()}
        self.since = {key: self.since.get(key, now) for key in current | kept}
        devices = [self._settled(device, now) for device in devices]
        links = [device for device in devices if device.link]
        gpus = [device for device in devices if not device.link]
        unknown = stale if stale and now - self.since["", State.UNKNOWN] >= UNKNOWN_S else None
        conditions = [
            self._condition(type_, noun, group, now, unknown if type_ == LINK else None)
            for type_, noun, group in ((LINK, "links", links), (GPU, "GPUs", gpus))
            if group
        ]
        degraded = [link for link in links if self._counts(link, now) and link.health.state not in QUIET]
        down = [link for link in degraded if link.health.state in FAILED and link.key in rails]
        return DeviceMarks(tuple(conditions), len(degraded) if links else None, len(down) if links else None)

    def count_at_once(self, devices: Sequence[ReportedDevice]) -> None:
        """Take the states of these devices as old: an earlier agent has published them."""
        self.since |= {(device.key, device.health.state): float("-inf") for device in devices}

    def due_s(self, now: float) -> float:
        """Seconds until the next state has lasted long enough to count."""
        waits = [
            since + delay - now
            for (_, state), since in self.since.items()
            if (delay := _DELAYS.get(state)) and since + delay > now
        ]
        return min(waits, default=HEARTBEAT_S)

    def _settled(self, device: ReportedDevice, now: float) -> ReportedDevice:
        """The device, in its last known state while its present one does not count yet."""
        if device.health.state is not State.UNKNOWN:
            self.known[device.key] = device
        return device if self._counts(device, now) else self.known.get(device.key, device)

    def _counts(self, device: ReportedDevice, now: float) -> bool:
        state = device.health.state
        return now - self.since[device.key, state] >= _DELAYS.get(state, 0.0)

    def _condition(
        self, type_: str, noun: str, group: Sequence[ReportedDevice], now: float, stale: str | None
    ) -> NodeCondition:
        counted = [device for device in group if self._counts(device, now)]
        for state, reason in _REASONS.items():
            bad = [device for device in counted if device.health.state is state]
            if bad:
                verb = "is" if len(bad) == 1 else "are"
                message = f"{len(bad)} of {len(group)} {noun} {verb} {state.value}: {_listed(bad)}"
                return NodeCondition(type_, "False", reason, shortened(message))
        unknown = [device for device in counted if device.health.state is State.UNKNOWN]
        if stale is not None or unknown:
            why = stale or f"{len(unknown)} of {len(group)} {noun}: {_listed(unknown)}"
            return NodeCondition(type_, "Unknown", "Unknown", shortened(f"no current data: {why}"))
        warned = [
            device for device in group if device.health.reasons and device.health.state is State.HEALTHY
        ]
        message = f"{len(group)} {noun} are healthy" + (f"; warnings: {_listed(warned)}" if warned else "")
        return NodeCondition(type_, "True", "Healthy", shortened(message))


def _listed(group: Sequence[ReportedDevice]) -> str:
    return "; ".join(
        device.title + "".join(f", {reason.detail}" for reason in device.health.reasons[:1])
        for device in group
    )


class DeviceMarker:
    """Keep the marks of this Node up to date. Belongs to one event loop.

    ``rails`` returns the rail of each PF that has one, by PCI address. ``block`` returns the free GPU memory of a
    snapshot, and ``level`` what enforces its limits; ``None`` if this is not known.
    """

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        settings: ClusterSettings,
        deliveries: Deliveries | None = None,
        *,
        rails: Callable[[], Mapping[str, int]] = dict,
        block: Callable[[Snapshot], FreeBlock | None] = lambda _snapshot: None,
        level: Callable[[Snapshot], str | None] = lambda _snapshot: None,
        jitter_s: float = JITTER_S,
    ) -> None:
        self._rails, self._block, self._level = rails, block, level
        self._damped = DampedBlock(settings.gpu_mem_largest.step, settings.gpu_mem_largest.rise_seconds)
        self._node_marks, self._inventory = NodeMarks(client), inventory
        self._node, self._settings = node, settings
        self._times = StateTimes()
        self._rate = RateLimit(1, PER_S)
        self._jitter_s = jitter_s
        deliveries = deliveries or Deliveries()
        self._retry = ApiRetry("The Node cannot be marked", deliveries.of("marks"))
        self._missing_right = {
            mark: ApiRetry(f"The {mark} of the Node cannot be written", deliveries.of(mark))
            for mark in ("taint", "conditions", "label", "gpu-mem-largest", "gpu-mem-enforcement")
        }
        self._conditions: tuple[NodeCondition, ...] | None = None
        self._transitions: dict[str, tuple[str, str]] = {}  # status and time of the transition, by type
        self._heartbeat_at = float("-inf")
        self._label: str | bool | None = False  # False: not known
        self._block_label: str | bool | None = False
        self._level_label: str | bool | None = False
        self._tainted: bool | None = None
        self._read = False

    async def run(self) -> None:
        """Write marks until cancelled."""
        await asyncio.sleep(jittered(self._jitter_s, 0.2, 1.0))
        while True:
            snapshot = self._inventory.snapshot
            wait = await self._mark(snapshot) if self._inventory.has_published("pci") else HEARTBEAT_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._inventory.changed(snapshot.revision)

    async def _mark(self, snapshot: Snapshot) -> float:
        """Write one mark that differs. Return the seconds until there is more to do."""
        now = time.monotonic()
        stale = next(
            (
                f"{source.source}: {source.reason}"
                for source in snapshot.stale_sources
                if source.source == "pci"
            ),
            None,
        )
        devices = reported_devices(snapshot)
        marks = self._times.marks(devices, now, rails=self._rails(), stale=stale)
        if (wait := max(self._retry.wait_s(now), self._rate.wait_s(now))) > 0:
            return wait
        try:
            if not self._read:
                node = await self._read_marks(devices)
                self._read = True
                marks = self._times.marks(devices, now, rails=self._rails(), stale=stale)
                if node is not None:
                    self._adopt(node, marks, now)
            wrote = await self._write(marks, now)
        except ApiError as error:
            return self._retry.failed(error, now)
        if self._retry.reason is not None:
            self._retry.succeeded()
        if wrote:
            self._rate.take(now)
            return self._rate.wait_s(now)
        return min(
            self._times.due_s(now), self._damped.due_s(now), max(self._heartbeat_at + HEARTBEAT_S - now, 1.0)
        )

    async def _write(self, marks: DeviceMarks, now: float) -> bool:
        """Write the first mark that differs. A missing right for one of them does not block the others."""
        for mark, write in (
            ("taint", self._write_taint),
            ("conditions", self._write_conditions),
            ("label", self._write_label),
            ("gpu-mem-largest", self._write_block_label),
            ("gpu-mem-enforcement", self._write_level_label),
        ):
            missing_right = self._missing_right[mark]
            if missing_right.wait_s(now) > 0:
                continue
            try:
                if await write(marks, now):
                    missing_right.succeeded()
                    return True
            except ApiError as error:
                if error.status != 403:
                    raise
                missing_right.failed(error, now)
        return False

    async def _write_taint(self, marks: DeviceMarks, _: float) -> bool:
        if not self._settings.taint.enabled:
            # A taint that is there was set under an earlier configuration.
            tainted = False if self._tainted else None
        else:
            limit = self._settings.taint.rails_down
            tainted = None if marks.rails_down is None else marks.rails_down >= limit
        if tainted is None or tainted == self._tainted:
            return False
        await self._node_marks.set_taint(self._node, TAINT, on=tainted)
        self._tainted = tainted
        return True

    async def _write_conditions(self, marks: DeviceMarks, now: float) -> bool:
        stale = marks.conditions != self._conditions or now - self._heartbeat_at >= HEARTBEAT_S
        if not (self._settings.conditions and marks.conditions and stale):
            return False
        dated = [replace(condition, since=self._transition(condition)) for condition in marks.conditions]
        await self._node_marks.set_conditions(self._node, dated)
        self._conditions, self._heartbeat_at = marks.conditions, now
        return True

    def _transition(self, condition: NodeCondition) -> str:
        """When the condition took its present status."""
        status, since = self._transitions.get(condition.type, ("", ""))
        if status != condition.status:
            since = rfc3339(time.time())
        self._transitions[condition.type] = (condition.status, since)
        return since

    async def _write_label(self, marks: DeviceMarks, _: float) -> bool:
        label = str(marks.degraded) if marks.degraded else None
        if not self._settings.label or marks.degraded is None or label == self._label:
            return False
        await self._node_marks.set_labels(self._node, {LABEL: label})
        self._label = label
        return True

    async def _write_block_label(self, _: DeviceMarks, now: float) -> bool:
        """An unknown block keeps the label. One that an earlier configuration has set is removed."""
        label: str | None = None
        if not self._settings.gpu_mem_largest.enabled:
            if not self._block_label:
                return False
        elif (block := self._block(self._inventory.snapshot)) is None:
            return False
        else:
            label = str(self._damped.observe(block, now))
        if label == self._block_label:
            return False
        await self._node_marks.set_labels(self._node, {BLOCK_LABEL: label})
        self._block_label = label
        return True

    async def _write_level_label(self, _: DeviceMarks, _now: float) -> bool:
        """As the label of the block."""
        label: str | None = None
        if not self._settings.gpu_mem_enforcement:
            if not self._level_label:
                return False
        elif (label := self._level(self._inventory.snapshot)) is None:
            return False
        if label == self._level_label:
            return False
        await self._node_marks.set_labels(self._node, {LEVEL_LABEL: label})
        self._level_label = label
        return True

    async def _read_marks(self, devices: Sequence[ReportedDevice]) -> StoredNode | None:
        """Read the marks of an earlier agent. Without the right to read, every present state counts at once."""
        try:
            node = await self._node_marks.read(self._node)
        except ApiError as error:
            if error.status != 403:
                raise
            self._times.count_at_once(devices)
            return None
        for condition in node.conditions:
            if condition.last_transition_time:
                self._transitions[condition.type] = (condition.status, condition.last_transition_time)
        self._tainted = node.has_taint(TAINT)
        self._label = node.labels.get(LABEL)
        self._block_label = node.labels.get(BLOCK_LABEL)
        self._level_label = node.labels.get(LEVEL_LABEL)
        self._damped.adopt(self._block_label)
        bad = {type_ for type_, (status, _) in self._transitions.items() if status != "True"}
        if self._tainted or LABEL in node.labels:
            bad.add(LINK)
        self._times.count_at_once([device for device in devices if (LINK if device.link else GPU) in bad])
        return node

    def _adopt(self, node: StoredNode, marks: DeviceMarks, now: float) -> None:
        """Take the conditions of an earlier agent as written, if they are the present ones and not old."""
        stored = {condition.type: condition for condition in node.conditions}
        ages = []
        for condition in marks.conditions:
            found = stored.get(condition.type)
            if found is None or not found.equals(condition):
                return
            ages.append(found.age_s(time.time()))
        if ages and min(ages) >= 0 and max(ages) < HEARTBEAT_S:
            self._conditions, self._heartbeat_at = marks.conditions, now - max(ages)
