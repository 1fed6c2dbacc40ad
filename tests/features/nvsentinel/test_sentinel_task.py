"""NVSentinel as a feature of the agent."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.features.nvsentinel.sentinel_settings import NvSentinelSettings
from nodeagent.features.nvsentinel.sentinel_task import start_sentinel
from nodeagent.features.seam import AgentPart
from tests.support.agent_core import agent_core
from tests.support.platform_connector import StandInConnector
from tests.support.running_agent import node
from tests.support.waiting import until


@pytest.mark.slow
async def test_a_lost_carrier_and_its_return_reach_nvsentinel() -> None:
    async with node() as n:
        connector = StandInConnector(n.root / "run" / "nvs.sock")
        connector.socket.parent.mkdir(exist_ok=True)
        try:
            await connector.start()
            await n.kubelet.start()
            config = n.configure("nvSentinel: {socket: /run/nvs.sock}\n")
            await n.start_agent(config, node_name="node-1")
            await connector.until(lambda: len(connector.events) == 5)
            assert {(event.node, event.healthy) for event in connector.events} == {("node-1", True)}
            n.machine.set_link(0, up=False)
            await connector.until(lambda: connector.conditions.standing("NodeagentNicHealth"))
            assert "carrier_down" in connector.events[-1].codes
            n.machine.set_link(0, up=True)
            await connector.until(lambda: not connector.conditions.standing("NodeagentNicHealth"))
        finally:
            await connector.stop()


def test_without_a_socket_nothing_runs() -> None:
    assert start_sentinel(agent_core(), NvSentinelSettings()) == AgentPart()


@pytest.mark.usefixtures("virtual_time")
async def test_without_the_name_of_the_node_the_remedy_is_on_the_page() -> None:
    core = agent_core()
    part = start_sentinel(core, NvSentinelSettings(socket="/run/nvs.sock"))
    task = asyncio.ensure_future(part.tasks["nvsentinel"](None))
    try:
        core.settled.set()
        await until(lambda: bool(core.deliveries.remarks()))
        assert core.deliveries.remarks() == (
            "cluster nvsentinel: does not reach NVSentinel: the name of this Node is not known. Set NODE_NAME or "
            "--node-name",
        )
    finally:
        task.cancel()
