"""Open what an earlier agent stored in ``health.stateDirectory``: faults, rails and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from nodeagent.agent_config import Config
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.state_file import StateFile
from nodeagent.host.sysfs import Tree
from nodeagent.host.unwritable_memory import UnwritableMemory
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.sources.remembered_gpus import RememberedGpus


class Stored(Protocol):
    """A file that an agent keeps for the next one."""

    def fault(self) -> UnwritableMemory | None: ...


def unwritable(files: Iterable[Stored]) -> tuple[UnwritableMemory, ...]:
    """Return the files that cannot be written."""
    return tuple(fault for file in files if (fault := file.fault()) is not None)


def open_state_file(settings: HealthSettings, root: Path) -> StateFile:
    return StateFile.open(Tree(root).path(settings.state_directory))


def open_rails(
    config: Config,
    root: Path,
    checkpoint: Path | None = None,
    read_holdings: Callable[[], object] = lambda: None,
) -> RailMemory:
    """Read the rails of an earlier agent. ``checkpoint`` is that of the kubelet that gets the devices. Blocks."""
    return RailMemory.open(
        Tree(root).path(config.health.state_directory),
        checkpoint,
        pod_resources=config.kubelet.pod_resources,
        read_holdings=read_holdings,
    )


def open_remembered_gpus(settings: HealthSettings, root: Path) -> RememberedGpus:
    return RememberedGpus.open(Tree(root).path(settings.state_directory))
