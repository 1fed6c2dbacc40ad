"""Each setting whose right stands elsewhere: in a role, in an admission policy, in another value of the chart.

The setting is configured, the chart and the overlays are rendered, and the agent and the controller run with the
configuration that they find there. Their requests meet the rendered roles and policies: what the setting is for
happens, and nothing is refused. Without the right it is the request of that setting which is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from msgspec import structs

from hack.docs.settings import settings_table
from nodeagent.agent_config import Config
from nodeagent.cluster import device_marks, partner_list
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.node_marks import (
    DEVICE_TAINT,
    FABRIC_CONDITION,
    FABRIC_TAINT,
    GPU_CONDITION,
    LINK_CONDITION,
    LINKS_TAINT,
    STARTING_TAINT,
)
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.config.setting import Settings
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.features import startup_taint
from nodeagent.features.other_programs import kept_objects
from nodeagent.features.rail_probing import rail_keeper
from nodeagent.kube.access import Access
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from tests.controller.test_controller import FIRST, RULES, SECOND, leaves, nodelinks
from tests.daemonset import test_chart as chart
from tests.daemonset.test_rbac import (
    AGENT,
    CONTROLLER,
    Grant,
    agent_pod,
    cluster,
    expanded_names,
    foreign,
    granted,
    refused,
    running,
)
from tests.support import job_pods
from tests.support.admission import Request, refusals
from tests.support.cluster_node import running_pod
from tests.support.manifests import INSTALLATIONS, OWN_NODE, Manifest, built, key, named, of_kind
from tests.support.nfd import nfd_definition, node_feature_definition
from tests.support.running_agent import Node, node, shorten, shorten_holdings

pytestmark = [pytest.mark.needs("kubectl", "helm_python", "cel_expr_python"), pytest.mark.slow]

Shown = Callable[[ApiServer], object]
"""Whether the thing that the setting is for has happened."""
LIMIT_S = 100.0
PREFIX = "two-gpus-and-two-nics"


class Row(NamedTuple):
    """One setting: as YAML in its file, the parts of the chart that give its right, and the first request
    that needs it: often a read, without which nothing is written."""

    text: str
    parts: tuple[str, ...]
    grant: Grant
    shown: Shown


Rows = dict[str, Row]


def of_node(server: ApiServer, name: str = "gpu-0") -> dict[str, Any]:
    return server.find("nodes", name) or {}


def condition(type_: str, name: str = "gpu-0") -> Shown:
    def shown(server: ApiServer) -> bool:
        found = of_node(server, name).get("status", {}).get("conditions") or ()
        return any(one["type"] == type_ for one in found)

    return shown


def taint(wanted: Any, name: str = "gpu-0") -> Shown:
    return lambda server: any(map(wanted.matches, of_node(server, name).get("spec", {}).get("taints") or ()))


def meta(kind: str, key: str) -> Shown:
    return lambda server: key in (of_node(server)["metadata"].get(kind) or {})


def report(server: ApiServer) -> dict[str, Any]:
    return server.find("nodelinks", "gpu-0", "nodeagent") or {}


def slices(server: ApiServer) -> list[Any]:
    return [one for it in server.objects("resourceslices") for one in it["spec"]["devices"]]


def listed(*grant: str) -> Shown:
    return lambda server: any(granted(seen) == grant and seen.status < 400 for seen in server.requests)


NODES: Grant = ("patch", "", "nodes")
NODE_STATUS: Grant = ("patch", "", "nodes/status")
POD: Grant = ("get", "", "pods")
NODE: Grant = ("get", "", "nodes")
SLICES: Grant = ("list", "resource.k8s.io", "resourceslices")
REPORT: Grant = ("patch", "nodeagent.io", "nodelinks")

MARKED = {
    "cluster.conditions": Row("cluster: {conditions: true}", ("nodeConditions",), NODE_STATUS,
        lambda server: condition(LINK_CONDITION)(server) and condition(GPU_CONDITION)(server)),
    "cluster.label": Row("cluster: {label: true}", ("nodeConditions",), NODES,
        meta("labels", "nodeagent.io/link-degraded")),
    "cluster.taint.enabled": Row("cluster: {taint: {enabled: true, railsDown: 1}}", ("nodeConditions",), NODES,
        taint(LINKS_TAINT)),
    "cluster.gpuMemLargest.enabled": Row("cluster: {gpuMemLargest: {enabled: true}}", ("nodeConditions",), NODES,
        meta("labels", "nodeagent.io/gpu-mem-largest")),
    "cluster.gpuMemEnforcement": Row("cluster: {gpuMemEnforcement: true}", ("nodeConditions",), NODES,
        meta("labels", "nodeagent.io/gpu-mem-enforcement")),
    "cluster.evict.taint": Row("cluster: {evict: {enabled: true, taint: true}}", ("nodeConditions", "evictions"), NODES,
        taint(DEVICE_TAINT)),
    "cluster.evict.enabled": Row("cluster: {evict: {enabled: true, afterSeconds: 1}}", ("evictions",), POD,
        lambda server: not server.find("pods", "p", "default")),
    "cluster.reportHolders": Row("cluster: {reportHolders: true}", (), REPORT,
        lambda server: report(server).get("holders")),
    "nfd.gpuLabels": Row("nfd: {gpuLabels: true}", ("gpuLabels",), ("list", "nfd.k8s-sigs.io", "nodefeatures"),
        listed("list", "nfd.k8s-sigs.io", "nodefeatures")),
    "rails.probe": Row("rails: {probe: true}", ("rails", "controller"), ("get", "nodeagent.io", "railpartners"),
        lambda server: any("railChecked" in link for link in report(server).get("links", ()))),
}  # fmt: skip
"""The writes of an agent about a link that fails while a pod holds it."""
CLAIMED = {
    "resources[vf].mode": Row("resources: [{kind: vf, mode: dra, vfDevices: true}]", ("dra",), SLICES,
        slices),
    "health.noExecute": Row('health: {noExecute: ["*"], guard: {share: 1, seconds: 0}}',
        ("dra",), SLICES,
        lambda server: any(it["effect"] == "NoExecute" for one in slices(server) for it in one.get("taints", ()))),
}  # fmt: skip
PLACED = {
    "resources[gpu-mem].volcano": Row(
        "resources: [{kind: vf}, {kind: gpu-mem, volcano: true, enforcement: none}]",
        ("nodeConditions", "volcanoDeviceshare"), ("list", "", "pods"),
        meta("annotations", "volcano.sh/node-vgpu-register")),
}  # fmt: skip
AGENTS = {"marks": MARKED, "claims": CLAIMED, "deviceshare": PLACED}


def hypernodes(server: ApiServer) -> list[Any]:
    return [one for one in server.objects("hypernodes") if one["metadata"]["name"].startswith("nodeagent-")]


CONTROLLED = {
    "nodes.minLinksCondition": Row("minLinks: 1\nnodes: {minLinksCondition: true}", ("marks",), NODE,
        condition(FABRIC_CONDITION, FIRST[0])),
    "nodes.minLinksTaint": Row("minLinks: 1\nnodes: {minLinksTaint: true, afterSeconds: 0}", ("marks",),
        NODE, taint(FABRIC_TAINT, FIRST[0])),
    "nodes.startupTaint": Row("nodes: {startupTaint: true}", ("startupTaint",), ("get", "", "nodes"),
        lambda server: not (of_node(server, "new")["spec"].get("taints"))),
    "outputs: slurm": Row("outputs: [slurm]\nslurm: {namespace: hpc, format: yaml}", ("slurm",),
        ("get", "", "configmaps"),
        lambda server: expanded_names([one.get("data") for one in server.objects("configmaps")])),
    "outputs: nodefeaturegroups": Row("outputs: [nodefeaturegroups]\nnodeFeatureGroups: {namespace: nfd}",
        ("nodeFeatureGroups",), ("list", "nfd.k8s-sigs.io", "nodefeaturegroups"),
        lambda server: expanded_names([one["spec"] for one in server.objects("nodefeaturegroups")])),
    "watchAgents": Row("watchAgents: true", (), ("list", "", "pods"), listed("list", "", "pods")),
    "jobs": Row("jobs: true", ("jobs",), ("list", "", "pods"), listed("list", "", "pods")),
    "rails.probe": Row("rails: {probe: true}", ("rails",), ("list", "nodeagent.io", "railpartners"),
        lambda server: server.objects("railpartners")),
    "rails.numbers": Row("rails: {probe: true, numbers: true}", ("rails",), ("list", "nodeagent.io", "railpartners"),
        lambda server: server.objects("railpartners")),
    "outputs: hypernodes": Row("outputs: [hypernodes]", (), ("create", "topology.volcano.sh", "hypernodes"),
        hypernodes),
    "outputs: labels": Row("outputs: [labels]", (), NODES,
        lambda server: "topology.nodeagent.io/tier-1" in of_node(server, FIRST[1])["metadata"]["labels"]),
    "overlapCondition": Row("overlapCondition: true", (), ("patch", "topology.volcano.sh", "hypernodes/status"),
        lambda server: any("status" in one for one in hypernodes(server))),
    "troubleAnnotation": Row("troubleAnnotation: true", (), ("patch", "topology.volcano.sh", "hypernodes"),
        lambda server: any(
            "nodeagent.io/trouble" in (one["metadata"].get("annotations") or {}) for one in hypernodes(server)
        )),
}  # fmt: skip

NAMESPACES = {"slurm": {"namespace": "hpc"}, "nodeFeatureGroups": {"namespace": "nfd"}}
"""Further values of a part of the chart."""
ELSEWHERE = {
    "cluster.claimStatus": "tests/daemonset/test_writers.py:claims has the right of the part dra",
    "resources[gpu-mem].enforcement": "tests/daemonset/test_rbac.py:agent_at_work evicts for over-use",
}
"""Settings whose text names a right, and where their requests meet it."""
HEAD = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "FabricConfig"}
PROBING = HEAD | {"rails": {"probe": True}}
HOLDERS = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig"} | {
    "cluster": {"reportHolders": True},
    "rails": {"probe": True},
}
"""Of the agents, for the parts of the controller that need it."""


def merged(one: Any, other: Any) -> Any:
    """Both YAML values: maps by key, lists one after the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: merged(one.get(key), other.get(key)) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return one if other is None else other


def configuration(kind: str, rows: Rows) -> dict[str, Any]:
    made: Any = {"apiVersion": "nodeagent.io/v1alpha1", "kind": kind}
    for row in rows.values():
        made = merged(made, yaml.safe_load(row.text))
    return dict(made)


def rendered(config: dict[str, Any], fabric: dict[str, Any], parts: set[str]) -> list[Manifest]:
    values: dict[str, Any] = {part: {"enabled": True, **NAMESPACES.get(part, {})} for part in parts}
    controller = {"controller": {"enabled": True, "fabric": fabric}}
    return chart.render({**values, **controller, "config": config})


def parts_of(*tables: Rows) -> set[str]:
    return {part for table in tables for row in table.values() for part in row.parts} - {"controller"}


def overlaid() -> list[Manifest]:
    """The objects of all overlays, as of one that includes them all; the namespaces are those of the overlays."""
    return list({str(key(one)): one for overlay in INSTALLATIONS for one in built(overlay)}.values())


# The agent


@asynccontextmanager
async def agent_at(server: ApiServer, config: dict[str, Any], folder: Path) -> AsyncIterator[Node]:
    """A node whose agent has this configuration and the rights of its service account."""
    file = folder / "kubeconfig"
    who = {"name": "u", "user": {"token": server.token(AGENT)}}
    where = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "nodeagent"}}
    clusters = [{"name": "c", "cluster": {"server": server.url}}]
    file.write_text(
        yaml.safe_dump({"current-context": "here", "contexts": [where], "clusters": clusters, "users": [who]})
    )
    access = {"cluster": {"access": "kubeconfig", "kubeconfig": str(file)}}
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "uid": "u-0"}})
    server.put(running_pod("p", "of-p"))
    server.put(node_feature_definition())
    async with node() as made:
        await made.kubelet.start()
        await made.start_agent(made.configure(yaml.safe_dump(merged(config, access))), node_name="gpu-0")
        yield made


async def trouble(made: Node, stage: str) -> None:
    """A link fails. In the stage ``marks`` a pod holds a VF of it."""
    if stage == "marks":
        await made.allocatable(f"{PREFIX}/nic0", 4)
        assert (await made.kubelet.admit(PodSpec.single("p", {f"{PREFIX}/nic0": 1}))).admitted
        await made.until(lambda: made.agent is not None and made.agent.inventory.snapshot.holdings)
    made.machine.set_link(0, up=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait of the writers is short: other tests have them."""
    shorten(monkeypatch, DeviceMarker.__init__, jitter_s=0.0)
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0, gather_s=0.05, gap_s=0.1)
    shorten_holdings(monkeypatch)
    monkeypatch.setattr(device_marks, "DOWN_S", 0.0)
    monkeypatch.setattr(device_marks, "PER_S", 10.0)
    monkeypatch.setattr(partner_list, "FIRST_S", 0.0)
    monkeypatch.setattr(startup_taint, "SETTLE_S", 0.01)
    monkeypatch.setattr(kept_objects, "KEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(rail_keeper, "JUDGE_S", 0.05)


async def each(server: ApiServer, conditions: dict[str, Callable[[], object]]) -> None:
    """Wait until each of these has been true once."""
    left = dict(conditions)

    def all_seen() -> bool:
        for name in [one for one, condition in left.items() if condition()]:
            del left[name]
        return not left

    try:
        await server.until(all_seen)
    except TimeoutError:
        answers = {(*granted(seen), seen.status) for seen in server.requests if seen.status >= 400}
        pytest.fail(f"did not happen: {sorted(left)}; not answered: {sorted(answers)}")


def shown(server: ApiServer, rows: Rows) -> dict[str, Callable[[], object]]:
    return {name: partial(row.shown, server) for name, row in rows.items()}


def refusals_of(server: ApiServer, rows: Rows) -> dict[str, Callable[[], object]]:
    return {name: partial(refused, server, row.grant) for name, row in rows.items() if row.parts}


def weak(config: dict[str, Any], fabric: dict[str, Any]) -> list[Manifest]:
    """The chart without the parts, and the definitions of all overlays: what is not there cannot be refused."""
    return [*of_kind(overlaid(), "CustomResourceDefinition"), *rendered(config, fabric, set())]


OPTIONAL = {("get", "", "nodes"), ("get", "", "pods")}
"""An agent reads its Node and the UIDs of pods if it may."""


@pytest.mark.parametrize("by", ["chart", "overlays"])
@pytest.mark.parametrize("stage", AGENTS)
async def test_what_a_setting_of_the_agent_is_for_happens(
    stage: str, by: str, tmp_path: Path, quick: None
) -> None:
    rows = AGENTS[stage]
    config = configuration("NodeAgentConfig", rows)
    manifests = rendered(config, PROBING, parts_of(rows)) if by == "chart" else overlaid()
    if by == "chart":
        config = yaml.safe_load(named(manifests, "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"])
    admitted: list[Request] = []
    async with asyncio.timeout(LIMIT_S), cluster(manifests, admitted) as server:
        async with agent_at(server, config, tmp_path) as made:
            await trouble(made, stage)
            await each(server, shown(server, rows))
        denied = {granted(seen) for seen in server.requests if seen.status == 403}
        assert denied <= (OPTIONAL if (stage, by) == ("claims", "chart") else set())
    assert [(one, why) for one in admitted if (why := refusals(manifests, one))] == []


@pytest.mark.parametrize("stage", AGENTS)
async def test_without_its_right_the_request_of_a_setting_of_the_agent_is_refused(
    stage: str, tmp_path: Path, quick: None
) -> None:
    rows = AGENTS[stage]
    config = configuration("NodeAgentConfig", rows)
    made = weak(config, HEAD)
    async with asyncio.timeout(LIMIT_S), cluster(made) as server, agent_at(server, config, tmp_path) as n:
        await trouble(n, stage)
        await each(server, refusals_of(server, rows))


# The controller


async def controlled(server: ApiServer, config: FabricConfig) -> None:
    """A node loses its links, a new Node has the start-up taint, and a foreign HyperNode overlaps."""
    for namespace in (config.slurm.namespace, config.node_feature_groups.namespace):
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    server.put(nfd_definition())
    server.put(job_pods.of_job("first", node=FIRST[0]))
    taints = [{"key": STARTING_TAINT, "effect": "NoSchedule"}]
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}, "spec": {"taints": taints}})
    server.put(agent_pod("new"))
    for number, name in enumerate(SECOND[:3]):
        made = nodelinks(name, leaves(1))
        made["links"][0]["addresses"] = [f"10.0.0.{number + 1}/24"]
        server.put(made)
    server.put(nodelinks(FIRST[0], leaves(0), state="down"))


PLACE = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)


@asynccontextmanager
async def controller_at(server: ApiServer, config: FabricConfig) -> AsyncIterator[None]:
    nodes = structs.replace(config.nodes, after_seconds=0.0)
    config = structs.replace(config, nodes=nodes, hysteresis=RULES.hysteresis)
    await controlled(server, config)
    access = Access(server.url, token=server.token(CONTROLLER))
    async with running(Controller(config, access, PLACE).run()):
        yield


def read(manifests: list[Manifest]) -> FabricConfig:
    text = named(manifests, "ConfigMap", "nodeagent-controller")["data"]["fabric.yaml"]
    return load_fabric(text, name="fabric.yaml")


@pytest.mark.parametrize("by", ["chart", "overlays"])
async def test_what_a_setting_of_the_controller_is_for_happens(by: str, quick: None) -> None:
    fabric = configuration("FabricConfig", CONTROLLED)
    if by == "chart":
        manifests = rendered(HOLDERS, fabric, parts_of(CONTROLLED))
        config = read(manifests)
    else:
        manifests = overlaid()
        config = load_fabric(yaml.safe_dump(fabric | {"slurm": {}, "nodeFeatureGroups": {}}), name="overlays")
    admitted: list[Request] = []
    async with asyncio.timeout(LIMIT_S), cluster(manifests, admitted) as server:
        async with controller_at(server, config):
            await server.until(lambda: hypernodes(server))
            server.put(foreign(FIRST[0]))
            await each(server, shown(server, CONTROLLED))
        assert {granted(seen) for seen in server.requests if seen.status == 403} == set()
    assert [(one, why) for one in admitted if (why := refusals(manifests, one))] == []


async def test_without_its_right_the_request_of_a_setting_of_the_controller_is_refused(quick: None) -> None:
    fabric = configuration("FabricConfig", CONTROLLED)
    manifests = weak(HOLDERS, fabric)
    async with asyncio.timeout(LIMIT_S), cluster(manifests) as server, controller_at(server, read(manifests)):
        await each(server, refusals_of(server, CONTROLLED))


# The table is whole


def test_each_role_and_policy_of_an_overlay_belongs_to_a_row() -> None:
    kinds = ("Role", "ClusterRole", "ValidatingAdmissionPolicy")
    tables = (*AGENTS.values(), CONTROLLED)
    config = configuration("NodeAgentConfig", {**MARKED, **CLAIMED, **PLACED})
    fabric = configuration("FabricConfig", CONTROLLED)
    made = {key(one)[1::2] for one in rendered(config, fabric, parts_of(*tables)) if one["kind"] in kinds}
    every = (one for one in overlaid() if not OWN_NODE.search(key(one)[3]))
    assert {key(one)[1::2] for one in every if one["kind"] in kinds} - made == set()


def described(declared: type[Settings]) -> Iterator[tuple[str, str]]:
    """Each row of the table of settings: path and text."""
    for line in settings_table(declared).splitlines():
        if found := re.match(r"\| `([^`]+)` \|.*\| ([^|]*) \|$", line):
            yield found[1], found[2]


def test_each_setting_whose_text_names_a_right_has_a_row() -> None:
    told = [(path, text) for declared in (Config, FabricConfig) for path, text in described(declared)]
    assert len(told) > 200
    naming = {path for path, text in told if re.search(r"\brights?\b", text)}
    rows = {name for table in (*AGENTS.values(), CONTROLLED) for name in table}
    assert naming - rows - ELSEWHERE.keys() == set(), "a row here, or the reason in ELSEWHERE"
    assert ELSEWHERE.keys() <= naming, "these texts name no right any more"
