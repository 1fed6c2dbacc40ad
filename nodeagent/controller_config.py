"""The controller's configuration, a file of kind ``FabricConfig``: the planner's settings, and those of other rooms.

``load_fabric`` reads it, ``FabricConfig()`` is the default.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.cluster.cluster_settings import NodesSettings, min_links_conflicts
from nodeagent.config import formats
from nodeagent.config.faults import Conflict, quote
from nodeagent.config.former_keys import FORMER_KEYS
from nodeagent.config.setting import Settings, listed, setting
from nodeagent.config.settings_file import Remark, read_settings, unsaid
from nodeagent.fabric.fabric_settings import FabricRules, FabricSelect
from nodeagent.fabric.node_lists import ranges
from nodeagent.topology.switches.switch_settings import SwitchesSettings, switch_conflicts
from nodeagent.web.web_settings import AccessSettings, HistorySettings, WebAddress, web_conflicts

Output = Literal["hypernodes", "labels", "slurm", "nodefeaturegroups"]
FilePath = Annotated[str, formats.form(r"[^\x00-\x1f]+", "a path", at_most=4095)]
_HOSTS = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?|[a-z0-9][-a-z0-9.]*\[[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*\]"
Namespace = Annotated[
    str, formats.form(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a namespace: lower case letters, digits and -")
]
Hosts = Annotated[
    str,
    formats.form(
        rf"({_HOSTS})(,({_HOSTS}))*", "a name of nodes or a hostlist such as gpu-[001-032]", at_most=4095
    ),
]


HOSTS_MAX = 200_000
"""The names in all hostlists, for the sake of memory: twice the nodes of the largest fabric that was measured."""


class SlurmSettings(Settings, frozen=True, kw_only=True):
    """The ConfigMap nodeagent-slurm-topology, with `slurm` in `outputs`. It needs rights of its own."""

    namespace: Annotated[
        Namespace, setting("Namespace of the ConfigMap: that of slurmctld, which mounts it.")
    ] = "slurm"
    format: Annotated[
        Literal["tree", "block", "yaml"],
        setting(
            "tree: topology.conf for topology/tree; block: topology.conf for topology/block, with the NVLink domains; "
            "yaml: topology.yaml with both (Slurm 25.05 and newer)."
        ),
    ] = "tree"
    nodes: Annotated[
        tuple[Hosts, ...],
        listed(
            "The nodes that Slurm knows, as names or hostlists, such as gpu-[001-032]; the file then has these alone. "
            "Empty: all nodes of the tree."
        ),
    ] = ()


class NodeFeatureGroupsSettings(Settings, frozen=True, kw_only=True):
    """NodeFeatureGroups of Node Feature Discovery, one for each leaf group, with `nodefeaturegroups` in `outputs`. The
    controller needs rights of its own for them, and NFD its feature gate NodeFeatureGroupAPI."""

    namespace: Annotated[
        Namespace, setting("Namespace of the groups: that of NFD's master, which reads no other.")
    ] = "node-feature-discovery"


class MapSettings(AccessSettings, frozen=True, kw_only=True):
    """The web server of the controller."""

    node_page: Annotated[
        WebAddress | None,
        setting(
            "The address of the page of a node, with {node} in place of its name, as your browsers reach it: "
            "http://{node}:9808/ui/ where names of nodes resolve, or that of a proxy. The fabric map links to it; "
            "null: it shows a command in place of the link."
        ),
    ] = None


class FabricRailsSettings(Settings, frozen=True, kw_only=True):
    """Probes between the rails of the nodes, which agents with `rails.probe` send."""

    probe: Annotated[
        bool,
        setting(
            "Choose partners for each rail, write them as RailPartners objects, and name the link, leaf switch or tier "
            "that loses packets. Off by default: it needs rights and a definition of its own (overlays/rails)."
        ),
    ] = False
    per_second: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=1.3)],
        setting(
            "Packets a second to each partner. A link has three, and answers as many: 3 a second at the default."
        ),
    ] = 0.5


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
    jobs: Annotated[
        bool,
        setting(
            "Read the pods of the cluster, for metrics of the jobs that hold VFs and for the filter of the fabric map "
            "by job. The VFs are known where agents have cluster.reportHolders. Off by default: it needs the right to "
            "list and watch all pods (overlays/jobs)."
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


def load_fabric(text: str, *, name: str, remark: Remark = unsaid) -> FabricConfig:
    """The configuration in a file's text. Raises ``ConfigError`` with all faults of the file."""
    former = FORMER_KEYS["FabricConfig"]
    return read_settings(
        text, FabricConfig, name=name, former=former, remark=remark, conflicts_of_valid=_conflicts
    )[0]


def _conflicts(config: FabricConfig) -> Iterator[Conflict]:
    for i, entry in enumerate(config.fabrics):
        if entry == FabricSelect(fabric=entry.fabric):
            yield Conflict((("fabrics", i),), 'matches every link; if this is meant, write nodes: ["*"]')
    for key, on in (
        ("overlapCondition", config.overlap_condition),
        ("troubleAnnotation", config.trouble_annotation),
    ):
        if on and "hypernodes" not in config.outputs:
            yield Conflict(
                ((key,), ("outputs",)), "needs hypernodes in outputs: it is written on HyperNodes alone"
            )
    for conflict in _host_conflicts(config.slurm.nodes):
        yield conflict.below("slurm", "nodes")
    for conflict in switch_conflicts(config.switches):
        yield conflict.below("switches")
    for conflict in min_links_conflicts(config.nodes, config.min_links):
        yield conflict.below("nodes")
    if config.web.node_page is not None and "{node}" not in config.web.node_page:
        yield Conflict((("web", "nodePage"),), "must contain {node}: each node has a page of its own")
    for conflict in web_conflicts(config.web):
        yield conflict.below("web")


def _host_conflicts(hostlists: tuple[str, ...]) -> Iterator[Conflict]:
    count = 0
    for i, hostlist in enumerate(hostlists):
        sizes = [last - first + 1 for first, last in ranges(hostlist)]
        count += sum(sizes)
        if min(sizes, default=1) < 1:
            yield Conflict(((i,),), f"{quote(hostlist)} has a range whose end is below its start")
        elif count > HOSTS_MAX:
            yield Conflict(((i,),), f"these are more than {HOSTS_MAX} names")
            return
