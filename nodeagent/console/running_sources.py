"""All sources of a machine, for the verbs that read it themselves because no agent answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.base.supervise import end_tasks
from nodeagent.console.terminal import note
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import HostPaths, Snapshot, StaleSource
from nodeagent.host.packet import may_receive
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.offering.offer import Offer
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.machine_access import has_netdevs
from nodeagent.sources.remembered_gpus import RememberedGpus
from nodeagent.web.machine_view import MachineView, machine_view, offered_devices

READ_S = 2.0
"""Long enough for every source to publish once."""


class RunningSources:
    """The sources run inside the ``async with`` block, which begins after ``READ_S``. They do not use the state file,
    and send no LLDP frames."""

    def __init__(self, config: Config, root: Path) -> None:
        folder = Tree(root).path(config.health.state_directory)
        self.inventory = Inventory()
        self.gpu_publisher = GpuPublisher(discovery.health_service(config), RememberedGpus(folder))
        self.rails = RailMemory(folder)
        quiet = msgspec.structs.replace(config.lldp, transmit=False)
        if quiet.source == "socket" and has_netdevs(Tree(root), config.links.select) and not may_receive():
            note(
                "LLDP is not received: this user lacks CAP_NET_RAW, so no link can be found miscabled; run as root"
            )
            quiet = msgspec.structs.replace(quiet, source="none")
        config = msgspec.structs.replace(config, lldp=quiet)
        self._sources = discovery.Discovery(
            self.inventory,
            lambda: config,
            root,
            gpu_publisher=self.gpu_publisher,
            sampled=True,
            rails=self.rails,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> RunningSources:
        watching = asyncio.create_task(self._sources.run())
        self._tasks.append(watching)
        await asyncio.wait((watching,), timeout=READ_S)
        if watching.done():
            await watching
        await discovery.first_facts(self.inventory)  # later only if a file of the machine hangs
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._tasks)


def unanswered(failed: Iterable[StaleSource]) -> tuple[StaleSource, ...]:
    """The sources of ``FIRST_SOURCES``, whose facts a single look lacks."""
    return tuple(entry for entry in failed if entry.source in discovery.FIRST_SOURCES)


def sentences(silent: Iterable[StaleSource]) -> list[str]:
    """The remark on each of these sources."""
    return [f"source {entry.source} has failed: {entry.reason}" for entry in silent]


def view_of(offer: Offer, snapshot: Snapshot) -> MachineView:
    """The facts with their resources, for a verb, without what would be a guess."""
    unknown = _unknown(snapshot)
    return machine_view(
        known_kinds(offer, snapshot),
        snapshot,
        tuple(trouble for trouble in offer.troubles(snapshot) if trouble.source not in unknown),
        by_claim=offer.dra_devices(snapshot),
        rails=offer.rails,
    )


def nics_of_machine(config: Config, root: Path, snapshot: Snapshot) -> dict[str, str]:
    """The name of each NIC with a rail, by PCI address: as the agent has stored them, or as it would number them."""
    offer = _stored_offer(config, root)
    offer.kinds(snapshot)
    return nic_names(offer.rails)


def offered_by_machine(config: Config, root: Path, snapshot: Snapshot) -> frozenset[str]:
    """The PFs and GPUs that an agent would offer devices of, by PCI address and UUID."""
    offer = _stored_offer(config, root)
    kinds = offer.kinds(snapshot)
    return offered_devices(kinds, offer.dra_devices(snapshot), snapshot)


def _stored_offer(config: Config, root: Path) -> Offer:
    return Offer(config, RailMemory(Tree(root).path(config.health.state_directory)).content.numbering)


def known_kinds(offer: Offer, snapshot: Snapshot) -> tuple[DeviceKind, ...]:
    """The resources, without those of devices that no source has given yet, and without names that may be wrong: they
    have the name of the product, which is a fact of the source ``pci``. Those whose containers lack something of the
    host are left out, as an agent withholds them: a trouble says what is missing."""
    unknown = _unknown(snapshot)
    if "pci" in unknown and snapshot.product is None and offer.config.resource_prefix == "auto":
        return ()
    kinds = (kind for kind in offer.kinds(snapshot) if kind.source not in unknown)
    return tuple(kind for kind in kinds if "paths" in unknown or kind.obstacle(snapshot) is None)


def _unknown(snapshot: Snapshot) -> set[str]:
    """The sources that have failed and given no fact."""
    failed = {entry.source for entry in snapshot.stale_sources}
    facts = {
        "pci": bool(snapshot.functions),
        "gpus": bool(snapshot.gpus),
        "paths": snapshot.paths != HostPaths(),
    }
    return {source for source, known in facts.items() if source in failed and not known}
