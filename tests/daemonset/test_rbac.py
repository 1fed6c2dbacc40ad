"""The shipped roles are sufficient and minimal: the real agent and controller against an API server that enforces
them, then again with each verb of each rule removed."""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster import partner_list
from nodeagent.cluster.affected_devices import Offered
from nodeagent.cluster.agent_events import AgentEvents
from nodeagent.cluster.cluster_settings import (
    ClusterSettings,
    EvictSettings,
    GpuMemLargestSettings,
    TaintSettings,
)
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.event_writer import NoticeBoard
from nodeagent.cluster.evictions import Evictions, EvictionTaint, failed_device_causes, over_use_causes
from nodeagent.cluster.largest_block import FreeBlock
from nodeagent.cluster.node_marks import FABRIC_CONDITION, FABRIC_TAINT, LINK_CONDITION, STARTING_TAINT
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.fabric.fabric_settings import LabelSettings
from nodeagent.fabric.node_lists import expanded
from nodeagent.facts.allocation import Devices
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import HEALTHY, Health, Holding, Reason, Snapshot, State
from nodeagent.features import startup_taint
from nodeagent.features.other_programs import kept_objects
from nodeagent.features.rail_probing import rail_keeper
from nodeagent.features.rail_probing.rail_keeping_settings import FabricRailsSettings
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_watch import RailWatch
from nodeagent.kube.access import Access, NodeClaim
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS
from nodeagent.sharing.over_use import OverUse
from nodeagent_lab.sim.apiserver import ApiServer, RequestRecord
from tests.cluster.test_node_report import RAILS, neighbor, snapshot
from tests.controller.test_controller import FIRST, RULES, SECOND, leaves, nodelinks, populate, tree
from tests.support import job_pods
from tests.support.admission import NODE, UID, Request, refusals
from tests.support.cluster_node import held_pods, running_pod
from tests.support.manifests import Manifest, built, combined, configurations, of_kind
from tests.support.nfd import nfd_definition

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

AGENT = "system:serviceaccount:nodeagent:nodeagent"
CONTROLLER = "system:serviceaccount:nodeagent:nodeagent-controller"
PATIENCE_S = 30.0

Grant = tuple[str, str, str]
"""(verb, group, resource)"""


def grants(manifests: list[Manifest], account: str) -> Iterator[tuple[Manifest, dict[str, Any], Grant]]:
    """One granted right of the account: role, rule and verb."""
    name = account.rpartition(":")[2]
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in manifests
        if one["kind"].endswith("RoleBinding") and any(who["name"] == name for who in one["subjects"])
    }
    for role in manifests:
        if (role["kind"], role["metadata"]["name"]) in bound:
            for rule in role["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield role, rule, (verb, group, resource)


def without(manifests: list[Manifest], role: Manifest, rule: dict[str, Any], verb: str) -> list[Manifest]:
    """Return the manifests without one verb of one rule."""
    weaker = {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
    rules = [weaker if one is rule else one for one in role["rules"]]
    return [{**one, "rules": rules} if one is role else one for one in manifests]


@asynccontextmanager
async def cluster(
    manifests: list[Manifest],
    admitted: list[Request] | None = None,
    claim: NodeClaim = NodeClaim("gpu-0", "u-0"),  # noqa: B008 - frozen
) -> AsyncIterator[ApiServer]:
    """Start an API server that enforces our definition, roles and policies, with eight nodes in two units.
    ``admitted`` receives every write that the policies see, before they answer. The token of the agent has ``claim``.
    """
    server = await ApiServer(rbac=True).start()
    for one in (*of_kind(manifests, "CustomResourceDefinition"), *manifests):
        try:
            server.put(one)
        except LookupError:
            continue  # the stand-in stores roles and bindings, but not this kind
    assert server.find("clusterroles", "nodeagent") is not None
    populate(server)

    def admit(user: str, verb: str, resource: str, old: Any, new: Any) -> str | None:
        operation = {"create": "CREATE", "update": "UPDATE", "delete": "DELETE"}[verb]
        group = (new or old)["apiVersion"].rpartition("/")[0]
        resource = f"{'' if resource == 'pods/eviction' else group}:{resource}"
        meta = (new or old)["metadata"]
        extra = {NODE: [claim.name], UID: [claim.uid]} if user == AGENT else {}
        request = Request(operation, resource, meta["name"], user, extra, new, old, meta.get("namespace", ""))
        if admitted is not None:
            admitted.append(copy.deepcopy(request))
        return "; ".join(refusals(manifests, request)) or None

    server.admit.append(admit)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def running(*jobs: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def granted(seen: RequestRecord) -> Grant:
    return seen.verb, seen.group, seen.resource


def refused(server: ApiServer, grant: Grant) -> bool:
    return any(granted(seen) == grant and seen.status == 403 for seen in server.requests)


# The agent

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)
HELD = Holding("ml", "trainer", "main", "nvidia-dgx-h100/nic0", ("0000:18:00.1",))


def facts(health: Health, port: str = "Ethernet1/1") -> Snapshot:
    """Return a snapshot of eight links, the first with the given health, and a pod that holds a VF of it."""
    made = snapshot(*(neighbor(n, port) for n in range(8)))
    first = structs.replace(made.functions[0], health=health)
    return structs.replace(made, functions=(first, *made.functions[1:]), holdings=(HELD,))


def offered(now: Snapshot) -> Offered:
    return [(HELD.resource, [Devices("0000:18:00.0", HELD.device_ids, (), now.functions[0].health)])]


LABELS = {"nodeagent.io/link-degraded", "nodeagent.io/gpu-mem-largest", "nodeagent.io/gpu-mem-enforcement"}


def tell(inventory: Inventory, now: Snapshot) -> None:
    inventory.publish("pci", functions=now.functions, links=now.links)
    inventory.publish("lldp", neighbors=now.neighbors)
    inventory.publish("pods", holdings=now.holdings)


async def agent_at_work(server: ApiServer, *, marks: bool = False) -> None:
    """Run the agent: a report is created and changed, a link fails, recovers and fails again. With ``marks`` the
    agent marks the Node, and evicts one pod for its device and one for what it uses. Without a needed right this runs
    until it is cancelled."""
    inventory = Inventory()
    client, board = (
        ApiClient(Access(server.url, token=server.token(AGENT)), manager="nodeagent"),
        NoticeBoard(),
    )
    report = NodeReporter(
        client, inventory, "gpu-0", "nodeagent", lambda: RAILS,
        owner=NodeClaim("gpu-0", "u-0"), jitter_s=0, gather_s=0.01, gap_s=0.05, patience_s=0,
    )  # fmt: skip
    marked: dict[str, Any] = {}
    jobs = [
        report.run(),
        AgentEvents(
            client, inventory, "gpu-0", offered, pods=held_pods(client, inventory), board=board
        ).run(),
    ]
    if marks:
        settings = ClusterSettings(
            conditions=True,
            label=True,
            taint=TaintSettings(enabled=True, rails_down=1),
            gpu_mem_largest=GpuMemLargestSettings(enabled=True),
            gpu_mem_enforcement=True,
            evict=EvictSettings(enabled=True, taint=True),
        )
        taint = EvictionTaint()
        marker = DeviceMarker(
            client, inventory, "gpu-0", settings, jitter_s=0,
            rails=lambda: RAILS, block=lambda _: FreeBlock(79, 79), level=lambda _: "env",
            evict_taint=taint,
        )  # fmt: skip
        marker._rate = RateLimit(100, 100)
        # A link that is down when the agent starts has been down for long, by the condition of the Node.
        marked = {
            "conditions": [
                {"type": LINK_CONDITION, "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ]
        }
        tell(inventory, facts(DOWN))
        over = OverUse("ml", "greedy", "GPU-0", 40 << 30, 45 << 30, since=0.0, uid="u-greedy")
        rate = RateLimit(100, 100)
        jobs += [
            marker.run(),
            Evictions(
                client, inventory,
                lambda facts: failed_device_causes(facts, offered(facts), lambda _: None, time.monotonic()), 0.01,
                node="gpu-0", pods=held_pods(client, inventory), board=board, rate=rate, taint=taint,
            ).run(),
            Evictions(
                client, inventory, lambda _: over_use_causes([over], {"GPU-0"}), 0.01,
                node="gpu-0", board=board, rate=rate, part="over-use evictions",
            ).run(),
        ]  # fmt: skip
    own = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "uid": "u-0"}, "status": marked}
    server.put(own)
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    for pod in ("trainer", "greedy"):
        server.put(running_pod(pod, f"u-{pod}", namespace="ml"))

    def stored() -> dict[str, Any]:
        return server.find("nodelinks", "gpu-0", "nodeagent") or {"links": [{}]}

    def event_written(reason: str, times: int = 1) -> bool:
        return any(one["reason"] == reason and one["count"] >= times for one in server.objects("events"))

    def node() -> dict[str, Any]:
        return server.find("nodes", "gpu-0") or {}

    if not marks:
        tell(inventory, facts(HEALTHY))
    try:
        async with running(*jobs):
            await server.until(lambda: len(stored()["links"]) == 8)
            if marks:
                await server.until(lambda: len(node().get("spec", {}).get("taints", ())) == 2)
                await server.until(lambda: node()["metadata"].get("labels", {}).keys() >= LABELS)
                await server.until(lambda: "message" in node()["status"]["conditions"][0])
                await server.until(lambda: not server.objects("pods"))
                await server.until(lambda: event_written("PodEvicted"))
            tell(inventory, facts(HEALTHY, "Ethernet9/1"))
            await server.until(lambda: stored()["links"][0]["neighbor"]["portID"]["value"] == "Ethernet9/1")
            tell(inventory, facts(DOWN, "Ethernet9/1"))
            await server.until(lambda: event_written("LinkCarrierDown") and event_written("DeviceFailed"))
            tell(inventory, facts(HEALTHY, "Ethernet9/1"))
            await server.until(lambda: event_written("Recovered"))
            tell(inventory, facts(DOWN, "Ethernet9/1"))
            await server.until(lambda: event_written("LinkCarrierDown", 2))
            await server.until(lambda: stored()["summary"]["health"] == "down")
    finally:
        await client.close()


def allowed(manifests: list[Manifest], account: str) -> list[Grant]:
    return sorted(grant for _, _, grant in grants(manifests, account))


PODS: Grant = ("get", "", "pods")
"""Rights for the UID in the Event of a pod; the agent works without them."""
CREATE: Grant = ("create", "nodeagent.io", "nodelinks")
"""The first apply of an object needs both create and patch, in one request."""


async def test_the_rights_of_the_agent_are_sufficient_and_all_are_used() -> None:
    manifests = built()
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await agent_at_work(server)
        assert {granted(seen) for seen in server.requests if seen.status == 403} <= {PODS}
        asked = {granted(seen) for seen in server.requests if seen.status != 403}
        report = server.find("nodelinks", "gpu-0", "nodeagent")
        assert report is not None
        assert report["summary"] == {"links": "7/8", "switches": 8, "health": "down"}
    assert sorted(asked | {CREATE}) == allowed(manifests, AGENT)


async def test_marks_and_evictions_need_exactly_the_rights_of_their_overlays() -> None:
    manifests = combined("evictions", "node-conditions")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await agent_at_work(server, marks=True)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked | {CREATE} == set(allowed(manifests, AGENT)), (
        "both components have the rights for the own Node"
    )


AGENT_GRANTS = [
    ("get", "nodeagent.io", "nodelinks"),
    ("create", "nodeagent.io", "nodelinks"),
    ("patch", "nodeagent.io", "nodelinks"),
    ("create", "", "events"),
    ("patch", "", "events"),
]
OPTIONAL_GRANTS = [
    ("get", "", "nodes"),
    ("patch", "", "nodes"),
    ("patch", "", "nodes/status"),
    PODS,
    ("create", "", "pods/eviction"),
]


@pytest.mark.parametrize("grant", AGENT_GRANTS, ids="-".join)
async def test_without_a_right_the_agent_names_the_missing_right(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = built()
    assert sorted(AGENT_GRANTS) == allowed(manifests, AGENT)
    (found,) = (one for one in grants(manifests, AGENT) if one[2] == grant)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, agent_at_work(server), grant, caplog)


@pytest.mark.parametrize("grant", [one for one in OPTIONAL_GRANTS if one[0] != "get"], ids="-".join)
async def test_a_configured_feature_without_its_right_is_logged(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the two read rights the agent does not know the marks of an earlier run or the UID of a pod."""
    manifests = combined("evictions", "node-conditions")
    assert {*AGENT_GRANTS, *OPTIONAL_GRANTS} == set(allowed(manifests, AGENT))
    caplog.set_level(logging.INFO)
    async with cluster(built()) as server:
        await missed(server, agent_at_work(server, marks=True), grant, caplog)


async def missed(server: ApiServer, work: Any, grant: Grant, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until the log names the forbidden request."""
    verb, _, resource = grant

    def named() -> bool:
        return any(f'cannot {verb} resource "{resource}"' in line for line in caplog.messages)

    async with asyncio.timeout(PATIENCE_S), running(work):
        while not named():
            await asyncio.sleep(0.02)
    assert any(seen.status == 403 for seen in server.requests)


# Forged requests, over the wire


async def test_the_policy_refuses_a_report_about_another_node() -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(built()) as server:
        client = ApiClient(Access(server.url, token=server.token(AGENT)))
        try:
            with pytest.raises(ApiError, match="may write the NodeLinks of that name only"):
                await client.apply(NODELINKS, nodelinks("node-00", leaves(1)), force=True)
            with pytest.raises(ApiError, match="cannot list"):
                await client.list(NODELINKS, namespace="nodeagent")
        finally:
            await client.close()
        assert server.find("nodelinks", "node-00", "nodeagent") == server.find(
            "nodelinks", "node-00", "nodeagent"
        )


# The controller


async def controller_at_work(server: ApiServer, labels: LabelSettings = RULES.labels) -> None:
    """Run the controller: it creates a tree, a node moves, a unit leaves, and a foreign HyperNode conflicts."""
    token = server.token(CONTROLLER)
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    config = structs.replace(RULES, overlap_condition=True, labels=labels)
    async with running(Controller(config, Access(server.url, token=token), place).run()):
        await server.until(lambda: len(tree(server)) == 2)
        await server.until(lambda: all(labeled(server, node) for node in FIRST + SECOND))
        server.put(nodelinks(FIRST[3], leaves(1)))
        await server.until(lambda: sorted(map(len, tree(server).values())) == [4, 6])
        for node in (*SECOND, FIRST[3]):
            server.remove("nodes", node)
        await server.until(lambda: [len(members) for members in tree(server).values()] == [4])
        server.put(foreign(FIRST[0]))
        await server.until(lambda: server.objects("events"))
        await server.until(lambda: any("status" in one for one in server.objects("hypernodes")))


def labeled(server: ApiServer, node: str) -> bool:
    found = server.find("nodes", node)
    return found is not None and "topology.nodeagent.io/tier-1" in found["metadata"]["labels"]


def foreign(member: str) -> dict[str, Any]:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "by-hand"},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": member}}}]},
    }


async def test_the_rights_of_the_controller_are_sufficient_and_all_are_used() -> None:
    manifests = built("overlays/controller")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await controller_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
        asked |= {("watch", group, resource) for verb, group, resource in asked if verb == "list"}
    assert asked == {grant for _, _, grant in grants(manifests, CONTROLLER)}


CONTROLLER_GRANTS = [
    *((verb, "nodeagent.io", "nodelinks") for verb in ("list", "watch")),
    *((verb, "", "pods") for verb in ("list", "watch")),
    *((verb, "coordination.k8s.io", "leases") for verb in ("create", "get", "patch")),
    *((verb, "", "nodes") for verb in ("list", "watch", "patch")),
    *((verb, "topology.volcano.sh", "hypernodes") for verb in ("list", "watch", "create", "patch", "delete")),
    ("patch", "topology.volcano.sh", "hypernodes/status"),
    ("create", "", "events"),
]


@pytest.mark.parametrize("grant", CONTROLLER_GRANTS, ids="-".join)
async def test_without_a_right_the_controller_names_the_missing_right(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = built("overlays/controller")
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    assert sorted(CONTROLLER_GRANTS) == sorted(one[2] for one in grants(manifests, CONTROLLER))
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, controller_at_work(server), grant, caplog)


# Marks


async def marks_at_work(server: ApiServer) -> None:
    """The controller marks a node that has lost its links and removes the mark when they return. The fabric file is
    that of the overlay, with shorter times."""
    _, config = configurations(built("components/marks"))
    nodes = structs.replace(config.nodes, after_seconds=0.1)
    config = structs.replace(config, nodes=nodes, hysteresis=RULES.hysteresis)
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    access = Access(server.url, token=server.token(CONTROLLER))

    def marks() -> tuple[bool, bool]:
        node = server.find("nodes", FIRST[0]) or {}
        conditions = node.get("status", {}).get("conditions") or ()
        taints = node.get("spec", {}).get("taints") or ()
        return any(one["type"] == FABRIC_CONDITION for one in conditions), any(
            FABRIC_TAINT.matches(one) for one in taints
        )

    server.put(nodelinks(FIRST[0], leaves(0), state="down"))
    async with running(Controller(config, access, place).run()):
        await server.until(lambda: marks() == (True, True))
        server.put(nodelinks(FIRST[0], leaves(0)))
        await server.until(lambda: marks() == (False, False))


# The start-up taint


async def startup_taint_at_work(server: ApiServer) -> None:
    """The controller removes the taint of a new Node. The fabric file is that of the overlay."""
    _, config = configurations(built("components/startup-taint"))
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    access = Access(server.url, token=server.token(CONTROLLER))
    others = {"key": "example.com/gpu", "effect": "NoSchedule"}
    taints = [others, {"key": STARTING_TAINT, "effect": "NoSchedule"}]
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}, "spec": {"taints": taints}})
    async with running(Controller(config, access, place).run()):
        await server.until(
            lambda: any((seen.verb, seen.resource) == ("list", "pods") for seen in server.requests)
        )
        server.put(agent_pod("new"))
        await server.until(lambda: (server.find("nodes", "new") or {})["spec"]["taints"] == [others])


def agent_pod(node: str, *, ready: bool = True) -> dict[str, Any]:
    """A pod of the DaemonSet, with the labels of the manifests."""
    (daemonset,) = of_kind(built(), "DaemonSet")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"nodeagent-{node}",
            "namespace": "nodeagent",
            "uid": f"u-{node}",
            "labels": daemonset["spec"]["template"]["metadata"]["labels"],
        },
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


STARTUP_GRANTS = [("get", "", "nodes")]


async def test_the_start_up_taint_needs_exactly_the_rights_of_its_overlay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup_taint, "SETTLE_S", 0.01)
    manifests = built("components/startup-taint")
    admitted: list[Request] = []
    async with asyncio.timeout(PATIENCE_S), cluster(manifests, admitted) as server:
        await startup_taint_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked >= set(STARTUP_GRANTS)
    assert sorted(CONTROLLER_GRANTS + STARTUP_GRANTS) == allowed(manifests, CONTROLLER)
    assert [(one, why) for one in admitted if (why := refusals(manifests, one))] == []


@pytest.mark.parametrize("grant", STARTUP_GRANTS, ids="-".join)
async def test_without_a_right_for_the_start_up_taint_the_controller_names_it(
    grant: Grant, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup_taint, "SETTLE_S", 0.01)
    manifests = built("components/startup-taint")
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, startup_taint_at_work(server), grant, caplog)


# Objects for other programs


async def kept_objects_at_work(server: ApiServer, overlay: str) -> None:
    """The controller makes the objects of the overlay, changes one, and deletes one whose nodes are gone."""
    _, config = configurations(built(overlay))
    config = structs.replace(config, hysteresis=RULES.hysteresis)
    for namespace in (config.slurm.namespace, config.node_feature_groups.namespace):
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    server.put(nfd_definition())
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    access = Access(server.url, token=server.token(CONTROLLER))

    def kept() -> list[Any]:
        found = [one["spec"] for one in server.objects("nodefeaturegroups")]
        return found + [one["data"] for one in server.objects("configmaps", "slurm")]

    async with running(Controller(config, access, place).run()):
        await server.until(lambda: FIRST[0] in expanded_names(kept()) and SECOND[0] in expanded_names(kept()))
        server.remove("nodes", FIRST[0])
        await server.until(lambda: FIRST[0] not in expanded_names(kept()))
        for node in SECOND:
            server.remove("nodes", node)
        # Between two of these nodes there may be a plan, which changes the object; the last one deletes it.
        await server.until(lambda: not {*SECOND} & expanded_names(kept()))


def expanded_names(kept: list[Any]) -> set[str]:
    """The names of nodes in these objects."""
    words = re.findall(r"node-[-0-9\[\],]+", str(kept))
    return {name for word in words for name in expanded([word])}


async def slurm_at_work(server: ApiServer) -> None:
    await kept_objects_at_work(server, "components/slurm")


async def node_feature_groups_at_work(server: ApiServer) -> None:
    await kept_objects_at_work(server, "components/node-feature-groups")


async def rails_at_work(server: ApiServer) -> None:
    """The controller writes lists of partners, changes them, and deletes that of a node without addresses."""
    config = structs.replace(RULES, rails=FabricRailsSettings(probe=True))
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    access = Access(server.url, token=server.token(CONTROLLER))

    def report(number: int, addresses: list[str]) -> None:
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"rail-{number}"}})
        made = nodelinks(f"rail-{number}", ["leaf0"])
        made["links"][0]["addresses"] = addresses
        server.put(made)

    def listed() -> set[str]:
        return {one["metadata"]["name"] for one in server.objects("railpartners")}

    for number in range(3):
        report(number, [f"10.0.0.{number + 1}/24"])
    async with running(Controller(config, access, place).run()):
        await server.until(lambda: listed() == {"rail-0", "rail-1", "rail-2"})
        report(0, [])
        await server.until(lambda: listed() == {"rail-1", "rail-2"})


async def agent_with_rails_at_work(server: ApiServer) -> None:
    """The agent reads its list, and for a check the report of another node. Without the right to the list this runs
    until it is cancelled."""
    client = ApiClient(Access(server.url, token=server.token(AGENT)), manager="nodeagent")
    watch = RailWatch(RailsSettings(probe=True), Inventory(), dict)

    def read(plural: str) -> bool:
        return any(
            granted(seen) == ("get", "nodeagent.io", plural) and seen.status != 403
            for seen in server.requests
        )

    try:
        async with running(watch.run(client, "gpu-0", "nodeagent")):
            await server.until(lambda: read("railpartners"))
            found = await watch.check("gpu-0", "gpu-1", 1)
            assert found.why.startswith("no node gpu-1 reports its links")
            assert read("nodelinks")
    finally:
        await client.close()


RAIL_READ: Grant = ("get", "nodeagent.io", "railpartners")


async def test_an_agent_that_probes_needs_one_more_right_and_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partner_list, "FIRST_S", 0.0)
    manifests = built("components/rails")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await agent_with_rails_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked == {RAIL_READ, ("get", "nodeagent.io", "nodelinks")}
    assert sorted([*AGENT_GRANTS, RAIL_READ]) == allowed(manifests, AGENT)


async def test_without_the_right_to_its_list_the_agent_names_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partner_list, "FIRST_S", 0.0)
    manifests = built("components/rails")
    (found,) = (one for one in grants(manifests, AGENT) if one[2] == RAIL_READ)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], "get")) as server:
        await missed(server, agent_with_rails_at_work(server), RAIL_READ, caplog)


RAIL_GRANTS = [(verb, "nodeagent.io", "railpartners") for verb in ("create", "delete", "list", "patch")]


async def test_lists_of_partners_need_exactly_the_rights_of_their_overlay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rail_keeper, "JUDGE_S", 0.05)
    manifests = built("components/rails")
    admitted: list[Request] = []
    async with asyncio.timeout(PATIENCE_S), cluster(manifests, admitted) as server:
        await rails_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked >= set(RAIL_GRANTS[1:]), "an apply is authorized as create too"
    assert sorted(CONTROLLER_GRANTS + RAIL_GRANTS) == allowed(manifests, CONTROLLER)
    assert [(one, why) for one in admitted if (why := refusals(manifests, one))] == []


@pytest.mark.parametrize("grant", RAIL_GRANTS, ids="-".join)
async def test_without_a_right_to_lists_of_partners_the_controller_names_it(
    grant: Grant, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rail_keeper, "JUDGE_S", 0.05)
    manifests = built("components/rails")
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, rails_at_work(server), grant, caplog)


SLURM_GRANTS = [("create", "", "configmaps"), ("get", "", "configmaps"), ("patch", "", "configmaps")]
NFD_GRANTS = [
    (verb, "nfd.k8s-sigs.io", "nodefeaturegroups") for verb in ("create", "delete", "list", "patch")
]
KEPT = [("components/slurm", SLURM_GRANTS), ("components/node-feature-groups", NFD_GRANTS)]


@pytest.mark.parametrize(("overlay", "needed"), KEPT)
async def test_objects_for_other_programs_need_exactly_the_rights_of_their_overlay(
    overlay: str, needed: list[Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_objects, "KEPT_PAUSE_S", 0.01)
    manifests = built(overlay)
    admitted: list[Request] = []
    async with asyncio.timeout(PATIENCE_S), cluster(manifests, admitted) as server:
        await kept_objects_at_work(server, overlay)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked >= set(needed)
    assert sorted(CONTROLLER_GRANTS + needed) == allowed(manifests, CONTROLLER)
    assert [(one, why) for one in admitted if (why := refusals(manifests, one))] == []


@pytest.mark.parametrize(
    ("overlay", "grant"), [(overlay, grant) for overlay, needed in KEPT for grant in needed]
)
async def test_without_a_right_to_such_an_object_the_controller_names_it(
    overlay: str, grant: Grant, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_objects, "KEPT_PAUSE_S", 0.01)
    manifests = built(overlay)
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, kept_objects_at_work(server, overlay), grant, caplog)


# Marks on Nodes

JOBS_GRANTS = [("list", "", "pods"), ("watch", "", "pods")]


async def jobs_at_work(server: ApiServer) -> None:
    """The controller reads the pods of all namespaces. The fabric file is that of the overlay."""
    _, config = configurations(built("components/jobs"))
    place = ReplicaSettings("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    controller = Controller(config, Access(server.url, token=server.token(CONTROLLER)), place)
    server.put(job_pods.of_job("first", node=FIRST[0]))
    async with running(controller.run()):
        jobs = controller.fabric.parts.features["jobs"].shown
        assert jobs is not None
        await server.until(lambda: len(jobs.pods.objects) == 1)
        server.put(job_pods.of_job("second", node=FIRST[0], namespace="b"))
        await server.until(lambda: len(jobs.pods.objects) == 2)


async def test_the_jobs_need_exactly_the_rights_of_their_overlay() -> None:
    manifests = built("components/jobs")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await jobs_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked >= set(JOBS_GRANTS)
    assert sorted(CONTROLLER_GRANTS + JOBS_GRANTS) == allowed(manifests, CONTROLLER)
    agents, _ = configurations(manifests)
    assert agents.cluster.report_holders


@pytest.mark.parametrize("grant", JOBS_GRANTS, ids="-".join)
async def test_without_a_right_for_the_jobs_the_controller_names_it(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = built("components/jobs")
    every = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    (found,) = (one for one in every if one[0]["kind"] == "ClusterRole")
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, jobs_at_work(server), grant, caplog)


MARKS_GRANTS = [("get", "", "nodes"), ("patch", "", "nodes/status")]


async def test_marks_need_exactly_the_two_rights_of_their_overlay() -> None:
    manifests = built("components/marks")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await marks_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    assert asked >= set(MARKS_GRANTS)
    assert sorted(CONTROLLER_GRANTS + MARKS_GRANTS) == allowed(manifests, CONTROLLER)


@pytest.mark.parametrize("grant", MARKS_GRANTS, ids="-".join)
async def test_without_a_right_to_mark_the_controller_names_the_missing_right(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = built("components/marks")
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, marks_at_work(server), grant, caplog)


async def test_without_the_setting_no_node_is_marked_and_the_tree_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(built("overlays/controller")) as server:
        await missed(server, marks_at_work(server), MARKS_GRANTS[0], caplog)
        assert not any(
            "status" in node or node.get("spec", {}).get("taints") for node in server.objects("nodes")
        )
