"""The controller's configuration file, and the files that it names: known cabling, and cables of InfiniBand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.config.followed_configuration import configuration_text
from nodeagent.config.settings_file import Remark, unsaid
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology, load_topology
from nodeagent.infiniband.ibnetdiscover import DiscoveredCablesError, parse_ibnetdiscover
from nodeagent.topology.controller_config import FabricConfig, load_fabric


def read_fabric(file: Path | None, remark: Remark = unsaid) -> tuple[FabricConfig, Topology]:
    """Read all files; the default without a file. Blocks. Raises ``ConfigError`` with all faults of a file."""
    if file is None:
        return FabricConfig(), NO_TOPOLOGY
    config = load_fabric(configuration_text(file), name=str(file), remark=remark)
    topology = NO_TOPOLOGY
    if config.topology is not None:
        path = file.parent / config.topology
        topology = load_topology(configuration_text(path), name=str(path), remark=remark)
    if config.infiniband_cables is not None:
        path = file.parent / config.infiniband_cables
        try:
            neighbors = parse_ibnetdiscover(configuration_text(path))
        except DiscoveredCablesError as error:
            raise ConfigError(str(path), [ConfigFault("", None, None, str(error))]) from error
        topology = replace(topology, neighbors=neighbors)
    return config, topology
