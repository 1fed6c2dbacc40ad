"""Agents, the resources of their nodes, pods with devices, and claims."""

from __future__ import annotations

import re

from tests.cluster_suite.cluster_api import BrokenError, Object, SkippedError, until
from tests.cluster_suite.installation import Agent, Installation, is_true
from tests.cluster_suite.suite import Suite

PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
REPORT_S = 90
RETURN_S = 120
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def agents(suite: Suite) -> str:
    """Each node that should have an agent has a Ready one."""
    sets = suite.installation.daemon_sets()
    for one in sets:
        name, status = one["metadata"]["name"], one["status"]
        wanted, ready = status["desiredNumberScheduled"], status.get("numberReady", 0)
        if ready != wanted:
            raise BrokenError(
                f"DaemonSet {name}: {ready} of {wanted} agents are Ready; /readyz of each names the reason"
            )
    found = suite.installation.agents()
    if not found:
        raise BrokenError("no node has an agent: label one with nodeagent.io/agent=true, docs/install.md")
    for agent in found:
        if not agent.is_ready:
            raise BrokenError(f"the agent of {agent.node_name} is not Ready; its /readyz names the reason")
    return f"{len(found)} Ready on {', '.join(agent.node_name for agent in found[:4])}"


def resources(suite: Suite) -> str:
    """Each resource of each agent's configuration is allocatable on its Node."""
    seen: dict[str, int] = {}
    for agent in suite.installation.agents():
        node = suite.installation.node(agent.node_name)
        for entry in agent.entries:
            if entry.get("mode") == "dra":
                continue
            offered = [(name, amount) for name, amount in agent.names(entry, node, "allocatable") if amount]
            if not offered:
                raise BrokenError(
                    f"{agent.node_name}: no {entry['kind']} {entry.get('name', '')} is allocatable"
                )
            for name, amount in offered:
                seen[name] = seen.get(name, 0) + amount
    if not seen:
        raise SkippedError(
            "no agent offers a resource by a device plugin: all have mode dra, or an empty `resources`"
        )
    return ", ".join(f"{amount} {name.partition('/')[2]}" for name, amount in sorted(seen.items()))


def reports(suite: Suite) -> str:
    """Each node has NodeLinks of its own, with a link for each rail whose VFs it offers."""
    links = 0
    for agent in suite.installation.agents():
        if not agent.settings.get("cluster", {}).get("report", True):
            raise SkippedError("cluster.report is off")
        name = agent.node_name
        report = until(
            REPORT_S, f"NodeLinks of {name}", lambda agent=agent: report_with_rails(suite.installation, agent)
        )
        owners = report["metadata"].get("ownerReferences", [])
        node = suite.installation.node(name)
        if report["nodeName"] != name or [one["uid"] for one in owners] != [node["metadata"]["uid"]]:
            raise BrokenError(
                f"NodeLinks {name} is not about its Node: nodeName {report['nodeName']}, owners {owners}"
            )
        links += len(report.get("links", ()))
    return f"{links} links"


def report_with_rails(installation: Installation, agent: Agent) -> Object | None:
    name = agent.node_name
    report = installation.reports().get(name)
    offered = agent.offered(installation.node(name), "vf")
    rails = {int(found[1]) for one in offered if (found := re.search(r"/nic(\d+)$", one))}
    if report and (missing := rails - {one.get("rail") for one in report.get("links", ())}):
        raise BrokenError(
            f"{name} offers VFs of the rails {sorted(missing)}, and its NodeLinks has none of these"
        )
    return report


def request(suite: Suite) -> tuple[Agent, dict[str, int]]:
    """A node with free devices, and what a small pod asks for there: two rails, a few slices."""
    best: tuple[Agent, dict[str, int]] | None = None
    for agent in suite.candidates():
        free, node = suite.installation.free(agent), suite.installation.node(agent.node_name)
        rails = [name for name in agent.offered(node, "vf") if free.get(name, 0) >= 2][:2]
        memory = [name for name in agent.offered(node, "gpu-mem") if free.get(name, 0) >= 4][:1]
        wanted = {**dict.fromkeys(rails, 1), **dict.fromkeys(memory, 2)}
        if wanted and (best is None or len(wanted) > len(best[1])):
            best = agent, wanted
    if best is None:
        raise SkippedError("no node with a Ready agent has two free VFs of a rail, or four free slices")
    return best


def got(agent: Agent, wanted: dict[str, int], environment: dict[str, str]) -> list[str]:
    """The VFs in the environment of a pod, which must agree with its request."""
    addresses = []
    memory = [name for name in wanted if "/nic" not in name and name in agent.offered(agent.node, "gpu-mem")]
    for name, amount in wanted.items():
        if name in memory:
            continue
        variable = "PCIDEVICE_" + re.sub(r"\W", "_", name).upper()
        found = PCI.findall(environment.get(variable, ""))
        if len(found) != amount:
            raise BrokenError(f"{variable} has {environment.get(variable)!r} for {amount} of {name}")
        addresses += found
    for name in memory:
        sizes = [one.get("sliceMiB", 1024) for one in agent.entries if one["kind"] == "gpu-mem"]
        mib = environment.get("NODEAGENT_GPU_MEM_MIB", "")
        if not environment.get("NODEAGENT_GPU_UUID", "").startswith(("GPU-", "MIG-")):
            raise BrokenError(f"the pod has {wanted[name]} of {name} and no NODEAGENT_GPU_UUID")
        if mib not in {str(size * wanted[name]) for size in sizes}:
            raise BrokenError(
                f"NODEAGENT_GPU_MEM_MIB is {mib!r} for {wanted[name]} of {name} with slices of {sizes} MiB"
            )
    return addresses


def pods(suite: Suite) -> str:
    """A pod gets VFs and slices, a second pod other VFs, and the devices are free again after both."""
    agent, wanted = request(suite)
    before = suite.installation.free(agent)
    first, second = (
        suite.workspace.start(name, suite.workspace.pod_spec(agent, wanted)) for name in ("first", "second")
    )
    held = got(agent, wanted, suite.workspace.environment(first))
    other = got(agent, wanted, suite.workspace.environment(second))
    if both := set(held) & set(other):
        raise BrokenError(f"two pods on {agent.node_name} hold the same VFs: {', '.join(sorted(both))}")
    suite.workspace.end(first, second)

    def is_free() -> bool:
        now = suite.installation.free(agent)
        return all(now.get(name, 0) >= amount for name, amount in before.items() if name in wanted)

    until(RETURN_S, f"the devices of two ended pods are free on {agent.node_name}", is_free)
    third = suite.workspace.start("third", suite.workspace.pod_spec(agent, wanted))
    got(agent, wanted, suite.workspace.environment(third))
    suite.workspace.end(third)
    words = ", ".join(f"{amount} {name.partition('/')[2]}" for name, amount in wanted.items())
    return f"{words} on {agent.node_name}; VFs {' '.join(held + other) or 'not asked for'}"


def published(suite: Suite, agent: Agent, kind: str) -> list[Object]:
    """The devices of ``kind`` in the ResourceSlices of the agent, without a taint."""
    slices = suite.api.items(
        SLICES, fieldSelector=f"spec.driver=nodeagent.io,spec.nodeName={agent.node_name}"
    )
    return [
        device
        for one in slices
        for device in one["spec"].get("devices", ())
        if device["attributes"].get("kind", device["attributes"].get("nodeagent.io/kind")) == {"string": kind}
        and not device.get("taints")
    ]


def claim(suite: Suite) -> str:
    """A claim of GPU memory and of a VF is allocated, its pod runs, and the claim ends with the pod."""
    using = [agent for agent in suite.candidates() if agent.uses_dra()]
    if not using:
        raise SkippedError("no resource has mode dra: daemonset/components/dra, docs/dra.md")
    if suite.api.find("/apis/resource.k8s.io/v1") is None:
        raise SkippedError("the API server does not serve resource.k8s.io/v1")
    agent = using[0]
    requests: list[Object] = []
    if until(REPORT_S, f"ResourceSlices of {agent.node_name}", lambda: any_device(suite, agent)) == "gpu":
        memory = {"capacity": {"requests": {"memory": "2Gi"}}}
        requests.append({"name": "gpu", "exactly": {"deviceClassName": "gpu-share", **memory}})
    if published(suite, agent, "nic"):
        requests.append({"name": "nic", "exactly": {"deviceClassName": "nic"}})
    for one in requests:
        name = one["exactly"]["deviceClassName"]
        if suite.api.find(f"/apis/resource.k8s.io/v1/deviceclasses/{name}") is None:
            raise SkippedError(
                f"the DeviceClass {name} is missing: daemonset/components/dra/objects/classes.yaml"
            )
    claims = suite.workspace.path("resourceclaims", "/apis/resource.k8s.io/v1")
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pair"},
        "spec": {"devices": {"requests": requests}},
    }
    suite.api.call("POST", claims, body)
    devices = [{"name": "devices", "resourceClaimName": "pair"}]
    pod = suite.workspace.start("claimant", suite.workspace.pod_spec(agent, resourceClaims=devices))
    environment = suite.workspace.environment(pod)
    results = suite.api.get(f"{claims}/pair")["status"]["allocation"]["devices"]["results"]
    if {one["driver"] for one in results} != {"nodeagent.io"}:
        raise BrokenError(f"the claim was allocated by {results}")
    names = {one["name"] for one in requests}
    if "gpu" in names and environment.get("NODEAGENT_GPU_MEM_MIB") != "2048":
        raise BrokenError(
            f"NODEAGENT_GPU_MEM_MIB is {environment.get('NODEAGENT_GPU_MEM_MIB')!r} for a claim of 2 GiB"
        )
    if "nic" in names and not any(key.startswith("PCIDEVICE_") for key in environment):
        raise BrokenError("the pod has a claim of a VF and no variable PCIDEVICE_…")
    suite.workspace.end(pod)
    until(
        RETURN_S,
        "the claim is released after its pod",
        lambda: not suite.api.get(f"{claims}/pair").get("status", {}).get("reservedFor"),
    )
    suite.api.delete(f"{claims}/pair")
    until(RETURN_S, "the end of the claim", lambda: suite.api.find(f"{claims}/pair") is None)
    return f"{', '.join(one['device'] for one in results)} on {agent.node_name}"


def any_device(suite: Suite, agent: Agent) -> str | None:
    return next((kind for kind in ("gpu", "nic") if published(suite, agent, kind)), None)


def restart(suite: Suite) -> str:
    """The pod of an agent is deleted: its successor is Ready, and a pod keeps its devices without a restart."""
    agent, wanted = request(suite)
    pod = suite.workspace.start("holder", suite.workspace.pod_spec(agent, wanted))
    held = got(agent, wanted, suite.workspace.environment(pod))
    path = f"{suite.workspace.path('pods')}/{pod}"
    before = suite.installation.node(agent.node_name)["status"]["allocatable"]
    suite.api.delete(
        f"/api/v1/namespaces/{suite.installation.namespace}/pods/{agent.pod['metadata']['name']}"
    )

    def is_back() -> bool:
        now = [one for one in suite.installation.agents() if one.node_name == agent.node_name]
        return bool(now) and now[0].is_ready and now[0].pod["metadata"]["uid"] != agent.pod["metadata"]["uid"]

    until(RETURN_S, f"a new agent of {agent.node_name} is Ready", is_back)

    def is_whole() -> bool:
        now = suite.installation.node(agent.node_name)["status"]["allocatable"]
        if lost := [name for name in wanted if now.get(name) != before[name]]:
            raise BrokenError(f"{', '.join(lost)}: other numbers than before")
        return True

    until(RETURN_S, f"{agent.node_name} offers what it offered before", is_whole)
    running = suite.api.get(path)
    if not is_true(running, "Ready") or running["status"]["containerStatuses"][0]["restartCount"]:
        raise BrokenError(f"the pod that holds {', '.join(held) or 'slices'} did not keep running")
    other = suite.workspace.start("after", suite.workspace.pod_spec(agent, wanted))
    if both := set(held) & set(got(agent, wanted, suite.workspace.environment(other))):
        raise BrokenError(
            f"a pod after the restart got VFs that another one holds: {', '.join(sorted(both))}"
        )
    suite.workspace.end(pod, other)
    return f"{agent.node_name}; a pod kept {len(held)} VFs"
