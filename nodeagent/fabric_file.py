"""The controller's configuration file, and the topology file that it names."""

from __future__ import annotations

from pathlib import Path

from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology, load_topology
from nodeagent.followed_configuration import configuration_text


def read_fabric(file: Path | None) -> tuple[FabricConfig, Topology]:
    """Read both files; the default without a file. Blocks. Raises ``ConfigError`` with all faults of a file."""
    if file is None:
        return FabricConfig(), NO_TOPOLOGY
    config = load_fabric(configuration_text(file), name=str(file))
    if config.topology is None:
        return config, NO_TOPOLOGY
    path = file.parent / config.topology
    return config, load_topology(configuration_text(path), name=str(path))
