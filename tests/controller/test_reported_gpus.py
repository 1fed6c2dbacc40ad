"""GPUs in trouble of reports at the controller: views, series and history, agents of both versions, and no write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.fabric.nodelinks import GPUS_MAX
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import cluster, labels, leaves, nodelinks, page, running
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

FELL: dict[str, Any] = {
    "index": 3,
    "pciAddress": "0000:5e:00.0",
    "state": "unhealthy",
    "reasons": ["xid_79"],
    "reasonDetails": ["XID 79: the GPU has fallen off the bus."],
    "since": "2026-01-01T00:00:00Z",
    "pods": ["ml/train-0"],
}
KEY = "topology.nodeagent.io/tier-1"


def put(server: ApiServer, node: str, *gpus: Any) -> None:
    """A report with these GPUs; that of an agent of an earlier version has no such field."""
    report = nodelinks(node, leaves(int(node[5])))
    server.put({**report, **({"gpus": [*gpus]} if gpus else {})})


def writes(server: ApiServer) -> list[str]:
    read = ("list", "watch", "get")
    return [seen.resource for seen in server.requests if seen.verb not in read and seen.resource != "leases"]


async def test_a_gpu_that_fails_is_a_trouble_a_series_and_a_change_and_nothing_is_written() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(server.objects("hypernodes")) == 2)
        await until(lambda: all(KEY in labels(server, node) for node in ("node-00", "node-13")))
        await until(lambda: controller.progress.outcome and not controller.progress.outcome.relabel)
        group = labels(server, "node-00")[KEY]
        before = writes(server)
        put(server, "node-00", FELL)
        faults = controller.planner.inputs.gpu_faults.of_node
        await until(lambda: "node-00" in faults)
        view = json.loads(await controller.pages._document())
        (one,) = view["troubles"]
        assert (one["where"], one["what"], one["gpus"]) == (
            "node-00 GPU 3",
            "unhealthy",
            [["node-00", "GPU 3"]],
        )
        assert view["gpus"] == {"node-00": ["GPU 3 unhealthy"]}
        assert view["pods"] == {"ml/train-0": [0]}
        report = json.loads((await controller.pages._node({"name": "node-00"})).body)
        assert report["gpus"][0]["reasonDetails"] == FELL["reasonDetails"]
        (series,) = (line for line in page(controller) if line.startswith("nodeagent_gpu_trouble"))
        assert f'{{gpu="3",hypernode="{group}",node="node-00",state="unhealthy"}} 1.7672256e+09' in series
        put(server, "node-00", FELL | {"state": "degraded", "reasons": ["pcie_width"]})
        await until(lambda: faults["node-00"][0].state == "degraded")
        put(server, "node-00")
        await until(lambda: "node-00" not in faults)
        told = [(one.where, one.before, one.after) for one in controller.changes.changes if one.what == "gpu"]
        assert told == [
            ("gpu3", "healthy", "unhealthy (xid_79)"),
            ("gpu3", "unhealthy (xid_79)", "degraded (pcie_width)"),
            ("gpu3", "degraded (pcie_width)", "healthy"),
        ]
        assert not [line for line in page(controller) if line.startswith("nodeagent_gpu_trouble")]
        assert writes(server) == before, "the tree and the labels do not depend on it"


@pytest.mark.parametrize(
    "gpus",
    [
        [{"state": 5}],
        ["GPU 3"],
        [{}],
        [FELL, {"index": "three", "state": "unhealthy"}],
        [[]],
    ],
)
async def test_gpus_that_cannot_be_read_cost_the_report_nothing_else(gpus: list[Any]) -> None:
    """The list of a version to come, or of a definition that somebody changed."""
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(server.objects("hypernodes")) == 2)
        put(server, "node-00", FELL)
        faults = controller.planner.inputs.gpu_faults.of_node
        await until(lambda: "node-00" in faults)
        server.put({**nodelinks("node-00", leaves(0), state="degraded"), "gpus": gpus})
        await until(lambda: "node-00" in controller.planner.inputs.faults.of_node)
        assert "node-00" not in faults
        assert "node-00" not in controller.planner.inputs.refused


async def test_agents_of_both_versions_are_in_one_fleet_and_each_field_of_a_later_one_is_ignored() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(server.objects("hypernodes")) == 2)
        put(server, "node-00", FELL | {"ofALaterVersion": [1], "state": "resting"})
        faults = controller.planner.inputs.gpu_faults.of_node
        await until(lambda: "node-00" in faults)
        assert faults["node-00"][0].state == "resting"
        assert [*faults] == ["node-00"]
        assert not controller.planner.inputs.refused


async def test_a_node_of_more_gpus_than_the_definition_allows_is_cut() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(server.objects("hypernodes")) == 2)
        put(server, "node-00", *({**FELL, "index": n} for n in range(5000)))
        faults = controller.planner.inputs.gpu_faults.of_node
        await until(lambda: "node-00" in faults)
        assert len(faults["node-00"]) == GPUS_MAX
