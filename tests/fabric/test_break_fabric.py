"""The controller under everything that a cluster does to it, with the scheduler's own rules asked after each write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from nodeagent.cluster.mirrors import ClusterMirror
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.controller import Controller, Place
from nodeagent.fabric import NodeLinks, Rules
from nodeagent.inventory import Inventory
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.model import Identifier
from nodeagent.sim.apiserver import ApiServer
from tests.cluster.test_node_report import RAILS, crd, neighbor, snapshot
from tests.controller.test_controller import (
    FIRST,
    RULES,
    SECOND,
    cluster,
    groups,
    leaves,
    nodelinks,
    running,
    until,
)
from tests.support.volcano_rules import VolcanoTree


class Judge:
    """Asked before each write is kept: does it break a rule that was not broken before?"""

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
async def quick(server: ApiServer, rules: Rules = RULES, **more: float) -> AsyncIterator[Controller]:
    """One that is not patient with its own copies."""
    place = replace(Place("nodeagent", "a", None, 0.05, 3.0, 2.0, 0.2), **more)
    controller = Controller(rules, Access(server.url, token=server.token()), place)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_watch_that_tells_nothing_puts_no_node_into_two_hypernodes():
    """Versions guard an object each; that a node is in one only rests on the whole copy being of now."""
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        judge = Judge(server)
        server.fail("hang", verb="watch", resource="hypernodes")
        async with quick(server, catch_up_s=0.2) as controller:
            await until(lambda: controller.lease.leading)
            node(server, "node-04")
            server.put(nodelinks("node-04", leaves(0)))
            await until(lambda: groups(server) == [[*FIRST, "node-04"], SECOND])
            plans = controller.progress.plans
            server.put(nodelinks("node-04", leaves(1)))
            await until(lambda: controller.progress.plans > plans)
            await until(lambda: "node-04" in groups(server)[1], "the move")
            assert not judge.broken
        assert groups(server) == [FIRST, ["node-04", *SECOND]]


async def test_an_answer_that_is_lost_is_no_reason_to_write_on_an_old_picture():
    async with cluster() as server:
        async with running(server) as first:
            await until(lambda: first.labels.writes["ok"] == 8)
        judge = Judge(server)
        server.fail("hang", verb="watch", resource="hypernodes")
        server.fail("lost", verb="patch", resource="hypernodes")
        async with quick(server, catch_up_s=0.2) as controller:
            await until(lambda: controller.lease.leading)
            node(server, "node-04")
            server.put(nodelinks("node-04", leaves(0)))
            await until(lambda: "node-04" in groups(server)[0])
            server.put(nodelinks("node-04", leaves(1)))
            await until(lambda: "node-04" in groups(server)[1], "the move")
            assert not judge.broken


async def test_labels_that_take_their_time_do_not_hold_up_the_tree():
    """At 20 a second a thousand nodes take a minute; a node that is racked elsewhere meanwhile does not wait."""
    async with cluster() as server:
        for number in range(100, 400):
            node(server, f"node-{number}")
            server.put(nodelinks(f"node-{number}", leaves(2)))
        async with quick(server, label_s=0.2) as controller:
            await until(lambda: controller.labels.writes["ok"] >= 1)
            server.put(nodelinks("node-03", leaves(1)))
            await until(lambda: ["node-03", *SECOND] in groups(server))
            assert controller.labels.writes["ok"] < 308


async def test_a_server_that_wants_to_be_left_alone_is_left_alone_though_things_change():
    async with cluster() as server:
        server.fail("429", verb="create", resource="hypernodes", retry_after_s=600, times=None)
        async with quick(server) as controller:
            await until(controller.hypernodes.writes.total)
            asked = server.counts["create", "hypernodes"]
            for number in range(3):
                plans = controller.progress.plans
                node(server, f"node-1{4 + number}")
                await until(lambda plans=plans: controller.progress.plans > plans)
            assert server.counts["create", "hypernodes"] == asked


async def test_a_role_that_lacks_one_verb_on_nodes_is_not_asked_for_each_node():
    async with cluster(units=8) as server:
        server.fail("403", verb="patch", resource="nodes", times=None)
        async with quick(server) as controller:
            await until(lambda: controller.labels.writes["failed"])
            await until(lambda: controller.progress.plans > 1)
            assert server.counts["patch", "nodes"] <= 8


class Listening:
    """What a planner is told of reports, the last word on each."""

    def __init__(self) -> None:
        self.rails: dict[str, int | None] = {}

    def report(self, name: str, links: NodeLinks | None) -> None:
        self.rails[name] = None if links is None else len(links.links)

    def refuse(self, name: str, _why: str) -> None:
        self.rails[name] = -1

    def node(self, name: str, labels: object) -> None: ...

    def hypernode(self, name: str, hypernode: object) -> None: ...


@asynccontextmanager
async def copying(server: ApiServer) -> AsyncIterator[tuple[Listening, ClusterMirror]]:
    client = ApiClient(Access(server.url, token=server.token()), timeout_s=1.0)
    told = Listening()
    copies = ClusterMirror(client, "nodeagent", told, ())
    task = asyncio.create_task(copies.reports.run())
    try:
        yield told, copies
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def test_reports_are_told_page_by_page_and_not_kept_until_the_last():
    """All of a hundred thousand at once would be most of a gigabyte."""
    async with cluster(units=0) as server:
        for number in range(501):
            server.put(nodelinks(f"node-{number:04}", leaves(0)))
        server.fail("hang", verb="list", resource="nodelinks", skip=1)
        async with copying(server) as (told, copies):
            await until(lambda: len(told.rails) == 500)
            assert not copies.reports.synced.is_set()


async def test_a_list_that_begins_again_leaves_no_word_of_the_first_attempt():
    async with cluster(units=0) as server:
        for number in range(501):
            server.put(nodelinks(f"node-{number:04}", leaves(0)))
        async with copying(server) as (told, copies):
            await copies.reports.synced.wait()
            await server.until(lambda: server.watching["nodelinks"])
            server.fail("hang", verb="list", resource="nodelinks", skip=1)
            server.fail("403", verb="watch", resource="nodelinks")
            server.drop("nodelinks")
            await until(lambda: not server.watching["nodelinks"])
            server.put(nodelinks("node-0000", leaves(0, 3)))
            await until(lambda: told.rails["node-0000"] == 3)
            server.put(nodelinks("node-0000", leaves(0)))
            server.remove("nodelinks", "node-0500", "nodeagent")
            await until(lambda: told.rails["node-0000"] == 2 and told.rails["node-0500"] is None)


async def test_who_leads_no_more_shows_no_tree():
    """Two replicas that both count placed nodes and anomalies would double every sum."""
    async with cluster() as server, quick(server) as controller:
        await until(lambda: controller.progress.outcome)
        lease = server.find("leases", "nodeagent-controller", "nodeagent")
        assert lease is not None
        lease["spec"] |= {"holderIdentity": "another", "leaseDurationSeconds": 3600}
        server.put(lease)
        await until(lambda: not controller.lease.leading)
        await until(lambda: controller.progress.outcome is None)


class Agents:
    """The sinks of real agents, one for each node, which state what the test has them hear."""

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

    def hear(self, names: Iterable[str], unit: int, **fields: Any) -> None:
        for name in names:
            said = [
                neighbor(
                    rail, f"Ethernet{name[-2:]}", f"su{unit}-leaf{rail}",
                    chassis_id=Identifier("mac", f"02:aa:00:00:{unit:02x}:{rail:02x}"), **fields,
                )
                for rail in range(2)
            ]  # fmt: skip
            self._inventories[name].publish("lldp", neighbors=tuple(said))

    @property
    def writes(self) -> int:
        return sum(sink.writes for sink in self.sinks)

    async def stop(self) -> None:
        """SIGKILL: nothing is said any more."""
        for task, client in self._running:
            task.cancel()
            await asyncio.wait((task,))
            await client.close()
        self._running, self.sinks = [], []


async def test_real_agents_that_fall_silent_restart_and_move_one_node():
    """LLDP is lost everywhere, every agent starts again, a switch reboots: nothing. One node moves: two writes."""
    server = await ApiServer().start()
    judge, agents = Judge(server), Agents(server)
    try:
        server.put(crd())
        for name in FIRST + SECOND:
            node(server, name)
        agents.start(FIRST + SECOND)
        agents.hear(FIRST, 0)
        agents.hear(SECOND, 1)
        await until(lambda: len(server.objects("nodelinks")) == 8)
        async with quick(server) as controller:
            await until(lambda: groups(server) == [FIRST, SECOND])
            await until(lambda: controller.labels.writes["ok"] == 8)
            agents.hear(FIRST, 0, stale=True)
            agents.hear(SECOND, 1, stale=True)
            await until(lambda: agents.writes >= 16)
            await agents.stop()
            agents.start(FIRST + SECOND)
            agents.hear(FIRST, 0)
            agents.hear(SECOND, 1)
            await until(lambda: all(not stale(server, name) for name in FIRST + SECOND))
            revision = controller.cluster.revision
            await agents.stop()
            agents.start(FIRST + SECOND)
            agents.hear(SECOND, 1)
            agents.hear(FIRST, 0)
            agents.hear(FIRST[:1], 1)
            await until(lambda: groups(server) == [["node-00", *SECOND], FIRST[1:]])
            await until(lambda: controller.labels.writes["ok"] == 9)
            assert controller.cluster.revision > revision
            assert controller.hypernodes.writes == {("create", "ok"): 2, ("update", "ok"): 2}
            assert not judge.broken
    finally:
        await agents.stop()
        await server.stop()


def stale(server: ApiServer, name: str) -> bool:
    found = server.find("nodelinks", name, "nodeagent")
    return found is None or any(one["neighbor"].get("stale") for one in found["links"])


async def test_a_lease_that_somebody_deletes_is_made_again():
    async with cluster() as server, quick(server) as controller:
        await until(lambda: controller.lease.leading)
        server.remove("leases", "nodeagent-controller", "nodeagent")
        await until(lambda: server.find("leases", "nodeagent-controller", "nodeagent"), "another lease")
        await until(lambda: controller.lease.leading)
