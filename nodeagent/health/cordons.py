"""Cordoned devices: a person keeps new pods away from a NIC or a GPU until the same or another one ends it. And planned
work on NICs.

* `nodeagent cordon` writes the file and the agent follows it, so a cordon needs no API server and survives restarts and
  reboots.
* The kubelet gets the devices as Unhealthy. It allocates none of them, and neither ends nor evicts a pod that holds
  one. They stay on its list: it panics if a device in use leaves it.
* A cordon is not a fault: the state stays what the rules say, and no eviction, condition or Event follows from it.
* A NIC is the identity of its card (``facts/card_identity.py``), so that a cordon follows the card into another slot;
  without one its PCI address.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nodeagent.facts.model import CORDONED, MAINTENANCE, Health, Reason


class Cordon(msgspec.Struct, frozen=True, rename="camel"):
    """``device`` is the PCI address of a NIC or the UUID of a GPU, ``name`` what the person called it. ``since`` is in
    RFC 3339. ``identity`` is that of the card of a NIC; the file names it as earlier agents did."""

    device: str
    name: str
    since: str
    author: str = ""
    reason: str = ""
    identity: str | None = msgspec.field(default=None, name="mac")

    def is_of(self, device: str, identity: str | None) -> bool:
        return self.device == device if None in (self.identity, identity) else self.identity == identity

    @property
    def sentence(self) -> str:
        by, why = f" by {self.author}" if self.author else "", f": {self.reason}" if self.reason else ""
        return f"cordoned{by} since {self.since}{why}; nodeagent uncordon {self.name} ends it"


def with_cordon(health: Health, reason: Reason | None) -> Health:
    """The health of a device that is cordoned for this reason. Where a fault withdraws the device, it is a warning."""
    if reason is None:
        return health
    reasons = (*health.reasons, Reason(CORDONED, reason.detail, warning=not health.allocatable))
    return Health(health.state, reasons, allocatable=False)


class PlannedWork(NamedTuple):
    """`nodeagent maintain` of a NIC. Its times are CLOCK_BOOTTIME."""

    begin: float
    end: float
    sentence: str


NO_WORK = PlannedWork(math.inf, -math.inf, "")


def with_planned_work(health: Health, work: PlannedWork | None, now: float) -> Health:
    """The health of a NIC with a remark while work on it is planned, which changes nothing else."""
    if work is None or now >= work.end:
        return health
    return replace(health, reasons=(*health.reasons, Reason(MAINTENANCE, work.sentence, warning=True)))


def cordon_reasons(cordons: Iterable[Cordon], identities: Mapping[str, str | None]) -> dict[str, Reason]:
    """The reason of each cordoned device, by PCI address or UUID. ``identities`` has the NICs of this node."""
    return {
        device: Reason(CORDONED, cordon.sentence)
        for cordon in cordons
        for device in {cordon.device: None, **identities}
        if cordon.is_of(device, identities.get(device))
    }
