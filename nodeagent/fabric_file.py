"""The controller's configuration file, and the files that it names: known cabling, and cables of InfiniBand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.config.followed_configuration import configuration_text
from nodeagent.config.settings_file import Remark, unsaid
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology, load_topology
from nodeagent.infiniband.ibnetdiscover import DiscoveredCablesError, parse_ibnetdiscover


def read_fabric(file: Path | None, remark: Remark = unsaid) -> tuple[FabricConfig, Topology]:
    """Read all files; the default without a file. Blocks. Raises ``ConfigError`` with all faults of a file."""
    if file is None:
        return FabricConfig(), NO_TOPOLOGY

    def beside(name: str) -> tuple[str, str]:
        path = file.parent / name
        return str(path), configuration_text(path)

    return fabric_of(configuration_text(file), str(file), beside, remark)


def fabric_of(
    text: str, name: str, beside: Callable[[str], tuple[str, str]], remark: Remark = unsaid
) -> tuple[FabricConfig, Topology]:
    """The configuration in a text, whose faults name it ``name``. ``beside`` returns the full name and the text of a
    file that it names. Raises ``ConfigError``, as ``beside`` may."""
    config = load_fabric(text, name=name, remark=remark)
    topology = NO_TOPOLOGY
    if config.topology is not None:
        path, content = beside(config.topology)
        topology = load_topology(content, name=path, remark=remark)
    if config.infiniband_cables is not None:
        path, content = beside(config.infiniband_cables)
        try:
            neighbors = parse_ibnetdiscover(content)
        except DiscoveredCablesError as error:
            raise ConfigError(path, [ConfigFault("", None, None, str(error))]) from error
        topology = replace(topology, neighbors=neighbors)
    return config, topology
