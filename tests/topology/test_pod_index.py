"""The pods of reports for the search of the map: found by a part of their name, and without work for the planner."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.topology.mirrors import PODS_MAX, FoundPod, PodIndex
from tests.controller.test_controller import cluster, leaves, nodelinks, running
from tests.fabric.test_break_fabric import mirroring
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def holders(*pods: str) -> list[dict[str, Any]]:
    vfs = [{"link": "nic0", "pciAddress": "0000:18:00.1"}]
    return [{"namespace": "team", "pod": pod, "vfs": vfs, "since": "2026-11-23T10:00:00Z"} for pod in pods]


async def test_a_pod_is_found_by_a_part_of_its_name_or_namespace():
    index = PodIndex()
    index.take("gpu-0", json.dumps(holders("train-0", "other")).encode())
    index.take("gpu-1", json.dumps(holders("train-1")).encode())
    assert await index.find("TRAIN-", 5) == (
        FoundPod("team/train-0", "gpu-0"),
        FoundPod("team/train-1", "gpu-1"),
    )
    assert await index.find("am/oth", 5) == (FoundPod("team/other", "gpu-0"),)
    assert len(await index.find("team", 2)) == 2
    assert await index.find("nothing", 5) == ()
    index.take("gpu-0", b"[]")
    index.forget("gpu-1")
    assert await index.find("t", 5) == ()
    assert index._pods == {}


@pytest.mark.parametrize(
    "content", [b"{}", b"[1]", b'[{"namespace":1,"pod":"a"}]', b"\xff", b'[{"pod":"a"}]']
)
async def test_holders_that_cannot_be_read_count_as_none(content: bytes):
    index = PodIndex()
    index.take("gpu-0", json.dumps(holders("a")).encode())
    index.take("gpu-0", content)
    assert await index.find("a", 5) == ()


async def test_a_name_with_line_ends_is_one_pod_and_too_many_are_cut():
    index = PodIndex()
    index.take("gpu-0", json.dumps(holders("a\nteam/b", *(f"p{n}" for n in range(500)))).encode())
    assert await index.find("team/b", 5) == (FoundPod("team/a\\nteam/b", "gpu-0"),)
    assert len(await index.find("team", 1000)) == PODS_MAX


async def test_the_links_of_each_pod_are_kept_and_a_name_of_a_link_cannot_make_a_pod():
    index = PodIndex()
    entry = {"namespace": "team", "pod": "a", "since": "2026-11-23T10:00:00Z"}
    vfs = [
        {"link": link, "pciAddress": "0000:18:00.1"} for link in ("nic1", "nic0", "nic1", "x\nteam/b\tnic9")
    ]
    index.take("gpu-0", json.dumps([entry | {"vfs": vfs}]).encode())
    assert index.held("gpu-0") == {"team/a": ("nic0", "nic1", "x\\nteam/b\\tnic9")}
    assert await index.find("nic", 5) == (), "links are no names of pods"
    held = index.held_now()
    index.forget("gpu-0")
    assert index.held("gpu-0") == {}
    assert list(held()) == ["gpu-0"]


async def test_a_pod_that_starts_or_ends_makes_no_plan_and_is_found_while_it_is_reported():
    async with cluster(units=1) as server, mirroring(server) as (planner, mirror):
        await until(lambda: len(planner.rails) == 4)
        revision = mirror.revision
        planner.rails.clear()
        server.put(nodelinks("node-00", leaves(0)) | {"holders": holders("trainer")})
        await until(lambda: mirror.pods._pods)
        assert await mirror.pods.find("trainer", 5) == (FoundPod("team/trainer", "node-00"),)
        server.put(nodelinks("node-00", leaves(0)))
        await until(lambda: not mirror.pods._pods)
        assert (mirror.revision, planner.rails) == (revision, {})
        server.put(nodelinks("node-01", leaves(0)) | {"holders": holders("second")})
        await until(lambda: mirror.pods._pods)
        server.remove("nodelinks", "node-01", "nodeagent")
        await until(lambda: not mirror.pods._pods)


async def test_on_a_node_with_a_fault_the_pods_of_the_trouble_follow():
    async with cluster(units=1) as server, running(server) as controller:
        await until(lambda: controller.progress.plans)

        async def pods() -> dict[str, list[int]]:
            document: dict[str, Any] = json.loads((await controller.pages.live.document()).body)
            assert isinstance(document["pods"], dict)
            return document["pods"]

        down = nodelinks("node-00", leaves(0), state="down")
        server.put(down | {"holders": holders("trainer")})
        await until(lambda: controller.planner.has_fault("node-00"))
        assert list(await pods()) == ["team/trainer"]
        faults = controller.planner.inputs.faults.of_node
        server.put(down | {"holders": holders("second")})
        await until(lambda: faults["node-00"][0].pods == ("team/second",))
        assert list(await pods()) == ["team/second"]
        server.put(down | {"holders": [{"namespace": "team", "pod": "unreadable"}]})
        await until(lambda: not faults["node-00"][0].pods)
        assert await pods() == {}
        server.put(nodelinks("node-00", leaves(0)) | {"holders": holders("second")})
        await until(lambda: not controller.planner.has_fault("node-00"))
        assert await pods() == {}


async def test_a_wrong_cable_on_the_map_has_the_pods_of_its_link():
    async with cluster() as server, running(server) as controller:
        wrong = leaves(0)[::-1]
        server.put(nodelinks("node-00", wrong))

        async def pods() -> dict[str, int]:
            document: dict[str, Any] = json.loads((await controller.pages.live.document()).body)
            return {one["where"]: one["pods"] for one in document["troubles"] if one["what"] == "miscabled"}

        await until(lambda: controller.progress.outcome and controller.progress.outcome.anomalies)
        assert await pods() == {"node-00 nic0": 0, "node-00 nic1": 0}
        server.put(nodelinks("node-00", wrong) | {"holders": holders("trainer")})
        await until(lambda: controller.cluster.pods.held("node-00") == {"team/trainer": ("nic0",)})
        controller.pages.planned()
        assert await pods() == {"node-00 nic0": 1, "node-00 nic1": 0}
