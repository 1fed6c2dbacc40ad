"""The guard over GPUs: most of a node's do not go at once on one word of the driver. Pure.

The law of this file:

* A reading and what was measured are two witnesses, though one driver speaks through both: what takes all GPUs in
  error (a list that comes back empty, a driver that is being replaced) shows in one alone.
* An event names one GPU and comes of something that happened to it: it is never held back. Nor is a single GPU,
  whatever its share of the node, nor what a person has switched on.
* A fault that has stood for ``seconds`` is a witness of itself: the guard delays, it never forbids.
* What an agent finds at its own start is told as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nodeagent.health.gpu_rules import Mark
from nodeagent.model import Health, Reason

_MEASURED = frozenset(mark.value for mark in Mark)
_OF_READINGS = ("gpu_lost", "gpu_unreadable", "recovery_")
_OF_EVENTS = ("xid_", "gpu_unavailable")


@dataclass(slots=True)
class Guard:
    """``share`` of the GPUs may go within ``seconds`` on one word; 1 is no guard."""

    share: float = 0.5
    seconds: float = 60.0
    _told: dict[str, bool] = field(default_factory=dict)
    _withdrawn: dict[str, float] = field(default_factory=dict)
    _held: dict[str, float] = field(default_factory=dict)

    def judge(self, healths: Mapping[str, Health], now: float) -> dict[str, Health]:
        """The verdicts, by UUID, as they may be told at this moment."""
        most = max(1.0, self.share * len(healths))
        self._withdrawn = {
            uuid: at
            for uuid, at in self._withdrawn.items()
            if at + self.seconds > now and uuid in healths and not healths[uuid].allocatable
        }
        return {uuid: self._one(uuid, health, most, now) for uuid, health in healths.items()}

    def _one(self, uuid: str, health: Health, most: float, now: float) -> Health:
        before = self._told.get(uuid)
        if health.allocatable or before is not True:
            self._held.pop(uuid, None)
            self._told[uuid] = health.allocatable
            return health
        since = self._held.setdefault(uuid, now)
        free = len(self._withdrawn) + 1 <= most
        if free or len(_witnesses(health)) > 1 or now >= since + self.seconds:
            del self._held[uuid]
            self._told[uuid] = False
            self._withdrawn[uuid] = now
            return health
        why = "most GPUs of this node would go at once on one word of the driver; its devices stay Healthy"
        reason = Reason("guard", f"{why} until there is another, or for {self.seconds:g} s", warning=True)
        return replace(health, reasons=(*health.reasons, reason), allocatable=True)


def _witnesses(health: Health) -> set[str]:
    found: set[str] = set()
    for reason in health.reasons:
        if reason.key.startswith(_OF_EVENTS):
            found |= {"event", "GPU"}
        elif reason.key.startswith(_OF_READINGS):
            found.add("reading")
        elif reason.key in _MEASURED:
            found.add("vitals")
        elif reason.key == "mig_enabled":
            found |= {"person", "reading"}
    return found
