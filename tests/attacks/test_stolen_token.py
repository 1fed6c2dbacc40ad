"""An attacker has the token of an agent's pod, and sends forged requests to an API server that enforces the shipped
roles and policies.

The requests create Events in the name of the kubelet, rewrite the kubelet's Events of the node, give the node devices
and labels, mark other nodes, fill NodeLinks with annotations, and use rights that no role grants. Every request is
refused with 403, and no object changes. The writes of the agent with the same token are accepted beside them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import EVENTS, NODELINKS, NODES, PODS
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import leaves, nodelinks
from tests.daemonset.test_rbac import AGENT, PATIENCE_S, cluster
from tests.support.manifests import built

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

Attack = Callable[[ApiClient], Awaitable[Any]]


def event(name: str, component: str, **of: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "gpu-0", "uid": "gpu-0"},
        "reason": "NodeNotReady",
        "message": "the kubelet stopped",
        "source": {"component": component, "host": "gpu-0"},
        "reportingComponent": component,
        "reportingInstance": "gpu-0",
        **of,
    }


def own_report(**metadata: Any) -> dict[str, Any]:
    made = nodelinks("gpu-0", leaves(1))
    return {**made, "metadata": {**made["metadata"], **metadata}}


def node_patch(body: dict[str, Any], name: str = "gpu-0", subresource: str = "") -> Attack:
    return lambda client: client.patch(NODES, name, body, subresource=subresource)


ATTACKS: dict[str, Attack] = {
    "an Event as the kubelet": lambda client: client.create(EVENTS, event("forged", "kubelet")),
    "the kubelet's Event": lambda client: client.patch(
        EVENTS, "of-the-kubelet", {"message": "all is well"}, namespace="default"
    ),
    "the kubelet's Event, claimed": lambda client: client.patch(
        EVENTS, "of-the-kubelet", event("of-the-kubelet", "nodeagent"), namespace="default"
    ),
    "an Event of another node": lambda client: client.create(EVENTS, event("forged", "nodeagent") | {
        "involvedObject": {"kind": "Node", "name": "node-01"}}),
    "devices": node_patch({"status": {"allocatable": {"nvidia.com/gpu": "64"}}}, subresource="status"),
    "readiness": node_patch(
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, subresource="status"
    ),
    "a label that schedulers trust": node_patch({"metadata": {"labels": {"nvidia.com/gpu.product": "H200"}}}),
    "a role": node_patch({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    "a taint that evicts": node_patch(
        {"spec": {"taints": [{"key": "nodeagent.io/links-down", "effect": "NoExecute"}]}}
    ),
    "a mark on another node": node_patch({"metadata": {"labels": {"nodeagent.io/link-degraded": "8"}}}, "node-01"),
    "another's report": lambda client: client.apply(NODELINKS, nodelinks("node-01", leaves(1))),
    "endless annotations": lambda client: client.apply(
        NODELINKS, own_report(annotations={"x": "a" * 200_000})
    ),
    "an owner": lambda client: client.apply(NODELINKS, own_report(ownerReferences=[
        {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "0"}])),
    "all reports": lambda client: client.list(NODELINKS, namespace="nodeagent"),
    "another's pod": lambda client: client.evict("trainer", namespace="ml", uid="pods-ml/trainer"),
    "a pod's secrets": lambda client: client.get(PODS, "trainer", namespace="ml"),
    "a deletion": lambda client: client.delete(NODELINKS, "node-01", namespace="nodeagent"),
}  # fmt: skip


def populate(server: ApiServer) -> None:
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "uid": "u-0", "labels": {"nvidia.com/gpu.product": "H100"}},
            "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "False"}]},
        }
    )
    for name in ("default", "ml", "nodeagent"):
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}})
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "namespace": "ml"}})
    server.put(event("of-the-kubelet", "kubelet"))
    server.put(nodelinks("node-01", leaves(1)))


def objects(server: ApiServer) -> Any:
    return copy.deepcopy([server.objects(kind) for kind in ("nodes", "events", "nodelinks", "pods")])


async def test_a_stolen_token_of_an_agent_changes_nothing_but_its_own_marks() -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(built("components/node-conditions")) as server:
        populate(server)
        client = ApiClient(Access(server.url, token=server.token(AGENT)))
        before = objects(server)
        try:
            for name, attack in ATTACKS.items():
                with pytest.raises(ApiError) as refused:
                    await attack(client)
                assert refused.value.status == 403, f"{name}: {refused.value}"
                assert objects(server) == before, name
            await client.create(EVENTS, event("own", "nodeagent"))
            await client.patch(EVENTS, "own", {"count": 2}, namespace="default")
            await client.apply(NODELINKS, own_report())
            await client.patch(NODES, "gpu-0", {"metadata": {"labels": {"nodeagent.io/link-degraded": "1"}}})
        finally:
            await client.close()
        assert objects(server) != before
