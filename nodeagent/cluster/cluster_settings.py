"""Settings of the agent's writes to the API server, and of the controller's marks on Nodes."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config.file_errors import Conflict
from nodeagent.config.setting import SECONDS_MAX, AbsolutePath, Settings, setting, wire

_Rails = Annotated[int, msgspec.Meta(ge=1, le=64)]
_Wait = Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)]


class TaintSettings(Settings, frozen=True, kw_only=True):
    """The taint nodeagent.io/links-down:NoSchedule on this Node."""

    enabled: Annotated[
        bool,
        setting(
            "Set the taint while `railsDown` rails or more are down, and remove it afterwards. Off by "
            "default: it needs a right of its own."
        ),
    ] = False
    rails_down: Annotated[
        _Rails,
        setting(
            "Number of rails that must be down for 30 s. A port without a rail never counts. The default is 2, "
            "because a leaf switch that restarts takes one rail from each of its nodes."
        ),
    ] = 2


class GpuMemLargestSettings(Settings, frozen=True, kw_only=True):
    """The label nodeagent.io/gpu-mem-largest on this Node, for the affinity of pods."""

    enabled: Annotated[
        bool,
        setting(
            "Set the label to the largest request for GPU memory, in slices, that the node can still serve. With "
            "several resources of GPU memory, that of the first. Off by default: it needs a right of its own."
        ),
    ] = False
    step: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**20)],
        setting(
            "The number is rounded down to a multiple of so many slices, except that of an idle GPU. Small steps "
            "write the Node often."
        ),
    ] = 8
    rise_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=86400)],
        setting("Seconds that more memory must be free before the number rises. It falls at once."),
    ] = 60.0


class EvictSettings(Settings, frozen=True, kw_only=True):
    """Eviction of pods that hold a failed device."""

    enabled: Annotated[
        bool,
        setting(
            "Evict such pods, as far as their disruption budgets allow; health.noExecute is for those with claims. "
            "Off by default: it ends pods, and it needs a right of its own."
        ),
    ] = False
    after_seconds: Annotated[
        _Wait,
        setting(
            "Seconds that the device must be Unhealthy. The default leaves a link five minutes to return."
        ),
    ] = 300.0
    taint: Annotated[
        bool,
        setting(
            "Set the taint nodeagent.io/device-failed:NoSchedule on this Node before such a pod is evicted, also if "
            "it has ended meanwhile, and remove it when pods can get the device again. No new pod comes here, and "
            "Kueue 0.17 replaces the node of a gang. A leaf switch that is down for afterSeconds taints each node "
            "whose pods it took a link from. Off by default: it needs a right of its own."
        ),
    ] = False


class ClusterSettings(Settings, frozen=True, kw_only=True):
    """Writes to the API server. Without a cluster the agent works as well and writes nothing."""

    access: Annotated[
        Literal["auto", "in-cluster", "kubeconfig", "none"],
        setting(
            "How the agent reaches the API server. auto: with the pod's service account, or not at all "
            "without one; in-cluster: with the service account, and without one the agent stops; kubeconfig: "
            "with the file below; none: not at all."
        ),
    ] = "auto"
    kubeconfig: Annotated[
        AbsolutePath | None,
        setting("Path in the agent's container of the kubeconfig for access: kubeconfig; null: $KUBECONFIG."),
    ] = None
    report: Annotated[
        bool,
        setting(
            "Publish this node's links and neighbors as NodeLinks. The controller builds the fabric's tree "
            "from them."
        ),
    ] = True
    report_holders: Annotated[
        bool,
        setting(
            "Add the pods that hold VFs or a GPU in trouble to NodeLinks, for the fabric map and the list of "
            "troubles. Each start and end of such a pod then writes the report, at most once in 10 s. Off by "
            "default: it costs writes, and readers of NodeLinks see names of pods."
        ),
    ] = False
    events: Annotated[
        bool, setting("Write Events for faults, on the Node and on pods that hold a failed device.")
    ] = True
    claim_status: Annotated[
        bool,
        setting(
            "Write the devices of each claim into its status (status.devices): the VFs with PCI address, MAC address "
            "and netdev on the host, and the health as a condition. Only with mode dra; it needs the rights of "
            "components/dra."
        ),
    ] = True
    numa_node_list: Annotated[
        bool,
        setting(
            "Publish the attribute resource.kubernetes.io/numaNode of devices of mode dra as a list: the device's NUMA "
            "node, then the nodes of its socket that are equally near. It needs the feature gate DRAListTypeAttributes "
            "on API server and scheduler; an API server without it gets one number. Selectors that compare the "
            "attribute with a number fail with a list."
        ),
    ] = False
    conditions: Annotated[
        bool,
        setting(
            "Set the conditions nodeagent.io/LinkHealthy and nodeagent.io/GpuHealthy on this Node. Off by "
            "default: it needs a right of its own."
        ),
    ] = False
    label: Annotated[
        bool,
        setting(
            "Set the label nodeagent.io/link-degraded on this Node to the number of degraded, miscabled and "
            "down links; without any, there is no label. Off by default: it needs a right of its own."
        ),
    ] = False
    taint: Annotated[TaintSettings, setting("A taint for a node that has lost rails.")] = TaintSettings()
    gpu_mem_largest: Annotated[
        GpuMemLargestSettings, setting("A label for pods that need a large part of a GPU.")
    ] = GpuMemLargestSettings()
    gpu_mem_enforcement: Annotated[
        bool,
        setting(
            "Set the label nodeagent.io/gpu-mem-enforcement on this Node to the level in force that keeps programs "
            "within their share of GPU memory (none, env, nvml-limits, mps or evict). With several resources of GPU "
            "memory, that of the first. Off by default: it needs a right of its own."
        ),
    ] = False
    evict: Annotated[EvictSettings, setting("Eviction of pods that hold a failed device.")] = EvictSettings()

    @property
    def marks(self) -> dict[str, bool]:
        """Whether each mark of the Node is enabled, by its setting."""
        return {
            "conditions": self.conditions,
            "label": self.label,
            "taint": self.taint.enabled,
            "gpu_mem_largest": self.gpu_mem_largest.enabled,
            "gpu_mem_enforcement": self.gpu_mem_enforcement,
            "evict_taint": self.evict.enabled and self.evict.taint,
        }


def cluster_conflicts(cluster: ClusterSettings) -> Iterator[Conflict]:
    """Settings that have no effect without another one."""
    if cluster.kubeconfig is not None and cluster.access != "kubeconfig":
        message = "needs access: kubeconfig; a pod's service account is not read from there"
        yield Conflict((("kubeconfig",), ("access",)), message)
    if cluster.report_holders and not cluster.report:
        yield Conflict((("reportHolders",), ("report",)), "needs report: the holders are a part of it")
    if cluster.evict.taint and not cluster.evict.enabled:
        path = (("evict", "taint"), ("evict", "enabled"))
        yield Conflict(path, "needs evict.enabled: the taint comes before an eviction")
    if cluster.access == "none":
        enabled = {**cluster.marks, "evict": cluster.evict.enabled}
        del enabled["evict_taint"]
        for key in (key for key, on in enabled.items() if on):
            yield Conflict(((wire(key),), ("access",)), "needs an API server, and access is none")


class NodesSettings(Settings, frozen=True, kw_only=True):
    """Marks on Nodes with fewer links up than minLinks, and the start-up taint of new Nodes. The controller needs
    rights of its own for them."""

    min_links_condition: Annotated[
        bool, setting("Set the condition nodeagent.io/FabricLinks to False on such a Node.")
    ] = False
    min_links_taint: Annotated[
        bool, setting("Set the taint nodeagent.io/links-below-minimum:NoSchedule on such a Node.")
    ] = False
    after_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=86400)],
        setting(
            "Seconds that a Node must be below the minimum before it is marked. The mark is removed at once "
            "when the Node has enough links."
        ),
    ] = 60.0
    taint_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        setting(
            "Maximum percentage of all Nodes with the taint, but at least one Node: a failed switch must not "
            "stop the cluster. 0: no taint."
        ),
    ] = 20
    startup_taint: Annotated[
        bool,
        setting(
            "Remove the taint nodeagent.io/starting from a Node when the agent on it has been Ready for 15 s. "
            "The node group must create its Nodes with this taint."
        ),
    ] = False


def min_links_conflicts(nodes: NodesSettings, min_links: int) -> Iterator[Conflict]:
    if (nodes.min_links_condition or nodes.min_links_taint) and not min_links:
        yield Conflict(((),), "nothing would be marked: minLinks is 0, give the least number of links")
