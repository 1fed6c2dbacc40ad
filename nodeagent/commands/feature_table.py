"""The features that a configuration switches on, and what each needs in the cluster.

A row is a component of ``daemonset/components``: a test compares both, and renders every pair of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nodeagent.agent_config import Config, by_volcano
from nodeagent.controller_config import FabricConfig
from nodeagent.kinds.resource_settings import memory_entries, mig_entries

MARKS = "the right of each agent to mark its own Node, and its policy"
WITH_CONTROLLER = "overlays/controller"


class Feature(NamedTuple):
    """``agent`` and ``controller``: whether its configuration has the feature on; ``None`` where it has no setting for
    it. ``needs``: rights and programs, in words. ``beside``: another part that must be there. ``apart``: features that
    cannot be on with it, with the reason."""

    name: str
    needs: str
    agent: Callable[[Config], bool] | None = None
    controller: Callable[[FabricConfig], bool] | None = None
    beside: str = ""
    apart: tuple[tuple[str, str], ...] = ()


def _by_claim(config: Config) -> bool:
    return any(entry.by_claim and entry.pool != "mig" for entry in config.resources)


def _mig(mode: str) -> Callable[[Config], bool]:
    return lambda config: any(entry.mode == mode for entry in mig_entries(config.resources))


def _marks(config: Config) -> bool:
    cluster = config.cluster
    return any(
        (
            cluster.conditions,
            cluster.label,
            cluster.gpu_mem_largest.enabled,
            cluster.gpu_mem_enforcement,
            cluster.taint.enabled,
        )
    )


def _other_labels(config: FabricConfig) -> bool:
    return config.labels != FabricConfig().labels


FEATURES = (
    Feature(
        "attach",
        "the DaemonSet nodeagent-attach with CAP_SYS_ADMIN and CAP_NET_ADMIN; NRI of the container runtime",
        lambda c: c.attach.interface is not None,
    ),
    Feature(
        "attach-ipam",
        "folders of CNI plugins in nodeagent-attach; an IPAM plugin on the node",
        beside="components/attach",
    ),
    Feature(
        "dra",
        "rights on ResourceSlices and claims, DeviceClasses; Kubernetes 1.36",
        _by_claim,
        apart=(("volcano-deviceshare", "GPU memory is handed out by claims or by Volcano"),),
    ),
    Feature(
        "evictions", f"the right to evict pods, and its policy; {MARKS}", lambda c: c.cluster.evict.enabled
    ),
    Feature(
        "gpu-labels",
        "NFD, its folder of feature files, the right to list NodeFeatures; no GPU Feature Discovery",
        lambda c: c.nfd.gpu_labels,
    ),
    Feature("gpu-memory-limits", "CAP_SYS_ADMIN and the host's cgroups; driver 615, cgroup v2"),
    Feature(
        "gpu-mps",
        "the privileged DaemonSet nodeagent-mps",
        lambda c: any(entry.enforcement == "mps" for entry in memory_entries(c.resources)),
        apart=(("volcano-deviceshare", "the shares of Volcano's slices are unknown to MPS"),),
    ),
    Feature("gpu-processes", "the host's PID namespace and /proc", lambda c: c.gpu.health.processes),
    Feature("infiniband", "a privileged container", lambda c: c.infiniband.asks),
    Feature(
        "jobs",
        "the right of the controller to read all pods",
        lambda c: c.cluster.report_holders,
        lambda c: c.jobs,
        WITH_CONTROLLER,
    ),
    Feature(
        "kueue",
        "a Topology and flavors; Kueue with the API v1beta2",
        None,
        lambda c: "labels" in c.outputs and c.tiers.assume_full_bisection,
        WITH_CONTROLLER,
    ),
    Feature(
        "labels",
        "the beginnings of the keys in the controller's policy",
        None,
        _other_labels,
        WITH_CONTROLLER,
    ),
    Feature(
        "marks",
        "the right of the controller to mark Nodes",
        None,
        lambda c: c.nodes.min_links_condition or c.nodes.min_links_taint,
        WITH_CONTROLLER,
    ),
    Feature(
        "mig",
        "CAP_SYS_ADMIN and the driver's capability to monitor MIG",
        _mig("devicePlugin"),
        apart=(("mig-claims", "MIG devices are handed out by the kubelet or by claims"),),
    ),
    Feature(
        "mig-claims",
        "CAP_SYS_ADMIN and the driver's capability to configure MIG",
        _mig("dra"),
        beside="components/dra",
    ),
    Feature("node-conditions", MARKS, _marks),
    Feature(
        "node-feature-groups",
        "rights on NodeFeatureGroups; NFD with its feature gate NodeFeatureGroupAPI",
        None,
        lambda c: "nodefeaturegroups" in c.outputs,
        WITH_CONTROLLER,
    ),
    Feature(
        "nvsentinel",
        "the folder of NVSentinel's socket, and a token for it",
        lambda c: c.nv_sentinel.socket is not None,
    ),
    Feature("optics", "CAP_NET_ADMIN"),
    Feature("prometheus-operator", "the definitions of the Prometheus Operator"),
    Feature(
        "rails",
        "RailPartners: their definition, and the rights to write and to read them",
        lambda c: c.rails.probe or c.attach.numbers,
        lambda c: c.rails.probe or c.rails.numbers,
        WITH_CONTROLLER,
    ),
    Feature(
        "slurm",
        "the right to keep one ConfigMap in the namespace slurm",
        None,
        lambda c: "slurm" in c.outputs,
        WITH_CONTROLLER,
    ),
    Feature(
        "startup-taint",
        "the right of the controller to remove its taint",
        None,
        lambda c: c.nodes.startup_taint,
        WITH_CONTROLLER,
    ),
    Feature("volcano-deviceshare", f"rights on pods, and their policy; {MARKS}", by_volcano),
)


class ShownFeature(NamedTuple):
    """``agent``, ``controller``: on, off, or - where this configuration was not read or has no setting for it."""

    name: str
    agent: str
    controller: str
    needs: str


def shown_features(agent: Config | None, controller: FabricConfig | None) -> Iterator[ShownFeature]:
    """Each feature with its state in these configurations; ``None``: not read."""
    for row in FEATURES:
        by_agent = "-" if agent is None or row.agent is None else _word(row.agent(agent))
        by_controller = (
            "-" if controller is None or row.controller is None else _word(row.controller(controller))
        )
        needs = f"{row.needs}; {row.beside}" if row.beside else row.needs
        yield ShownFeature(row.name, by_agent, by_controller, needs)


def _word(on: bool) -> str:
    return "on" if on else "off"


def reason_apart(one: str, other: str) -> str:
    """Why two features cannot be on together; empty if they can."""
    for row in FEATURES:
        for name, reason in row.apart:
            if {row.name, name} == {one, other}:
                return reason
    return ""
