"""Check the cluster: rights, CRDs, schedulers, and the Node object. Pure; ``cluster_facts`` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from nodeagent.agent_config import Config
from nodeagent.base.quantities import quantity
from nodeagent.doctor.cluster_facts import GROUPS, OURS, ClusterFacts, NodeFacts
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened
from nodeagent.doctor.rbac import ACCOUNTS
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.offering.offer import Offer

TOPIC = Topic(
    "cluster",
    "CLUSTER",
    {
        "cluster": FACT,
        "cluster_not_asked": FACT,
        "cluster_unreachable": Advice(
            "Without the API server this node's reports are not published; devices are served all the same.",
            "the message names the file, address or certificate; check them with kubectl and the same "
            "kubeconfig",
        ),
        "rights": FACT,
        "rights_missing": Advice(
            "The API server answers this request with 403, so that part does not work.",
            "apply the roles again (kubectl apply -k daemonset/), and find out why they were changed",
        ),
        "hidden": Advice(
            "The caller may not read this, so there are no findings about it; an agent may read almost "
            "nothing.",
            "run the doctor with an administrator's --kubeconfig and --node NAME",
        ),
        "crds": FACT,
        "nodelinks_absent": Advice(
            "The nodes' reports are objects of this kind: without it the controller cannot build the "
            "fabric's tree.",
            "kubectl apply -k daemonset/ (the CustomResourceDefinition nodelinks.nodeagent.io)",
        ),
        "crd_version": Advice(
            "The API server serves other versions than the one that nodeagent uses.",
            "install CRD and agent in versions that belong together; docs/upgrade.md gives the order",
        ),
        "crd_older": Advice(
            "The API server refuses the parts of a report that its definition lacks; the agent publishes the rest.",
            "kubectl apply -f daemonset/base/cluster/nodelinks.yaml: Helm does not upgrade definitions",
        ),
        "hypernodes_absent": Advice(
            "Volcano before 1.12 has no HyperNodes: it cannot place jobs by topology.",
            "install Volcano 1.12 or newer, or its HyperNode definition alone",
        ),
        "volcano": FACT,
        "schedulers_absent": Advice(
            "A scheduler uses the tree: Volcano by HyperNodes, Kueue by labels.",
            "nothing where only devices are used; otherwise install one of them",
        ),
        "kueue": FACT,
        "kueue_topology_absent": Advice(
            "Topology-aware scheduling needs Kueue's Topology, which this version does not serve.",
            "install a newer Kueue; our manifests are for kueue.x-k8s.io/v1beta2",
        ),
        "volcano_discovers": Advice(
            "Volcano's own discoverer also writes and deletes HyperNodes: the fabric would have two trees.",
            "set `enabled: false` for it under networkTopologyDiscovery in Volcano's controller ConfigMap",
        ),
        "hypernodes_foreign": Advice(
            "HyperNodes of another owner with our nodes put these nodes into two places of the tree.",
            "remove them, or exclude their nodes from the fabric; the controller refuses to write overlapping "
            "HyperNodes",
        ),
        "node": FACT,
        "node_absent": Advice(
            "The API server has no Node of this name, so this machine is not one of its nodes.",
            "give its name with --node; kubectl get nodes lists them",
        ),
        "report": FACT,
        "report_absent": Advice(
            "No agent has reported this node's links yet, so the node is not in the tree.",
            "check the log of the agent's pod on this node",
        ),
        "kubelet_old": Advice(
            "Kubernetes 1.30 is the oldest supported version: in older ones admission cannot bind an agent "
            "to its node.",
            "upgrade the node",
        ),
        "kubelet_race": Advice(
            "Up to 1.36, when a plugin's old stream ends, the kubelet drops the new one (kubernetes#127803).",
            "nothing; the agent waits for the old stream to end. Never update the DaemonSet with maxSurge",
        ),
        "kubelet_without_cdi": Advice(
            "Before 1.29 the kubelet silently drops the CDI names of a device plugin: containers start "
            "without their device.",
            "upgrade, enable the feature gate DevicePluginCDIDevices (1.28), or set deviceListStrategy: "
            "envvar",
        ),
        "runtime_without_cdi": Advice(
            "This version of the container runtime does not support CDI: containers are created without "
            "their device.",
            "use containerd 1.7 with enable_cdi, containerd 2 or CRI-O 1.23; or set deviceListStrategy: "
            "envvar",
        ),
        "runtime_cdi_default": Advice(
            "In containerd 1.7 CDI is disabled unless the configuration enables it.",
            "set enable_cdi = true in containerd's CRI plugin, then restart containerd",
        ),
        "surge": Advice(
            "Two agents on one node trigger the kubelet's race (kubernetes#127803): after an update nothing "
            "is allocatable.",
            "set maxSurge: 0 in the DaemonSet's updateStrategy",
        ),
        "capacity_differs": Advice(
            "The scheduler counts another number than this node offers: another plugin has the name, or the "
            "kubelet has missed a change.",
            "look for other plugins in the findings above; without any, restart the agent's pod",
        ),
        "gpus_counted_twice": Advice(
            "Another resource counts the same GPUs: two pods can get one GPU.",
            "remove that device plugin from the node, or give each plugin its own GPUs by `select`",
        ),
    },
)

OLDEST = (1, 30)
RACE_UNTIL = (1, 36)
CDI_SINCE = (1, 29)
_GPU_RESOURCES = re.compile(
    r"nvidia\.com/(gpu|mig-.+|gpumem|gpucores|gpu\.shared)|aliyun\.com/gpu-mem|volcano\.sh/(vgpu-.+|gpu-.+)"
)


def findings(
    facts: ClusterFacts | None,
    config: Config,
    snapshot: Snapshot | None,
    numbering: Numbering = MappingProxyType({}),
) -> Iterator[Finding]:
    if facts is None:
        yield TOPIC.ok("cluster_not_asked", "no --kubeconfig, and no pod with a service account")
        return
    if facts.error is not None:
        yield TOPIC.fix("cluster_unreachable", facts.error)
        return
    yield TOPIC.ok("cluster", f"{facts.server}, namespace {facts.namespace}")
    yield from _rights(facts)
    yield from _kinds(facts)
    yield from _tree(facts)
    if facts.surge is not None:
        yield TOPIC.fix("surge", f"the DaemonSet {facts.namespace}/{OURS} has maxSurge {facts.surge}")
    if facts.absent is not None:
        yield TOPIC.note("node_absent", f"there is no Node {facts.absent}")
    if facts.node is not None:
        yield from _node(facts.node, config, snapshot, numbering)
    if facts.reported is not None:
        if facts.reported:
            yield TOPIC.ok("report", "this node has its NodeLinks")
        else:
            yield TOPIC.note("report_absent", "this node has no NodeLinks")
    if facts.hidden:
        yield TOPIC.note("hidden", shortened(list(dict.fromkeys(facts.hidden)), 6))


def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    for role in facts.checked:
        denied = [denial for denial in facts.denied if denial.role == role]
        if not denied:
            yield TOPIC.ok("rights", f"{ACCOUNTS[role]} has all rights that it needs")
        for denial in denied:
            place = f" in {facts.namespace}" if denial.right.own_namespace else ""
            yield TOPIC.fix(
                "rights_missing",
                f"{ACCOUNTS[role]} may not {denial.right.sentence(denial.verb)}{place}, {denial.right.purpose}",
            )


def _kinds(facts: ClusterFacts) -> Iterator[Finding]:
    """CRDs and schedulers."""
    for group, versions in facts.other.items():
        if versions and group != "resource.k8s.io":
            wanted = ", ".join(GROUPS[group])
            yield TOPIC.fix("crd_version", f"{group} is served as {', '.join(versions)}, not as {wanted}")
    if facts.lacking:
        yield TOPIC.warn("crd_older", f"NodeLinks lacks {shortened(list(facts.lacking), 6)}")
    if "nodelinks" in _plurals(facts, "nodeagent.io"):
        yield TOPIC.ok("crds", "NodeLinks nodeagent.io/v1alpha1")
    elif not facts.other.get("nodeagent.io"):
        yield TOPIC.warn("nodelinks_absent", "no NodeLinks")
    volcano, kueue = _plurals(facts, "scheduling.volcano.sh"), _plurals(facts, "kueue.x-k8s.io")
    hypernodes = "hypernodes" in _plurals(facts, "topology.volcano.sh")
    if hypernodes:
        yield TOPIC.ok("volcano", "HyperNodes topology.volcano.sh/v1alpha1")
    elif volcano:
        yield TOPIC.warn("hypernodes_absent", "Volcano is installed, but without HyperNodes")
    if kueue:
        version = (facts.served["kueue.x-k8s.io"] or ("",))[0]
        if "topologies" in kueue:
            yield TOPIC.ok("kueue", f"Kueue's Topology kueue.x-k8s.io/{version}")
        else:
            yield TOPIC.note("kueue_topology_absent", f"kueue.x-k8s.io/{version} has no topologies")
    if not (volcano or hypernodes or kueue):
        yield TOPIC.note("schedulers_absent", "neither Volcano nor Kueue")


def _plurals(facts: ClusterFacts, group: str) -> tuple[str, ...]:
    served = facts.served.get(group)
    return () if served is None else served[1]


def _tree(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.discoverers:
        yield TOPIC.fix("volcano_discovers", f"Volcano discovers with {', '.join(facts.discoverers)}")
    if facts.foreign:
        named = [f"{number} of {source or 'no source'}" for source, number in sorted(facts.foreign.items())]
        yield TOPIC.warn("hypernodes_foreign", f"HyperNodes of other owners: {', '.join(named)}")


def _node(
    node: NodeFacts, config: Config, snapshot: Snapshot | None, numbering: Numbering
) -> Iterator[Finding]:
    yield TOPIC.ok("node", f"{node.name}: kubelet {node.kubelet or '?'}, {node.runtime or '?'}")
    kubelet = _version(node.kubelet)
    cdi = any(entry.device_list_strategy == "cdi" for entry in config.resources)
    if kubelet is not None:
        if kubelet < OLDEST:
            yield TOPIC.warn("kubelet_old", f"kubelet {node.kubelet}")
        if kubelet < CDI_SINCE and cdi:
            yield TOPIC.fix("kubelet_without_cdi", f"kubelet {node.kubelet}, but the configuration uses CDI")
        if kubelet <= RACE_UNTIL:
            yield TOPIC.note("kubelet_race", f"kubelet {node.kubelet}")
    if cdi:
        yield from _runtime(node.runtime)
    if snapshot is not None:
        yield from _capacity(node, Offer(config, numbering).kinds(snapshot), snapshot)


def _runtime(reported: str) -> Iterator[Finding]:
    name, _, text = reported.partition("://")
    version = _version(text)
    if version is None:
        return
    if (name == "containerd" and version < (1, 7)) or (name == "cri-o" and version < (1, 23)):
        yield TOPIC.fix("runtime_without_cdi", f"{name} {text}, but the configuration uses CDI")
    elif name == "containerd" and version < (2, 0):
        yield TOPIC.note("runtime_cdi_default", f"{name} {text}")


def _capacity(node: NodeFacts, kinds: Sequence[DeviceKind], snapshot: Snapshot) -> Iterator[Finding]:
    for kind in kinds:
        ours = sum(len(devices.ids) for devices in kind.devices(snapshot))
        counted = node.capacity.get(kind.resource)
        if counted is not None and quantity(counted) != ours:
            yield TOPIC.warn(
                "capacity_differs", f"{kind.resource}: the Node counts {counted}, this node offers {ours}"
            )
    mine = {kind.resource for kind in kinds}
    if not any(kind.source == "gpus" and kind.devices(snapshot) for kind in kinds):
        return
    others = [
        name
        for name, number in node.capacity.items()
        if name not in mine and number != "0" and _GPU_RESOURCES.fullmatch(name)
    ]
    if others:
        yield TOPIC.warn(
            "gpus_counted_twice",
            f"{count(len(others), 'resource')} of other plugins: {shortened(sorted(others))}",
        )


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else None
