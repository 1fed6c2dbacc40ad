"""Health events over gRPC to a stand-in for NVSentinel's connector: absent, hanging, refusing, restarting."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from nodeagent.base.backoff import Backoff
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.facts.inventory import Inventory
from nodeagent.features.nvsentinel import platform_connector
from nodeagent.features.nvsentinel.health_events import GPU_CHECK, NIC_CHECK
from nodeagent.features.nvsentinel.platform_connector import PlatformConnector, socket_identity
from tests.support.cluster_node import DOWN, GPU_LOST, publish, snapshot
from tests.support.platform_connector import StandInConnector


class Node:
    """A node with a sender and a stand-in connector that is not started yet."""

    def __init__(self, folder, **options):
        self.connector = StandInConnector(folder / "nvsentinel.sock")
        self.inventory, self.deliveries = Inventory(), Deliveries()
        self.delivery = self.deliveries.of("nvsentinel", "NVSentinel")
        self.sender = PlatformConnector(
            self.inventory,
            lambda: self.connector.socket,
            "node-1",
            self.delivery,
            **{"call_s": 30.0, "look_s": 0.02, "pace_s": 0.01, "backoff": Backoff(0.02, 0.1), **options},
        )

    def publish(self, links=(), gpus=()):
        publish(self.inventory, snapshot(links, gpus))

    async def until_missed(self):
        async with asyncio.timeout(60):
            while self.delivery.reason is None:
                self.deliveries.changed.clear()
                await self.deliveries.changed.wait()

    async def until_sent(self):
        async with asyncio.timeout(60):
            while self.delivery.reason is not None or not self.delivery.results["ok"]:
                self.deliveries.changed.clear()
                await self.deliveries.changed.wait()


@asynccontextmanager
async def running(folder, **options):
    node = Node(folder, **options)
    task = asyncio.ensure_future(node.sender.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.connector.stop()


async def test_a_fault_and_its_recovery_arrive_with_the_fields_that_nvsentinel_reads(tmp_path):
    async with running(tmp_path) as node:
        await node.connector.start()
        node.publish([DOWN], [None])
        await node.connector.until(lambda: len(node.connector.events) == 2)
        fault, baseline = node.connector.events
        assert (fault.agent, fault.component, fault.check, fault.node) == (
            "nodeagent", "NIC", NIC_CHECK, "node-1",
        )  # fmt: skip
        assert (fault.fatal, fault.healthy, fault.action, fault.strategy) == (True, False, 5, 1)
        assert (fault.codes, fault.entities) == (("carrier_down",), (("PCI", "0000:10:00.0"),))
        assert (baseline.component, baseline.check, baseline.healthy, baseline.action) == (
            "GPU", GPU_CHECK, True, 0,
        )  # fmt: skip
        assert baseline.entities == (("PCI", "0000:20:00.0"), ("GPU_UUID", "GPU-0"))
        assert fault.time_ns < baseline.time_ns
        node.publish([None], [None])
        await node.connector.until(lambda: len(node.connector.events) == 3)
        assert node.connector.conditions.messages == {NIC_CHECK: "", GPU_CHECK: ""}


async def test_events_wait_for_a_connector_that_does_not_exist_yet(tmp_path):
    async with running(tmp_path) as node:
        node.publish([DOWN])
        await node.until_missed()
        assert node.deliveries.remarks() == (
            f"cluster nvsentinel: does not reach NVSentinel: {node.connector.socket} does not exist",
        )
        await node.connector.start()
        await node.connector.until(lambda: node.connector.conditions.standing(NIC_CHECK))
        await node.until_sent()
        assert node.deliveries.remarks() == ()


async def test_a_socket_without_a_listener_is_tried_again(tmp_path):
    async with running(tmp_path) as node:
        import socket

        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(node.connector.socket))
        node.publish([DOWN])
        await node.until_missed()
        assert "UNAVAILABLE" in node.delivery.reason
        node.connector.socket.unlink()
        await node.connector.start()
        await node.connector.until(lambda: node.connector.events)


async def test_a_connector_that_restarts_gets_all_present_events_again(tmp_path):
    async with running(tmp_path) as node:
        await node.connector.start()
        node.publish([DOWN, None], [GPU_LOST])
        await node.connector.until(lambda: len(node.connector.events) == 3)
        await node.connector.restart()
        await node.connector.until(lambda: len(node.connector.events) == 3)
        assert sorted(event.fatal for event in node.connector.events) == [False, True, True]
        assert len(node.connector.conditions.standing(NIC_CHECK)) == 1


async def test_a_connector_that_hangs_gets_only_the_present_health_afterwards(tmp_path):
    async with running(tmp_path, call_s=0.2) as node:
        node.connector.hangs = True
        await node.connector.start()
        node.publish([None])
        await node.until_missed()
        assert "DEADLINE_EXCEEDED" in node.delivery.reason
        # The loop is free: facts change while calls hang, and none of them queues up.
        for _ in range(50):
            node.publish([DOWN])
            node.publish([None])
        node.publish([DOWN])
        node.connector.hangs = False
        await node.connector.until(lambda: node.connector.conditions.standing(NIC_CHECK))
        assert [event.healthy for event in node.connector.events] in ([False], [True, False])


async def test_a_refusal_is_named_and_tried_again(tmp_path):
    async with running(tmp_path) as node:
        node.connector.refusal = grpc.StatusCode.PERMISSION_DENIED
        await node.connector.start()
        node.publish([DOWN])
        await node.until_missed()
        (remark,) = node.deliveries.remarks()
        assert remark.startswith("cluster nvsentinel: is refused by NVSentinel: ")
        assert remark.endswith("PERMISSION_DENIED: not today")
        node.connector.refusal = None
        await node.connector.until(lambda: node.connector.events)


async def test_a_renewed_token_is_used_and_none_is_sent_without_a_token_in_the_file(tmp_path):
    token = tmp_path / "token"
    token.write_text("\n")
    async with running(tmp_path, token_file=token) as node:
        node.connector.token = "second"
        await node.connector.start()
        node.publish([DOWN])
        await node.until_missed()
        assert node.delivery.reason == f"the token cannot be read: {token} holds no token"
        assert node.connector.calls == 0
        (tmp_path / "new").write_text("first")
        (tmp_path / "new").replace(token)
        await node.connector.until(lambda: node.connector.calls)
        (tmp_path / "new").write_text("second\n")
        (tmp_path / "new").replace(token)
        await node.connector.until(lambda: node.connector.events)


async def test_events_of_a_trial_are_only_stored(tmp_path):
    async with running(tmp_path, store_only=True) as node:
        await node.connector.start()
        node.publish([DOWN])
        await node.connector.until(lambda: node.connector.events)
        assert node.connector.events[0].strategy == 2


async def test_many_devices_arrive_in_bounded_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(platform_connector, "BATCH_MAX", 2)
    async with running(tmp_path) as node:
        await node.connector.start()
        node.publish([None, DOWN, None], [GPU_LOST, None])
        await node.connector.until(lambda: len(node.connector.events) == 5)
        assert node.connector.calls == 3
        assert [event.fatal for event in node.connector.events] == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["missing", "file/below"])
def test_a_path_that_leads_to_no_socket_has_no_identity(tmp_path, name):
    (tmp_path / "file").touch()
    assert socket_identity(tmp_path / name) is None
