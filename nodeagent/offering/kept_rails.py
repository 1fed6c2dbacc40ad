"""The rails through restarts: saved before the kubelet gets the devices, named in the log, forgotten on request."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Rail, Rails, Selection, changes, selection
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
        """Yield a sentence for each rail whose NIC is missing, or one for all if as many others came."""
        if not self._inventory.has_published("pci"):
            return
        for entry, missing, came in offer.missing(snapshot):
            if came:
                every = {rail for _, rails in offer.in_force() for rail in rails}
                yield _renumbered(entry.name, missing, came, alone=every == {*missing, *came})
                continue
            for rail in missing:
                nic = rail.pci_address or rail.identity
                unknown = (
                    "" if rail.identity else ". Its card is not known: it may be here under another number"
                )
                yield (
                    f"{_name(entry.name, rail)}: NIC {nic} is missing and keeps rail {rail.number}; if it does not "
                    f"come back, use `nodeagent remembered forget {nic}`{unknown}"
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


def _renumbered(template: str, went: Rails, came: Rails, *, alone: bool) -> str:
    """``alone``: these are all NICs with a rail."""
    cause = (
        "the PCI buses were renumbered, or other NICs are in other slots"
        if any(rail.identity is None for rail in went)
        else "other NICs are in other slots"
    )
    names = (
        "--all-rails" if alone else " ".join(str(rail.pci_address or rail.identity) for rail in went + came)
    )
    return (
        f"{_names(template, went)} went and {_names(template, came)} came: {cause}. If the new ones take their place, "
        f"drain the node, use `nodeagent remembered forget {names}` and restart the agent: they get the numbers in "
        "PCI order"
    )


def _names(template: str, rails: Rails) -> str:
    shown = ", ".join(_name(template, rail) for rail in rails)
    return f"{len(rails)} NICs ({shown})" if len(rails) > 1 else f"a NIC ({shown})"


def _name(template: str, rail: Rail) -> str:
    return template.replace("{rail}", str(rail.number))
