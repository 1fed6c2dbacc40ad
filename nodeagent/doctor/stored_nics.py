"""The rails that the agent of this node has stored: with them the doctor numbers the NICs as the agent does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from nodeagent.doctor.target import Target
from nodeagent.health.structural import find_faults
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.sources.machine_access import permanent_macs
from nodeagent.sources.nic_identity import NicIdentities, ethernet_mac
from nodeagent.sources.pci_source import PciFacts


@dataclass(frozen=True, slots=True)
class StoredNics:
    """``known`` are the NICs of an earlier agent as missing, ``macs`` the permanent MAC addresses by PCI address, which
    are ``None`` for a recorded machine: there the current ones are used."""

    numbering: Numbering = field(default_factory=dict)
    known: PciFacts = field(default_factory=PciFacts)
    macs: Mapping[str, str | None] | None = None


def read(target: Target) -> StoredNics:
    rails = RailMemory(target.tree.path(target.config.health.state_directory))
    macs = None if target.recorded else permanent_macs()
    return StoredNics(rails.content.numbering, rails.known_nics(target.config.resources), macs)


def completed(facts: PciFacts, stored: StoredNics) -> PciFacts:
    """The facts with the permanent MAC addresses and the NICs that are missing."""
    links = tuple(
        replace(
            link,
            permanent_mac=ethernet_mac(
                link.mac if stored.macs is None else stored.macs.get(link.pci_address)
            ),
        )
        for link in facts.links
    )
    known, _ = NicIdentities().known(
        stored.known.functions, stored.known.macs, facts.functions, links, first=True
    )
    functions, _ = find_faults(facts.functions, links, known)
    return replace(facts, functions=functions, links=links)
