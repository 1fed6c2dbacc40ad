"""The start-up taint of new Nodes, against the stand-in API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodeagent.cluster.node_marks import STARTING_TAINT
from nodeagent.features import startup_taint
from nodeagent.features.startup_taint import StartupTaints
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

STARTING = {"key": STARTING_TAINT, "effect": "NoSchedule"}
THEIRS = {
    "key": "example.com/gpu",
    "value": "yes",
    "effect": "NoExecute",
    "timeAdded": "2026-01-01T00:00:00Z",
}
AGENT = {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "agent"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_taint, "SETTLE_S", 0.01)


def put_node(server: ApiServer, name: str, *taints: dict[str, Any]) -> None:
    server.put(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": list(taints)}}
    )


def put_pod(
    server: ApiServer, node: str, *, ready: bool = True, labels: dict[str, str] = AGENT, uid: str = "1"
) -> None:
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{node}", "namespace": "nodeagent", "uid": uid, "labels": labels},
            "spec": {"nodeName": node},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }
    )


def taints(server: ApiServer, name: str) -> list[dict[str, Any]]:
    found = server.find("nodes", name)
    assert found is not None
    return list(found["spec"].get("taints") or ())


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[ApiServer, StartupTaints]]:
    server = await ApiServer().start()
    async with asyncio.timeout(30):
        client = ApiClient(Access(server.url, token=server.token()), manager="nodeagent-controller")
        yield server, StartupTaints(client, "nodeagent", again_s=0.05, per_second=1000.0)
        await client.close()
        await server.stop()


def reads(server: ApiServer) -> list[str]:
    """The Nodes that were read one by one."""
    return [seen.name or "" for seen in server.requests if (seen.verb, seen.resource) == ("get", "nodes")]


@asynccontextmanager
async def running(remover: StartupTaints, server: ApiServer) -> AsyncIterator[None]:
    """The remover runs and has read the present pods and Nodes."""
    task = asyncio.ensure_future(remover.run())
    try:
        await server.until(
            lambda: any((seen.verb, seen.resource) == ("list", "nodes") for seen in server.requests)
        )
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_new_node_loses_the_taint_when_its_agent_is_ready_and_keeps_all_others() -> None:
    async with stage() as (server, remover), running(remover, server):
        put_node(server, "new", THEIRS, STARTING, STARTING | {"effect": "NoExecute"})
        put_pod(server, "new", ready=False)
        put_node(server, "other", STARTING)
        put_pod(server, "other")
        await server.until(lambda: taints(server, "other") == [])
        assert len(taints(server, "new")) == 3
        put_pod(server, "new")
        await server.until(lambda: taints(server, "new") == [THEIRS])
        await until(lambda: remover.writes == {"ok": 2})


async def test_a_new_leader_removes_what_its_predecessor_left_and_reads_only_tainted_nodes_of_the_others() -> (
    None
):
    async with stage() as (server, remover):
        for number in range(20):
            put_node(server, f"old-{number}", THEIRS)
            put_pod(server, f"old-{number}")
        put_node(server, "left", STARTING)
        put_pod(server, "left")
        async with running(remover, server):
            await server.until(lambda: taints(server, "left") == [])
        assert set(reads(server)) == {"left"}


async def test_a_pod_of_another_program_and_a_pod_without_a_node_remove_nothing() -> None:
    async with stage() as (server, remover), running(remover, server):
        put_node(server, "a", STARTING)
        put_pod(
            server, "a", labels={"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "x"}
        )
        put_node(server, "b", STARTING)
        put_pod(server, "")
        put_pod(server, "b")
        await server.until(lambda: taints(server, "b") == [])
        assert taints(server, "a") == [STARTING]
        assert reads(server) == ["b"]


async def test_an_agent_that_fails_before_the_devices_can_be_there_keeps_the_taint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as (server, remover), running(remover, server):
        monkeypatch.setattr(startup_taint, "SETTLE_S", 3600.0)
        put_node(server, "weak", STARTING)
        put_pod(server, "weak")
        await until(lambda: "weak" in remover.waiting)
        put_pod(server, "weak", ready=False)
        await until(lambda: "weak" not in remover.waiting)
        assert reads(server) == []


async def test_a_refused_write_is_tried_again_and_a_deleted_node_is_forgotten() -> None:
    async with stage() as (server, remover), running(remover, server):
        server.fail("500", verb="patch", resource="nodes", times=None)
        put_node(server, "new", STARTING)
        put_pod(server, "new")
        await until(lambda: remover.writes["failed"] >= 2)
        server.heal()
        await server.until(lambda: taints(server, "new") == [])
        put_pod(server, "gone")
        await until(lambda: remover.writes["gone"] == 1)
        assert remover.waiting == set()
