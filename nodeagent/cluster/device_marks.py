"""The agent's marks on its own Node: conditions, a label and taints for faults of links and GPUs, and the label of the
largest free block of GPU memory (``largest_block.py``).

Rules:

* All of them are levels: they are derived from the facts, and written where they differ from the last write. A
  condition is also written every five minutes, so that its age shows whether the agent still runs.
* A link counts as down after 30 s and as unknown after five minutes, so that the restart of a switch or of the
  agent changes nothing. Until it counts as unknown, its last known state stands. A state that an earlier agent
  has published counts at once.
* At most one write in ten seconds.
* The taint for links counts rails only: a port without a rail never taints the Node. That of the evictions is written
  when they ask for it (``evictions.py``), and removed when links and GPUs are known.
* Nothing is written before the links are known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeagent.base.backoff import RateLimit, jittered
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.base.supervise import either
from nodeagent.cluster.affected_devices import (
    QUIET,
    ReportedDevice,
    failed_devices,
    reported_devices,
)
from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.event_writer import shortened
from nodeagent.cluster.evictions import EvictionTaint
from nodeagent.cluster.largest_block import DampedBlock, FreeBlock
from nodeagent.cluster.node_marks import (
    BLOCK_LABEL,
    DEVICE_TAINT,
    GPU_CONDITION,
    LEVEL_LABEL,
    LINK_CONDITION,
    LINKS_LABEL,
    LINKS_TAINT,
    NodeCondition,
    NodeMarks,
    NodeTaint,
    StoredNode,
)
from nodeagent.cluster.retry import ApiRetry
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot, State
from nodeagent.health.device_failure import FAILED
from nodeagent.kube.client import ApiClient, ApiError

DOWN_S, UNKNOWN_S = 30.0, 300.0
_HEARTBEAT_S = 300.0
PER_S = 0.1
JITTER_S = 10.0
"""Spreads the first writes of agents that start together. Meanwhile the last source publishes its first facts."""
_UNKNOWN: Final = object()
"""The value of a mark that is not known: what the Node has stays, or was not read."""
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
            self._condition(type_, noun, group, now, unknown if type_ == LINK_CONDITION else None)
            for type_, noun, group in ((LINK_CONDITION, "links", links), (GPU_CONDITION, "GPUs", gpus))
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
        return min(waits, default=_HEARTBEAT_S)

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


@dataclass(slots=True, eq=False)
class NodeMark:
    """A row of the marker's table: one mark, and what was last written of it.

    ``wanted`` returns the value that the facts ask for: ``None`` for no mark, ``_UNKNOWN`` to leave the mark as it is.
    ``write`` sends a value, and ``stored`` finds it on the Node. ``right`` remembers that the right for it is missing,
    which blocks no other mark. A mark that is not ``enabled`` is removed where an earlier configuration has set it. An
    equal value is written again after ``refresh_s``; ``None``: never.
    """

    wanted: Callable[[DeviceMarks, float], Any]
    write: Callable[[Any], Awaitable[None]]
    stored: Callable[[StoredNode], Any]
    right: ApiRetry
    enabled: bool = True
    refresh_s: float | None = None
    present: Any = _UNKNOWN
    written_at: float = float("-inf")

    def due(self, marks: DeviceMarks, now: float) -> Any:
        """The value to write; ``_UNKNOWN``: nothing is to be written."""
        if not self.enabled:
            return _UNKNOWN if self.present in (_UNKNOWN, None) else None
        wanted = self.wanted(marks, now)
        is_fresh = self.refresh_s is None or now - self.written_at < self.refresh_s
        return _UNKNOWN if wanted == self.present and is_fresh else wanted

    def wrote(self, value: Any, now: float) -> None:
        self.present, self.written_at = value, now
        self.right.succeeded()


class DeviceMarker:
    """Keep the marks of this Node up to date. Belongs to one event loop.

    ``rails`` returns the rail of each PF that has one, by PCI address. ``block`` returns the free GPU memory of a
    snapshot, and ``level`` what enforces its limits; ``None`` if this is not known. ``evict_taint`` is shared with the
    evictions.
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
        evict_taint: EvictionTaint | None = None,
        rate: RateLimit | None = None,
        jitter_s: float = JITTER_S,
    ) -> None:
        self._rails, self._block = rails, block
        self._evict_taint = evict_taint or EvictionTaint()
        self._damped = DampedBlock(settings.gpu_mem_largest.step, settings.gpu_mem_largest.rise_seconds)
        self._node_marks, self._inventory = NodeMarks(client), inventory
        self._node, self._settings = node, settings
        self._times = StateTimes()
        self._rate = rate or RateLimit(1, PER_S)
        self._jitter_s = jitter_s
        deliveries = deliveries or Deliveries()
        self._retry = ApiRetry("The Node cannot be marked", deliveries.of("marks"))
        self._marks = self._table(deliveries, level)
        self._transitions: dict[str, tuple[str, str]] = {}  # status and time of the transition, by type
        self._read = False

    def _table(self, deliveries: Deliveries, level: Callable[[Snapshot], str | None]) -> dict[str, NodeMark]:
        """The marks by name, in the order in which they are written."""
        on = self._settings

        def right(name: str) -> ApiRetry:
            return ApiRetry(f"The {name} of the Node cannot be written", deliveries.of(name))

        def label(
            name: str, key: str, wanted: Callable[[DeviceMarks, float], Any], *, enabled: bool = True
        ) -> NodeMark:
            def write(value: str | None) -> Awaitable[None]:
                return self._node_marks.set_labels(self._node, {key: value})

            return NodeMark(wanted, write, lambda node: node.labels.get(key), right(name), enabled)

        def taint(
            name: str, key: NodeTaint, wanted: Callable[[DeviceMarks, float], Any], *, enabled: bool
        ) -> NodeMark:
            def write(value: bool | None) -> Awaitable[None]:
                return self._node_marks.set_taint(self._node, key, on=bool(value))

            return NodeMark(wanted, write, lambda node: node.has_taint(key) or None, right(name), enabled)

        def enforcement(_marks: DeviceMarks, _now: float) -> Any:
            found = level(self._inventory.snapshot)
            return _UNKNOWN if found is None else found

        return {
            "evict-taint": taint(
                "evict-taint", DEVICE_TAINT, self._failed_devices, enabled=on.marks["evict_taint"]
            ),
            "taint": taint("taint", LINKS_TAINT, self._rails_down, enabled=on.taint.enabled),
            "conditions": NodeMark(
                self._conditions,
                self._set_conditions,
                lambda _: _UNKNOWN,  # `_adopt` compares them
                right("conditions"),
                refresh_s=_HEARTBEAT_S,
            ),
            "label": label("label", LINKS_LABEL, self._degraded_links),
            "gpu-mem-largest": label(
                "gpu-mem-largest", BLOCK_LABEL, self._free_memory, enabled=on.gpu_mem_largest.enabled
            ),
            "gpu-mem-enforcement": label(
                "gpu-mem-enforcement", LEVEL_LABEL, enforcement, enabled=on.gpu_mem_enforcement
            ),
        }

    async def run(self) -> None:
        """Write marks until cancelled."""
        await asyncio.sleep(jittered(self._jitter_s, 0.2, 1.0))
        while True:
            snapshot, asked = self._inventory.snapshot, self._evict_taint.revision
            wait = await self._mark(snapshot) if self._inventory.has_published("pci") else _HEARTBEAT_S
            await either(
                self._inventory.changed(snapshot.revision), self._evict_taint.changed(asked), timeout_s=wait
            )

    async def _mark(self, snapshot: Snapshot) -> float:
        """Write one mark that differs. Return the seconds until there is more to do."""
        now = time.monotonic()
        stale = next((it for it in snapshot.stale_sources if it.source == "pci"), None)
        why = f"{stale.source}: {stale.reason}" if stale is not None else None
        devices = reported_devices(snapshot)
        marks = self._times.marks(devices, now, rails=self._rails(), stale=why)
        if (wait := max(self._retry.wait_s(now), self._rate.wait_s(now))) > 0:
            return wait
        try:
            if not self._read:
                node = await self._read_marks(devices)
                self._read = True
                marks = self._times.marks(devices, now, rails=self._rails(), stale=why)
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
        heartbeat_s = self._marks["conditions"].written_at + _HEARTBEAT_S - now
        return min(self._times.due_s(now), self._damped.due_s(now), max(heartbeat_s, 1.0))

    async def _write(self, marks: DeviceMarks, now: float) -> bool:
        """Write the first mark that differs. One that the server refuses does not block the others."""
        if self._evict_taint.is_stored:  # the evictions may have set it
            self._marks["evict-taint"].present = True
        for mark in self._marks.values():
            if mark.right.wait_s(now) > 0 or (value := mark.due(marks, now)) is _UNKNOWN:
                continue
            try:
                await mark.write(value)
            except ApiError as error:
                if error.missing or not (error.refused or error.missing_right):
                    raise
                mark.right.failed(error, now)
            else:
                mark.wrote(value, now)
                self._evict_taint.store(self._marks["evict-taint"].present is True)
                return True
        return False

    # --- what the facts ask for ---------------------------------------------------------------------------------

    def _failed_devices(self, _: DeviceMarks, _now: float) -> Any:
        snapshot = self._inventory.snapshot
        if self._evict_taint.is_wanted(failed_devices(snapshot)):
            return True
        is_old = any(it.source in ("pci", "gpus") for it in snapshot.stale_sources)
        return None if self._inventory.has_published("gpus") and not is_old else _UNKNOWN

    def _rails_down(self, marks: DeviceMarks, _: float) -> Any:
        if marks.rails_down is None:
            return _UNKNOWN
        return True if marks.rails_down >= self._settings.taint.rails_down else None

    def _conditions(self, marks: DeviceMarks, _: float) -> Any:
        return marks.conditions if self._settings.conditions and marks.conditions else _UNKNOWN

    def _degraded_links(self, marks: DeviceMarks, _: float) -> Any:
        if not self._settings.label or marks.degraded is None:
            return _UNKNOWN
        return str(marks.degraded) if marks.degraded else None

    def _free_memory(self, _: DeviceMarks, now: float) -> Any:
        block = self._block(self._inventory.snapshot)
        return _UNKNOWN if block is None else str(self._damped.observe(block, now))

    # --- how it is written --------------------------------------------------------------------------------------

    async def _set_conditions(self, conditions: Sequence[NodeCondition]) -> None:
        dated = [replace(condition, since=self._transition(condition)) for condition in conditions]
        await self._node_marks.set_conditions(self._node, dated)

    def _transition(self, condition: NodeCondition) -> str:
        """When the condition took its present status."""
        status, since = self._transitions.get(condition.type, ("", ""))
        if status != condition.status:
            since = rfc3339(time.time())
        self._transitions[condition.type] = (condition.status, since)
        return since

    # --- the marks of an earlier agent --------------------------------------------------------------------------

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
        for mark in self._marks.values():
            mark.present = mark.stored(node)
        self._evict_taint.inherit(stored=node.has_taint(DEVICE_TAINT))
        self._damped.adopt(node.labels.get(BLOCK_LABEL))
        bad = {type_ for type_, (status, _) in self._transitions.items() if status != "True"}
        if node.has_taint(LINKS_TAINT) or LINKS_LABEL in node.labels:
            bad.add(LINK_CONDITION)
        self._times.count_at_once(
            [device for device in devices if (LINK_CONDITION if device.link else GPU_CONDITION) in bad]
        )
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
        if ages and min(ages) >= 0 and max(ages) < _HEARTBEAT_S:
            mark = self._marks["conditions"]
            mark.present, mark.written_at = marks.conditions, now - max(ages)
