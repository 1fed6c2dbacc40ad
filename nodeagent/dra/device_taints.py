"""The taints of devices in ResourceSlices, by their health. Pure.

An Unhealthy or cordoned device gets no new claim (NoSchedule); pods that hold it stay. A degraded device is only
marked (None).
``NoExecute`` deletes pods without regard to disruption budgets, so it needs a rule that asks for it, and no more than
a share of the devices of a pool gets it. A taint goes with its fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from nodeagent.dra.devices import DraDevice
from nodeagent.dra.resource_claim import Toleration
from nodeagent.facts.model import CORDONED, Health, State

_Json = dict[str, Any]

_UNHEALTHY, DEGRADED, CORDON = "nodeagent.io/unhealthy", "nodeagent.io/degraded", "nodeagent.io/cordoned"
NONE, NO_SCHEDULE, NO_EXECUTE = "None", "NoSchedule", "NoExecute"
_MISSING = "missing"


def taints(
    devices: Sequence[DraDevice],
    *,
    no_execute: Collection[str] = (),
    share: float = 0.5,
    before: Collection[str] = (),
) -> dict[str, list[_Json]]:
    """The taints of each device of one pool, by name; a healthy device is absent.

    ``no_execute`` are the keys of reasons that delete the pods of a device. If more than ``share`` of the devices
    would have it, it is given to those of ``before``, which have it already, and the others get NoSchedule: so many
    devices seldom fail at once, and one wrong rule must not empty a node.
    """
    failed = {
        device.name: reason
        for device in devices
        if (reason := _failure(device.health, gone=device.gone)) is not None
    }
    asked = {name for name, reason in failed.items() if reason in no_execute}
    if len(asked) > max(1, int(len(devices) * share)):
        asked &= set(before)
    found = {
        device.name: _taints_of(
            device.health, failed.get(device.name), NO_EXECUTE if device.name in asked else NO_SCHEDULE
        )
        for device in devices
    }
    return {name: of_device for name, of_device in found.items() if of_device}


def tolerates(tolerations: Sequence[Toleration], health: Health) -> bool:
    """Whether a request tolerates each taint that keeps claims from a device of this health, as the scheduler
    compares them. Whether an Unhealthy one has NoSchedule or NoExecute depends on settings and on other devices, so
    both count."""
    reason = _failure(health)
    return any(
        all(
            taint["effect"] == NONE or any(it.covers(**taint) for it in tolerations)
            for taint in _taints_of(health, reason, effect)
        )
        for effect in (NO_SCHEDULE, NO_EXECUTE)
    )


def _taints_of(health: Health, failure: str | None, effect: str) -> list[_Json]:
    found = []
    if failure is not None:
        found.append(_taint(_UNHEALTHY, failure, effect))
    elif health.state is State.DEGRADED:
        found.append(_taint(DEGRADED, _key(health), NONE))
    if any(reason.key == CORDONED for reason in health.reasons):
        found.append(_taint(CORDON, CORDONED, NO_SCHEDULE))
    return found


def blocked() -> list[_Json]:
    """The taint of a device that cannot be handed out although it is healthy: a file cannot be written."""
    return [_taint(_UNHEALTHY, "file_unwritable", NO_SCHEDULE)]


def marked_no_execute(slices: Sequence[_Json]) -> frozenset[str]:
    """The names of the devices with NoExecute in stored slices."""
    return frozenset(
        device["name"]
        for obj in slices
        for device in obj["spec"].get("devices") or ()
        if any(taint.get("effect") == NO_EXECUTE for taint in device.get("taints") or ())
    )


def _failure(health: Health, *, gone: bool = False) -> str | None:
    """The key of the reason why a device may not be given to a claim; ``None``: it may."""
    if (health.allocatable or health.only_cordoned) and not gone:
        return None
    return _key(health) or _MISSING


def _key(health: Health) -> str:
    """The key of the most severe reason that is no warning; the state without one."""
    key = next((reason.key for reason in health.reasons if not reason.warning), None)
    if key is None:
        key = "" if health.state is State.HEALTHY else health.state.value
    return key


def _taint(key: str, value: str, effect: str) -> _Json:
    """A taint; its value is a label value (at most 63 characters)."""
    value = re.sub(r"[^A-Za-z0-9._-]", "-", value)[:63].strip("._-")
    return {"key": key, "value": value, "effect": effect}
