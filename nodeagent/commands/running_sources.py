"""All sources of a machine, for the verbs that read it themselves because no agent answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from nodeagent import discovery, state_directory
from nodeagent.agent_config import Config
from nodeagent.inventory import Inventory
from nodeagent.model import Snapshot, StaleSource
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.supervise import end_tasks

READ_S = 2.0
"""Long enough for every source to publish once."""


class RunningSources:
    """The sources run inside the ``async with`` block, which begins after ``READ_S``. They do not use the state file,
    and send no LLDP frames."""

    def __init__(self, config: Config, root: Path) -> None:
        remembered = state_directory.open_remembered_gpus(config.health, root)
        self.inventory = Inventory()
        self.gpu_publisher = GpuPublisher(discovery.health_service(config), remembered)
        self.rails = state_directory.open_rails(config, root)
        quiet = msgspec.structs.replace(config.lldp, transmit=False)
        self._sources = discovery.Discovery(
            self.inventory,
            msgspec.structs.replace(config, lldp=quiet),
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


async def first_facts_or_marks(inventory: Inventory) -> None:
    """``first_facts`` for a single look, in which a source that does not answer is marked as failed: a list that is
    empty without an answer would be invented."""
    await discovery.first_facts(inventory)
    stale = {entry.source for entry in inventory.snapshot.stale_sources}
    for source in discovery.FIRST_SOURCES:
        if not inventory.has_published(source) and source not in stale:
            inventory.mark_stale(source, f"it did not answer within {discovery.FIRST_FACTS_S:g} s")


def unanswered(snapshot: Snapshot) -> tuple[StaleSource, ...]:
    """The sources of ``FIRST_SOURCES`` whose facts a single look lacks."""
    return tuple(entry for entry in snapshot.stale_sources if entry.source in discovery.FIRST_SOURCES)
