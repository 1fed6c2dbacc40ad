"""The settings of the objects for other programs that follow the tree (``kept_objects``)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from nodeagent.config import formats
from nodeagent.config.file_errors import Conflict, quote
from nodeagent.config.setting import Settings, listed, setting
from nodeagent.fabric.node_lists import ranges

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
    """The ConfigMap nodeagent-slurm-topology. It needs rights of its own."""

    enabled: Annotated[
        bool,
        setting(
            "Write the ConfigMap: the same as `slurm` in `outputs`, for a file that has no list of them."
        ),
    ] = False

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
    """NodeFeatureGroups of Node Feature Discovery, one for each leaf group. The controller needs rights of its own for
    them, and NFD its feature gate NodeFeatureGroupAPI."""

    enabled: Annotated[
        bool,
        setting(
            "Write the groups: the same as `nodefeaturegroups` in `outputs`, for a file that has no list of them."
        ),
    ] = False

    namespace: Annotated[
        Namespace, setting("Namespace of the groups: that of NFD's master, which reads no other.")
    ] = "node-feature-discovery"


def host_conflicts(hostlists: tuple[str, ...]) -> Iterator[Conflict]:
    """Hostlists that end before they begin, or have too many names."""
    count = 0
    for i, hostlist in enumerate(hostlists):
        sizes = [last - first + 1 for first, last in ranges(hostlist)]
        count += sum(sizes)
        if min(sizes, default=1) < 1:
            yield Conflict(((i,),), f"{quote(hostlist)} has a range whose end is below its start")
        elif count > HOSTS_MAX:
            yield Conflict(((i,),), f"these are more than {HOSTS_MAX} names")
            return
