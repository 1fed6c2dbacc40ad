"""Marks on Nodes with too few links, against the stand-in API server, beside marks of other owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from nodeagent.cluster.cluster_settings import NodesSettings
from nodeagent.cluster.node_marks import FABRIC_CONDITION, FABRIC_TAINT
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.features.min_links_marks import CHECK_AGAIN_S, MinLinksMarker
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import nodelinks
from tests.support.waiting import LIMIT_S, until

pytestmark = pytest.mark.usefixtures("virtual_time")

THEIRS = {
    "key": "example.com/gpu",
    "value": "yes",
    "effect": "NoExecute",
    "timeAdded": "2026-01-01T00:00:00Z",
}
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
NAMES = [f"node-{number}" for number in range(10)]
BOTH = NodesSettings(min_links_condition=True, min_links_taint=True, after_seconds=60.0, taint_percent=100)
AT_ONCE = structs.replace(BOTH, after_seconds=0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A marker, and a server with ten Nodes that have marks of other owners too."""

    def __init__(self, server: ApiServer, client: ApiClient, marks: NodesSettings) -> None:
        self.server, self.clock, self._client, self._asked = server, Clock(), client, marks
        self.marks = self.another()

    def another(self) -> MinLinksMarker:
        """The marker of a new leader."""
        return MinLinksMarker(self._client, self._asked, 2, per_second=1000.0, clock=self.clock)

    async def mark(self, below: Iterable[str]) -> bool:
        return await self.marks.mark(below, len(NAMES))

    def node(self, name: str) -> dict[str, Any]:
        found = self.server.find("nodes", name)
        assert found is not None
        return found

    def tainted(self) -> list[str]:
        return [
            name
            for name in NAMES
            if any(one["key"] == FABRIC_TAINT.key for one in self.node(name)["spec"].get("taints", ()))
        ]

    def conditioned(self) -> list[str]:
        return [
            name
            for name in NAMES
            if any(one["type"] == FABRIC_CONDITION for one in self.node(name)["status"]["conditions"])
        ]

    def untouched(self) -> bool:
        return all(
            THEIRS in self.node(name)["spec"]["taints"] and READY in self.node(name)["status"]["conditions"]
            for name in NAMES
        )


def put(server: ApiServer, name: str) -> None:
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"taints": [THEIRS]},
            "status": {"conditions": [READY]},
        }
    )


@asynccontextmanager
async def stage(marks: NodesSettings = BOTH) -> AsyncIterator[Stage]:
    server = await ApiServer(rbac=True).start()
    client = ApiClient(Access(server.url, token=server.token()), manager="nodeagent-controller")
    try:
        for name in NAMES:
            put(server, name)
        async with asyncio.timeout(60):
            yield Stage(server, client, marks)
    finally:
        await client.close()
        await server.stop()


async def test_a_node_is_marked_after_a_delay_and_unmarked_at_once():
    async with stage() as it:
        assert await it.mark(["node-3"])
        assert it.tainted() == it.conditioned() == []
        assert it.marks.next_s() == 60.0
        it.clock.now += 60
        assert await it.mark(["node-3"])
        assert it.tainted() == it.conditioned() == ["node-3"]
        (condition,) = [
            one for one in it.node("node-3")["status"]["conditions"] if one["type"] == FABRIC_CONDITION
        ]
        assert (condition["status"], condition["reason"]) == ("False", "BelowMinLinks")
        assert "2 links" in condition["message"]
        assert it.untouched()
        assert await it.mark([])
        assert it.tainted() == it.conditioned() == []
        assert it.untouched()
        assert it.marks.writes == {("condition", "ok"): 2, ("taint", "ok"): 2}


async def test_a_flapping_node_is_not_marked_and_an_equal_state_writes_nothing():
    async with stage() as it:
        for _ in range(3):
            await it.mark(["node-1"])
            it.clock.now += 59
            await it.mark([])
        assert it.marks.writes.total() == 0
        await it.mark(["node-1"])
        it.clock.now += 60
        for _ in range(3):
            await it.mark(["node-1"])
        assert it.marks.writes.total() == 2


async def test_a_new_leader_reads_the_marks_and_removes_them():
    async with stage() as it:
        await it.mark(["node-1", "node-2"])
        it.clock.now += 60
        await it.mark(["node-1", "node-2"])
        it.marks = it.another()
        assert await it.mark(["node-2"])
        assert it.tainted() == it.conditioned() == ["node-2"], (
            "what is marked stays so, before its time is up"
        )
        it.clock.now += 60
        assert await it.mark(["node-2"])
        assert it.tainted() == ["node-2"]
        assert it.marks.writes == {("condition", "ok"): 1, ("taint", "ok"): 1}


async def test_a_node_that_registers_again_is_marked_again():
    async with stage() as it:
        await it.mark(["node-1"])
        it.clock.now += 60
        await it.mark(["node-1"])
        put(it.server, "node-1")
        assert it.tainted() == []
        assert it.marks.next_s() == CHECK_AGAIN_S
        it.clock.now += CHECK_AGAIN_S
        assert await it.mark(["node-1"])
        assert it.tainted() == it.conditioned() == ["node-1"]


async def test_at_most_a_share_of_the_nodes_is_tainted_and_the_taint_stays_on_its_nodes():
    async with stage(structs.replace(AT_ONCE, taint_percent=20)) as it:
        assert await it.mark(["node-8"])
        assert await it.mark(NAMES)
        assert it.tainted() == ["node-0", "node-8"]
        assert it.conditioned() == NAMES
        assert it.marks.spared == 8
        assert await it.mark(NAMES[1:])
        assert it.tainted() == ["node-1", "node-8"]
    async with stage(NodesSettings(min_links_taint=True, after_seconds=0.0, taint_percent=0)) as it:
        assert await it.mark(NAMES)
        assert it.tainted() == []


@pytest.mark.parametrize("fault", ["500", "403", "half", "close", "lost"])
@pytest.mark.parametrize(("verb", "subresource"), [("list", ""), ("get", ""), ("patch", "")])
async def test_a_failed_call_is_repeated_by_the_next_mark(fault: str, verb: str, subresource: str):
    async with stage(AT_ONCE) as it:
        it.server.fail(fault, verb=verb, resource="nodes", times=1)
        async with asyncio.timeout(LIMIT_S):
            while not await it.mark(["node-5"]):
                pass
        assert it.tainted() == it.conditioned() == ["node-5"]
        assert it.untouched()


class Raced(ApiClient):
    """Another client writes the Node after each of the first two reads."""

    def __init__(self, server: ApiServer, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._server, self.races = server, 0

    async def get(self, resource: Any, name: str, **more: Any) -> Any:
        found = await super().get(resource, name, **more)
        if self.races < 2:
            self.races += 1
            live = self._server.find("nodes", name)
            assert live is not None
            live["spec"]["taints"].append({"key": f"example.com/{self.races}", "effect": "NoExecute"})
            self._server.put(live)
        return found


async def test_a_taint_that_another_client_writes_meanwhile_is_kept():
    async with stage() as it:
        client = Raced(it.server, it.marks._client.access)
        try:
            marks = MinLinksMarker(
                client,
                NodesSettings(min_links_taint=True, after_seconds=0.0, taint_percent=100),
                per_second=1000.0,
            )
            assert await marks.mark(["node-5"], 10)
        finally:
            await client.close()
        keys = {taint["key"] for taint in it.node("node-5")["spec"]["taints"]}
        assert keys == {"example.com/gpu", "example.com/1", "example.com/2", FABRIC_TAINT.key}


async def test_a_deleted_node_is_no_failure():
    async with stage(AT_ONCE) as it:
        assert await it.mark(["ghost"])
        assert it.marks.writes == {("condition", "gone"): 1, ("taint", "gone"): 1}


ACCOUNT = "system:serviceaccount:nodeagent:nodeagent-controller"
CONTROLLER = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]}]
FOR_MARKS = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]


def grant(server: ApiServer, name: str, rules: list[dict[str, Any]]) -> None:
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    account = {"kind": "ServiceAccount", "namespace": "nodeagent", "name": "nodeagent-controller"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    server.put({**rbac, "kind": "ClusterRole", "rules": rules})
    server.put({**rbac, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]})


async def test_two_more_rights_are_enough_and_the_log_names_a_missing_one(
    caplog: pytest.LogCaptureFixture,
):
    async with stage() as it:
        grant(it.server, "nodeagent-controller", CONTROLLER)
        client = ApiClient(Access(it.server.url, token=it.server.token(ACCOUNT)))
        try:
            marks = MinLinksMarker(
                client,
                AT_ONCE,
                2,
                per_second=1000.0,
            )
            assert not await marks.mark(["node-1"], 10)
            assert "get" in caplog.text
            assert "nodes" in caplog.text
            assert it.tainted() == it.conditioned() == []
            grant(it.server, "nodeagent-controller-marks", FOR_MARKS)
            assert await marks.mark(["node-1"], 10)
            assert it.tainted() == it.conditioned() == ["node-1"]
            assert await marks.mark([], 10)
            assert it.tainted() == it.conditioned() == []
        finally:
            await client.close()


async def test_the_leader_marks_nodes_below_the_minimum_and_counts_them_in_its_metrics():
    server = await ApiServer().start()
    try:
        for number in range(4):
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-0{number}"}})
            server.put(nodelinks(f"node-0{number}", ["leaf0", "leaf1"][: 1 + (number > 0)]))
        config = FabricConfig(
            min_links=2,
            hysteresis=HysteresisSettings(
                move_seconds=0.3, settle_seconds=0.0, grace_seconds=0.3, hold_seconds=1.0
            ),
            nodes=NodesSettings(min_links_condition=True, min_links_taint=True, after_seconds=0.1),
        )
        place = ReplicaSettings("nodeagent", "a", None, 0.05, 3.0, 2.0, 0.2)
        controller = Controller(config, Access(server.url, token=server.token()), place)
        task = asyncio.create_task(controller.run())
        try:

            def taints(name: str) -> list[dict[str, Any]]:
                found = server.find("nodes", name)
                assert found is not None
                return found.get("spec", {}).get("taints") or []

            await until(
                lambda: taints("node-00") == [{"key": FABRIC_TAINT.key, "effect": "NoSchedule"}], "the taint"
            )
            assert taints("node-01") == []
            line = 'nodeagent_fabric_marked_nodes{mark="taint"} 1.0\n'
            await until(lambda: line in controller.pages.metrics("").body.decode(), "the metric")
            server.put(nodelinks("node-00", ["leaf0", "leaf1"]))
            await until(lambda: taints("node-00") == [], "the taint to go")
        finally:
            task.cancel()
            await asyncio.wait((task,))
    finally:
        await server.stop()
