"""Check the cluster: rights, CRDs, schedulers, and the Node object.

Only access reviews are created; the API server answers them and does not store them. Objects that may not be read
are listed as hidden, which is not a fault: an agent may read almost nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.quantities import quantity
from nodeagent.config.bounded_yaml import Limits, load_document
from nodeagent.doctor import dra_checks
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.kubelet_checks import KubeletFacts
from nodeagent.doctor.rbac import ACCOUNTS, DRA_RIGHTS, NEEDED_RIGHTS, ROLES, NeededRight, Role
from nodeagent.doctor.reads import version
from nodeagent.fabric.hypernode import SOURCE_LABEL
from nodeagent.fabric.nodelinks import API_VERSION, LinkNeighbor, NodeLink, NodeLinks, Wire
from nodeagent.facts.model import LINK_STATES, Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.kube.access import Access, AccessError, in_cluster, kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Json, Resource, metadata
from nodeagent.offering.offer import Offer, prefix

T = TypeVar("T")

CLUSTER_TOPIC = Topic(
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
        "phantom_devices": Advice(
            "The kubelet drops a resource that no plugin serves once, five minutes after its end. If the API server is "
            "away then, the Node keeps the devices for ever, also over a restart of the kubelet: the scheduler sends "
            "pods that the kubelet refuses (UnexpectedAdmissionError). Looked at are names with the present "
            "resourcePrefix, and with earlier ones that slices.json or rails.json remembers; one of VFs alone is "
            "forgotten with their last pod.",
            "remove the resource from `status.capacity` and `status.allocatable` of the Node (`kubectl edit node NAME "
            "--subresource=status`); the kubelet does not write it again",
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


_GROUPS = {
    "nodeagent.io": ("v1alpha1",),
    "topology.volcano.sh": ("v1alpha1",),
    "scheduling.volcano.sh": ("v1beta1",),
    "kueue.x-k8s.io": ("v1beta2", "v1beta1", "v1alpha1"),
    "resource.k8s.io": ("v1",),
}
"""The versions of our manifests, the preferred one first."""
_OURS = "nodeagent"
VOLCANO_NAMESPACE = "volcano-system"
_CONTROLLER_CONF = "volcano-controller.conf"
_TIMEOUT_S = 5.0

_CONFIG_MAPS: Resource[Json] = Resource("", "v1", "configmaps", "ConfigMap", True, dict)
_DEFINITIONS: Resource[Json] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, dict
)
_DAEMON_SETS: Resource[Json] = Resource("apps", "v1", "daemonsets", "DaemonSet", True, dict)
_REVIEW = "authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to reach the cluster, and the role whose rights are checked; ``None``: derived from the service account."""

    kubeconfig: Path | None = None
    node: str | None = None
    role: Role | None = None
    dra: bool = False
    """Whether the configuration has mode dra, whose rights are checked then."""
    context: str | None = None
    """That of the kubeconfig: then a cluster is asked, in a pod with a service account too."""


@dataclass(frozen=True, slots=True)
class DeniedVerb:
    role: Role
    right: NeededRight
    verb: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The Node object: its versions, and its capacity and allocatable amounts by resource."""

    name: str
    kubelet: str
    runtime: str
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``error``: nothing could be read. ``served``: version and plurals of each group; ``None``: not served.
    ``other``: the served versions where the expected one is missing. ``checked``: roles whose rights were reviewed.
    ``lacking_parts``: parts of a report that the definition of NodeLinks lacks.
    ``dra``: claims; ``None`` where the cluster has none.
    ``absent``: name of the Node if it does not exist. ``hidden``: objects that may not be read.
    """

    server: str = ""
    namespace: str = _OURS
    error: str | None = None
    served: Mapping[str, tuple[str, tuple[str, ...]] | None] = field(default_factory=dict)
    other: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checked: tuple[Role, ...] = ()
    denied: tuple[DeniedVerb, ...] = ()
    lacking: tuple[str, ...] = ()
    node: NodeFacts | None = None
    absent: str | None = None
    reported: bool | None = None
    foreign: Mapping[str, int] = field(default_factory=dict)
    discoverers: tuple[str, ...] = ()
    surge: str | None = None
    hidden: tuple[str, ...] = ()
    dra: dra_checks.DraFacts | None = None


async def read_cluster_facts(where: ClusterOptions) -> ClusterFacts | None:
    """``None`` where no cluster is configured."""
    pod = False
    try:
        named = where.kubeconfig is not None or where.context is not None
        access = kubeconfig(where.kubeconfig, where.context) if named else in_cluster()
        pod = not named and access is not None
        if access is None and os.environ.get("KUBECONFIG"):
            access = kubeconfig()
    except AccessError as error:
        return ClusterFacts(error=str(error))
    if access is None:
        return None
    client = ApiClient(access, manager="nodeagent-doctor", timeout_s=_TIMEOUT_S)
    try:
        asking = _ClusterReader(client, access.namespace if pod else _OURS)
        return await asking.all(access, where, pod=pod)
    except (ApiError, AccessError) as error:
        return ClusterFacts(access.server, error=str(error))
    finally:
        await client.close()


class _ClusterReader:
    """Reads one cluster; a forbidden object is noted and skipped."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._hidden: list[str] = []

    async def all(self, access: Access, where: ClusterOptions, *, pod: bool) -> ClusterFacts:
        served, other = {}, {}
        for group, versions in _GROUPS.items():  # the first answer shows whether the server is reachable
            served[group] = await self._served(group, versions)
            if served[group] is None:
                other[group] = await self._versions(group)
        checked, denied = await self._rights(
            _roles(access, where, pod=pod), mine=pod or where.role is not None, dra=where.dra
        )
        facts = ClusterFacts(access.server, self._namespace, None, served, other, checked, denied)
        if served["nodeagent.io"] is not None:
            definition = await self._get(_DEFINITIONS, DEFINITION, "the definition of NodeLinks")
            facts = replace(facts, lacking=lacking_parts(definition) if definition is not None else ())
        if served["topology.volcano.sh"] is not None:
            facts = replace(facts, foreign=await self._foreign(), discoverers=await self._discoverers())
        if where.node is not None:
            node, absent = await self._node(where.node)
            facts = replace(facts, node=node, absent=absent)
            if served["nodeagent.io"] is not None:
                facts = replace(facts, reported=await self._reported(where.node))
        if served["resource.k8s.io"] is not None:
            facts = replace(facts, dra=await dra_checks.read_claims(self._client, where.node, self._allowed))
        surge = await self._surge()
        return replace(facts, surge=surge, hidden=tuple(self._hidden))

    async def _get(
        self, resource: Resource[Json], name: str, what: str, namespace: str | None = None
    ) -> Json | None:
        return await self._allowed(what, self._client.get(resource, name, namespace=namespace))

    async def _allowed(self, what: str, call: Awaitable[T]) -> T | None:
        """The answer; ``None`` for what is missing, or may not be read."""
        try:
            return await call
        except ApiError as error:
            self._pass(error, what)
            return None

    def _pass(self, error: ApiError, what: str) -> None:
        """Note a forbidden object, and accept a missing one. Raises any other error."""
        if error.status == 403:
            self._hidden.append(what)
        elif not error.missing:
            raise error

    # --- API groups -----------------------------------------------------------------------------------

    async def _served(self, group: str, versions: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """API discovery, which every authenticated user may read."""
        for one in versions:
            discovery = await self._get(
                Resource(group, one, "", "", False, dict), "", f"the API group {group}"
            )
            if discovery is not None:
                return one, tuple(str(part.get("name")) for part in discovery.get("resources") or ())
        return None

    async def _versions(self, group: str) -> tuple[str, ...]:
        discovery = await self._get(Resource(group, "", "", "", False, dict), "", f"the API group {group}")
        return tuple(str(one.get("version")) for one in (discovery or {}).get("versions") or ())

    # --- rights ---------------------------------------------------------------------------------------

    async def _rights(
        self, roles: tuple[Role, ...], *, mine: bool, dra: bool
    ) -> tuple[tuple[Role, ...], tuple[DeniedVerb, ...]]:
        """``mine``: review the rights of the caller, else the service accounts'; those need an administrator."""
        questions = [
            (role, right, verb)
            for role in roles
            for right in (*NEEDED_RIGHTS[role], *(DRA_RIGHTS if dra and role == "agent" else ()))
            for verb in right.verbs
        ]
        try:
            answers = await asyncio.gather(*(self._granted(*question, mine=mine) for question in questions))
        except ApiError as error:
            self._pass(error, "the rights of the service accounts")
            if error.missing:
                self._hidden.append("the rights of the service accounts")
            return (), ()
        denied = (
            DeniedVerb(*question) for question, allowed in zip(questions, answers, strict=True) if not allowed
        )
        return roles, tuple(denied)

    async def _granted(self, role: Role, right: NeededRight, verb: str, *, mine: bool) -> bool:
        resource, _, part = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "verb": verb}
        attributes |= {"subresource": part} if part else {}
        attributes |= {"namespace": self._namespace} if right.own_namespace else {}
        attributes |= {"name": right.name} if right.name else {}
        spec: Json = {"resourceAttributes": attributes}
        kind = "SelfSubjectAccessReview"
        if not mine:
            kind = "SubjectAccessReview"
            groups = ["serviceaccounts", f"serviceaccounts:{self._namespace}", "authenticated"]
            spec["user"] = f"system:serviceaccount:{self._namespace}:{ACCOUNTS[role]}"
            spec["groups"] = [f"system:{group}" for group in groups]
        review: Resource[Json] = Resource(_REVIEW, "v1", f"{kind.lower()}s", kind, False, dict)
        answer = await self._client.create(review, {"metadata": {}, "spec": spec})
        return bool((answer.get("status") or {}).get("allowed"))

    # --- objects --------------------------------------------------------------------------------------

    async def _node(self, name: str) -> tuple[NodeFacts | None, str | None]:
        hidden = len(self._hidden)
        node = await self._get(NODES, name, f"the Node {name}")
        if node is None:
            return None, name if len(self._hidden) == hidden else None
        status = node.get("status") or {}
        info = status.get("nodeInfo") or {}
        capacity, allocatable = (
            {str(key): str(value) for key, value in (status.get(part) or {}).items()}
            for part in ("capacity", "allocatable")
        )
        kubelet, runtime = (str(info.get(key, "")) for key in ("kubeletVersion", "containerRuntimeVersion"))
        return NodeFacts(name, kubelet, runtime, capacity, allocatable), None

    async def _reported(self, node: str) -> bool | None:
        hidden = len(self._hidden)
        report = await self._get(NODELINKS, node, f"the NodeLinks {node}", self._namespace)
        return None if len(self._hidden) > hidden else report is not None

    async def _foreign(self) -> dict[str, int]:
        """The number of HyperNodes of other owners, by source."""
        others = self._client.list(HYPERNODES.partial, labels=f"{SOURCE_LABEL}!={_OURS}")
        listed = await self._allowed("HyperNodes", others)
        sources = (
            (metadata(hypernode).labels or {}).get(SOURCE_LABEL, "")
            for hypernode in (listed.items if listed is not None else ())
        )
        return dict(Counter(sources))

    async def _discoverers(self) -> tuple[str, ...]:
        """Volcano's own sources of HyperNodes that are enabled."""
        config_maps = self._client.list(_CONFIG_MAPS, namespace=VOLCANO_NAMESPACE)
        listed = await self._allowed(f"Volcano's ConfigMaps in {VOLCANO_NAMESPACE}", config_maps)
        return tuple(
            source
            for config_map in (listed.items if listed is not None else ())
            if isinstance(conf := (config_map.get("data") or {}).get(_CONTROLLER_CONF), str)
            for source in discoverers(conf)
        )

    async def _surge(self) -> str | None:
        daemon_set = await self._get(_DAEMON_SETS, _OURS, "the DaemonSet", self._namespace)
        strategy = ((daemon_set or {}).get("spec") or {}).get("updateStrategy") or {}
        surge = (strategy.get("rollingUpdate") or {}).get("maxSurge")
        return None if surge in (None, 0, "0", "0%") else str(surge)


def discoverers(conf: str) -> list[str]:
    """The sources that Volcano's controller configuration enables; none for an invalid text."""
    try:
        document = load_document(conf, Limits(values=100_000))
    except ValueError:
        return []
    entries = document.get("networkTopologyDiscovery") if isinstance(document, dict) else None
    return [
        str(entry.get("source"))
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and entry.get("enabled") is True
    ]


def _roles(access: Access, where: ClusterOptions, *, pod: bool) -> tuple[Role, ...]:
    if where.role is not None:
        return (where.role,)
    if not pod:
        return ROLES
    account = token_subject(access.authorization() or "").rpartition(":")[2]
    return next(((role,) for role, name in ACCOUNTS.items() if name == account), ("agent",))


def token_subject(authorization: str) -> str:
    """The subject of a service account's token, unverified: it only selects which rights are reviewed."""
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return ""
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return ""
    return str(claims.get("sub", "")) if isinstance(claims, dict) else ""


DEFINITION = "nodelinks.nodeagent.io"


def lacking_parts(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a report and its links, and the states, that the definition lacks: ``links[].state (unused)``."""
    versions = _at(definition, "spec", "versions")
    for served in versions if isinstance(versions, list) else ():
        if _at(served, "name") != API_VERSION.partition("/")[2]:
            continue
        report = _at(served, "schema", "openAPIV3Schema")
        links = _at(report, "properties", "links", "items")
        states = _at(links, "properties", "state", "enum")
        return (
            *_fields(NodeLinks, report, ""),
            *_fields(NodeLink, links, "links[]"),
            *_fields(LinkNeighbor, _at(links, "properties", "neighbor"), "links[].neighbor"),
            *(
                f"links[].state ({state})"
                for state in LINK_STATES
                if isinstance(states, list) and state not in states
            ),
        )
    return ()


def _fields(struct: type[Wire], schema: Any, place: str) -> list[str]:
    properties = _at(schema, "properties")
    if not isinstance(properties, dict):
        return []  # a schema that lists no fields accepts each
    names = (field.encode_name for field in msgspec.structs.fields(struct))
    return [f"{place}.{name}".lstrip(".") for name in names if name not in properties]


def _at(node: Any, *steps: str) -> Any:
    for step in steps:
        node = node.get(step) if isinstance(node, dict) else None
    return node


# --- findings -------------------------------------------------------------------------------------------


def cluster_findings(
    facts: ClusterFacts | None,
    config: Config,
    snapshot: Snapshot | None,
    numbering: Numbering = MappingProxyType({}),
) -> Iterator[Finding]:
    if facts is None:
        yield CLUSTER_TOPIC.ok("cluster_not_asked", "no --kubeconfig, and no pod with a service account")
        return
    if facts.error is not None:
        yield CLUSTER_TOPIC.fix("cluster_unreachable", facts.error)
        return
    yield CLUSTER_TOPIC.ok("cluster", f"{facts.server}, namespace {facts.namespace}")
    yield from _rights(facts)
    yield from _kinds(facts)
    yield from _tree(facts)
    if facts.surge is not None:
        yield CLUSTER_TOPIC.fix(
            "surge", f"the DaemonSet {facts.namespace}/{_OURS} has maxSurge {facts.surge}"
        )
    if facts.absent is not None:
        yield CLUSTER_TOPIC.note("node_absent", f"there is no Node {facts.absent}")
    if facts.node is not None:
        yield from _node(facts.node, config, snapshot, numbering)
    if facts.reported is not None:
        if facts.reported:
            yield CLUSTER_TOPIC.ok("report", "this node has its NodeLinks")
        else:
            yield CLUSTER_TOPIC.note("report_absent", "this node has no NodeLinks")
    if facts.hidden:
        yield CLUSTER_TOPIC.note("hidden", shortened_list(list(dict.fromkeys(facts.hidden)), 6))


def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    for role in facts.checked:
        denied = [denial for denial in facts.denied if denial.role == role]
        if not denied:
            yield CLUSTER_TOPIC.ok("rights", f"{ACCOUNTS[role]} has all rights that it needs")
        for denial in denied:
            place = f" in {facts.namespace}" if denial.right.own_namespace else ""
            yield CLUSTER_TOPIC.fix(
                "rights_missing",
                f"{ACCOUNTS[role]} may not {denial.right.sentence(denial.verb)}{place}, {denial.right.purpose}",
            )


def _kinds(facts: ClusterFacts) -> Iterator[Finding]:
    """CRDs and schedulers."""
    for group, versions in facts.other.items():
        if versions and group != "resource.k8s.io":
            wanted = ", ".join(_GROUPS[group])
            yield CLUSTER_TOPIC.fix(
                "crd_version", f"{group} is served as {', '.join(versions)}, not as {wanted}"
            )
    if facts.lacking:
        yield CLUSTER_TOPIC.warn("crd_older", f"NodeLinks lacks {shortened_list(list(facts.lacking), 6)}")
    if "nodelinks" in _plurals(facts, "nodeagent.io"):
        yield CLUSTER_TOPIC.ok("crds", "NodeLinks nodeagent.io/v1alpha1")
    elif not facts.other.get("nodeagent.io"):
        yield CLUSTER_TOPIC.warn("nodelinks_absent", "no NodeLinks")
    volcano, kueue = _plurals(facts, "scheduling.volcano.sh"), _plurals(facts, "kueue.x-k8s.io")
    hypernodes = "hypernodes" in _plurals(facts, "topology.volcano.sh")
    if hypernodes:
        yield CLUSTER_TOPIC.ok("volcano", "HyperNodes topology.volcano.sh/v1alpha1")
    elif volcano:
        yield CLUSTER_TOPIC.warn("hypernodes_absent", "Volcano is installed, but without HyperNodes")
    if kueue:
        served = (facts.served["kueue.x-k8s.io"] or ("",))[0]
        if "topologies" in kueue:
            yield CLUSTER_TOPIC.ok("kueue", f"Kueue's Topology kueue.x-k8s.io/{served}")
        else:
            yield CLUSTER_TOPIC.note("kueue_topology_absent", f"kueue.x-k8s.io/{served} has no topologies")
    if not (volcano or hypernodes or kueue):
        yield CLUSTER_TOPIC.note("schedulers_absent", "neither Volcano nor Kueue")


def _plurals(facts: ClusterFacts, group: str) -> tuple[str, ...]:
    served = facts.served.get(group)
    return () if served is None else served[1]


def _tree(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.discoverers:
        yield CLUSTER_TOPIC.fix("volcano_discovers", f"Volcano discovers with {', '.join(facts.discoverers)}")
    if facts.foreign:
        named = [f"{number} of {source or 'no source'}" for source, number in sorted(facts.foreign.items())]
        yield CLUSTER_TOPIC.warn("hypernodes_foreign", f"HyperNodes of other owners: {', '.join(named)}")


def _node(
    node: NodeFacts, config: Config, snapshot: Snapshot | None, numbering: Numbering
) -> Iterator[Finding]:
    yield CLUSTER_TOPIC.ok("node", f"{node.name}: kubelet {node.kubelet or '?'}, {node.runtime or '?'}")
    kubelet = version(node.kubelet)
    cdi = any(entry.device_list_strategy == "cdi" for entry in config.resources)
    if kubelet is not None:
        if kubelet < OLDEST:
            yield CLUSTER_TOPIC.warn("kubelet_old", f"kubelet {node.kubelet}")
        if kubelet < CDI_SINCE and cdi:
            yield CLUSTER_TOPIC.fix(
                "kubelet_without_cdi", f"kubelet {node.kubelet}, but the configuration uses CDI"
            )
        if kubelet <= RACE_UNTIL:
            yield CLUSTER_TOPIC.note("kubelet_race", f"kubelet {node.kubelet}")
    if cdi:
        yield from _runtime(node.runtime)
    if snapshot is not None:
        yield from _capacity(node, Offer(config, numbering).kinds(snapshot), snapshot)


def _runtime(reported: str) -> Iterator[Finding]:
    name, _, text = reported.partition("://")
    running = version(text)
    if running is None:
        return
    if (name == "containerd" and running < (1, 7)) or (name == "cri-o" and running < (1, 23)):
        yield CLUSTER_TOPIC.fix("runtime_without_cdi", f"{name} {text}, but the configuration uses CDI")
    elif name == "containerd" and running < (2, 0):
        yield CLUSTER_TOPIC.note("runtime_cdi_default", f"{name} {text}")


def phantoms(
    facts: ClusterFacts | None,
    kubelet: KubeletFacts | None,
    config: Config,
    snapshot: Snapshot | None,
    numbering: Numbering = MappingProxyType({}),
    earlier: Collection[str] = (),
) -> Iterator[Finding]:
    """Our resources that the Node has and the kubelet does not: it lists each healthy device. Only names with our
    prefix, or with one of the ``earlier`` ones: other programs write resources without a kubelet's device."""
    listed = kubelet.offered if kubelet is not None else None
    if kubelet is None or listed is None or facts is None or facts.node is None or snapshot is None:
        return
    ours = {prefix(config, snapshot.product), *earlier}
    served = {kind.resource for kind in Offer(config, numbering).kinds(snapshot)} if kubelet.locked else set()
    for name, amount in sorted(facts.node.allocatable.items()):
        counted = name.rpartition("/")[0] in ours and quantity(amount) != 0
        if counted and not listed.get(name) and name not in served:
            yield CLUSTER_TOPIC.fix(
                "phantom_devices",
                f"{name}: Node {facts.node.name} has {amount}, and the kubelet lists no device of it",
            )


def _capacity(node: NodeFacts, kinds: Sequence[DeviceKind], snapshot: Snapshot) -> Iterator[Finding]:
    for kind in kinds:
        ours = sum(len(devices.ids) for devices in kind.devices(snapshot))
        counted = node.capacity.get(kind.resource)
        if counted is not None and quantity(counted) != ours:
            yield CLUSTER_TOPIC.warn(
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
        yield CLUSTER_TOPIC.warn(
            "gpus_counted_twice",
            f"{count(len(others), 'resource')} of other plugins: {shortened_list(sorted(others))}",
        )
