"""Faults of a simulated machine (overlays/kind): what the kubelet offers, Events, the eviction of a pod."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.cluster_suite.cluster_api import MERGE, BrokenError, Object, RefusedError, SkippedError, until
from tests.cluster_suite.installation import FAULTS, Agent, is_true
from tests.cluster_suite.suite import Suite

FAULT_S = 180
"""The kubelet may take more than a minute to write an annotation into the pod."""
RECOVERY_S = 360
"""The same, and the hold of the link: a minute by default, longer after several faults."""


def simulate(suite: Suite, agent: Agent, text: str | None) -> None:
    path = f"/api/v1/namespaces/{suite.installation.namespace}/pods/{agent.pod['metadata']['name']}"
    suite.api.call("PATCH", path, {"metadata": {"annotations": {FAULTS: text}}}, content=MERGE)


def simulated(suite: Suite) -> Agent:
    """An agent of a simulated machine without faults."""
    found = [agent for agent in suite.candidates() if agent.simulated]
    if not found:
        raise SkippedError(
            "the agents run on real machines; only daemonset/overlays/kind can simulate a fault"
        )
    free = [one for one in found if not one.pod["metadata"].get("annotations", {}).get(FAULTS)]
    if not free:
        raise SkippedError(f"each simulated machine has faults already, by the annotation {FAULTS}")
    return free[0]


def begin(suite: Suite, agent: Agent, text: str) -> Callable[[], None]:
    """Simulate the faults. They end when the result is called, or at the end of the run."""

    def end() -> None:
        try:
            simulate(suite, agent, None)
        except RefusedError as refused:
            if refused.status != 404:  # a new pod of the agent has a machine without faults
                raise

    suite.undo.append(end)
    simulate(suite, agent, text)

    def ended() -> None:
        suite.undo.remove(end)
        end()

    return ended


def events(suite: Suite, namespace: str, name: str) -> dict[tuple[str, str], Object]:
    """Events about one object, by name and version."""
    found = suite.api.items(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={name}"
    )
    return {(one["metadata"]["name"], one["metadata"]["resourceVersion"]): one for one in found}


def fault(suite: Suite) -> str:
    """A cable is pulled and a GPU fails: their devices leave the Node, the others stay, and all return."""
    agent = simulated(suite)
    name, before = agent.node_name, agent.offered(agent.node)
    rails = [one for one in agent.offered(agent.node, "vf") if re.search(r"/nic\d+$", one)]
    memory = list(agent.offered(agent.node, "gpu-mem"))
    if not rails and not memory:
        raise SkippedError("no device plugin offers VFs or GPU memory on a simulated machine")
    words = [f"{one.rpartition('/')[2]}=down" for one in rails[-1:]] + ["gpu1=xid79"] * bool(memory)
    touched = {*rails[-1:], *memory}
    earlier = events(suite, "default", name)
    end = begin(suite, agent, ", ".join(words))

    def withdrawn() -> bool:
        now = agent.offered(suite.installation.node(name))
        if lost := [one for one in before.keys() - touched if now.get(one, 0) != before[one]]:
            raise BrokenError(f"{', '.join(lost)} changed without a fault")
        return all(now.get(one, 0) < before[one] for one in touched)

    until(FAULT_S, f"{name} offers less of {', '.join(sorted(touched))} after {', '.join(words)}", withdrawn)
    lost = agent.offered(suite.installation.node(name))
    wanted = ({"LinkCarrierDown"} if rails else set()) | ({"GpuXid79"} if memory else set())

    def told() -> bool:
        new = [one for key, one in events(suite, "default", name).items() if key not in earlier]
        return wanted <= {one["reason"] for one in new}

    until(60, f"Events {', '.join(sorted(wanted))} about {name}", told)
    end()

    def is_whole() -> bool:
        return agent.offered(suite.installation.node(name)) == before

    until(RECOVERY_S, f"{name} offers all again after the fault", is_whole)
    shown = ", ".join(
        f"{one.rpartition('/')[2]} {before[one]} → {lost.get(one, 0)} → {before[one]}"
        for one in sorted(touched)
    )
    return f"{shown} on {name}"


def eviction(suite: Suite) -> str:
    """A pod that holds a VF of a dead link is evicted; its successor waits, and runs after the recovery."""
    agent = simulated(suite)
    evict = agent.settings.get("cluster", {}).get("evict", {})
    if not evict.get("enabled"):
        raise SkippedError("cluster.evict is off: daemonset/components/evictions")
    free = suite.installation.free(agent)
    rails = [one for one in agent.offered(agent.node, "vf") if re.search(r"/nic\d+$", one) and free.get(one)]
    if not rails:
        raise SkippedError(f"no VF is free on {agent.node_name}")
    rail = rails[-1]
    labels = {"app": "nodeagent-suite-evicted"}
    spec = suite.workspace.pod_spec(agent, {rail: 1}, restartPolicy="Always")
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "evicted"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    deployments = suite.workspace.path("deployments", "/apis/apps/v1")
    suite.api.call("POST", deployments, body)

    def running() -> Object | None:
        found = suite.api.items(suite.workspace.path("pods"), labelSelector="app=nodeagent-suite-evicted")
        return next((pod for pod in found if is_true(pod, "Ready")), None)

    pod = until(120, "the pod of a Deployment runs", running)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    end = begin(suite, agent, f"{rail.rpartition('/')[2]}=down")

    def evicted() -> bool:
        found = events(suite, suite.workspace.namespace, name).values()
        return any(one["reason"] == "PodEvicted" for one in found)

    limit = FAULT_S + float(evict.get("afterSeconds", 300))
    until(limit, f"an Event PodEvicted on {name}", evicted)
    until(120, f"the end of {name}", lambda: suite.api.find(f"{suite.workspace.path('pods')}/{name}") is None)
    end()
    other = until(RECOVERY_S, "a successor of the evicted pod runs after the recovery", running)
    if other["metadata"]["uid"] == uid:
        raise BrokenError(f"{name} was not evicted")
    suite.api.delete(f"{deployments}/evicted", propagationPolicy="Foreground")
    until(120, "the end of the Deployment", lambda: suite.api.find(f"{deployments}/evicted") is None)
    return f"{name} on {agent.node_name}, then {other['metadata']['name']}"
