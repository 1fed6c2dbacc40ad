"""The health events that NVSentinel has not received yet, derived from the facts. Pure.

Rules of NVSentinel that the events follow (NVIDIA/NVSentinel, platform-connectors/pkg/connectors/kubernetes):

* A fatal event stands until a healthy event of the same check names the same entities. Each check is a condition of
  the Node, so there are two checks: one for NICs, one for GPUs.
* A healthy event without error codes clears every fault of its entities. Of a GPU, the PCI address identifies the
  slot: a healthy event of a new GPU clears the fault of the old one.
* A condition joins the messages of its events with ``;``.

Our rules:

* A device that pods cannot get is a fatal event; one with a fault that pods can get is an event that is not fatal.
* While a fatal fault changes, no healthy event is sent: NVSentinel would open the node for a moment.
* An unknown state is neither a fault nor a recovery: the last event stands.
* No event asks NVSentinel to reset or reboot. The recommended action of a fatal event is CONTACT_SUPPORT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.cluster.affected_devices import ReportedDevice, is_withdrawn, reported_devices
from nodeagent.facts.model import Snapshot, State

NIC_CHECK = "NodeagentNicHealth"
GPU_CHECK = "NodeagentGpuHealth"
MESSAGE_MAX = 512
"""Characters of a message. A condition of NVSentinel holds 1024 for all devices (``maxNodeConditionMessageLength``)."""

Entities = tuple[tuple[str, str], ...]
"""Type and value: ``("PCI", "0000:19:00.0")``."""


class SentinelEvent(msgspec.Struct, frozen=True):
    """The health of one device in the words of NVSentinel. ``codes`` are the keys of the active reasons."""

    component: str
    entities: Entities
    fatal: bool = False
    codes: tuple[str, ...] = ()
    message: str = ""

    @property
    def healthy(self) -> bool:
        return not self.codes

    @property
    def check(self) -> str:
        return GPU_CHECK if self.component == "GPU" else NIC_CHECK

    def recovered(self) -> SentinelEvent:
        """The healthy event of this device."""
        return SentinelEvent(self.component, self.entities)


class EventLedger:
    """Which event of each device NVSentinel must have, and which one it has received."""

    def __init__(self) -> None:
        self._wanted: dict[str, SentinelEvent] = {}
        self._received: dict[str, SentinelEvent] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Take the health of the devices. A device that is gone has recovered, unless a source has failed."""
        entities = _entities(snapshot)
        reported = {device.key: device for device in reported_devices(snapshot)}
        for key, device in reported.items():
            if device.health.state is not State.UNKNOWN:
                self._wanted[key] = event_of(device, entities[key])
        for key in () if snapshot.stale_sources else self._wanted.keys() - reported.keys():
            self._wanted[key] = self._wanted[key].recovered()
            if self._received.get(key) == self._wanted[key]:
                del self._wanted[key], self._received[key]

    def due(self, limit: int) -> Sequence[tuple[str, SentinelEvent]]:
        """At most ``limit`` devices with the event to be sent next, the faults first."""
        missing = [(key, event) for key, event in self._wanted.items() if self._received.get(key) != event]
        return sorted(missing, key=lambda item: (item[1].healthy, not item[1].fatal, item[0]))[:limit]

    def steps(self, key: str, event: SentinelEvent) -> Iterator[SentinelEvent]:
        """The events that make ``event`` the only one of its device: a fatal one is cleared first."""
        received = self._received.get(key)
        if not event.healthy and not event.fatal and (received is None or received.fatal):
            yield event.recovered()
        yield event

    def mark_received(self, key: str, event: SentinelEvent) -> None:
        self._received[key] = event

    def forget_received(self) -> None:
        """The connector is a new one, and may have lost what an earlier one took: all events are due again."""
        self._received.clear()


def event_of(device: ReportedDevice, entities: Entities) -> SentinelEvent:
    """The event of a device whose state is known."""
    health, component = device.health, "NIC" if device.link else "GPU"
    if not is_withdrawn(health) and health.state is State.HEALTHY:
        return SentinelEvent(component, entities)
    reasons = [reason for reason in health.reasons if not reason.warning] or health.reasons
    codes = tuple(reason.key for reason in reasons) or (health.state.value,)
    details = ", ".join(reason.detail for reason in reasons) or health.state.value
    message = one_line(f"{device.title}: {details}".replace(";", ","), MESSAGE_MAX)
    return SentinelEvent(component, entities, is_withdrawn(health), codes, message)


def _entities(snapshot: Snapshot) -> dict[str, Entities]:
    """The entities of each reported device, by its key."""
    entities: dict[str, Entities] = {
        pf.pci_address: (("PCI", pf.pci_address),) for pf in snapshot.functions if pf.parent is None
    }
    for gpu in snapshot.gpus:
        entities[gpu.uuid] = (("PCI", gpu.pci_address), ("GPU_UUID", gpu.uuid))
    for lost in snapshot.unusable_gpus:
        kind = "PCI" if ":" in lost.place else "GPU"
        entities[f"gpu {lost.place}"] = ((kind, lost.place.removeprefix("index ")),)
    return entities
