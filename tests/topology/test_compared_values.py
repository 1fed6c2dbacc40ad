"""The controller's copy of the compared values: they make no plan, and what is unreadable costs them alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodeagent.fabric.node_values import by_name, values_text
from tests.controller.test_controller import cluster, groups, leaves, nodelinks, running
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")
NAMES = [f"node-0{number}" for number in range(4)]


def compared(mtu: int = 9000) -> dict[str, Any]:
    return {"values": values_text({"model": "DGX H100", "MTU": str(mtu)}), "since": "2020-01-01T00:00:00Z"}


async def test_values_are_known_without_a_plan_and_leave_with_their_report() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        values = controller.fabric.parts.planner.inputs.values
        await asyncio.sleep(120)
        plans = controller.progress.plans
        for number, name in enumerate(NAMES):
            server.put(nodelinks(name, leaves(0)) | {"compared": compared(1500 if number == 3 else 9000)})
        await until(lambda: len(values) == 4)
        assert by_name(values["node-03"].values) == {"model": "DGX H100", "MTU": "1500"}
        await asyncio.sleep(120)
        assert controller.progress.plans == plans
        server.put(nodelinks("node-03", leaves(0)))
        await until(lambda: "node-03" not in values)
        assert len(values) == 3


async def test_the_metric_counts_odd_nodes_by_value() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        assert "nodeagent_odd_nodes" not in controller.pages.metrics("").body.decode()
        for number, name in enumerate(NAMES):
            server.put(nodelinks(name, leaves(0)) | {"compared": compared(1500 if number == 3 else 9000)})
        await until(lambda: len(controller.fabric.parts.planner.inputs.values) == 4)
        page = controller.pages.metrics("").body.decode()
        assert 'nodeagent_odd_nodes{value="MTU"} 1.0' in page
        assert page.count('nodeagent_odd_nodes{value="') == 26


@pytest.mark.parametrize(
    "wrong", [7, "x", {"values": 3}, {"values": ["MTU=1500"]}, {"changes": [{"name": "MTU"}]}, None]
)
async def test_unreadable_values_leave_the_links_of_the_report(wrong: Any) -> None:
    """As a later or broken agent may write them where no definition refuses it."""
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        inputs = controller.fabric.parts.planner.inputs
        server.put(nodelinks("node-00", leaves(0)) | {"compared": compared()})
        await until(lambda: "node-00" in inputs.values)
        server.put(nodelinks("node-00", leaves(0)) | {"compared": wrong})
        await until(lambda: "node-00" not in inputs.values)
        assert "node-00" in inputs.reports
