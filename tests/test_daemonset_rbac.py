"""The shipped roles are enough and not too much: the real agent and the real controller against an API server that
enforces exactly them, and then each verb of each rule taken away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodeagent.controller import Controller, Place
from nodeagent.inventory import Inventory
from nodeagent.kube.access import Access
from nodeagent.kube.claims import NodeClaim
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import EVENTS, NODELINKS
from nodeagent.sim.apiserver import ApiServer, Seen
from nodeagent.sinks.nodelinks import Report
from tests.admission import NODE, UID, Request, refusals
from tests.manifests import Manifest, built, of_kind
from tests.test_controller import FIRST, RULES, SECOND, leaves, nodelinks, populate, tree
from tests.test_nodelinks import RAILS, neighbor, snapshot, state

pytestmark = pytest.mark.needs("kubectl", "cel")

AGENT = "system:serviceaccount:nodeagent:nodeagent"
CONTROLLER = "system:serviceaccount:nodeagent:nodeagent-controller"
PATIENCE_S = 30.0

Grant = tuple[str, str, str]
"""Verb, group and resource."""


def grants(manifests: list[Manifest], account: str) -> Iterator[tuple[Manifest, dict[str, Any], Grant]]:
    """What the account is granted: the role, the rule and one verb of it."""
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
    """The manifests less one verb of one rule."""
    weaker = {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
    rules = [weaker if one is rule else one for one in role["rules"]]
    return [{**one, "rules": rules} if one is role else one for one in manifests]


@asynccontextmanager
async def cluster(manifests: list[Manifest]) -> AsyncIterator[ApiServer]:
    """An API server with our definition, roles and policies in force, and eight nodes of two units."""
    server = await ApiServer(rbac=True).start()
    for one in (*of_kind(manifests, "CustomResourceDefinition"), *manifests):
        try:
            server.put(one)
        except LookupError:
            continue  # a kind that the stand-in does not keep; roles and bindings it does
    assert server.one("clusterroles", "nodeagent") is not None
    populate(server)

    def admit(user: str, verb: str, plural: str, old: Any, new: Any) -> str | None:
        operation = {"create": "CREATE", "update": "UPDATE", "delete": "DELETE"}[verb]
        resource = {"nodelinks": "nodeagent.io:nodelinks"}.get(plural, f":{plural}")
        meta = (new or old)["metadata"]
        extra = {NODE: ["gpu-0"], UID: ["u-0"]} if user == AGENT else {}
        request = Request(operation, resource, meta["name"], user, extra, new, old, meta.get("namespace", ""))
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


def granted(seen: Seen) -> Grant:
    return seen.verb, seen.group, seen.resource


def refused(server: ApiServer, grant: Grant) -> bool:
    return any(granted(seen) == grant and seen.status == 403 for seen in server.requests)


# The agent


async def agent_at_work(server: ApiServer) -> None:
    """A report is made, changes, and something is told; goes on until it is cancelled where a right is missing."""
    inventory = Inventory()
    client = Client(Access(server.url, token=server.token(AGENT)), manager="nodeagent")
    report = Report(
        client, inventory, "gpu-0", "nodeagent", lambda _: RAILS,
        owner=NodeClaim("gpu-0", "u-0"), jitter_s=0, gather_s=0.01, gap_s=0.05, patience_s=0,
    )  # fmt: skip
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "uid": "u-0"}})
    state(inventory, snapshot(*map(neighbor, range(8))))

    def stored() -> dict[str, Any]:
        return server.one("nodelinks", "gpu-0", "nodeagent") or {"links": [{}]}

    try:
        async with running(report.run()):
            await server.until(lambda: len(stored()["links"]) == 8)
            state(inventory, snapshot(*(neighbor(n, f"Ethernet9/{n}") for n in range(8))))
            await server.until(lambda: stored()["links"][0]["neighbor"]["portID"]["value"] == "Ethernet9/0")
            await tell(client)
    finally:
        await client.close()


async def tell(client: Client) -> None:
    """An Event about the agent's own Node, and its return."""
    event = {
        "metadata": {"name": "gpu-0.17", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "gpu-0"},
        "source": {"component": "nodeagent", "host": "gpu-0"},
        "reportingComponent": "nodeagent",
        "reportingInstance": "gpu-0",
        "reason": "LinkDown", "message": "nic0", "type": "Warning", "count": 1,
    }  # fmt: skip
    try:
        await client.create(EVENTS, event, namespace="default")
        await client.patch(EVENTS, "gpu-0.17", {"count": 2}, namespace="default")
    except ApiError as error:
        logging.getLogger("tests").warning("An Event is not told. reason=%r", str(error))


async def test_the_agents_rights_are_enough_and_all_are_used() -> None:
    manifests = built()
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await agent_at_work(server)
        asked = {granted(seen) for seen in server.requests}
        assert not [seen for seen in server.requests if seen.status == 403]
        report = server.one("nodelinks", "gpu-0", "nodeagent")
        assert report is not None
        assert report["summary"] == {"links": "8/8", "switches": 8, "health": "healthy"}
    allowed = {grant for _, _, grant in grants(manifests, AGENT)}
    # An object that is applied for the first time is asked for as create as well as patch, in one request.
    assert asked | {("create", "nodeagent.io", "nodelinks")} == allowed


AGENT_GRANTS = [
    ("get", "nodeagent.io", "nodelinks"),
    ("create", "nodeagent.io", "nodelinks"),
    ("patch", "nodeagent.io", "nodelinks"),
    ("create", "", "events"),
    ("patch", "", "events"),
]


@pytest.mark.parametrize("grant", AGENT_GRANTS, ids="-".join)
async def test_without_a_right_the_agent_says_which(grant: Grant, caplog: pytest.LogCaptureFixture) -> None:
    manifests = built()
    (found,) = (one for one in grants(manifests, AGENT) if one[2] == grant)
    assert sorted(AGENT_GRANTS) == sorted(one[2] for one in grants(manifests, AGENT))
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, agent_at_work(server), grant, caplog)


async def missed(server: ApiServer, work: Any, grant: Grant, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until the log names what is forbidden."""
    verb, _, resource = grant

    def named() -> bool:
        return any(f'cannot {verb} resource "{resource}"' in line for line in caplog.messages)

    async with asyncio.timeout(PATIENCE_S), running(work):
        while not named():
            await asyncio.sleep(0.02)
    assert any(seen.status == 403 for seen in server.requests)


# Forged requests, over the wire


async def test_an_agent_that_writes_anothers_report_is_refused_by_the_policy() -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(built()) as server:
        client = Client(Access(server.url, token=server.token(AGENT)))
        try:
            with pytest.raises(ApiError, match="may write the NodeLinks of that name only"):
                await client.apply(NODELINKS, nodelinks("node-00", leaves(1)), force=True)
            with pytest.raises(ApiError, match="cannot list"):
                await client.list(NODELINKS, namespace="nodeagent")
        finally:
            await client.close()
        assert server.one("nodelinks", "node-00", "nodeagent") == server.one(
            "nodelinks", "node-00", "nodeagent"
        )


# The controller


async def controller_at_work(server: ApiServer) -> None:
    """A tree is made, a node moves, a unit goes, and somebody else's HyperNode stands in the way."""
    token = server.token(CONTROLLER)
    place = Place("nodeagent", "one", None, 0.02, 3.0, 2.0, 0.1)
    async with running(Controller(RULES, Access(server.url, token=token), place).run()):
        await server.until(lambda: len(tree(server)) == 2)
        await server.until(lambda: all(labeled(server, node) for node in FIRST + SECOND))
        server.put(nodelinks(FIRST[3], leaves(1)))
        await server.until(lambda: sorted(map(len, tree(server).values())) == [4, 6])
        for node in (*SECOND, FIRST[3]):
            server.remove("nodes", node)
        await server.until(lambda: [len(members) for members in tree(server).values()] == [4])
        server.put(foreign(FIRST[0]))
        await server.until(lambda: server.objects("events"))


def labeled(server: ApiServer, node: str) -> bool:
    found = server.one("nodes", node)
    return found is not None and "topology.nodeagent.io/tier-1" in found["metadata"]["labels"]


def foreign(member: str) -> dict[str, Any]:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "by-hand"},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": member}}}]},
    }


async def test_the_controllers_rights_are_enough_and_all_are_used() -> None:
    manifests = built("overlays/controller")
    async with asyncio.timeout(PATIENCE_S), cluster(manifests) as server:
        await controller_at_work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
        asked |= {("watch", group, resource) for verb, group, resource in asked if verb == "list"}
    assert asked == {grant for _, _, grant in grants(manifests, CONTROLLER)}


CONTROLLER_GRANTS = [
    *((verb, "nodeagent.io", "nodelinks") for verb in ("list", "watch")),
    *((verb, "coordination.k8s.io", "leases") for verb in ("create", "get", "patch")),
    *((verb, "", "nodes") for verb in ("list", "watch", "patch")),
    *((verb, "topology.volcano.sh", "hypernodes") for verb in ("list", "watch", "create", "patch", "delete")),
    ("create", "", "events"),
]


@pytest.mark.parametrize("grant", CONTROLLER_GRANTS, ids="-".join)
async def test_without_a_right_the_controller_says_which(
    grant: Grant, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = built("overlays/controller")
    (found,) = (one for one in grants(manifests, CONTROLLER) if one[2] == grant)
    assert sorted(CONTROLLER_GRANTS) == sorted(one[2] for one in grants(manifests, CONTROLLER))
    caplog.set_level(logging.INFO)
    async with cluster(without(manifests, found[0], found[1], grant[0])) as server:
        await missed(server, controller_at_work(server), grant, caplog)
