"""The writes that the accounts of agents and controller may make: real tokens, bound to their pods, and dry runs.

A dry run passes authorization and admission, and is not stored. So nothing changes, even if a policy is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.cluster_suite.cluster_api import (
    APPLY,
    MERGE,
    BrokenError,
    ClusterApi,
    Object,
    RefusedError,
    SkippedError,
)
from tests.cluster_suite.suite import Suite

DRY = {"dryRun": "All"}
TREE = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DENIED = (403, 422)
"""Forbidden by a right or a policy; Invalid for an eviction that a policy refuses."""


@dataclass(frozen=True)
class Attempt:
    """One request. ``allowed`` is the promise."""

    what: str
    allowed: bool
    method: str
    path: str
    body: Any = None
    content: str = "application/json"
    query: tuple[tuple[str, str], ...] = ()

    def wrong(self, api: ClusterApi) -> str | None:
        """The answer that breaks the promise, in words; otherwise None."""
        try:
            api.call(self.method, self.path, self.body, content=self.content, **DRY, **dict(self.query))
        except RefusedError as refused:
            if self.allowed:
                return f"refused: {self.what} ({refused})"
            return None if refused.status in DENIED else f"unclear: {self.what} ({refused})"
        return None if self.allowed else f"allowed: {self.what}"


def token(suite: Suite, pod: Object | None, account: str) -> ClusterApi:
    """The API server, asked with a new token of ``account``, bound to ``pod``."""
    spec: Object = {"expirationSeconds": 600}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    path = f"/api/v1/namespaces/{suite.installation.namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return suite.api.with_token(suite.api.call("POST", path, body)["status"]["token"])


def apply(name: str, body: Object, path: str) -> dict[str, Any]:
    query = (("fieldManager", "nodeagent"), ("force", "true"))
    return {"method": "PATCH", "path": f"{path}/{name}", "body": body, "content": APPLY, "query": query}


def agent_attempts(suite: Suite, node: str, other: str) -> Iterator[Attempt]:
    space = suite.installation.namespace
    links = f"/apis/nodeagent.io/v1alpha1/namespaces/{space}/nodelinks"

    def report(name: str, about: str, **meta: Any) -> dict[str, Any]:
        body = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", "nodeName": about}
        return apply(name, {**body, "metadata": {"name": name, "namespace": space, **meta}}, links)

    def owned(**owner: str) -> list[Object]:
        return [{"apiVersion": "v1", "uid": "00000000-0000-0000-0000-000000000000", **owner}]

    yield Attempt("the report of its own node", True, **report(node, node))
    yield Attempt("the report of another node", False, **report(other, other))
    yield Attempt("its own report about another node", False, **report(node, other))
    yield Attempt("another node's report about its own", False, **report(other, node))
    yield Attempt(
        "a report owned by another Node",
        False,
        **report(node, node, ownerReferences=owned(kind="Node", name=other)),
    )
    yield Attempt(
        "a report that cannot be deleted", False, **report(node, node, finalizers=["example.com/a"])
    )
    yield Attempt("deleting its report", False, "DELETE", f"{links}/{node}")
    yield Attempt("reading the Secrets of its namespace", False, "GET", f"/api/v1/namespaces/{space}/secrets")
    yield Attempt(
        "a foreign label on its Node", False, "PATCH", f"/api/v1/nodes/{node}",
        {"metadata": {"labels": {"suite.example.com/a": "b"}}}, MERGE,
    )  # fmt: skip
    yield Attempt(
        "capacity on its Node", False, "PATCH", f"/api/v1/nodes/{node}/status",
        {"status": {"capacity": {"suite.example.com/a": "1"}}}, MERGE,
    )  # fmt: skip
    yield Attempt("an Event about its Node", True, **event(node, node))
    yield Attempt("an Event about another Node", False, **event(other, node))
    yield Attempt("an Event in another node's name", False, **event(node, other))
    yield Attempt("an Event in the kubelet's name", False, **event(node, node, component="kubelet"))
    for pod in suite.installation.pods("agent")[:1]:
        name = pod["metadata"]["name"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": space},
        }
        path = f"/api/v1/namespaces/{space}/pods/{name}/eviction"
        yield Attempt("evicting an agent", False, "POST", path, eviction)
    if suite.api.find("/apis/resource.k8s.io/v1") is not None:
        yield Attempt("a ResourceSlice of another node", False, "POST", SLICES, resource_slice(other))
    if suite.api.find("/apis/topology.volcano.sh/v1alpha1") is not None:
        yield Attempt("a HyperNode", False, "POST", TREE, hypernode("nodeagent-suite", "nodeagent"))


def event(about: str, by: str, component: str = "nodeagent") -> dict[str, Any]:
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "nodeagent-suite.", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": about},
        "reason": "Suite",
        "message": "a dry run",
        "type": "Normal",
        "source": {"component": component, "host": by},
        "reportingComponent": component,
        "reportingInstance": by,
    }
    return {"method": "POST", "path": "/api/v1/namespaces/default/events", "body": body}


def resource_slice(node: str) -> Object:
    pool = {"name": f"{node}/gpus", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nodeagent.io", "nodeName": node, "pool": pool, "devices": []}
    meta = {"generateName": "nodeagent-suite-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


def hypernode(name: str, source: str) -> Object:
    member = {"type": "Node", "selector": {"exactMatch": {"name": "nodeagent-suite"}}}
    labels = {"volcano.sh/network-topology-source": source}
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name, "labels": labels},
        "spec": {"tier": 1, "members": [member]},
    }


def unbound_attempts(suite: Suite, node: str) -> Iterator[Attempt]:
    links = f"/apis/nodeagent.io/v1alpha1/namespaces/{suite.installation.namespace}/nodelinks"
    body = {
        "apiVersion": "nodeagent.io/v1alpha1",
        "kind": "NodeLinks",
        "metadata": {"name": node},
        "nodeName": node,
    }
    yield Attempt("a report by a token without a node", False, **apply(node, body, links))
    yield Attempt("an Event by a token without a node", False, **event(node, node))


def controller_attempts(suite: Suite, node: str) -> Iterator[Attempt]:
    space, path = suite.installation.namespace, f"/api/v1/nodes/{node}"
    links = f"/apis/nodeagent.io/v1alpha1/namespaces/{space}/nodelinks"

    def patch(**body: Any) -> dict[str, Any]:
        return {"method": "PATCH", "path": path, "body": body, "content": MERGE}

    yield Attempt(
        "a tier label", True, **patch(metadata={"labels": {"topology.nodeagent.io/tier-9": "suite"}})
    )
    yield Attempt("a foreign label", False, **patch(metadata={"labels": {"suite.example.com/a": "b"}}))
    yield Attempt("an annotation", False, **patch(metadata={"annotations": {"topology.nodeagent.io/a": "b"}}))
    yield Attempt("a cordon", False, **patch(spec={"unschedulable": True}))
    yield Attempt(
        "a foreign taint",
        False,
        **patch(spec={"taints": [{"key": "suite.example.com/a", "effect": "NoSchedule"}]}),
    )
    yield Attempt("the report of a node", False, "PATCH", f"{links}/{node}", {"nodeName": node}, MERGE)
    yield Attempt("reading the Secrets of its namespace", False, "GET", f"/api/v1/namespaces/{space}/secrets")
    if suite.api.find("/apis/topology.volcano.sh/v1alpha1") is not None:
        yield Attempt("its own HyperNode", True, "POST", TREE, hypernode("nodeagent-suite", "nodeagent"))
        yield Attempt("another owner's HyperNode", False, "POST", TREE, hypernode("nodeagent-suite", "suite"))


def agent_policies(suite: Suite) -> str:
    """Agents write about their own node alone: tokens bound to the pod of each agent, and dry runs."""
    agents = suite.installation.agents()
    if not agents:
        raise BrokenError("there is no agent, so no pod for a token")
    tried: list[str] = []
    wrong: list[str] = []
    for agent in agents[:3]:
        node = agent.node_name
        others = [one.node_name for one in agents if one.node_name != node]
        api = token(suite, agent.pod, agent.pod["spec"]["serviceAccountName"])
        unbound = token(suite, None, agent.pod["spec"]["serviceAccountName"])
        attempts = [(api, one) for one in agent_attempts(suite, node, others[0] if others else f"{node}-2")]
        attempts += [(unbound, one) for one in unbound_attempts(suite, node)]
        for who, attempt in attempts:
            tried.append(attempt.what)
            if (found := attempt.wrong(who)) is not None:
                wrong.append(f"{node}: {found}")
    if wrong:
        raise BrokenError("; ".join(wrong))
    return f"{len(tried)} requests by {len(agents[:3])} agents answered as promised"


def controller_policies(suite: Suite) -> str:
    """The controller writes its labels and HyperNodes alone: a token bound to its pod, and dry runs."""
    pods = suite.installation.pods("controller")
    if not pods:
        raise SkippedError("no controller is installed: daemonset/overlays/controller")
    nodes = [agent.node_name for agent in suite.installation.agents()]
    api = token(suite, pods[0], pods[0]["spec"]["serviceAccountName"])
    attempts = list(controller_attempts(suite, nodes[0]))
    if wrong := [found for one in attempts if (found := one.wrong(api)) is not None]:
        raise BrokenError("; ".join(wrong))
    return f"{len(attempts)} requests answered as promised"
