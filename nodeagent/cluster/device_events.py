"""The agent's Events: faults of this node's links and GPUs, on the Node and on the pods that hold the devices.

Notices of the agent's other parts come from the ``NoticeBoard``.

A device whose state is unknown gets no new Event, and none of its faults ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from nodeagent.base.supervise import either
from nodeagent.cluster.affected_devices import (
    QUIET,
    AffectedPod,
    Offered,
    ReportedDevice,
    affected_pods,
    has_failed,
    reported_devices,
)
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.event_writer import HOURLY_S, EventTarget, EventWriter, Notice
from nodeagent.cluster.notice_board import NoticeBoard
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Reason, Snapshot, State
from nodeagent.kube.client import ApiClient

COMPONENT = "nodeagent"


class DeviceEvents:
    """``offered`` returns the devices that each resource has now."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        offered: Callable[[Snapshot], Offered],
        *,
        board: NoticeBoard | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        self.writer = EventWriter(client, COMPONENT, node, host=node, delivery=delivery)
        self._board = board or NoticeBoard()
        self._inventory, self._node, self._offered = inventory, node, offered

    async def run(self) -> None:
        """Write Events until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            self._board.changed.clear()
            standing = (*notices(snapshot, self._node, self._offered(snapshot)), *self._board.take())
            self.writer.ledger.observe(standing, time.monotonic(), time.time(), unknown_devices(snapshot))
            wait = await self.writer.deliver()
            with suppress(TimeoutError):
                # An hourly notice becomes due without any change.
                async with asyncio.timeout(HOURLY_S / 4 if wait is None else wait):
                    await either(self._inventory.changed(snapshot.revision), self._board.changed.wait())


def notices(snapshot: Snapshot, node: str, offered: Offered) -> tuple[Notice, ...]:
    """The notices that stand at this moment."""
    on_node = EventTarget("Node", "", node)
    standing = [
        notice for device in reported_devices(snapshot) for notice in _device_notices(on_node, device)
    ]
    standing += [_pod_notice(pod) for pod in affected_pods(snapshot, offered)]
    return tuple({notice.key: notice for notice in standing}.values())


def unknown_devices(snapshot: Snapshot) -> Callable[[str], bool]:
    """Return a function that returns whether the state of a device is unknown in this snapshot."""
    states = {device.key: device.health.state for device in reported_devices(snapshot)}

    def unknown(key: str) -> bool:
        state = states.get(key)
        return state is State.UNKNOWN or (state is None and bool(snapshot.stale_sources))

    return unknown


def _device_notices(target: EventTarget, device: ReportedDevice) -> Iterable[Notice]:
    health = device.health
    for reason in health.reasons:
        if health.state in (State.UNKNOWN, State.UNUSED):
            continue
        minor = reason.warning or health.state is State.HEALTHY
        message = f"{device.title}: {reason.detail}"
        event_reason = _event_reason(reason, device)
        yield Notice(target, device.key, event_reason, message, not minor, hourly=minor, title=device.title)
    if not health.reasons and health.state not in QUIET:
        reason = Reason(health.state.value, "")
        message = f"{device.title} is {health.state.value}"
        yield Notice(target, device.key, _event_reason(reason, device), message, title=device.title)


def _pod_notice(pod: AffectedPod) -> Notice:
    device, health = pod.device, pod.device.health
    first, more = pod.device_ids[0], len(pod.device_ids) - 1
    held = f"{first} and {more} more" if more else first
    reasons = [reason.detail for reason in health.reasons if not reason.warning]
    failed = has_failed(health)
    state = "has failed" if failed else f"is {health.state.value}"
    message = f"{device.title}, held as {pod.resource} ({held}), {state}: {'; '.join(reasons) or health.state.value}"
    target = EventTarget("Pod", pod.namespace, pod.pod)
    return Notice(
        target, device.key, "DeviceFailed" if failed else "DeviceUnhealthy", message, title=device.title
    )


def _event_reason(reason: Reason, device: ReportedDevice) -> str:
    """``LinkCarrierDown`` for the reason ``carrier_down`` of a link."""
    words = "".join(part.capitalize() for part in reason.key.replace("-", "_").split("_"))
    return f"{'Link' if device.link else 'Gpu'}{words}"
