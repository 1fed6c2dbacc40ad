"""The cluster: rights, CRDs, schedulers, and this node as the API server knows it. Pure; ``asking`` asks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.agent_config import Config
from nodeagent.doctor.api_server import GROUPS, OURS, Cluster, Node
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.rbac import ACCOUNTS
from nodeagent.kinds.vf import VfPool
from nodeagent.model import Snapshot
from nodeagent.offer import Offer

TOPIC = Topic(
    "cluster",
    "CLUSTER",
    {
        "cluster": FACT,
        "cluster_not_asked": FACT,
        "cluster_unreachable": Entry(
            "Without the API server no report of this node gets anywhere; devices are served all the same.",
            "the sentence names the file, address or certificate; check them with kubectl and the same kubeconfig",
        ),
        "rights": FACT,
        "rights_missing": Entry(
            "The API server will answer this with 403, and that part does not work.",
            "apply the roles again (kubectl apply -k daemonset/), and look for who edited them",
        ),
        "hidden": Entry(
            "Whoever asks here may not read it, so nothing is said of it; an agent may read almost nothing.",
            "run the doctor with an administrator's --kubeconfig and --node NAME to have it judged",
        ),
        "crds": FACT,
        "nodelinks_absent": Entry(
            "The nodes' reports are objects of this kind: without it there is no tree of the fabric.",
            "kubectl apply -k daemonset/ (the CustomResourceDefinition nodelinks.nodeagent.io)",
        ),
        "crd_version": Entry(
            "It is there in other versions than the one that is spoken here.",
            "bring CRD and agent to versions that belong together; docs/upgrade.md says in which order",
        ),
        "hypernodes_absent": Entry(
            "Volcano before 1.12 has no HyperNodes: jobs cannot be placed by the network.",
            "install Volcano 1.12 or newer, or its HyperNode definition alone: labels wait for it too",
        ),
        "volcano": FACT,
        "schedulers_absent": Entry(
            "The tree is used by a scheduler: Volcano by HyperNodes, Kueue by labels.",
            "nothing where devices alone are wanted; else install one of them",
        ),
        "kueue": FACT,
        "kueue_topology_absent": Entry(
            "Topology-aware scheduling takes Kueue's Topology, which this version does not serve.",
            "install a newer Kueue; our manifests are for kueue.x-k8s.io/v1beta2",
        ),
        "volcano_discovers": Entry(
            "Volcano's own discoverer writes and deletes HyperNodes by its own lights: two trees of one fabric.",
            "set `enabled: false` for it under networkTopologyDiscovery in Volcano's controller ConfigMap",
        ),
        "hypernodes_foreign": Entry(
            "HyperNodes of somebody else that hold our nodes put them in two places of the tree.",
            "remove them, or leave their nodes out of ours; the controller refuses to overlap",
        ),
        "node": FACT,
        "node_absent": Entry(
            "The API server has no Node of this name, so this machine is none of its nodes.",
            "name it with --node; kubectl get nodes lists them",
        ),
        "report": FACT,
        "report_absent": Entry(
            "No agent has reported this node's links yet, so it stands in no tree.",
            "look at the log of the agent's pod on this node",
        ),
        "kubelet_old": Entry(
            "Kubernetes 1.30 is the oldest that is supported: before, admission cannot bind an agent to its node.",
            "upgrade the node",
        ),
        "kubelet_race": Entry(
            "Up to 1.36 the end of a plugin's old stream makes the kubelet drop the new one (kubernetes#127803).",
            "nothing; the agent waits for the old stream to end. Never update the DaemonSet with maxSurge",
        ),
        "kubelet_without_cdi": Entry(
            "Before 1.29 the kubelet drops the CDI names that a device plugin gives, without a word: containers "
            "start without their device.",
            "upgrade, switch the gate DevicePluginCDIDevices on (1.28), or deviceListStrategy: envvar",
        ),
        "runtime_without_cdi": Entry(
            "This version of the container runtime does not know CDI: containers are created without their device.",
            "containerd 1.7 with enable_cdi, containerd 2, CRI-O 1.23; or deviceListStrategy: envvar",
        ),
        "runtime_cdi_default": Entry(
            "containerd 1.7 has CDI switched off unless its configuration says otherwise.",
            "enable_cdi = true in containerd's CRI plugin, then restart it",
        ),
        "surge": Entry(
            "Two agents on one node take turns at the kubelet's race: after an update nothing is allocatable.",
            "set maxSurge: 0 in the DaemonSet's updateStrategy",
        ),
        "capacity_differs": Entry(
            "What the scheduler counts is not what this node offers: another plugin has the name, or the kubelet has "
            "not heard of a change.",
            "look for other plugins above; where there is none, restart the agent's pod",
        ),
        "gpus_counted_twice": Entry(
            "Another resource counts the same GPUs: a pod of each can be sent to one GPU.",
            "remove that device plugin from the node, or give each its own GPUs by `select`",
        ),
    },
)

OLDEST = (1, 30)
RACE_UNTIL = (1, 36)
CDI_SINCE = (1, 29)
_GPU_RESOURCES = re.compile(
    r"nvidia\.com/(gpu|mig-.+|gpumem|gpucores|gpu\.shared)|aliyun\.com/gpu-mem|volcano\.sh/(vgpu-.+|gpu-.+)"
)


def judge(seen: Cluster | None, config: Config, snapshot: Snapshot | None) -> Iterator[Finding]:
    if seen is None:
        yield TOPIC.ok("cluster_not_asked", "no --kubeconfig, and this is no pod with a service account")
        return
    if seen.error is not None:
        yield TOPIC.fix("cluster_unreachable", seen.error)
        return
    yield TOPIC.ok("cluster", f"{seen.server}, namespace {seen.namespace}")
    yield from _rights(seen)
    yield from _kinds(seen)
    yield from _tree(seen)
    if seen.surge is not None:
        yield TOPIC.fix("surge", f"the DaemonSet {seen.namespace}/{OURS} has maxSurge {seen.surge}")
    if seen.absent is not None:
        yield TOPIC.note("node_absent", f"there is no Node {seen.absent}")
    if seen.node is not None:
        yield from _node(seen.node, config, snapshot)
    if seen.reported is not None:
        if seen.reported:
            yield TOPIC.ok("report", "this node has its NodeLinks")
        else:
            yield TOPIC.note("report_absent", "this node has no NodeLinks")
    if seen.hidden:
        yield TOPIC.note("hidden", some(list(dict.fromkeys(seen.hidden)), 6))


def _rights(seen: Cluster) -> Iterator[Finding]:
    for role in seen.checked:
        denied = [one for one in seen.denied if one.role == role]
        if not denied:
            yield TOPIC.ok("rights", f"{ACCOUNTS[role]} may do all that it needs")
        for one in denied:
            place = f" in {seen.namespace}" if one.demand.own else ""
            yield TOPIC.fix(
                "rights_missing",
                f"{ACCOUNTS[role]} may not {one.demand.sentence(one.verb)}{place}, {one.demand.wanted}",
            )


def _kinds(seen: Cluster) -> Iterator[Finding]:
    """CRDs and who schedules."""
    for group, versions in seen.other.items():
        if versions:
            wanted = ", ".join(GROUPS[group])
            yield TOPIC.fix("crd_version", f"{group} is served as {', '.join(versions)}, not as {wanted}")
    if "nodelinks" in _plurals(seen, "nodeagent.io"):
        yield TOPIC.ok("crds", "NodeLinks nodeagent.io/v1alpha1")
    elif not seen.other.get("nodeagent.io"):
        yield TOPIC.warn("nodelinks_absent", "no NodeLinks")
    volcano, kueue = _plurals(seen, "scheduling.volcano.sh"), _plurals(seen, "kueue.x-k8s.io")
    hypernodes = "hypernodes" in _plurals(seen, "topology.volcano.sh")
    if hypernodes:
        yield TOPIC.ok("volcano", "HyperNodes topology.volcano.sh/v1alpha1")
    elif volcano:
        yield TOPIC.warn("hypernodes_absent", "Volcano is there, and no HyperNodes")
    if kueue:
        version = (seen.served["kueue.x-k8s.io"] or ("",))[0]
        if "topologies" in kueue:
            yield TOPIC.ok("kueue", f"Kueue's Topology kueue.x-k8s.io/{version}")
        else:
            yield TOPIC.note("kueue_topology_absent", f"kueue.x-k8s.io/{version} has no topologies")
    if not (volcano or hypernodes or kueue):
        yield TOPIC.note("schedulers_absent", "neither Volcano nor Kueue")


def _plurals(seen: Cluster, group: str) -> tuple[str, ...]:
    found = seen.served.get(group)
    return () if found is None else found[1]


def _tree(seen: Cluster) -> Iterator[Finding]:
    if seen.discoverers:
        yield TOPIC.fix("volcano_discovers", f"Volcano discovers by {', '.join(seen.discoverers)}")
    if seen.foreign:
        named = [f"{number} of {source or 'no source'}" for source, number in sorted(seen.foreign.items())]
        yield TOPIC.warn("hypernodes_foreign", f"HyperNodes of others: {', '.join(named)}")


def _node(node: Node, config: Config, snapshot: Snapshot | None) -> Iterator[Finding]:
    yield TOPIC.ok("node", f"{node.name}: kubelet {node.kubelet or '?'}, {node.runtime or '?'}")
    kubelet = _version(node.kubelet)
    cdi = any(entry.device_list_strategy == "cdi" for entry in config.resources)
    if kubelet is not None:
        if kubelet < OLDEST:
            yield TOPIC.warn("kubelet_old", f"kubelet {node.kubelet}")
        if kubelet < CDI_SINCE and cdi:
            yield TOPIC.fix("kubelet_without_cdi", f"kubelet {node.kubelet}, and the configuration uses CDI")
        if kubelet <= RACE_UNTIL:
            yield TOPIC.note("kubelet_race", f"kubelet {node.kubelet}")
    if cdi:
        yield from _runtime(node.runtime)
    if snapshot is not None:
        yield from _capacity(node, config, snapshot)


def _runtime(told: str) -> Iterator[Finding]:
    name, _, text = told.partition("://")
    version = _version(text)
    if version is None:
        return
    if (name == "containerd" and version < (1, 7)) or (name == "cri-o" and version < (1, 23)):
        yield TOPIC.fix("runtime_without_cdi", f"{name} {text}, and the configuration uses CDI")
    elif name == "containerd" and version < (2, 0):
        yield TOPIC.note("runtime_cdi_default", f"{name} {text}")


def _capacity(node: Node, config: Config, snapshot: Snapshot) -> Iterator[Finding]:
    kinds = Offer(config).kinds(snapshot)
    for kind in kinds:
        ours = sum(len(devices.ids) for devices in kind.devices(snapshot))
        counted = node.capacity.get(kind.resource)
        if counted is not None and counted != str(ours):
            yield TOPIC.warn(
                "capacity_differs", f"{kind.resource}: the Node counts {counted}, we offer {ours}"
            )
    mine = {kind.resource for kind in kinds}
    if not any(not isinstance(kind, VfPool) and kind.devices(snapshot) for kind in kinds):
        return
    others = [
        name
        for name, number in node.capacity.items()
        if name not in mine and number != "0" and _GPU_RESOURCES.fullmatch(name)
    ]
    if others:
        yield TOPIC.warn(
            "gpus_counted_twice", f"{count(len(others), 'resource')} of others: {some(sorted(others))}"
        )


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else None
