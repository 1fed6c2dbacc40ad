"""The controller's configuration in force, and the parts of the controller that depend on it.

A changed configuration replaces all these parts. The planner keeps reports in the form that its rules ask for, and the
mirror passes each report on once: so both are replaced, and the new mirror reads the cluster again. The lease stays.
The new planner starts from the published tree, with the times and the breaker of its configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.base.supervise import beside, keep
from nodeagent.config.config_files import folder_of, watched_folders
from nodeagent.config.followed_configuration import FollowedConfiguration
from nodeagent.config.in_force import adopted
from nodeagent.controller_config import FabricConfig, read_fabric
from nodeagent.fabric.topology_file import Topology
from nodeagent.topology.parts import FabricParts

log = logging.getLogger(__name__)


class FabricInForce:
    """``parts`` are made from the configuration in force, by ``make``, which may raise ``Fatal``."""

    def __init__(
        self, config: FabricConfig, topology: Topology, make: Callable[[FabricConfig, Topology], FabricParts]
    ) -> None:
        self._config = config
        self._make = make
        self._topology = topology
        self._replaced = asyncio.Event()
        self.parts = make(config, topology)
        self.file: FollowedConfiguration[tuple[FabricConfig, Topology]] | None = None

    @property
    def debounce_s(self) -> float:
        return self._config.hysteresis.debounce_seconds

    @property
    def error(self) -> str:
        """The first error of the file, and empty while its content is in force."""
        return self.file.error if self.file is not None else ""

    def remarks(self) -> Iterator[str]:
        return self.file.remarks() if self.file is not None else iter(())

    def follow(self, file: Path) -> Callable[[], None]:
        """Apply changes of the configuration file and of the files that it names. Returns a function that reads now."""

        def folders() -> Iterator[Path]:
            yield from watched_folders(file)
            for name in (self._config.topology, self._config.infiniband_cables):
                if name is not None:
                    yield (folder_of(file) / name).parent

        self.file = FollowedConfiguration(
            (self._config, self._topology),
            partial(read_fabric, file),
            lambda read: self._adopt(*read),
            folders,
        )
        return self.file.reload

    def _adopt(self, config: FabricConfig, topology: Topology) -> tuple[str, ...]:
        """Return the settings that wait for a restart. Raises ``Fatal`` and then changes nothing."""
        config, waiting = adopted(self._config, config)
        before, self.parts = self.parts, self._make(config, topology)
        kept = {removal for part in self.parts.features.values() for removal in part.stays}
        for part in before.features.values():
            for removal, sentence in part.stays.items():
                if removal not in kept:
                    log.warning("%s remove=%r", sentence, removal)
        for path in waiting:
            log.warning("A changed setting takes effect when the controller is restarted. setting=%s", path)
        self._config, self._topology = config, topology
        self._replaced.set()
        self._replaced = asyncio.Event()
        return waiting

    async def mirror(self) -> None:
        """Keep the mirror's copies until cancelled."""

        async def copy(parts: FabricParts) -> None:
            copies = parts.mirror.jobs()
            for part in parts.features.values():
                copies |= {name: mirror.run for name, mirror in part.mirrors.items()}
            async with asyncio.TaskGroup() as group:
                for name, job in copies.items():
                    group.create_task(keep(name, job), name=name)

        await self.until_replaced(copy)

    async def until_replaced(self, work: Callable[[FabricParts], Coroutine[Any, Any, object]]) -> None:
        """Do the work with the present parts. When others replace them, cancel it and start it with those."""
        while True:
            async with beside(work(self.parts), self._replaced.wait()) as working:
                if working.done():
                    await working
                    return
            del working  # its traceback holds the parts that were replaced
