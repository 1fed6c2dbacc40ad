"""The condition on HyperNodes that overlap with those of another owner, against the stand-in API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import HYPERNODES
from nodeagent.topology.hypernodes import (
    OVERLAP_MANAGER,
    OVERLAP_PAUSE_S,
    OVERLAP_RETRY_S,
    OVERLAPS_AT_ONCE,
    OverlapMarker,
)
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import FIRST, RULES, SECOND, cluster, groups
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def hypernode(name: str, *members: str, source: str = "nodeagent") -> dict[str, Any]:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name, "labels": {"volcano.sh/network-topology-source": source}},
        "spec": {
            "tier": 1,
            "members": [{"type": "Node", "selector": {"exactMatch": {"name": one}}} for one in members],
        },
    }


def status(server: ApiServer, name: str) -> dict[str, Any]:
    found = server.find("hypernodes", name)
    assert found is not None
    return found.get("status", {})


def marked(server: ApiServer) -> set[str]:
    return {
        found["metadata"]["name"]
        for found in server.objects("hypernodes")
        if any(one["type"] == "Overlap" for one in found.get("status", {}).get("conditions", ()))
    }


def writes(server: ApiServer) -> int:
    return sum(seen.resource == "hypernodes/status" for seen in server.requests)


NAMES = [f"leaf-{number:02}" for number in range(OVERLAPS_AT_ONCE + 5)]


@asynccontextmanager
async def client(server: ApiServer, manager: str) -> AsyncIterator[ApiClient]:
    made = ApiClient(Access(server.url, token=server.token()), manager=manager)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[ApiServer, OverlapMarker]]:
    server = await ApiServer().start()
    try:
        for name in NAMES:
            server.put({**hypernode(name, f"node-{name}"), "status": {"nodeCount": 1}})
        async with client(server, "controller") as one:
            yield server, OverlapMarker(one)
    finally:
        await server.stop()


async def test_the_condition_comes_and_goes_with_the_overlap_and_the_count_of_nodes_stays() -> None:
    async with stage() as (server, overlaps):
        for _ in range(3):  # an equal mark is not written again
            assert await overlaps.mark({"leaf-00": ("ufm-1", "ufm-2")}, NAMES) is None
        (condition,) = status(server, "leaf-00")["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "Overlap",
            "True",
            "ForeignHyperNode",
        )
        assert condition["message"].startswith("ufm-1, ufm-2 of another owner")
        assert status(server, "leaf-00")["nodeCount"] == 1
        assert (marked(server), writes(server)) == ({"leaf-00"}, 1)
        for _ in range(3):
            assert await overlaps.mark({}, NAMES) is None
        assert status(server, "leaf-00") == {"nodeCount": 1}
        assert writes(server) == 2


async def test_the_condition_names_at_most_five_others() -> None:
    async with stage() as (server, overlaps):
        await overlaps.mark({"leaf-00": NAMES[1:6], "leaf-01": NAMES[1:7]}, NAMES)
        five, more = (status(server, name)["conditions"][0]["message"] for name in ("leaf-00", "leaf-01"))
        assert five.startswith("leaf-01, leaf-02, leaf-03, leaf-04, leaf-05 of another owner")
        assert more.startswith("leaf-01, leaf-02, leaf-03, leaf-04, leaf-05, … of another owner")


async def test_a_new_leader_reads_which_hypernodes_are_marked() -> None:
    async with stage() as (server, overlaps):
        await overlaps.mark({"leaf-00": ("x",), "leaf-01": ("x",)}, NAMES)
        overlaps.forget()
        await overlaps.mark({"leaf-01": ("x",)}, NAMES)
        assert (marked(server), writes(server)) == ({"leaf-01"}, 3)


async def test_a_few_conditions_are_written_at_a_time() -> None:
    async with stage() as (server, overlaps):
        all_of_them = dict.fromkeys(NAMES, ("x",))
        assert await overlaps.mark(all_of_them, NAMES) == OVERLAP_PAUSE_S
        assert len(marked(server)) == OVERLAPS_AT_ONCE
        assert await overlaps.mark(all_of_them, NAMES) is None
        assert marked(server) == set(NAMES)


async def test_conditions_of_another_owner_stay(caplog: pytest.LogCaptureFixture) -> None:
    theirs = [{"type": "Ready", "status": "True", "reason": "Fine", "message": ""}]
    async with stage() as (server, overlaps):
        async with client(server, "volcano") as other:
            body = {"metadata": {"name": "leaf-00"}, "status": {"conditions": theirs}}
            await other.apply(HYPERNODES, body, subresource="status")
        for _ in range(3):
            assert await overlaps.mark({"leaf-00": ("x",), "leaf-01": ("x",)}, NAMES) is None
        assert status(server, "leaf-00")["conditions"] == theirs
        assert marked(server) == {"leaf-01"}
        assert sum("conditions of another owner" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize("fault", ["403", "500"])
async def test_a_failed_write_is_logged_once_and_repeated_later(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as (server, overlaps):
        server.fail(fault, verb="patch", resource="hypernodes/status", times=2)
        for _ in range(2):
            assert await overlaps.mark({"leaf-00": ("x",)}, NAMES) == OVERLAP_RETRY_S
        assert sum("cannot be marked" in one.getMessage() for one in caplog.records) == 1
        assert await overlaps.mark({"leaf-00": ("x",)}, NAMES) is None
        assert marked(server) == {"leaf-00"}


async def test_a_deleted_hypernode_is_no_failure() -> None:
    async with stage() as (server, overlaps):
        await overlaps.mark({"leaf-00": ("x",)}, NAMES)
        server.remove("hypernodes", "leaf-00")
        server.remove("hypernodes", "leaf-01")
        assert await overlaps.mark({"leaf-01": ("x",)}, NAMES[1:]) is None
        assert marked(server) == set()


async def lead(server: ApiServer, config: FabricConfig) -> tuple[Controller, asyncio.Task[None]]:
    place = ReplicaSettings("nodeagent", "a", None, 0.05, 3.0, 2.0, 0.2)
    controller = Controller(config, Access(server.url, token=server.token()), place)
    return controller, asyncio.create_task(controller.run())


@pytest.mark.parametrize("on", [True, False])
async def test_the_controller_marks_its_overlapping_hypernodes_only_if_configured(on: bool) -> None:
    async with cluster() as server:
        controller, task = await lead(server, structs.replace(RULES, overlap_condition=on))
        try:
            await until(lambda: groups(server) == [FIRST, SECOND])
            (ours,) = (
                found["metadata"]["name"]
                for found in server.objects("hypernodes")
                if FIRST[0] in str(found["spec"])
            )
            await until(lambda: controller.hypernodes.writes.total() == 2)
            server.put(hypernode("ufm-leaf", FIRST[0], "node-elsewhere", source="ufm"))
            await until(lambda: server.objects("events"))
            if on:
                await until(lambda: marked(server) == {ours})
                entry = server.find("hypernodes", ours)["metadata"]["managedFields"]
                assert {one["manager"] for one in entry if one.get("subresource") == "status"} == {
                    OVERLAP_MANAGER
                }
            server.remove("hypernodes", "ufm-leaf")
            await until(lambda: not controller.events._obstacles)
            await until(lambda: not marked(server))
            assert writes(server) == (2 if on else 0)
            assert controller.hypernodes.writes.total() == 2
        finally:
            task.cancel()
            await asyncio.wait((task,))
