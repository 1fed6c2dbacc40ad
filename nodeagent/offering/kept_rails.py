"""The rails through restarts: saved before the kubelet gets the devices, named in the log, forgotten on request."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Selection, changes, selection
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.offering.offer import Offer

log = logging.getLogger(__name__)


class KeptRails:
    """``memory`` is the file of the rails."""

    def __init__(self, memory: RailMemory, inventory: Inventory) -> None:
        self.memory = memory
        self._inventory = inventory
        self._logged = memory.content.numbering
        self._logged_missing = False

    def missing(self, offer: Offer, snapshot: Snapshot) -> Iterator[str]:
        """Yield a sentence for each rail whose NIC is missing."""
        if self._inventory.has_published("pci"):
            for entry, rail in offer.missing(snapshot):
                name = entry.name.replace("{rail}", str(rail.number))
                nic = rail.pci_address or rail.permanent_mac
                yield (
                    f"{name}: NIC {nic} is missing and keeps rail {rail.number}; if it does not come back, use "
                    f"`nodeagent remembered forget {nic}`"
                )

    async def save(self, offer: Offer, offered: Sequence[DeviceKind], snapshot: Snapshot) -> None:
        """Save the rails and the names of VFs before the kubelet gets them, and log what is new."""
        names = {selection(entry): entry.name for entry, _ in offer.in_force()}
        for key, name in names.items():
            self._log_changes(offer, key, name)
        self._logged = dict(offer.numbering)
        if any(offer.undecided(entry) for entry in offer.config.resources):
            return  # the next agent too must know that the file is gone
        if self._inventory.has_published("pci"):
            if not self._logged_missing:
                self._logged_missing = True
                for sentence in self.missing(offer, snapshot):
                    log.warning("A NIC of an earlier agent is missing. reason=%r", sentence)
            await self.memory.save(offer.numbering, tuple(names), offered, snapshot)

    def _log_changes(self, offer: Offer, key: Selection, name: str) -> None:
        before, now = self._logged.get(key, ()), offer.numbering.get(key, ())
        for sentence in changes(before, now):
            log.warning("A NIC has changed and keeps its rail. resource=%s change=%r", name, sentence)
        known = {rail.number for rail in before}
        if new := [f"{rail.number}={rail.pci_address}" for rail in now if rail.number not in known]:
            log.info("NICs have new rails. resource=%s rails=%s", name, ",".join(new))
