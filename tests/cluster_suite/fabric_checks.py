"""The tree that the controller makes of the reports: its lease, the labels of Nodes, HyperNodes."""

from __future__ import annotations

from collections import Counter

from tests.cluster_suite.cluster_api import BrokenError, Object, SkippedError, until
from tests.cluster_suite.suite import Suite

TIER = "topology.nodeagent.io/tier-"
TREE = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
PLAN_S = 120
"""The controller waits for quiet reports before it plans."""


def lease(suite: Suite) -> str:
    """A replica of the controller leads: it renews its Lease."""
    if not suite.installation.pods("controller"):
        raise SkippedError("no controller is installed: daemonset/overlays/controller")
    path = (
        f"/apis/coordination.k8s.io/v1/namespaces/{suite.installation.namespace}/leases/nodeagent-controller"
    )

    seen: set[str] = set()

    def renewed() -> str | None:
        spec = (suite.api.find(path) or {}).get("spec", {})
        if "renewTime" in spec:
            seen.add(spec["renewTime"])
        return spec.get("holderIdentity") if len(seen) > 1 else None

    return until(45, "the controller renews its Lease", renewed)


def labels(suite: Suite) -> str:
    """Each node whose links have switches has the label of its leaf group."""
    if not suite.installation.pods("controller"):
        raise SkippedError("no controller is installed: daemonset/overlays/controller")
    cabled = [
        name
        for name, report in suite.installation.reports().items()
        if any("neighbor" in link for link in report.get("links", ()))
        and suite.api.find(f"/api/v1/nodes/{name}") is not None
    ]
    if not cabled:
        raise SkippedError(
            "no report names a switch: without LLDP or InfiniBand there is no tree, docs/topology.md"
        )

    def group(name: str) -> str | None:
        return suite.installation.node(name)["metadata"].get("labels", {}).get(f"{TIER}1")

    groups = {
        until(PLAN_S, f"{name} has the label {TIER}1", lambda name=name: group(name)) for name in cabled
    }
    return f"{len(cabled)} nodes in {len(groups)} leaf groups"


def hypernodes(suite: Suite) -> str:
    """The HyperNodes are a tree, and agree with the labels of the Nodes."""
    if not suite.installation.pods("controller"):
        raise SkippedError("no controller is installed: daemonset/overlays/controller")
    if suite.api.find("/apis/topology.volcano.sh/v1alpha1") is None:
        raise SkippedError("the cluster has no definition of HyperNodes: they come with Volcano")
    return until(PLAN_S, "a tree of HyperNodes that agrees with the labels", lambda: agreement(suite))


def agreement(suite: Suite) -> str:
    tree = {
        one["metadata"]["name"]: one
        for one in suite.api.items(TREE, labelSelector="volcano.sh/network-topology-source=nodeagent")
    }
    if not tree:
        raise BrokenError("there is no HyperNode of nodeagent")
    children = Counter(child for one in tree.values() for child in members(one, "HyperNode"))
    if several := [name for name, parents in children.items() if parents > 1]:
        raise BrokenError(f"HyperNodes with two parents: {', '.join(several)}")
    if missing := children.keys() - tree.keys():
        raise BrokenError(f"members that do not exist: {', '.join(sorted(missing))}")
    leaf_of = Counter(node for one in tree.values() for node in members(one, "Node"))
    if several := [name for name, leaves in leaf_of.items() if leaves > 1]:
        raise BrokenError(f"Nodes in two HyperNodes: {', '.join(several)}")
    nodes = suite.api.items("/api/v1/nodes")
    labeled = {node["metadata"]["name"]: node["metadata"].get("labels", {}).get(f"{TIER}1") for node in nodes}
    for name, one in tree.items():
        for node in members(one, "Node"):
            if node in labeled and labeled[node] != name:
                raise BrokenError(f"{node} is a member of {name}, and its label {TIER}1 is {labeled[node]}")
    if lost := [node for node, group in labeled.items() if group and node not in leaf_of]:
        raise BrokenError(f"Nodes with a label and without a HyperNode: {', '.join(lost)}")
    return f"{len(tree)} HyperNodes with {len(leaf_of)} nodes"


def members(hypernode: Object, kind: str) -> list[str]:
    return [
        one["selector"]["exactMatch"]["name"]
        for one in hypernode["spec"].get("members", ())
        if one["type"] == kind and "exactMatch" in one["selector"]
    ]
