"""The controller under faults of the cluster. The scheduler's rules for the tree are checked before each write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.cluster.node_marks import NodeWrites
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import NodeLinks
from nodeagent.fabric.planner import Plan
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Identifier
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.topology.mirrors import ClusterMirror
from nodeagent_lab.sim.apiserver import ApiServer
from tests.cluster.test_node_report import RAILS, crd, neighbor, snapshot
from tests.controller.test_controller import FIRST, RULES, SECOND, cluster, groups, leaves, nodelinks, running
from tests.support.volcano_rules import VolcanoTree
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time", "with_and_without_features")


class TreeRules:
    """Records each write that breaks a rule of the scheduler which was not broken before."""

    def __init__(self, server: ApiServer) -> None:
        self.broken: list[tuple[str, str, list[str]]] = []
        self._server = server
        server.admit.append(self._look)

    def _look(
        self, _user: str, verb: str, plural: str, was: dict[str, Any] | None, now: dict[str, Any] | None
    ) -> None:
        if plural != "hypernodes":
            return
        tree = VolcanoTree()
        for found in self._server.objects("hypernodes"):
            tree.apply("create", found)
        before = set(tree.faults())
        name = (now or was or {})["metadata"]["name"]
        tree.objects.pop(name, None)
        if now is not None:
            tree.objects[name] = now
        if new := set(tree.faults()) - before:
            self.broken.append((verb, name, sorted(new)))


def node(server: ApiServer, name: str) -> None:
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {}}})


@asynccontextmanager
async def impatient(
    server: ApiServer, rules: FabricConfig = RULES, **more: float
) -> AsyncIterator[Controller]:
    """A controller with short times."""
    settings = replace(ReplicaSettings("nodeagent", "a", None, 0.05, 3.0, 2.0, 0.2), **more)
    controller = Controller(rules, Access(server.url, token=server.token()), settings)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.wait((task,))


class BlockedPlan:
    """Blocks the thread of the first plan with a certain node, until ``release``."""

    def __init__(self, controller: Controller, node: str) -> None:
        self._inputs, self._node = controller.planner.inputs, node
        self._prepare = controller.planner.prepare
        self.started, self._released = threading.Event(), threading.Event()
        controller.planner.prepare = self._blocking

    def release(self) -> None:
        self._released.set()

    def _blocking(self, now: float) -> Callable[[], Plan]:
        compute = self._prepare(now)
        if self._node not in self._inputs.nodes or self._node not in self._inputs.reports:
            return compute

        def run() -> Plan:
            self.started.set()
            assert self._released.wait(20), "the event loop does not run during a plan"
            return compute()

        return run


async def test_the_event_loop_runs_during_a_plan_and_changed_hypernodes_stop_its_writes():
    """Another writer puts the node into the second group while the plan computes that it belongs to the first."""
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        rules = TreeRules(server)
        async with impatient(server) as controller:
            plan = BlockedPlan(controller, "node-04")
            await until(lambda: controller.progress.plans)
            node(server, "node-04")
            server.put(nodelinks("node-04", leaves(0)))
            await until(plan.started.is_set)
            (other,) = (one for one in server.objects("hypernodes") if SECOND[0] in str(one["spec"]))
            member = {"type": "Node", "selector": {"exactMatch": {"name": "node-04"}}}
            other["spec"]["members"].append(member)
            version = server.put(other)["metadata"]["resourceVersion"]
            versions = controller.cluster.hypernodes.objects
            await until(lambda: versions[other["metadata"]["name"]] == version)
            plan.release()
            await until(lambda: groups(server) == [[*FIRST, "node-04"], SECOND])
            assert not rules.broken


async def test_a_stalled_watch_puts_no_node_into_two_hypernodes():
    """A version protects one object. That a node is in one object only needs a current mirror of all of them."""
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        rules = TreeRules(server)
        server.fail("hang", verb="watch", resource="hypernodes")
        async with impatient(server, catch_up_s=0.2) as controller:
            await until(lambda: controller.lease.leading)
            node(server, "node-04")
            server.put(nodelinks("node-04", leaves(0)))
            await until(lambda: groups(server) == [[*FIRST, "node-04"], SECOND])
            plans = controller.progress.plans
            server.put(nodelinks("node-04", leaves(1)))
            await until(lambda: controller.progress.plans > plans)
            await until(lambda: "node-04" in groups(server)[1], "the move")
            assert not rules.broken
        assert groups(server) == [FIRST, ["node-04", *SECOND]]


async def test_a_lost_answer_leads_to_no_write_on_an_old_state():
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        rules = TreeRules(server)
        server.fail("hang", verb="watch", resource="hypernodes")
        server.fail("lost", verb="patch", resource="hypernodes")
        async with impatient(server, catch_up_s=0.2) as controller:
            await until(lambda: controller.lease.leading)
            node(server, "node-04")
            server.put(nodelinks("node-04", leaves(0)))
            await until(lambda: "node-04" in groups(server)[0])
            server.put(nodelinks("node-04", leaves(1)))
            await until(lambda: "node-04" in groups(server)[1], "the move")
            assert not rules.broken


async def test_slow_labels_do_not_delay_the_tree():
    """At 20 labels per second a thousand nodes take a minute. A node that moves meanwhile must not wait for them."""
    async with cluster() as server:
        for number in range(100, 400):
            node(server, f"node-{number}")
            server.put(nodelinks(f"node-{number}", leaves(2)))
        async with impatient(server, label_s=0.2) as controller:
            controller.labels._nodes = NodeWrites("The labels of a node cannot be written", 20.0)
            await until(lambda: controller.labels.writes["ok"] >= 1)
            server.put(nodelinks("node-03", leaves(1)))
            await until(lambda: ["node-03", *SECOND] in groups(server))
            assert controller.labels.writes["ok"] < 308


async def test_changes_do_not_shorten_a_retry_after():
    async with cluster() as server:
        server.fail("429", verb="create", resource="hypernodes", retry_after_s=600, times=None)
        async with impatient(server) as controller:
            await until(controller.hypernodes.writes.total)
            asked = server.counts["create", "hypernodes"]
            for number in range(3):
                plans = controller.progress.plans
                node(server, f"node-1{4 + number}")
                await until(lambda plans=plans: controller.progress.plans > plans)
            assert server.counts["create", "hypernodes"] == asked


async def test_a_missing_permission_is_not_tried_for_each_node():
    async with cluster(units=8) as server:
        server.fail("403", verb="patch", resource="nodes", times=None)
        async with impatient(server) as controller:
            await until(lambda: controller.labels.writes["failed"])
            await until(lambda: controller.progress.plans > 1)
            assert server.counts["patch", "nodes"] <= 8


class RecordingPlanner:
    """Stands in for the planner: keeps the number of links of each report, -1 for a refused one."""

    def __init__(self) -> None:
        self.rails: dict[str, int | None] = {}
        nothing = SimpleNamespace(of_node={})
        self.inputs = SimpleNamespace(reports={}, faults=nothing, gpu_faults=nothing)

    def report(self, name: str, links: NodeLinks | None) -> None:
        self.rails[name] = None if links is None else len(links.links)

    def refuse(self, name: str, _why: str) -> None:
        self.rails[name] = -1

    def has_fault(self, _name: str) -> bool:
        return False

    def node(self, name: str, labels: object) -> None: ...

    def hypernode(self, name: str, hypernode: object) -> None: ...


@asynccontextmanager
async def mirroring(server: ApiServer) -> AsyncIterator[tuple[RecordingPlanner, ClusterMirror]]:
    client = ApiClient(Access(server.url, token=server.token()), timeout_s=1.0)
    planner = RecordingPlanner()
    mirror = ClusterMirror(client, "nodeagent", planner, ())
    task = asyncio.create_task(mirror.reports.run())
    try:
        yield planner, mirror
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


@asynccontextmanager
async def two_pages() -> AsyncIterator[ApiServer]:
    """A server whose second page of reports has one report."""
    async with cluster(units=0) as server:
        for number in range(501):
            server.put(nodelinks(f"node-{number:04}", leaves(0)))
        yield server


async def test_reports_are_passed_on_page_by_page():
    """All of 100,000 reports together would take most of a gigabyte."""
    async with two_pages() as server:
        server.fail("hang", verb="list", resource="nodelinks", skip=1)
        async with mirroring(server) as (planner, mirror):
            await until(lambda: len(planner.rails) == 500)
            assert not mirror.reports.synced.is_set()


async def test_a_restarted_list_replaces_all_of_the_first_attempt():
    async with two_pages() as server, mirroring(server) as (planner, mirror):
        await mirror.reports.synced.wait()
        await server.until(lambda: server.watching["nodelinks"])
        server.fail("hang", verb="list", resource="nodelinks", skip=1)
        server.fail("403", verb="watch", resource="nodelinks")
        server.drop("nodelinks")
        await until(lambda: not server.watching["nodelinks"])
        server.put(nodelinks("node-0000", leaves(0, 3)))
        await until(lambda: planner.rails["node-0000"] == 3)
        server.put(nodelinks("node-0000", leaves(0)))
        server.remove("nodelinks", "node-0500", "nodeagent")
        await until(lambda: planner.rails["node-0000"] == 2 and planner.rails["node-0500"] is None)


async def test_a_report_of_an_attempt_that_fails_and_deleted_before_the_next_one_is_gone():
    async with two_pages() as server:
        server.fail("hang", verb="list", resource="nodelinks", skip=1)
        async with mirroring(server) as (planner, mirror):
            await until(lambda: "node-0000" in planner.rails)
            server.remove("nodelinks", "node-0000", "nodeagent")
            await mirror.reports.synced.wait()
            assert planner.rails["node-0000"] is None
            assert sum(rails is not None for rails in planner.rails.values()) == 500
            assert not mirror._passed_on


async def test_a_former_leader_shows_no_tree():
    """Two replicas with placed nodes and anomalies in their metrics would double every sum."""
    async with cluster() as server, impatient(server) as controller:
        await until(lambda: controller.progress.outcome)
        lease = server.find("leases", "nodeagent-controller", "nodeagent")
        assert lease is not None
        lease["spec"] |= {"holderIdentity": "another", "leaseDurationSeconds": 3600}
        server.put(lease)
        await until(lambda: not controller.lease.leading)
        await until(lambda: controller.progress.outcome is None)


class ReportingAgents:
    """The report writers of real agents, one for each node, with the neighbors that the test gives them."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._running: list[tuple[asyncio.Task[None], ApiClient]] = []
        self._inventories: dict[str, Inventory] = {}
        self._heard: dict[str, tuple[int, dict[str, Any]]] = {}
        self.sinks: list[NodeReporter] = []

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            inventory = self._inventories[name] = Inventory()
            client = ApiClient(Access(self._server.url, token=self._server.token()))
            sink = NodeReporter(client, inventory, name, "nodeagent", lambda: RAILS, jitter_s=0.1, gather_s=0.05,
                          gap_s=0.1, patience_s=2.0)  # fmt: skip
            self._running.append((asyncio.create_task(sink.run()), client))
            self.sinks.append(sink)
            inventory.publish("pci", functions=snapshot(count=2).functions, links=snapshot(count=2).links)

    def receive(self, names: Iterable[str], unit: int, **fields: Any) -> None:
        for name in names:
            neighbors = [
                neighbor(
                    rail, f"Ethernet{name[-2:]}", f"su{unit}-leaf{rail}",
                    chassis_id=Identifier("mac", f"02:aa:00:00:{unit:02x}:{rail:02x}"), **fields,
                )
                for rail in range(2)
            ]  # fmt: skip
            self._inventories[name].publish("lldp", neighbors=tuple(neighbors))

    @property
    def writes(self) -> int:
        return sum(sink.writes for sink in self.sinks)

    async def stop(self) -> None:
        """Stop as after SIGKILL, without a last write."""
        for task, client in self._running:
            task.cancel()
            await asyncio.wait((task,))
            await client.close()
        self._running, self.sinks = [], []


async def test_real_agents_lose_lldp_restart_and_move_one_node():
    """Lost LLDP, restarted agents and a rebooted switch cause no write. One moved node causes two."""
    server = await ApiServer().start()
    rules, agents = TreeRules(server), ReportingAgents(server)
    try:
        server.put(crd())
        for name in FIRST + SECOND:
            node(server, name)
        agents.start(FIRST + SECOND)
        agents.receive(FIRST, 0)
        agents.receive(SECOND, 1)
        await until(lambda: len(server.objects("nodelinks")) == 8)
        async with impatient(server) as controller:
            await until(lambda: groups(server) == [FIRST, SECOND])
            await until(lambda: controller.labels.writes["ok"] == 8)
            agents.receive(FIRST, 0, stale=True)
            agents.receive(SECOND, 1, stale=True)
            await until(lambda: agents.writes >= 16)
            await agents.stop()
            agents.start(FIRST + SECOND)
            agents.receive(FIRST, 0)
            agents.receive(SECOND, 1)
            await until(lambda: all(not stale(server, name) for name in FIRST + SECOND))
            revision = controller.cluster.revision
            await agents.stop()
            agents.start(FIRST + SECOND)
            agents.receive(SECOND, 1)
            agents.receive(FIRST, 0)
            agents.receive(FIRST[:1], 1)
            await until(lambda: groups(server) == [["node-00", *SECOND], FIRST[1:]])
            await until(lambda: controller.labels.writes["ok"] == 9)
            assert controller.cluster.revision > revision
            assert controller.hypernodes.writes == {("create", "ok"): 2, ("update", "ok"): 2}
            assert not rules.broken
    finally:
        await agents.stop()
        await server.stop()


def stale(server: ApiServer, name: str) -> bool:
    found = server.find("nodelinks", name, "nodeagent")
    return found is None or any(one["neighbor"].get("stale") for one in found["links"])


async def test_a_deleted_lease_is_created_again():
    async with cluster() as server, impatient(server) as controller:
        await until(lambda: controller.lease.leading)
        server.remove("leases", "nodeagent-controller", "nodeagent")
        await until(lambda: server.find("leases", "nodeagent-controller", "nodeagent"), "another lease")
        await until(lambda: controller.lease.leading)
