"""The controller's configuration, a file of kind ``FabricConfig``: the planner's settings, and those of other rooms.

``load_fabric`` reads its text, ``FabricConfig()`` is the default. ``read_fabric`` reads the file and those that it
names: known cabling, and cables of InfiniBand.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import structs

from nodeagent.cluster.cluster_settings import NodesSettings, min_links_conflicts
from nodeagent.config import formats
from nodeagent.config.config_files import folder_of
from nodeagent.config.file_errors import ConfigError, Conflict, FileError
from nodeagent.config.followed_configuration import configuration_files, configuration_text
from nodeagent.config.merged_tree import ConfigText
from nodeagent.config.setting import setting
from nodeagent.config.settings_file import read_settings
from nodeagent.fabric.fabric_settings import FabricRules, FabricSelect
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology, load_topology
from nodeagent.features.other_programs.kept_settings import (
    NodeFeatureGroupsSettings,
    SlurmSettings,
    host_conflicts,
)
from nodeagent.features.rail_probing.rail_keeping_settings import FabricRailsSettings
from nodeagent.features.switches.switch_settings import SwitchesSettings, switch_conflicts
from nodeagent.infiniband.ibnetdiscover import DiscoveredCablesError, parse_ibnetdiscover
from nodeagent.web.web_settings import HistorySettings, MapSettings, map_conflicts

Output = Literal["hypernodes", "labels", "slurm", "nodefeaturegroups"]
FilePath = Annotated[str, formats.form(r"[^\x00-\x1f]+", "a path", at_most=4095)]


class FabricConfig(FabricRules, frozen=True, kw_only=True):
    """The configuration of the controller."""

    outputs: Annotated[
        tuple[Output, ...],
        setting(
            "What the controller writes: HyperNodes for Volcano, labels on Nodes for other schedulers. In a cluster "
            "without the definition of HyperNodes it writes the labels alone, and the HyperNodes once it appears. "
            "slurm: a ConfigMap with Slurm's topology; nodefeaturegroups: a group of NFD for each leaf group."
        ),
    ] = ("hypernodes", "labels")
    slurm: Annotated[SlurmSettings, setting("The ConfigMap with Slurm's topology.")] = SlurmSettings()
    node_feature_groups: Annotated[
        NodeFeatureGroupsSettings, setting("The groups of Node Feature Discovery.")
    ] = NodeFeatureGroupsSettings()
    topology: Annotated[
        FilePath | None,
        setting(
            "Path of a file of kind FabricTopology with known cabling, relative to this file; null: none."
        ),
    ] = None
    infiniband_cables: Annotated[
        FilePath | None,
        setting(
            "Path of the output of ibnetdiscover, relative to this file; null: none. InfiniBand links without a "
            "neighbor get theirs from it, where management keys keep the switches from answering nodes. The cables "
            "between switches make the tiers above the leaves."
        ),
    ] = None
    nodes: Annotated[
        NodesSettings, setting("Marks on Nodes with fewer links up than minLinks; the start-up taint.")
    ] = NodesSettings()
    switches: Annotated[SwitchesSettings, setting("How switches are asked for their LLDP neighbors.")] = (
        SwitchesSettings()
    )
    web: Annotated[
        MapSettings,
        setting(
            "The web server of the controller, at --listen: TLS, access control and the fabric map.",
            restart=True,
        ),
    ] = MapSettings()
    watch_agents: Annotated[
        bool,
        setting(
            "Show a node that has a report and no running agent for five minutes as away. It needs the right to list "
            "and watch pods in its own namespace, which the base has."
        ),
    ] = True
    jobs: Annotated[
        bool,
        setting(
            "Read the pods of the cluster, for metrics of the jobs that hold VFs and for the filter of the fabric map "
            "by job. The VFs are known where agents have cluster.reportHolders. Off by default: it needs the right to "
            "list and watch all pods (components/jobs)."
        ),
    ] = False
    history: Annotated[
        HistorySettings,
        setting("What changed in the reports of the nodes, and when: nodeagent history.", restart=True),
    ] = HistorySettings()
    rails: Annotated[FabricRailsSettings, setting("Probes between the rails of the nodes.")] = (
        FabricRailsSettings()
    )
    overlap_condition: Annotated[
        bool,
        setting(
            "With foreign: refuse, set the condition Overlap on our HyperNodes that overlap. Off by default: "
            "Volcano up to 1.15.1 rebuilds part of its tree at each such write, one for each overlap that "
            "begins or ends."
        ),
    ] = False
    trouble_annotation: Annotated[
        bool,
        setting(
            "Set the annotation nodeagent.io/trouble on our HyperNodes: how many of their nodes have links in trouble, "
            "and why, such as: 3 of 32 nodes: degraded 1, down 2. At most 10 writes a minute; off by default for the "
            "same reason as overlapCondition."
        ),
    ] = False


def load_fabric(text: str | ConfigText, *, name: str) -> FabricConfig:
    """The configuration in a file's text, or in those of several files. Raises ``ConfigError`` with all errors."""
    config = read_settings(text, FabricConfig, name=name, conflicts_of_valid=_conflicts)[0]
    enabled: dict[Output, bool] = {
        "slurm": config.slurm.enabled,
        "nodefeaturegroups": config.node_feature_groups.enabled,
    }
    more = tuple(output for output, on in enabled.items() if on and output not in config.outputs)
    return structs.replace(config, outputs=config.outputs + more) if more else config


def _conflicts(config: FabricConfig) -> Iterator[Conflict]:
    for i, entry in enumerate(config.fabrics):
        if entry == FabricSelect(fabric=entry.fabric):
            yield Conflict((("fabrics", i),), 'matches every link; if this is meant, write nodes: ["*"]')
    first: dict[str, int] = {}
    for i, expected in enumerate(config.expected_values):
        if (before := first.setdefault(expected.value, i)) != i:
            yield Conflict(
                (("expectedValues", i), ("expectedValues", before)),
                f"the value {expected.value} has two patterns; write one entry for it",
            )
    for key, on in (
        ("overlapCondition", config.overlap_condition),
        ("troubleAnnotation", config.trouble_annotation),
    ):
        if on and "hypernodes" not in config.outputs:
            yield Conflict(
                ((key,), ("outputs",)), "needs hypernodes in outputs: it is written on HyperNodes alone"
            )
    for conflict in host_conflicts(config.slurm.nodes):
        yield conflict.below("slurm", "nodes")
    for conflict in switch_conflicts(config.switches):
        yield conflict.below("switches")
    for conflict in min_links_conflicts(config.nodes, config.min_links):
        yield conflict.below("nodes")
    for conflict in map_conflicts(config.web):
        yield conflict.below("web")


def read_fabric(file: Path | None) -> tuple[FabricConfig, Topology]:
    """Read all files; the default without any. ``file`` may be a folder of fragments. Blocks. Raises ``ConfigError``
    with all faults of a file."""
    if file is None:
        return FabricConfig(), NO_TOPOLOGY

    folder = folder_of(file)

    def beside(name: str) -> tuple[str, str]:
        path = folder / name
        return str(path), configuration_text(path)

    return fabric_of(configuration_files(file), str(file), beside)


def fabric_of(
    text: str | ConfigText, name: str, beside: Callable[[str], tuple[str, str]]
) -> tuple[FabricConfig, Topology]:
    """The configuration in a text, or in those of several files. Faults of a text name it ``name``. ``beside`` returns
    the full name and the text of a file that it names. Raises ``ConfigError``, as ``beside`` may."""
    config = load_fabric(text, name=name)
    topology = NO_TOPOLOGY
    if config.topology is not None:
        path, content = beside(config.topology)
        topology = load_topology(content, name=path)
    if config.infiniband_cables is not None:
        path, content = beside(config.infiniband_cables)
        try:
            neighbors = parse_ibnetdiscover(content)
        except DiscoveredCablesError as error:
            raise ConfigError(path, [FileError("", None, None, str(error))]) from error
        topology = replace(topology, neighbors=neighbors)
    return config, topology
